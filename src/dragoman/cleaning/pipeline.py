"""`dragoman clean`: the corpora of a recipe, less what its rules drop, as files of any format, with a report on what went."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from dragoman.cleaning.cleaned_corpus import CHUNK, Progress, Spool, spool_training
from dragoman.cleaning.report import cleaning_page
from dragoman.cleaning.statistics import Tally
from dragoman.config import Format, Recipe
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import refuse_missing
from dragoman.formats.writers import write_pairs
from dragoman.io.storage import sealed_folder, write_json, write_lines
from dragoman.runtime.processes import cores


def clean_corpora(
    recipe: Recipe, folder: Path, *, form: Format = "tsv", overwrite: bool = False, progress: Progress = lambda *_: None
) -> dict[str, Tally]:
    """Write the pairs that stay, `cleaning.json` and `cleaning.html` into a new folder; return what became of each corpus.

    The folder appears whole or not at all. Raises OutputError where it exists or cannot be written.
    """
    if form in ("tmx", "xliff") and not (recipe.task.source_language and recipe.task.target_language):
        raise RecipeError(f"a {form} file names its languages: give task.source_language and task.target_language")
    refuse_missing(recipe, recipe.data.training_corpora().values())
    with sealed_folder(folder, overwrite=overwrite) as partial:
        spools = spool_training(
            recipe, partial / "text", processes=recipe.data.preprocessing_workers or cores(), progress=progress
        )
        for spool in spools:
            write_pairs(
                partial / spool.name,
                _told(spool, progress),
                format=form,
                source_language=recipe.task.source_language,
                target_language=recipe.task.target_language,
            )
        shutil.rmtree(partial / "text")
        tallies = {spool.name: spool.tally for spool in spools}
        write_json(partial / "cleaning.json", {name: tally.to_dict() for name, tally in tallies.items()})
        write_lines(partial / "cleaning.html", [cleaning_page(tallies)])
    return tallies


def _told(spool: Spool, progress: Progress) -> Iterator[Pair]:
    for done, pair in enumerate(spool.pairs(), start=1):
        yield pair
        if done % CHUNK == 0:
            progress(f"writing {spool.name}", done, len(spool))
