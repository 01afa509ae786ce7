"""Nothing lost: checkpoints against killed processes, power cuts, full and failing disks, and flipped bits; runs against kills.

The promises have numbers: R1 exact resumption, R2 kills, R3 power cuts, R4 damage, R5 full disks, R6 failing disks and other
weather, R11 no leaks, R14 requests to stop.
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

from conftest import NO_DROPOUT, WORDS, MakeRecipe, reseal
from dragoman.bundle import collect_weights, save_bundle
from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.dataloader import DataPosition
from dragoman.data.tokenization.tokenizer import train_tokenizer
from dragoman.errors import InterruptedRun, OutputError, RunError, WriteError
from dragoman.io.storage import MANIFEST_FILE, lock_dir, verify_checksums
from dragoman.model.factory import build_model
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    TrainerState,
    find_latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from dragoman.training.monitoring.callbacks import NullCallback
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train
from dragoman.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_core")

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power for real; that syncs come where they should is seen by those that watch them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# --- a checkpoint that tells which one it is ----------------------------------------------------------------------------


def tensors(value: int) -> dict[str, dict[str, Tensor]]:
    """Weights, optimiser state and averages of a model of 12 numbers, of which each says `value`."""
    weights = {"a": torch.full((2, 5), float(value)), "b": torch.full((2,), -float(value))}
    moments = {f"{name}/{moment}": weight + 1 for name, weight in weights.items() for moment in ("exp_avg", "exp_avg_sq")}
    steps = {f"{name}/step": torch.tensor(float(value)) for name in weights}
    return {"weights": weights, "optimiser_state": moments | steps, "averages": weights}


def save(folder: Path, step: int, value: int | None = None, *, merit: float | None = None) -> Checkpoint:
    value = step if value is None else value
    progress = TrainerState(step=step, target_tokens=value, grad_norms=(0.1 * value, value / 3))
    corpus = {"train-00000.arrow": "0" * 64}
    return save_checkpoint(
        folder,
        trainer_state=progress,
        recipe={"name": "x"},
        metric=merit,
        data_digests=corpus,
        scheduled=True,
        compute_plan={},
        **tensors(value),
    )


def keep(folder: Path, step: int, value: int | None = None) -> None:
    """Save a checkpoint, and then remove all others."""
    save(folder, step, value)
    prune_checkpoints(folder, keep_last=1, keep_best=0)


def kept(folder: Path, notices: list[str] | None = None) -> int | None:
    """The value of the newest checkpoint, every number of which is looked at."""
    found = find_latest_checkpoint(folder, (notices if notices is not None else []).append)
    if found is None:
        return None
    value = found.trainer_state.target_tokens
    assert found.trainer_state.grad_norms == (0.1 * value, value / 3)
    averages = found.ema_weights()
    assert averages is not None
    for held, wanted in zip((found.weights(), found.optimizer_state(), averages), tensors(value).values(), strict=True):
        assert held.keys() == wanted.keys()
        assert all(torch.equal(held[name], wanted[name]) for name in wanted)
    return value


# Of the four files each is created, given its mode and synced, and gets a header or text, and all together 10 tensors; the
# manifest is created, written and synced; the folder is made, synced, renamed, and synced into the one around it.
OPERATIONS = 4 * 4 + 10 + 3 + 4


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a disk that can be watched -----------------------------------------------------------------------------------------


class PowerCut(BaseException):
    """The end of a process that does not get to say a last word."""


@dataclass(frozen=True)
class Operation:
    """What changes a disk: create, write, sync, mkdir, chmod, rename, unlink or rmdir."""

    kind: str
    path: Path
    to: Path | None = None
    held: bytes = b""


class Disk:
    """Notes every operation before it happens; those of a subclass say what then comes of it."""

    def __init__(self) -> None:
        self.done: list[Operation] = []
        self.lock = threading.Lock()

    def allow(self, operation: Operation) -> int:
        """How many bytes of it are written; raises what is to happen instead."""
        return len(operation.held)

    def operate(self, operation: Operation) -> int:
        with self.lock:
            allowed = self.allow(operation)
            self.done.append(replace(operation, held=operation.held[:allowed]))
            return allowed


class Watched:
    """A file that is written under the eyes of a disk."""

    def __init__(self, stream: Any, path: Path, disk: Disk) -> None:
        self.stream, self.path, self.disk = stream, path, disk

    def write(self, held: bytes | memoryview) -> int:
        allowed = self.disk.operate(Operation("write", self.path, held=bytes(held)))
        return int(self.stream.write(held[:allowed]))

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


@contextmanager
def watching(disk: Disk) -> Iterator[None]:
    """Lead every call that changes a disk over `disk`."""
    open_file = io.open

    def of_descriptor(number: int, name: Any = "") -> Path:
        return Path(os.readlink(f"/proc/self/fd/{number}"), name)

    def opened(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if not set("wxa+") & set(mode):
            return open_file(path, mode, *rest, **more)
        assert more.get("buffering", rest[0] if rest else -1) == 0, f"{path}: a buffer would hide when its bytes are written"
        disk.operate(Operation("create", Path(path)))
        return Watched(open_file(path, mode, *rest, **more), Path(path), disk)

    def instead_of(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            place = Path(path) if dir_fd is None else of_descriptor(dir_fd, path)
            disk.operate(Operation(kind, place, to=Path(rest[0]) if kind == "rename" else None))
            return call(path, *rest, **(more if dir_fd is None else {**more, "dir_fd": dir_fd}))

        return watched

    def synced(descriptor: int) -> None:
        disk.operate(Operation("sync", of_descriptor(descriptor)))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "chmod", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, instead_of(name, getattr(os, name)))
        patch.setattr(os, "fsync", synced)
        patch.setattr(io, "open", opened)
        yield


def committed(disk: Disk) -> bool:
    """Whether a folder got the name of a checkpoint, and lost it no more."""
    names = [(one.path.name, one.to.name) for one in disk.done if one.to is not None]
    taken = [new for _, new in names if new.startswith("step-")]
    return bool(taken) and all(old != taken[0] for old, _ in names)


# The values that stand at step 1, 2, …, before the next is saved; 0 where none does. The last saves a step again.
BEFORE = {"the next": [11, 12], "the first": [], "a gap": [11, 0, 13], "again": [11, 12, 13, 14]}
BEFORE_WHICH = pytest.mark.parametrize(
    "values", [pytest.param(values, id=name, marks=[SLOW] * (name != "the next")) for name, values in BEFORE.items()]
)


def stand(folder: Path, values: Sequence[int]) -> int:
    """Save checkpoints of these values, and return the step that is to be saved next."""
    folder.mkdir()
    for step, value in enumerate(values, start=1):
        if value:
            save(folder, step, value)
    return 4


# --- R2: wherever a process ends ------------------------------------------------------------------------------------------


class Cut(Disk):
    """Does `after` operations; the next is left out, or of a write one half done, and so are all that would follow."""

    def __init__(self, after: int, *, half: bool) -> None:
        super().__init__()
        self.after, self.half = after, half
        self.dead = False

    def allow(self, operation: Operation) -> int:
        if not self.dead and len(self.done) < self.after:
            return len(operation.held)
        if not self.dead and self.half and len(operation.held) > 1:
            self.dead = True
            return len(operation.held) // 2
        self.dead = True
        raise PowerCut


@pytest.mark.parametrize("half", [False, True], ids=["before", "within"])
@BEFORE_WHICH
def test_r2_at_every_crash_point_of_the_protocol_the_old_state_or_the_new_is_whole(
    values: list[int], half: bool, tmp_path: Path
) -> None:
    step = stand(tmp_path / "before", values)
    old = max(values, default=None)
    outcomes = []
    for after in count():
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / f"{after}"))
        disk = Cut(after, half=half)
        with watching(disk), suppress(PowerCut):
            keep(folder, step, 99)
        notices: list[str] = []
        assert kept(folder, notices) == (99 if committed(disk) else old), disk.done[-1:]
        assert notices == []
        for checkpoint in list_checkpoints(folder):
            verify_checksums(checkpoint.path, RunError)
        outcomes.append(committed(disk))
        keep(folder, step + 1, 100)
        assert names(folder) == [f"step-{step + 1:08d}"]
        assert kept(folder) == 100
        shutil.rmtree(folder)
        if not disk.dead:
            break
    # For each old one: a rename and 6 removals, and one sync for all.
    assert after == OPERATIONS + sum(7 for value in values if value) + 1
    assert outcomes.index(True) == OPERATIONS - 1


class Interrupting(Disk):
    """Lets `after` operations pass, and once raises what it was given instead of the next."""

    def __init__(self, after: int, error: BaseException, *, for_good: bool = False) -> None:
        super().__init__()
        self.after, self.error, self.for_good = after, error, for_good
        self.seen = 0

    def allow(self, operation: Operation) -> int:
        self.seen += 1
        if self.seen == self.after + 1 or (self.for_good and self.seen > self.after):
            raise self.error
        return len(operation.held)


@BEFORE_WHICH
def test_r2_a_second_ctrl_c_anywhere_in_the_protocol_leaves_one_state_and_no_rubbish(values: list[int], tmp_path: Path) -> None:
    step = stand(tmp_path / "before", values)
    for after in count():
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / f"{after}"))
        disk = Interrupting(after, KeyboardInterrupt())
        saved = False
        with watching(disk), suppress(KeyboardInterrupt):
            save(folder, step, 99)
            saved = True
            prune_checkpoints(folder, keep_last=1, keep_best=0)
        if not saved:
            assert names(folder) == names(tmp_path / "before")
        assert kept(folder) == (99 if saved else max(values, default=None))
        keep(folder, step + 1, 100)
        assert names(folder) == [f"step-{step + 1:08d}"]
        shutil.rmtree(folder)
        if disk.seen <= after:
            break
    assert after > 22


# --- R3: power cuts --------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A file with what was written and what of that was synced, or a folder with what it surely holds."""

    entries: dict[str, Node] | None = None
    written: bytes = b""
    synced: bytes = b""


