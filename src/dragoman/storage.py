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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dragoman.errors import DragomanError, OutputError

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
    if path.exists():
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to replace it")


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[IO[str]]:
    """A text file that appears at `path` whole or not at all. Raises OutputError where it exists or cannot be written."""
    if not overwrite:
        refuse_existing(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None
    finally:
        partial.unlink(missing_ok=True)


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

    Raises OutputError where it exists or cannot be written. With `overwrite` the old one stands until the new one is whole.
    """
    if not overwrite:
        refuse_existing(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        _seal(partial)
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old)
        else:
            partial.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _seal(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o666 & ~_umask())  # safetensors writes 0600, which would lock other users out of a shared model
        with path.open("rb") as stream:
            files[path.name] = {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
            os.fsync(stream.fileno())
    with (folder / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump({"format": FORMAT, "files": files}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    _sync_folder(folder)


def check_seal(folder: Path, error: type[DragomanError]) -> None:
    """Raise `error`, naming the file, where anything in a sealed folder is missing, cut short, changed or added."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        files = {str(name): str(entry["sha256"]) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        what = f"{folder}: there is no such folder" if not folder.is_dir() else f"{folder}: holds no {MANIFEST}"
        raise error(f"{what}; it is not something that dragoman wrote") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise error(f"{folder / MANIFEST}: is damaged; take the folder from where it came once more") from None
    if manifest.get("format") != FORMAT:
        raise error(f"{folder}: written in format {manifest.get('format')!r}; this dragoman reads format {FORMAT}")
    for name, digest in files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise error(f"{path}: is missing; take the folder from where it came once more")
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise error(f"{path}: was changed or cut short after it was written; take it from where it came once more")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
