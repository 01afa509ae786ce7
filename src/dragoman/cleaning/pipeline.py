"""Cleaning of a recipe's training corpora into files of any format, with statistics and a report: `dragoman clean`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
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
from dragoman.runtime.processes import count_cores


def clean_corpora(
    recipe: Recipe,
    folder: Path,
    *,
    file_format: WritableFormat = "tsv",
    overwrite: bool = False,
    on_progress: ProgressCallback = lambda *_: None,
    clean_training: Callable[[], list[CleanedCorpus]] | None = None,
) -> dict[str, CleaningStats]:
    """Write the kept pairs, `cleaning.json` and `cleaning.html` into a new folder, and return the statistics by corpus.

    clean_training: returns the cleaned corpora; by default, processes of this machine clean them

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
        if clean_training is None:
            cleaned_corpora = clean_training_corpora(
                recipe.data,
                build_filter_pipelines(recipe),
                unfinished_folder / "text",
                processes=recipe.data.preprocessing_workers or count_cores(),
                on_progress=on_progress,
            )
        else:
            cleaned_corpora = clean_training()
        for cleaned_corpus in cleaned_corpora:
            write_pairs(
                unfinished_folder / cleaned_corpus.name,
                _iter_with_progress(cleaned_corpus, on_progress),
                file_format=file_format,
                source_language=directions[cleaned_corpus.name].source_language,
                target_language=directions[cleaned_corpus.name].target_language,
            )
        if clean_training is None:
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
