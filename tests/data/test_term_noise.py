"""Tests of annotated terms in training pairs: phrases that links give, terms of a file, and batches."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from conftest import MakeRecipe
from dragoman.config import Recipe
from dragoman.data import dataloader, term_noise
from dragoman.data.dataloader import DataPosition, TrainingBatches
from dragoman.data.prepare import prepare
from dragoman.data.term_noise import annotate_source, check_terminology, find_known_terms, find_linked_terms, read_term_file
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID
from dragoman.text.glossary import Glossary, GlossaryEntry
from dragoman.text.term_annotation import remove_annotations
from expected_errors import raises_code
from tiny_runs import WORDS

SOURCE, TARGET = "He closed the old networks, today.", "Er hat heute die alten Netzwerke geschlossen."
LINKS = [(0, 0), (1, 1), (1, 6), (2, 3), (3, 4), (4, 5), (5, 2)]
ANNOTATION = re.compile("⟦t⟧ ?(.*?)⟦=⟧ (.*?)⟦/t⟧")
SETTINGS = ["tokenizer.reserved_tokens=64", "tokenizer.vocab_size=320", "tokenizer.byte_fallback=true"]


@pytest.fixture(autouse=True)
def with_simplemma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks find simplemma, without its dictionaries: German terms of this file have equal lemmas with and without it."""
    monkeypatch.setattr(term_noise, "find_spec", lambda name: name)
    monkeypatch.setattr(dataloader, "get_lemmatizer", lambda language: None)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        # Short outer words, "closed" with a gap in its phrase, and phrases with a comma give no terms.
        (LINKS, {"networks": "Netzwerk", "today": "heute"}),
        ([(3, 4), (3, 5), (4, 5)], {}),  # "networks" has a word that is linked to "old", too, and "old" is short
        ([(1, 4), (1, 5), (4, 4)], {}),  # beyond three words
        ([(1, 4), (3, 5)], {"closed": "alten"}),  # and not the phrase up to "old"
        ([(4, 4), (4, 5)], {"networks": "alten Netzwerke"}),
        ([(4, 5), (9, 9)], {"networks": "Netzwerk"}),  # links of words that truncation removed
        ([], {}),
    ],
)
def test_linked_phrases_are_terms(links: list[tuple[int, int]], expected: dict[str, str]) -> None:
    lemmas = {"Netzwerke": "Netzwerk"}
    terms = find_linked_terms(SOURCE, TARGET, np.array(links, np.int32).reshape(-1, 2), lambda word: lemmas.get(word, word))
    assert {SOURCE[start:end]: translation for start, end, translation in terms} == expected


def test_unspaced_text_has_no_linked_terms() -> None:
    links = np.array([(1, 0)], np.int32)
    assert find_linked_terms("I bought 书", "我买了书", links, None) == []


def test_file_gives_terms_that_the_target_uses() -> None:
    entries = [
        GlossaryEntry("network", ("Netz", "Netzwerk")),
        GlossaryEntry("old", ("uralt",)),
        GlossaryEntry("cat", ("Katze",)),
    ]
    glossary = Glossary(entries, lemmatize_source=lambda word: word.rstrip("s"), lemmatize_target=lambda word: word.rstrip("e"))
    assert find_known_terms(SOURCE, TARGET, glossary) == [(18, 26, "Netzwerk")]


def test_one_term_in_five_has_a_wrong_translation() -> None:
    """Allow five standard deviations of the binomial distribution."""
    terms, count = [(18, 26, "Netzwerk"), (18, 26, "Netz")], 2000
    texts = [annotate_source(SOURCE, TARGET, terms, lambda: "Er hat ein Fahrrad heute.", Random(seed)) for seed in range(count)]
    assert {remove_annotations(text) for text in texts} == {SOURCE}
    translations = [translation for text in texts for _, translation in ANNOTATION.findall(text)]
    assert len(translations) == count, "terms do not overlap"
    assert set(translations) == {"Netzwerk", "Netz", "Fahrrad"}, "short words and words of the target are not wrong"
    assert abs(translations.count("Fahrrad") - count / 5) <= 5 * (count * 4 / 25) ** 0.5