@dataclass
class Changes:
    """What one operation does to the names in a folder."""

    folder: Node
    gone: str | None = None
    come: tuple[str, Node] | None = None


@dataclass
class Platter:
    """What is on a disk after operations of which only the synced are sure. Names and bytes each have their own sync."""

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

    def operate(self, one: Operation) -> None:
        around = self.live[one.path.parent] if one.path != self.root else self.top
        match one.kind:
            case "create" | "mkdir":
                self.live[one.path] = Node({} if one.kind == "mkdir" else None)
                self.pending.append(Changes(around, come=(one.path.name, self.live[one.path])))
            case "write":
                self.live[one.path].written += one.held
            case "rename":
                assert one.to is not None
                assert one.to not in self.live
                moved = {path: node for path, node in self.live.items() if path.is_relative_to(one.path)}
                for path, node in moved.items():
                    del self.live[path]
                    self.live[one.to / path.relative_to(one.path)] = node
                self.pending.append(Changes(around, gone=one.path.name, come=(one.to.name, moved[one.path])))
            case "unlink" | "rmdir":
                del self.live[one.path]
                self.pending.append(Changes(around, gone=one.path.name))
            case "sync" if self.live[one.path].entries is None:
                self.live[one.path].synced = self.live[one.path].written
            case "sync":
                sure = [change for change in self.pending if change.folder is self.live[one.path]]
                self.pending = [change for change in self.pending if change.folder is not self.live[one.path]]
                for change in sure:
                    assert change.folder.entries is not None
                    apply(change, change.folder.entries)
            case "chmod":
                pass
            case other:
                raise AssertionError(other)

    def left(self, changes: Sequence[Changes], fate: str, node: Node | None = None, at: str = "") -> dict[str, bytes | None]:
        """Files and folders by path if of the names these changes came to the disk, and of the bytes what `fate` says."""
        node = node or self.top
        entries = dict(node.entries or {})
        for change in changes:
            if change.folder is node:
                apply(change, entries)
        found: dict[str, bytes | None] = {}
        for name, inner in entries.items():
            if inner.entries is None:
                found[at + name] = bytes_left(inner, fate)
            else:
                found |= {at + name: None} | self.left(changes, fate, inner, f"{at}{name}/")
        return found


