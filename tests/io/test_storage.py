"""Files that are there whole or not at all, and seals that find whatever was done to a folder since."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import BundleError, OutputError, RunError, WriteError
from dragoman.io.storage import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    atomic_dir,
    atomic_write,
    check_path_is_free,
    describe_write_error,
    lock_dir,
    make_dirs,
    verify_checksums,
    write_json,
    write_lines,
    write_with_digest,
)

CONTENTS = {"config.json": b'{"a": 1}\n', "empty": b"", "weights.safetensors": bytes(range(64)), "z.model": b"\x00\xff" * 8}


def write_folder(path: Path, contents: dict[str, bytes] = CONTENTS, *, overwrite: bool = False) -> None:
    with atomic_dir(path, overwrite=overwrite) as folder:
        for name, held in contents.items():
            (folder / name).write_bytes(held)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, hidden files too; none for a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refusal(folder: Path) -> str:
    """The one line with which the seal of a folder is refused."""
    with pytest.raises(BundleError) as caught:
        verify_checksums(folder, BundleError)
    line = str(caught.value)
    assert str(folder) in line
    assert line.isprintable(), line
    return line


# --- text files -------------------------------------------------------------------------------------------------------


def test_a_file_holds_its_lines_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", ["ä", "", "b\u2028c\rd"])
    write_json(tmp_path / "b.json", {"ä": [1, None]})
    assert tree(tmp_path) == {"a.txt": "ä\n\nb\u2028c\rd\n".encode(), "b.json": '{\n "ä": [\n  1,\n  null\n ]\n}\n'.encode()}


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_write(path) as stream:
        stream.write("half")
        stream.flush()
        assert not path.exists()
    path.write_text("old")
    with atomic_write(path, overwrite=True) as stream:
        stream.write("new")
        stream.flush()
        assert path.read_text() == "old"
    assert tree(tmp_path) == {"a.txt": b"new"}


class Broken(BaseException):
    """As KeyboardInterrupt: not even an Exception."""


@pytest.mark.parametrize("reason", [ValueError, Broken])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_file_that_breaks_off_leaves_things_as_they_were(
    tmp_path: Path, reason: type[BaseException], old: bytes | None
) -> None:
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_bytes(old)
    before = tree(tmp_path)

    def break_off() -> None:
        with atomic_write(path, overwrite=True) as stream:
            stream.write("half")
            raise reason

    with pytest.raises(reason):
        break_off()
    assert tree(tmp_path) == before


def test_a_file_that_exists_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    writers: list[Callable[[], None]] = [
        lambda: write_lines(path, ["new"]),
        lambda: write_json(path, 1),
        lambda: check_path_is_free(path),
    ]
    for write in writers:
        with pytest.raises(OutputError, match=r"a\.txt: exists already; give another name, or --overwrite"):
            write()
    assert tree(tmp_path) == {"a.txt": b"old"}


def test_a_file_that_came_to_exist_meanwhile_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def both() -> None:
        with atomic_write(path) as stream:
            stream.write("mine")
            path.write_text("theirs")

    with pytest.raises(OutputError, match=r"a\.txt: exists already"):
        both()
    assert tree(tmp_path) == {"a.txt": b"theirs"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "folder", tmp_path / "pipe", Path(), Path("/")):
        with pytest.raises(OutputError, match=f"^{path}: (exists already|is not a file)"):
            write_lines(path, ["new"], overwrite=overwrite)
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "pipe").is_fifo()


def test_places_where_nothing_can_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    places = {
        tmp_path / "file" / "a.txt": "Not a directory",
        tmp_path / "none" / "a.txt": "No such file or directory",
        tmp_path / ("x" * 300): "File name too long",
    }
    for path, reason in places.items():
        with pytest.raises(OutputError) as caught:
            write_lines(path, ["new"])
        assert str(caught.value) == f"{path}: cannot be written: {reason}"
    for path in (tmp_path / "file" / "bundle", tmp_path / ("x" * 300)):
        with pytest.raises(OutputError) as caught:
            write_folder(path)
        assert str(caught.value) == f"{path}: cannot be written: {places.get(path, 'Not a directory')}"
    assert tree(tmp_path) == {"file": b"x"}


# --- sealed folders ---------------------------------------------------------------------------------------------------


def test_a_folder_is_sealed_with_size_and_digest_of_each_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle"
    write_folder(path)
    verify_checksums(path, BundleError)
    manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    assert manifest == {
        "format": FORMAT_VERSION,
        "files": {
            name: {"bytes": len(held), "sha256": hashlib.sha256(held).hexdigest()} for name, held in sorted(CONTENTS.items())
        },
    }
    assert tree(path) == {**CONTENTS, MANIFEST_FILE: (path / MANIFEST_FILE).read_bytes()}
    assert [entry.name for entry in path.parent.iterdir()] == ["bundle"]


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    with atomic_dir(path) as folder:
        (folder / "a").write_text("first")
        assert not path.exists()
    before = tree(path)
    with atomic_dir(path, overwrite=True) as folder:
        (folder / "a").write_text("second")
        assert tree(path) == before
    assert (path / "a").read_text() == "second"
    verify_checksums(path, BundleError)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("reason", [ValueError, Broken])
@pytest.mark.parametrize("old", [False, True])
def test_a_folder_that_breaks_off_leaves_things_as_they_were(tmp_path: Path, reason: type[BaseException], old: bool) -> None:
    path = tmp_path / "bundle"
    if old:
        write_folder(path)
    before = tree(tmp_path)

    def break_off() -> None:
        with atomic_dir(path, overwrite=True) as folder:
            (folder / "config.json").write_text("half")
            raise reason

    with pytest.raises(reason):
        break_off()
    assert tree(tmp_path) == before


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "mine").write_text("x")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"bundle: exists already; give another name, or --overwrite"):
        write_folder(path)
    assert tree(tmp_path) == before


def test_a_folder_that_came_to_exist_meanwhile_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "bundle"

    def both() -> None:
        with atomic_dir(path) as folder:
            (folder / "config.json").write_text("mine")
            write_folder(path, {"config.json": b"theirs"})

    with pytest.raises(OutputError, match=r"bundle: exists already"):
        both()
    verify_checksums(path, BundleError)
    assert (path / "config.json").read_text() == "theirs"
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_of_other_things_with_a_manifest_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "project"
    path.mkdir()
    (path / MANIFEST_FILE).write_text("{}")
    (path / "thesis.txt").write_text("all of it")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"project: holds 'thesis.txt', which dragoman did not write"):
        write_folder(path, overwrite=True)
    assert tree(tmp_path) == before


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "letters"
    path.mkdir()
    (path / "to-grandmother.txt").write_text("Dear")
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"letters: holds 'to-grandmother.txt', which dragoman did not write"):
        write_folder(path, overwrite=True)
    for other in (tmp_path / "file", Path(), Path("/")):
        with pytest.raises(OutputError, match=f"^{other}: is not a folder that can be replaced"):
            write_folder(other, overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("left", [[], ["weights.safetensors"], [MANIFEST_FILE]])
def test_a_damaged_or_empty_folder_is_replaced(tmp_path: Path, left: list[str]) -> None:
    path = tmp_path / "step-00000100"
    write_folder(path)
    for entry in path.iterdir():
        if entry.name not in left:
            entry.unlink()
    write_folder(path, overwrite=True)
    verify_checksums(path, BundleError)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000100"]


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_modes_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_dir(tmp_path / "bundle") as folder:
            (folder / "weights.safetensors").touch(mode=0o600)  # as the safetensors library does
        write_lines(tmp_path / "a.txt", ["x"])
    finally:
        os.umask(before)
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o777 & ~umask
    for path in (tmp_path / "a.txt", tmp_path / "bundle" / "weights.safetensors", tmp_path / "bundle" / MANIFEST_FILE):
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize(("code", "told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_folders_is_as_good(
    code: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync(2): EINVAL where a descriptor does not support it."""

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError) if told else nullcontext():
        write_folder(tmp_path / "bundle")
    assert (tmp_path / "bundle").exists() != told


