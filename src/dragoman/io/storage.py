"""Atomic writes: text files, and folders with a checksum of every file.

A folder is written under a temporary name beside its final path. Each file is synced and read back, and `manifest.json`
stores its size, CRC-32 and SHA-256. Then the manifest and the folder are synced, and one rename publishes the folder. A reader
verifies a checksum of every file, because no format in use detects a flipped bit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO, TextIOWrapper
from itertools import repeat
from pathlib import Path
from typing import Any

from dragoman.errors import BundleError, DragomanError, OutputError, RunError, WriteError
from dragoman.io.checksums import CHECKSUMS
from dragoman.platform_features import CAN_OPEN_FOLDERS, SYNC_MODE, fcntl

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1

CHUNK_BYTES = 2**22
"""Bytes of one write; a second thread updates the digest meanwhile."""
MIN_THREADED_BYTES = 2**16
"""Smallest write in bytes for which a second thread saves time."""
NUM_READERS = 4
"""Number of files of a folder that are read in parallel."""
# Codes of a damaged and of a missing folder, by the class of the error.
_FOLDER_CODES: tuple[tuple[type[DragomanError], str, str], ...] = (
    (BundleError, "bundle-damaged", "bundle-not-found"),
    (RunError, "checkpoint-damaged", "checkpoint-not-found"),
)


def to_write_error(path: Path, error: OSError, needed: int | None = None) -> WriteError:
    """Return the WriteError for an error of the system; for a full disk, with the free space and the `needed` bytes."""
    if error.errno == errno.ENOENT and not path.parent.exists():
        return WriteError(f"{path}: cannot be written: there is no folder {path.parent}; make it first")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(f"{path}: cannot be written: {error.strerror or error}")
    available, folder = _get_free_space(path)
    sizes = [f"{needed / 2**20:.1f} MiB needed"] if needed is not None else []
    sizes += [f"{available / 2**20:.1f} MiB free in {folder}"] if available is not None else []
    problem = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    details = f" ({', '.join(sizes)})" if sizes else ""
    message = f"{path}: {problem}{details}; delete files to free space"
    return WriteError(message, code="disk-full", needed_bytes=needed, available_bytes=available)


def _get_free_space(path: Path) -> tuple[int | None, Path]:
    """Return the free bytes below the nearest existing folder, None if the system does not report them; and that folder."""
    for folder in path.absolute().parents:
        with suppress(OSError):
            return shutil.disk_usage(folder).free, folder
    return None, path.parent


def _add_margin(size: int) -> int:
    return size + size // 10


def _check_free_space(path: Path, size: int) -> None:
    """Raise WriteError if the file system of `path` has less free space than `size` bytes and a margin of a tenth."""
    needed, (available, _) = _add_margin(size), _get_free_space(path)
    if available is not None and available < needed:
        raise to_write_error(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)


def check_path_is_free(path: Path, action: str = "replace") -> None:
    """Raise OutputError if `path` exists. action: what --overwrite does with it"""
    if _path_exists(path):
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to {action} it", code="output-exists")


def _path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise to_write_error(path, error) from None


def copy_mode(path: Path, *sources: Path) -> None:
    """Give a new file or folder the permissions of the first source that exists, if any does. Raise OSError.

    A folder stays one that its owner can fill. Windows has no such permissions.
    """
    if os.name != "nt":
        for source in sources:
            with suppress(FileNotFoundError):
                path.chmod(source.stat().st_mode & 0o777 | (0o700 if path.is_dir() else 0))
                return


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = False, mode_of: Path | None = None) -> Iterator[TextIOWrapper]:
    """Open a text file that appears at `path` completely or not at all. Raise OutputError if it exists or cannot be written.

    A file that is replaced leaves its permissions to the new one. mode_of: file whose permissions another new file gets
    """
    if not overwrite:
        check_path_is_free(path)
    if _path_exists(path) and not path.is_file():
        raise OutputError(f"{path}: is not a file that can be replaced; give another name", code="not-replaceable")
    partial = path.with_name(f".{path.name}.{os.urandom(16).hex()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            copy_mode(partial, path, *([] if mode_of is None else [mode_of]))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if not overwrite:
            check_path_is_free(path)
        partial.replace(path)
    except OSError as error:
        raise to_write_error(path, error) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def write_lines(path: Path, lines: Iterable[str], *, overwrite: bool = False) -> None:
    """Write a text file completely or not at all. Raise OutputError if it exists or cannot be written."""
    with atomic_write(path, overwrite=overwrite) as stream:
        stream.writelines(line + "\n" for line in lines)


def write_json(path: Path, document: Any, *, overwrite: bool = False) -> None:
    """Write a JSON file completely or not at all. Raise OutputError if it exists or cannot be written."""
    write_lines(path, [json.dumps(document, indent=1, ensure_ascii=False)], overwrite=overwrite)


def write_with_digest(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write a new file and return the SHA-256 of its intended content. Raise OSError if it exists or cannot be written."""
    with path.open("xb", buffering=0) as stream:
        return write_chunks(stream, chunks)


