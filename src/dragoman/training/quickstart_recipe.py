"""Quickstart: generates a corpus, and returns a recipe for a small model that trains in minutes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dragoman.config import Recipe, make_recipe, parse_toml
from dragoman.data.synthetic_corpus import extract_date_links, make_phrases
from dragoman.errors import OutputError
from dragoman.formats.pair import Pair
from dragoman.formats.pharaoh import format_pharaoh
from dragoman.io.storage import to_write_error, write_lines

PAIR_COUNTS = {"train": 25_000, "valid": 500, "test": 1_000}


@dataclass(frozen=True)
class Quickstart:
    """Recipe that is ready to train, and the test phrase whose attention the report shows."""

    recipe: Recipe
    attention_source: str


def prepare_quickstart(
    language: str, run_dir: Path, *, seed: int, changes: Sequence[str], notice: Callable[[str], None]
) -> Quickstart:
    """Return the recipe, and write its corpus into `run_dir`/text. Test phrases with known word alignments are also in dates.*.

    Raises DataError for a language without a corpus, and OutputError if other text is in its place.
    """
    recipe_resource = "recipes/quickstart.toml"
    document = parse_toml(files("dragoman").joinpath(recipe_resource).read_text(encoding="utf-8"), where=recipe_resource)
    settings = [
        f"name={_quote(f'quickstart-{language}')}",
        f"run={_quote(str(run_dir))}",
        f"data.root={_quote(str(run_dir / 'text'))}",
        f"task.target_language={_quote(language)}",
        *(f"data.{name}.target={_quote(f'{name}.{language}')}" for name in PAIR_COUNTS),
        f"training.seed={seed}",
        *changes,
    ]
    recipe = make_recipe(document, settings, where=recipe_resource)
    notice(f"generating {PAIR_COUNTS['train']:,} English phrases with translations: dates, times, prices, measures, numbers")
    phrases = make_phrases(language, seed=recipe.training.seed, **PAIR_COUNTS)
    folder = Path(recipe.data.root)
    for name, pairs in (("train", phrases.train), ("valid", phrases.valid), ("test", phrases.test)):
        _write_once(folder / f"{name}.en", [pair.source for pair in pairs])
        _write_once(folder / f"{name}.{language}", [pair.target for pair in pairs])
    dates = [(pair, links) for pair in phrases.test if (links := extract_date_links(pair)) is not None]
    if dates:
        _write_once(folder / "dates.en", [pair.source for pair, _ in dates])
        _write_once(folder / f"dates.{language}", [pair.target for pair, _ in dates])
        _write_once(folder / "dates.links", [format_pharaoh(links) for _, links in dates])
    return Quickstart(recipe, _select_attention_pair(phrases.test).source)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_once(path: Path, lines: Sequence[str]) -> None:
    """Write the text, unless the file holds it already. Raise OutputError if the file holds other text."""
    text = "".join(line + "\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.read_bytes() != text.encode():
                raise OutputError(
                    f"{path}: holds other text, perhaps of another seed, so it is kept; give another --run",
                    code="not-replaceable",
                )
            return
    except OSError as error:
        raise to_write_error(path, error) from None
    write_lines(path, lines)


def _select_attention_pair(pairs: Sequence[Pair]) -> Pair:
    """Return a date in words, in which day and month change their order between English and most languages."""
    dates = [pair for pair in pairs if pair.origin.startswith("phrases:date") and len(pair.source.split()) == 4]
    return (dates or list(pairs))[0]
