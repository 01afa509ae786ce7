"""Something that goes wrong in a run, as people are told of it."""

from __future__ import annotations

from dataclasses import dataclass

MIN_LOG_LINES = 8
"""Lines of the journal below which a rule about a course has nothing to say."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that goes wrong."""

    name: str
    evidence: str
    """Numbers, with the steps that they are of."""
    cause: str
    remedy: str
    """Which knob, which way."""
