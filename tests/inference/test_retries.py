"""Decoding options of second searches."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.config import DecodingConfig, ModelConfig, update_section
from dragoman.inference.retries import make_repetition_retry


@pytest.mark.parametrize(
    ("changes", "beam_size"),
    [
        ({"method": "beam", "beam_size": 12}, 12),
        ({"method": "beam", "beam_size": 2}, 4),
        ({"method": "greedy", "beam_size": 12}, 4),
        ({"method": "beam", "beam_size": 9, "nbest": 7}, 9),
        ({"method": "sample", "nbest": 7}, 7),
    ],
)
def test_retry_has_a_beam_as_wide_as_before(changes: dict[str, Any], beam_size: int) -> None:
    """Greedy search ignores `beam_size`, so its second search has the smallest beam."""
    config = update_section(DecodingConfig(), changes, where="decoding")
    retry = make_repetition_retry(ModelConfig(), config)
    assert retry is not None
    assert (retry.method, retry.beam_size, retry.no_repeat_ngram_size) == ("beam", beam_size, 3)
