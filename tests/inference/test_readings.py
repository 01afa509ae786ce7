"""Placeholders as marks under a mask: with a translator whose answers are known, and with a model of random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dragoman
from conftest import MakeRecipe
from dragoman import TranslationConstraints, Translator
from dragoman.data.tokenization.pair_tokenizer import train_tokenizer
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, translate_texts
from dragoman.tasks.translation_status import TranslationStatus
from dragoman.text.inline_codes import Markup
from expected_errors import raises_code
from random_bundles import random_bundle
from tiny_runs import WORDS

pytestmark = pytest.mark.usefixtures("one_core")


def translate_masked(
    text: str, answer: Callable[[str], str], markup: Markup = "none", status: TranslationStatus = "ok"
) -> tuple[str, list[LineRequest]]:
    """Return the translation of a text by a function of its lines, and the requests; lines without marks are uppercased."""
    requests: list[LineRequest] = []

    def translate(request: LineRequest) -> list[Translation]:
        requests.append(request)
        results = []
        for line in request.lines:
            output = answer(line) if request.keep_marks else line.upper()
            sides = (tuple("▁" + word for word in side.split()) for side in (output, line))
            tokens, source_tokens = sides
            rows = np.eye(len(tokens), len(source_tokens))  # word by word
            line_status: TranslationStatus = status if request.keep_marks else "ok"
            results.append(Translation(output, tokens=tokens, source_tokens=source_tokens, attention=rows, status=line_status))
        return results

    options = TextOptions(markup, "en", "de", mask_codes=True, retry=False)
    (result,) = translate_texts([text], options, translate)
    return result.text, requests


def test_model_reads_marks_and_may_move_them() -> None:
    text, requests = translate_masked("Open {file} in %s now", lambda line: "Jetzt⟦1⟧, ⟦0⟧ öffnen")
    assert text == "Jetzt %s, {file} öffnen"
    assert [(request.lines, request.keep_marks, request.attention) for request in requests] == [
        (("Open ⟦0⟧ in ⟦1⟧ now",), True, False)
    ]


def test_equal_placeholders_are_different_marks() -> None:
    text, requests = translate_masked("from %s to %s", lambda line: "bis ⟦1⟧ von ⟦0⟧")
    assert (text, requests[0].lines) == ("bis %s von %s", ("from ⟦0⟧ to ⟦1⟧",))


def test_spaces_and_characters_without_width_are_no_marks() -> None:
    text, requests = translate_masked("Press&nbsp;the but&shy;ton &#8203;%s", lambda line: line.upper(), "html")
    assert (text, requests[0].lines) == ("PRESS&nbsp;THE&shy; BUTTON &#8203;%s", ("Press the button ⟦0⟧",))


def test_tags_without_content_are_marks_and_pairs_of_tags_are_placed_by_attention() -> None:
    source = 'See <b>x <img src="a">{n}</b> at <a href="u">https://a.b/?c=1&amp;d=2</a> &lt;here'
    text, requests = translate_masked(source, lambda line: "⟦2⟧ x ⟦0⟧⟦1⟧ z<", "html")
    assert requests[0].lines == ("See x ⟦0⟧⟦1⟧ at ⟦2⟧ <here",)
    assert requests[0].attention
    assert text == '<a href="u">https://a.b/?c=1&amp;d=2</a> <b>x <img src="a">{n}</b> z&lt;'


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("eins ⟦0⟧", "ok"),  # a mark is missing
        ("eins ⟦0⟧ ⟦1⟧ ⟦0⟧ zwei", "ok"),  # a mark is doubled
        ("eins zwei ⟦0⟧ ⟦1⟧.", "ok"),  # marks pile up at the end
        ("⟦0⟧ eins ⟦1⟧ zwei", "truncated"),
        ("", "too_long"),
    ],
)
def test_codes_are_placed_by_attention_if_the_marks_fail(answer: str, status: TranslationStatus) -> None:
    text, requests = translate_masked("one {a} two %s three", lambda line: answer, status=status)
    assert text == "ONE {a} TWO %s THREE"
    assert [(request.lines, request.keep_marks) for request in requests] == [
        (("one ⟦0⟧ two ⟦1⟧ three",), True),
        (("one two three",), False),
    ]


@pytest.mark.parametrize("text", ["one two", "one ⟦t⟧ {a}", "one \ufdd0 {a}", "one " + "{a} " * 33 + "two"])
def test_other_texts_are_read_without_marks(text: str) -> None:
    _, requests = translate_masked(text, lambda line: line)
    assert not any(request.keep_marks for request in requests)


# A model of random weights


@pytest.fixture(scope="module")
def translator(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory, one_core: None) -> Translator:
    settings = ("tokenizer.reserved_tokens=64", "tokenizer.byte_fallback=true", "tokenizer.vocab_size=340")
    recipe = tiny(tmp_path_factory.mktemp("marks"), *settings, "data.noise.placeholders=0.1", "decoding.max_source_tokens=40")
    tokenizer = train_tokenizer(WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=True, seed=1)
    return Translator.from_bundles([random_bundle(recipe, tokenizer)], device="cpu", precision="float32")


CODES = ("{a}", "%s", "%2$d", "https://a.b/?c=1", "[X0X]")


@pytest.mark.parametrize("decoding", [{"beam_size": 3, "nbest": 2}, {"method": "greedy"}, {"method": "sample", "seed": 2}])
def test_every_translation_has_each_mark_once(translator: Translator, decoding: dict[str, Any]) -> None:
    """The last line is longer than the model reads, so it is translated in segments."""
    lines = ["one ⟦0⟧ two", "⟦31⟧⟦2⟧", "⟦5⟧ plain", "ten", " ".join(f"one ⟦{number}⟧ten," for number in range(20))]
    keep = TranslationConstraints(keep_marks=True)
    results = translator.translate(lines, constraints=[keep, keep, None, None, keep], attention=True, **decoding)
    for line, result in zip((lines[0], lines[1], lines[4]), (results[0], results[1], results[4]), strict=True):
        marks = {word: line.count(word) for number in range(32) if (word := f"⟦{number}⟧") in line}
        for candidate in (result, *result.alternatives):
            assert {mark: candidate.text.count(mark) for mark in marks} == marks
            assert sum(token in marks for token in candidate.tokens) == len(marks)
    assert results[4].num_segments > 1
    plain = translator.translate(lines[2:4], attention=True, start_index=2, **decoding)
    assert [(result.text, result.source_tokens) for result in results[2:4]] == [
        (result.text, result.source_tokens) for result in plain
    ]  # without constraints, a mark is text


def test_marks_follow_a_prefix(translator: Translator) -> None:
    (result,) = translator.translate(["one ⟦0⟧"], constraints=[TranslationConstraints("zwei", keep_marks=True)])
    assert result.text.startswith("zwei")
    assert result.text.count("⟦0⟧") == 1


def test_whole_texts_keep_all_codes_with_a_mask(translator: Translator) -> None:
    assert translator.texts.uses_mask()
    rng = random.Random(5)
    texts = [" ".join(rng.choices([*WORDS, *CODES], k=8)) + "." for _ in range(12)]
    for text, result in zip(texts, translator.translate_texts(texts, beam_size=2), strict=True):
        assert [result.text.count(code) for code in CODES] == [text.count(code) for code in CODES]


def test_marks_that_cannot_be_kept_are_refused(translator: Translator, bundle: Path) -> None:
    keep = [TranslationConstraints(keep_marks=True)]
    with raises_code("invalid-constraints", "line 1: ⟦3⟧ stands twice in the text"):
        translator.translate(["⟦3⟧ one ⟦3⟧"], constraints=keep)
    with raises_code("invalid-option", "placeholders = 'masks': is not a method; choose one of auto, mask, projection"):
        translator.translate_texts(["one"], placeholders="masks")
    without_marks = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    assert not without_marks.texts.uses_mask()
    with raises_code("invalid-constraints", "line 1: keep_marks needs reserved tokens"):
        without_marks.translate(["one"], constraints=keep)
    with raises_code("invalid-option", "placeholders = 'mask': needs reserved tokens"):
        without_marks.translate_texts(["one"], placeholders="mask")
