"""Word aligner, alignment error rate, alignment heads and the align command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dragoman import Translator, word_aligner
from dragoman.bundle import BundleMetadata, load_bundle
from dragoman.cli.main import cli
from dragoman.evaluation.aer import AlignmentScore, score_alignments
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.inference.configured_model import ConfiguredModel
from dragoman.inference.forced_decoder import build_forced_decoder
from dragoman.tasks.attention_alignment import AlignmentHead, choose_alignment_head
from dragoman.word_aligner import align_pairs, split_blocks, symmetrize
from expected_errors import raises_code
from tiny_runs import WORDS

pytestmark = pytest.mark.usefixtures("one_core")


def test_cooccurring_words_are_linked() -> None:
    # The classic example of IBM model 1: das–the and Buch–book follow from the three pairs together.
    sources = ["das Haus", "das Buch", "ein Buch"]
    targets = ["the house", "the book", "a book"]
    links = align_pairs([line.split() for line in sources], [line.split() for line in targets])
    assert links == [[(0, 0), (1, 1)]] * 3


def test_reordered_words_are_linked() -> None:
    days = ["one", "two", "three", "four"]
    months = ["May", "June", "July"]
    sources = [[month, day] for month in months for day in days]
    targets = [[day.upper(), month.upper()] for month in months for day in days]
    assert align_pairs(sources, targets) == [[(0, 1), (1, 0)]] * 12


def test_empty_sentences_have_no_links() -> None:
    assert align_pairs([[], ["a"], ["a"]], [["x"], [], ["x"]]) == [[], [], [(0, 0)]]
    assert align_pairs([], []) == []
    assert align_pairs([[]], [[]]) == [[]]


def test_many_pairs_are_split_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # (2 + 1) · 2 cells for each pair
    pairs = [(["a", "b"], ["c", "d"])] * 5
    for max_cells, sizes in ((12, [2, 2, 1]), (1, [1] * 5)):
        monkeypatch.setattr(word_aligner, "MAX_BLOCK_CELLS", max_cells)
        assert [len(block) for block in split_blocks(pairs)] == sizes
    assert list(split_blocks([])) == []


def test_symmetrize_follows_grow_diag_final_and() -> None:
    # By the definition: (0, 0) is in both, (1, 1) is its neighbor, (3, 2) links two unlinked words, and (1, 3) is no neighbor
    # and would link a word twice.
    assert symmetrize({(0, 0), (1, 1), (1, 3)}, {(0, 0), (3, 2)}) == [(0, 0), (1, 1), (3, 2)]
    assert symmetrize(set(), set()) == []


def test_alignment_error_rate_matches_closed_form() -> None:
    # 2 of 3 predicted links and 2 of 2 gold links match: 1 − 2·2 / (3 + 2)
    partial = score_alignments([{(0, 0), (1, 1), (2, 2)}], [{(0, 0), (1, 1)}])
    assert partial == AlignmentScore(2, 3, 2)
    assert (partial.precision, partial.recall, partial.error_rate) == pytest.approx((2 / 3, 1, 0.2))
    empty = score_alignments([set()], [set()])
    assert (empty.precision, empty.recall, empty.error_rate) == (1, 1, 0)
    wrong = score_alignments([{(0, 0)}], [{(0, 1)}])
    assert (wrong.precision, wrong.recall, wrong.error_rate) == (0, 0, 1)


def test_best_alignment_head_is_chosen(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    sources = [f"{first} {second}" for first in list(WORDS)[:6] for second in list(WORDS)[6:12]]
    targets = [" ".join(WORDS[word] for word in source.split()) for source in sources]
    head = choose_alignment_head(
        build_forced_decoder(TrainedModel.from_bundle(loaded)), loaded.tokenizer, loaded.recipe.model, sources, targets
    )
    assert head is not None
    assert head.layer == 0  # the model has one layer
    assert head.head in (None, *range(loaded.recipe.model.num_heads))
    assert head.error_rate is not None
    assert 0 <= head.error_rate <= 1
    assert (
        choose_alignment_head(
            build_forced_decoder(TrainedModel.from_bundle(loaded)), loaded.tokenizer, loaded.recipe.model, [""], [""]
        )
        is None
    )


def test_translator_reads_head_from_metadata(translator: Translator) -> None:
    head = ConfiguredModel(translator.session, translator.recipe.decoding).aligner.head
    assert head == translator.metadata.alignment
    assert head.error_rate is not None
    assert BundleMetadata().alignment is None
    weights_LHTS = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
    assert AlignmentHead().select_weights(weights_LHTS).tolist() == [[10.0, 11.0], [12.0, 13.0]]
    assert AlignmentHead(0, 1).select_weights(weights_LHTS).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_align_equals_alignment_of_translations(translator: Translator) -> None:
    lines = ["one two", "ten", "big small"]
    tokenizer = translator.bundle.tokenizer
    num_compared = 0
    for line, translation in zip(lines, translator.translate(lines, attention=True), strict=True):
        pieces = tokenizer.target.ids_to_pieces(tokenizer.encode_target(translation.text))
        if pieces == list(translation.tokens) and translation.status == "ok":
            assert tuple(translator.align([line], [translation.text])[0]) == translation.alignment
            num_compared += 1
    assert num_compared
    assert translator.align(["", "one"], ["x", " "]) == [[], []]
    with raises_code("invalid-data", "2 sources", "1 translation"):
        translator.align(["a", "b"], ["x"])
    with raises_code("invalid-data", "line 1: ", "28 tokens", "9 at most"):
        translator.align(["one " * 9], ["x"], max_source_tokens=9)


def test_align_command_writes_and_scores_links(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "en").write_text("one two\n\nthree one\n", encoding="utf-8")
    (tmp_path / "de").write_text("eins zwei\n\ndrei eins\n", encoding="utf-8")
    (tmp_path / "short").write_text("eins\n", encoding="utf-8")
    run = CliRunner()
    plain = run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "de")])
    assert plain.stdout == "0-0 1-1\n\n0-0 1-1\n"
    as_json = run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--json"])
    first = json.loads(as_json.stdout.splitlines()[0])
    assert first == {"line": 1, "links": [[0, 0], [1, 1]], "words": [["one", "eins"], ["two", "zwei"]]}
    with_bundle = run.invoke(
        cli, ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--bundle", str(bundle), "-o", str(tmp_path / "o")]
    )
    assert with_bundle.exit_code == 0
    assert len((tmp_path / "o").read_text().splitlines()) == 3
    (tmp_path / "gold").write_text("0-0 1-1\n\n0-0 1-0 1-1\n")
    evaluated = ["align", str(tmp_path / "en"), str(tmp_path / "de"), "--gold", str(tmp_path / "gold")]
    # 4 of 4 predicted links match, and there are 5 gold links: 1 − 2·4 / (4 + 5)
    assert run.invoke(cli, evaluated).stdout == (
        "alignment error rate 0.1111, precision 1.0000, recall 0.8000\n4 of 4 links are gold links, of 5\n"
    )
    numbers = json.loads(run.invoke(cli, [*evaluated, "--json", "-o", str(tmp_path / "kept")]).stdout)
    assert (numbers["recall"], numbers["matched_links"], numbers["pairs"]) == (0.8, 4, 3)
    assert len((tmp_path / "kept").read_text().splitlines()) == 3
    (tmp_path / "gold").write_text("0-0\n")
    with raises_code("invalid-data", "gold: ", "1 line", "3 pairs"):
        run.invoke(cli, evaluated, catch_exceptions=False)
    (tmp_path / "gold").write_text("0-0\n\n0-2\n")
    with raises_code("invalid-alignment", "gold, line 3: 0-2"):
        run.invoke(cli, evaluated, catch_exceptions=False)
    with raises_code("length-mismatch", "3", "1 lines"):
        run.invoke(cli, ["align", str(tmp_path / "en"), str(tmp_path / "short")], catch_exceptions=False)
