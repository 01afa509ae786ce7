"""What a section hands to the report: tables, remarks, figures, and ratios with what is asked of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """Larger is better in each; `asked` is the least that will do, where anything is asked."""

    name: str
    value: float
    asked: float | None = None

    @property
    def verdict(self) -> str:
        if self.asked is None:
            return ""
        return "met" if self.value >= self.asked else "NOT MET"


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Section:
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """For machines: everything that the tables are made of."""

    def to_dict(self) -> dict[str, Any]:
        return {"ratios": [asdict(ratio) for ratio in self.ratios], "remarks": self.remarks, "figures": self.figures}


def mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f}"
