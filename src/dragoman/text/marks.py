"""Marks of placeholders inside a text: as the model reads them, `⟦0⟧`, and as single characters while a text is taken apart.

The single characters are noncharacters of Unicode, which are for use inside a program. Nothing cuts one in two.
"""

from __future__ import annotations

import re

from dragoman.languages import UNSPACED
from dragoman.text.term_annotation import PLACEHOLDER_MARKS, has_marks

MARK_CHARACTERS = tuple(chr(0xFDD0 + number) for number in range(len(PLACEHOLDER_MARKS)))
"""Character of each mark of a placeholder."""

_MARK = re.compile("|".join(map(re.escape, PLACEHOLDER_MARKS)))
_CHARACTER = re.compile(f"[{''.join(MARK_CHARACTERS)}]")
_TO_CHARACTER = dict(zip(PLACEHOLDER_MARKS, MARK_CHARACTERS, strict=True))
_TO_MARK = dict(zip(MARK_CHARACTERS, PLACEHOLDER_MARKS, strict=True))
_UNSPACED_CHARACTER = f"[{UNSPACED}]"


def can_hold_marks(text: str) -> bool:
    """Return whether marks in this text would be those of the program: it holds none, and none of their characters."""
    return not has_marks(text) and _CHARACTER.search(text) is None


def list_marks(text: str) -> list[str]:
    """Return the marks of placeholders in a text, in order."""
    return _MARK.findall(text)


def to_characters(text: str) -> str:
    """Return the text with a character for each mark."""
    return _MARK.sub(lambda match: _TO_CHARACTER[match[0]], text)


def to_marks(text: str) -> str:
    """Return the text with a mark for each of the characters."""
    return _CHARACTER.sub(lambda match: _TO_MARK[match[0]], text)


def ends_in_marks(text: str) -> bool:
    """Return whether a text with characters of marks ends in two of them or more, with no word between them."""
    num_marks = 0
    for character in reversed(text):
        if character.isalnum() or character == "_":
            return False
        num_marks += character in _TO_MARK
        if num_marks == 2:
            return True
    return False


def restore_spaces(source: str, translation: str) -> str:
    """Return the translation with spaces beside marks where the source has them, and without them where it has none.

    A mark that is joined to a word of the source stays joined to the word beside it, and a mark that stands alone stays alone.
    Beside punctuation, and in scripts without spaces, the translation stays as it is.

    source, translation: texts with characters of marks; each has a mark at most once
    """

    def restore(match: re.Match[str]) -> str:
        left, left_space, mark, right_space, right = match.groups()
        position = source.find(mark)
        if position < 0:
            return match[0]
        left_space = _choose_space(left, left_space, source[:position][-1:])
        right_space = _choose_space(right, right_space, source[position + 1 : position + 2])
        return f"{left}{left_space}{mark}{right_space}{right}"

    for mark in dict.fromkeys(_CHARACTER.findall(translation)):
        translation = re.sub(rf"(\S?)( ?)({mark})( ?)(\S?)", restore, translation, count=1)
    return translation


def _choose_space(neighbor: str, space: str, source_neighbor: str) -> str:
    """Return the space between a mark and its neighbor in the translation.

    space: the space that the translation has there
    source_neighbor: character beside the mark in the source; empty at the edge of the text
    """
    is_mark = neighbor in _TO_MARK
    if not is_mark and not _is_spaced_word(neighbor):
        return space
    if (neighbor == source_neighbor) if is_mark else _is_spaced_word(source_neighbor):
        return ""
    stands_alone = not source_neighbor or source_neighbor.isspace() or re.match(_UNSPACED_CHARACTER, source_neighbor)
    return " " if stands_alone else space


def _is_spaced_word(character: str) -> bool:
    """Return whether this is a letter or digit of a script with spaces between words."""
    return character.isalnum() and not re.match(_UNSPACED_CHARACTER, character)
