"""Marks of placeholders, and the spaces beside them."""

from __future__ import annotations

import pytest

from dragoman.text.marks import can_hold_marks, ends_in_marks, list_marks, restore_spaces, to_characters, to_marks


def test_marks_become_characters_and_come_back() -> None:
    text = "a ⟦0⟧, ⟦31⟧⟦7⟧ ⟦32⟧ ⟦t⟧"
    assert to_characters(text) == "a \ufdd0, \ufdef\ufdd7 ⟦32⟧ ⟦t⟧"
    assert to_marks(to_characters(text)) == text
    assert list_marks(text) == ["⟦0⟧", "⟦31⟧", "⟦7⟧"]


@pytest.mark.parametrize(("text", "expected"), [("a [0]", True), ("⟦0⟧", False), ("⟦t⟧", False), ("\ufdd0", False)])
def test_text_with_marks_of_its_own_holds_no_others(text: str, expected: bool) -> None:
    assert can_hold_marks(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a ⟦0⟧ ⟦1⟧.", True), ("⟦0⟧⟦1⟧", True), ("⟦0⟧ a ⟦1⟧.", False), ("a ⟦0⟧.", False), ("", False)]
)
def test_marks_at_the_end_are_found(text: str, expected: bool) -> None:
    assert ends_in_marks(to_characters(text)) == expected


def test_spaces_beside_marks_are_those_of_the_source(subtests: pytest.Subtests) -> None:
    for source, translation, expected in [
        ("Open ⟦0⟧ now", "Jetzt ⟦0⟧ öffnen", "Jetzt ⟦0⟧ öffnen"),
        ("Open ⟦0⟧ now", "Jetzt⟦0⟧öffnen", "Jetzt ⟦0⟧ öffnen"),  # it stood alone
        ("⟦0⟧ files", "Dateien⟦0⟧", "Dateien ⟦0⟧"),  # the edge of a text counts as a space
        ("⟦0⟧px wide", "⟦0⟧ px breit", "⟦0⟧px breit"),  # it was joined to a word
        ("the ⟦0⟧s", "die ⟦0⟧.", "die ⟦0⟧."),  # no word stands there any more
        ("in “⟦0⟧”, but", "in „⟦0⟧“, aber", "in „⟦0⟧“, aber"),  # punctuation stays as the model writes it
        ("why ⟦0⟧?", "pourquoi ⟦0⟧ ?", "pourquoi ⟦0⟧ ?"),
        ("⟦0⟧⟦1⟧ a", "⟦0⟧ ⟦1⟧ b", "⟦0⟧⟦1⟧ b"),  # joined to each other
        ("⟦0⟧ ⟦1⟧ a", "⟦0⟧⟦1⟧b", "⟦0⟧ ⟦1⟧ b"),
        ("⟦0⟧⟦1⟧ a", "⟦1⟧ ⟦0⟧ b", "⟦1⟧ ⟦0⟧ b"),  # no longer in this order
        ("open ⟦0⟧ now", "现在打开⟦0⟧文件", "现在打开⟦0⟧文件"),  # a script without spaces
        ("打开⟦0⟧文件", "open⟦0⟧file", "open ⟦0⟧ file"),
        ("a b", "a⟦0⟧b", "a⟦0⟧b"),  # not a mark of the source
    ]:
        with subtests.test(source=source, translation=translation, expected=expected):
            assert to_marks(restore_spaces(to_characters(source), to_characters(translation))) == expected
