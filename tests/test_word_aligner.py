"""The lexical aligner, and what is read off heads with its help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import dragoman
from conftest import WORDS
from dragoman import Translator
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.evaluation.aer import AlignmentScore, score_alignments
from dragoman.tasks.attention_alignment import AlignmentHead, choose_alignment_head, read_alignment_head
from dragoman.word_aligner import align_pairs, split_blocks, symmetrize

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_word_that_goes_with_another_is_found() -> None:
    # The classic lesson of the first IBM model: das–the and Buch–book follow from the three pairs together.
    sources = ["das Haus", "das Buch", "ein Buch"]
    targets = ["the house", "the book", "a book"]
    links = align_pairs([one.split() for one in sources], [one.split() for one in targets])
    assert links == [[(0, 0), (1, 1)]] * 3


def test_words_that_changed_places_are_linked_across() -> None:
    days = ["one", "two", "three", "four"]
    months = ["May", "June", "July"]
    sources = [[month, day] for month in months for day in days]
    targets = [[day.upper(), month.upper()] for month in months for day in days]
    assert align_pairs(sources, targets) == [[(0, 1), (1, 0)]] * 12


def test_empty_sides_have_no_links() -> None:
    assert align_pairs([[], ["a"], ["a"]], [["x"], [], ["x"]]) == [[], [], [(0, 0)]]
    assert align_pairs([], []) == []
    assert align_pairs([[]], [[]]) == [[]]


def test_rounds_are_told() -> None:
    told: list[int] = []
    align_pairs([["a"], ["b"]], [["c"], ["d"]], num_iterations=3, on_progress=told.append)
    assert sum(told) == 2 * 2 * 3  # pairs, directions, rounds


def test_very_many_pairs_are_aligned_in_blocks() -> None:
    # (2 + 1) · 2 numbers for each pair
    pairs = [(["a", "b"], ["c", "d"])] * 5
    assert [len(block) for block in split_blocks(pairs, max_cells=12)] == [2, 2, 1]
    assert [len(block) for block in split_blocks(pairs, max_cells=1)] == [1] * 5
    assert list(split_blocks([])) == []


def test_growing_from_what_both_say() -> None:
    # By hand, on the definition: (0, 0) is sure, (1, 1) is its neighbour, (3, 2) links two words that nothing else links,
    # (1, 3) would link a word twice and is no neighbour.
    assert symmetrize({(0, 0), (1, 1), (1, 3)}, {(0, 0), (3, 2)}) == [(0, 0), (1, 1), (3, 2)]
    assert symmetrize(set(), set()) == []


def test_the_error_rate() -> None:
    # 2 of 3 are right, 2 of 2 were found, 1 − 2·2 / (3 + 2)
    some = score_alignments([{(0, 0), (1, 1), (2, 2)}], [{(0, 0), (1, 1)}])
    assert some == AlignmentScore(2, 3, 2)
    assert (some.precision, some.recall, some.error_rate) == pytest.approx((2 / 3, 1, 0.2))
    nothing = score_alignments([set()], [set()])
    assert (nothing.precision, nothing.recall, nothing.error_rate) == (1, 1, 0)
    wrong = score_alignments([{(0, 0)}], [{(0, 1)}])
    assert (wrong.precision, wrong.recall, wrong.error_rate) == (0, 0, 1)


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    opened: Translator = dragoman.load(bundle, device="cpu", precision="float32")
    return opened


def test_the_best_head_is_chosen(bundle: Path) -> None:
    found = load_bundle(bundle)
    sources = [f"{one} {other}" for one in list(WORDS)[:6] for other in list(WORDS)[6:12]]
    targets = [" ".join(WORDS[word] for word in source.split()) for source in sources]
    told = choose_alignment_head(found.model, found.tokenizer, found.recipe, sources, targets)
    assert told is not None
    heads = found.recipe.model.num_heads
    assert told["layer"] == 0  # there is but one
    assert told["head"] in (None, *range(heads))
    assert 0 <= told["error"] <= 1
    assert choose_alignment_head(found.model, found.tokenizer, found.recipe, [""], [""]) is None


def test_a_bundle_names_its_head(translator: Translator) -> None:
    assert translator.alignment_head == read_alignment_head(translator.metadata)
    assert translator.alignment_head.error_rate is not None
    assert read_alignment_head({}) == AlignmentHead()
    weights_LHTS = torch.arange(16.0).view(2, 2, 2, 2)
    assert AlignmentHead().select_weights(weights_LHTS).tolist() == [[10.0, 11.0], [12.0, 13.0]]
    assert AlignmentHead(0, 1).select_weights(weights_LHTS).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_given_pairs_are_aligned_as_translations_are(translator: Translator) -> None:
    lines = ["one two", "ten", "big small"]
    made = translator.translate(lines, attention=True)
    again = [one for one in made if translator.bundle.tokenizer.target.ids_to_pieces(
        translator.bundle.tokenizer.encode_target(one.text)) == list(one.tokens) and one.status == "ok"]  # fmt: skip
    assert again
    for line, one in zip(lines, made, strict=True):
        if one in again:
            assert tuple(translator.align([line], [one.text])[0]) == one.alignment
    assert translator.align(["", "one"], ["x", " "]) == [[], []]
    with pytest.raises(DataError, match="2 sources but 1 translations"):
        translator.align(["a", "b"], ["x"])
    with pytest.raises(DataError, match=r"line 1: more than the 9 tokens that the model can align"):
        translator.align(["one " * 9], ["x"], max_source_tokens=9)


def test_the_command(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "en").write_text("one two\n\nthree one\n", encoding="utf-8")
    (tmp_path / "de").write_text("eins zwei\n\ndrei eins\n", encoding="utf-8")
    (tmp_path / "short").write_text("eins\n", encoding="utf-8")
    run = CliRunner()
    plain = run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "de")])
    assert plain.stdout == "0-0 1-1\n\n0-0 1-1\n"
    told = run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--json"])
    first = json.loads(told.stdout.splitlines()[0])
    assert first == {"line": 1, "links": [[0, 0], [1, 1]], "words": [["one", "eins"], ["two", "zwei"]]}
    by = run.invoke(
        cli, ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--bundle", str(bundle), "-o", str(tmp_path / "o")]
    )
    assert by.exit_code == 0
    assert len((tmp_path / "o").read_text().splitlines()) == 3
    (tmp_path / "gold").write_text("0-0 1-1\n\n0-0 1-0 1-1\n")
    judged = ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--gold", str(tmp_path / "gold")]
    # 4 of 4 links are right, and 5 were to be found: 1 − 2·4 / (4 + 5)
    assert run.invoke(cli, judged).stdout == (
        "alignment error rate 0.1111, precision 1.0000, recall 0.8000\n4 of 4 links are among the 5 of 3 pairs\n"
    )
    numbers = json.loads(run.invoke(cli, [*judged, "--json", "-o", str(tmp_path / "kept")]).stdout)
    assert (numbers["recall"], numbers["both"], numbers["pairs"]) == (0.8, 4, 3)
    assert len((tmp_path / "kept").read_text().splitlines()) == 3
    for text, why in (("0-0\n", "has 1 lines of links for 3 pairs"), ("0-0\n\n0-2\n", "gold, line 3: 0-2 links a word")):
        (tmp_path / "gold").write_text(text)
        with pytest.raises(DataError, match=why):
            run.invoke(cli, judged, catch_exceptions=False)
    with pytest.raises(DataError, match="has 3 lines but"):
        run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "short")], catch_exceptions=False)
