"""What all sections start from, and the rates that one of them hands to the next."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from . import ours
from .sizes import Size
from .text import Corpus
from .timed import Contestant

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Bench:
    """The text, dragoman's recipe, a folder to work in, and who is told of each figure as it comes."""

    corpus: Corpus
    work: Path
    say: Callable[[str], None]

    @cached_property
    def recipe(self) -> Path:
        return ours.write_recipe(self.work)

    @cached_property
    def prepared(self) -> Path:
        """The corpus as dragoman prepares it, the same for both sizes. Raises CommandError."""
        return ours.prepare(self.corpus, self.recipe, self.out / "prepared")

    @property
    def out(self) -> Path:
        return self.work / "out"

    def ours(self, size: Size, precision: str, *more: str) -> Contestant:
        return ours.contestant(self.corpus, size, self.recipe, self.prepared, self.out / "ours", precision, *more)


@dataclass
class Measured:
    """Target tokens a second by size and by who was measured, a figure a round."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def median(self, size: Size, key: str) -> float | None:
        found = self.rates.get((size.name, key))
        return statistics.median(found) if found else None
