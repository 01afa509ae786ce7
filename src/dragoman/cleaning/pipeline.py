"""Cleaning of a recipe's training corpora into files of any format, with statistics and a report: `dragoman clean`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import (
    CHUNK_PAIRS,
    CleanedCorpus,
    ProgressCallback,
    build_filter_pipelines,
    clean_training_corpora,
)
from dragoman.cleaning.cleaning_report import render_cleaning_report
from dragoman.cleaning.statistics import CleaningStats
from dragoman.config import Recipe
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import check_files_exist
from dragoman.formats.writers import WritableFormat, write_pairs
from dragoman.io.storage import atomic_dir, write_json, write_lines
from dragoman.runtime.processes import MapFunction, count_cores, map_in_processes


def clean_corpora(
    recipe: Recipe,
    folder: Path,
    *,
    file_format: WritableFormat = "tsv",
    overwrite: bool = False,
    on_progress: ProgressCallback = lambda *_: None,
    text_folder: Path | None = None,
    root_url: str | None = None,
    map_items: MapFunction = map_in_processes,
) -> dict[str, CleaningStats]:
    """Write the kept pairs, `cleaning.json` and `cleaning.html` into a new folder, and return the statistics by corpus.

    text_folder: folder of the cleaned text, which stays, and from which the same call continues after an interruption
    root_url: name of `data.root` in the origins of the pairs, if its files are copies
    map_items: function that filters chunks of pairs, by default in processes of this machine

    The folder appears only when all of it is written. Raises OutputError if it exists or cannot be written.
    """
    directions = recipe.training_directions
    if file_format == "tmx" and not all(all(direction.languages) for direction in directions.values()):
        raise RecipeError(
            "format tmx: its files name both languages; give task.source_language and target_language",
            code="missing-key",
        )
    check_files_exist(recipe.data.root, recipe.name, recipe.data.training_corpora().values())
    with atomic_dir(folder, overwrite=overwrite) as unfinished_folder:
        filter_pipelines = build_filter_pipelines(recipe)
        if root_url is not None:
            names = recipe.data.root, root_url.rstrip("/")
            filter_pipelines = {name: replace(pipeline, root_names=names) for name, pipeline in filter_pipelines.items()}
        cleaned_corpora = clean_training_corpora(
            recipe.data,
            filter_pipelines,
            text_folder or unfinished_folder / "text",
            processes=recipe.data.preprocessing_workers or count_cores(),
            on_progress=on_progress,
            map_items=map_items,
        )
        for cleaned_corpus in cleaned_corpora:
            write_pairs(
                unfinished_folder / cleaned_corpus.name,
                _iter_with_progress(cleaned_corpus, on_progress),
                file_format=file_format,
                source_language=directions[cleaned_corpus.name].source_language,
                target_language=directions[cleaned_corpus.name].target_language,
            )
        if text_folder is None:
            shutil.rmtree(unfinished_folder / "text")
        stats_by_corpus = {cleaned_corpus.name: cleaned_corpus.stats for cleaned_corpus in cleaned_corpora}
        write_json(unfinished_folder / "cleaning.json", {name: stats.to_dict() for name, stats in stats_by_corpus.items()})
        write_lines(unfinished_folder / "cleaning.html", [render_cleaning_report(stats_by_corpus)])
    return stats_by_corpus


def _iter_with_progress(cleaned_corpus: CleanedCorpus, on_progress: ProgressCallback) -> Iterator[Pair]:
    for num_written, pair in enumerate(cleaned_corpus.iter_pairs(), start=1):
        yield pair
        if num_written % CHUNK_PAIRS == 0:
            on_progress(f"writing {cleaned_corpus.name}", num_written, len(cleaned_corpus))
