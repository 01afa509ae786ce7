"""The embedded default: a corpus made on the spot, a small model, and something to look at after some minutes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dragoman.config import Recipe, make_recipe, parse_document
from dragoman.data.synthetic_corpus import known_links, make_phrases
from dragoman.errors import OutputError
from dragoman.formats.pair import Pair
from dragoman.formats.pharaoh import pharaoh
from dragoman.io.storage import cannot_write, write_lines

PAIRS = {"train": 25_000, "valid": 500, "test": 1_000}


@dataclass(frozen=True)
class Quickstart:
    """A recipe that is ready to train, and the test phrase whose attention is worth a picture."""

    recipe: Recipe
    picture_of: str


def prepare_quickstart(
    language: str, run: Path, *, seed: int, changes: Sequence[str], notice: Callable[[str], None]
) -> Quickstart:
    """Make the recipe, and its corpus in `run`/text; those test phrases whose links are known stand there once more, as dates.

    Raises DataError for a language that there is no corpus in, and OutputError where other text stands in its place.
    """
    where = "recipes/quickstart.toml"
    document = parse_document(files("dragoman").joinpath(where).read_text(encoding="utf-8"), where=where)
    settings = [
        f"name={_quoted(f'quickstart-{language}')}",
        f"run={_quoted(str(run))}",
        f"data.root={_quoted(str(run / 'text'))}",
        f"task.target_language={_quoted(language)}",
        *(f"data.{name}.target={_quoted(f'{name}.{language}')}" for name in PAIRS),
        f"training.seed={seed}",
        *changes,
    ]
    recipe = make_recipe(document, settings, where=where)
    notice(f"making {PAIRS['train']:,} phrases in English and {language!r} (dates, times, prices, measures, numbers)")
    phrases = make_phrases(language, seed=recipe.training.seed, **PAIRS)
    folder = Path(recipe.data.root)
    for name, pairs in (("train", phrases.train), ("valid", phrases.valid), ("test", phrases.test)):
        _write_once(folder / f"{name}.en", [pair.source for pair in pairs])
        _write_once(folder / f"{name}.{language}", [pair.target for pair in pairs])
    dates = [(pair, links) for pair in phrases.test if (links := known_links(pair)) is not None]
    if dates:
        _write_once(folder / "dates.en", [pair.source for pair, _ in dates])
        _write_once(folder / f"dates.{language}", [pair.target for pair, _ in dates])
        _write_once(folder / "dates.links", [pharaoh(links) for _, links in dates])
    return Quickstart(recipe, _telling(phrases.test).source)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_once(path: Path, lines: Sequence[str]) -> None:
    """Write the text; leave it where it stands there already, and refuse to replace any other."""
    text = "".join(line + "\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.read_bytes() != text.encode():
                raise OutputError(f"{path}: holds other text (of another seed?), which is left as it is; give another --run")
            return
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None
    write_lines(path, lines)


def _telling(pairs: Sequence[Pair]) -> Pair:
    """A date written out, in which day and month change places between English and most other languages."""
    dates = [pair for pair in pairs if pair.origin.startswith("phrases:date") and len(pair.source.split()) == 4]
    return (dates or list(pairs))[0]