def apply(change: Changes, entries: dict[str, Node]) -> None:
    if change.gone is not None:
        entries.pop(change.gone, None)
    if change.come is not None:
        entries[change.come[0]] = change.come[1]


def bytes_left(node: Node, fate: str) -> bytes:
    unsure = node.written[len(node.synced) :]
    match fate:
        case "lost":
            return node.synced
        case "torn":
            return node.synced + unsure[: len(unsure) // 2] + bytes(len(unsure) - len(unsure) // 2)
        case _:
            return node.written


def possible(platter: Platter, chance: random.Random) -> Iterator[dict[str, bytes | None]]:
    """Disks that a power cut may leave: of the unsure changes the first few, or any, and unsure bytes lost, torn or whole."""
    pending = platter.pending
    choices = [pending[:length] for length in range(len(pending) + 1)]
    choices += [[change for change in pending if chance.random() < 0.5] for _ in range(8 if pending else 0)]
    for changes in choices:
        for fate in ("lost", "torn", "whole"):
            yield platter.left(changes, fate)


def losses(
    base: Path, operations: Sequence[Operation], place: Path, *, old: int | None, new: int, saved: int
) -> tuple[int, list[str]]:
    """How many disks there may be after a power cut at any operation, and what is wrong with which.

    Two that differ in hidden folders alone are one. saved: operations after which the new state must be there.
    """
    platter = Platter(base)
    chance = random.Random(1)
    wrong = []
    values: dict[frozenset[tuple[str, bytes | None]], int | None] = {}
    for done, operation in enumerate([None, *operations]):
        if operation is not None:
            platter.operate(operation)
        for disk in possible(platter, chance):
            seen = {name: held for name, held in disk.items() if not name.startswith(".")}
            key = frozenset(seen.items())
            if key not in values:
                values[key] = value_on(seen, place)
            if values[key] not in ((new,) if done >= saved else (old, new)):
                wrong.append(f"after {done} operations: {values[key]}")
    return len(values), wrong


def value_on(disk: dict[str, bytes | None], place: Path) -> int | None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, held in disk.items():
        if held is None:
            (place / name).mkdir(exist_ok=True)
        else:
            (place / name).write_bytes(held)
    return kept(place)


@BEFORE_WHICH
def test_r3_after_a_power_cut_at_any_operation_a_whole_checkpoint_is_left(values: list[int], tmp_path: Path) -> None:
    """Every operation but those synced may have come to the disk or not, and in any order."""
    base = tmp_path / "base"
    step = stand(base, values)
    disk = Disk()
    work = Path(shutil.copytree(base, tmp_path / "work"))
    with watching(disk):
        save(work, step, 99)
        saved = len(disk.done)
        prune_checkpoints(work, keep_last=1, keep_best=0)
    assert names(work) in ([f"step-{step:08d}"], [f"step-{step:08d}-2"])

    def found(operations: Sequence[Operation], saved: int) -> tuple[int, list[str]]:
        moved = [
            replace(one, path=base / one.path.relative_to(work), to=one.to and base / one.to.relative_to(work))
            for one in operations
        ]
        return losses(base, moved, tmp_path / "disk", old=max(values, default=None), new=99, saved=saved)

    disks, wrong = found(disk.done, saved)
    assert wrong == []
    assert disks > 1 + len(values)
    # The model does find what is lost without the syncs of what is in the folder, or without those around it.
    for around in (False, True):
        synced = [one.kind != "sync" or (one.path == work) != around for one in disk.done]
        assert found(list(compress(disk.done, synced)), sum(synced[:saved]))[1] != []


# --- R4: whatever is done to a folder since --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed_bundle(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that nobody has trained."""
    folder = tmp_path_factory.mktemp("bundle")
    recipe = tiny(folder)
    tokeniser = train_tokenizer(
        WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=recipe.model.append_source_eos, seed=1
    )
    sizes = len(tokeniser.source), len(tokeniser.target)
    weights = collect_weights(build_model(recipe.model, source_vocab_size=sizes[0], target_vocab_size=sizes[1]))
    save_bundle(folder / "bundle", recipe=recipe, tokenizer=tokeniser, weights=weights, metadata={})
    return folder / "bundle"


@pytest.fixture
def sealed(request: pytest.FixtureRequest, sealed_bundle: Path, tmp_path: Path) -> Path:
    if request.param == "bundle":
        return Path(shutil.copytree(sealed_bundle, tmp_path / "bundle"))
    return save(tmp_path, 1).path


BOTH = pytest.mark.parametrize("sealed", ["checkpoint", "bundle"], indirect=True)


def refusal(folder: Path) -> str:
    with pytest.raises(RunError) as caught:
        verify_checksums(folder, RunError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sealed", "flips", "cuts"),
    [
        ("checkpoint", 300, 30),
        ("bundle", 100, 10),
        pytest.param("checkpoint", 10_000, 1_000, marks=SLOW),
        pytest.param("bundle", 2_000, 200, marks=SLOW),
    ],
    indirect=["sealed"],
)
def test_r4_every_flip_and_every_truncation_is_found_and_its_file_named(flips: int, cuts: int, sealed: Path) -> None:
    """Flips of one bit, and of one byte to any other; at places drawn evenly over all bytes, and evenly over the files."""
    chance = random.Random(4)
    held = {path: path.read_bytes() for path in sorted(sealed.iterdir())}
    every = [(path, place) for path, content in held.items() for place in range(len(content))]
    for number in range(flips + cuts):
        if number % 2:
            path, place = chance.choice(every)
        else:
            path = chance.choice(list(held))
            place = chance.randrange(len(held[path]))
        if number < flips:
            pattern = chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
            with path.open("r+b", buffering=0) as stream:
                os.pwrite(stream.fileno(), bytes([held[path][place] ^ pattern]), place)
        else:
            os.truncate(path, place)
        line = refusal(sealed)
        assert str(path) in line or path.name == MANIFEST_FILE, line
        path.write_bytes(held[path])
    verify_checksums(sealed, RunError)


@BOTH
def test_r4_missing_extra_and_swapped_files_are_found(sealed: Path) -> None:
    held = {path: path.read_bytes() for path in sorted(sealed.iterdir())}
    for path, content in held.items():
        path.unlink()
        assert path.name in refusal(sealed)
        path.write_bytes(content)
        (sealed / f"{path.name}.bak").write_bytes(content)
        assert refusal(sealed) == f"{sealed}: '{path.name}.bak' does not belong to it; move it elsewhere"
        (sealed / f"{path.name}.bak").unlink()
        for other in held.keys() - {path}:
            if held[other] != content:
                path.write_bytes(held[other])
                other.write_bytes(content)
                assert {path.name, other.name, MANIFEST_FILE} & set(refusal(sealed).replace(":", "/").split("/"))
                other.write_bytes(held[other])
                path.write_bytes(content)
    verify_checksums(sealed, RunError)


def test_r4_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    for path in sorted((tmp_path / "step-00000003").iterdir()):
        folder = Path(shutil.copytree(tmp_path, tmp_path.parent / f"damaged-{path.name}"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (folder / "step-00000003" / path.name).write_bytes(content)
        notices: list[str] = []
        assert kept(folder, notices) == 2
        (told,) = notices
        assert told.startswith(f"{folder / 'step-00000003'}/")  # of a digest that was changed, the file it is of
        assert path.name in told.partition(": ")[0] or path.name == MANIFEST_FILE
        assert told.endswith("and the run goes back to the checkpoint before it")


# --- R5: a disk that fills -------------------------------------------------------------------------------------------------


class Full(Disk):
    """A disk with room for so many bytes."""

    def __init__(self, room: int, code: int = errno.ENOSPC) -> None:
        super().__init__()
        self.room, self.code = room, code

    def allow(self, operation: Operation) -> int:
        if operation.held and not self.room:
            raise OSError(self.code, os.strerror(self.code))
        allowed = min(self.room, len(operation.held))
        self.room -= allowed
        return allowed


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EDQUOT, marks=SLOW)])
def test_r5_a_disk_that_is_full_at_any_byte_leaves_the_last_checkpoint_and_the_next_is_saved(code: int, tmp_path: Path) -> None:
    save(tmp_path, 1)
    size = size_of(save(tmp_path, 2).path)
    rooms = [size * number // 100 for number in range(100)]
    for step, room in enumerate(rooms, start=3):
        folder = tmp_path / f"step-{step:08d}"
        with watching(Full(room, code)), pytest.raises(WriteError) as caught:
            save(tmp_path, step)
        assert (caught.value.needed_bytes or 0) > size
        assert (caught.value.available_bytes or 0) > 0
        needed = (caught.value.needed_bytes or 0) / 2**20
        why = "the disk is full" if code == errno.ENOSPC else "the quota is used up"
        assert str(caught.value).startswith(f"{folder}: {why} ({needed:.1f} MiB needed, ")
        assert str(caught.value).endswith(f" MiB free in {tmp_path}); make room")
        assert kept(tmp_path) == step - 1
        assert names(tmp_path) == [f"step-{step - 2:08d}", f"step-{step - 1:08d}"]
        save(tmp_path, step)
        prune_checkpoints(tmp_path, keep_last=2, keep_best=0)
        assert kept(tmp_path) == step
    with watching(Full(size_of(folder), code)):
        save(tmp_path, step + 1)


def test_r5_what_is_needed_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth more than the tensors, and no less than what comes to stand there."""
    numbers = 100_000
    many = {"a": torch.zeros(numbers)}
    moments = {"a/exp_avg": torch.zeros(numbers, dtype=torch.float64)}
    disk = Disk()

    def save_many(step: int) -> Checkpoint:
        with watching(disk):
            return save_checkpoint(
                tmp_path, trainer_state=TrainerState(step=step), recipe={}, metric=None, data_digests={}, scheduled=True, weights=many,
                optimizer_state=moments,
            )  # fmt: skip

    first = save_many(1)
    disk.done.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(WriteError) as caught:
        save_many(2)
    assert disk.done == []
    assert caught.value.needed_bytes == pytest.approx(1.1 * numbers * (4 + 8), rel=0.01)
    assert size_of(first.path) < (caught.value.needed_bytes or 0)
    told = f"{tmp_path / 'step-00000002'}: the disk is full (1.3 MiB needed, 1.0 MiB free in {tmp_path}); make room"
    assert str(caught.value) == told


MOUNTED = """
import json, shutil, subprocess, sys
from pathlib import Path
import torch
import dragoman.io.storage
from dragoman.errors import OutputError, RunError
from dragoman.io.storage import check_seal
from dragoman.training.checkpoints.checkpoint import Progress, newest_checkpoint, prune_checkpoints, save_checkpoint

place = Path(sys.argv[1])
mount = lambda *words: subprocess.run(["mount", *words, str(place)], check=True)
mount("-t", "tmpfs", "-o", "size=1M", "none")
weights = {"a": torch.zeros(50_000)}

def attempt(step):
    try:
        save_checkpoint(place, progress=Progress(step=step), recipe={}, merit=None, corpus={}, due=True, weights=weights,
                        optimiser_state={}, averages=weights)
        prune_checkpoints(place, keep_last=1, keep_best=0)
        return "saved"
    except OutputError as error:
        return str(error)

told = [attempt(1)]
(place / "filler").write_bytes(bytes(350_000))
told.append(attempt(2))
refuse, dragoman.io.storage._refuse_to_fill_the_disk = dragoman.io.storage._refuse_to_fill_the_disk, lambda *_: None
told.append(attempt(2))
dragoman.io.storage._refuse_to_fill_the_disk = refuse
(place / "filler").unlink()
told.append(attempt(2))
mount("-o", "remount,ro")
told.append(attempt(3))
told.append(newest_checkpoint(place, print).path.name)
mount("-o", "remount,rw")
told.append(attempt(3))
told.append(sorted(path.name for path in place.iterdir()))
check_seal(place / "step-00000003", RunError)
print(json.dumps(told))
"""


@SLOW
@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
    reason="this user may not mount a file system",
)
def test_r5_and_r6_a_file_system_of_one_mebibyte_and_one_that_may_only_be_read(tmp_path: Path) -> None:
    words = ["unshare", "-m", sys.executable, "-c", MOUNTED, str(tmp_path)]
    told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    first, refused, full, second, closed, newest, third, left = told
    assert first == second == third == "saved"
    step = tmp_path / "step-00000002"
    # 400,000 bytes and a tenth are needed; of 1 MiB, as many and 350,000 are taken.
    for line in (refused, full):
        assert line == f"{step}: the disk is full (0.4 MiB needed, 0.3 MiB free in {tmp_path}); make room"
    assert closed == f"{tmp_path / 'step-00000003'}: cannot be written: Read-only file system"
    assert newest == step.name
    assert left == ["step-00000003"]


# --- R6: a disk that fails, and other weather --------------------------------------------------------------------------------


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "name", ["EIO", *(pytest.param(name, marks=SLOW) for name in ("EROFS", "EACCES", "EINTR", "ESTALE", "EMFILE", "ENOSPC"))]
)
def test_r6_an_error_anywhere_in_the_protocol_is_told_in_a_line_and_the_next_save_works(
    name: str, for_good: bool, tmp_path: Path
) -> None:
    code = getattr(errno, name)
    save(tmp_path, 1)
    told = 0
    for after in count():
        step = after + 2
        disk = Interrupting(after, OSError(code, os.strerror(code)), for_good=for_good)
        line = None
        with watching(disk):
            try:
                keep(tmp_path, step)
            except WriteError as error:
                line = str(error)
        why = "the disk is full (" if name == "ENOSPC" else f"cannot be written: {os.strerror(code)}"
        if line is not None:
            told += 1
            assert line.startswith(f"{tmp_path / f'step-{step:08d}'}: {why}")
            assert "\n" not in line
            if not for_good:
                assert names(tmp_path) == [f"step-{step - 1:08d}"]
        notices: list[str] = []
        assert kept(tmp_path, notices) in ((step,) if line is None else (step - 1, step))
        assert notices == []
        keep(tmp_path, step)
        assert kept(tmp_path) == step
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        save(tmp_path, step)
        if disk.seen <= after:
            break
    assert told == OPERATIONS  # what is in the way of removing older ones is left for the next time
    assert after > told


def test_r6_a_folder_that_cannot_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def fail(_: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        with pytest.raises(WriteError, match=r"cannot be read: Stale file handle$"):
            save(tmp_path, 3)
        with pytest.raises(RunError, match=r"cannot be read: Stale file handle$"):
            kept(tmp_path)
        prune_checkpoints(tmp_path, keep_last=1, keep_best=0)
    assert kept(tmp_path) == 2
    keep(tmp_path, 3)
    assert names(tmp_path) == ["step-00000003"]


def test_r6_a_closed_folder_is_told(tmp_path: Path) -> None:
    save(tmp_path, 1)
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("no folder is closed to this user")
        with pytest.raises(WriteError, match=r"step-00000002: cannot be written: Permission denied"):
            save(tmp_path, 2)
        assert kept(tmp_path) == 1
    finally:
        tmp_path.chmod(0o755)
    keep(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]


def test_r6_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one is the newest is in its name, whatever the times of its files are."""
    clock = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for step in (9, 10, 99_999_999, 100_000_000):
        path = save(tmp_path, step).path
        for entry in (path, *path.iterdir()):
            os.utime(entry, (10**9 - step, 10**9 - step))
        assert kept(tmp_path) == step
    assert [one.step for one in list_checkpoints(tmp_path)] == [9, 10, 99_999_999, 100_000_000]
    prune_checkpoints(tmp_path, keep_last=2, keep_best=0)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]


