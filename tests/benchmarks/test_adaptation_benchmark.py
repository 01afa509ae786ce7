"""Adaptation benchmark: its subsets and test sets, and valid recipes."""

from __future__ import annotations

import gzip
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from dragoman.config import read_recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from quality.adaptation_data import (
    Corpora,
    MissingCorpusError,
    Pair,
    join_on_source,
    prepare_languages,
    select_adaptation_pairs,
    strip_tags,
)
from quality.adaptation_languages import RECIPE
from quality.adaptation_runs import make_base_recipe


def write_corpus(path: Path, pairs: list[Pair]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(f"{source}\t{target}\n" for source, target in pairs)


def test_tags_are_stripped_from_japanese_help() -> None:
    assert strip_tags("<emph>Merge</emph>  a < b and <link href='x'>c</link>") == "Merge a < b and c"


def test_adaptation_pairs_are_short_distinct_and_unseen() -> None:
    pairs = [(f"s{number}", f"t{number}") for number in range(50)]
    long, seen = ("word " * 41, "x"), ("tested", "t")
    larger = select_adaptation_pairs([*pairs, pairs[0], long, seen], [("tested", "getestet"), ("s1", "other")], 40)
    assert len(set(larger)) == 40
    assert not {long, seen, pairs[1]}.intersection(larger)
    assert select_adaptation_pairs(pairs[::-1], [("s1", "other")], 7) == larger[:7]


def test_test_sets_are_joined_on_the_english_side() -> None:
    assert join_on_source([("a", "de a"), ("b", "de b")], [("b", "fr b"), ("c", "fr c")]) == [("de b", "fr b")]


def test_no_language_trains_on_a_test_sentence_of_another(tmp_path: Path) -> None:
    for language, folder in (("de", "libreoffice-help"), ("fr", "libreoffice-help"), ("ja", "libreoffice-help-tagged")):
        for split in ("train", "dev", "test"):
            pairs = [(f"{split} {number}", f"{language} {split} {number}") for number in range(3)]
            if (language, split) == ("ja", "train"):
                pairs.append(("<emph>test 1</emph>", "ja <emph>of a test</emph>"))
            write_corpus(tmp_path / folder / f"en-{language}" / f"{split}.tsv.gz", pairs)
    prepare_languages(Corpora(tmp_path), tmp_path / "data")
    assert len((tmp_path / "data" / "en-ja-train.tsv").read_text(encoding="utf-8").splitlines()) == 3
    assert (tmp_path / "data" / "de-fr-test.source").read_text(encoding="utf-8").splitlines()[0] == "de test 0"
    with pytest.raises(MissingCorpusError, match="--shared"):
        Corpora(tmp_path / "elsewhere").read_libreoffice("de", "test")


def test_base_recipe_has_all_corpora_but_the_new_domain(tmp_path: Path) -> None:
    general = files("dragoman").joinpath("recipes/general-ende.toml").read_text(encoding="utf-8")
    path = tmp_path / "base.toml"
    path.write_text(make_base_recipe(general), encoding="utf-8")
    recipe = read_recipe(path)
    assert set(recipe.data.corpora) == {"tatoeba", "debian", "bible", "multi30k"}
    assert "libreoffice" not in recipe.model_dump_json().replace(recipe.name, "")


def test_language_recipe_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "languages.toml"
    path.write_text(RECIPE, encoding="utf-8")
    recipe = read_recipe(path, ["data.train.file=a.tsv", "data.train.columns=['2', '1']", "run=run"])
    assert recipe.tokenizer.vocab_size == 10_000
