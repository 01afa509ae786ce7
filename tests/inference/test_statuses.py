"""What became of a line: each status by an input that is made to bring it about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

import dragoman
from dragoman import Translation, Translator
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.interface import SearchState
from dragoman.inference.translation import merge_segments
from dragoman.tasks.translation import is_copy

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    opened: Translator = dragoman.load(bundle, device="cpu", precision="float32")
    return opened


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
def test_a_copy_is_known(source: str, translation: str, copied: bool) -> None:
    assert is_copy(source, translation) is copied


def test_lines_without_text_come_back_as_they_are(translator: Translator) -> None:
    blank = ["", " ", "\t ", "\u3000"]
    results = translator.translate(blank)
    assert [one.text for one in results] == blank
    assert {one.status for one in results} == {"empty"}


def test_nothing_said_is_empty(bundle: Path) -> None:
    silent = dragoman.load(bundle, device="cpu", precision="float32")
    plain = silent.speaker.step

    def ends_at_once(tokens_N: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        logits_NV, state = plain(tokens_N, state)
        logits_NV[:, END_ID] = 50.0
        return logits_NV, state

    silent.speaker = replace(silent.speaker, step=ends_at_once)
    (one,) = silent.translate(["ten"])
    assert (one.text, one.status) == ("", "empty")


def test_a_space_and_no_more_is_nothing_said(bundle: Path) -> None:
    spaced = dragoman.load(bundle, device="cpu", precision="float32")
    plain, space = spaced.speaker.step, spaced.bundle.tokeniser.target.id_of("▁")
    assert space is not None
    said = iter([space, END_ID])

    def says_a_space(tokens_N: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        logits_NV, state = plain(tokens_N, state)
        logits_NV[:, next(said)] = 50.0
        return logits_NV, state

    spaced.speaker = replace(spaced.speaker, step=says_a_space)
    (one,) = spaced.translate(["ten"], method="greedy")
    assert (one.text.strip(), one.tokens, one.status) == ("", ("▁",), "empty")


def test_a_copying_model_is_found_out(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokenizer.target, "decode", lambda ids: line)
    assert translator.translate([line])[0].status == "copied"


def test_a_copying_task_may_copy(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokenizer.target, "decode", lambda ids: line)
    task = translator.recipe.task.model_copy(update={"target_language": translator.recipe.task.source_language})
    recipe = translator.recipe.model_copy(update={"task": task})
    monkeypatch.setattr(translator, "bundle", replace(translator.bundle, recipe=recipe))
    assert translator.translate([line])[0].status == "ok"


def test_what_goes_round_in_circles_is_stopped_and_searched_again(bundle: Path) -> None:
    looping = dragoman.load(bundle, device="cpu", precision="float32")
    plain, word = looping.speaker.step, looping.bundle.tokeniser.target.id_of("▁")
    assert word is not None
    lengths: list[int] = []

    def insists(tokens_N: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        logits_NV, state = plain(tokens_N, state)
        lengths.append(len(logits_NV))
        logits_NV[:, word] += 30.0
        return logits_NV, state

    looping.speaker = replace(looping.speaker, step=insists)
    (one,) = looping.translate(["one two"], method="greedy", max_extra_tokens=200)
    assert one.status == "looped"
    assert lengths.count(1) == 32  # stopped long before the limit of two hundred
    assert 4 in lengths  # and searched again with a beam, which may not say one thing three times
    (several,) = looping.translate(["one two"], beam_size=6, nbest=6, max_extra_tokens=200)
    assert len(several.alternatives) == 5
    (kept,) = looping.translate(["one two"], method="greedy", max_extra_tokens=40, repetition_window=0)
    assert kept.status == "truncated"
    assert len(kept.tokens) > 40


def test_what_the_source_repeats_may_be_repeated(bundle: Path) -> None:
    looping = dragoman.load(bundle, device="cpu", precision="float32")
    plain, word = looping.speaker.step, looping.bundle.tokeniser.target.id_of("▁")

    def insists(tokens_N: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        logits_NV, state = plain(tokens_N, state)
        logits_NV[:, word] += 30.0
        return logits_NV, state

    looping.speaker = replace(looping.speaker, step=insists)
    (one,) = looping.translate(["one " * 40], method="greedy")
    assert one.status == "truncated"


def test_a_part_of_which_nothing_came_is_not_passed_over() -> None:
    said = Translation("eins", tokens=("eins",), token_log_probs=(-0.1, -0.1), source_tokens=("one",))
    nothing = Translation("", token_log_probs=(-0.1,), status="empty", source_tokens=("two",))
    blank = Translation(" ", status="empty")
    assert merge_segments([said, nothing], ["one ", "two"], "de").status == "empty"
    assert merge_segments([said, blank], ["one", " "], "de").status == "ok"
    assert merge_segments([blank, blank], [" ", " "], "de").status == "empty"
