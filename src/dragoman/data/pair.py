"""A pair: one sentence and its counterpart, with the place it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target text. `origin` names file and line (or the like) for messages and reports."""

    source: str
    target: str
    origin: str = ""
