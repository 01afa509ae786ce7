"""Depth of elements in elements, which HTML limits as XML and JSON do."""

from __future__ import annotations

from collections import Counter

from dragoman.errors import DataError

MAX_ELEMENT_DEPTH = 256
"""Most elements with an end tag in each other."""


class ElementDepth:
    """Depth of elements, from their tags in order. An element without an end tag, as HTML allows, does not count."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []  # name, and the depth of the elements inside so far
        self._counts: Counter[str] = Counter()

    def add(self, name: str, *, is_start: bool) -> None:
        """Add a tag. Raises DataError for elements deeper than `MAX_ELEMENT_DEPTH`."""
        if is_start:
            self._open.append((name, 0))
            self._counts[name] += 1
            return
        if not self._counts[name]:
            return
        depth, is_closed = 1, False
        while not is_closed:
            opened, inside = self._open.pop()
            self._counts[opened] -= 1
            is_closed = opened == name
            depth = max(depth, inside + 1)
        if depth > MAX_ELEMENT_DEPTH:
            raise DataError(
                f"the markup has elements deeper than {MAX_ELEMENT_DEPTH}, at </{name[:40]}>; divide it", code="invalid-format"
            )
        if self._open:
            parent, inside = self._open[-1]
            if inside < depth:
                self._open[-1] = parent, depth
