"""Statuses of translations, each with an input or a model that causes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import dragoman
from dragoman import Translation, Translator
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.interface import SearchState
from dragoman.inference.commands.line_report import LineWarnings
from dragoman.inference.translation_result import merge_segments
from dragoman.tasks.translation import is_copy, is_short

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize(
    ("source", "translation", "copied"),
    [
        ("The house is small.", "The house is small.", True),
        ("The house is small.", "the HOUSE is small", True),
        ("The house is small.", "Das Haus ist klein.", False),
        ("Anna Maria Schmidt", "Anna Maria Schmidt", False),  # three words may be a name
        ("12 345 67 89 10 11", "12 345 67 89 10 11", False),  # numbers are the same everywhere
        ("one two three four five six seven eight nine ten", "one two three four five six seven eight nine zehn", True),
        ("one two three four five", "one two three vier fünf", False),
        ("今天下雨我们在家", "今天下雨我们在家", True),
        ("", "", False),
    ],
)
def test_copied_sources_are_recognized(source: str, translation: str, copied: bool) -> None:
    assert is_copy(source, translation) is copied


def load_with_logits(bundle: Path, change: Callable[[NDArray[np.float32]], object]) -> Translator:
    """Return a translator whose logits (rows, vocabulary) are changed in place at each step."""
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    step = translator.session.inference_model.step

    def change_step(tokens_N: NDArray[np.int64], state: SearchState) -> tuple[NDArray[np.float32], SearchState]:
        logits_NV, state = step(tokens_N, state)
        change(logits_NV)
        return logits_NV, state

    translator.session.inference_model = replace(translator.session.inference_model, step=change_step, native_search=None)
    return translator


def find_space(translator: Translator) -> int:
    space = translator.bundle.tokenizer.target.piece_to_id("▁")
    assert space is not None
    return space


def test_output_without_tokens_is_empty(bundle: Path) -> None:
    def end_at_once(logits_NV: NDArray[np.float32]) -> None:
        logits_NV[:, END_ID] = 50.0

    (translation,) = load_with_logits(bundle, end_at_once).translate(["ten"])
    assert (translation.text, translation.status) == ("", "empty")


def test_copied_source_has_status_copied(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokenizer.target, "decode", lambda ids: line)
    assert translator.translate([line])[0].status == "copied"


def test_copies_are_ok_for_equal_languages(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokenizer.target, "decode", lambda ids: line)
    task = translator.recipe.task.model_copy(update={"target_language": translator.recipe.task.source_language})
    recipe = translator.recipe.model_copy(update={"task": task})
    monkeypatch.setattr(translator.session, "bundle", replace(translator.bundle, recipe=recipe))
    assert translator.translate([line])[0].status == "ok"


def test_repetitions_are_stopped_and_searched_again(bundle: Path, translator: Translator) -> None:
    space = find_space(translator)
    lengths: list[int] = []

    def insist(logits_NV: NDArray[np.float32]) -> None:
        lengths.append(len(logits_NV))
        logits_NV[:, space] += 30.0

    looping = load_with_logits(bundle, insist)
    (translation,) = looping.translate(["one two"], method="greedy", max_extra_tokens=200)
    assert translation.status == "repetition"
    assert lengths.count(1) == 32  # stopped long before the limit of 200
    assert 4 in lengths  # searched again with a beam
    (several,) = looping.translate(["one two"], beam_size=6, nbest=6, max_extra_tokens=200)
    assert len(several.alternatives) == 5
    (kept,) = looping.translate(["one two"], method="greedy", max_extra_tokens=40, repetition_window=0)
    assert kept.status == "truncated"
    assert len(kept.tokens) > 40
    (allowed,) = looping.translate(["one " * 40], method="greedy")
    assert allowed.status == "truncated"  # a repetitive source allows a repetitive output


def test_empty_segment_makes_the_line_empty() -> None:
    translated = Translation("eins", tokens=("eins",), token_log_probs=(-0.1, -0.1), source_tokens=("one",))
    no_output = Translation("", token_log_probs=(-0.1,), status="empty", source_tokens=("two",))
    blank = Translation(" ", status="empty")
    assert merge_segments([translated, no_output], ["one ", "two"], "de").status == "empty"
    assert merge_segments([translated, blank], ["one", " "], "de").status == "ok"
    assert merge_segments([blank, blank], [" ", " "], "de").status == "empty"


@pytest.mark.parametrize(
    ("num_source_tokens", "num_output_tokens", "ratio", "is_stump"),
    [
        (50, 19, 0.4, True),
        (50, 20, 0.4, False),
        (20, 7, 0.4, True),
        (19, 1, 0.4, False),  # short sources are exempt
        (50, 1, 0.0, False),
        (50, 49, 1.0, True),
    ],
)
def test_is_short_needs_twenty_source_tokens(
    num_source_tokens: int, num_output_tokens: int, ratio: float, is_stump: bool
) -> None:
    source = [*range(10, 10 + num_source_tokens), END_ID]
    assert is_short(source, range(10, 10 + num_output_tokens), ratio) is is_stump


def test_stump_of_five_sentences_is_short(bundle: Path) -> None:
    length = 0

    def end_after_four_tokens(logits_NV: NDArray[np.float32]) -> None:
        nonlocal length
        length += 1
        logits_NV[:, END_ID] = 50.0 if length > 4 else -50.0

    translator = load_with_logits(bundle, end_after_four_tokens)
    text = "one red ten. two blue nine. three green eight. four big seven. five small six."
    (translation,) = translator.translate([text], method="greedy")
    assert len(translation.source_tokens) > 20
    assert (len(translation.tokens), translation.status) == (4, "short")
    length = 0
    assert translator.translate([text], method="greedy", min_length_ratio=0)[0].status == "ok"


def test_short_line_makes_the_command_incomplete() -> None:
    complete, incomplete = LineWarnings(), LineWarnings()
    complete.add("one two", Translation("eins zwei"))
    incomplete.add("one two three", Translation("eins", status="short"))
    assert not complete.has_errors
    assert incomplete.has_errors
    (message,) = incomplete.format_messages(None, DecodingConfig())
    assert "min_length_ratio" in message


@pytest.mark.parametrize(
    ("line", "translation", "is_named"),
    [
        ("Price in €", "Preis in", True),
        ("Price in €", "Preis in Euro", False),
        ("☕ at 5", "bei 5", True),
        ("☕ at 5", "☕ bei 5", False),
        ("№ 5", "Nr. 5", False),
    ],
)
def test_lines_that_lose_a_sign_are_named(line: str, translation: str, is_named: bool) -> None:
    report = LineWarnings()
    report.add(line, Translation(translation))
    assert ("signs" in report.counts) is is_named
    assert not report.has_errors


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ({"wir gehen heute nach Hause": "wir gehen nach Haus"}, "1 (1)"),
        ({"we are going home today": "wir gehen heute nach Hause"}, None),
        ({"Anna Maria Schmidt Berlin": "Anna Maria Schmidt, Berlin"}, None),  # names, which the words with capitals may be
        ({"die Zahl": "die Zahlen"}, None),
        ({"今天下雨我们在家": "今天下雨我们回家"}, "1 (1)"),
        ({f"line {number} has text": "Zeile" for number in range(10)} | {"wir gehen nach Hause": "wir gehen nach Haus"}, None),
        (
            {f"line {number} has text": "Zeile" for number in range(8)} | {"wir gehen nach Hause": "wir gehen nach Haus"},
            "1 (9)",
        ),
    ],
)
def test_lines_in_the_target_language_are_named(lines: dict[str, str], numbers: str | None) -> None:
    """A tenth of the lines or fewer are no sign of another language: they may be codes."""
    report = LineWarnings()
    for line, translation in lines.items():
        report.add(line, Translation(translation))
    messages = list(report.format_messages(None, DecodingConfig(), name_similar=True))
    assert not list(report.format_messages(None, DecodingConfig()))
    assert [message.rpartition(": ")[2] for message in messages] == ([] if numbers is None else [numbers])
    assert not report.has_errors
