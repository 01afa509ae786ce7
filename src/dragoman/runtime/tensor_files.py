"""Tensor files of a folder with checksums, mapped so that nothing on disk changes them after their check."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from dragoman.errors import DragomanError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.storage import read_digests, verify_checksums
from dragoman.runtime.shared_weights import is_shared

TENSOR_SUFFIX = ".safetensors"


class TensorFiles:
    """Tensor files of a folder that `atomic_dir` wrote, by name. The end of a `with` block checks every checksum.

    They are copies, whose bytes are those that are checked. A folder that server processes share is one already. Threads copy
    the files and compute their checksums, while the block reads them and all other files of the folder.

    Args:
        folder: the folder
        error_type: the class of the errors
        only: names of the files that are opened and whose checksums are checked; all files of the folder by default

    Raises:
        error_type: at once if there is no manifest. At the end of the block, if a file is missing, cut short, changed or
            added; this error takes the place of those that reading such a file has raised.
    """

    def __init__(self, folder: Path, error_type: type[DragomanError], *, only: Collection[str] | None = None) -> None:
        names = {name for name in read_digests(folder, error_type) if only is None or name in only}
        open_file = MappedFile.map if is_shared(folder) else MappedFile.copy
        executor = ThreadPoolExecutor(1, "copies")
        self._files = {name: executor.submit(open_file, folder / name) for name in names if name.endswith(TENSOR_SUFFIX)}
        executor.shutdown(wait=False)
        self._others = names - self._files.keys()
        self._verify = partial(verify_checksums, folder, error_type)

    def __getitem__(self, name: str) -> MappedFile:
        """Return a file. Raise KeyError if the manifest lacks it, and OSError or ValueError if it cannot be read."""
        return self._files[name].result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._verify(only=self._others)  # before this thread waits for the others
        checksums = {}
        for name, file in self._files.items():
            with suppress(OSError, ValueError):  # the check names the file that cannot be read
                if (checksum := file.result().checksum) is not None:
                    checksums[name] = checksum
        self._verify(only=self._files, checksums=checksums)
