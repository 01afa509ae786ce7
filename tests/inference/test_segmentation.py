"""Long lines: cut where a reader would pause, never in silence, and put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman import Translator
from dragoman.inference.segmentation import join_segments, split_long_input

pytestmark = pytest.mark.usefixtures("one_core")


@given(st.text(max_size=300), st.integers(min_value=1, max_value=40))
def test_parts_fit_and_are_the_text(text: str, most: int) -> None:
    parts = split_long_input(text, lambda part: len(part) <= most)
    assert "".join(parts) == text
    assert all(len(part) <= most for part in parts)
    assert len(parts) <= max(1, 5 * len(text) // most + 1)  # a cut leaves at least a fifth on either side


@pytest.mark.parametrize(
    ("text", "most", "parts"),
    [
        ("It rains. We stay at home.", 20, ["It rains. ", "We stay at home."]),
        ("„Ja.“ Er ging, sie blieb noch.", 25, ["„Ja.“ Er ging, ", "sie blieb noch."]),  # the full stop is too near the start
        ("one two; three four five six", 20, ["one two; ", "three four five six"]),
        ("one, two, three, four", 12, ["one, two, ", "three, four"]),
        ("one two three four", 12, ["one two ", "three four"]),
        ("onetwothreefour", 8, ["onetwot", "hreefour"]),
        ("今天下雨。我们在家。", 6, ["今天下雨。", "我们在家。"]),
        ("今天下雨，我们在家", 6, ["今天下雨，", "我们在家"]),
        ("fits", 4, ["fits"]),
    ],
)
def test_cuts_are_where_a_reader_would_pause(text: str, most: int, parts: list[str]) -> None:
    assert split_long_input(text, lambda part: len(part) <= most) == parts


def test_what_never_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match="not one character"):
        split_long_input("ab", lambda part: False)


def test_parts_are_joined_as_the_language_writes() -> None:
    assert join_segments([" Es regnet.", "", "Wir bleiben. "], "de") == "Es regnet. Wir bleiben."
    assert join_segments(["今天下雨。", "我们在家。"], "zh-Hans") == "今天下雨。我们在家。"


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    opened: Translator = dragoman.load(bundle, device="cpu", precision="float32")
    return opened


def test_a_long_line_is_translated_in_parts(translator: Translator) -> None:
    long = ", ".join(["one two three"] * 10)
    most = len(translator.bundle.tokenizer.encode_source(long)) // 3
    told: list[int] = []
    whole, short = translator.translate([long, "ten"], max_source_tokens=most, attention=True, on_progress=told.append)
    parts = split_long_input(long, lambda part: len(translator.bundle.tokenizer.encode_source(part)) <= most)
    alone = translator.translate(parts, max_source_tokens=most, attention=True)
    assert whole.num_segments == len(parts) > 2
    assert whole.text == " ".join(one.text for one in alone)
    assert whole.score == pytest.approx(sum(one.score for one in alone), abs=1e-5)
    assert whole.tokens == tuple(token for one in alone for token in one.tokens)
    assert whole.source_tokens == tuple(token for one in alone for token in one.source_tokens)
    assert sum(told) == 2
    assert short.num_segments == 1
    assert whole.attention is not None
    assert len(whole.attention) == sum(len(one.attention or ()) for one in alone)
    assert all(len(row) == len(whole.source_tokens) for row in whole.attention)
    assert whole.coverage == pytest.approx(
        sum((one.coverage or 0) * len(one.source_tokens) for one in alone) / len(whole.source_tokens), abs=1e-5
    )


def test_a_long_line_is_refused_where_that_is_asked_for(translator: Translator) -> None:
    long = " ".join(["one"] * 50)
    assert [one.status for one in translator.translate([long, "one two"], max_source_tokens=9, long_input="error")] == [
        "refused",
        "ok",
    ]


def test_sampled_parts_draw_differently(translator: Translator) -> None:
    line = " ".join(["one two"] * 24)
    (one,) = translator.translate([line], max_source_tokens=10, method="sample", temperature=2.0)
    assert one.num_segments > 4
    assert len(set(one.text.split())) > 3
    assert translator.translate([line], max_source_tokens=10, method="sample", temperature=2.0) == [one]
