"""Something that goes wrong in a run, as people are told of it."""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 8
"""Lines of the journal below which a rule about a course has nothing to say."""


@dataclass(frozen=True)
class Finding:
    """One thing that goes wrong."""

    name: str
    seen: str
    """Numbers, with the steps that they are of."""
    means: str
    turn: str
    """Which knob, which way."""
