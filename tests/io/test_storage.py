"""Tests of atomic writes, checksums, full disks and locks."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import random
import signal
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import dragoman.io.storage
from dragoman.errors import BundleError, OutputError, WriteError
from dragoman.io.storage import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    atomic_dir,
    atomic_write,
    check_path_is_free,
    lock_dir,
    make_dirs,
    to_write_error,
    verify_checksums,
    write_json,
    write_lines,
    write_with_digest,
)
from dragoman.platform_features import fcntl
from expected_errors import raises_code

CONTENTS = {"config.json": b'{"a": 1}\n', "empty": b"", "weights.safetensors": bytes(range(64)), "z.model": b"\x00\xff" * 8}


def write_folder(path: Path, contents: dict[str, bytes] = CONTENTS, *, overwrite: bool = False) -> None:
    with atomic_dir(path, overwrite=overwrite) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file below a folder, including hidden files; None for a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def verify_error(folder: Path) -> str:
    """Return the message with which `verify_checksums` rejects a folder."""
    with pytest.raises(BundleError) as caught:
        verify_checksums(folder, BundleError)
    message = str(caught.value)
    assert str(folder) in message
    assert message.isprintable(), message
    return message


# --- text files -------------------------------------------------------------------------------------------------------


def test_write_leaves_only_the_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", ["ä", "", "b\u2028c\rd"])
    write_json(tmp_path / "b.json", {"ä": [1, None]})
    assert read_tree(tmp_path) == {
        "a.txt": "ä\n\nb\u2028c\rd\n".encode(),
        "b.json": '{\n "ä": [\n  1,\n  null\n ]\n}\n'.encode(),
    }


def test_file_appears_when_complete(tmp_path: Path) -> None:
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
    assert read_tree(tmp_path) == {"a.txt": b"new"}


class Abort(BaseException):
    """Exception outside `Exception`, like KeyboardInterrupt."""


@pytest.mark.parametrize("reason", [ValueError, Abort])
@pytest.mark.parametrize("old", [None, b"old"])
def test_aborted_file_changes_nothing(tmp_path: Path, reason: type[BaseException], old: bytes | None) -> None:
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_bytes(old)
    before = read_tree(tmp_path)

    def abort_write() -> None:
        with atomic_write(path, overwrite=True) as stream:
            stream.write("half")
            raise reason

    with pytest.raises(reason):
        abort_write()
    assert read_tree(tmp_path) == before


def test_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    writers: list[Callable[[], None]] = [
        lambda: write_lines(path, ["new"]),
        lambda: write_json(path, 1),
        lambda: check_path_is_free(path),
    ]
    for write in writers:
        with raises_code("output-exists", "a.txt"):
            write()
    assert read_tree(tmp_path) == {"a.txt": b"old"}


def test_file_created_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def write_twice() -> None:
        with atomic_write(path) as stream:
            stream.write("mine")
            path.write_text("theirs")

    with raises_code("output-exists", "a.txt"):
        write_twice()
    assert read_tree(tmp_path) == {"a.txt": b"theirs"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_or_pipe_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "folder", tmp_path / "pipe", Path(), Path("/")):
        with pytest.raises(OutputError, match=f"^{path}: (exists already|is not a file)"):
            write_lines(path, ["new"], overwrite=overwrite)
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "pipe").is_fifo()


# --- folders with checksums -------------------------------------------------------------------------------------------


def test_manifest_holds_sizes_and_checksums(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle"
    write_folder(path)
    verify_checksums(path, BundleError)
    manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    files = {
        name: {
            "bytes": len(content), "crc32": f"{zlib.crc32(content):08x}", "sha256": hashlib.sha256(content).hexdigest()
        }
        for name, content in sorted(CONTENTS.items())
    }  # fmt: skip
    own = f"{zlib.crc32(json.dumps(files).encode()):08x}"
    assert manifest == {"format": FORMAT_VERSION, "files": files, "crc32": own}
    assert read_tree(path) == {**CONTENTS, MANIFEST_FILE: (path / MANIFEST_FILE).read_bytes()}
    assert [entry.name for entry in path.parent.iterdir()] == ["bundle"]


def test_folder_appears_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    with atomic_dir(path) as folder:
        (folder / "a").write_text("first")
        assert not path.exists()
    before = read_tree(path)
    with atomic_dir(path, overwrite=True) as folder:
        (folder / "a").write_text("second")
        assert read_tree(path) == before
    assert (path / "a").read_text() == "second"
    verify_checksums(path, BundleError)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("reason", [ValueError, Abort])
@pytest.mark.parametrize("old", [False, True])
def test_aborted_folder_changes_nothing(tmp_path: Path, reason: type[BaseException], old: bool) -> None:
    path = tmp_path / "bundle"
    if old:
        write_folder(path)
    before = read_tree(tmp_path)

    def abort_write() -> None:
        with atomic_dir(path, overwrite=True) as folder:
            (folder / "config.json").write_text("half")
            raise reason

    with pytest.raises(reason):
        abort_write()
    assert read_tree(tmp_path) == before


def test_folder_created_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bundle"

    def write_twice() -> None:
        with atomic_dir(path) as folder:
            (folder / "config.json").write_text("mine")
            write_folder(path, {"config.json": b"theirs"})

    with raises_code("output-exists", "bundle"):
        write_twice()
    verify_checksums(path, BundleError)
    assert (path / "config.json").read_text() == "theirs"
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("has_manifest", [False, True])
def test_foreign_folder_is_kept(tmp_path: Path, has_manifest: bool) -> None:
    path = tmp_path / "letters"
    path.mkdir()
    (path / "to-grandmother.txt").write_text("Dear")
    if has_manifest:
        (path / MANIFEST_FILE).write_text("{}")
    (tmp_path / "file").write_text("x")
    before = read_tree(tmp_path)
    with raises_code("not-replaceable", "letters", "to-grandmother.txt"):
        write_folder(path, overwrite=True)
    for path in (tmp_path / "file", Path(), Path("/")):
        with raises_code("not-replaceable", str(path)):
            write_folder(path, overwrite=True)
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("kept_names", [[], ["weights.safetensors"], [MANIFEST_FILE]])
def test_damaged_or_empty_folder_is_replaced(tmp_path: Path, kept_names: list[str]) -> None:
    path = tmp_path / "step-00000100"
    write_folder(path)
    for entry in path.iterdir():
        if entry.name not in kept_names:
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


@pytest.mark.parametrize(("code", "raises"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_file_system_without_folder_sync_works(
    code: int, raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync(2) fails with EINVAL if a descriptor does not support it."""

    def fail_for_folder(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail_for_folder)
    with pytest.raises(WriteError) if raises else nullcontext():
        write_folder(tmp_path / "bundle")
    assert (tmp_path / "bundle").exists() != raises


