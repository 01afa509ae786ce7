"""Lines of a text with codes, such as a paragraph of Markdown or reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Sequence

MIN_WRAP_WIDTH = 40
"""Fewest columns of a paragraph in several lines that is written in lines again."""
_BREAK = re.compile(r"(?<![ \\]) (?=[^\W\d_])")
"""Space at which a line can end: no block begins with a letter, and a backslash before a line break is a break, too."""
GLUED = "\0"
"""Sign before a code that removes the space before it, which only the model reads."""


def wrap_pieces(pieces: Sequence[str], width: int, separator: str) -> str:
    """Return texts and codes in turn as one text in lines of a width.

    width: columns of the longest line, or 0 for a text in one line
    separator: line break, and what stands before each line but the first
    """
    words: list[list[str]] = [[]]
    for index, piece in enumerate(pieces):
        if index % 2:
            words[-1].append(piece.replace("\n", separator))
            continue
        first, *rest = _BREAK.split(piece) if width else [piece]
        words[-1].append(first)
        words += ([word] for word in rest)
    return separator.join(_wrap(["".join(word) for word in words], width, len(separator.rpartition("\n")[2])))


def _wrap(words: Sequence[str], width: int, indent: int) -> list[str]:
    """Return words in lines. A word may have line breaks."""
    lines: list[list[str]] = []
    column = 0  # behind the last line
    for word in words:
        first, *rest = word.split("\n")
        if lines and column + 1 + len(first) <= width:
            lines[-1].append(word)
            column += 1 + len(first)
        else:
            lines.append([word])
            column = indent + len(first)
        column = len(rest[-1]) if rest else column
    return [" ".join(line) for line in lines]


def glue(pieces: Sequence[str]) -> list[str]:
    """Return texts and codes in turn as the file gets them: without the spaces that only the model reads."""
    output = list(pieces)
    for number in range(1, len(output), 2):
        if output[number].startswith(GLUED):
            output[number] = output[number][1:]
            output[number - 1] = output[number - 1].rstrip(" ")
    return output
