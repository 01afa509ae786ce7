"""Whoever wants to see a run as it goes. The training room prints nothing itself.

    begin → advance, step, event, validation, samples … → finish → close

`notice` and `progress` may come at any time, also before `begin`; `close` comes also where a run did not get to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from dragoman.training.validation import Sample

EventKind = Literal["resumed", "skipped", "restored", "memory", "checkpoint", "unsaved", "patience", "stopped", "failed"]
"""Went on from a checkpoint; left a step out; went back to one; ran out of memory; kept one; could not; was no better for too
long; was asked to stop; ended with an error."""


@dataclass(frozen=True)
class RunInfo:
    """What a run is, told once before its first step."""

    name: str
    recipe: Mapping[str, Any]
    folder: str
    machine: str
    parameters: int
    step: int = 0
    """The step that it goes on from; 0 for a new run."""
    devices: int = 1
    ceiling: float | None = None
    """Floating-point operations a second that the devices reach together in matrix products, as measured."""
    uniform_loss: float | None = None
    """Nats per token of a model that knows nothing: ln V."""


@dataclass(frozen=True)
class StepReport:
    """Where a run stands after a step. Sums and means are over the steps since the last journal line."""

    step: int
    epoch: float
    loss: float
    """Negative log-likelihood in nats per target token, without label smoothing."""
    perplexity: float
    lr: float
    gradient_norm: float
    tokens_per_second: float
    progress: float
    minutes_left: float
    skipped_steps: int = 0
    """Steps left out so far, whose weights stayed as they were."""
    data_wait_fraction: float = 0.0
    """Share of the time since the last line that was spent waiting for batches."""
    flops_per_second: float | None = None
    """Floating-point operations of the matrix products, padding not counted."""
    mfu: float | None = None
    """Their share of what this machine reaches in matrix products alone."""
    memory_mib: float | None = None
    """Resident on a processor, the peak that was allocated on a GPU."""
    devices: int = 1
    padding_fraction: float | None = None
    """Share of the places in the batches that held no token."""


@dataclass(frozen=True)
class ValidationReport:
    """What a validation found."""

    step: int
    loss: float
    """With label smoothing, in nats per target token."""
    perplexity: float
    bleu: float | None
    best: bool
    f1: float | None = None
    """A parser's, by EVALB's rules."""
    f1_gold_tags: float | None = None
    """The same with the gold tags put in."""
    nll_own_source: float | None = None
    """What `nll` is, of some sentences alone."""
    nll_shuffled_source: float | None = None
    """The same with the sources of other sentences as long: no larger where the model does not read its source."""

    @property
    def nll(self) -> float:
        """What `loss` is of a step: without label smoothing."""
        return math.log(self.perplexity)


class Callback(Protocol):
    """Whoever wants to see a run as it goes; the training room prints nothing itself."""

    def notice(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int | None) -> None: ...
    def begin(self, run_info: RunInfo) -> None: ...
    def advance(self, progress: float) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def event(self, kind: EventKind, step: int, text: str) -> None: ...
    def validation(self, report: ValidationReport) -> None: ...
    def samples(self, step: int, samples: Sequence[Sample]) -> None: ...
    def finish(self, report: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class NullCallback:
    """A listener for whom a run is its files."""

    def notice(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int | None) -> None: ...
    def begin(self, run_info: RunInfo) -> None: ...
    def advance(self, progress: float) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def event(self, kind: EventKind, step: int, text: str) -> None: ...
    def validation(self, report: ValidationReport) -> None: ...
    def samples(self, step: int, samples: Sequence[Sample]) -> None: ...
    def finish(self, report: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class CallbackList(NullCallback):
    """One listener that hears everything, and trackers that hear what comes after `begin`; one that fails hears no more."""

    def __init__(self, callback: Callback, loggers: Mapping[str, Callback]) -> None:
        self.callback = callback
        self.loggers = dict(loggers)
        self.has_begun = False

    def notice(self, text: str) -> None:
        self.callback.notice(text)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.callback.progress(what, done, total)

    def begin(self, run_info: RunInfo) -> None:
        self.callback.begin(run_info)
        self.has_begun = True
        self._notify_loggers(lambda logger: logger.begin(run_info))

    def advance(self, progress: float) -> None:
        self.callback.advance(progress)

    def step(self, report: StepReport) -> None:
        self.callback.step(report)
        self._notify_loggers(lambda logger: logger.step(report))

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self.callback.event(kind, step, text)
        self._notify_loggers(lambda logger: logger.event(kind, step, text))

    def validation(self, report: ValidationReport) -> None:
        self.callback.validation(report)
        self._notify_loggers(lambda logger: logger.validation(report))

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self.callback.samples(step, samples)
        self._notify_loggers(lambda logger: logger.samples(step, samples))

    def finish(self, report: Mapping[str, Any]) -> None:
        self.callback.finish(report)
        self._notify_loggers(lambda logger: logger.finish(report))

    def close(self) -> None:
        self._notify_loggers(lambda logger: logger.close())
        self.callback.close()

    def _notify_loggers(self, notify: Callable[[Callback], None]) -> None:
        for name, logger in list(self.loggers.items()) if self.has_begun else []:
            try:
                notify(logger)
            except Exception as error:  # whatever a tracker and its network do, the run goes on
                del self.loggers[name]
                with suppress(Exception):
                    logger.close()
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                self.callback.notice(f"{name} failed and hears no more of this run: {reason}")
