"""Reliability of checkpoints and runs against kills, power cuts, full and failing disks, and flipped bits.

The promises have numbers: R1 exact resumption, R2 kills, R3 power cuts, R4 damage, R5 full disks, R6 failing disks and other
errors, R11 no leaks, R14 requests to stop.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import compress, count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import MakeRecipe
from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.dataloader import DataPosition
from dragoman.errors import InterruptedRun, WriteError
from dragoman.io.storage import MANIFEST_FILE, lock_dir
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    StateTensors,
    TrainerState,
    find_latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from dragoman.training.monitoring.events import StepDone, TrainingEvent
from dragoman.training.run import train
from dragoman.training.trainer import Trainer
from expected_errors import raises_code
from tiny_runs import NO_DROPOUT
from trainers import new_trainer, read_metrics

pytestmark = pytest.mark.usefixtures("one_core")

SLOW = pytest.mark.slow
# Folders of the modules that the child processes import: this one, and the helpers.
PYTHON_PATHS = (Path(__file__).parent, Path(__file__).parents[1])


# --- checkpoints with a recognizable value ----------------------------------------------------------------------------


def tensors(value: int) -> StateTensors:
    """Return weights, optimizer state and moving average of a model of 12 numbers, which all depend on `value`."""
    weights = {"a": torch.full((2, 5), float(value)), "b": torch.full((2,), -float(value))}
    moments = {f"{name}/{moment}": weight + 1 for name, weight in weights.items() for moment in ("exp_avg", "exp_avg_sq")}
    steps = {f"{name}/step": torch.tensor(float(value)) for name in weights}
    return StateTensors(weights, moments | steps, weights)


def save(folder: Path, step: int, value: int | None = None, *, metric: float | None = None) -> Checkpoint:
    value = step if value is None else value
    trainer_state = TrainerState(step=step, target_tokens=value, grad_norms=(0.1 * value, value / 3))
    data_digests = {"train-00000.arrow": "0" * 64}
    return save_checkpoint(
        folder,
        tensors(value),
        trainer_state=trainer_state,
        recipe={"name": "x"},
        metric=metric,
        data_digests=data_digests,
        scheduled=True,
        compute_plan={},
        nll=None,
    )


def save_and_prune(folder: Path, step: int, value: int | None = None) -> None:
    """Save a checkpoint, and then remove all others."""
    save(folder, step, value)
    prune_checkpoints(folder, keep_last=1, keep_best=0)


def read_value(folder: Path, notices: list[str] | None = None) -> int | None:
    """Return the value of the newest checkpoint, after a check of all of its numbers."""
    checkpoint = find_latest_checkpoint(folder, (notices if notices is not None else []).append)
    if checkpoint is None:
        return None
    value = checkpoint.trainer_state.target_tokens
    assert checkpoint.trainer_state.grad_norms == (0.1 * value, value / 3)
    averages = checkpoint.ema_weights()
    assert averages is not None
    groups = (checkpoint.weights(), checkpoint.optimizer_state(), averages)
    for group, expected in zip(groups, vars(tensors(value)).values(), strict=True):
        assert group.keys() == expected.keys()
        assert all(torch.equal(group[name], expected[name]) for name in expected)
    return value


# Each of the four files is created, gets its mode, a header or text, and is synced; all files together have 10 tensors. The
# manifest is created, written and synced. The folder is made, synced and renamed, and its parent folder is synced.
OPERATIONS = 4 * 4 + 10 + 3 + 4


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a disk whose operations are recorded -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """Operation that changes a disk: create, write, sync, mkdir, chmod, rename, unlink or rmdir."""

    kind: str
    path: Path
    to: Path | None = None
    held: bytes = b""


class Disk:
    """Recorder of every operation before it happens. Subclasses decide its outcome."""

    def __init__(self) -> None:
        self.done: list[Operation] = []
        self.lock = threading.Lock()

    def allow(self, operation: Operation) -> int:
        """Return how many of its bytes are written, or raise an error instead."""
        return len(operation.held)

    def operate(self, operation: Operation) -> int:
        with self.lock:
            allowed = self.allow(operation)
            self.done.append(replace(operation, held=operation.held[:allowed]))
            return allowed


class RecordedFile:
    """File whose writes are recorded by a disk."""

    def __init__(self, stream: Any, path: Path, disk: Disk) -> None:
        self.stream, self.path, self.disk = stream, path, disk

    def write(self, held: bytes | memoryview) -> int:
        allowed = self.disk.operate(Operation("write", self.path, held=bytes(held)))
        return int(self.stream.write(held[:allowed]))

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def __enter__(self) -> RecordedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


@contextmanager
def recording(disk: Disk) -> Iterator[None]:
    """Send every call that changes a disk through `disk` first."""
    open_file = io.open

    def path_of_descriptor(number: int, name: Any = "") -> Path:
        return Path(os.readlink(f"/proc/self/fd/{number}"), name)

    def recorded_open(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set("wxa+") & set(mode):
            return open_file(path, mode, *arguments, **options)
        assert options.get("buffering", arguments[0] if arguments else -1) == 0, (
            f"{path}: a buffer would hide when its bytes are written"
        )
        disk.operate(Operation("create", Path(path)))
        return RecordedFile(open_file(path, mode, *arguments, **options), Path(path), disk)

    def recorded_call(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_recorded(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            operation_path = Path(path) if dir_fd is None else path_of_descriptor(dir_fd, path)
            disk.operate(Operation(kind, operation_path, to=Path(arguments[0]) if kind == "rename" else None))
            return call(path, *arguments, **(options if dir_fd is None else {**options, "dir_fd": dir_fd}))

        return call_recorded

    def recorded_fsync(descriptor: int) -> None:
        disk.operate(Operation("sync", path_of_descriptor(descriptor)))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "chmod", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, recorded_call(name, getattr(os, name)))
        patch.setattr(os, "fsync", recorded_fsync)
        patch.setattr(io, "open", recorded_open)
        yield


# Values of the checkpoints at steps 1, 2, …, before the next save; 0 means none. The last case saves a step again.
EXISTING_VALUES = {"the next": [11, 12], "the first": [], "a gap": [11, 0, 13], "again": [11, 12, 13, 14]}
WITH_EXISTING = pytest.mark.parametrize(
    "values", [pytest.param(values, id=name, marks=[SLOW] * (name != "the next")) for name, values in EXISTING_VALUES.items()]
)


def save_existing(folder: Path, values: Sequence[int]) -> int:
    """Save checkpoints of these values, and return the next step to save."""
    folder.mkdir()
    for step, value in enumerate(values, start=1):
        if value:
            save(folder, step, value)
    return 4


# --- R2: a process ends at any operation --------------------------------------------------------------------------------


class InterruptingDisk(Disk):
    """Disk that raises an error instead of the operation after the first `after`, once or for good."""

    def __init__(self, after: int, error: BaseException, *, for_good: bool = False) -> None:
        super().__init__()
        self.after, self.error, self.for_good = after, error, for_good
        self.seen = 0

    def allow(self, operation: Operation) -> int:
        self.seen += 1
        if self.seen == self.after + 1 or (self.for_good and self.seen > self.after):
            raise self.error
        return len(operation.held)


@WITH_EXISTING
def test_r2_ctrl_c_anywhere_leaves_one_state(values: list[int], tmp_path: Path) -> None:
    step = save_existing(tmp_path / "before", values)
    for after in count():
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / f"{after}"))
        disk = InterruptingDisk(after, KeyboardInterrupt())
        saved = False
        with recording(disk), suppress(KeyboardInterrupt):
            save(folder, step, 99)
            saved = True
            prune_checkpoints(folder, keep_last=1, keep_best=0)
        if not saved:
            assert names(folder) == names(tmp_path / "before")
        assert read_value(folder) == (99 if saved else max(values, default=None))
        save_and_prune(folder, step + 1, 100)
        assert names(folder) == [f"step-{step + 1:08d}"]
        shutil.rmtree(folder)
        if disk.seen <= after:
            break
    assert after > 22


# --- R3: power cuts --------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """File with its written and its synced bytes, or folder with its synced entries."""

    entries: dict[str, Node] | None = None
    written: bytes = b""
    synced: bytes = b""


@dataclass
class Changes:
    """Change of the names in a folder by one operation."""

    folder: Node
    gone: str | None = None
    come: tuple[str, Node] | None = None


@dataclass
class Platter:
    """Model of a disk on which only synced operations are certain. Names and bytes are synced separately."""

    root: Path
    top: Node = field(default_factory=lambda: Node(entries={}))
    live: dict[Path, Node] = field(default_factory=dict)
    pending: list[Changes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live[self.root] = self.top
        for path in sorted(self.root.rglob("*")):
            held = path.read_bytes() if path.is_file() else b""
            node = Node({} if path.is_dir() else None, held, held)
            entries = self.live[path.parent].entries
            assert entries is not None
            entries[path.name] = self.live[path] = node

    def operate(self, operation: Operation) -> None:
        parent = self.live[operation.path.parent] if operation.path != self.root else self.top
        match operation.kind:
            case "create" | "mkdir":
                self.live[operation.path] = Node({} if operation.kind == "mkdir" else None)
                self.pending.append(Changes(parent, come=(operation.path.name, self.live[operation.path])))
            case "write":
                self.live[operation.path].written += operation.held
            case "rename":
                assert operation.to is not None
                assert operation.to not in self.live
                moved = {path: node for path, node in self.live.items() if path.is_relative_to(operation.path)}
                for path, node in moved.items():
                    del self.live[path]
                    self.live[operation.to / path.relative_to(operation.path)] = node
                self.pending.append(Changes(parent, gone=operation.path.name, come=(operation.to.name, moved[operation.path])))
            case "unlink" | "rmdir":
                del self.live[operation.path]
                self.pending.append(Changes(parent, gone=operation.path.name))
            case "sync" if self.live[operation.path].entries is None:
                self.live[operation.path].synced = self.live[operation.path].written
            case "sync":
                synced_changes = [change for change in self.pending if change.folder is self.live[operation.path]]
                self.pending = [change for change in self.pending if change.folder is not self.live[operation.path]]
                for change in synced_changes:
                    assert change.folder.entries is not None
                    apply(change, change.folder.entries)
            case "chmod":
                pass
            case unknown_kind:
                raise AssertionError(unknown_kind)

    def read(
        self, changes: Sequence[Changes], outcome: str, node: Node | None = None, prefix: str = ""
    ) -> dict[str, bytes | None]:
        """Return files and folders by path, if these changes of names and this outcome of bytes reached the disk."""
        node = node or self.top
        entries = dict(node.entries or {})
        for change in changes:
            if change.folder is node:
                apply(change, entries)
        contents: dict[str, bytes | None] = {}
        for name, inner in entries.items():
            if inner.entries is None:
                contents[prefix + name] = surviving_bytes(inner, outcome)
            else:
                contents |= {prefix + name: None} | self.read(changes, outcome, inner, f"{prefix}{name}/")
        return contents


def apply(change: Changes, entries: dict[str, Node]) -> None:
    if change.gone is not None:
        entries.pop(change.gone, None)
    if change.come is not None:
        entries[change.come[0]] = change.come[1]


def surviving_bytes(node: Node, outcome: str) -> bytes:
    unsynced = node.written[len(node.synced) :]
    match outcome:
        case "lost":
            return node.synced
        case "torn":
            return node.synced + unsynced[: len(unsynced) // 2] + bytes(len(unsynced) - len(unsynced) // 2)
        case _:
            return node.written


def iter_possible_disks(platter: Platter, rng: random.Random) -> Iterator[dict[str, bytes | None]]:
    """Yield disks that a power cut may leave: some unsynced changes of names, and unsynced bytes lost, torn or whole."""
    pending = platter.pending
    choices = [pending[:length] for length in range(len(pending) + 1)]
    choices += [[change for change in pending if rng.random() < 0.5] for _ in range(8 if pending else 0)]
    for changes in choices:
        for outcome in ("lost", "torn", "whole"):
            yield platter.read(changes, outcome)


def find_power_cut_losses(
    base: Path, operations: Sequence[Operation], folder: Path, *, old: int | None, new: int, saved: int
) -> tuple[int, list[str]]:
    """Return the number of disks that a power cut at any operation may leave, and the errors on them.

    Disks that differ only in hidden folders count once.

    saved: number of operations after which the new state must be there
    """
    platter = Platter(base)
    rng = random.Random(1)
    wrong = []
    values: dict[frozenset[tuple[str, bytes | None]], int | None] = {}
    for done, operation in enumerate([None, *operations]):
        if operation is not None:
            platter.operate(operation)
        for disk in iter_possible_disks(platter, rng):
            visible = {name: held for name, held in disk.items() if not name.startswith(".")}
            key = frozenset(visible.items())
            if key not in values:
                values[key] = read_value_on(visible, folder)
            if values[key] not in ((new,) if done >= saved else (old, new)):
                wrong.append(f"after {done} operations: {values[key]}")
    return len(values), wrong


def read_value_on(disk: dict[str, bytes | None], folder: Path) -> int | None:
    """Write a disk into a folder, and return the value of its newest checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, held in disk.items():
        if held is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).write_bytes(held)
    return read_value(folder)


