"""Files as the arrays of a front end: log-mel features of sounds, and columns of pictures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError, MissingDependencyError
from dragoman.experiments.frontends.array_text import LIMITS, write_array_text
from dragoman.frontends.log_mel import LogMel
from dragoman.frontends.sound_file import read_sound

PICTURE_FORMATS = ("PNG", "JPEG")
"""Formats that are read. Pillow would run Ghostscript for others, such as EPS."""
MIN_SIDE, MAX_PIXELS, MAX_ASPECT = 4, 16_000_000, 100
"""Least pixels of a side of a picture, most pixels of it, and its largest width for its height."""


def read_array(path: Path, frontend: str, width: int, *, speed: float = 1.0) -> str:
    """Return the array of a file as the text that a model with this front end reads.

    frontend: "sound" or "picture"
    width: numbers of a frame
    speed: factor of the speed of a sound, or of the inverse width of a picture

    Raises DataError for a file that cannot be used.
    """
    return write_array_text(READERS[frontend](path, width, speed), LIMITS[frontend])


def read_sound_frames(path: Path, width: int, speed: float) -> NDArray[np.float32]:
    """Return the log-mel features of a sound file with mean 0 and standard deviation 1. → (T, F)"""
    samples_N = read_sound(path, speed=speed)
    if not samples_N.any():
        raise DataError(f"{path}: there is only silence in it; record it again", code="empty-data")
    return LogMel(num_bands=width)(samples_N)


def read_picture_frames(path: Path, height: int, speed: float) -> NDArray[np.float32]:
    """Return the columns of a picture that is scaled to this height: 0 is white, 1 is black. → (T, F)"""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError("Pillow", "pictures", f"{path}: a picture") from None
    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(path, formats=PICTURE_FORMATS) as picture,
        ):
            _check_size(path, *picture.size)
            rgba = picture.convert("RGBA")
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check its name and its folder", code="file-not-found") from None
    except Image.DecompressionBombError:
        raise DataError(
            f"{path}: the picture has more than {MAX_PIXELS} pixels; scale it down", code="input-too-long"
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise DataError(f"{path}: not a picture, or damaged: {problem}; give PNG or JPEG", code="invalid-format") from None
    white = Image.new("RGBA", rgba.size, "white")
    gray = Image.alpha_composite(white, rgba).convert("L")
    width = max(1, round(gray.width * height / gray.height / speed))
    scaled = gray.resize((width, height), Image.Resampling.BILINEAR)
    return np.float32(1) - np.asarray(scaled, np.float32).T / np.float32(255)


def _check_size(path: Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{path}: the picture has {width} × {height} pixels, more than {MAX_PIXELS}; scale it down", code="input-too-long"
        )
    if min(width, height) < MIN_SIDE or width > MAX_ASPECT * height:
        raise DataError(
            f"{path}: the picture has {width} × {height} pixels; give one line of text, at least {MIN_SIDE} pixels high and "
            f"wide, and at most {MAX_ASPECT} times as wide as high",
            code="invalid-format",
        )


READERS: Mapping[str, Callable[[Path, int, float], NDArray[np.float32]]] = {
    "sound": read_sound_frames,
    "picture": read_picture_frames,
}
"""Function of each front end from a file, a width and a speed to frames."""
