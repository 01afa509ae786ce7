"""Built-in mixtures of corpora: cleaning and preparation match their documentation if the corpora are present."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.cleaning.cleaning_report import format_table
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.config import read_recipe

ROOT = Path(__file__).parents[2]
CORPORA = ROOT.parent / "shared" / "data"

pytestmark = pytest.mark.slow


def read_documented_counts(name: str) -> dict[str, list[str]]:
    """Return the pairs of each corpus by filter name, from the page of a mixture in docs/assets."""
    table = (ROOT / "docs" / "assets" / f"{name}.html").read_text(encoding="utf-8").split("<table>")[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    return {filter_name: counts[:-1] for filter_name, *counts in rows}


@pytest.mark.parametrize("name", ["general-ende", "general-zhen"])
def test_cleaning_drops_documented_counts(name: str, tmp_path: Path) -> None:
    if not CORPORA.is_dir():
        pytest.skip(f"needs the corpora that the recipe names, in {CORPORA}")
    recipe = read_recipe(ROOT / "recipes" / f"{name}.toml", [f"data.root={CORPORA}"])
    stats_by_corpus = clean_corpora(recipe, tmp_path / "cleaned")
    header, rows = format_table(stats_by_corpus)
    assert {filter_name: counts[: len(stats_by_corpus)] for filter_name, *counts in rows} == read_documented_counts(name)
    assert header[1:-1] == list(recipe.data.corpora)
