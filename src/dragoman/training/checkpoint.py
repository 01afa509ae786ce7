"""Checkpoints: sealed folders from which a run goes on exactly.

    checkpoints/step-00001000/  model.safetensors  optimiser.safetensors  state.json  manifest.json

A checkpoint is committed by one rename; only then are older ones removed. A reader takes the newest that verifies, and sets
aside those that do not.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman.bundle import mean_weights, save_tensors
from dragoman.data.loader import Cursor
from dragoman.errors import OutputError, RunError
from dragoman.storage import cannot_write, check_seal, sealed_folder

MODEL, OPTIMISER, STATE = "model.safetensors", "optimiser.safetensors", "state.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside weights and optimiser: all that resuming needs, in a few numbers."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    minutes: float = 0.0
    target_tokens: int = 0
    nll_since_log: float = 0.0
    tokens_since_log: int = 0
    best: float | None = None
    best_step: int = 0
    validations_since_best: int = 0


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    progress: Progress
    recipe: dict[str, Any]
    merit: float | None
    """What the validation at this step said, higher is better; none where there was none, or where a run only stopped."""
    corpus: dict[str, str]
    """Digests of the prepared files: the ids that these weights stand for."""
    due: bool
    """Whether steps or minutes asked for it; if not, it stays while it is the newest or among the best."""

    @property
    def step(self) -> int:
        return self.progress.step

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.path / MODEL)

    def optimiser_state(self) -> dict[str, Tensor]:
        return load_file(self.path / OPTIMISER)


def save_checkpoint(
    folder: Path,
    *,
    progress: Progress,
    recipe: Mapping[str, Any],
    merit: float | None,
    corpus: Mapping[str, str],
    due: bool,
    weights: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    names: Mapping[int, str],
) -> Checkpoint:
    """Commit a checkpoint. `names` gives the name of each parameter by its number in the optimiser."""
    path = folder / f"step-{progress.step:08d}"
    with sealed_folder(path, overwrite=True) as partial:
        save_tensors(partial / MODEL, weights)
        save_tensors(partial / OPTIMISER, flatten_optimiser(optimiser, names))
        state = {"progress": asdict(progress), "recipe": dict(recipe), "merit": merit, "corpus": dict(corpus), "due": due}
        (partial / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    return Checkpoint(path, progress, dict(recipe), merit, dict(corpus), due)


def flatten_optimiser(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Adam's state as named tensors: `name/exp_avg`, `name/exp_avg_sq`, `name/step`."""
    state = optimiser.state_dict()["state"]
    return {f"{names[index]}/{key}": value for index, entry in state.items() for key, value in entry.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
    """The reverse of `flatten_optimiser`."""
    numbers = {name: index for index, name in names.items()}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        state.setdefault(numbers[name], {})[field] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def read_checkpoint(path: Path) -> Checkpoint:
    """What a checkpoint says of itself. Raises RunError where that cannot be read; digests are for `check_seal`."""
    try:
        state = json.loads((path / STATE).read_bytes())
        values = dict(state["progress"])
        progress = Progress(**{**values, "cursor": Cursor(**values["cursor"])})
        return Checkpoint(path, progress, state["recipe"], state["merit"], state["corpus"], state["due"])
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path / STATE}: this dragoman cannot read it; go on with the one that wrote it") from None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Those that can be read at a glance, oldest first."""
    found = []
    for path in sorted(folder.glob("step-*")):
        with suppress(RunError):
            found.append(read_checkpoint(path))
    return found


def newest_checkpoint(folder: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint whose digests hold. Any newer one is set aside, which `notice` hears of."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            check_seal(path, RunError)
        except RunError as error:
            aside = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
            try:
                path.rename(aside)
            except OSError as reason:
                raise OutputError(cannot_write(path, reason)) from None
            notice(f"{error}; it was set aside as {aside.name}, and the run goes back to the checkpoint before it")
        else:
            return read_checkpoint(path)
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove what a run that was killed left of a checkpoint that it was writing."""
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def prune_checkpoints(folder: Path, *, keep_last: int, keep_best: int) -> None:
    """Remove all but the newest and the best; those at which a run only stopped go as soon as there is a newer one."""
    checkpoints = list_checkpoints(folder)
    kept = {one.path for one in [*regular(checkpoints)[-keep_last:], *best(checkpoints, keep_best)]}
    for checkpoint in checkpoints:
        if checkpoint.path not in kept:
            shutil.rmtree(checkpoint.path, ignore_errors=True)


def regular(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Those that the recipe's steps or minutes asked for, and the newest whatever it is."""
    return [checkpoint for checkpoint in checkpoints[:-1] if checkpoint.due] + checkpoints[-1:]


def best(checkpoints: list[Checkpoint], count: int) -> list[Checkpoint]:
    """The best of those that were validated, the best first; the later of equals first."""
    judged = [checkpoint for checkpoint in checkpoints if checkpoint.merit is not None]
    return sorted(judged, key=lambda one: (one.merit or 0.0, one.step), reverse=True)[:count]


def average_checkpoints(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of their weights, each checked against its digests first."""
    if not checkpoints:
        raise RunError("there is no checkpoint to average")
    for checkpoint in checkpoints:
        check_seal(checkpoint.path, RunError)
    return mean_weights([checkpoint.weights() for checkpoint in checkpoints])
