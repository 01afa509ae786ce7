"""Starts and ends of pairs, such as tags, in a sequence of texts and codes."""

from __future__ import annotations

_DEPTH_CHANGES = {"start": 1, "end": -1}


class Nested:
    """Part of a sequence whose `kind` tells whether it starts a pair, ends one, or is between them."""

    __slots__ = ()
    kind: str

    @property
    def depth_change(self) -> int:
        """Return 1 for a start, −1 for an end, and 0 for any other part."""
        return _DEPTH_CHANGES.get(self.kind, 0)

    @property
    def is_start(self) -> bool:
        return self.kind == "start"

    @property
    def is_end(self) -> bool:
        return self.kind == "end"

    @property
    def is_text(self) -> bool:
        return self.kind == "text"
