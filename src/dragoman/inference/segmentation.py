"""A line that is longer than a model reads, in parts that it does read, cut where a reader would pause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# Where to cut rather, best first; a cut comes after the match.
PAUSE_PATTERNS = [
    re.compile(pattern)
    for pattern in (
        r"[.!?…]['\"»”’)\]]*\s+|[。！？][」』”’）]*\s*",  # the end of a sentence
        r"[;:]\s+|[；：]\s*|\s[–—-]\s+",  # of a clause
        r",\s+|[，、]\s*",
        r"\s+",  # of a word
        r"(?s:.)",  # anywhere
    )
]
# A part holds at least this share of the text that is cut, or the next kind of pause is tried.
MIN_SEGMENT_FRACTION = 0.2
UNSPACED_LANGUAGES = {"ja", "km", "lo", "my", "th", "yue", "zh"}


def split_long_input(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts that each fit, from cutting in two near the middle until they do; joined they are the text.

    Raises ValueError where even a single character does not fit.
    """
    if fits(text):
        return [text]
    if len(text) < 2:
        raise ValueError("not one character of the text fits")
    position = _find_pause(text)
    return [*split_long_input(text[:position], fits), *split_long_input(text[position:], fits)]


def _find_pause(text: str) -> int:
    """The pause nearest to the middle, of the best kind that has one not too near to the ends."""
    for pattern in PAUSE_PATTERNS:
        positions = [
            position
            for position in _find_match_ends(pattern, text)
            if MIN_SEGMENT_FRACTION * len(text) <= position <= (1 - MIN_SEGMENT_FRACTION) * len(text)
        ]
        if positions:
            return min(positions, key=lambda place: abs(place - len(text) / 2))
    return len(text) // 2


def _find_match_ends(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    return (match.end() for match in pattern.finditer(text))


def is_spaced_language(language: str) -> bool:
    """Whether this language has spaces between sentences; one that is not known has."""
    return language.split("-")[0] not in UNSPACED_LANGUAGES


def join_segments(segments: list[str], language: str) -> str:
    """The translations of the parts as one line; a language that writes no spaces gets none."""
    separator = " " if is_spaced_language(language) else ""
    return separator.join(segment for segment in (part.strip() for part in segments) if segment)
