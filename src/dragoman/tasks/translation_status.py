"""Outcomes of a translation."""

from __future__ import annotations

from typing import Literal

TranslationStatus = Literal["ok", "truncated", "short", "repetition", "copied", "empty", "too_long"]
"""Outcome of one line:

    ok          the output ends by itself
    truncated   the output reached the longest allowed length
    short       the output ends by itself, but has far fewer tokens than its source (decoding.min_length_ratio)
    repetition  the output repeated itself, and the search stopped it
    copied      the output is a copy of the source
    empty       the source or the output has no text
    too_long    the line was not translated, because its source is longer than the model reads
"""
