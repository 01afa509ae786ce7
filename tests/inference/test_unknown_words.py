"""Replacement of unknown words by a model over words that outputs `<unk>` at known places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import MakeRecipe
from dragoman import Translator
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import END_ID, UNKNOWN_ID
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.words import WordScheme
from dragoman.decoding.interface import SearchState
from dragoman.errors import DataError
from dragoman.inference.unknown_words import read_dictionary, replace_unknown_words
from expected_errors import raises_code
from random_bundles import random_bundle

pytestmark = pytest.mark.usefixtures("one_core")
WORDS = ["the", "house", "is", "in"]
SOURCE = "the house in Reykjavík is 4711"


@pytest.fixture(scope="module", params=["", "the house: "])
def translator(
    tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory, one_core: None, request: pytest.FixtureRequest
) -> Translator:
    """Random model over words, perhaps with a source prefix; its greedy output is `<unk> house <unk>`."""
    recipe = tiny(tmp_path_factory.mktemp("words") / "run", "tokenizer.model_type=word", "decoding.method=greedy")
    vocabulary = TokenListTokenizer(WordScheme(), WORDS)
    tokenizer = PairTokenizer(
        vocabulary, vocabulary, append_source_eos=recipe.model.append_source_eos, source_prefix=request.param
    )
    translator = Translator.from_bundles([random_bundle(recipe, tokenizer)], device="cpu", precision="float32")
    house = vocabulary.piece_to_id("▁house")
    assert house is not None
    step, output_ids = translator.session.inference_model.step, [UNKNOWN_ID, house, UNKNOWN_ID, END_ID]

    def output_next(lengths: list[int]) -> Callable[[NDArray[np.int64], SearchState], tuple[NDArray[np.float32], SearchState]]:
        def forced_step(tokens_N: NDArray[np.int64], state: SearchState) -> tuple[NDArray[np.float32], SearchState]:
            logits_NV, state = step(tokens_N, state)
            logits_NV[:, output_ids[lengths[0] % len(output_ids)]] = 50.0
            lengths[0] += 1
            return logits_NV, state

        return forced_step

    translator.session.inference_model = replace(translator.session.inference_model, step=output_next([0]), native_search=None)
    return translator


def find_attended_words(translator: Translator) -> list[str]:
    """Return the source word with the most attention at each output position, by the attention of the mean head."""
    (translation,) = translator.translate([SOURCE], attention=True)
    assert translation.attention is not None
    words, start = SOURCE.split(), translation.source_tokens.count("")
    rows = [row[start : start + len(words)] for row in translation.attention[:3]]
    return [words[int(row.argmax())] for row in rows]


def test_unknown_word_becomes_attended_source_word(translator: Translator) -> None:
    first, _, last = find_attended_words(translator)
    (translation,) = translator.translate([SOURCE], replace_unknowns=True)
    assert translation.text == f"{first} house {last}"
    assert translation.tokens == ("▁<unk>", "▁house", "▁<unk>")


def test_dictionary_comes_before_a_copy(translator: Translator, tmp_path: Path) -> None:
    first, _, last = find_attended_words(translator)
    path = tmp_path / "dictionary.tsv"
    path.write_text(f"{first}\tzwei Wörter\n", encoding="utf-8")
    (translation,) = translator.translate([SOURCE], replace_unknowns=True, unknown_dictionary=str(path))
    assert translation.text == f"zwei Wörter house {'zwei Wörter' if last == first else last}"


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("a ⁇ b ⁇", ["x", "y"], "a x b y"),
        ("⁇", ["x"], "x"),
        ("a ⁇", [], "a ⁇"),
        ("a ⁇ ⁇", ["x"], "a ⁇ ⁇"),  # the source itself had such a mark
    ],
)
def test_marks_are_replaced_in_order(text: str, words: list[str], expected: str) -> None:
    assert replace_unknown_words(text, words) == expected


@pytest.mark.parametrize("line", ["word", "\tWort", "word\t", "two words\tWort", "a\tb\tc"])
def test_wrong_dictionary_line_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "dictionary.tsv"
    path.write_text(f"good\tgut\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2") as error:
        read_dictionary(str(path))
    assert error.value.code == "invalid-format"


def test_missing_dictionary_is_an_error(translator: Translator, tmp_path: Path) -> None:
    with raises_code("file-not-found"):
        translator.translate([SOURCE], replace_unknowns=True, unknown_dictionary=str(tmp_path / "none.tsv"))


def test_dictionary_needs_replacement(translator: Translator) -> None:
    with raises_code("invalid-recipe"):
        translator.translate([SOURCE], unknown_dictionary="dictionary.tsv")
