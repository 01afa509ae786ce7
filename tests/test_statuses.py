"""What became of a line: each status by an input that is made to bring it about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

import dragoman
from dragoman.data.subword import END_ID
from dragoman.decoding.step import State
from dragoman.engine import Translator
from dragoman.tasks.translation import is_copy

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    return dragoman.load(bundle, device="cpu", precision="float32")


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

    def ends_at_once(tokens_N: Tensor, state: State) -> tuple[Tensor, State]:
        logits_NV, state = plain(tokens_N, state)
        logits_NV[:, END_ID] = 50.0
        return logits_NV, state

    silent.speaker = replace(silent.speaker, step=ends_at_once)
    (one,) = silent.translate(["ten"])
    assert (one.text, one.status) == ("", "empty")


def test_a_copying_model_is_found_out(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokeniser.target, "decode", lambda ids: line)
    assert translator.translate([line])[0].status == "copied"


def test_a_copying_task_may_copy(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "one two three four"
    monkeypatch.setattr(translator.bundle.tokeniser.target, "decode", lambda ids: line)
    task = translator.recipe.task.model_copy(update={"target_language": translator.recipe.task.source_language})
    recipe = translator.recipe.model_copy(update={"task": task})
    monkeypatch.setattr(translator, "bundle", replace(translator.bundle, recipe=recipe))
    assert translator.translate([line])[0].status == "ok"
