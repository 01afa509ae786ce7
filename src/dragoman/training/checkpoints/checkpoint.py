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

from dragoman.bundle import average_weights
from dragoman.data.dataloader import DataPosition
from dragoman.errors import OutputError, RunError, WriteError
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import atomic_dir, describe_write_error, sync_dir, verify_checksums, write_with_digest

MODEL_FILE, OPTIMIZER_FILE, EMA_FILE, STATE_FILE = (
    "model.safetensors",
    "optimiser.safetensors",
    "averages.safetensors",
    "state.json",
)

CHECKPOINT_NAME = re.compile(r"step-\d{8,}(-[1-9]\d*)?")
TENSOR_OVERHEAD_BYTES = 256
"""Bytes that a tensor takes beside its numbers, about."""


@dataclass(frozen=True)
class TrainerState:
    """Where a run stands, beside weights and optimiser: all that resuming needs, in a few numbers."""

    step: int = 0
    data_position: DataPosition = field(default_factory=DataPosition)
    minutes: float = 0.0
    target_tokens: int = 0
    nll_since_log: float = 0.0
    tokens_since_log: int = 0
    best: float | None = None
    best_step: int = 0
    validations_since_best: int = 0
    last_validated_step: int | None = 0
    """The step of the last validation; none where that is not known, as in checkpoints of version 0.1."""
    skipped_steps: int = 0
    """Steps that changed nothing, for a spike or for want of a finite number."""
    consecutive_skips: int = 0
    num_rollbacks: int = 0
    """Times that the run went back to a checkpoint."""
    recent_rollbacks: int = 0
    """Of those, the last ones between which it did not find its way."""
    applied_steps_at_rollback: int = 0
    """Steps that were not skipped until the last of them."""
    grad_norms: tuple[float, ...] = ()
    """Gradient norms of the last steps, by which a spike is known."""
    flops: float = 0.0
    data_wait_minutes: float = 0.0
    """Of `minutes`, those spent waiting for batches."""
    joules: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    trainer_state: TrainerState
    recipe: dict[str, Any]
    metric: float | None
    """What the validation at this step said, higher is better; none where there was none, or where a run only stopped."""
    data_digests: dict[str, str]
    """Digests of the prepared files: the ids that these weights stand for."""
    scheduled: bool
    """Whether steps or minutes asked for it; if not, it stays while it is the newest or among the best."""
    compute_plan: dict[str, str] | None = None
    """How sums were computed, in `Machine.memory`'s words; none in those of version 0.1."""

    @property
    def step(self) -> int:
        return self.trainer_state.step

    def weights(self) -> dict[str, Tensor]:
        return _load_tensors(self.path / MODEL_FILE)

    def optimizer_state(self) -> dict[str, Tensor]:
        return _load_tensors(self.path / OPTIMIZER_FILE)

    def ema_weights(self) -> dict[str, Tensor] | None:
        """The moving average of the weights; none where the run keeps none."""
        return _load_tensors(self.path / EMA_FILE) if (self.path / EMA_FILE).exists() else None


def _load_tensors(path: Path) -> dict[str, Tensor]:
    # Copied off the mapped file, where tensors stand at any multiple of their width: in which order a matrix product sums,
    # and so its last bit, depends on that. And the file will be removed while its numbers are in use.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def save_checkpoint(
    folder: Path,
    *,
    trainer_state: TrainerState,
    recipe: Mapping[str, Any],
    metric: float | None,
    data_digests: Mapping[str, str],
    scheduled: bool,
    compute_plan: Mapping[str, str] | None = None,
    weights: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Tensor],
    ema_weights: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """Commit a checkpoint; `optimiser_state` as `flatten_optimiser` gives it.

    Raises WriteError where it cannot be written: nothing is changed then, and the next may be saved as if nothing had been.
    """
    remove_unfinished(folder)
    try:
        path = _new_path(folder, trainer_state.step)
    except RunError as error:
        raise WriteError(str(error)) from None
    tensors = {MODEL_FILE: weights, OPTIMIZER_FILE: optimizer_state} | ({} if ema_weights is None else {EMA_FILE: ema_weights})
    checkpoint = Checkpoint(path, trainer_state, dict(recipe), metric, dict(data_digests), scheduled, dict(compute_plan or {}))
    state = {name: value for name, value in asdict(checkpoint).items() if name != "path"}
    state_bytes = json.dumps(state, indent=1).encode()
    size = len(state_bytes) + sum(
        tensor.numel() * tensor.element_size() + TENSOR_OVERHEAD_BYTES
        for group in tensors.values()
        for tensor in group.values()
    )
    digests: dict[str, str] = {}
    with atomic_dir(path, size=size, written=digests) as partial_dir:
        for name, group in tensors.items():
            digests[name] = save_tensors(partial_dir / name, group)
        digests[STATE_FILE] = write_with_digest(partial_dir / STATE_FILE, [state_bytes])
    return checkpoint


def _new_path(folder: Path, step: int) -> Path:
    """One that stands nowhere: after step-00001000 come step-00001000-2, step-00001000-3, …"""
    save_counts = [
        save_count
        for path in _list_checkpoint_paths(folder)
        for saved_step, save_count in [_parse_name(path)]
        if saved_step == step
    ]
    return folder / (f"step-{step:08d}-{max(save_counts) + 1}" if save_counts else f"step-{step:08d}")


