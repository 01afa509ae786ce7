"""bfloat16 in NumPy: the rounding of PyTorch, and no loss on the way back."""

from __future__ import annotations

import numpy as np
import torch

from dragoman.io.bfloat16 import BFLOAT16, cast, widen


def test_cast_rounds_as_torch() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32)
    halves = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000  # between two numbers of bfloat16
    values = np.concatenate([words, halves, halves + 1, halves - 1]).view(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(widen(cast(values, BFLOAT16)), expected, equal_nan=True)


def test_every_number_of_16_bits_is_kept() -> None:
    words = np.arange(2**16, dtype=np.uint16)
    is_number = ~np.isnan(widen(words.view(BFLOAT16)))
    assert np.array_equal(cast(widen(words.view(BFLOAT16)), BFLOAT16).view(np.uint16)[is_number], words[is_number])
    halves = words.view(np.float16)
    assert np.array_equal(cast(widen(halves), np.float16), halves, equal_nan=True)


def test_single_number_keeps_its_shape() -> None:
    assert cast(np.array(1.5), BFLOAT16).shape == ()
    assert widen(cast(np.array(1.5), BFLOAT16)) == 1.5
