"""Log-mel features: the power of short windows of sound in bands that are equally wide for the ear.

Frames are centered: frame t is a window around sample t · hop, and the sound is mirrored at both ends. The bands are triangles
of equal area on Slaney's mel scale from 0 Hz to 8 kHz (Slaney 1998, Auditory Toolbox), as in librosa and Whisper.

T counts frames, N samples, F bands and K = window / 2 + 1 frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.frontends.sound_file import SAMPLE_RATE

MIN_POWER = 1e-10
"""Least power of a band; its logarithm stays finite in silence."""
DYNAMIC_RANGE = 8.0
"""Powers of ten below the largest power of a recording that are kept: 80 dB."""
BLOCK_FRAMES = 1024
"""Frames that are transformed at once."""
LINEAR_WIDTH = 200 / 3
"""Hz of a mel below 1 kHz (Slaney 1998)."""
BREAK_FREQUENCY = 1000.0
"""Hz from which the scale is logarithmic (Slaney 1998)."""
LOG_STEP = np.log(6.4) / 27
"""Natural logarithm of the ratio of frequencies that are one mel apart above 1 kHz (Slaney 1998)."""


@dataclass(frozen=True)
class LogMel:
    """Function from samples to log-mel features.

    num_bands: bands of a frame, F
    window: samples of a frame: 400 are 25 ms
    hop: samples from one frame to the next: 160 are 10 ms
    scaling: "standardized" gives each recording mean 0 and standard deviation 1, so its loudness has no effect. "whisper" is
        (log10 power + 4) / 4, as in Whisper, whose window, hop and bands (80 or 128) are the defaults
    """

    num_bands: int = 80
    window: int = 400
    hop: int = 160
    scaling: Literal["standardized", "whisper"] = "standardized"

    def __post_init__(self) -> None:
        """Raise ValueError for a value that gives no features."""
        if not 0 < self.hop <= self.window or self.window % 2 or not 0 < self.num_bands <= self.window // 2:
            raise ValueError(
                f"num_bands = {self.num_bands}, window = {self.window}, hop = {self.hop}: the window is even, "
                "the hop 1 to window, and the bands 1 to window / 2"
            )

    def __call__(self, samples_N: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the features of a recording at 16 kHz: N // hop frames, at least one. → (T, F)

        Whisper's own features are those of 30 s: samples that `pad_samples` fills up, as its models were trained.

        Raises DataError if there are no samples.
        """
        if not len(samples_N):
            raise DataError("the recording: there is no sound in it; record it again", code="empty-data")
        samples_N = pad_samples(samples_N, max(len(samples_N), self.hop))
        num_frames = len(samples_N) // self.hop
        half = self.window // 2
        # np.pad mirrors as often as a recording that is shorter than half a window needs.
        frames_TN = np.lib.stride_tricks.sliding_window_view(np.pad(samples_N, half, "reflect"), self.window)[:: self.hop]
        features_TF = np.empty((num_frames, self.num_bands), np.float32)
        for start in range(0, num_frames, BLOCK_FRAMES):
            block_TN = frames_TN[start : min(start + BLOCK_FRAMES, num_frames)]
            spectrum_TK = np.fft.rfft(block_TN * self.hann)
            power_TK = np.square(spectrum_TK.real) + np.square(spectrum_TK.imag)
            features_TF[start : start + len(block_TN)] = np.log10(np.maximum(power_TK @ self.filters, MIN_POWER))
        np.maximum(features_TF, features_TF.max() - DYNAMIC_RANGE, out=features_TF)
        if self.scaling == "whisper":
            return (features_TF + np.float32(4)) / np.float32(4)
        features_TF -= features_TF.mean(dtype=np.float64)
        # All features of silence are equal: they are 0.
        return features_TF / np.float32(features_TF.std(dtype=np.float64) + MIN_POWER)

    @cached_property
    def hann(self) -> NDArray[np.float64]:
        """Return the periodic Hann window. → (window,)"""
        return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)

    @cached_property
    def filters(self) -> NDArray[np.float64]:
        """Return the weight of each frequency in each band: triangles of area 1 between neighboring centers, in Hz. → (K, F)"""
        frequencies_K = np.arange(self.window // 2 + 1) * SAMPLE_RATE / self.window
        edges = hertz_from_mel(np.linspace(0.0, mel_from_hertz(np.array(SAMPLE_RATE / 2)), self.num_bands + 2))
        low_F, center_F, high_F = edges[:-2], edges[1:-1], edges[2:]
        rising_KF = (frequencies_K[:, None] - low_F) / (center_F - low_F)
        falling_KF = (high_F - frequencies_K[:, None]) / (high_F - center_F)
        return np.maximum(np.minimum(rising_KF, falling_KF), 0.0) * 2 / (high_F - low_F)


def pad_samples(samples_N: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Return the samples with silence after them, or cut, so that they have this length."""
    return np.pad(samples_N[:length], (0, max(0, length - len(samples_N))))


def mel_from_hertz(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mels of frequencies: linear below 1 kHz and logarithmic above."""
    logarithm = np.log(np.maximum(hertz, BREAK_FREQUENCY) / BREAK_FREQUENCY) / LOG_STEP
    mels: NDArray[np.float64] = np.minimum(hertz, BREAK_FREQUENCY) / LINEAR_WIDTH + logarithm
    return mels


def hertz_from_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the frequencies of mels, in Hz."""
    break_mel = BREAK_FREQUENCY / LINEAR_WIDTH
    hertz: NDArray[np.float64] = np.minimum(mel, break_mel) * LINEAR_WIDTH * np.exp(np.maximum(mel - break_mel, 0.0) * LOG_STEP)
    return hertz
