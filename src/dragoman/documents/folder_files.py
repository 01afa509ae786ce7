"""Files of folders that are translated: each file of a known format, and the reason for each that is skipped."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.documents.formats import SUFFIXES

_CONFIGURATIONS = frozenset(
    (
        "_config.yaml", "_config.yml", "composer.json", "config.yaml", "config.yml", "docker-compose.yaml",
        "docker-compose.yml", "hugo.json", "hugo.yaml", "hugo.yml", "jsconfig.json", "lerna.json", "mkdocs.yaml", "mkdocs.yml",
        "package-lock.json", "package.json", "pnpm-lock.yaml", "tsconfig.json", "zensical.yml",
    )
)  # fmt: skip


@dataclass(frozen=True)
class InputFiles:
    """Files to translate.

    Attributes:
        places: by the path of each file, its place below the folder that was given; for a file that was given, its name
        skipped: by the path of each file and folder that is left out, the reason
        other_languages: code of the language of each file of a folder that is left out because it is a translation
        folders: folders that were given
    """

    places: dict[Path, Path] = field(default_factory=dict)
    skipped: dict[Path, str] = field(default_factory=dict)
    other_languages: dict[Path, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()


def list_files(paths: Sequence[Path], excluded: Collection[Path] = ()) -> InputFiles:
    """Return the files among paths, and those in the folders among them, in the order of their names.

    Links in a folder are not followed, so that no file is outside of it and none comes twice. Configurations of programs, such
    as `mkdocs.yml`, are skipped.

    excluded: files and folders that the command writes
    """
    files = InputFiles(folders=[path for path in paths if path.is_dir()])
    written = {path.resolve() for path in excluded}
    for path in paths:
        if not path.is_dir():
            files.places[path] = Path(path.name)
            continue
        for inner, reason in _walk(path, written, files.skipped):
            if reason:
                files.skipped[inner] = reason
            else:
                files.places[inner] = inner.relative_to(path)
    return files


def _walk(root: Path, written: Collection[Path], skipped: dict[Path, str]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder, and what is skipped, with the reason or an empty text."""

    def skip_folder(error: OSError) -> None:
        skipped[Path(error.filename)] = f"cannot be read: {error.strerror}"

    for name, folders, names in os.walk(root, onerror=skip_folder):
        folder = Path(name)
        for inner in sorted(folders):
            reason = _find_reason(folder / inner, written)
            if reason:
                folders.remove(inner)
                yield folder / inner, reason
        folders.sort()
        for inner in sorted(names):
            path = folder / inner
            reason = _find_reason(path, written)
            if not reason and not path.is_file():
                reason = "is no regular file"
            if not reason and inner.lower() in _CONFIGURATIONS:
                reason = "configures a program; name the file itself to translate it"
            if not reason and path.suffix.lower() not in SUFFIXES:
                reason = f"has an ending of no format that is translated: {path.suffix[:20]!r}"
            yield path, reason


def _find_reason(path: Path, written: Collection[Path]) -> str:
    if path.is_symlink():  # which may lead to itself
        return "is a link"
    return "is an output" if path.resolve() in written else "is hidden" if path.name.startswith(".") else ""
