"""Unicode's normalization forms, in time in proportion to the text, and surrogates."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

MAX_PART_CHARACTERS = 1000
"""Longest part that is normalized as one. The time grows with the square of a run of marks."""

# No character of ASCII composes with the one before it, so a long text is cut before one if it can be.
_PART = re.compile(rf"(?s).{{1,{MAX_PART_CHARACTERS}}}(?=[\0-\x7f]|\Z)|.{{1,{MAX_PART_CHARACTERS}}}")


def normalize_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return a text in a normalization form. A run of `MAX_PART_CHARACTERS` without ASCII may be cut within a character."""
    if len(text) <= MAX_PART_CHARACTERS:
        return unicodedata.normalize(form, text)
    return "".join(unicodedata.normalize(form, part) for part in _PART.findall(text))


def join_surrogates(text: str) -> str:
    """Return a text of escapes with a character for each pair of surrogates, and U+FFFD for half a pair."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