def test_each_folder_that_is_made_is_synced_into_the_one_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could take a folder away whose files were synced."""
    synced: list[Path] = []
    monkeypatch.setattr("dragoman.io.storage.sync_folder", synced.append)
    make_dirs(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_dirs(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_dirs(tmp_path / "file" / "a")


# --- what a seal finds ------------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    write_folder(tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.mark.parametrize("name", [*(name for name, held in CONTENTS.items() if held), MANIFEST_FILE])
def test_every_changed_byte_is_found(sealed: Path, name: str) -> None:
    """Each byte of each file in turn, xor a random pattern; and each bit of the manifest's first bytes."""
    path = sealed / name
    whole = path.read_bytes()
    draw = random.Random(name)
    patterns = [(place, draw.randrange(1, 256)) for place in range(len(whole))]
    if name == MANIFEST_FILE:
        patterns += [(place, 1 << bit) for place in range(40) for bit in range(8)]
    for place, pattern in patterns:
        changed = bytearray(whole)
        changed[place] ^= pattern
        path.write_bytes(changed)
        line = refusal(sealed)
        assert (name in line) or name == MANIFEST_FILE, line
    path.write_bytes(whole)
    verify_checksums(sealed, BundleError)


@pytest.mark.parametrize("name", [*(name for name, held in CONTENTS.items() if held), MANIFEST_FILE])
def test_every_truncation_and_lengthening_is_found(sealed: Path, name: str) -> None:
    path = sealed / name
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert name in refusal(sealed)
    for more in (b"\n", b" ", b"\x00"):
        path.write_bytes(whole + more)
        assert name in refusal(sealed)


