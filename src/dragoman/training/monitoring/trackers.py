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
from dragoman.errors import MissingExtraError
from dragoman.io.storage import write_json
from dragoman.training.monitoring.callbacks import EventKind, Listener, RunReport, Several, Silent, StepReport, ValidationReport

if TYPE_CHECKING:
    from dragoman.training.validation import Sample

PROJECT = "dragoman"
NOTES = "trackers.json"
# Parameters that MLflow takes at once.
_PARAMETERS = 100


def followed(recipe: Recipe, listener: Listener) -> Listener:
    """The listener with the recipe's trackers behind it. Raises MissingExtraError where the library of one is not there."""
    names = list(dict.fromkeys(recipe.training.loggers))
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a folder of this name is none of it
            raise MissingExtraError(name, name, f"training.loggers = ['{name}']")
    folder = Path(recipe.run)
    return Several(listener, {name: _TRACKERS[name](folder) for name in names}) if names else listener


class TensorBoard(Silent):
    """Curves, samples and events for `tensorboard --logdir RUN/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self._writer: Any = None

    def begin(self, about: RunReport) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a run that goes on makes anew is not shown twice.
        self._writer = SummaryWriter(str(self.folder), purge_step=about.step + 1)
        recipe = "\n".join(f"    {name} = {value}" for name, value in flat(about.recipe))
        self._writer.add_text("recipe", f"{about.machine}, {about.parameters:,} parameters\n\n{recipe}", about.step)

    def step(self, report: StepReport) -> None:
        self._scalars("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._scalars("valid", report)
        self._writer.flush()

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._writer.add_text(f"events/{kind}", text, step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._writer.add_text("samples", "\n\n".join(sample_lines(samples)), step)

    def finish(self, report: Mapping[str, Any]) -> None:
        self._writer.add_text("report", f"    {json.dumps(scores(report))}", report.get("steps"))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _scalars(self, group: str, report: StepReport | ValidationReport) -> None:
        for name, value in numbers(report).items():
            self._writer.add_scalar(f"{group}/{name}", value, report.step)


class Mlflow(Silent):
    """A run of the experiment MLFLOW_EXPERIMENT_NAME, or of `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client: Any = None
        self._run = ""
        self._status = "KILLED"

    def begin(self, about: RunReport) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every table that it makes
        here = self.folder.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{here / 'mlflow.db'}")
        notes = read_notes(self.folder)
        if notes.get("mlflow"):
            self._run = notes["mlflow"]
            self._client.update_run(self._run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        place = None if uri else str(here / "mlflow-artifacts")
        experiment = found.experiment_id if found else self._client.create_experiment(name, artifact_location=place)
        self._run = self._client.create_run(experiment, run_name=about.name, tags={"machine": about.machine}).info.run_id
        write_notes(self.folder, "mlflow", self._run)
        parameters = [Param(key, str(value)[:500]) for key, value in flat(about.recipe)]
        for begin in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run, params=parameters[begin : begin + _PARAMETERS])

    def step(self, report: StepReport) -> None:
        self._metrics("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._metrics("valid", report)

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._client.set_tag(self._run, f"event.{kind}", f"step {step}: {text}"[:5000])

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._client.log_text(self._run, "\n\n".join(sample_lines(samples)) + "\n", f"samples/step-{step:08d}.txt")

    def finish(self, report: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = int(report.get("steps", 0)), round(time.time() * 1000)
        metrics = [Metric(f"report/{name}", value, now, step) for name, value in scores(report).items()]
        self._client.log_batch(self._run, metrics=metrics)
        self._status = "FINISHED"

    def close(self) -> None:
        if self._run:
            self._client.set_terminated(self._run, self._status)

    def _metrics(self, group: str, report: StepReport | ValidationReport) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(f"{group}/{name}", value, now, report.step) for name, value in numbers(report).items()]
        self._client.log_batch(self._run, metrics=metrics)


class Wandb(Silent):
    """A run of the project WANDB_PROJECT, or of `dragoman`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None
        self._exit_code = 1

    def begin(self, about: RunReport) -> None:
        import wandb

        name = read_notes(self.folder).get("wandb") or uuid.uuid4().hex[:8]
        write_notes(self.folder, "wandb", name)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=about.name,
            id=name,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(self.folder),
            config=dict(about.recipe),
            settings={"silent": True, "console": "off"},  # the screen is the run's own
        )
        # Its own count of steps never goes back, as a run that goes on from a checkpoint does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def step(self, report: StepReport) -> None:
        self._log("train", report)

    def validation(self, report: ValidationReport) -> None:
        self._log("valid", report)

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._run.log({"step": step, f"events/{kind}": text})

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        import wandb

        rows = [[sample.source, sample.reference, sample.translation] for sample in samples]
        self._run.log({"step": step, "samples": wandb.Table(columns=["source", "reference", "translation"], data=rows)})

    def finish(self, report: Mapping[str, Any]) -> None:
        self._run.summary.update({f"report/{name}": value for name, value in scores(report).items()})
        self._exit_code = 0

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)

    def _log(self, group: str, report: StepReport | ValidationReport) -> None:
        self._run.log({"step": report.step, **{f"{group}/{name}": value for name, value in numbers(report).items()}})


_TRACKERS: dict[str, Callable[[Path], Listener]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def numbers(report: StepReport | ValidationReport) -> dict[str, float]:
    """What can be drawn as a curve, by name."""
    values = {name: value for name, value in vars(report).items() if name != "step"}
    if isinstance(report, ValidationReport):
        values["nll"] = report.nll
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def scores(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run's report."""
    return {name: float(value) for name, value in report.items() if isinstance(value, int | float)}


def sample_lines(samples: Sequence[Sample]) -> list[str]:
    """A paragraph for each sample, in which line ends and marks of Markdown are text."""
    return [f"    {one.source}\n    {one.reference}\n    {one.translation}" for one in samples]


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`training.max_steps` and its value, and so on."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_notes(folder: Path) -> dict[str, str]:
    """The name of the run in each tracker; none where there are no notes yet, or where they cannot be read."""
    try:
        notes = json.loads((folder / NOTES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}


def write_notes(folder: Path, tracker: str, name: str) -> None:
    """Keep the name of the run in this tracker."""
    write_json(folder / NOTES, {**read_notes(folder), tracker: name}, overwrite=True)
