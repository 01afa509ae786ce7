"""Checkpoints: sealed folders from which a run goes on exactly.

    checkpoints/step-00001000/  model.safetensors  optimiser.safetensors  averages.safetensors  state.json  manifest.json

A checkpoint is written beside its place, synced, read back, and committed by one rename to a name that never stood there: a
step that is saved again becomes step-00001000-2. Only then do older ones go, each by one rename first. At every instant, and
after a power cut at any, the newest of the folders that verify is the state to go on from. It is found by looking, with no
pointer to it that could be wrong, and those that do not verify are set aside.
"""

from __future__ import annotations

import json
import re
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

from dragoman.bundle import mean_weights
from dragoman.data.dataloader import Cursor
from dragoman.errors import OutputError, RunError, WriteError
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import cannot_write, check_seal, sealed_folder, sync_folder, write_file

MODEL, OPTIMISER, AVERAGES, STATE = "model.safetensors", "optimiser.safetensors", "averages.safetensors", "state.json"

NAME = re.compile(r"step-\d{8,}(-[1-9]\d*)?")
ENTRY = 256
"""Bytes that a tensor takes beside its numbers, about."""


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
    judged: int | None = 0
    """The step of the last validation; none where that is not known, as in checkpoints of version 0.1."""
    skipped: int = 0
    """Steps that changed nothing, for a spike or for want of a finite number."""
    skipped_in_a_row: int = 0
    restored: int = 0
    """Times that the run went back to a checkpoint."""
    returns: int = 0
    """Of those, the last ones between which it did not find its way."""
    good_at_return: int = 0
    """Steps that were not skipped until the last of them."""
    norms: tuple[float, ...] = ()
    """Gradient norms of the last steps, by which a spike is known."""
    flops: float = 0.0
    waited_minutes: float = 0.0
    """Of `minutes`, those spent waiting for batches."""
    joules: float | None = None


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
    machine: dict[str, str] | None = None
    """How sums were computed, in `Machine.memory`'s words; none in those of version 0.1."""

    @property
    def step(self) -> int:
        return self.progress.step

    def weights(self) -> dict[str, Tensor]:
        return _load(self.path / MODEL)

    def optimiser_state(self) -> dict[str, Tensor]:
        return _load(self.path / OPTIMISER)

    def averages(self) -> dict[str, Tensor] | None:
        """The moving average of the weights; none where the run keeps none."""
        return _load(self.path / AVERAGES) if (self.path / AVERAGES).exists() else None


def _load(path: Path) -> dict[str, Tensor]:
    # Copied off the mapped file, where tensors stand at any multiple of their width: in which order a matrix product sums,
    # and so its last bit, depends on that. And the file will be removed while its numbers are in use.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def save_checkpoint(
    folder: Path,
    *,
    progress: Progress,
    recipe: Mapping[str, Any],
    merit: float | None,
    corpus: Mapping[str, str],
    due: bool,
    machine: Mapping[str, str] | None = None,
    weights: Mapping[str, Tensor],
    optimiser_state: Mapping[str, Tensor],
    averages: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """Commit a checkpoint; `optimiser_state` as `flatten_optimiser` gives it.

    Raises WriteError where it cannot be written: nothing is changed then, and the next may be saved as if nothing had been.
    """
    remove_unfinished(folder)
    try:
        path = _new_name(folder, progress.step)
    except RunError as error:
        raise WriteError(str(error)) from None
    tensors = {MODEL: weights, OPTIMISER: optimiser_state} | ({} if averages is None else {AVERAGES: averages})
    saved = Checkpoint(path, progress, dict(recipe), merit, dict(corpus), due, dict(machine or {}))
    state = {name: value for name, value in asdict(saved).items() if name != "path"}
    told = json.dumps(state, indent=1).encode()
    size = len(told) + sum(one.numel() * one.element_size() + ENTRY for many in tensors.values() for one in many.values())
    written: dict[str, str] = {}
    with sealed_folder(path, size=size, written=written) as partial:
        for name, many in tensors.items():
            written[name] = save_tensors(partial / name, many)
        written[STATE] = write_file(partial / STATE, [told])
    return saved


def _new_name(folder: Path, step: int) -> Path:
    """One that stands nowhere: after step-00001000 come step-00001000-2, step-00001000-3, …"""
    times = [time for path in _committed(folder) for found, time in [_place(path)] if found == step]
    return folder / (f"step-{step:08d}-{max(times) + 1}" if times else f"step-{step:08d}")


def _place(path: Path) -> tuple[int, int]:
    """The step that a checkpoint's name tells, and which time it was saved."""
    _, step, *times = path.name.split("-")
    return int(step), int(times[0]) if times else 1


