"""Files that are there whole or not at all: text files, and folders sealed with a digest of everything in them.

A sealed folder is written beside its place. Each file is synced, read back, and its SHA-256 put into `manifest.json`; that is
synced, then the folder; one rename gives it its name, and the folder around it is synced. A reader checks every digest, since
neither safetensors nor any format that we use notices a flipped bit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import repeat
from pathlib import Path
from typing import IO, Any

from dragoman.errors import DragomanError, OutputError, WriteError

fcntl: Any
try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

MANIFEST = "manifest.json"
FORMAT = 1

PIECE = 2**22
"""Bytes written at once, and digested meanwhile where they are not so few that it would take longer."""
SMALL = 2**16
READERS = 4
"""Files of a folder that are read at once."""


def cannot_write(path: Path, error: OSError) -> str:
    """One line that says why, and how much room there is where that is the reason."""
    return str(_write_error(path, error))


def _write_error(path: Path, error: OSError, needed: int | None = None) -> WriteError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(f"{path}: cannot be written: {error.strerror or error}")
    available, folder = _room_for(path)
    known = [f"{needed / 2**20:.1f} MiB needed"] if needed is not None else []
    known += [f"{available / 2**20:.1f} MiB free in {folder}"] if available is not None else []
    what = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    room = f" ({', '.join(known)})" if known else ""
    return WriteError(f"{path}: {what}{room}; make room", needed=needed, available=available)


def _room_for(path: Path) -> tuple[int | None, Path]:
    """Bytes that may be written below the nearest folder that is there, none where the system does not say; and that folder."""
    for folder in path.absolute().parents:
        with suppress(OSError):
            return shutil.disk_usage(folder).free, folder
    return None, path.parent


def _with_a_tenth(size: int) -> int:
    return size + size // 10


def _refuse_to_fill_the_disk(path: Path, size: int) -> None:
    """Raise WriteError where there is no room for so many bytes and a tenth more below `path`."""
    needed, (available, _) = _with_a_tenth(size), _room_for(path)
    if available is not None and available < needed:
        raise _write_error(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)


def refuse_existing(path: Path) -> None:
    """Raise OutputError where something stands at `path`."""
    if _stands(path):
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to replace it")


def _stands(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _write_error(path, error) from None


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[IO[str]]:
    """A text file that appears at `path` whole or not at all. Raises OutputError where it exists or cannot be written."""
    if not overwrite:
        refuse_existing(path)
    if _stands(path) and not path.is_file():
        raise OutputError(f"{path}: is not a file, and is left as it is; give another name")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if not overwrite:
            refuse_existing(path)
        partial.replace(path)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def write_lines(path: Path, lines: Iterable[str], *, overwrite: bool = False) -> None:
    """Write a text file, whole or not at all."""
    with new_file(path, overwrite=overwrite) as stream:
        stream.writelines(line + "\n" for line in lines)


def write_json(path: Path, document: Any, *, overwrite: bool = False) -> None:
    """Write a JSON file, whole or not at all."""
    write_lines(path, [json.dumps(document, indent=1, ensure_ascii=False)], overwrite=overwrite)


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write a new file and return the SHA-256 of what was to be written. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("xb", buffering=0) as stream, ThreadPoolExecutor(1) as beside:
        for piece in pieces:
            for start in range(0, len(piece), PIECE):
                part = memoryview(piece)[start : start + PIECE]
                if len(part) < SMALL:
                    digest.update(part)
                    _write_all(stream, part)
                else:
                    digested = beside.submit(digest.update, part)
                    _write_all(stream, part)
                    digested.result()
    return digest.hexdigest()


def _write_all(stream: FileIO, held: bytes | memoryview) -> None:
    """The system may write fewer bytes than it was asked to, and does so before a disk is full."""
    while held:
        held = held[stream.write(held) :]


@contextmanager
def sealed_folder(
    path: Path, *, overwrite: bool = False, size: int = 0, written: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """A folder to fill, which appears at `path` whole and sealed or not at all.

    Raises OutputError where it exists, and WriteError where it cannot be written. With `overwrite` the old one stands until
    the new one is whole, and a folder that holds anything that is neither in its manifest nor among the new files is never
    replaced.

    size: bytes that will be written, for which there must be room before anything is
    written: SHA-256 by file name, to which the files must read back; filled while the folder is
    """
    if not overwrite:
        refuse_existing(path)
    if not path.name or (_stands(path) and not path.is_dir()):
        raise OutputError(f"{path}: is not a folder that can be replaced, and is left as it is; give another name")
    _refuse_to_fill_the_disk(path, size)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        try:
            make_folder(partial.parent)
            partial.mkdir()
            yield partial
            _seal(partial, written or {})
            if not overwrite:
                refuse_existing(path)
            _put_in_place(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # before it is told how much room there is
    except OSError as error:
        raise _write_error(path, error, _with_a_tenth(size) if size else None) from None


def make_folder(path: Path) -> None:
    """Make a folder and those around it, so that a power cut takes none of them away later. Raises OSError."""
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def _put_in_place(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; what stood there is removed after that, or comes back where that fails."""
    old = partial.with_suffix(".old")
    if path.exists() and (strange := sorted(_names(path) - _listed(path) - _names(partial))):
        raise OutputError(f"{path}: holds {strange[0]!r}, which dragoman did not write; it is left as it is; give another name")
    try:
        if path.exists():
            path.rename(old)
        partial.rename(path)
        sync_folder(path.parent)
    except BaseException:
        if not partial.exists():
            path.rename(partial)
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def _listed(folder: Path) -> set[str]:
    """The names in a folder's manifest, as far as it can be read."""
    try:
        return set(json.loads((folder / MANIFEST).read_bytes())["files"])
    except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def _seal(folder: Path, written: Mapping[str, str]) -> None:
    mode = folder.stat().st_mode & 0o666  # whoever wrote a file may have kept it from others
    paths = sorted(folder.iterdir())
    for path in paths:
        path.chmod(mode)
    files = _describe_all(paths, sync=True)
    for name, digest in written.items():
        if (files.get(name) or {}).get("sha256") != digest:
            raise OSError(errno.EIO, f"{name!r} did not read back as it was written; the device may be failing")
    with (folder / MANIFEST).open("xb", buffering=0) as stream:
        _write_all(stream, _manifest(files))
        os.fsync(stream.fileno())
    sync_folder(folder)


