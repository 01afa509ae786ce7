"""Inputs and outputs of `augment`, and of `translate` on a cluster, in object stores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.console.options import check_output_paths
from dragoman.errors import OutputError
from dragoman.formats.object_store import (
    check_is_writable,
    check_output_is_free,
    fetch_file,
    get_work_path,
    is_url,
    normalize_url,
    read_blocks,
    write_pieces,
)
from dragoman.formats.resumable import CONTENT_FILE, ResumableFile, resumable_file

if TYPE_CHECKING:
    from dragoman.formats.pair import Pair


@dataclass(frozen=True)
class InputFile:
    """Input of a command. name: its path or URL, as in the origins of pairs"""

    name: str
    path: Path


def check_output_location(output: Path, files: Sequence[str], bundles: Sequence[Path], *, overwrite: bool) -> None:
    """Raise OutputError if an output path or URL is an input, or if it exists and may not be replaced."""
    local_files = [to_local_path(name) for name in files if not is_url(name)]
    if not is_url(output):
        check_output_paths(to_local_path(output), overwrite=overwrite, input_paths=[*local_files, *bundles])
        return
    url = normalize_url(output)
    if url in map(normalize_url, files):
        raise OutputError(
            f"{url}: is an input of this command, which is never overwritten; give another output name", code="output-is-input"
        )
    check_output_is_free(url, overwrite=overwrite)


def to_local_path(name: str | Path) -> Path:
    """Return the path of a local file, without `file://` before it."""
    return Path(normalize_url(name)) if str(name).startswith(("file:/", "local:/")) else Path(name)


@contextmanager
def locate_inputs(files: Sequence[str]) -> Iterator[list[InputFile]]:
    """Give local files. Those of an object store are copied to a temporary folder for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        inputs = []
        for number, name in enumerate(files):
            if not is_url(name):
                path = to_local_path(name)
                inputs.append(InputFile(str(path), path))
                continue
            url = normalize_url(name)
            path = Path(folder, str(number), url.rpartition("/")[2])
            path.parent.mkdir()
            fetch_file(url, path)
            inputs.append(InputFile(url, path))
        yield inputs


def rename_origins(pairs: Iterable[Pair], inputs: Sequence[InputFile]) -> Iterator[Pair]:
    """Yield pairs whose origins name the objects of a store instead of their local copies."""
    names = {str(item.path): item.name for item in inputs if str(item.path) != item.name}
    for pair in pairs:
        path = next((path for path in names if pair.origin.startswith(path)), None)
        yield pair if path is None else replace(pair, origin=names[path] + pair.origin.removeprefix(path))


@contextmanager
def resumable_output(output: Path, request: Mapping[str, Any], *, overwrite: bool) -> Iterator[ResumableFile]:
    """Open a resumable file whose name may be a URL; see `resumable_file`.

    The parts of an object are in the cache folder of this machine until it is written.
    """
    if not is_url(output):
        with resumable_file(to_local_path(output), request, overwrite=overwrite) as file:
            yield file
        return
    url = normalize_url(output)
    path = get_work_path(url, "outputs")
    check_is_writable(url)
    path.unlink(missing_ok=True)  # it was written to the store
    with resumable_file(path, request, overwrite=overwrite) as file:
        yield file
        check_output_is_free(url, overwrite=overwrite)
        write_pieces(url, read_blocks(file.folder / CONTENT_FILE))
    path.unlink()