@WITH_EXISTING
def test_r3_power_cut_leaves_an_intact_checkpoint(values: list[int], tmp_path: Path) -> None:
    """Operations that are not synced may reach the disk or not, and in any order."""
    base = tmp_path / "base"
    step = save_existing(base, values)
    disk = Disk()
    work = Path(shutil.copytree(base, tmp_path / "work"))
    with recording(disk):
        save(work, step, 99)
        saved = len(disk.done)
        prune_checkpoints(work, keep_last=1, keep_best=0)
    assert names(work) in ([f"step-{step:08d}"], [f"step-{step:08d}-2"])

    def find_losses(operations: Sequence[Operation], saved: int) -> tuple[int, list[str]]:
        moved = [
            replace(
                operation,
                path=base / operation.path.relative_to(work),
                to=operation.to and base / operation.to.relative_to(work),
            )
            for operation in operations
        ]
        return find_power_cut_losses(base, moved, tmp_path / "disk", old=max(values, default=None), new=99, saved=saved)

    disks, wrong = find_losses(disk.done, saved)
    assert wrong == []
    assert disks > 1 + len(values)
    # Without the syncs inside of the checkpoint, or without those of its parent folder, the model finds losses.
    for is_parent in (False, True):
        synced = [operation.kind != "sync" or (operation.path == work) != is_parent for operation in disk.done]
        assert find_losses(list(compress(disk.done, synced)), sum(synced[:saved]))[1] != []


