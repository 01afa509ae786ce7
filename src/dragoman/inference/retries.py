"""Decoding options of second searches, for outputs that cannot be used.

A segment is searched once more if its output repeats itself, and if its translation fails a check. Both searches have a beam
that does not repeat phrases. A model that predicts all tokens at once has no other search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.config import DecodingConfig, ModelConfig, update_section

_BEAM = {"method": "beam", "num_beam_groups": 1, "mbr": "none", "mbr_candidates": None, "mbr_model": None}
_REPETITION = {**_BEAM, "no_repeat_ngram_size": 3, "early_stopping": "best"}
_REPETITION_BEAM_SIZE = 4
CHECK_RETRY = {**_BEAM, "no_repeat_ngram_size": 4, "beam_size": 8, "nbest": 4}
"""Options to change for a translation that fails a check."""


def make_repetition_retry(model: ModelConfig, config: DecodingConfig) -> DecodingConfig | None:
    """Return the options for an output that repeats itself: a beam at least as large as before; None for no other search."""
    if not model.is_autoregressive:
        return None
    beam_size = max(_REPETITION_BEAM_SIZE, config.nbest, config.beam_size if config.method == "beam" else 1)
    return update_section(config, {**_REPETITION, "beam_size": beam_size}, where="decoding")


def get_check_retry(model: ModelConfig) -> Mapping[str, Any]:
    """Return the options to change for a translation that fails a check; none without another search."""
    return CHECK_RETRY if model.is_autoregressive else {}
