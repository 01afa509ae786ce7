"""A line that is longer than a model reads, in parts that it does read, cut where a reader would pause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# Where to cut rather, best first; a cut comes after the match.
PAUSES = [
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
LEAST = 0.2
UNSPACED = {"ja", "km", "lo", "my", "th", "yue", "zh"}


def split_passage(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts that each fit, from cutting in two near the middle until they do; joined they are the text.

    Raises ValueError where even a single character does not fit.
    """
    if fits(text):
        return [text]
    if len(text) < 2:
        raise ValueError("not one character of the text fits")
    place = _pause(text)
    return [*split_passage(text[:place], fits), *split_passage(text[place:], fits)]


def _pause(text: str) -> int:
    """The pause nearest to the middle, of the best kind that has one not too near to the ends."""
    for pause in PAUSES:
        places = [place for place in _ends(pause, text) if LEAST * len(text) <= place <= (1 - LEAST) * len(text)]
        if places:
            return min(places, key=lambda place: abs(place - len(text) / 2))
    return len(text) // 2


def _ends(pause: re.Pattern[str], text: str) -> Iterator[int]:
    return (match.end() for match in pause.finditer(text))


def writes_spaces(language: str) -> bool:
    """Whether this language has spaces between sentences; one that is not known has."""
    return language.split("-")[0] not in UNSPACED


def join_passage(parts: list[str], language: str) -> str:
    """The translations of the parts as one line; a language that writes no spaces gets none."""
    between = " " if writes_spaces(language) else ""
    return between.join(part for part in (part.strip() for part in parts) if part)
