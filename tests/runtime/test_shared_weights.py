"""Weights in files that several processes map: equal content is one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dragoman.runtime.shared_weights import (
    MIN_SHARED_BYTES,
    remove_unused,
    share_array,
    share_weights,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    share_weights(tmp_path)
    yield tmp_path
    share_weights(None)


def test_equal_arrays_share_a_file(folder: Path) -> None:
    weight = np.arange(MIN_SHARED_BYTES, dtype=np.float32).reshape(2, -1)
    first, second = share_array(weight.T), share_array(np.ascontiguousarray(weight.T))
    assert np.array_equal(first, weight.T)
    assert np.array_equal(second, weight.T)
    assert len(list(folder.iterdir())) == 1
    assert not first.flags.writeable
    remove_unused(folder, 0.0)
    assert len(list(folder.iterdir())) == 1
    remove_unused(folder, 1e12)
    assert not list(folder.iterdir())
    assert np.array_equal(second, weight.T)


def test_nothing_is_shared_without_a_folder_or_for_a_few_bytes(folder: Path) -> None:
    small = np.ones(8)
    assert share_array(small) is small
    share_weights(None)
    large = np.ones(MIN_SHARED_BYTES)
    assert share_array(large) is large
    assert not list(folder.iterdir())
