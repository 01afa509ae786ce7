"""Files that are there whole or not at all: text files, and folders sealed with a digest of everything in them.

A sealed folder is written beside its place, each file synced and its SHA-256 put into `manifest.json`, and then renamed once. A
reader checks every digest, since neither safetensors nor any format that we use notices a flipped bit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dragoman.errors import DragomanError, OutputError

fcntl: Any
try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

MANIFEST = "manifest.json"
FORMAT = 1


def cannot_write(path: Path, error: OSError) -> str:
    """One line that says why, and how much room there is where that is the reason."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        free = shutil.disk_usage(folder).free
        return f"{path}: the disk is full ({free / 2**20:.1f} MiB free in {folder}); make room and run the command again"
    return f"{path}: cannot be written: {error.strerror or error}"


def refuse_existing(path: Path) -> None:
    """Raise OutputError where something stands at `path`."""
    if _stands(path):
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to replace it")


def _stands(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None


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
        raise OutputError(cannot_write(path, error)) from None
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


@contextmanager
def sealed_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which appears at `path` whole and sealed or not at all.

    Raises OutputError where it exists or cannot be written. With `overwrite` the old one stands until the new one is whole, and
    a folder that holds anything which is neither in its manifest nor among the new files is never replaced.
    """
    if not overwrite:
        refuse_existing(path)
    if not path.name or (_stands(path) and not path.is_dir()):
        raise OutputError(f"{path}: is not a folder that can be replaced, and is left as it is; give another name")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        _seal(partial)
        if not overwrite:
            refuse_existing(path)
        _put_in_place(partial, path)
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; what stood there is removed after that, or comes back where that fails."""
    old = partial.with_suffix(".old")
    if path.exists() and (strange := sorted(_names(path) - _listed(path) - _names(partial))):
        raise OutputError(f"{path}: holds {strange[0]!r}, which dragoman did not write; it is left as it is; give another name")
    try:
        if path.exists():
            path.rename(old)
        partial.rename(path)
        _sync_folder(path.parent)
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


def _seal(folder: Path) -> None:
    mode = folder.stat().st_mode & 0o666  # safetensors writes 0600, which would lock other users out of a shared model
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(mode)
        files[path.name] = _describe(path)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    with (folder / MANIFEST).open("wb") as stream:
        stream.write(_manifest(files))
        stream.flush()
        os.fsync(stream.fileno())
    _sync_folder(folder)


def _manifest(files: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, "files": files}, indent=1).encode()


def check_seal(folder: Path, error: type[DragomanError]) -> None:
    """Raise `error`, naming the file, where anything in a sealed folder is missing, cut short, changed or added."""
    files = _read_manifest(folder, error)
    try:
        names = {path.name for path in folder.iterdir()} - {MANIFEST}
        if missing := sorted(files.keys() - names):
            raise error(f"{folder}: {missing[0]!r} is missing; take the folder from where it came once more")
        # Hidden files are what file managers and version control leave behind; nothing reads them.
        if added := sorted(name for name in names - files.keys() if not name.startswith(".")):
            raise error(f"{folder}: {added[0]!r} does not belong to it; move it elsewhere")
        for name, wanted in files.items():
            if _describe(folder / name) != wanted:
                raise error(
                    f"{folder / name}: was changed or cut short after it was written; take it from where it came once more"
                )
    except OSError as reason:
        raise error(f"{folder}: cannot be read: {reason.strerror}") from None


def _read_manifest(folder: Path, error: type[DragomanError]) -> dict[str, Any]:
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
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if isinstance(version, int) and version != FORMAT:
        raise error(f"{folder}: written in format {version}; this dragoman reads format {FORMAT}")
    if not whole:
        raise error(f"{path}: is damaged; take the folder from where it came once more")
    return files


def _describe(path: Path) -> dict[str, Any] | None:
    """Size and digest of a file; none for anything else."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
