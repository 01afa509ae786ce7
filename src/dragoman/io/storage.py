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

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1

CHUNK_BYTES = 2**22
"""Bytes written at once, and digested meanwhile where they are not so few that it would take longer."""
MIN_THREADED_BYTES = 2**16
NUM_READERS = 4
"""Files of a folder that are read at once."""


def describe_write_error(path: Path, error: OSError) -> str:
    """One line that says why, and how much room there is where that is the reason."""
    return str(_to_write_error(path, error))


def _to_write_error(path: Path, error: OSError, needed: int | None = None) -> WriteError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(f"{path}: cannot be written: {error.strerror or error}")
    available, folder = _get_free_space(path)
    sizes = [f"{needed / 2**20:.1f} MiB needed"] if needed is not None else []
    sizes += [f"{available / 2**20:.1f} MiB free in {folder}"] if available is not None else []
    problem = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    details = f" ({', '.join(sizes)})" if sizes else ""
    return WriteError(f"{path}: {problem}{details}; make room", needed_bytes=needed, available_bytes=available)


def _get_free_space(path: Path) -> tuple[int | None, Path]:
    """Bytes that may be written below the nearest folder that is there, none where the system does not say; and that folder."""
    for folder in path.absolute().parents:
        with suppress(OSError):
            return shutil.disk_usage(folder).free, folder
    return None, path.parent


def _add_margin(size: int) -> int:
    return size + size // 10


def _check_free_space(path: Path, size: int) -> None:
    """Raise WriteError where there is no room for so many bytes and a tenth more below `path`."""
    needed, (available, _) = _add_margin(size), _get_free_space(path)
    if available is not None and available < needed:
        raise _to_write_error(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)


def check_path_is_free(path: Path) -> None:
    """Raise OutputError where something stands at `path`."""
    if _path_exists(path):
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to replace it")


def _path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _to_write_error(path, error) from None


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[IO[str]]:
    """A text file that appears at `path` whole or not at all. Raises OutputError where it exists or cannot be written."""
    if not overwrite:
        check_path_is_free(path)
    if _path_exists(path) and not path.is_file():
        raise OutputError(f"{path}: is not a file, and is left as it is; give another name")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if not overwrite:
            check_path_is_free(path)
        partial.replace(path)
    except OSError as error:
        raise _to_write_error(path, error) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def write_lines(path: Path, lines: Iterable[str], *, overwrite: bool = False) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path, overwrite=overwrite) as stream:
        stream.writelines(line + "\n" for line in lines)


def write_json(path: Path, document: Any, *, overwrite: bool = False) -> None:
    """Write a JSON file, whole or not at all."""
    write_lines(path, [json.dumps(document, indent=1, ensure_ascii=False)], overwrite=overwrite)


