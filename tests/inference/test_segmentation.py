"""Segmentation of long lines at pauses, and the translation of their segments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import Translation, Translator
from dragoman.inference.segmentation import join_segments, split_long_input
from dragoman.inference.translation_result import merge_segments

pytestmark = pytest.mark.usefixtures("one_core")


@given(st.text(max_size=300), st.integers(min_value=1, max_value=40))
def test_segments_fit_and_concatenate_to_the_text(text: str, limit: int) -> None:
    segments = split_long_input(text, lambda part: len(part) <= limit)
    assert "".join(segments) == text
    assert all(len(part) <= limit for part in segments)
    assert len(segments) <= max(1, 5 * len(text) // limit + 1)  # each side of a cut has at least a fifth of the text


@pytest.mark.parametrize(
    ("text", "limit", "segments"),
    [
        ("It rains. We stay at home.", 20, ["It rains. ", "We stay at home."]),
        (
            "„Ja.“ Er ging, sie blieb noch.",
            25,
            ["„Ja.“ Er ging, ", "sie blieb noch."],
        ),  # the full stop is too near
        ("one two; three four five six", 20, ["one two; ", "three four five six"]),
        ("one, two, three, four", 12, ["one, two, ", "three, four"]),
        ("one two three four", 12, ["one two ", "three four"]),
        ("onetwothreefour", 8, ["onetwot", "hreefour"]),
        ("今天下雨。我们在家。", 6, ["今天下雨。", "我们在家。"]),
        ("今天下雨，我们在家", 6, ["今天下雨，", "我们在家"]),
        ("fits", 4, ["fits"]),
    ],
)
def test_lines_are_cut_at_pauses(text: str, limit: int, segments: list[str]) -> None:
    assert split_long_input(text, lambda part: len(part) <= limit) == segments


def test_character_that_does_not_fit_raises_error() -> None:
    with pytest.raises(ValueError, match="too small for one character"):
        split_long_input("ab", lambda part: False)


def test_join_segments_uses_spaces_of_the_language() -> None:
    assert join_segments([" Es regnet.", "", "Wir bleiben. "], "de") == "Es regnet. Wir bleiben."
    assert join_segments(["今天下雨。", "我们在家。"], "zh-Hans") == "今天下雨。我们在家。"


def test_long_line_is_translated_in_segments(translator: Translator) -> None:
    long = ", ".join(["one two three"] * 10)
    limit = len(translator.bundle.tokenizer.encode_source(long)) // 3
    progress: list[int] = []
    whole, short = translator.translate([long, "ten"], max_source_tokens=limit, attention=True, on_progress=progress.append)
    segments = split_long_input(long, lambda part: len(translator.bundle.tokenizer.encode_source(part)) <= limit)
    alone = translator.translate(segments, max_source_tokens=limit, attention=True)
    assert whole.num_segments == len(segments) > 2
    assert whole.text == " ".join(translation.text for translation in alone)
    assert whole.score == pytest.approx(sum(translation.score for translation in alone), abs=1e-5)
    assert whole.tokens == tuple(token for translation in alone for token in translation.tokens)
    assert whole.source_tokens == tuple(token for translation in alone for token in translation.source_tokens)
    assert sum(progress) == 2
    assert short.num_segments == 1
    assert whole.attention is not None
    rows = sum(len(translation.attention) for translation in alone if translation.attention is not None)
    assert whole.attention.shape == (rows, len(whole.source_tokens))
    assert whole.coverage == pytest.approx(
        sum((translation.coverage or 0) * len(translation.source_tokens) for translation in alone) / len(whole.source_tokens),
        abs=1e-5,
    )


def test_segments_have_different_random_streams(translator: Translator) -> None:
    line = " ".join(["one two"] * 24)
    (translation,) = translator.translate([line], max_source_tokens=10, method="sample", temperature=2.0)
    assert translation.num_segments > 4
    assert len(set(translation.text.split())) > 3
    assert translator.translate([line], max_source_tokens=10, method="sample", temperature=2.0) == [translation]


def test_links_of_segments_skip_language_tokens() -> None:
    """The second segment's words begin at the third word of the line."""
    segments = [
        Translation("x", tokens=("▁x",), source_tokens=("__en__", "▁a", "▁b", "</s>"), alignment=((1, 0),)),
        Translation("y", tokens=("▁y",), source_tokens=("__en__", "▁c", "</s>"), alignment=((0, 0),)),
    ]
    segments = [replace(segment, attention=np.zeros((1, len(segment.source_tokens)))) for segment in segments]
    assert merge_segments(segments, ["a b ", "c"], "de", num_language_tokens=1).alignment == ((1, 0), (2, 1))
