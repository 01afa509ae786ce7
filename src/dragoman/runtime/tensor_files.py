"""Tensor files of a folder with checksums, mapped so that nothing on disk changes them after their check."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from dragoman.errors import DragomanError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.storage import choose_checksums, verify_checksums
from dragoman.runtime.shared_weights import is_shared

TENSOR_SUFFIX = ".safetensors"


class TensorFiles:
    """Tensor files of a folder that `atomic_dir` wrote, by name. The end of a `with` block checks every checksum.

    They are copies, whose bytes are those that are checked. A folder that server processes share is one already. Threads copy
    the files and compute their checksums, while the block reads all other files of the folder and then the copies.

    only: names of the files that are opened and whose checksums are checked; all files of the folder by default

    Raises error_type: at once if there is no manifest. At the end of the block, if a file is missing, cut short, changed or
        added; this error takes the place of those that reading such a file has raised.
    """

    def __init__(self, folder: Path, error_type: type[DragomanError], *, only: Collection[str] | None = None) -> None:
        algorithms = choose_checksums(folder, error_type)
        names = {name for name in algorithms if only is None or name in only}
        self._folder = folder
        self._copies: dict[str, Future[MappedFile]] = {}
        for name in names if not is_shared(folder) else ():
            if name.endswith(TENSOR_SUFFIX):
                with suppress(OSError):  # the check names the file that cannot be read
                    self._copies[name] = MappedFile.copy(folder / name, algorithms[name])
        self._others = names - self._copies.keys()
        self._verify = partial(verify_checksums, folder, error_type)

    def __getitem__(self, name: str) -> MappedFile:
        """Return a file. Raise KeyError, OSError or ValueError if it cannot be read or the manifest lacks it."""
        if is_shared(self._folder):
            return MappedFile.map(self._folder / name)
        self._verify_others()  # before this thread waits for the copy
        return self._copies[name].result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._verify_others()
        checksums = {}
        for name, copy in self._copies.items():
            with suppress(OSError, ValueError):  # the check names the file that cannot be read
                if (checksum := copy.result().checksum) is not None:
                    checksums[name] = checksum.result()
        self._verify(only=self._copies, checksums=checksums)

    def _verify_others(self) -> None:
        """Verify the files that are no copies, once."""
        if self._others:
            self._verify(only=self._others)
            self._others = set()
