"""Sound files as samples: mono, 16 kHz, float32.

libsndfile (library `soundfile`) decodes the file, and libsoxr (library `soxr`) changes its rate with a low-pass filter. Both
work in blocks, so the memory does not grow with the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError, MissingDependencyError

SAMPLE_RATE = 16_000
"""Samples a second of all arrays of sound."""
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF")
"""Formats that are read, with libsndfile's names."""
MIN_RATE, MAX_RATE = 4_000, 768_000
"""Rates that are read, in Hz."""
BLOCK_VALUES = 2**18
"""Values of all channels that one block holds before its rate is changed: 1 MiB."""
MAX_MAGNITUDE = 1e30
"""Largest magnitude of a sample, so that sums of samples are finite in float32. Full scale is 1."""
UNKNOWN_FRAMES = 2**62
"""Number of frames, from which a header does not know the number."""


def read_sound(
    source: Path | IO[bytes], *, name: str | None = None, max_seconds: float = 3600.0, speed: float = 1.0
) -> NDArray[np.float32]:
    """Return the samples of a file: mono, 16 kHz, (N,).

    source: a path, or an open file that can be sought, such as an upload
    name: name of the source in errors; the path by default
    max_seconds: limit of the duration; `iter_sound` has none
    speed: factor by which the sound is faster and its frequencies are higher, for speed perturbation (Ko et al. 2015)

    Raises DataError for a file that is missing, damaged, empty or too long, and MissingDependencyError.
    """
    blocks, num_samples = [], 0
    for block_N in iter_sound(source, name=name, speed=speed):
        num_samples += len(block_N)
        if num_samples > max_seconds * SAMPLE_RATE:
            raise DataError(
                f"{name or source}: the sound is longer than {max_seconds:g} s; cut it into shorter files",
                code="input-too-long",
            )
        blocks.append(block_N)
    return np.concatenate(blocks)


def iter_sound(source: Path | IO[bytes], *, name: str | None = None, speed: float = 1.0) -> Iterator[NDArray[np.float32]]:
    """Yield the samples of a file in blocks of any length, as `read_sound` describes them.

    The channels are averaged. A WAV file that is cut short ends early, as in players.
    """
    label = str(name or source)
    soundfile, soxr = import_sound_libraries(f"{label}: a sound file")
    try:
        with _opened(source, label) as handle, soundfile.SoundFile(handle, closefd=False) as sound:
            _check_header(sound, label)
            resampler = None
            if (rate := sound.samplerate * speed) != SAMPLE_RATE:
                resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
            block_length = max(1, BLOCK_VALUES // sound.channels)
            num_frames = 0
            while len(frames_NC := sound.read(block_length, dtype="float32", always_2d=True)):
                num_frames += len(frames_NC)
                if not (np.abs(frames_NC) <= MAX_MAGNITUDE).all():  # nor is NaN
                    raise DataError(
                        f"{label}: a sample is not a number up to {MAX_MAGNITUDE:g}; write the file again",
                        code="invalid-format",
                    )
                block_N = frames_NC.mean(axis=1)
                yield block_N if resampler is None else resampler.resample_chunk(block_N)
            if num_frames < sound.frames < UNKNOWN_FRAMES:
                raise DataError(
                    f"{label}: damaged: only {num_frames} of {sound.frames} samples can be read; write the file again",
                    code="invalid-format",
                )
            if not num_frames:
                raise DataError(f"{label}: there is no sound in it; record it again", code="empty-data")
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{label}: not a sound file, or damaged: {error.error_string.rstrip('.')}; give WAV, FLAC, OGG, MP3 or AIFF",
            code="invalid-format",
        ) from None


def import_sound_libraries(purpose: str) -> tuple[Any, Any]:
    """Return `soundfile` and `soxr`. Raise MissingDependencyError, with the purpose, if one is missing."""
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:  # OSError: libsndfile itself is missing
        library = "soxr" if getattr(error, "name", None) == "soxr" else "soundfile"
        raise MissingDependencyError(library, "speech", purpose) from None
    return soundfile, soxr


def _check_header(sound: Any, label: str) -> None:
    if sound.format not in FORMATS:
        raise DataError(
            f"{label}: the format {sound.format} is not read; give WAV, FLAC, OGG, MP3 or AIFF", code="unknown-format"
        )
    if not MIN_RATE <= sound.samplerate <= MAX_RATE:
        raise DataError(
            f"{label}: the sample rate is {sound.samplerate} Hz, and {MIN_RATE} to {MAX_RATE} Hz are allowed; convert the file",
            code="invalid-format",
        )


@contextmanager
def _opened(source: Path | IO[bytes], label: str) -> Iterator[Any]:
    """Give what libsndfile opens: the descriptor of a path, whose name then selects no format, or the open file."""
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    try:
        if not Path(source).is_file():
            raise FileNotFoundError
        with Path(source).open("rb") as handle:
            yield handle.fileno()
    except FileNotFoundError:
        raise DataError(f"{label}: there is no such file; check its name and its folder", code="file-not-found") from None
    except OSError as error:
        raise DataError(f"{label}: cannot be read: {error.strerror}; check its permissions", code="file-unreadable") from None
