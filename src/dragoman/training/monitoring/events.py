"""Events of a training run. A callback is a function that takes one event, such as `list.append` or `print`.

    RunStarted → StepDone, StepReport, RunEvent, ValidationReport, ValidationSamples … → RunFinished → RunClosed

`Notice` and `PreparationProgress` may come at any time, also before `RunStarted`. `RunClosed` comes also if the run fails.
The classes with a `type` are the lines of the metrics log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

EventKind = Literal[
    "resumed", "checkpoint", "checkpoint_failed", "skipped_steps", "rolled_back", "oom_split", "infeasible_pairs", "early_stop",
    "budget_spent", "diverged", "stopped", "failed",
]  # fmt: skip

LoggedFloat = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""A number that is null in JSON if it is not finite."""


@dataclass(frozen=True)
class Sample:
    """One line with its reference and the model's output. Trees are in brackets."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Notice:
    """One line for the user."""

    text: str


@dataclass(frozen=True)
class PreparationProgress:
    """Progress of work outside of training steps: preparing corpora, validating, scoring the test set."""

    task_name: str
    done: int
    total: int | None
    unit: str = "pairs"


@dataclass(frozen=True)
class RunInfo:
    """Facts of a run that are known before its first step."""

    name: str
    folder: str
    machine: str
    parameters: int
    step: int = 0
    """The step that the run resumes from; 0 for a new run."""
    devices: int = 1
    peak_flops_per_second: float | None = None
    """Measured FLOP/s of all devices together in matrix products."""
    uniform_loss: float | None = None
    """Nats per token of the uniform distribution over the vocabulary: ln V."""
    type: Literal["run"] = "run"


@dataclass(frozen=True)
class RunStarted:
    """Start of a run, or of a resumed part of it, before its first step."""

    run_info: RunInfo
    recipe: Mapping[str, Any]


@dataclass(frozen=True)
class EvaluationCost:
    """Floating-point operations that the machine could do at its peak in the time of the evaluations of a run on a CPU.

    It comes before `RunStarted`.
    """

    validation_flops: float
    """Operations of one validation."""
    test_flops: float


@dataclass(frozen=True)
class StepDone:
    """End of one step. It comes after every step, so a callback must be fast."""

    step: int
    progress: float
    """Share of the budget that is spent, 0 to 1."""
    recent: RecentSteps | None = None
    """Every few seconds, what the steps since the last `StepReport` cost."""


@dataclass(frozen=True)
class RecentSteps:
    """Means over some steps, see `StepReport`."""

    epoch: float
    loss: float
    tokens_per_second: float
    mfu: float | None = None


@dataclass(frozen=True)
class StepReport:
    """State of a run after a step. Sums and means are over the steps since the last report."""

    step: int
    epoch: float
    loss: LoggedFloat
    """Negative log-likelihood in nats per target token, without label smoothing."""
    perplexity: LoggedFloat
    lr: float
    gradient_norm: LoggedFloat
    tokens_per_second: float
    progress: float
    """Share of the budget that is spent, 0 to 1."""
    minutes: float
    """Minutes of training steps so far, over all parts of the run."""
    minutes_left: float
    """Minutes of training steps until the budget is spent, at the recent pace."""
    skipped_steps: int = 0
    """Steps so far that changed no weight."""
    data_wait_fraction: float = 0.0
    """Share of the time since the last report that was spent waiting for batches."""
    flops_per_second: float | None = None
    """FLOP/s of the matrix products, without padding."""
    mfu: float | None = None
    """Model FLOPs utilization: `flops_per_second` as a share of the measured peak."""
    memory_mib: float | None = None
    """Resident memory on a CPU, peak allocated memory on a GPU."""
    devices: int = 1
    padding_fraction: float | None = None
    """Share of the batch positions that hold no token."""
    type: Literal["train"] = "train"


@dataclass(frozen=True)
class ValidationReport:
    """Scores of one validation."""

    step: int
    loss: LoggedFloat
    """Label-smoothed loss in nats per target token."""
    nll: LoggedFloat
    """Negative log-likelihood in nats per target token, to compare with `StepReport.loss`."""
    perplexity: LoggedFloat
    bleu: float | None
    best: bool
    token_accuracy: float | None = None
    """Percentage of target tokens that are the likeliest ones after the reference's tokens before them."""
    f1: float | None = None
    """Labeled F1 of a parser, by EVALB's rules."""
    f1_gold_tags: float | None = None
    """F1 with the gold part-of-speech tags."""
    nll_own_source: float | None = None
    """`nll` of a subset of the sentences."""
    nll_shuffled_source: float | None = None
    """`nll` of this subset with the sources of other sentences of equal length. It is equal if the model ignores its source."""
    pair_scores: Mapping[str, Mapping[str, float]] | None = None
    """BLEU and chrF of each pair of languages, such as en-de, for a model of many languages; `bleu` is their mean."""
    seconds: float = 0.0
    type: Literal["valid"] = "valid"