def _committed(folder: Path) -> list[Path]:
    """Everything that has the name of a checkpoint, oldest first. Raises RunError where the folder cannot be read."""
    try:
        return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), key=_place)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read: {error.strerror or error}") from None


def flatten_optimiser(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Adam's state as named tensors: `name/exp_avg`, `name/exp_avg_sq`, `name/step`; `names` by number in the optimiser."""
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
        values.setdefault("judged", None)
        progress = Progress(**{**values, "cursor": Cursor(**values["cursor"]), "norms": tuple(values.get("norms", ()))})
        told = (state["recipe"], state["merit"], state["corpus"], state["due"], state.get("machine"))
        return Checkpoint(path, progress, *told)
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path / STATE}: this dragoman cannot read it; go on with the one that wrote it") from None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Those that can be read at a glance, oldest first; of a step that was saved again, the last."""
    readable = [read_checkpoint(path) for path in _committed(folder) if _is_readable(path)]
    return list({one.step: one for one in readable}.values())


def all_checkpoints(folder: Path) -> list[Checkpoint]:
    """As `list_checkpoints`, but raises RunError where one cannot be read."""
    found = {}
    for path in _committed(folder):
        try:
            checkpoint = read_checkpoint(path)
        except RunError:
            if path.exists():  # a run that is at work may have pruned it meanwhile
                raise
        else:
            found[checkpoint.step] = checkpoint
    return list(found.values())


def set_aside_the_unreadable(folder: Path, notice: Callable[[str], None], then: str) -> None:
    """Those that are damaged so that they do not even tell of what they are. Raises RunError for what is another version's."""
    for path in _committed(folder):
        if not _is_readable(path) and not set_aside_if_damaged(path, notice, then):
            read_checkpoint(path)


def newest_checkpoint(folder: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint whose digests hold. Any newer one is set aside, which `notice` hears of."""
    for path in reversed(_committed(folder)):
        if not set_aside_if_damaged(path, notice, "the run goes back to the checkpoint before it"):
            return read_checkpoint(path)
    return None


def set_aside_if_damaged(path: Path, notice: Callable[[str], None], then: str) -> bool:
    """Whether it was: a checkpoint whose digests do not hold gets another name, and `notice` hears of it and what is done then.

    Raises RunError where that cannot be told, since it cannot be read now, or is another version's: it stays where it is.
    """
    try:
        check_seal(path, _DamagedError, unread=RunError)
    except _DamagedError as error:
        aside = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
        try:
            path.rename(aside)
        except OSError as reason:
            raise OutputError(cannot_write(path, reason)) from None
        notice(f"{error}; it was set aside as {aside.name}, and {then}")
        return True
    return False


class _DamagedError(RunError):
    """A digest does not hold."""


def remove_unfinished(folder: Path) -> None:
    """Remove what a run that was killed left of a checkpoint that it was writing or removing."""
    with suppress(OSError):
        for path in folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)


def prune_checkpoints(folder: Path, *, keep_last: int, keep_best: int) -> None:
    """Remove all but the newest and the best; those at which a run only stopped go as soon as there is a newer one.

    What cannot be removed now is left for the next time; one that cannot be read is never removed.
    """
    with suppress(RunError, OSError):
        checkpoints = list_checkpoints(folder)
        kept = {one.path for one in [*regular(checkpoints)[-keep_last:], *best(checkpoints, keep_best)]}
        gone = [path for path in _committed(folder) if path not in kept and _is_readable(path)]
        hidden = [path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")) for path in gone]
        # Nothing is taken out of a folder whose own going could be undone by a power cut.
        sync_folder(folder)
        for path in hidden:
            shutil.rmtree(path, ignore_errors=True)


def _is_readable(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except RunError:
        return False
    return True


def regular(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Those that the recipe's steps or minutes asked for, and the newest whatever it is."""
    return [checkpoint for checkpoint in checkpoints[:-1] if checkpoint.due] + checkpoints[-1:]


def best(checkpoints: list[Checkpoint], count: int) -> list[Checkpoint]:
    """The best of those that were validated, the best first; the later of equals first."""
    judged = [checkpoint for checkpoint in checkpoints if checkpoint.merit is not None]
    return sorted(judged, key=lambda one: (one.merit or 0.0, one.step), reverse=True)[:count]


def average_checkpoints(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of their weights."""
    if not checkpoints:
        raise RunError("there is no checkpoint to average")
    return mean_weights([checkpoint.weights() for checkpoint in checkpoints])
