"""Splitting of lines that are longer than the model reads, at pauses of the text."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.languages import is_spaced_language

# Patterns of pauses, best first; a cut follows the match.
PAUSE_PATTERNS = (
    r"[.!?…]['\"»”’)\]]*\s+|[。！？][」』”’）]*\s*",  # end of a sentence
    r"[;:]\s+|[；：]\s*|\s[–—-]\s+",  # end of a clause
    r",\s+|[，、]\s*",
    r"\s+",  # end of a word
)
# A segment has at least this share of the text; if no pause allows that, the next pattern is tried, and the middle at last.
MIN_SEGMENT_FRACTION = 0.2
# Tokens of a line that stand for no character: the space before it, and the end token.
NUM_EXTRA_TOKENS = 2


def split_line(line: str, count_tokens: Callable[[str], int], source_limit: int) -> list[str]:
    """Return the line itself, or the segments of a line that has more tokens than the limit.

    A line with a character that does not fit stays whole.
    """
    if is_surely_short(line, source_limit):
        return [line]
    try:
        return split_long_input(line, lambda segment: count_tokens(segment) <= source_limit)
    except ValueError:
        return [line]


def is_surely_short(line: str, source_limit: int) -> bool:
    """Return whether a line has no more tokens than the limit, although nobody has counted them."""
    return line.isascii() and len(line) + NUM_EXTRA_TOKENS <= source_limit  # an ASCII character is one token at most


def split_long_input(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return segments that all fit and that concatenate to the text, by cutting it in two near the middle until they fit.

    Raises ValueError if a single character does not fit.
    """
    if fits(text):
        return [text]
    if len(text) < 2:
        raise ValueError("max_tokens: is too small for one character; raise it")
    position = _find_pause(text)
    return [*split_long_input(text[:position], fits), *split_long_input(text[position:], fits)]


def _find_pause(text: str) -> int:
    """Return the pause nearest to the middle, of the best pattern with a pause not too near to the ends."""
    for pattern in PAUSE_PATTERNS:
        positions = [
            position
            for position in (match.end() for match in re.finditer(pattern, text))
            if MIN_SEGMENT_FRACTION * len(text) <= position <= (1 - MIN_SEGMENT_FRACTION) * len(text)
        ]
        if positions:
            return min(positions, key=lambda position: abs(position - len(text) / 2))
    return len(text) // 2


def join_segments(segments: list[str], language: str) -> str:
    """Return the translations of the segments as one line, with spaces between them if the language writes spaces."""
    separator = " " if is_spaced_language(language) else ""
    return separator.join(segment for segment in (part.strip() for part in segments) if segment)
