"""Packed weights that several processes on one machine share: files that each process maps into its memory.

Packing is deterministic, so all processes pack equal bytes. The digest of the bytes is the name of their file. The first
process writes the file, the others map it, and every process then frees its own copy. Without a folder, nothing is shared.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SHARED_BYTES = 64 << 10
"""Size from which weights are shared; smaller ones are not worth a file."""
COPIES_FILE, COPIES_FOLDER = "copies", "bundles"
"""File with the copy of each bundle, and folder of the copies."""

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
