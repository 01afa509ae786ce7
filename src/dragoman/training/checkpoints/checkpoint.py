"""Checkpoints: checksummed folders from which a run resumes exactly.

    checkpoints/step-00001000/  model.safetensors  optimizer.safetensors  ema.safetensors  state.json  manifest.json

A checkpoint is written under another name, synced, read back, and committed by one rename to a name that never existed: a step
that is saved again becomes step-00001000-2. Older checkpoints are removed after that, each by a rename first. At every instant,
and after a power cut at any, the run resumes from the newest folder whose checksums hold. Resuming lists the folders, so no
pointer file can be wrong. Folders whose checksums do not hold are set aside.
"""

from __future__ import annotations

import json
import math
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

from dragoman.data.dataloader import DataPosition
from dragoman.errors import RunError, WriteError
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import atomic_dir, sync_dir, to_write_error, verify_checksums, write_with_digest
from dragoman.model.weights import average_weights

MODEL_FILE, OPTIMIZER_FILE, EMA_FILE, STATE_FILE = (
    "model.safetensors",
    "optimizer.safetensors",
    "ema.safetensors",
    "state.json",
)

CHECKPOINT_NAME = re.compile(r"step-\d{8,}(-[1-9]\d*)?")
TENSOR_OVERHEAD_BYTES = 256
"""Approximate bytes of a tensor in a file beside its numbers."""


@dataclass(frozen=True)
class TrainerState:
    """State of a run beside its tensors: the few numbers that resuming needs."""

    step: int = 0
    data_position: DataPosition = field(default_factory=DataPosition)
    minutes: float = 0.0
    """Minutes of training steps, over all parts of the run."""
    target_tokens: int = 0
    nll_since_log: float = 0.0
    tokens_since_log: int = 0
    first_nll: float | None = None
    """Loss of the first applied step in nats per token; it and `logged_nll` show whether the run has diverged."""
    logged_nll: float | None = None
    """Training loss of the last line of the metrics log."""
    best: float | None = None
    """The best metric so far; higher is better."""
    best_nll: float | None = None
    """Validation loss of the best step, which decides between equal metrics."""
    best_step: int = 0
    validations_since_best: int = 0
    last_validated_step: int = 0
    skipped_steps: int = 0
    """Steps that changed no weight, because of a non-finite number or a gradient spike."""
    consecutive_skips: int = 0
    num_rollbacks: int = 0
    """Number of times that the run was rolled back to a checkpoint."""
    recent_rollbacks: int = 0
    """Rollbacks since the run last recovered."""
    applied_steps_at_rollback: int = 0
    """Steps that were not skipped, up to the last rollback."""
    steps_to_recover: int = 0
    """Steps after the last rollback, without skipped ones, from which the run has recovered."""
    rollback_step: int | None = None
    """Step of the checkpoint that the last rollback restored."""
    grad_norms: tuple[float, ...] = ()
    """Gradient norms of the last steps, for the detection of spikes."""
    infeasible_pairs: int = 0
    """Pairs of all steps that a CTC decoder could not learn, because it has too few positions for their targets."""
    flops: float = 0.0
    data_wait_minutes: float = 0.0
    """The part of `minutes` that was spent waiting for batches."""


