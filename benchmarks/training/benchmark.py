"""State that all sections of the training benchmark share."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dragoman.runtime.cpu_support import has_bf16_matmul

from . import dragoman_runner
from .sizes import BenchmarkSize
from .text import TrainingText
from .timed_run import TimedRun

PRECISIONS = ("float32", "bfloat16")


def list_precisions() -> tuple[list[str], list[str]]:
    """Return the precisions of this processor, and the reasons why others are left out."""
    if has_bf16_matmul():
        return list(PRECISIONS), []
    return ["float32"], ["bfloat16: not measured, because this processor would emulate it"]


@dataclass(frozen=True)
class TrainingBenchmark:
    """Text, recipe and work folder of the benchmark."""

    corpus: TrainingText
    work: Path

    @cached_property
    def recipe(self) -> Path:
        return dragoman_runner.write_recipe(self.work)

    @cached_property
    def prepared(self) -> Path:
        """Return the corpus as dragoman prepares it, the same for both sizes. Raises CommandError."""
        return dragoman_runner.prepare(self.corpus, self.recipe, self.out / "prepared")

    @property
    def out(self) -> Path:
        return self.work / "out"

    def dragoman_run(self, size: BenchmarkSize, precision: str, *more: str) -> TimedRun:
        return dragoman_runner.make_run(self.corpus, size, self.recipe, self.prepared, self.out / "dragoman", precision, *more)


@dataclass
class MeasuredRates:
    """Target tokens per second by size and system, one value for each round."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def median(self, size: BenchmarkSize, key: str) -> float | None:
        rates = self.rates.get((size.name, key))
        return statistics.median(rates) if rates else None