def write_chunks(stream: FileIO, chunks: Iterable[bytes | memoryview]) -> str:
    """Write to an unbuffered stream and return the SHA-256 of the intended content. Raise OSError if it cannot be written."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1) as executor:
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
    """Write all bytes, in several calls if the system writes fewer than requested, as it does before a disk is full."""
    while remaining:
        remaining = remaining[stream.write(remaining) :]


@contextmanager
def atomic_dir(
    path: Path, *, overwrite: bool = False, size: int = 0, digests: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Open a folder to fill, which appears at `path` completely and with checksums, or not at all.

    overwrite: replace an existing folder when the new one is complete. A folder with a file that is neither in its
        manifest nor among the new files is never replaced.
    size: bytes that the caller will write; their space is checked before anything is written
    digests: SHA-256 by file name, which the files must have when they are read back; the caller may fill it meanwhile

    Raises OutputError: the path exists or cannot be replaced.
    Raises WriteError: the system refused to write.
    """
    if not overwrite:
        check_path_is_free(path)
    if not path.name or (_path_exists(path) and not path.is_dir()):
        raise OutputError(f"{path}: is not a folder that can be replaced; give another name", code="not-replaceable")
    _check_free_space(path, size)
    partial = path.with_name(f".{path.name}.{os.urandom(16).hex()}.partial")
    try:
        try:
            make_dirs(partial.parent)
            partial.mkdir()
            copy_mode(partial, path)
            yield partial
            _write_manifest(partial, digests or {})
            if not overwrite:
                check_path_is_free(path)
            _replace_dir(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # before the free space is measured for the error message
    except OSError as error:
        raise to_write_error(path, error, _add_margin(size) if size else None) from None


def make_output_dir(folder: Path) -> None:
    """Make the folder of a command's output, and its parents. Raises OutputError if a file has its name, or WriteError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"{folder}: is a file, not a folder; give another name") from None
    except OSError as error:
        raise to_write_error(folder, error) from None


def make_dirs(path: Path) -> None:
    """Make a folder and its parents, and sync each, so that they survive a power cut. Raise OSError."""
    if not path.exists():
        make_dirs(path.parent)
        path.mkdir(exist_ok=True)
        sync_dir(path.parent)


def _replace_dir(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`. The old folder is removed afterwards, or restored if the rename fails."""
    old = partial.with_suffix(".old")
    if path.exists() and (unknown_names := sorted(_list_names(path) - _read_listed_names(path) - _list_names(partial))):
        raise OutputError(
            f"{path}: holds {unknown_names[0]!r}, which dragoman did not write; give another name", code="not-replaceable"
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
    """Return the names in a folder's manifest; none if it cannot be read."""
    try:
        return set(json.loads((folder / MANIFEST_FILE).read_bytes())["files"])
    except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def _write_manifest(folder: Path, digests: Mapping[str, str]) -> None:
    mode = folder.stat().st_mode & 0o666  # a file may have been written with narrower permissions
    paths = sorted(folder.iterdir())
    for path in paths:
        path.chmod(mode)
    files = _compute_checksums(paths, CHECKSUMS, sync=True)
    for name, digest in digests.items():
        if (files.get(name) or {}).get("sha256") != digest:
            raise OSError(errno.EIO, f"{name!r} reads back differently than written; check the device")
    with (folder / MANIFEST_FILE).open("xb", buffering=0) as stream:
        _write_all(stream, _encode_manifest(files))
        os.fsync(stream.fileno())
    sync_dir(folder)


def _encode_manifest(files: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest. It has a checksum of itself if it has those that a reader may choose from."""
    manifest = {"format": FORMAT_VERSION, "files": files}
    if any("crc32" in entry for entry in files.values()):
        manifest["crc32"] = f"{zlib.crc32(json.dumps(files).encode()):08x}"
    return json.dumps(manifest, indent=1).encode()


def verify_checksums(
    folder: Path,
    error_type: type[DragomanError],
    *,
    unreadable_type: type[DragomanError] | None = None,
    checksums: Mapping[str, Mapping[str, Any]] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Raise an error that names the file, if a file of a folder is missing, cut short, changed or added.

    unreadable_type: the class of the error if the state is unknown, because the folder cannot be read now or has
        another format version; `error_type` by default
    checksums: size and a checksum of files that were read already and are not read again, as the manifest has them
    only: names of the files whose content is checked; all by default
    """
    unreadable_type = unreadable_type or error_type
    files = _read_manifest(folder, error_type, unreadable_type)
    damaged_code, _ = _get_folder_codes(error_type)
    try:
        names = {path.name for path in folder.iterdir()} - {MANIFEST_FILE}
        if missing := sorted(files.keys() - names):
            raise error_type(f"{folder}: {missing[0]!r} is missing; copy the folder again", code=damaged_code)
        # File managers and version control leave hidden files behind; nothing reads them.
        if added := sorted(name for name in names - files.keys() if not name.startswith(".")):
            raise error_type(f"{folder}: {added[0]!r} does not belong to it; move it elsewhere", code=damaged_code)
        known = dict(checksums or {})
        chosen = [name for name in files if only is None or name in only]
        present = _compute_checksums([folder / name for name in chosen if name not in known], ["sha256"]) | known
        for name in chosen:
            checksum = present[name]
            if checksum is None or not checksum.items() <= files[name].items():
                raise error_type(
                    f"{folder / name}: was changed or cut short after it was written; copy it again", code=damaged_code
                )
    except OSError as error:
        raise unreadable_type(f"{folder}: cannot be read: {error.strerror}") from None


def read_digests(folder: Path, error_type: type[DragomanError]) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder from its manifest, without verifying the files. Raise `error_type`."""
    files = _read_manifest(folder, error_type, error_type)
    return {name: str(entry["sha256"]) for name, entry in files.items()}


def choose_checksums(folder: Path, error_type: type[DragomanError]) -> dict[str, str]:
    """Return the fastest checksum that a folder's manifest has of each file, by its name. Raise `error_type`."""
    files = _read_manifest(folder, error_type, error_type)
    return {name: next(algorithm for algorithm in CHECKSUMS if algorithm in entry) for name, entry in files.items()}


def _get_folder_codes(error_type: type[DragomanError]) -> tuple[str | None, str | None]:
    """Return the codes of a damaged and of a missing folder; None for a class without them."""
    for base, damaged_code, missing_code in _FOLDER_CODES:
        if issubclass(error_type, base):
            return damaged_code, missing_code
    return None, None


def _read_manifest(folder: Path, error_type: type[DragomanError], unreadable_type: type[DragomanError]) -> dict[str, Any]:
    """Return the manifest's entry of each file. The manifest must equal its encoding byte for byte."""
    path = folder / MANIFEST_FILE
    damaged_code, missing_code = _get_folder_codes(error_type)
    version: Any = FORMAT_VERSION
    files: dict[str, Any] = {}
    is_intact = False
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        version = manifest["format"]
        files = dict(manifest["files"])
        is_intact = _encode_manifest(files) == content and all("sha256" in {**entry} for entry in files.values())
    except FileNotFoundError:
        if issubclass(error_type, BundleError) and (folder / "bundle").is_dir():
            message = f"{folder}: is a run folder, not a bundle; give {folder / 'bundle'}"
            raise error_type(message, code=missing_code) from None
        problem = f"holds no {MANIFEST_FILE}" if folder.is_dir() else "there is no such folder"
        unfinished = [
            run for run in (folder, folder.parent) if (run / "checkpoints").is_dir() and not (run / "bundle").is_dir()
        ]
        if issubclass(error_type, BundleError) and unfinished:
            problem = (
                f"the training in {unfinished[0]} has not finished; run its command again to resume it, which writes the bundle"
            )
            raise error_type(f"{folder}: {problem}", code="bundle-unfinished") from None
        raise error_type(f"{folder}: {problem}; give a folder that dragoman wrote", code=missing_code) from None
    except NotADirectoryError:
        raise error_type(f"{folder}: is not a folder; give a folder that dragoman wrote", code=missing_code) from None
    except OSError as error:
        raise unreadable_type(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        is_intact = False
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise unreadable_type(
            f"{folder}: has format {version}, but this version of dragoman reads format {FORMAT_VERSION}; install the "
            "version that wrote it"
        )
    if not is_intact:
        raise error_type(f"{path}: is damaged; copy the folder again", code=damaged_code)
    return files


def _compute_checksums(paths: Sequence[Path], algorithms: Collection[str], *, sync: bool = False) -> dict[str, Any]:
    """Return size and checksums of each file by name, read in parallel; None for a path that is not a file."""
    with ThreadPoolExecutor(NUM_READERS) as pool:
        checksums = pool.map(_compute_checksum, paths, repeat(algorithms), repeat(sync))
        return dict(zip((path.name for path in paths), checksums, strict=True))


def _compute_checksum(path: Path, algorithms: Collection[str], sync: bool) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open("r+b") if sync and SYNC_MODE == "r+b" else path.open("rb") as stream:
        if sync:
            os.fsync(stream.fileno())
        checksums = {}
        for algorithm in algorithms:
            stream.seek(0)
            checksums[algorithm] = hashlib.file_digest(stream, CHECKSUMS[algorithm]).hexdigest()
        return {"bytes": os.fstat(stream.fileno()).st_size, **checksums}


@contextmanager
def lock_dir(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Raise OutputError if another process holds it."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"{folder}: another process is at work in it; wait for it, or stop it", code="folder-locked"
            ) from None
        except OSError:
            pass  # the file system has no locks
        yield
    finally:
        os.close(descriptor)


def commit_file(partial: Path, path: Path) -> None:
    """Sync a complete file and rename it to `path`, so that `path` never holds a part of it. Raise OSError.

    A file that is replaced leaves its permissions to the new one.
    """
    with partial.open(SYNC_MODE) as stream:
        os.fsync(stream.fileno())
    copy_mode(partial, path)
    partial.replace(path)


def sync_dir(folder: Path) -> None:
    """Sync the names in a folder, so that they survive a power cut if system and file system can do it. Raise OSError."""
    if not CAN_OPEN_FOLDERS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot sync a folder
            raise
    finally:
        os.close(descriptor)