@dataclass(frozen=True)
class StateTensors:
    """All tensors that training changes, whole and by name. optimizer: as `flatten_optimizer` returns it"""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    ema_weights: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, with its state in memory and its tensors in files."""

    path: Path
    trainer_state: TrainerState
    recipe: dict[str, Any]
    metric: float | None
    """The metric of the validation at this step, higher is better; None if there was no validation."""
    data_digests: dict[str, str]
    """SHA-256 of the prepared files, which define the token ids of these weights."""
    scheduled: bool
    """True if steps or minutes asked for it. Others are kept while they are the newest or among the best."""
    compute_plan: dict[str, str] = field(default_factory=dict)
    """Precision and kernels of the run, as `ComputePlan.to_dict` returns them."""
    nll: float | None = None
    """Validation loss at this step in nats per token, which decides between equal metrics."""

    @property
    def step(self) -> int:
        return self.trainer_state.step

    @property
    def applied_steps(self) -> int:
        """Steps up to this one that were not skipped. Checkpoints with the same number have the same weights."""
        return self.trainer_state.step - self.trainer_state.skipped_steps

    def weights(self) -> dict[str, Tensor]:
        """Load the weights."""
        return load_tensors(self.path / MODEL_FILE)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Load the optimizer's state."""
        return load_tensors(self.path / OPTIMIZER_FILE)

    def ema_weights(self) -> dict[str, Tensor] | None:
        """Load the moving average of the weights; None if the run keeps none."""
        return load_tensors(self.path / EMA_FILE) if (self.path / EMA_FILE).exists() else None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return copies of the tensors of a file."""
    # The tensors are copied out of the mapped file. The alignment of a tensor changes the summation order of a matrix product,
    # and so its last bit. The file may also be removed while its tensors are in use.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def save_checkpoint(
    folder: Path,
    tensors: StateTensors,
    *,
    trainer_state: TrainerState,
    recipe: Mapping[str, Any],
    metric: float | None,
    data_digests: Mapping[str, str],
    scheduled: bool,
    compute_plan: Mapping[str, str] | None = None,
    nll: float | None = None,
) -> Checkpoint:
    """Save a checkpoint and return it.

    Raises WriteError if it cannot be written. Then nothing has changed, and the next one may be saved.
    """
    remove_unfinished(folder)
    try:
        path = _new_path(folder, trainer_state.step)
    except RunError as error:
        raise WriteError(str(error)) from None
    groups = {MODEL_FILE: tensors.weights, OPTIMIZER_FILE: tensors.optimizer, EMA_FILE: tensors.ema_weights or {}}
    groups = {name: group for name, group in groups.items() if name != EMA_FILE or tensors.ema_weights is not None}
    checkpoint = Checkpoint(
        path, trainer_state, dict(recipe), metric, dict(data_digests), scheduled, dict(compute_plan or {}), nll
    )
    state = {name: value for name, value in asdict(checkpoint).items() if name != "path"}
    state_bytes = json.dumps(state, indent=1).encode()
    size = len(state_bytes) + sum(
        tensor.numel() * tensor.element_size() + TENSOR_OVERHEAD_BYTES for group in groups.values() for tensor in group.values()
    )
    digests: dict[str, str] = {}
    with atomic_dir(path, size=size, digests=digests) as partial_dir:
        for name, group in groups.items():
            digests[name] = save_tensors(partial_dir / name, group)
        digests[STATE_FILE] = write_with_digest(partial_dir / STATE_FILE, [state_bytes])
    return checkpoint


def _new_path(folder: Path, step: int) -> Path:
    """Return a path that does not exist: after step-00001000 come step-00001000-2, step-00001000-3, …"""
    save_counts = [
        save_count
        for path in _list_checkpoint_paths(folder)
        for saved_step, save_count in [_parse_name(path)]
        if saved_step == step
    ]
    return folder / (f"step-{step:08d}-{max(save_counts) + 1}" if save_counts else f"step-{step:08d}")


def _parse_name(path: Path) -> tuple[int, int]:
    """Return the step of a checkpoint's name, and the number of its save."""
    _, step, *suffix = path.name.split("-")
    return int(step), int(suffix[0]) if suffix else 1


def _list_checkpoint_paths(folder: Path) -> list[Path]:
    """Return all paths with the name of a checkpoint, oldest first. Raise RunError if the folder cannot be read."""
    try:
        return sorted((path for path in folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), key=_parse_name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read: {error.strerror or error}", code="run-damaged") from None


def flatten_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return Adam's state as named tensors: `name/exp_avg`, `name/exp_avg_sq`, `name/step`.

    names: parameter names by their index in the optimizer
    """
    state = optimizer.state_dict()["state"]
    return {f"{names[index]}/{key}": value for index, entry in state.items() for key, value in entry.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
    """Load the state that `flatten_optimizer` returned."""
    indices = {name: index for index, name in names.items()}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, state_key = key.rpartition("/")
        state.setdefault(indices[name], {})[state_key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the state of a checkpoint without its tensors. Raise RunError if it cannot be read; checksums are not verified."""
    try:
        document = json.loads((path / STATE_FILE).read_bytes())
        values = document["trainer_state"]
        trainer_state = TrainerState(
            **{
                **values,
                "data_position": DataPosition(**values["data_position"]),
                "grad_norms": tuple(values["grad_norms"]),
            }
        )
        return Checkpoint(path, **{**document, "trainer_state": trainer_state})
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            f"{path / STATE_FILE}: this version of dragoman cannot read it; resume with the version that wrote it",
            code="checkpoint-damaged",
        ) from None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints whose state can be read, oldest first. Of a step that was saved again, the last one counts."""
    readable = [read_checkpoint(path) for path in _list_checkpoint_paths(folder) if _is_readable(path)]
    return list({checkpoint.step: checkpoint for checkpoint in readable}.values())


def read_all_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all checkpoints like `list_checkpoints`. Raise RunError if one cannot be read."""
    by_step = {}
    for path in _list_checkpoint_paths(folder):
        try:
            checkpoint = read_checkpoint(path)
        except RunError:
            if path.exists():  # a running run may have pruned it meanwhile
                raise
        else:
            by_step[checkpoint.step] = checkpoint
    return list(by_step.values())


