"""The embedded default: a corpus made on the spot, a small model, and something to look at after some minutes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dragoman.config import Recipe, make_recipe, parse_document
from dragoman.data.pair import Pair
from dragoman.data.phrases import make_phrases
from dragoman.errors import OutputError
from dragoman.storage import cannot_write, write_lines

SIZES = {"train": 25_000, "valid": 500, "test": 1_000}


@dataclass(frozen=True)
class Quickstart:
    """A recipe that is ready to train, and the test phrase whose attention is worth a picture."""

    recipe: Recipe
    picture_of: str


def prepare_quickstart(
    language: str, run: Path, *, seed: int, changes: Sequence[str], notice: Callable[[str], None]
) -> Quickstart:
    """Make the corpus in `run`/text and the recipe for it. Raises DataError for a language that there is no corpus in."""
    notice(f"making {SIZES['train']:,} phrases in English and {language!r} (dates, times, prices, measures, numbers)")
    phrases = make_phrases(language, seed=seed, **SIZES)
    try:
        (run / "text").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(cannot_write(run, error)) from None
    for name, pairs in (("train", phrases.train), ("valid", phrases.valid), ("test", phrases.test)):
        write_lines(run / "text" / f"{name}.en", [pair.source for pair in pairs], overwrite=True)
        write_lines(run / "text" / f"{name}.{language}", [pair.target for pair in pairs], overwrite=True)
    where = "recipes/quickstart.toml"
    document = parse_document(files("dragoman").joinpath(where).read_text(encoding="utf-8"), where=where)
    settings = [
        f"name='quickstart-{language}'",
        f"run={json.dumps(str(run), ensure_ascii=False)}",
        f"data.root={json.dumps(str(run / 'text'), ensure_ascii=False)}",
        f"task.target_language='{language}'",
        *(f"data.{name}.target='{name}.{language}'" for name in SIZES),
        f"training.seed={seed}",
        *changes,
    ]
    return Quickstart(make_recipe(document, settings, where=where), _telling(phrases.test).source)


def _telling(pairs: Sequence[Pair]) -> Pair:
    """A date written out, in which day and month change places between English and most other languages."""
    dates = [pair for pair in pairs if pair.origin.startswith("phrases:date") and len(pair.source.split()) == 4]
    return (dates or list(pairs))[0]
