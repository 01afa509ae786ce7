"""Packed weights that several processes on one machine share: files that each process maps into its memory.

Packing is deterministic, so all processes pack equal bytes. The digest of the bytes is the name of their file. The first
process writes the file, the others map it, and every process then frees its own copy. Without a folder, nothing is shared.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.platform_features import map_private
from dragoman.runtime.malloc import map_blocks

MIN_SHARED_BYTES = 64 << 10
"""Size from which weights are shared; smaller ones are not worth a file."""
MAX_ATTEMPTS = 16
COPIES_FILE, COPIES_FOLDER = "copies", "bundles"
"""File with the copy of each bundle, and folder of the copies."""
ALIGNMENT = 64
"""Alignment of the blocks that PyTorch asks malloc for."""
ValueT = TypeVar("ValueT")

_folder: Path | None = None


def share_weights(folder: Path | None) -> None:
    """Share the weights that this process packs from now on by files of a folder, which the caller owns; None ends this."""
    global _folder
    _folder = folder


def find_copy(path: str | Path) -> Path | None:
    """Return the copy of a bundle that the owner of the folder has made for all processes, or None without one."""
    if _folder is None:
        return None
    with suppress(OSError, ValueError):
        copies: dict[str, str] = json.loads((_folder / COPIES_FILE).read_text(encoding="utf-8"))
        return Path(copies[str(path)]) if str(path) in copies else None
    return None


def is_shared(path: Path) -> bool:
    """Return whether a path lies in the folder of the shared weights, whose owner alone writes to it."""
    return _folder is not None and path.is_relative_to(_folder)


def share_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose memory other processes share, or the array itself if nothing is shared."""
    if _folder is None or array.nbytes < MIN_SHARED_BYTES:
        return array
    with suppress(OSError):  # a full disk
        path = _store(_folder, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        with path.open("rb") as file:
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
        return np.frombuffer(content, array.dtype).reshape(array.shape)
    return array


def allocate_shareable(allocate: Callable[[], ValueT], get_address: Callable[[ValueT], int]) -> ValueT:
    """Return what a function allocates, at a place in its first page that is the same in all processes.

    Such a block is a mapping of its own. While freed parts of the heap are large enough, malloc returns one of them instead, so
    the function is called until they are used up.
    """
    if _folder is None or map_private is None:
        return allocate()
    rejected: list[ValueT] = []
    with map_blocks(MIN_SHARED_BYTES):
        while not begins_mapping(get_address(value := allocate())) and len(rejected) < MAX_ATTEMPTS:
            rejected.append(value)
    return value


def begins_mapping(address: int) -> bool:
    """Return whether a block begins where malloc puts the only block of a mapping, behind its header of 16 bytes."""
    return address % PAGESIZE <= ALIGNMENT


def share_memory(address: int, num_bytes: int) -> None:
    """Replace whole pages of memory by mapped pages with equal content, which other processes share. Linux only.

    The memory is that of `allocate_shareable`, and nobody writes to it. A write would get private pages.
    """
    if _folder is None or num_bytes < MIN_SHARED_BYTES or map_private is None:
        return
    start, end = -(-address // PAGESIZE) * PAGESIZE, (address + num_bytes) // PAGESIZE * PAGESIZE
    with suppress(OSError):
        content = (ctypes.c_ubyte * (end - start)).from_address(start)
        path = _store(_folder, memoryview(content).cast("B"))
        with path.open("rb") as file:
            map_private(start, end - start, file.fileno())


def _store(folder: Path, content: memoryview) -> Path:
    """Return the file with this content, and write it if there is none."""
    path = folder / hashlib.blake2b(content, digest_size=20).hexdigest()
    if path.exists():
        os.utime(path)  # `remove_unused` keeps it
        return path
    with NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
    return path


def remove_unused(folder: Path, time: float) -> None:
    """Remove the files that no process has mapped since a time of `time.time`. Present mappings stay."""
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time:
                path.unlink()