def quarantine_unreadable(folder: Path, notice: Callable[[str], None], consequence: str) -> None:
    """Set aside the checkpoints whose state is damaged. Raise RunError for one of another version."""
    for path in _list_checkpoint_paths(folder):
        if not _is_readable(path) and not quarantine_if_damaged(path, notice, consequence):
            read_checkpoint(path)


def find_latest_checkpoint(
    folder: Path, notice: Callable[[str], None], is_eligible: Callable[[Checkpoint], bool] = lambda _: True
) -> Checkpoint | None:
    """Return the newest eligible checkpoint whose checksums hold. Newer ones without are set aside, each with a notice."""
    for path in reversed(_list_checkpoint_paths(folder)):
        if quarantine_if_damaged(path, notice, "the run resumes from the checkpoint before it"):
            continue
        if is_eligible(checkpoint := read_checkpoint(path)):
            return checkpoint
    return None


def quarantine_if_damaged(path: Path, notice: Callable[[str], None], consequence: str) -> bool:
    """Rename a checkpoint whose checksums do not hold, with a notice, and return whether it was damaged.

    consequence: end of the notice

    Raises RunError if the checksums cannot be verified: the folder cannot be read now, or another version wrote it. Then it
    keeps its name.
    """
    try:
        verify_checksums(path, _DamagedCheckpointError, unreadable_type=RunError)
    except _DamagedCheckpointError as error:
        quarantine_path = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
        try:
            path.rename(quarantine_path)
        except OSError as rename_error:
            raise to_write_error(path, rename_error) from None
        notice(f"{error}; it was set aside as {quarantine_path.name}, and {consequence}")
        return True
    return False


class _DamagedCheckpointError(RunError):
    """A checksum does not hold."""


def remove_unfinished(folder: Path) -> None:
    """Remove the hidden folders that a killed run left while it wrote or removed a checkpoint."""
    with suppress(OSError):
        for path in folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)


def prune_checkpoints(folder: Path, *, keep_last: int, keep_best: int) -> None:
    """Remove all checkpoints but the newest scheduled ones and the best ones.

    A checkpoint that cannot be removed now stays until the next call. One that cannot be read is never removed.
    """
    with suppress(RunError, OSError):
        checkpoints = list_checkpoints(folder)
        retained = {
            checkpoint.path
            for checkpoint in [*select_scheduled(checkpoints)[-keep_last:], *select_best(checkpoints, keep_best)]
        }
        obsolete = [path for path in _list_checkpoint_paths(folder) if path not in retained and _is_readable(path)]
        renamed_paths = [path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")) for path in obsolete]
        # A power cut could undo the renames, so they are synced before any file is removed.
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
    """Return the scheduled checkpoints and the newest one."""
    return [checkpoint for checkpoint in checkpoints[:-1] if checkpoint.scheduled] + checkpoints[-1:]


def rank_validation(metric: float | None, nll: float | None) -> tuple[float, float]:
    """Return the rank of a validation, higher is better: by its metric, and among equal metrics by its loss.

    Early stopping and the choice of the best checkpoint follow this order. Of equals, the earlier one is better. A metric such
    as BLEU is 0 for the first validations of a model that learns, and its loss falls.
    """
    return -math.inf if metric is None else metric, -math.inf if nll is None else -nll


def select_best(checkpoints: list[Checkpoint], count: int) -> list[Checkpoint]:
    """Return the best validated checkpoints by `rank_validation`, the best first."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.metric is not None]
    # The sort is stable, and the checkpoints come in the order of their steps.
    return sorted(validated, key=lambda item: rank_validation(item.metric, item.nll), reverse=True)[:count]


def average_checkpoints(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """Return the mean of the weights. Raise RunError if there is no checkpoint."""
    if not checkpoints:
        raise RunError("no checkpoint to average; train the run first", code="checkpoint-not-found")
    return average_weights([checkpoint.weights() for checkpoint in checkpoints])
