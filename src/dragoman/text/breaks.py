"""Breaks between lines: those that end a text, and those inside a sentence that is only laid out in lines.

A line of an address, a poem, a menu or a table of contents is a text of its own. A break is inside a sentence if a letter or a
digit stands before it and a lower-case letter behind it. Texts whose lines all begin in lower case, such as lists of
ingredients, have no such break. After a comma, lines are translated by themselves, because poems and addresses end lines with
one. A page number such as `xii` begins no sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_PAGE_NUMBER = re.compile("[ivxlc]{1,8}")


def find_boundaries(lines: Sequence[str], tabs: Collection[int] = ()) -> list[bool]:
    """Return for each break between two lines whether it ends the text before it. A break beside an empty line does.

    tabs: numbers of the breaks that are tabs, which always do
    """
    stripped = [line.strip() for line in lines]
    starts_lower = [_get_first_letter(line).islower() for line in stripped]
    if len(starts_lower) > 1 and all(starts_lower):
        return [True] * (len(lines) - 1)
    tab_numbers = frozenset(tabs)
    return [
        number in tab_numbers
        or not (before[-1:].isalnum() and is_lower and after[0].isalpha() and _PAGE_NUMBER.fullmatch(after) is None)
        for number, (before, after, is_lower) in enumerate(zip(stripped, stripped[1:], starts_lower[1:], strict=False))
    ]


def _get_first_letter(line: str) -> str:
    return next(filter(str.isalpha, line), "")