def test_new_folders_are_synced_into_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut could remove a folder whose name is not synced."""
    synced: list[Path] = []
    monkeypatch.setattr(dragoman.io.storage, "sync_dir", synced.append)
    make_dirs(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_dirs(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_dirs(tmp_path / "file" / "a")


# --- verification -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_folder(tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.mark.parametrize("name", [*(name for name, content in CONTENTS.items() if content), MANIFEST_FILE])
def test_every_change_is_detected(bundle: Path, name: str) -> None:
    """Change each byte by a random pattern, and each bit of the first bytes of the manifest; cut and extend the file."""
    path = bundle / name
    content = path.read_bytes()
    draw = random.Random(name)
    patterns = [(offset, draw.randrange(1, 256)) for offset in range(len(content))]
    if name == MANIFEST_FILE:
        patterns += [(offset, 1 << bit) for offset in range(40) for bit in range(8)]
    for offset, pattern in patterns:
        changed = bytearray(content)
        changed[offset] ^= pattern
        path.write_bytes(changed)
        message = verify_error(bundle)
        assert (name in message) or name == MANIFEST_FILE, message
    for changed_length in (*(content[:length] for length in range(0, len(content), 7)), content + b"\n", content + b"\x00"):
        path.write_bytes(changed_length)
        assert name in verify_error(bundle)
    path.write_bytes(content)
    verify_checksums(bundle, BundleError)


@pytest.mark.parametrize("name", CONTENTS)
def test_missing_file_is_detected(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert verify_error(bundle) == f"{bundle}: {name!r} is missing; copy the folder again"
    (bundle / name).mkdir()
    assert verify_error(bundle).startswith(f"{bundle / name}: was changed")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("name", ["extra.py", "line\nbreak", "Config.json"])
def test_added_file_is_detected(bundle: Path, make: Callable[[Path], object], name: str) -> None:
    make(bundle / name)
    assert verify_error(bundle) == f"{bundle}: {name!r} does not belong to it; move it elsewhere"


def test_hidden_files_of_other_programs_are_ignored(bundle: Path) -> None:
    (bundle / ".DS_Store").touch()
    verify_checksums(bundle, BundleError)
    (bundle / ".DS_Store").rename(bundle / "DS_Store")
    with raises_code("bundle-damaged", "'DS_Store'"):
        verify_checksums(bundle, BundleError)


def test_folder_without_manifest_is_named(tmp_path: Path) -> None:
    remedy = "give a folder that dragoman wrote"
    assert verify_error(tmp_path / "none").endswith(f"none: there is no such folder; {remedy}")
    assert verify_error(tmp_path).endswith(f"holds no {MANIFEST_FILE}; {remedy}")
    (tmp_path / "file").touch()
    assert verify_error(tmp_path / "file").endswith("file: is not a folder; give a folder that dragoman wrote")
    (tmp_path / MANIFEST_FILE).mkdir()
    assert verify_error(tmp_path).endswith(f"{MANIFEST_FILE}: cannot be read: Is a directory")


def test_other_format_version_is_named(bundle: Path) -> None:
    path = bundle / MANIFEST_FILE
    path.write_text(json.dumps({"format": FORMAT_VERSION + 1, "files": ["unknown"]}))
    assert verify_error(bundle).startswith(f"{bundle}: has format {FORMAT_VERSION + 1}, but ")


def encode_manifest(files: Any) -> bytes:
    """Return the bytes of a manifest in the form of `atomic_dir`."""
    return json.dumps({"format": FORMAT_VERSION, "files": files}, indent=1).encode()


SECRET = b"not yours"
ENTRY = {"bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}


@pytest.mark.parametrize(
    "manifest",
    [
        *(
            encode_manifest({name: ENTRY})
            for name in ("../secret", "/etc/passwd", "", ".", "..", "a/b", "a\nb", "a\x00b", "\ud800")
        ),
        encode_manifest({MANIFEST_FILE: ENTRY}),
        encode_manifest({"config.json": None}),
        encode_manifest({"config.json": {"bytes": "nine", "sha256": 3}}),
        encode_manifest([["config.json", ENTRY]]),
        encode_manifest(None),
        b"[]",
        b"",
        b"\xff\xfe",
        b'{"format": true, "files": {}}',
        b'{"format": 1e999, "files": {}}',
        b'{"format": 1' + b"0" * 5000 + b', "files": {}}',
        b'{"files": {}, "format": 1}',
        b"[" * 100_000,
        b'{"format": 1, "files": ' + b'{"a": ' * 400 + b"1" + b"}" * 400 + b"}",
    ],
    ids=lambda manifest: manifest[:60].decode(errors="replace"),
)
def test_hostile_manifest_reads_no_outside_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: bytes) -> None:
    write_folder(tmp_path / "bundle")
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "bundle" / MANIFEST_FILE).write_bytes(manifest)
    opened: list[Path] = []
    open_file = io.open

    def record_and_open(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(Path(file))
        return open_file(file, *arguments, **options)

    monkeypatch.setattr(io, "open", record_and_open)  # Path.open calls this
    monkeypatch.setattr(builtins, "open", record_and_open)
    verify_error(tmp_path / "bundle")
    assert opened
    assert all(path.parent == tmp_path / "bundle" for path in opened)


# --- write errors -----------------------------------------------------------------------------------------------------

# All calls by which the writers change the disk.
CALLS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "chmod"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "open"),
]


class FailingCall:
    """Function that passes `after` calls on, fails at the next one, and passes later ones on."""

    def __init__(self, call: Callable[..., Any], after: int, code: int) -> None:
        self.call, self.calls_left, self.code = call, after, code
        self.failed = False

    def method(self) -> Callable[..., Any]:
        def call_or_fail(*arguments: Any, **options: Any) -> Any:
            if self.calls_left == 0 and not self.failed:
                self.failed = True
                raise OSError(self.code, os.strerror(self.code))
            self.calls_left -= 1
            return self.call(*arguments, **options)

        return call_or_fail


def fail_each_call(
    folder: Path, patch: pytest.MonkeyPatch, code: int, *, old: Callable[[Path], object], write: Callable[[Path], object]
) -> int:
    """Fail each call of `write` that changes the disk in turn, check message and folder, and return the number of failures."""
    count = 0
    for owner, name in CALLS:
        for after in range(50):
            case_dir = folder / f"{name}-{after}"
            case_dir.mkdir()
            old(case_dir / "out")
            before = read_tree(case_dir)
            failing = FailingCall(getattr(owner, name), after, code)
            message = None
            with patch.context() as patched:
                patched.setattr(owner, name, failing.method())
                try:
                    write(case_dir / "out")
                except OutputError as error:
                    message = str(error)
            if not failing.failed:
                break
            full = {errno.ENOSPC: "the disk is full (", errno.EDQUOT: "the quota is used up ("}
            reason = full.get(code, f"cannot be written: {os.strerror(code)}")
            assert message is not None, case_dir
            assert message.startswith(f"{case_dir / 'out'}: {reason}")
            assert read_tree(case_dir) == before, case_dir
            count += 1
    return count


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize(("old", "last"), [(lambda _: None, 1), (write_folder, 4)], ids=["new", "over the old"])
def test_failed_folder_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, old: Callable[[Path], object], last: int
) -> None:
    def write(path: Path) -> None:
        with atomic_dir(path, overwrite=True) as folder:
            for name in CONTENTS:
                (folder / name).touch()

    # Each of 4 files gets its mode, and is opened and synced. The manifest is opened and synced. The folder is made and
    # synced, and its parent is synced. Then come the renames, after an old manifest is read and the old mode is passed on.
    assert fail_each_call(tmp_path, monkeypatch, code, old=old, write=write) == 4 * 3 + 2 + 3 + last


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize(
    ("old", "calls"), [(lambda _: None, 3), (lambda path: path.write_bytes(b"old"), 4)], ids=["new", "over the old"]
)
def test_failed_file_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, old: Callable[[Path], object], calls: int
) -> None:
    def write(path: Path) -> None:
        write_lines(path, ["new"], overwrite=True)

    # Open, mode of the old file, sync, rename.
    assert fail_each_call(tmp_path, monkeypatch, code, old=old, write=write) == calls


@pytest.mark.parametrize("max_bytes", [1, 7, 64, 2**20], ids=lambda count: f"{count} bytes per call")
def test_partial_writes_are_completed(max_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSIX allows write(2) to write fewer bytes than requested."""
    write = io.FileIO.write

    class PartialFile(io.FileIO):
        def write(self, content: Any) -> int:
            return write(self, content[:max_bytes])

    monkeypatch.setattr(Path, "open", lambda path, mode, **_: PartialFile(path, mode))
    monkeypatch.setattr(dragoman.io.storage, "CHUNK_BYTES", 100)
    pieces = [random.Random(size).randbytes(size) for size in (0, 1, 99, 100, 101, 250)]
    digest = write_with_digest(tmp_path / "a", [pieces[0], *(memoryview(piece) for piece in pieces[1:])])
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)
    assert digest == hashlib.sha256(b"".join(pieces)).hexdigest()
    with pytest.raises(FileExistsError):
        write_with_digest(tmp_path / "a", [])


