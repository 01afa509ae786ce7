"""Public corpora: fetch the archives that hold the files of a recipe, and unpack these files."""

from __future__ import annotations

import shutil
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dragoman.catalog.download import FetchError, download_file
from dragoman.catalog.entries import RemoteFile
from dragoman.errors import DataError
from dragoman.io.storage import commit_file, make_dirs, to_write_error

CORPORA_FILE = files("dragoman.catalog").joinpath("corpora.toml")
"""Table of the archives, in the order in which they are fetched."""
DISK_FACTOR = 3
"""Bound of archives and unpacked files together, in sizes of the archives. WMT14 has 1.4 GB of text in English and German from
1.7 GB of archives. In English and French it has 14.8 GB from 6.7 GB, of which more than half stays packed."""


@dataclass(frozen=True)
class WantedArchive:
    """Archive that holds missing files.

    members: path of each of these files by its name in the archive
    """

    file: RemoteFile
    members: Mapping[str, Path]


def find_archives(paths: Iterable[Path]) -> list[WantedArchive]:
    """Return the archives to fetch for those of the files that do not exist.

    Raises DataError for a missing file that no archive of the table holds.
    """
    missing = {path.name: path for path in paths if not path.exists()}
    archives = []
    for entry in tomllib.loads(CORPORA_FILE.read_text(encoding="utf-8"))["archive"]:
        members = {name: missing.pop(Path(name).name) for name in entry["members"] if Path(name).name in missing}
        if members:
            url = entry["url"]
            file = RemoteFile(url, url.rpartition("/")[2], entry["sha256"], entry["num_bytes"])
            archives.append(WantedArchive(file, members))
    for path in missing.values():
        raise DataError(
            f"{path}: is in no archive that dragoman fetches; see the first lines of the recipe", code="file-not-found"
        )
    return archives


def fetch_archive(archive: WantedArchive, folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Fetch an archive into a folder and unpack its missing files. What the folder has of the archive is not fetched again.

    on_bytes: takes the number of bytes that have arrived since its last call

    Raises:
        FetchError: the server cannot be reached, refuses, or ends the answer early.
        DataError: the archive has another SHA-256 than the table states, or lacks a file.
        WriteError: the folder cannot be written.
    """
    path = folder / archive.file.name
    try:
        make_dirs(folder)
        download_file(archive.file, folder, on_bytes)
        _unpack(path, archive.members)
    except FetchError:
        raise
    except DataError as error:
        raise DataError(f"{error}; delete {path}, and repeat the command", code=error.code) from None
    except OSError as error:
        raise to_write_error(folder, error) from None


def _unpack(path: Path, members: Mapping[str, Path]) -> None:
    """Write the members of an archive to their paths, read as a stream. Its other members are skipped."""
    left = dict(members)
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.name in left and member.isfile() else None
                if stream is None:
                    continue
                output = left.pop(member.name)
                partial = output.with_name(f".{output.name}.partial")
                with partial.open("wb") as file:
                    shutil.copyfileobj(stream, file, 2**20)
                commit_file(partial, output)
                if not left:
                    return
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path}: is no intact archive: {error}", code="invalid-format") from None
    raise DataError(f"{path}: lacks {' and '.join(left)}", code="invalid-format")