# --- what a checkpoint is -----------------------------------------------------------------------------------------------


def test_a_step_that_is_saved_again_stands_beside_the_old_one_until_that_is_pruned(tmp_path: Path) -> None:
    save(tmp_path, 7, 70)
    save(tmp_path, 7, 71)
    assert names(tmp_path) == ["step-00000007", "step-00000007-2"]
    assert kept(tmp_path) == 71
    assert [(one.step, one.path.name) for one in list_checkpoints(tmp_path)] == [(7, "step-00000007-2")]
    assert [save(tmp_path, 7, value).path.name for value in range(72, 81)][-1] == "step-00000007-11"
    assert kept(tmp_path) == 80
    prune_checkpoints(tmp_path, keep_last=5, keep_best=5)
    assert names(tmp_path) == ["step-00000007-11"]
    save(tmp_path, 8)
    assert kept(tmp_path) == 8


def test_what_is_no_checkpoint_of_ours_is_neither_read_nor_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in ("step-00000001-backup", "step-00000002 copy", "step-2", "step-00000009-0", "notes"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    before = names(tmp_path)
    (tmp_path / "step-00000002 copy" / "state.json").write_text("")
    notices: list[str] = []
    assert kept(tmp_path, notices) == 1
    assert notices == []
    keep(tmp_path, 2)
    assert names(tmp_path) == sorted({*before, "step-00000002"} - {"step-00000001"})


def test_what_is_loaded_stands_in_memory_of_its_own(tmp_path: Path) -> None:
    """At multiples of 64 bytes, as torch makes tensors: a sum of float32 comes out differently at others."""
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


def test_progress_comes_back_bit_for_bit(tmp_path: Path) -> None:
    chance = random.Random(0)
    norms = tuple(chance.uniform(0, 1) * 10.0 ** chance.randint(-300, 300) for _ in range(128))
    progress = TrainerState(
        step=3, data_position=DataPosition(2, 5), minutes=0.1 + 0.2, target_tokens=2**60, nll_since_log=1 / 3, tokens_since_log=9,
        best=-1e-17, best_step=2, validations_since_best=1, skipped_steps=4, consecutive_skips=2, num_rollbacks=1,
        grad_norms=(*norms, 5e-324, float("inf")),
        flops=1.2345678901234567e21, data_wait_minutes=1e-9, joules=0.1,
    )  # fmt: skip
    path = save_checkpoint(
        tmp_path,
        trainer_state=progress,
        recipe={},
        metric=0.3,
        data_digests={},
        scheduled=False,
        weights={},
        optimizer_state={},
    ).path
    found = read_checkpoint(path)
    assert found.trainer_state == progress
    assert isinstance(found.trainer_state.grad_norms, tuple)
    assert (found.metric, found.scheduled, found.ema_weights()) == (0.3, False, None)


def test_a_checkpoint_of_before_has_what_was_not_counted_at_its_beginning(tmp_path: Path) -> None:
    path = save(tmp_path, 3).path
    state = json.loads((path / "state.json").read_bytes())
    for name in ("skipped", "skipped_in_a_row", "restored", "norms", "flops", "waited_minutes", "joules"):
        del state["progress"][name]
    (path / "state.json").write_text(json.dumps(state, indent=1))
    (path / "averages.safetensors").unlink()
    reseal(path)
    found = find_latest_checkpoint(tmp_path, lambda _: None)
    assert found is not None
    assert found.trainer_state == TrainerState(step=3, target_tokens=3)
    assert found.ema_weights() is None


# --- runs ---------------------------------------------------------------------------------------------------------------

# Dropout, three batches to a step, five steps to an epoch whose edge falls into the middle of one, sentences batched by length.
EVENTFUL = (
    "model.residual_dropout=0.1", "model.attention_dropout=0.1", "model.activation_dropout=0.1", "model.embedding_dropout=0.1",
    "training.batch_tokens=40", "training.batches_per_update=3", "training.ema_decay=0.9", "training.max_steps=200",
    "training.validate_every_steps=40", "training.num_validation_translations=0", "training.log_every_steps=3",
    "training.checkpoint_every_steps=1000000",
)  # fmt: skip
CLOCK = {"tokens_per_second", "minutes_left", "seconds", "waiting", "flops_per_second", "ceiling", "memory_mib", "padding"}


def digest(*many: Mapping[str, Tensor]) -> str:
    """SHA-256 of every bit of these tensors, and of their names."""
    found = hashlib.sha256()
    for one in many:
        for name in sorted(one):
            found.update(name.encode() + one[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def digest_of(checkpoint: Checkpoint) -> str:
    return digest(checkpoint.weights(), checkpoint.optimizer_state(), checkpoint.ema_weights() or {})


def journal(run: Path) -> list[dict[str, Any]]:
    """The numbers in a journal that do not depend on the clock."""
    entries = [entry for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] in ("train", "valid")]
    return [{key: value for key, value in entry.items() if key not in CLOCK} for entry in entries]


class Watcher(NullCallback):
    """Keeps the digest of a run's state after each step, and asks it to stop after some."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.trainer: Trainer | None = None
        self.stop_after = stop_after
        self.digests: list[str] = []

    def advance(self, share_spent: float) -> None:
        assert self.trainer is not None
        state = self.trainer.train_state.gather_state()
        assert state.ema_weights is not None
        self.digests.append(digest(state.weights, state.optimizer, state.ema_weights))
        if len(self.digests) == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


def newest(recipe: Recipe) -> Checkpoint:
    """The newest checkpoint of a run, none of which may be damaged."""
    found = find_latest_checkpoint(Path(recipe.run) / "checkpoints", fail)
    assert found is not None
    return found


def fail(notice: str) -> None:
    raise AssertionError(notice)


def go_on(recipe: Recipe, *, stop_after: int | None = None) -> list[str]:
    """Go on with a run and return the digest of its state after each step."""
    watcher = Watcher(stop_after)
    watcher.trainer = Trainer(recipe, watcher)
    if stop_after is None:
        watcher.trainer.run()
    else:
        with pytest.raises(InterruptedRun):
            watcher.trainer.run()
    return watcher.digests


@SLOW
def test_r1_a_run_that_is_stopped_after_every_step_is_the_run_that_was_not(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Stopped and resumed 199 times, and from 8 of those places on to its end. A step is never left in its middle: a request to
    stop is looked at between steps, and a kill leaves what the last checkpoint says.
    """
    unbroken = go_on(tiny(tmp_path / "unbroken", *EVENTFUL))
    assert len(set(unbroken)) == 200
    recipe = tiny(tmp_path / "run", *EVENTFUL)
    places = sorted(random.Random(1).sample(range(1, 200), 8))
    for step in range(1, 200):
        assert go_on(recipe, stop_after=1) == unbroken[step - 1 : step]
        found = newest(recipe)
        assert (found.step, digest_of(found)) == (step, unbroken[step - 1])
        if step in places:
            shutil.copytree(tmp_path / "run", tmp_path / f"from-{step}")
    assert go_on(recipe) == unbroken[-1:]
    assert newest(recipe).trainer_state.data_position.epoch > 20
    wanted = journal(tmp_path / "unbroken")
    assert [entry["type"] for entry in wanted].count("valid") == 5
    assert journal(tmp_path / "run") == wanted
    for step in places:
        assert go_on(tiny(tmp_path / f"from-{step}", *EVENTFUL)) == unbroken[step:]
        assert journal(tmp_path / f"from-{step}") == wanted


def test_r6_two_runs_in_one_folder_are_refused(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with lock_dir(tmp_path / "run"), pytest.raises(OutputError, match=r"run: another process is at work in there; wait for it"):
        train(recipe)
    assert names(tmp_path / "run") == []


# What follows forks its runs off a process that has imported everything and has no threads: a start takes a tenth of a second.


def in_nursery(task: Callable[..., Any], recipe: Recipe, *words: object) -> Any:
    """What `task`, a function of this module, returns in a process of its own."""
    path = Path(recipe.run).with_suffix(".json")
    path.write_text(json.dumps(recipe.model_dump(mode="json")))
    program = (
        f"import json, test_reliability as it; print(json.dumps(it.{task.__name__}(it.recipe_at({str(path)!r}), *{words!r})))"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def recipe_at(path: str) -> Recipe:
    """A recipe from a file, after a short run elsewhere: what libraries make at their first use, no child makes again."""
    recipe = recipe_from_dict(json.loads(Path(path).read_bytes()), where=path)
    torch.set_num_threads(1)
    training = recipe.training.model_copy(update={"max_steps": 2})
    run = Path(recipe.run).with_name(f"{Path(recipe.run).name}-before")
    Trainer(recipe.model_copy(update={"run": str(run), "training": training}), NullCallback()).run()
    return recipe


class Teller(NullCallback):
    """Writes the number of each step into a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.trainer: Trainer | None = None

    def advance(self, share_spent: float) -> None:
        assert self.trainer is not None
        os.write(self.pipe, f"{self.trainer.state.step}\n".encode())


class Child:
    """A run in a process group of its own, which tells each step."""

    def __init__(self, recipe: Recipe) -> None:
        self.reader, writer = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.setpgid(0, 0)
            os._exit(self.run(recipe, writer))
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.process, self.process)  # whichever of the two is first
        os.close(writer)
        self.told = b""

    @staticmethod
    def run(recipe: Recipe, writer: int) -> int:
        listener = Teller(writer)
        try:
            listener.trainer = Trainer(recipe, listener)
            listener.trainer.run()
        except InterruptedRun as error:
            return error.exit_code
        except BaseException:
            traceback.print_exc()
            return 99
        return 0

    def wait_for_a_step(self) -> None:
        self.told += os.read(self.reader, 2**16)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process, number)

    def end(self) -> tuple[int, int]:
        """Wait for its end; its exit code, negative for a signal, and its last step."""
        _, status = os.waitpid(self.process, 0)
        while part := os.read(self.reader, 2**16):
            self.told += part
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status), int((b"0\n" + self.told).split()[-1])


def to_the_end(recipe: Recipe, run: Path, *, steps: int) -> str:
    """Go on with a run, or begin it, up to so many steps; the digest of what it then holds."""
    training = recipe.training.model_copy(update={"max_steps": steps})
    recipe = recipe.model_copy(update={"run": str(run), "training": training})
    assert Child(recipe).end() == (0, steps)
    return digest_of(newest(recipe))


def kill_often(recipe: Recipe, kills: int) -> dict[str, int]:
    """Kill a run that saves every step, and go on with it: half of the kills inside a save, the others anywhere."""
    os.fsync = lambda fd: None  # a kill takes nothing away that the system has been given
    chance = random.Random(2)
    run = Path(recipe.run)
    checkpoints = run / "checkpoints"
    counts = {"saving": 0, "elsewhere": 0}
    kept = lost = 0
    while min(counts.values()) < kills // 2:
        child = Child(recipe)
        if counts["saving"] < kills // 2 and chance.random() < 0.7:
            for _ in range(chance.randint(1, 3)):
                child.wait_for_a_step()
            while not any(entry.name.startswith(".step-") for entry in os.scandir(checkpoints)):
                pass
            time.sleep(chance.uniform(0, 0.002))
        else:
            time.sleep(chance.uniform(0, 0.3))
        child.signal(signal.SIGKILL)
        code, told = child.end()
        assert code == -signal.SIGKILL
        counts["saving" if any(checkpoints.glob(".step-*.partial")) else "elsewhere"] += 1
        found = find_latest_checkpoint(checkpoints, fail)
        step = found.step if found is not None else 0
        assert step >= kept
        lost = max(lost, told - step)
        kept = step
    steps = kept + 3
    assert to_the_end(recipe, run, steps=steps) == to_the_end(recipe, run.with_name(f"{run.name}-unbroken"), steps=steps)
    assert not any(checkpoints.glob(".*"))
    return {**counts, "steps": kept, "lost": lost}


@SLOW
def test_r2_two_hundred_kills_lose_no_checkpoint_and_at_most_a_step(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.checkpoint_every_steps=1", "training.max_steps=1000000", "training.validate_every_steps=1000000")
    found = in_nursery(kill_often, tiny(tmp_path / "run", *EVENTFUL, *settings), 200)
    assert found["saving"] >= 100
    assert found["elsewhere"] >= 100
    assert found["lost"] <= 1
    assert found["steps"] > 20  # it did get on, however late in a start the kills came


def stop_often(recipe: Recipe, stops: int) -> dict[str, float]:
    """Send SIGTERM to a run, to every other one twice, and go on with it."""
    chance = random.Random(14)
    run = Path(recipe.run)
    kept, codes, slowest = 0, [], 0.0
    for number in range(stops):
        child = Child(recipe)
        child.wait_for_a_step()
        time.sleep(chance.uniform(0, 0.05))
        started = time.monotonic()
        child.signal(signal.SIGTERM)
        if number % 2:
            time.sleep(chance.uniform(0, 0.02))
            child.signal(signal.SIGTERM)
        code, told = child.end()
        slowest = max(slowest, time.monotonic() - started)
        codes.append(code)
        assert newest(recipe).step == told > kept
        kept = told
    assert set(codes[::2]) == {InterruptedRun.exit_code}
    # A second SIGTERM may come when the run has ended and its process not yet.
    assert set(codes[1::2]) <= {InterruptedRun.exit_code, -signal.SIGTERM}
    steps = kept + 3
    assert to_the_end(recipe, run, steps=steps) == to_the_end(recipe, run.with_name(f"{run.name}-unbroken"), steps=steps)
    return {"steps": kept, "slowest": slowest, "late": codes.count(-signal.SIGTERM)}


@SLOW
def test_r14_a_hundred_requests_to_stop_commit_a_checkpoint_each(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.max_steps=1000000", "training.validate_every_steps=1000000")
    found = in_nursery(stop_often, tiny(tmp_path / "run", *EVENTFUL, *settings), 100)
    assert found["steps"] >= 100
    assert found["slowest"] < 5.0  # seconds, of which a step and a save take a hundredth


def run_long(recipe: Recipe, every: int) -> dict[str, Any]:
    """Memory in MiB, open files and threads of a run, looked at every so many steps."""
    looks: list[tuple[float, int, int]] = []

    class Looker(NullCallback):
        taken = 0

        def advance(self, share_spent: float) -> None:
            self.taken += 1
            if self.taken % every == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                files, threads = (len(os.listdir(f"/proc/self/{of}")) for of in ("fd", "task"))
                looks.append((pages * os.sysconf("SC_PAGESIZE") / 2**20, files, threads))

    trainer = Trainer(recipe, Looker())
    trainer.run()
    return {"looks": looks, "epochs": trainer.epochs()}


@SLOW
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_r11_memory_files_and_threads_stay_as_they_are_over_five_thousand_steps(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (
        *NO_DROPOUT, "training.max_steps=5000", "training.checkpoint_every_steps=250", "training.validate_every_steps=250",
        "training.batches_per_update=1",
    )  # fmt: skip
    found = in_nursery(run_long, tiny(tmp_path / "run", *EVENTFUL, *settings), 50)
    memory, files, threads = zip(*found["looks"], strict=True)
    assert len(memory) == 100
    assert found["epochs"] > 20
    assert max(memory[80:]) < 1.01 * max(memory[20:40])
    assert len(set(files[20:])) == 1
    assert len(set(threads[20:])) == 1
