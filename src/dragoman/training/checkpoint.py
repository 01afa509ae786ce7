"""Checkpoints: sealed folders from which a run goes on exactly.

    checkpoints/step-00001000/  model.safetensors  optimiser.safetensors  state.json  manifest.json

A checkpoint is committed by one rename; only then are older ones removed. A reader takes the newest that verifies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman.bundle import mean_weights, save_tensors
from dragoman.data.batches import Cursor
from dragoman.errors import RunError
from dragoman.storage import check_seal, sealed_folder

MODEL, OPTIMISER, STATE = "model.safetensors", "optimiser.safetensors", "state.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside weights and optimiser: all that resuming needs, in a few numbers."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    minutes: float = 0.0
    target_tokens: int = 0
    best: float | None = None
    best_step: int = 0
    validations_since_best: int = 0


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    progress: Progress
    recipe: dict[str, Any]
    merit: float | None
    """What the validation at this step said, higher is better; none where there was none at this step."""

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
    weights: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    names: Mapping[int, str],
) -> Checkpoint:
    """Commit a checkpoint. `names` gives the name of each parameter by its number in the optimiser."""
    path = folder / f"step-{progress.step:08d}"
    with sealed_folder(path, overwrite=True) as partial:
        save_tensors(partial / MODEL, weights)
        save_tensors(partial / OPTIMISER, flatten_optimiser(optimiser, names))
        state = {"progress": asdict(progress), "recipe": dict(recipe), "merit": merit}
        (partial / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    return Checkpoint(path, progress, dict(recipe), merit)


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


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Those that can be read at a glance, oldest first; digests are checked when one is opened."""
    found = []
    for path in sorted(folder.glob("step-*")):
        try:
            state = json.loads((path / STATE).read_bytes())
            values = dict(state["progress"])
            progress = Progress(**{**values, "cursor": Cursor(**values["cursor"])})
            found.append(Checkpoint(path, progress, state["recipe"], state["merit"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def newest_checkpoint(folder: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint whose digests hold; `notice` hears of any that do not."""
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            check_seal(checkpoint.path, RunError)
        except RunError as error:
            notice(f"{error}; going back to the checkpoint before it")
            continue
        return checkpoint
    return None


def prune_checkpoints(folder: Path, *, keep_last: int, keep_best: int) -> None:
    """Remove all but the newest and the best."""
    checkpoints = list_checkpoints(folder)
    kept = {checkpoint.path for checkpoint in checkpoints[-keep_last:]} | {one.path for one in best(checkpoints, keep_best)}
    for checkpoint in checkpoints:
        if checkpoint.path not in kept:
            shutil.rmtree(checkpoint.path, ignore_errors=True)


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