def test_whitespace_in_the_manifest_is_a_change(sealed: Path) -> None:
    path = sealed / MANIFEST_FILE
    path.write_bytes(json.dumps(json.loads(path.read_bytes())).encode())
    assert refusal(sealed) == f"{path}: is damaged; take the folder from where it came once more"


@pytest.mark.parametrize("name", CONTENTS)
def test_a_missing_file_is_found(sealed: Path, name: str) -> None:
    (sealed / name).unlink()
    assert refusal(sealed) == f"{sealed}: {name!r} is missing; take the folder from where it came once more"
    (sealed / name).mkdir()
    assert refusal(sealed).startswith(f"{sealed / name}: was changed")


@pytest.mark.parametrize("name", CONTENTS)
def test_a_renamed_file_is_found(sealed: Path, name: str) -> None:
    (sealed / name).rename(sealed / f"{name}.bak")
    assert f"{name!r} is missing" in refusal(sealed)


def test_swapped_files_are_found(sealed: Path) -> None:
    (sealed / "empty").write_bytes(CONTENTS["z.model"])
    (sealed / "z.model").write_bytes(CONTENTS["empty"])
    assert f"{sealed / 'empty'}: was changed or cut short" in refusal(sealed)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("name", ["extra.py", "line\nbreak", "Config.json"])
def test_an_added_file_is_found(sealed: Path, make: Callable[[Path], object], name: str) -> None:
    make(sealed / name)
    assert refusal(sealed) == f"{sealed}: {name!r} does not belong to it; move it elsewhere"


def test_hidden_files_of_other_programs_do_no_harm(sealed: Path) -> None:
    (sealed / ".DS_Store").touch()
    verify_checksums(sealed, BundleError)


def test_what_is_no_sealed_folder_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").endswith("none: there is no such folder; it is not something that dragoman wrote")
    assert refusal(tmp_path).endswith(f"holds no {MANIFEST_FILE}; it is not something that dragoman wrote")
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file").endswith("file: is not a folder, as all are that dragoman wrote")
    (tmp_path / MANIFEST_FILE).mkdir()
    assert refusal(tmp_path).endswith(f"{MANIFEST_FILE}: cannot be read: Is a directory")