@dataclass(frozen=True)
class ValidationSamples:
    """Translations of the same few sentences at each validation."""

    step: int
    samples: tuple[Sample, ...]
    type: Literal["samples"] = "samples"


@dataclass(frozen=True)
class RunEvent:
    """Event for the user: one line in the metrics log and on the terminal.

    resumed: the run resumed from a checkpoint
    checkpoint, checkpoint_failed: a checkpoint was saved, or could not be saved
    skipped_steps: updates were skipped because of a non-finite number or a gradient spike
    rolled_back: the weights of an earlier checkpoint were restored after divergence
    diverged: the losses are far above those of a uniform guess, and the bundle will be that of an earlier step
    oom_split: a batch was split because of a shortage of memory
    infeasible_pairs: a CTC decoder has too few positions for the targets of some pairs, which had no loss
    early_stop, budget_spent: training is complete
    stopped, failed: the run ended because of a request or an error
    """

    event: EventKind
    step: int
    text: str
    type: Literal["event"] = "event"


@dataclass(frozen=True)
class RunFinished:
    """End of a run, with the content of `report.json`."""

    report: Mapping[str, Any]


@dataclass(frozen=True)
class RunClosed:
    """Last event of a run, after success or failure. A callback releases its resources."""


LogLine: TypeAlias = RunInfo | StepReport | ValidationReport | ValidationSamples | RunEvent
TrainingEvent: TypeAlias = (
    Notice | PreparationProgress | EvaluationCost | RunStarted | StepDone | StepReport | ValidationReport | ValidationSamples
    | RunEvent | RunFinished | RunClosed
)  # fmt: skip
Callback: TypeAlias = Callable[[TrainingEvent], None]


def ignore_event(event: TrainingEvent) -> None:
    """Do nothing: the callback of a run whose only output is its files."""


class CallbackList:
    """One callback for all events, and loggers for those from `RunStarted` on. A logger that fails receives no more events."""

    def __init__(self, callback: Callback, loggers: Mapping[str, Callback]) -> None:
        self.callback = callback
        self.loggers = dict(loggers)
        self.has_started = False

    def __call__(self, event: TrainingEvent) -> None:
        self.has_started = self.has_started or isinstance(event, RunStarted)
        if isinstance(event, RunClosed):
            self._call_loggers(event)
            self.callback(event)
        else:
            self.callback(event)
            self._call_loggers(event)

    def _call_loggers(self, event: TrainingEvent) -> None:
        for name, logger in list(self.loggers.items()) if self.has_started else []:
            try:
                logger(event)
            except Exception as error:  # an error of a logger or of its network must not end the run
                del self.loggers[name]
                with suppress(Exception):
                    logger(RunClosed())
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                self.callback(Notice(f"{name}: {reason}; it receives no more events of this run"))
