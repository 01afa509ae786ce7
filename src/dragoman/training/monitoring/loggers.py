"""Loggers for TensorBoard, MLflow and Weights & Biases. Each needs an extra of its own; by default none sends data anywhere.

TensorBoard writes into RUN/tensorboard. MLflow uses MLFLOW_TRACKING_URI, or RUN/mlflow.db if it is not set. Weights & Biases
uses WANDB_MODE, or keeps the run in RUN/wandb for `wandb sync`. A resumed run continues the same run of each service;
RUN/loggers.json holds the run ids.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.config import flatten_settings
from dragoman.errors import MissingDependencyError
from dragoman.io.storage import write_json
from dragoman.training.monitoring.events import (
    Callback,
    CallbackList,
    RunClosed,
    RunEvent,
    RunFinished,
    RunStarted,
    Sample,
    StepReport,
    TrainingEvent,
    ValidationReport,
    ValidationSamples,
)

DEFAULT_PROJECT = "dragoman"
LOGGER_RUNS_FILE = "loggers.json"
# MLflow accepts at most this many parameters in one request.
_MAX_BATCH_PARAMETERS = 100


def with_loggers(run: Path, loggers: Sequence[str], callback: Callback) -> Callback:
    """Return the callback with the loggers of a run. Raise MissingDependencyError if a library is not installed."""
    names = list(dict.fromkeys(loggers))
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name is not a library
            raise MissingDependencyError(name, name, f"training.loggers = ['{name}']")
    return CallbackList(callback, {name: _LOGGERS[name](run) for name in names}) if names else callback


class TensorBoardLogger:
    """Curves, samples and events for `tensorboard --logdir RUN/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self._writer: Any = None

    def __call__(self, event: TrainingEvent) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepReport():
                self._write_scalars(event)
            case ValidationReport():
                self._write_scalars(event)
                self._writer.flush()
            case ValidationSamples(step, samples):
                self._writer.add_text("samples", format_samples(samples), step)
            case RunEvent(kind, step, text):
                self._writer.add_text(f"events/{kind}", text, step)
            case RunFinished(report):
                self._writer.add_text("report", f"    {json.dumps(select_report_scalars(report))}", report.get("steps"))
            case RunClosed() if self._writer is not None:
                self._writer.close()

    def _start(self, event: RunStarted) -> None:
        from torch.utils.tensorboard import SummaryWriter

        run_info = event.run_info
        # Steps that a resumed run repeats are shown once.
        self._writer = SummaryWriter(str(self.folder), purge_step=run_info.step + 1)
        recipe = "\n".join(f"    {name} = {value}" for name, value in flatten_settings(event.recipe))
        self._writer.add_text("recipe", f"{run_info.machine}, {run_info.parameters:,} parameters\n\n{recipe}", run_info.step)

    def _write_scalars(self, report: StepReport | ValidationReport) -> None:
        for name, value in to_scalars(report).items():
            self._writer.add_scalar(name, value, report.step)


class MLflowLogger:
    """Logger to a run of the MLflow experiment MLFLOW_EXPERIMENT_NAME; its default is `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client: Any = None
        self._run_id = ""
        self._status = "KILLED"

    def __call__(self, event: TrainingEvent) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepReport() | ValidationReport():
                self._log_metrics(to_scalars(event), event.step)
            case ValidationSamples(step, samples):
                self._client.log_text(self._run_id, format_samples(samples) + "\n", f"samples/step-{step:08d}.txt")
            case RunEvent(kind, step, text):
                self._client.set_tag(self._run_id, f"event.{kind}", f"step {step}: {text}"[:5000])
            case RunFinished(report):
                self._log_metrics(prefix_report_scalars(report), int(report.get("steps", 0)))
                self._status = "FINISHED"
            case RunClosed() if self._run_id:
                self._client.set_terminated(self._run_id, self._status)

    def _start(self, event: RunStarted) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)  # else it logs every table that it creates
        run_info = event.run_info
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
        parameters = [Param(key, str(value)[:500]) for key, value in flatten_settings(event.recipe)]
        for start in range(0, len(parameters), _MAX_BATCH_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + _MAX_BATCH_PARAMETERS])

    def _log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        self._client.log_batch(self._run_id, metrics=[Metric(name, value, now, step) for name, value in scalars.items()])


class WandbLogger:
    """Logger to a run of the Weights & Biases project WANDB_PROJECT; its default is `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None
        self._exit_code = 1

    def __call__(self, event: TrainingEvent) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepReport() | ValidationReport():
                self._run.log({"step": event.step, **to_scalars(event)})
            case ValidationSamples():
                self._log_samples(event)
            case RunEvent(kind, step, text):
                self._run.log({"step": step, f"events/{kind}": text})
            case RunFinished(report):
                self._run.summary.update(prefix_report_scalars(report))
                self._exit_code = 0
            case RunClosed() if self._run is not None:
                self._run.finish(exit_code=self._exit_code)

    def _start(self, event: RunStarted) -> None:
        import wandb

        run_id = read_logger_runs(self.folder).get("wandb") or uuid.uuid4().hex[:8]
        write_logger_run(self.folder, "wandb", run_id)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
            name=event.run_info.name,
            id=run_id,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(self.folder),
            config=dict(event.recipe),
            settings={"silent": True, "console": "off"},  # the terminal belongs to dragoman
        )
        # Its own step count never decreases, but a run that resumes from a checkpoint repeats steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _log_samples(self, event: ValidationSamples) -> None:
        import wandb

        rows = [[sample.source, sample.reference, sample.translation] for sample in event.samples]
        self._run.log({"step": event.step, "samples": wandb.Table(columns=["source", "reference", "translation"], data=rows)})


_LOGGERS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}


def to_scalars(report: StepReport | ValidationReport) -> dict[str, float]:
    """Return the numbers of a report without its step, by names such as `train/loss`."""
    values = {f"{report.type}/{name}": value for name, value in vars(report).items() if name != "step"}
    if isinstance(report, ValidationReport):
        pair_scores = (report.pair_scores or {}).items()
        values |= {f"valid/{metric}/{pair}": value for pair, scores in pair_scores for metric, value in scores.items()}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def prefix_report_scalars(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers at the top level of a run's report, by names such as `report/bleu`."""
    return {f"report/{name}": value for name, value in select_report_scalars(report).items()}


def select_report_scalars(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers at the top level of a run's report."""
    return {name: float(value) for name, value in report.items() if isinstance(value, int | float)}


def format_samples(samples: Sequence[Sample]) -> str:
    """Return a Markdown code block for each sample, in which Markdown marks are plain text."""
    return "\n\n".join(f"    {sample.source}\n    {sample.reference}\n    {sample.translation}" for sample in samples)


def read_logger_runs(folder: Path) -> dict[str, str]:
    """Return the run id of each logger; an empty dict if the file does not exist or cannot be read."""
    try:
        logger_runs = json.loads((folder / LOGGER_RUNS_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in logger_runs.items()} if isinstance(logger_runs, dict) else {}


def write_logger_run(folder: Path, logger_name: str, run_id: str) -> None:
    """Save the run id of one logger."""
    write_json(folder / LOGGER_RUNS_FILE, {**read_logger_runs(folder), logger_name: run_id}, overwrite=True)