def test_the_error_is_of_the_kind_asked_for(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        verify_checksums(tmp_path, RunError)


def test_another_format_is_named(sealed: Path) -> None:
    path = sealed / MANIFEST_FILE
    path.write_text(json.dumps({"format": FORMAT_VERSION + 1, "files": ["of another make"]}))
    assert refusal(sealed) == f"{sealed}: written in format {FORMAT_VERSION + 1}; this dragoman reads format {FORMAT_VERSION}"


def manifest(files: Any) -> bytes:
    """A manifest in the form in which ours are written."""
    return json.dumps({"format": FORMAT_VERSION, "files": files}, indent=1).encode()


SECRET = b"not yours"
ENTRY = {"bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}


@pytest.mark.parametrize(
    "written",
    [
        *(manifest({name: ENTRY}) for name in ("../secret", "/etc/passwd", "", ".", "..", "a/b", "a\nb", "a\x00b", "\ud800")),
        manifest({MANIFEST_FILE: ENTRY}),
        manifest({"config.json": None}),
        manifest({"config.json": [ENTRY]}),
        manifest({"config.json": {"bytes": "nine", "sha256": 3}}),
        manifest([["config.json", ENTRY]]),
        manifest(["config.json"]),
        manifest("config.json"),
        manifest(None),
        b"[]",
        b"{}",
        b"3",
        b"",
        b"\xff\xfe",
        b'{"format": true, "files": {}}',
        b'{"format": 1e999, "files": {}}',
        b'{"format": 1' + b"0" * 5000 + b', "files": {}}',
        b'{"files": {}, "format": 1}',
        b"[" * 100_000,
        b'{"format": 1, "files": ' + b'{"a": ' * 400 + b"1" + b"}" * 400 + b"}",
    ],
    ids=lambda written: written[:60].decode(errors="replace"),
)
def test_a_hostile_manifest_is_refused_and_nothing_outside_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes
) -> None:
    write_folder(tmp_path / "bundle")
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "bundle" / MANIFEST_FILE).write_bytes(written)
    opened: list[Path] = []
    open_file = io.open

    def watched(file: Any, *rest: Any, **more: Any) -> Any:
        opened.append(Path(file))
        return open_file(file, *rest, **more)

    monkeypatch.setattr(io, "open", watched)  # what Path.open calls
    monkeypatch.setattr(builtins, "open", watched)
    refusal(tmp_path / "bundle")
    assert opened
    assert all(path.parent == tmp_path / "bundle" for path in opened)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_other_manifest_is_refused(tmp_path_factory: pytest.TempPathFactory, files: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any-manifest"
    if not path.exists():
        write_folder(path)
    (path / MANIFEST_FILE).write_bytes(manifest(files))
    refusal(path)


# --- full disks and closed doors --------------------------------------------------------------------------------------

# Every call through which the two writers change the disk.
CALLS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "chmod"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "open"),
]


class Failing:
    """Lets a call pass `after` times and fails at the next one, once."""

    def __init__(self, call: Callable[..., Any], after: int, code: int) -> None:
        self.call, self.left, self.code = call, after, code
        self.failed = False

    def method(self) -> Callable[..., Any]:
        def instead(*given: Any, **named: Any) -> Any:
            if self.left == 0 and not self.failed:
                self.failed = True
                raise OSError(self.code, os.strerror(self.code))
            self.left -= 1
            return self.call(*given, **named)

        return instead


