"""Log-mel features beside closed forms and transformers' WhisperFeatureExtractor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.frontends.log_mel import LogMel, hertz_from_mel, mel_from_hertz, pad_samples
from dragoman.frontends.sound_file import SAMPLE_RATE


def make_sine(hertz: float, *, seconds: float = 1.0, rate: int = SAMPLE_RATE) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


@pytest.mark.parametrize("num_bands", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 399, 16_000, 479_999, 480_000])
def test_features_equal_whisper_feature_extractor(num_bands: int, num_samples: int) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference is not installed")
    samples_N = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32) * 0.1
    extractor = transformers.WhisperFeatureExtractor(feature_size=num_bands)
    expected_FT = extractor(samples_N, sampling_rate=SAMPLE_RATE, return_tensors="np")["input_features"][0]
    features_TF = LogMel(num_bands, scaling="whisper")(pad_samples(samples_N, 30 * SAMPLE_RATE))
    np.testing.assert_allclose(features_TF, expected_FT.T, atol=1e-4)


def test_power_of_sine_follows_its_closed_form() -> None:
    # The Hann window of 400 samples sums to 200, and 1 kHz is frequency 25 of its transform. So a sine of amplitude a has
    # the power (100 a)² there, and a quarter of it at frequencies 24 and 26, whose coefficients are half as large.
    log_mel = LogMel(scaling="whisper")
    power_K = np.zeros(201)
    power_K[24:27] = np.array([0.25, 1.0, 0.25]) * (100 * 0.5) ** 2
    band = int(np.argmax(power_K @ log_mel.filters))
    features_TF = log_mel(make_sine(1000.0))[10:-10]  # mirrors at the ends are no sine
    assert (features_TF.argmax(axis=1) == band).all()
    np.testing.assert_allclose(features_TF[:, band] * 4 - 4, np.log10((power_K @ log_mel.filters)[band]), atol=1e-4)


@pytest.mark.parametrize("hertz", [440.0, 1000.0, 3000.0, 7000.0])
def test_band_of_sine_is_nearest(hertz: float) -> None:
    mels = np.linspace(0.0, mel_from_hertz(np.array(8000.0)), 82)[1:-1]
    nearest = np.abs(mels - mel_from_hertz(np.array(hertz))).argmin()
    assert np.abs(LogMel()(make_sine(hertz))[10:-10].argmax(axis=1) - nearest).max() <= 1  # triangles differ in height


def test_mel_scale_inverts_and_bands_have_equal_area() -> None:
    hertz = np.array([0.0, 200 / 3, 1000.0, 6400.0])
    np.testing.assert_allclose(mel_from_hertz(hertz), [0, 1, 15, 15 + 27])  # 27 steps from 1 kHz to 6.4 kHz
    np.testing.assert_allclose(hertz_from_mel(mel_from_hertz(hertz)), hertz)
    area_F = LogMel(20, window=4000).filters.sum(axis=0) * SAMPLE_RATE / 4000
    np.testing.assert_allclose(area_F, 1.0, rtol=1e-3)


def test_standardized_features_ignore_loudness() -> None:
    samples_N = np.random.default_rng(1).standard_normal(8000).astype(np.float32)
    loud_TF, quiet_TF = LogMel()(samples_N), LogMel()(samples_N * np.float32(0.001))
    assert loud_TF.shape == (50, 80)
    np.testing.assert_allclose(loud_TF, quiet_TF, atol=1e-4)
    assert abs(loud_TF.mean()) < 1e-5
    assert abs(loud_TF.std() - 1) < 1e-5


def test_blocks_do_not_change_the_features() -> None:
    samples_N = np.random.default_rng(2).standard_normal(160 * 1030).astype(np.float32)  # more than one block of 1024 frames
    middle_TF = LogMel(scaling="whisper")(samples_N[160 * 1000 :])[5:]
    np.testing.assert_allclose(LogMel(scaling="whisper")(samples_N)[1005:], middle_TF, atol=1e-6)


def test_silence_is_zero_and_nothing_is_refused() -> None:
    assert not LogMel()(np.zeros(1600, np.float32)).any()
    with pytest.raises(DataError, match="no sound"):
        LogMel()(np.zeros(0, np.float32))


@pytest.mark.parametrize("options", [{"hop": 0}, {"hop": 401}, {"window": 399}, {"num_bands": 201}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the window is even"):
        LogMel(**options)
