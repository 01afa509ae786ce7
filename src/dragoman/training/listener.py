"""Whoever wants to see a run as it goes. The training room prints nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepReport:
    """Where a run stands after a step. Sums are over the steps since the last journal line."""

    step: int
    epoch: float
    loss: float
    perplexity: float
    rate: float
    gradient_norm: float
    tokens_per_second: float
    share_spent: float
    minutes_left: float


@dataclass(frozen=True)
class ValidationReport:
    step: int
    loss: float
    perplexity: float
    bleu: float | None
    best: bool


class Listener(Protocol):
    """Whoever wants to see a run as it goes; the training room prints nothing itself."""

    def notice(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int | None) -> None: ...
    def advance(self, share_spent: float) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def validation(self, report: ValidationReport) -> None: ...


class Silent:
    """A listener for whom a run is its files."""

    def notice(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int | None) -> None: ...
    def advance(self, share_spent: float) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def validation(self, report: ValidationReport) -> None: ...