def fail_everywhere(
    folder: Path, patch: pytest.MonkeyPatch, code: int, *, old: Callable[[Path], object], write: Callable[[Path], object]
) -> int:
    """Let each call of `write` that changes the disk fail in turn, look at what is told and left, and count the failures."""
    count = 0
    for owner, name in CALLS:
        for after in range(50):
            place = folder / f"{name}-{after}"
            place.mkdir()
            old(place / "out")
            before = tree(place)
            failing = Failing(getattr(owner, name), after, code)
            told = None
            with patch.context() as patched:
                patched.setattr(owner, name, failing.method())
                try:
                    write(place / "out")
                except OutputError as error:
                    told = str(error)
            if not failing.failed:
                break
            reason = "the disk is full (" if code == errno.ENOSPC else f"cannot be written: {os.strerror(code)}"
            assert told is not None, place
            assert told.startswith(f"{place / 'out'}: {reason}")
            assert tree(place) == before, place
            count += 1
    return count


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
@pytest.mark.parametrize(("old", "last"), [(lambda _: None, 1), (write_folder, 3)], ids=["new", "over the old"])
def test_a_folder_that_cannot_be_written_leaves_things_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, old: Callable[[Path], object], last: int
) -> None:
    def write(path: Path) -> None:
        with atomic_dir(path, overwrite=True) as folder:
            for name in CONTENTS:
                (folder / name).touch()

    # Of 4 files each is given its mode, opened and synced; the manifest is opened and synced; the folder is made and synced,
    # and so is the one above; then come the renames, before which an old manifest is read.
    assert fail_everywhere(tmp_path, monkeypatch, code, old=old, write=write) == 4 * 3 + 2 + 3 + last


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("old", [lambda _: None, lambda path: path.write_bytes(b"old")], ids=["new", "over the old"])
def test_a_file_that_cannot_be_written_leaves_things_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, old: Callable[[Path], object]
) -> None:
    def write(path: Path) -> None:
        write_lines(path, ["new"], overwrite=True)

    assert fail_everywhere(tmp_path, monkeypatch, code, old=old, write=write) == 3  # open, sync, rename