# --- R4: damage after the save --------------------------------------------------------------------------------


def test_r4_damaged_checkpoint_falls_back_to_previous(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    for path in sorted((tmp_path / "step-00000003").iterdir()):
        folder = Path(shutil.copytree(tmp_path, tmp_path.parent / f"damaged-{path.name}"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (folder / "step-00000003" / path.name).write_bytes(content)
        notices: list[str] = []
        assert read_value(folder, notices) == 2
        (notice,) = notices
        assert notice.startswith(f"{folder / 'step-00000003'}/")
        assert path.name in notice.partition(": ")[0] or path.name == MANIFEST_FILE  # the file of a changed checksum
        assert notice.endswith("and the run resumes from the checkpoint before it")


# --- R5: a disk that fills -------------------------------------------------------------------------------------------------


def test_r5_needed_space_is_checked_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The needed space is a tenth more than the tensors, and at least the size of the files."""
    numbers = 100_000
    weights = {"a": torch.zeros(numbers)}
    moments = {"a/exp_avg": torch.zeros(numbers, dtype=torch.float64)}
    disk = Disk()

    def save_many(step: int) -> Checkpoint:
        with recording(disk):
            return save_checkpoint(
                tmp_path,
                StateTensors(weights, moments),
                trainer_state=TrainerState(step=step),
                recipe={},
                metric=None,
                data_digests={},
                scheduled=True,
            )

    first = save_many(1)
    disk.done.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(WriteError) as caught:
        save_many(2)
    assert disk.done == []
    assert caught.value.needed_bytes == pytest.approx(1.1 * numbers * (4 + 8), rel=0.01)
    assert sum(path.stat().st_size for path in first.path.iterdir()) < (caught.value.needed_bytes or 0)
    reason = f"the disk is full (1.3 MiB needed, 1.0 MiB free in {tmp_path}); delete files to free space"
    message = f"{tmp_path / 'step-00000002'}: {reason}"
    assert str(caught.value) == message


# --- R6: a failing disk, and other errors --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", ["EIO", "EDQUOT", "ENOSPC"])
def test_r6_error_at_any_operation_is_one_line(name: str, for_good: bool, tmp_path: Path) -> None:
    code = getattr(errno, name)
    save(tmp_path, 1)
    num_errors = 0
    for after in count():
        step = after + 2
        disk = InterruptingDisk(after, OSError(code, os.strerror(code)), for_good=for_good)
        line = None
        with recording(disk):
            try:
                save_and_prune(tmp_path, step)
            except WriteError as error:
                line = str(error)
        reasons = {"ENOSPC": "the disk is full (", "EDQUOT": "the quota is used up ("}
        reason = reasons.get(name, f"cannot be written: {os.strerror(code)}")
        if line is not None:
            num_errors += 1
            assert line.startswith(f"{tmp_path / f'step-{step:08d}'}: {reason}")
            assert "\n" not in line
            if not for_good:
                assert names(tmp_path) == [f"step-{step - 1:08d}"]
        notices: list[str] = []
        assert read_value(tmp_path, notices) in ((step,) if line is None else (step - 1, step))
        assert notices == []
        save_and_prune(tmp_path, step)
        assert read_value(tmp_path) == step
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        save(tmp_path, step)
        if disk.seen <= after:
            break
    assert num_errors == OPERATIONS  # a failed removal of older checkpoints is no error
    assert after > num_errors


def test_r6_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def fail(_: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        with raises_code("write-failed", "Stale file handle"):
            save(tmp_path, 3)
        with raises_code("run-damaged", "Stale file handle"):
            read_value(tmp_path)
        prune_checkpoints(tmp_path, keep_last=1, keep_best=0)
    assert read_value(tmp_path) == 2
    save_and_prune(tmp_path, 3)
    assert names(tmp_path) == ["step-00000003"]


def test_r6_clock_jumps_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names decide which checkpoint is the newest, not the times of the files."""
    clock = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for step in (9, 10, 99_999_999, 100_000_000):
        path = save(tmp_path, step).path
        for entry in (path, *path.iterdir()):
            os.utime(entry, (10**9 - step, 10**9 - step))
        assert read_value(tmp_path) == step
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [9, 10, 99_999_999, 100_000_000]
    prune_checkpoints(tmp_path, keep_last=2, keep_best=0)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]


# --- checkpoint folders -----------------------------------------------------------------------------------------------


def test_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 7, 70)
    save(tmp_path, 7, 71)
    assert names(tmp_path) == ["step-00000007", "step-00000007-2"]
    assert read_value(tmp_path) == 71
    assert [(checkpoint.step, checkpoint.path.name) for checkpoint in list_checkpoints(tmp_path)] == [(7, "step-00000007-2")]
    assert [save(tmp_path, 7, value).path.name for value in range(72, 81)][-1] == "step-00000007-11"
    assert read_value(tmp_path) == 80
    prune_checkpoints(tmp_path, keep_last=5, keep_best=5)
    assert names(tmp_path) == ["step-00000007-11"]
    save(tmp_path, 8)
    assert read_value(tmp_path) == 8


def test_other_folders_are_neither_read_nor_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in ("step-00000001-backup", "step-00000002 copy", "step-2", "step-00000009-0", "notes"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    before = names(tmp_path)
    (tmp_path / "step-00000002 copy" / "state.json").write_text("")
    notices: list[str] = []
    assert read_value(tmp_path, notices) == 1
    assert notices == []
    save_and_prune(tmp_path, 2)
    assert names(tmp_path) == sorted({*before, "step-00000002"} - {"step-00000001"})


def test_loaded_tensors_own_aligned_memory(tmp_path: Path) -> None:
    """Tensors are at multiples of 64 bytes, as torch allocates them, because the alignment changes float32 sums."""
    checkpoint = save(tmp_path, 3)
    loaded = [
        *checkpoint.weights().values(),
        *checkpoint.optimizer_state().values(),
        *(checkpoint.ema_weights() or {}).values(),
    ]
    assert [tensor.data_ptr() % 64 for tensor in loaded] == [0] * 10
    for path in checkpoint.path.iterdir():
        path.write_bytes(b"")
    assert torch.equal(loaded[0], torch.full((2, 5), 3.0))


def test_trainer_state_is_restored_exactly(tmp_path: Path) -> None:
    rng = random.Random(0)
    norms = tuple(rng.uniform(0, 1) * 10.0 ** rng.randint(-300, 300) for _ in range(128))
    trainer_state = TrainerState(
        step=3, data_position=DataPosition(2, 5), minutes=0.1 + 0.2, target_tokens=2**60, nll_since_log=1 / 3,
        tokens_since_log=9, best=-1e-17, best_step=2, validations_since_best=1, skipped_steps=4, consecutive_skips=2,
        num_rollbacks=1,
        grad_norms=(*norms, 5e-324, float("inf")),
        flops=1.2345678901234567e21, data_wait_minutes=1e-9,
    )  # fmt: skip
    path = save_checkpoint(
        tmp_path,
        StateTensors({}, {}),
        trainer_state=trainer_state,
        recipe={},
        metric=0.3,
        data_digests={},
        scheduled=False,
    ).path
    checkpoint = read_checkpoint(path)
    assert checkpoint.trainer_state == trainer_state
    assert isinstance(checkpoint.trainer_state.grad_norms, tuple)
    assert (checkpoint.metric, checkpoint.scheduled, checkpoint.ema_weights()) == (0.3, False, None)


# --- runs ---------------------------------------------------------------------------------------------------------------

# Settings with dropout, three batches in a step, and an epoch that ends in the middle of a step.
EVENTFUL = (
    "model.residual_dropout=0.1", "model.attention_dropout=0.1", "model.activation_dropout=0.1", "model.embedding_dropout=0.1",
    "training.batch_tokens=40", "training.batches_per_update=3", "training.ema_decay=0.9", "training.max_steps=60",
    "training.validate_every_steps=12", "training.num_validation_translations=0", "training.log_every_steps=3",
    "training.checkpoint_every_steps=1000000",
)  # fmt: skip


def digest(*groups: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the bytes of these tensors and of their names."""
    sha256 = hashlib.sha256()
    for group in groups:
        for name in sorted(group):
            sha256.update(name.encode() + group[name].detach().contiguous().numpy().tobytes())
    return sha256.hexdigest()


def digest_of(checkpoint: Checkpoint) -> str:
    return digest(checkpoint.weights(), checkpoint.optimizer_state(), checkpoint.ema_weights() or {})


class DigestRecorder:
    """Callback that records the digest of a run's state after each step, and stops the run if asked for."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.trainer: Trainer | None = None
        self.stop_after = stop_after
        self.digests: list[str] = []

    def __call__(self, event: TrainingEvent) -> None:
        if not isinstance(event, StepDone):
            return
        assert self.trainer is not None
        state = self.trainer.train_state.gather_state()
        assert state.ema_weights is not None
        self.digests.append(digest(state.weights, state.optimizer, state.ema_weights))
        if len(self.digests) == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


def newest(recipe: Recipe) -> Checkpoint:
    """Return the newest checkpoint of a run. None may be damaged."""
    checkpoint = find_latest_checkpoint(Path(recipe.run) / "checkpoints", fail)
    assert checkpoint is not None
    return checkpoint


def fail(notice: str) -> None:
    raise AssertionError(notice)


def resume(recipe: Recipe, *, stop_after: int | None = None) -> list[str]:
    """Start or resume a run, and return the digest of its state after each step."""
    recorder = DigestRecorder(stop_after)
    recorder.trainer = new_trainer(recipe, recorder)
    if stop_after is None:
        recorder.trainer.run()
    else:
        with pytest.raises(InterruptedRun):
            recorder.trainer.run()
    return recorder.digests


@SLOW
def test_r1_run_stopped_after_every_step_is_exact(tiny: MakeRecipe, tmp_path: Path) -> None:
    """A run is stopped and resumed 59 times, and resumed to its end from 4 of these steps.

    A run never stops within a step: requests are checked between steps, and a kill leaves the state of the last checkpoint.
    """
    unbroken = resume(tiny(tmp_path / "unbroken", *EVENTFUL))
    assert len(set(unbroken)) == 60
    recipe = tiny(tmp_path / "run", *EVENTFUL)
    copied_steps = sorted(random.Random(1).sample(range(1, 60), 4))
    for step in range(1, 60):
        assert resume(recipe, stop_after=1) == unbroken[step - 1 : step]
        checkpoint = newest(recipe)
        assert (checkpoint.step, digest_of(checkpoint)) == (step, unbroken[step - 1])
        if step in copied_steps:
            shutil.copytree(tmp_path / "run", tmp_path / f"from-{step}")
    assert resume(recipe) == unbroken[-1:]
    assert newest(recipe).trainer_state.data_position.epoch > 5
    expected = read_metrics(tmp_path / "unbroken")
    assert [entry["type"] for entry in expected].count("valid") == 5
    assert read_metrics(tmp_path / "run") == expected
    for step in copied_steps:
        assert resume(tiny(tmp_path / f"from-{step}", *EVENTFUL)) == unbroken[step:]
        assert read_metrics(tmp_path / f"from-{step}") == expected


def test_r6_second_run_in_a_folder_fails(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with lock_dir(tmp_path / "run"), raises_code("folder-locked", "run"):
        train(recipe)
    assert names(tmp_path / "run") == []


# The tests below fork their runs from a process that has imported everything and has no threads, so a start takes 0.1 s.


def run_in_process(task: Callable[..., Any], recipe: Recipe, *words: object) -> Any:
    """Return the result of `task`, a function of this module, in a process of its own."""
    path = Path(recipe.run).with_suffix(".json")
    path.write_text(json.dumps(recipe.model_dump()))
    program = (
        f"import json, test_reliability as tests; "
        f"print(json.dumps(tests.{task.__name__}(tests.read_warm_recipe({str(path)!r}), *{words!r})))"
    )
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(map(str, PYTHON_PATHS)),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read_warm_recipe(path: str) -> Recipe:
    """Return the recipe of a file, after a short run in another folder that initializes all libraries for the children."""
    recipe = recipe_from_dict(json.loads(Path(path).read_bytes()), where=path)
    torch.set_num_threads(1)
    training = recipe.training.model_copy(update={"max_steps": 2})
    run = Path(recipe.run).with_name(f"{Path(recipe.run).name}-before")
    new_trainer(recipe.model_copy(update={"run": str(run), "training": training})).run()
    return recipe


class StepWriter:
    """Callback that writes the number of each step into a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __call__(self, event: TrainingEvent) -> None:
        if isinstance(event, StepDone):
            os.write(self.pipe, f"{event.step}\n".encode())


class Child:
    """Run in a process group of its own, which reports each step."""

    def __init__(self, recipe: Recipe) -> None:
        self.reader, writer = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.setpgid(0, 0)
            os._exit(self.run(recipe, writer))
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.process, self.process)  # parent and child both call it, in any order
        os.close(writer)
        self.output = b""

    @staticmethod
    def run(recipe: Recipe, writer: int) -> int:
        try:
            new_trainer(recipe, StepWriter(writer)).run()
        except InterruptedRun as error:
            return error.exit_code
        except BaseException:
            traceback.print_exc()
            return 99
        return 0

    def wait_for_a_step(self) -> None:
        self.output += os.read(self.reader, 2**16)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process, number)

    def end(self) -> tuple[int, int]:
        """Wait for the end, and return the exit code, negative for a signal, and the last step."""
        _, status = os.waitpid(self.process, 0)
        while part := os.read(self.reader, 2**16):
            self.output += part
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status), int((b"0\n" + self.output).split()[-1])


def train_to_end(recipe: Recipe, run: Path, *, steps: int) -> str:
    """Start or resume a run up to `steps`, and return the digest of its last checkpoint."""
    training = recipe.training.model_copy(update={"max_steps": steps})
    recipe = recipe.model_copy(update={"run": str(run), "training": training})
    assert Child(recipe).end() == (0, steps)
    return digest_of(newest(recipe))


def kill_often(recipe: Recipe, kills: int) -> dict[str, int]:
    """Kill and resume a run that saves every step: half of the kills come during a save, the others at any time."""
    os.fsync = lambda fd: None  # a kill does not lose what the system has received
    rng = random.Random(2)
    run = Path(recipe.run)
    checkpoints = run / "checkpoints"
    counts = {"saving": 0, "elsewhere": 0}
    saved_step = lost_steps = 0
    while min(counts.values()) < kills // 2:
        child = Child(recipe)
        if counts["saving"] < kills // 2 and rng.random() < 0.7:
            for _ in range(rng.randint(1, 3)):
                child.wait_for_a_step()
            while not any(entry.name.startswith(".step-") for entry in os.scandir(checkpoints)):
                pass
            time.sleep(rng.uniform(0, 0.002))
        else:
            time.sleep(rng.uniform(0, 0.3))
        child.signal(signal.SIGKILL)
        code, last_step = child.end()
        assert code == -signal.SIGKILL
        counts["saving" if any(checkpoints.glob(".step-*.partial")) else "elsewhere"] += 1
        checkpoint = find_latest_checkpoint(checkpoints, fail)
        step = checkpoint.step if checkpoint is not None else 0
        assert step >= saved_step
        lost_steps = max(lost_steps, last_step - step)
        saved_step = step
    steps = saved_step + 3
    assert train_to_end(recipe, run, steps=steps) == train_to_end(recipe, run.with_name(f"{run.name}-unbroken"), steps=steps)
    assert not any(checkpoints.glob(".*"))
    return {**counts, "steps": saved_step, "lost": lost_steps}


@SLOW
def test_r2_60_kills_lose_at_most_one_step(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.checkpoint_every_steps=1", "training.max_steps=1000000", "training.validate_every_steps=1000000")
    result = run_in_process(kill_often, tiny(tmp_path / "run", *EVENTFUL, *settings), 60)
    assert min(result["saving"], result["elsewhere"]) >= 30
    assert result["lost"] <= 1
    assert result["steps"] > 5  # the run made progress between the kills


def run_long(recipe: Recipe, every: int) -> dict[str, Any]:
    """Return memory in MiB, open files and threads of a run, measured every `every` steps."""
    measurements: list[tuple[float, int, int]] = []

    def measure(event: TrainingEvent) -> None:
        if isinstance(event, StepDone) and event.step % every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
            measurements.append((pages * os.sysconf("SC_PAGESIZE") / 2**20, files, threads))

    trainer = new_trainer(recipe, measure)
    trainer.run()
    return {"measurements": measurements, "epochs": trainer.epochs()}


@SLOW
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_r11_no_leaks_over_5000_steps(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (
        *NO_DROPOUT, "training.max_steps=5000", "training.checkpoint_every_steps=250", "training.validate_every_steps=250",
        "training.batches_per_update=1",
    )  # fmt: skip
    result = run_in_process(run_long, tiny(tmp_path / "run", *EVENTFUL, *settings), 50)
    memory, files, threads = zip(*result["measurements"], strict=True)
    assert len(memory) == 100
    assert result["epochs"] > 20
    assert max(memory[80:]) < 1.01 * max(memory[20:40])
    assert len(set(files[20:])) == 1
    assert len(set(threads[20:])) == 1