def _parse_name(path: Path) -> tuple[int, int]:
    """The step that a checkpoint's name tells, and which time it was saved."""
    _, step, *suffix = path.name.split("-")
    return int(step), int(suffix[0]) if suffix else 1


def _list_checkpoint_paths(folder: Path) -> list[Path]:
    """Everything that has the name of a checkpoint, oldest first. Raises RunError where the folder cannot be read."""
    try:
        return sorted((path for path in folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), key=_parse_name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read: {error.strerror or error}") from None


def flatten_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Adam's state as named tensors: `name/exp_avg`, `name/exp_avg_sq`, `name/step`; `names` by number in the optimiser."""
    state = optimizer.state_dict()["state"]
    return {f"{names[index]}/{key}": value for index, entry in state.items() for key, value in entry.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
    """The reverse of `flatten_optimiser`."""
    indices = {name: index for index, name in names.items()}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, state_key = key.rpartition("/")
        state.setdefault(indices[name], {})[state_key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def read_checkpoint(path: Path) -> Checkpoint:
    """What a checkpoint says of itself. Raises RunError where that cannot be read; digests are for `check_seal`."""
    try:
        state = json.loads((path / STATE_FILE).read_bytes())
        values = dict(state["progress"])
        values.setdefault("judged", None)
        trainer_state = TrainerState(
            **{**values, "cursor": DataPosition(**values["cursor"]), "norms": tuple(values.get("norms", ()))}
        )
        fields = (state["recipe"], state["merit"], state["corpus"], state["due"], state.get("machine"))
        return Checkpoint(path, trainer_state, *fields)
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path / STATE_FILE}: this dragoman cannot read it; go on with the one that wrote it") from None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Those that can be read at a glance, oldest first; of a step that was saved again, the last."""
    readable = [read_checkpoint(path) for path in _list_checkpoint_paths(folder) if _is_readable(path)]
    return list({checkpoint.step: checkpoint for checkpoint in readable}.values())


def read_all_checkpoints(folder: Path) -> list[Checkpoint]:
    """As `list_checkpoints`, but raises RunError where one cannot be read."""
    by_step = {}
    for path in _list_checkpoint_paths(folder):
        try:
            checkpoint = read_checkpoint(path)
        except RunError:
            if path.exists():  # a run that is at work may have pruned it meanwhile
                raise
        else:
            by_step[checkpoint.step] = checkpoint
    return list(by_step.values())


def quarantine_unreadable(folder: Path, notice: Callable[[str], None], consequence: str) -> None:
    """Those that are damaged so that they do not even tell of what they are. Raises RunError for what is another version's."""
    for path in _list_checkpoint_paths(folder):
        if not _is_readable(path) and not quarantine_if_damaged(path, notice, consequence):
            read_checkpoint(path)


def find_latest_checkpoint(folder: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint whose digests hold. Any newer one is set aside, which `notice` hears of."""
    for path in reversed(_list_checkpoint_paths(folder)):
        if not quarantine_if_damaged(path, notice, "the run goes back to the checkpoint before it"):
            return read_checkpoint(path)
    return None


def quarantine_if_damaged(path: Path, notice: Callable[[str], None], consequence: str) -> bool:
    """Whether it was: a checkpoint whose digests do not hold gets another name, and `notice` hears of it and what is done then.

    Raises RunError where that cannot be told, since it cannot be read now, or is another version's: it stays where it is.
    """
    try:
        verify_checksums(path, _DamagedCheckpointError, unreadable_type=RunError)
    except _DamagedCheckpointError as error:
        quarantine_path = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
        try:
            path.rename(quarantine_path)
        except OSError as rename_error:
            raise OutputError(describe_write_error(path, rename_error)) from None
        notice(f"{error}; it was set aside as {quarantine_path.name}, and {consequence}")
        return True
    return False


class _DamagedCheckpointError(RunError):
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
        retained = {
            checkpoint.path
            for checkpoint in [*select_scheduled(checkpoints)[-keep_last:], *select_best(checkpoints, keep_best)]
        }
        obsolete = [path for path in _list_checkpoint_paths(folder) if path not in retained and _is_readable(path)]
        renamed_paths = [path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")) for path in obsolete]
        # Nothing is taken out of a folder whose own going could be undone by a power cut.
        sync_dir(folder)
        for path in renamed_paths:
            shutil.rmtree(path, ignore_errors=True)


def _is_readable(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except RunError:
        return False
    return True


def select_scheduled(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Those that the recipe's steps or minutes asked for, and the newest whatever it is."""
    return [checkpoint for checkpoint in checkpoints[:-1] if checkpoint.scheduled] + checkpoints[-1:]


def select_best(checkpoints: list[Checkpoint], count: int) -> list[Checkpoint]:
    """The best of those that were validated, the best first; the later of equals first."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.metric is not None]
    return sorted(validated, key=lambda checkpoint: (checkpoint.metric or 0.0, checkpoint.step), reverse=True)[:count]


def average_checkpoints(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of their weights."""
    if not checkpoints:
        raise RunError("there is no checkpoint to average")
    return average_weights([checkpoint.weights() for checkpoint in checkpoints])