@pytest.mark.parametrize("writer", [atomic_write, atomic_dir])
def test_a_disk_that_fills_while_writing_is_told_with_the_room(
    tmp_path: Path, writer: Callable[[Path], AbstractContextManager[object]]
) -> None:
    path = tmp_path / "out"
    free = shutil.disk_usage(tmp_path).free / 2**20
    with pytest.raises(OutputError) as caught, writer(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    line = str(caught.value)
    assert line.startswith(f"{path}: the disk is full (")
    assert line.endswith(f" MiB free in {tmp_path}); make room")
    assert isinstance(caught.value, WriteError)
    assert caught.value.needed_bytes is None
    assert caught.value.available_bytes == pytest.approx(free * 2**20, rel=0.2)
    told = float(line.partition("(")[2].partition(" ")[0])
    assert told == pytest.approx(free, rel=0.2)
    assert tree(tmp_path) == {}


def test_a_full_disk_of_a_system_that_knows_no_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert describe_write_error(tmp_path / "a", OSError(errno.ENOSPC, "x")) == f"{tmp_path / 'a'}: the disk is full; make room"
    with atomic_dir(tmp_path / "bundle", size=2**60):
        pass


def test_a_full_disk_is_told_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    line = describe_write_error(tmp_path / "not" / "yet" / "a.txt", OSError(errno.ENOSPC, "x"))
    assert f"MiB free in {tmp_path})" in line


def disk_with(free: int) -> Callable[[Path], Any]:
    """What stands in for `shutil.disk_usage`, which knows folders that are there."""

    def usage(path: Path) -> Any:
        path.stat()
        return shutil._ntuple_diskusage(10**9, 10**9 - free, free)

    return usage


def test_a_folder_for_which_there_is_no_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "bundle"
    filled: list[Path] = []

    def write() -> None:
        with atomic_dir(path, size=10 * 2**20) as folder:
            filled.append(folder)

    monkeypatch.setattr(shutil, "disk_usage", disk_with(11 * 2**20 - 1))
    with pytest.raises(WriteError) as caught:
        write()
    assert str(caught.value) == f"{path}: the disk is full (11.0 MiB needed, 11.0 MiB free in {tmp_path}); make room"
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (11 * 2**20, 11 * 2**20 - 1)
    assert filled == []
    assert tree(tmp_path) == {}
    monkeypatch.setattr(shutil, "disk_usage", disk_with(11 * 2**20))
    write()
    verify_checksums(path, BundleError)


def test_the_room_that_is_told_is_what_there_is_when_the_attempt_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_: Path) -> Any:
        held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        return disk_with(100 * 2**20 - held)(tmp_path)

    monkeypatch.setattr(shutil, "disk_usage", usage)

    def write() -> None:
        with atomic_dir(tmp_path / "bundle", size=50 * 2**20) as folder:
            (folder / "weights").write_bytes(bytes(2**20))
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with pytest.raises(WriteError) as caught:
        write()
    told = "the quota is used up (55.0 MiB needed, 100.0 MiB free in"
    assert str(caught.value) == f"{tmp_path / 'bundle'}: {told} {tmp_path}); make room"
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("at_once", [1, 7, 64, 2**20], ids=lambda count: f"{count} bytes at once")
def test_a_file_is_written_whole_by_a_system_that_takes_a_few_bytes_at_once(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POSIX lets write(2) take fewer bytes than it was given."""
    write = io.FileIO.write

    class Reluctant(io.FileIO):
        def write(self, held: Any) -> int:
            return write(self, held[:at_once])

    monkeypatch.setattr(Path, "open", lambda path, mode, **_: Reluctant(path, mode))
    monkeypatch.setattr("dragoman.io.storage.PIECE", 100)
    pieces = [random.Random(size).randbytes(size) for size in (0, 1, 99, 100, 101, 250)]
    digest = write_with_digest(tmp_path / "a", [pieces[0], *(memoryview(piece) for piece in pieces[1:])])
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)
    assert digest == hashlib.sha256(b"".join(pieces)).hexdigest()
    with pytest.raises(FileExistsError):
        write_with_digest(tmp_path / "a", [])


def test_a_file_that_does_not_read_back_as_it_was_written_is_never_put_in_place(tmp_path: Path) -> None:
    path = tmp_path / "bundle"

    def write(change: Callable[[Path], object]) -> None:
        written: dict[str, str] = {}
        with atomic_dir(path, written=written) as folder:
            written["weights"] = write_with_digest(folder / "weights", [b"as it should be"])
            change(folder / "weights")

    for change in (lambda path: path.write_bytes(b"as it Should be"), Path.unlink):
        with pytest.raises(WriteError) as caught:
            write(change)
        why = "'weights' did not read back as it was written; the device may be failing"
        assert str(caught.value) == f"{path}: cannot be written: {why}"
        assert tree(tmp_path) == {}
    write(Path.exists)
    verify_checksums(path, BundleError)


def test_a_folder_that_may_not_be_read_is_told(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in range(len(CONTENTS) + 1):  # the manifest, and each file
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", Failing(Path.open, after, errno.EACCES).method())
            assert refusal(sealed).endswith("cannot be read: Permission denied")
    verify_checksums(sealed, BundleError)


# --- one at a time ----------------------------------------------------------------------------------------------------

BUSY = "another process is at work in there; wait for it, or stop it"
HOLDING = """
import sys, time
from pathlib import Path
from dragoman.errors import OutputError
from dragoman.io.storage import alone_in
try:
    with alone_in(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
    print("released", flush=True)
    sys.stdin.read()
except OutputError as error:
    print(error)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLDING, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    """Until it lets go of it, fails, or is killed."""
    (tmp_path / "other").mkdir()
    with lock_dir(tmp_path), lock_dir(tmp_path / "other"), holder(tmp_path) as second:
        assert said(second) == f"{tmp_path}: {BUSY}"
    with holder(tmp_path) as second:
        assert said(second) == "held"
        with pytest.raises(OutputError) as caught, lock_dir(tmp_path):
            raise AssertionError("two hold it")
        assert str(caught.value) == f"{tmp_path}: {BUSY}"
        second.send_signal(signal.SIGKILL)
    with pytest.raises(ZeroDivisionError), lock_dir(tmp_path):
        raise ZeroDivisionError
    with lock_dir(tmp_path):
        pass
    assert tree(tmp_path) == {"other": None}


def test_a_file_system_without_locks_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of flock(2) where a mount has none: ENOLCK, ENOTSUP; on Windows there is no such call."""
    for code in (errno.ENOLCK, errno.ENOTSUP):

        def refuse(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr("dragoman.io.storage.fcntl.flock", refuse)
            with lock_dir(tmp_path):
                pass
    monkeypatch.setattr("dragoman.io.storage.fcntl", None)
    with lock_dir(tmp_path), lock_dir(tmp_path):
        pass
