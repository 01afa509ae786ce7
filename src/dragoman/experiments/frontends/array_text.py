"""Arrays as text: each number is one of 94 printable ASCII characters, so a corpus, a tokenizer and a batch hold them as text.

A frame has as many numbers as the front end is wide: the bands of a moment of sound, or the pixels of a column of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import SPECIAL_PIECES

LIMITS = {"sound": 4.0, "picture": 1.0}
"""Largest magnitude of the numbers of each front end: standard deviations of log-mel features, and the darkness of a pixel."""
FIRST_CHARACTER, NUM_LEVELS = ord("!"), 94
"""Characters of the numbers: all of ASCII that are visible."""
FIRST_ID = len(SPECIAL_PIECES) + FIRST_CHARACTER
"""Id of the lowest number in a vocabulary of bytes."""


def write_array_text(frames_TF: NDArray[np.float32], limit: float) -> str:
    """Return the text of an array whose numbers lie between ±limit; others become the nearest."""
    levels_TF = np.rint((frames_TF / limit + 1) * ((NUM_LEVELS - 1) / 2)).clip(0, NUM_LEVELS - 1)
    characters_TF: NDArray[np.uint8] = levels_TF.astype(np.uint8) + np.uint8(FIRST_CHARACTER)
    return characters_TF.tobytes().decode("ascii")


def read_array_ids(source: Sequence[int], width: int, limit: float) -> NDArray[np.float32]:
    """Return an array from the ids of its text; zeros fill its last frame. → (T, F)"""
    levels_N = np.asarray(source, np.float32) - FIRST_ID
    numbers_N = ((levels_N * (2 / (NUM_LEVELS - 1)) - 1).clip(-1, 1) * limit).astype(np.float32)
    return np.pad(numbers_N, (0, -len(source) % width)).reshape(-1, width)