def write_with_digest(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write a new file and return the SHA-256 of what was to be written. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("xb", buffering=0) as stream, ThreadPoolExecutor(1) as executor:
        for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                part = memoryview(chunk)[start : start + CHUNK_BYTES]
                if len(part) < MIN_THREADED_BYTES:
                    digest.update(part)
                    _write_all(stream, part)
                else:
                    future = executor.submit(digest.update, part)
                    _write_all(stream, part)
                    future.result()
    return digest.hexdigest()


def _write_all(stream: FileIO, remaining: bytes | memoryview) -> None:
    """The system may write fewer bytes than it was asked to, and does so before a disk is full."""
    while remaining:
        remaining = remaining[stream.write(remaining) :]


@contextmanager
def atomic_dir(
    path: Path, *, overwrite: bool = False, size: int = 0, digests: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """A folder to fill, which appears at `path` whole and sealed or not at all.

    Raises OutputError where it exists, and WriteError where it cannot be written. With `overwrite` the old one stands until
    the new one is whole, and a folder that holds anything that is neither in its manifest nor among the new files is never
    replaced.

    size: bytes that will be written, for which there must be room before anything is
    written: SHA-256 by file name, to which the files must read back; filled while the folder is
    """
    if not overwrite:
        check_path_is_free(path)
    if not path.name or (_path_exists(path) and not path.is_dir()):
        raise OutputError(f"{path}: is not a folder that can be replaced, and is left as it is; give another name")
    _check_free_space(path, size)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        try:
            make_dirs(partial.parent)
            partial.mkdir()
            yield partial
            _write_manifest(partial, digests or {})
            if not overwrite:
                check_path_is_free(path)
            _replace_dir(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # before it is told how much room there is
    except OSError as error:
        raise _to_write_error(path, error, _add_margin(size) if size else None) from None


def make_dirs(path: Path) -> None:
    """Make a folder and those around it, so that a power cut takes none of them away later. Raises OSError."""
    if not path.exists():
        make_dirs(path.parent)
        path.mkdir(exist_ok=True)
        sync_dir(path.parent)


def _replace_dir(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; what stood there is removed after that, or comes back where that fails."""
    old = partial.with_suffix(".old")
    if path.exists() and (unknown_names := sorted(_list_names(path) - _read_listed_names(path) - _list_names(partial))):
        raise OutputError(
            f"{path}: holds {unknown_names[0]!r}, which dragoman did not write; it is left as it is; give another name"
        )
    try:
        if path.exists():
            path.rename(old)
        partial.rename(path)
        sync_dir(path.parent)
    except BaseException:
        if not partial.exists():
            path.rename(partial)
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _list_names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def _read_listed_names(folder: Path) -> set[str]:
    """The names in a folder's manifest, as far as it can be read."""
    try:
        return set(json.loads((folder / MANIFEST_FILE).read_bytes())["files"])
    except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def _write_manifest(folder: Path, digests: Mapping[str, str]) -> None:
    mode = folder.stat().st_mode & 0o666  # whoever wrote a file may have kept it from others
    paths = sorted(folder.iterdir())
    for path in paths:
        path.chmod(mode)
    files = _compute_checksums(paths, sync=True)
    for name, digest in digests.items():
        if (files.get(name) or {}).get("sha256") != digest:
            raise OSError(errno.EIO, f"{name!r} did not read back as it was written; the device may be failing")
    with (folder / MANIFEST_FILE).open("xb", buffering=0) as stream:
        _write_all(stream, _encode_manifest(files))
        os.fsync(stream.fileno())
    sync_dir(folder)


def _encode_manifest(files: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT_VERSION, "files": files}, indent=1).encode()


def verify_checksums(
    folder: Path, error_type: type[DragomanError], *, unreadable_type: type[DragomanError] | None = None
) -> None:
    """Raise `error`, naming the file, where anything in a sealed folder is missing, cut short, changed or added.

    unread: what is raised instead where that cannot be told: it cannot be read now, or is written in another format
    """
    unreadable_type = unreadable_type or error_type
    files = _read_manifest(folder, error_type, unreadable_type)
    try:
        names = {path.name for path in folder.iterdir()} - {MANIFEST_FILE}
        if missing := sorted(files.keys() - names):
            raise error_type(f"{folder}: {missing[0]!r} is missing; take the folder from where it came once more")
        # Hidden files are what file managers and version control leave behind; nothing reads them.
        if added := sorted(name for name in names - files.keys() if not name.startswith(".")):
            raise error_type(f"{folder}: {added[0]!r} does not belong to it; move it elsewhere")
        checksums = _compute_checksums([folder / name for name in files])
        for name, expected in files.items():
            if checksums[name] != expected:
                raise error_type(
                    f"{folder / name}: was changed or cut short after it was written; take it from where it came once more"
                )
    except OSError as reason:
        raise unreadable_type(f"{folder}: cannot be read: {reason.strerror}") from None


def _read_manifest(folder: Path, error_type: type[DragomanError], unreadable_type: type[DragomanError]) -> dict[str, Any]:
    """What the manifest says of each file. It must stand byte for byte as it was written, since it has no digest itself."""
    path = folder / MANIFEST_FILE
    version: Any = FORMAT_VERSION
    files: dict[str, Any] = {}
    is_intact = False
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        version = manifest["format"]
        files = dict(manifest["files"])
        is_intact = _encode_manifest(files) == content
    except FileNotFoundError:
        problem = f"holds no {MANIFEST_FILE}" if folder.is_dir() else "there is no such folder"
        raise error_type(f"{folder}: {problem}; it is not something that dragoman wrote") from None
    except NotADirectoryError:
        raise error_type(f"{folder}: is not a folder, as all are that dragoman wrote") from None
    except OSError as reason:
        raise unreadable_type(f"{path}: cannot be read: {reason.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        is_intact = False
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise unreadable_type(f"{folder}: written in format {version}; this dragoman reads format {FORMAT_VERSION}")
    if not is_intact:
        raise error_type(f"{path}: is damaged; take the folder from where it came once more")
    return files


def _compute_checksums(paths: Sequence[Path], *, sync: bool = False) -> dict[str, Any]:
    """Size and digest of each file by name, read side by side; none for what is no file."""
    with ThreadPoolExecutor(NUM_READERS) as pool:
        checksums = pool.map(_compute_checksum, paths, repeat(sync))
        return dict(zip((path.name for path in paths), checksums, strict=True))


def _compute_checksum(path: Path, sync: bool) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        if sync:
            os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest}


@contextmanager
def lock_dir(folder: Path) -> Iterator[None]:
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


def commit_file(partial: Path, path: Path) -> None:
    """Give a file that is written to its end its name, so that it never stands there in part, whatever fails."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(path)


def sync_dir(folder: Path) -> None:
    """Make the names in a folder outlast a power cut, where the file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what those say that cannot
            raise
    finally:
        os.close(descriptor)
