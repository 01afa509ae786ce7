"""Cleaning of a recipe's training corpora by the workers of a cluster, from and to local folders and object stores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.cleaning.cleaned_corpus import ProgressCallback
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cleaning.statistics import CleaningStats
from dragoman.cluster.cluster_map import ClusterMap, Executor
from dragoman.cluster.versions import get_versions
from dragoman.config import DataConfig, Recipe, TaskConfig
from dragoman.data.manifest import list_corpora
from dragoman.errors import DataError, OutputError
from dragoman.formats.corpus_copies import copy_corpora, list_corpus_names
from dragoman.formats.object_store import check_output_is_free, exists, get_work_path, is_url, normalize_url, upload_folder
from dragoman.formats.readers import check_files_exist, list_corpus_files
from dragoman.formats.writers import WritableFormat
from dragoman.io.storage import lock_dir, make_dirs, to_write_error, write_json

LAST_FILE = "cleaning.json"
"""File of the output that an object store receives last."""
REQUEST_FILE = "request.json"


def clean_on_cluster(
    recipe: Recipe,
    output: str | Path,
    executor: Executor,
    *,
    file_format: WritableFormat = "tsv",
    overwrite: bool = False,
    on_progress: ProgressCallback = lambda *_: None,
) -> dict[str, CleaningStats]:
    """Write what `clean_corpora` writes, byte for byte, and return the statistics by corpus.

    Unfinished text is in `OUTPUT.part`, or in the cache folder of this machine for an object store. The same call continues.

    recipe: its `data.root` may be a URL of an object store
    output: folder, or URL of an object store
    """
    if any(corpus.reads_standard_input for corpus in recipe.data.training_corpora().values()):
        raise DataError("standard input: cannot be read again after an interruption; give a file with --cluster")
    url, root_url = normalize_url(output), normalize_url(recipe.data.root)
    path = get_work_path(url, "outputs") if is_url(url) else Path(url)
    work_folder = path.with_name(f"{path.name}.part")
    # An upload that was interrupted has no cleaning.json, which is written last, and its text is still there.
    is_interrupted = is_url(url) and work_folder.exists() and not exists(f"{url}/{LAST_FILE}")
    check_output_is_free(url, overwrite=overwrite or is_interrupted)
    try:
        make_dirs(work_folder)
        with lock_dir(work_folder):
            data = copy_corpora(recipe.data, list_corpus_names(list_corpora(recipe.data)), work_folder / "input")
            local_recipe = recipe.model_copy(update={"data": data})
            check_files_exist(data.root, recipe.name, data.training_corpora().values())
            _open_request(work_folder, _describe_request(recipe.data, recipe.task, data), overwrite=overwrite)
            stats_by_corpus = clean_corpora(
                local_recipe,
                work_folder / "output" if is_url(url) else path,
                file_format=file_format,
                overwrite=overwrite or is_url(url),
                on_progress=on_progress,
                text_folder=work_folder / "text",
                root_url=root_url if is_url(root_url) else None,
                map_items=ClusterMap(executor),
            )
            if is_url(url):
                upload_folder(work_folder / "output", url, last=LAST_FILE)
        shutil.rmtree(work_folder)
    except OSError as error:
        raise to_write_error(work_folder, error) from None
    return stats_by_corpus


def _describe_request(data: DataConfig, task: TaskConfig, local: DataConfig) -> dict[str, Any]:
    """Return everything that determines the text. local: section `data` whose files are on this machine"""
    paths = [path for corpus in list_corpora(local) for path in list_corpus_files(corpus, Path(local.root))]
    files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths if path.is_file()]
    languages = [task.source_language, task.target_language]
    return {"data": data.model_dump(), "languages": languages, "files": files, "versions": get_versions()}


def _open_request(folder: Path, request: Mapping[str, Any], *, overwrite: bool) -> None:
    """Record what the text in a folder is made of. Raises OutputError for the text of another request."""
    path = folder / REQUEST_FILE
    try:
        is_same = json.loads(path.read_bytes()) == json.loads(json.dumps(request))
    except (FileNotFoundError, ValueError):
        is_same = not (folder / "text").exists()
    if not is_same and not overwrite:
        raise OutputError(
            f"{folder}: belongs to another request; give another output name, or start again with --overwrite",
            code="output-mismatch",
        )
    if not is_same:
        shutil.rmtree(folder / "text", ignore_errors=True)
    write_json(path, request, overwrite=True)