def test_file_that_reads_back_differently_raises(tmp_path: Path) -> None:
    path = tmp_path / "bundle"

    def write(change: Callable[[Path], object]) -> None:
        digests: dict[str, str] = {}
        with atomic_dir(path, digests=digests) as folder:
            digests["weights"] = write_with_digest(folder / "weights", [b"as it should be"])
            change(folder / "weights")

    for change in (lambda path: path.write_bytes(b"as it Should be"), Path.unlink):
        with pytest.raises(WriteError) as caught:
            write(change)
        reason = "'weights' reads back differently than written; check the device"
        assert str(caught.value) == f"{path}: cannot be written: {reason}"
        assert read_tree(tmp_path) == {}
    write(Path.exists)
    verify_checksums(path, BundleError)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    message = str(to_write_error(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))))
    assert message == f"{path}: cannot be written: there is no folder {path.parent}; make it first"


def test_unreadable_folder_raises(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in range(len(CONTENTS) + 1):  # the manifest, and each file
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", FailingCall(Path.open, after, errno.EACCES).method())
            assert verify_error(bundle).endswith("cannot be read: Permission denied")
    verify_checksums(bundle, BundleError)


# --- locks ------------------------------------------------------------------------------------------------------------

BUSY = "another process is at work in it; wait for it, or stop it"
HOLDER_SCRIPT = """
import sys, time
from pathlib import Path
from dragoman.errors import OutputError
from dragoman.io.storage import lock_dir
try:
    with lock_dir(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
    print("released", flush=True)
    sys.stdin.read()
except OutputError as error:
    print(error)
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER_SCRIPT, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_one_process_holds_a_lock(tmp_path: Path) -> None:
    """The lock ends with its block, with an exception, or when the process is killed."""
    (tmp_path / "other").mkdir()
    with lock_dir(tmp_path), lock_dir(tmp_path / "other"), start_holder(tmp_path) as second:
        assert read_answer(second) == f"{tmp_path}: {BUSY}"
    with start_holder(tmp_path) as second:
        assert read_answer(second) == "held"
        with pytest.raises(OutputError) as caught, lock_dir(tmp_path):
            raise AssertionError("two processes hold the lock")
        assert str(caught.value) == f"{tmp_path}: {BUSY}"
        second.send_signal(signal.SIGKILL)
    with pytest.raises(ZeroDivisionError), lock_dir(tmp_path):
        raise ZeroDivisionError
    with lock_dir(tmp_path):
        pass
    assert read_tree(tmp_path) == {"other": None}


def test_file_system_without_locks_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock(2) fails with ENOLCK or ENOTSUP if a mount has no locks; Windows has no such call."""
    for code in (errno.ENOLCK, errno.ENOTSUP):

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", fail)
            with lock_dir(tmp_path):
                (tmp_path / f"{code}").touch()
    monkeypatch.setattr(dragoman.io.storage, "fcntl", None)
    with lock_dir(tmp_path), lock_dir(tmp_path):
        (tmp_path / "twice").touch()
    assert {path.name for path in tmp_path.iterdir()} == {f"{errno.ENOLCK}", f"{errno.ENOTSUP}", "twice"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_replaced_file_and_folder_keep_permissions(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.txt", tmp_path / "bundle"
    write_lines(file, ["old"])
    file.chmod(0o604)
    folder.mkdir(mode=0o700)
    old_mask = os.umask(0o022)
    try:
        write_lines(file, ["new"], overwrite=True)
        with atomic_dir(folder, overwrite=True) as partial:
            (partial / "b.txt").write_text("new")
    finally:
        os.umask(old_mask)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new\n", 0o604)
    assert (folder.stat().st_mode & 0o777, (folder / "b.txt").stat().st_mode & 0o777) == (0o700, 0o600)
