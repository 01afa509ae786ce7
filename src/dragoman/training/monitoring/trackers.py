"""TensorBoard, MLflow and Weights & Biases as listeners, each an extra of its own. By nature they send nothing anywhere.

TensorBoard writes into RUN/tensorboard. MLflow goes where MLFLOW_TRACKING_URI says, or into RUN/mlflow.db; Weights & Biases
does what WANDB_MODE says, or keeps the run in RUN/wandb for `wandb sync`. A run that goes on does so in the same run of each,
whose name stands in RUN/trackers.json.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.config import Recipe
from dragoman.errors import MissingDependencyError
from dragoman.io.storage import write_json
from dragoman.training.monitoring.callbacks import (
    Callback,
    CallbackList,
    EventKind,
    NullCallback,
    RunInfo,
    StepReport,
    ValidationReport,
)

if TYPE_CHECKING:
    from dragoman.training.validation import Sample

DEFAULT_PROJECT = "dragoman"
LOGGER_RUNS_FILE = "trackers.json"
# Parameters that MLflow takes at once.
_MAX_BATCH_PARAMETERS = 100


def with_loggers(recipe: Recipe, callback: Callback) -> Callback:
    """The listener with the recipe's trackers behind it. Raises MissingExtraError where the library of one is not there."""
    names = list(dict.fromkeys(recipe.training.loggers))
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name is none of it
            raise MissingDependencyError(name, name, f"training.loggers = ['{name}']")
    folder = Path(recipe.run)
    return CallbackList(callback, {name: _LOGGERS[name](folder) for name in names}) if names else callback


class TensorBoardLogger(NullCallback):
    """Curves, samples and events for `tensorboard --logdir RUN/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self._writer: Any = None

    def begin(self, run_info: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a run that goes on makes anew is not shown twice.
        self._writer = SummaryWriter(str(self.folder), purge_step=run_info.step + 1)
        recipe = "\n".join(f"    {name} = {value}" for name, value in flatten(run_info.recipe))
        self._writer.add_text("recipe", f"{run_info.machine}, {run_info.parameters:,} parameters\n\n{recipe}", run_info.step)

    def step(self, report: StepReport) -> None:
        self._write_scalars("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._write_scalars("valid", report)
        self._writer.flush()

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._writer.add_text(f"events/{kind}", text, step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._writer.add_text("samples", "\n\n".join(format_samples(samples)), step)

    def finish(self, report: Mapping[str, Any]) -> None:
        self._writer.add_text("report", f"    {json.dumps(select_report_scalars(report))}", report.get("steps"))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write_scalars(self, group: str, report: StepReport | ValidationReport) -> None:
        for name, value in to_scalars(report).items():
            self._writer.add_scalar(f"{group}/{name}", value, report.step)


class MLflowLogger(NullCallback):
    """A run of the experiment MLFLOW_EXPERIMENT_NAME, or of `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client: Any = None
        self._run_id = ""
        self._status = "KILLED"

    def begin(self, run_info: RunInfo) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every table that it makes
        run_dir = self.folder.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{run_dir / 'mlflow.db'}")
        logger_runs = read_logger_runs(self.folder)
        if logger_runs.get("mlflow"):
            self._run_id = logger_runs["mlflow"]
            self._client.update_run(self._run_id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
        existing = self._client.get_experiment_by_name(name)
        artifact_location = None if uri else str(run_dir / "mlflow-artifacts")
        experiment_id = (
            existing.experiment_id if existing else self._client.create_experiment(name, artifact_location=artifact_location)
        )
        self._run_id = self._client.create_run(
            experiment_id, run_name=run_info.name, tags={"machine": run_info.machine}
        ).info.run_id
        write_logger_run(self.folder, "mlflow", self._run_id)
        parameters = [Param(key, str(value)[:500]) for key, value in flatten(run_info.recipe)]
        for start in range(0, len(parameters), _MAX_BATCH_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + _MAX_BATCH_PARAMETERS])

    def step(self, report: StepReport) -> None:
        self._log_metrics("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._log_metrics("valid", report)

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._client.set_tag(self._run_id, f"event.{kind}", f"step {step}: {text}"[:5000])

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._client.log_text(self._run_id, "\n\n".join(format_samples(samples)) + "\n", f"samples/step-{step:08d}.txt")

    def finish(self, report: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = int(report.get("steps", 0)), round(time.time() * 1000)
        metrics = [Metric(f"report/{name}", value, now, step) for name, value in select_report_scalars(report).items()]
        self._client.log_batch(self._run_id, metrics=metrics)
        self._status = "FINISHED"

    def close(self) -> None:
        if self._run_id:
            self._client.set_terminated(self._run_id, self._status)

    def _log_metrics(self, group: str, report: StepReport | ValidationReport) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(f"{group}/{name}", value, now, report.step) for name, value in to_scalars(report).items()]
        self._client.log_batch(self._run_id, metrics=metrics)


class WandbLogger(NullCallback):
    """A run of the project WANDB_PROJECT, or of `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None
        self._exit_code = 1

    def begin(self, run_info: RunInfo) -> None:
        import wandb

        run_id = read_logger_runs(self.folder).get("wandb") or uuid.uuid4().hex[:8]
        write_logger_run(self.folder, "wandb", run_id)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
            name=run_info.name,
            id=run_id,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(self.folder),
            config=dict(run_info.recipe),
            settings={"silent": True, "console": "off"},  # the screen is the run's own
        )
        # Its own count of steps never goes back, as a run that goes on from a checkpoint does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def step(self, report: StepReport) -> None:
        self._log_metrics("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._log_metrics("valid", report)

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._run.log({"step": step, f"events/{kind}": text})

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        import wandb

        rows = [[sample.source, sample.reference, sample.translation] for sample in samples]
        self._run.log({"step": step, "samples": wandb.Table(columns=["source", "reference", "translation"], data=rows)})

    def finish(self, report: Mapping[str, Any]) -> None:
        self._run.summary.update({f"report/{name}": value for name, value in select_report_scalars(report).items()})
        self._exit_code = 0

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)

    def _log_metrics(self, group: str, report: StepReport | ValidationReport) -> None:
        self._run.log({"step": report.step, **{f"{group}/{name}": value for name, value in to_scalars(report).items()}})


_LOGGERS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}


def to_scalars(report: StepReport | ValidationReport) -> dict[str, float]:
    """What can be drawn as a curve, by name."""
    values = {name: value for name, value in vars(report).items() if name != "step"}
    if isinstance(report, ValidationReport):
        values["nll"] = report.nll
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def select_report_scalars(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run's report."""
    return {name: float(value) for name, value in report.items() if isinstance(value, int | float)}


def format_samples(samples: Sequence[Sample]) -> list[str]:
    """A paragraph for each sample, in which line ends and marks of Markdown are text."""
    return [f"    {sample.source}\n    {sample.reference}\n    {sample.translation}" for sample in samples]


def flatten(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`training.max_steps` and its value, and so on."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_logger_runs(folder: Path) -> dict[str, str]:
    """The name of the run in each tracker; none where there are no notes yet, or where they cannot be read."""
    try:
        logger_runs = json.loads((folder / LOGGER_RUNS_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in logger_runs.items()} if isinstance(logger_runs, dict) else {}


def write_logger_run(folder: Path, logger_name: str, run_id: str) -> None:
    """Keep the name of the run in this tracker."""
    write_json(folder / LOGGER_RUNS_FILE, {**read_logger_runs(folder), logger_name: run_id}, overwrite=True)
