"""Results of one benchmark section: tables, notes, figures and ratios with their targets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """Ratio of two measurements; larger is better. `target` is the least acceptable value, if there is one."""

    name: str
    value: float
    target: float | None = None

    @property
    def target_status(self) -> str:
        """Return whether the value meets the target, as text; empty without a target."""
        if self.target is None:
            return ""
        return "met" if self.value >= self.target else "NOT MET"


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Section:
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Values behind the tables, for the JSON report."""

    def to_dict(self) -> dict[str, Any]:
        return {"ratios": [asdict(ratio) for ratio in self.ratios], "notes": self.notes, "figures": self.figures}
