"""Preparation of a recipe whose `data.root` or `run` is the URL of an object store.

    data.root = URL   the corpora are copied to RUN/corpora, and stay there
    run = URL         the run folder is in the cache folder of this machine until URL/data is complete

The manifest is written last, so a prepared folder without one does not count.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import ProgressCallback
from dragoman.config import Recipe, as_list
from dragoman.data.encode import PairStats
from dragoman.data.manifest import MANIFEST, PREPARED_FILES, compute_request_digest, hash_inputs, list_corpora, parse_manifest
from dragoman.data.prepare import CLEANING_PAGE, prepare
from dragoman.data.tokenization.vocabulary import NotifyFn
from dragoman.formats.corpus_copies import copy_corpora, list_corpus_names
from dragoman.formats.object_store import StoreFolder, check_is_writable, get_work_path, is_url, normalize_url, upload_folder
from dragoman.io.storage import lock_dir, make_dirs, to_write_error
from dragoman.runtime.processes import MapFunction, map_in_processes

CORPORA_DIR = "corpora"
"""Folder of a run with copies of the corpora of an object store."""


@dataclass(frozen=True)
class Preparation:
    """Result of a preparation. location: folder or URL of the prepared files"""

    location: str
    pair_counts: dict[str, PairStats]
    is_new: bool


def prepare_with_stores(
    recipe: Recipe,
    notify: NotifyFn = lambda _: None,
    *,
    on_progress: ProgressCallback = lambda *_: None,
    map_items: MapFunction = map_in_processes,
) -> Preparation:
    """Prepare the corpora of a recipe in `run/data`, where `run` and `data.root` may be URLs; see `prepare`.

    If the inputs and the settings have not changed, and the store still has all files, nothing is done. After an
    interruption, the same machine continues.

    Raises DataError if an object cannot be read, WriteError if the store cannot be written, and the errors of `prepare`.
    """
    run_url = normalize_url(recipe.run)
    if not is_url(run_url):
        run = Path(run_url if "://" in recipe.run else recipe.run)
        prepared = prepare(copy_inputs(recipe, run), run / "data", notify, on_progress=on_progress, map_items=map_items)
        return Preparation(str(prepared.folder), prepared.pair_counts, prepared.is_new)
    store = StoreFolder(f"{run_url.rstrip('/')}/data")
    with _lock_work_folder(run_url) as run:
        local_recipe = copy_inputs(recipe, run)
        pair_counts = _find_prepared(store, compute_request_digest(local_recipe, hash_inputs(local_recipe, {})))
        if is_new := pair_counts is None:
            check_is_writable(store.get_url(MANIFEST))
            prepared = prepare(local_recipe, run / "data", notify, on_progress=on_progress, map_items=map_items)
            notify(f"writing {store.url}")
            _replace_files(store, run / "data")
            pair_counts = prepared.pair_counts
        shutil.rmtree(run, ignore_errors=True)
    return Preparation(store.url, pair_counts, is_new)


def copy_inputs(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe for a local run folder, into which the files below a `data.root` in an object store are copied."""
    names = list_corpus_names(list_corpora(recipe.data))
    names += [name for corpus in recipe.data.training_corpora().values() for name in as_list(corpus.alignments)]
    names += [*recipe.tokenizer.files, *as_list(recipe.data.term_file)]
    data = copy_corpora(recipe.data, names, run / CORPORA_DIR)
    return recipe.model_copy(update={"data": data, "run": str(run)})


@contextmanager
def _lock_work_folder(url: str) -> Iterator[Path]:
    """Give the local folder of a run in an object store, which no other process uses meanwhile."""
    folder = get_work_path(url, "runs")
    try:
        make_dirs(folder)
    except OSError as error:
        raise to_write_error(folder, error) from None
    with lock_dir(folder):
        yield folder


def _find_prepared(store: StoreFolder, digest: str) -> dict[str, PairStats] | None:
    """Return the statistics of the prepared files in a store, or None if they belong to another request or are incomplete."""
    content = store.read_if_exists(MANIFEST)
    manifest = None if content is None else parse_manifest(content)
    if manifest is None or manifest["digest"] != digest:
        return None
    return manifest["pair_counts"] if manifest["files"].keys() <= store.list_files() else None


def _replace_files(store: StoreFolder, folder: Path) -> None:
    """Replace the prepared files of a store by those of a local folder. They do not count while the manifest is missing."""
    former_names = store.list_files()
    store.delete_files(former_names & {MANIFEST})
    upload_folder(folder, store.url, last=MANIFEST)
    patterns = (*PREPARED_FILES, CLEANING_PAGE)
    stale_names = {name for name in former_names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    store.delete_files(sorted(stale_names - {path.name for path in folder.iterdir()}))
