"""Local copies of the corpora of a recipe whose `data.root` is an object store.

    FOLDER/NAME          copy of data.root/NAME
    FOLDER/copies.json   state of each object when it was copied, so that an unchanged one is not copied again

The readers of all formats need files, so they get copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from dragoman.config import STANDARD_INPUT, CorpusConfig, DataConfig, as_list
from dragoman.errors import RecipeError
from dragoman.formats.object_store import describe_object, fetch_file, glob_files, is_url, normalize_url
from dragoman.io.storage import commit_file, lock_dir, make_dirs, to_write_error, write_json

RECORD_FILE = "copies.json"


def list_corpus_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    """Return the file names of the pairs of corpora as the recipe has them, without standard input."""
    values = [value for corpus in corpora for value in (corpus.source, corpus.target, corpus.file)]
    return [name for value in values for name in as_list(value) if name != STANDARD_INPUT]


def copy_corpora(data: DataConfig, names: Iterable[str], folder: Path) -> DataConfig:
    """Copy files of an object store into a local folder, and return the section with this folder as its `root`.

    A copy of an unchanged object stays, and a copy that no name matches any more is deleted. A section with a local root is
    returned as it is, but for `file://` before it.

    names: names below `root`; `*` in the last part matches any characters

    Raises RecipeError for a name outside of the root, and DataError if an object is missing or cannot be read.
    """
    root_url = normalize_url(data.root).rstrip("/")
    if not is_url(root_url):
        return data.model_copy(update={"root": root_url}) if "://" in data.root else data
    try:
        make_dirs(folder)
        with lock_dir(folder):
            _update_copies(folder, dict(_iter_objects(root_url, names)))
    except OSError as error:
        raise to_write_error(folder, error) from None
    return data.model_copy(update={"root": str(folder)})


def _update_copies(folder: Path, urls: Mapping[str, str]) -> None:
    """Copy the objects that have changed, and delete the copies of others. urls: URL of each object by its name"""
    record = _read_record(folder)
    for name in record.keys() - urls.keys():
        (folder / name).unlink(missing_ok=True)
    record = {name: state for name, state in record.items() if name in urls and (folder / name).is_file()}
    for name, url in urls.items():
        state = describe_object(url)
        if record.get(name) == state:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        fetch_file(url, partial)
        commit_file(partial, path)
        record[name] = state
        write_json(folder / RECORD_FILE, record, overwrite=True)


def _iter_objects(root_url: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name below the root and the URL of each object."""
    for name in names:
        path = PurePosixPath(name)
        if is_url(name) or path.is_absolute() or ".." in path.parts:
            raise RecipeError(f"{name}: is not below data.root = {root_url!r}; give names below it", code="invalid-option")
        url = f"{root_url}/{path}"
        for object_url in glob_files(url) if "*" in path.name else [url]:
            file_name = object_url.rpartition("/")[2]
            if file_name == path.name or not file_name.startswith("."):  # the readers leave out hidden files as well
                yield str(path.with_name(file_name)), object_url


def _read_record(folder: Path) -> dict[str, str]:
    """Return the states of the copies in a folder; none if the record is missing or damaged."""
    try:
        document = json.loads((folder / RECORD_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
