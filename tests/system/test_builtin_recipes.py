"""The shipped mixtures do what their documentation says, where their corpora are at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cleaning.report import format_table
from dragoman.config import read_recipe
from dragoman.data.prepare import prepare

ROOT = Path(__file__).parents[2]
CORPORA = ROOT.parent / "shared" / "data"

pytestmark = pytest.mark.slow


def documented(name: str) -> dict[str, list[str]]:
    """Rule → pairs of each corpus and of all, as the table of its page under docs/benchmarks/."""
    (page,) = (ROOT / "docs" / "benchmarks").glob(f"*-{name}.md")
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| (read|`|kept)", line)]
    return {rule: counts[:-2] for rule, *counts in rows}


@pytest.mark.parametrize("name", ["general-ende", "general-zhen"])
def test_cleaning_drops_what_is_documented(name: str, tmp_path: Path) -> None:
    if not CORPORA.is_dir():
        pytest.skip(f"needs the corpora that the recipe names, in {CORPORA}")
    recipe = read_recipe(ROOT / "recipes" / f"{name}.toml", [f"data.root={CORPORA}"])
    tallies = clean_corpora(recipe, tmp_path / "cleaned")
    header, rows = format_table(tallies)
    assert {rule: counts[: len(tallies)] for rule, *counts in rows} == documented(name)
    assert header[1:-1] == list(recipe.data.corpora)


def test_the_smaller_mixture_is_prepared(tmp_path: Path) -> None:
    if not CORPORA.is_dir():
        pytest.skip(f"needs the corpora that the recipe names, in {CORPORA}")
    settings = [f"data.root={CORPORA}", f"run={tmp_path}", "tokenizer.train_sentences=20_000", "tokenizer.vocab_size=4_000"]
    recipe = read_recipe(ROOT / "recipes" / "general-zhen.toml", [*settings, "tokenizer.target_vocab_size=2_000"])
    prepared = prepare(recipe, tmp_path / "data")
    for name, fate in prepared.pair_counts.items():
        assert fate.read == fate.kept + fate.overlong_pairs + sum(fate.dropped.values())
        assert len(prepared.corpus(name)) == fate.kept > 1000
    assert prepare(recipe, tmp_path / "data").is_new is False