def read_rows(batches: TrainingBatches) -> list[tuple[str, str]]:
    """Return the texts of the first epoch with the marks of reserved tokens."""
    marked = batches.tokenizer.marked
    assert marked is not None

    def decode(row: list[int]) -> str:
        return marked.source.decode(row[: row.index(END_ID)])

    parts = [part for number in range(batches.count_batches(0)) for part in batches[DataPosition(0, number)]]
    return [
        (decode(source), decode(target))
        for part in parts
        for source, target in zip(part.source_BS.tolist(), part.targets_BT.tolist(), strict=True)
    ]


def load_batches(recipe: Recipe) -> TrainingBatches:
    folder = Path(recipe.run) / "data"
    prepare(recipe, folder)
    return TrainingBatches(recipe, folder, start_id=BEGIN_ID)


@pytest.mark.slow
def test_batches_hold_annotated_terms_and_marked_placeholders(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Each word of the corpus has one translation, so that the aligner finds it."""
    batches = load_batches(tiny(tmp_path, *SETTINGS, "data.noise.terminology=0.7", "data.noise.placeholders=0.4"))
    rows = read_rows(batches)
    pairs = [(term, translation) for source, _ in rows for term, translation in ANNOTATION.findall(source)]
    right = [all(WORDS[word] == part for word, part in zip(*map(str.split, pair), strict=True)) for pair in pairs]
    assert len(pairs) > 20
    assert 0.5 < sum(right) / len(right) < 1
    for source, target in rows:
        marks = re.findall(r"⟦\d+⟧", source)
        assert re.findall(r"⟦\d+⟧", target) == marks
        assert "⟦t⟧" not in target
        words = remove_annotations(source).split()
        known = [word for word in words if word in WORDS]
        assert [WORDS[word] for word in known] == [word for word in target.split() if word in WORDS.values()]
    assert any(re.search(r"⟦\d+⟧", source) for source, _ in rows)
    assert any(re.search(r"[{%_<\[]", source) for source, _ in rows), "half of the placeholders are text"


def test_terms_come_from_the_file(tiny: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("seven\tSiebener|sieben\nred\tRotwein\n", encoding="utf-8")
    recipe = tiny(tmp_path, *SETTINGS, "data.noise.terminology=1", f"data.term_file={tmp_path / 'terms.tsv'}")
    batches = load_batches(recipe)
    pairs = [pair for source, _ in read_rows(batches) for pair in ANNOTATION.findall(source)]
    assert {term for term, _ in pairs} == {"seven"}
    assert "sieben" in {translation for _, translation in pairs} <= set(WORDS.values())
    assert not list((tmp_path / "data").glob("*.links.arrow"))


def test_missing_parts_of_terminology_are_refused(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code("tokenizer-mismatch", "data.noise.terminology", "tokenizer.reserved_tokens = 64"):
        prepare(tiny(tmp_path, *SETTINGS[1:], "data.noise.terminology=0.1"), tmp_path / "data")
    for text, code in (("", "empty-data"), ("term\n", "unknown-column")):
        (tmp_path / "terms.tsv").write_text(text, encoding="utf-8")
        with raises_code(code, "terms.tsv"):
            settings = (*SETTINGS, "data.noise.terminology=0.1", f"data.term_file={tmp_path / 'terms.tsv'}")
            read_term_file(tiny(tmp_path, *settings).data, ("en", "de"))
    monkeypatch.setattr(term_noise, "find_spec", lambda name: None)
    recipe = tiny(tmp_path, *SETTINGS, "data.noise.terminology=0.1")
    folder = tmp_path / "plain"
    tokenizer = prepare(tiny(tmp_path, *SETTINGS), folder).tokenizer
    with raises_code("missing-dependency", "simplemma", "dragoman[terminology]"):
        check_terminology(recipe.data, recipe.default_pair, tokenizer)