def _manifest(files: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, "files": files}, indent=1).encode()


def check_seal(folder: Path, error: type[DragomanError], *, unread: type[DragomanError] | None = None) -> None:
    """Raise `error`, naming the file, where anything in a sealed folder is missing, cut short, changed or added.

    unread: what is raised instead where that cannot be told: it cannot be read now, or is written in another format
    """
    unread = unread or error
    files = _read_manifest(folder, error, unread)
    try:
        names = {path.name for path in folder.iterdir()} - {MANIFEST}
        if missing := sorted(files.keys() - names):
            raise error(f"{folder}: {missing[0]!r} is missing; take the folder from where it came once more")
        # Hidden files are what file managers and version control leave behind; nothing reads them.
        if added := sorted(name for name in names - files.keys() if not name.startswith(".")):
            raise error(f"{folder}: {added[0]!r} does not belong to it; move it elsewhere")
        found = _describe_all([folder / name for name in files])
        for name, wanted in files.items():
            if found[name] != wanted:
                raise error(
                    f"{folder / name}: was changed or cut short after it was written; take it from where it came once more"
                )
    except OSError as reason:
        raise unread(f"{folder}: cannot be read: {reason.strerror}") from None


def _read_manifest(folder: Path, error: type[DragomanError], unread: type[DragomanError]) -> dict[str, Any]:
    """What the manifest says of each file. It must stand byte for byte as it was written, since it has no digest itself."""
    path = folder / MANIFEST
    version: Any = FORMAT
    files: dict[str, Any] = {}
    whole = False
    try:
        written = path.read_bytes()
        manifest = json.loads(written)
        version = manifest["format"]
        files = dict(manifest["files"])
        whole = _manifest(files) == written
    except FileNotFoundError:
        what = f"holds no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise error(f"{folder}: {what}; it is not something that dragoman wrote") from None
    except NotADirectoryError:
        raise error(f"{folder}: is not a folder, as all are that dragoman wrote") from None
    except OSError as reason:
        raise unread(f"{path}: cannot be read: {reason.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if isinstance(version, int) and version != FORMAT:
        raise unread(f"{folder}: written in format {version}; this dragoman reads format {FORMAT}")
    if not whole:
        raise error(f"{path}: is damaged; take the folder from where it came once more")
    return files


def _describe_all(paths: Sequence[Path], *, sync: bool = False) -> dict[str, Any]:
    """Size and digest of each file by name, read side by side; none for what is no file."""
    with ThreadPoolExecutor(READERS) as readers:
        described = readers.map(_describe, paths, repeat(sync))
        return dict(zip((path.name for path in paths), described, strict=True))


def _describe(path: Path, sync: bool) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        if sync:
            os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest}


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder that no other process then gets. Raises OutputError where one has it."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{folder}: another process is at work in there; wait for it, or stop it") from None
        except OSError:
            pass  # a file system that knows no locks
        yield
    finally:
        os.close(descriptor)


def put_in_place(partial: Path, path: Path) -> None:
    """Give a file that is written to its end its name, so that it never stands there in part, whatever fails."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(path)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut, where the file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what those say that cannot
            raise
    finally:
        os.close(descriptor)
