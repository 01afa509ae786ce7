"""Links between words, from attention over pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.formats.pharaoh import format_pharaoh
from dragoman.tasks.attention_alignment import extract_links

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], []),
        (["▁the", "▁house"], [0, 1]),
        (["▁th", "e", "▁hou", "se"], [0, 0, 1, 1]),
        (["▁", "x", "▁", "y", "z"], [0, 0, 1, 1, 1]),  # a space by itself opens the word that follows
        (["the", "▁house"], [0, 1]),  # the first piece opens a word, whatever it begins with
        (["▁", "▁a"], [0, 0]),
    ],
)
def test_pieces_belong_to_words(pieces: list[str], words: list[int]) -> None:
    assert get_word_numbers(pieces) == words


def test_links_go_where_most_of_the_attention_goes() -> None:
    # By hand. Words: "March 3" and "3. März"; pieces: ▁Mar ch ▁3 </s> and ▁3 . ▁März </s>.
    weights = [
        [0.1, 0.1, 0.7, 0.1],
        [0.2, 0.2, 0.5, 0.1],
        [0.3, 0.3, 0.2, 0.2],  # neither piece of "March" is ahead of all others by much, but both together are
        [0.0, 0.0, 0.0, 1.0],
    ]
    found = extract_links(weights, ["▁Mar", "ch", "▁3"], ["▁3", ".", "▁März"])
    assert found == [(1, 0), (0, 1)]
    assert format_pharaoh(found) == "0-1 1-0"


def test_what_looks_at_the_end_has_no_link() -> None:
    assert extract_links([[0.2, 0.8], [0.9, 0.1]], ["▁a"], ["▁x", "▁y"]) == [(0, 1)]
    assert extract_links([[1.0]], [], ["▁x"]) == []
    assert extract_links([], ["▁a"], []) == []
    assert format_pharaoh([]) == ""


def test_every_link_is_between_words_that_are_there(bundle: Path) -> None:
    translator = dragoman.load(bundle, device="cpu", precision="float32")
    lines = ["one two three", "", "ten", "big small"]
    for line, one in zip(lines, translator.translate(lines, attention=True), strict=True):
        assert (one.alignment is not None) == bool(line)
        for source, target in one.alignment or ():
            assert 0 <= source < len(line.split())
            assert 0 <= target < len(one.text.split())
        targets = [target for _, target in one.alignment or ()]
        assert targets == sorted(set(targets))
    assert all(one.alignment is None for one in translator.translate(lines[:1]))
