"""Breaks between lines: those that end a text, and those inside a sentence that is only laid out in lines.

A line of an address, a poem, a menu or a table of contents is a text of its own. A break is inside a sentence if a letter or a
digit stands before it and a lower-case letter behind it. Texts whose lines all begin in lower case, such as lists of
ingredients, have no such break. After a comma, lines are translated by themselves, because poems and addresses end lines with
one. A page number such as `xii` begins no sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_PAGE_NUMBER = re.compile("[ivxlc]{1,8}")
_decide: ContextVar[Callable[[list[bool]], list[bool]]] = ContextVar("decide", default=lambda boundaries: boundaries)
_T = TypeVar("_T")


@contextmanager
def recorded_boundaries() -> Iterator[list[bytes]]:
    """Give a list that gets the results of `find_boundaries` in this context, in order."""
    record: list[bytes] = []

    def decide(boundaries: list[bool]) -> list[bool]:
        record.append(bytes(boundaries))
        return boundaries

    token = _decide.set(decide)
    try:
        yield record
    finally:
        _decide.reset(token)


@contextmanager
def repeated_boundaries(record: Sequence[bytes]) -> Iterator[None]:
    """Let `find_boundaries` in this context return what it returned for the same breaks between other lines.

    record: what `recorded_boundaries` gave; lines of another number are read anew
    """
    remaining = iter(record)

    def decide(boundaries: list[bool]) -> list[bool]:
        known = next(remaining, b"")
        return list(map(bool, known)) if len(known) == len(boundaries) else boundaries

    token = _decide.set(decide)
    try:
        yield
    finally:
        _decide.reset(token)


def divide_at(
    items: Sequence[_T], places: Sequence[int], read_line: Callable[[Sequence[_T]], str], tabs: Collection[int] = ()
) -> Iterator[Sequence[_T]]:
    """Yield the items of each text, without the breaks that end one.

    places: numbers of the breaks among the items
    read_line: function that returns the text of items between two breaks
    tabs: as in `find_boundaries`
    """
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(items)]
    lines = [read_line(items[first:last]) for first, last in zip(starts, ends, strict=True)]
    start = 0
    for place, is_boundary in zip(places, find_boundaries(lines, tabs), strict=True):
        if is_boundary:
            yield items[start:place]
            start = place + 1
    yield items[start:]


def find_boundaries(lines: Sequence[str], tabs: Collection[int] = (), inner: Collection[int] = ()) -> list[bool]:
    """Return for each break between two lines whether it ends the text before it. A break beside an empty line does.

    tabs: numbers of the breaks that are tabs, which always do
    inner: numbers of the breaks inside an element that covers a part of its line, which are in a sentence of any case
    """
    return _decide.get()(_find_boundaries(lines, tabs, inner))


def _find_boundaries(lines: Sequence[str], tabs: Collection[int], inner: Collection[int]) -> list[bool]:
    if len(lines) < 2:
        return []
    stripped = [line.strip() for line in lines]
    starts_lower = [_get_first_letter(line).islower() for line in stripped]
    is_list = all(starts_lower)
    tab_numbers, inner_numbers = frozenset(tabs), frozenset(inner)
    return [
        number in tab_numbers
        or (is_list and number not in inner_numbers)
        or not (before[-1:].isalnum() and is_lower and after[0].isalpha() and _PAGE_NUMBER.fullmatch(after) is None)
        for number, (before, after, is_lower) in enumerate(zip(stripped, stripped[1:], starts_lower[1:], strict=False))
    ]


def _get_first_letter(line: str) -> str:
    return next(filter(str.isalpha, line), "")
