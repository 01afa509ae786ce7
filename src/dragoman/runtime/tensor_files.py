"""Tensor files of a folder with checksums, mapped so that nothing on disk changes them after their check."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.storage import read_digests, verify_checksums
from dragoman.runtime.shared_weights import is_shared

TENSOR_SUFFIX = ".safetensors"


def open_tensor_files(
    folder: Path, error_type: type[DragomanError], *, only: Collection[str] | None = None
) -> dict[str, MappedFile]:
    """Return the tensor files of a folder that `atomic_dir` wrote, by name, after a check of every checksum.

    They are copies, whose bytes are those that were checked. A folder that server processes share is one already.

    only: names of the files that are opened and whose checksums are checked; by default all files of the folder are checked

    Raises an error of the type that names a file which is missing, cut short, changed or added.
    """
    names = [
        name for name in read_digests(folder, error_type) if name.endswith(TENSOR_SUFFIX) and (only is None or name in only)
    ]
    files: dict[str, MappedFile] = {}
    if is_shared(folder):
        verify_checksums(folder, error_type, only=only)
        return {name: MappedFile.map(folder / name) for name in names}
    with suppress(OSError):  # the check names the file that cannot be read
        present = {path.name for path in folder.iterdir() if path.is_file()}
        files = {name: MappedFile.copy(folder / name) for name in names if name in present}
    check_again(folder, error_type, files, only=only)
    return files


def check_again(
    folder: Path, error_type: type[DragomanError], files: dict[str, MappedFile], *, only: Collection[str] | None = None
) -> None:
    """Check a folder whose files were read meanwhile. Raises an error of the type if one of them has changed.

    files: the tensor files of `open_tensor_files`, which are not read again
    only: names of the files whose content is checked; all by default
    """
    if not is_shared(folder):
        verify_checksums(folder, error_type, checksums={name: file.checksum for name, file in files.items()}, only=only)
