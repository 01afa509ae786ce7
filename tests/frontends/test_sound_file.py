"""Sound files of several formats, rates and channels; damaged, empty and long files."""

from __future__ import annotations

import io
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.errors import DataError, MissingDependencyError
from dragoman.frontends.sound_file import SAMPLE_RATE, iter_sound, read_sound

HAS_LIBRARIES = "soundfile and soxr are not installed: pip install 'dragoman[speech]'"


@pytest.fixture
def soundfile() -> Any:
    pytest.importorskip("soxr", reason=HAS_LIBRARIES)
    return pytest.importorskip("soundfile", reason=HAS_LIBRARIES)


def make_sine(hertz: float, rate: int, seconds: float = 1.0) -> NDArray[np.float64]:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.raw"])
def test_formats_are_known_by_content(soundfile: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    sine_N = make_sine(440.0, SAMPLE_RATE)
    soundfile.write(path.with_suffix(".tmp"), sine_N, SAMPLE_RATE, format={".raw": "WAV"}.get(path.suffix, path.suffix[1:]))
    path.with_suffix(".tmp").rename(path)
    samples_N = read_sound(path)
    assert samples_N.dtype == np.float32
    # 16 bits of WAV and FLAC are exact to 2^-15; Vorbis loses more.
    np.testing.assert_allclose(samples_N, sine_N, atol=0.05 if name == "a.ogg" else 2**-15)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 192_000])
def test_eight_channels_are_mixed_and_resampled(soundfile: Any, tmp_path: Path, rate: int) -> None:
    channels_NC = np.stack([make_sine(1000.0, rate) * weight for weight in (1.5, 0.5, 1, 1, 1, 1, 1, 1)], axis=1)
    soundfile.write(tmp_path / "a.wav", channels_NC, rate, subtype="FLOAT")
    samples_N = read_sound(tmp_path / "a.wav")
    assert len(samples_N) == SAMPLE_RATE
    # The mean of the weights is 1. The filter's response at the ends is left out.
    np.testing.assert_allclose(samples_N[1000:-1000], make_sine(1000.0, SAMPLE_RATE)[1000:-1000], atol=1e-3)


def test_frequencies_above_8_khz_are_filtered(soundfile: Any, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", make_sine(9000.0, 192_000), 192_000, subtype="FLOAT")
    # Without a filter, every 12th sample of it is a sine of 7 kHz with the same amplitude.
    assert np.abs(read_sound(tmp_path / "a.wav")[1000:-1000]).max() < 1e-4


def test_an_open_file_is_read(soundfile: Any) -> None:
    file = io.BytesIO()
    soundfile.write(file, make_sine(440.0, 8000), 8000, format="FLAC")
    file.seek(0)
    assert len(read_sound(file, name="upload")) == SAMPLE_RATE


def test_memory_does_not_grow_with_the_file(soundfile: Any, tmp_path: Path) -> None:
    def measure_peak(seconds: int) -> int:
        soundfile.write(tmp_path / "a.wav", np.zeros(seconds * 48_000, np.int16), 48_000)
        tracemalloc.start()
        num_samples = sum(len(block_N) for block_N in iter_sound(tmp_path / "a.wav"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert num_samples == seconds * SAMPLE_RATE
        return peak

    measure_peak(1)  # imports
    assert measure_peak(300) < measure_peak(30) + 2**18  # 300 s of 48 kHz in float32 are 55 MiB


def erase(content: bytes) -> bytes:
    middle, length = len(content) // 2, len(content) // 4
    return content[:middle] + bytes(length) + content[middle + length :]


def declare_rate(content: bytes) -> bytes:
    return content[:24] + (1).to_bytes(4, "little") + content[28:]  # the rate in the header of a WAV file


@pytest.mark.parametrize(
    ("format_name", "change", "problem"),
    [
        ("WAV", lambda content: b"", "not a sound file"),
        ("WAV", lambda content: b"RIFF" + bytes(100), "not a sound file"),
        ("WAV", lambda content: content[:44], "no sound in it"),
        ("WAV", declare_rate, "the sample rate is 1 Hz, and 4000 to 768000 Hz are allowed"),
        ("FLAC", lambda content: content[: len(content) // 2], "damaged"),
        ("FLAC", erase, "damaged"),
        ("OGG", erase, "damaged: only"),
        ("OGG", lambda content: content[:40], "not a sound file"),
        ("AU", lambda content: content, "the format AU is not read"),
    ],
)
def test_bad_files_give_one_line(
    soundfile: Any, tmp_path: Path, format_name: str, change: Callable[[bytes], bytes], problem: str
) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).uniform(-0.5, 0.5, 160_000), SAMPLE_RATE, format=format_name)
    path = tmp_path / "a.wav"
    path.write_bytes(change(file.getvalue()))
    with pytest.raises(DataError, match=problem) as caught:
        read_sound(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_samples_that_are_not_finite_are_refused(soundfile: Any, tmp_path: Path) -> None:
    # Sums of 3e38 are infinite in float32.
    for value in (np.nan, 3e38):
        soundfile.write(tmp_path / "a.wav", np.array([[0.0, value], [value, value]]), 48_000, subtype="FLOAT")
        with pytest.raises(DataError, match=r"a sample is not a number up to 1e\+30"):
            read_sound(tmp_path / "a.wav")


def test_a_sound_over_the_limit_is_refused(soundfile: Any, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(32_000), SAMPLE_RATE)
    assert len(read_sound(tmp_path / "a.wav", max_seconds=2)) == 32_000
    with pytest.raises(DataError, match=r"longer than 1\.5 s") as caught:
        read_sound(tmp_path / "a.wav", max_seconds=1.5)
    assert caught.value.code == "input-too-long"


def test_missing_files_and_folders_are_named(soundfile: Any, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.wav"):
        with pytest.raises(DataError, match="there is no such file") as caught:
            read_sound(path)
        assert caught.value.code == "file-not-found"


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str) -> None:
    for name in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, name, None if name == library else np)
    with pytest.raises(MissingDependencyError, match=rf"needs {library}.*pip install 'dragoman\[speech\]'"):
        read_sound(tmp_path / "a.wav")
