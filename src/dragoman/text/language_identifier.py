"""Language identifier py3langid, whose tables all its users share."""

from __future__ import annotations

import copy
from functools import cache
from threading import Lock
from typing import Any

_LOADING = Lock()
"""Held while the tables are read: threads that ask at the same time would each read them, 60 MB for each."""


def make_identifier(*, norm_probs: bool) -> Any:
    """Return an identifier of all languages, which the caller may restrict. The first call takes a second.

    norm_probs: whether it returns probabilities, not log-probabilities

    Raises ImportError without py3langid.
    """
    with _LOADING:
        return copy.copy(_load_identifier(norm_probs))


@cache
def _load_identifier(norm_probs: bool) -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=norm_probs)
