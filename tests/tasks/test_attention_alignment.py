"""Word alignments from attention over pieces."""

from __future__ import annotations

import pytest

from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.formats.pharaoh import format_pharaoh
from dragoman.tasks.attention_alignment import extract_links

pytestmark = pytest.mark.usefixtures("one_core")


def test_word_numbers_follow_the_pieces(subtests: pytest.Subtests) -> None:
    for pieces, words in [
        ([], []),
        (["▁the", "▁house"], [0, 1]),
        (["▁th", "e", "▁hou", "se"], [0, 0, 1, 1]),
        (["▁", "x", "▁", "y", "z"], [0, 0, 1, 1, 1]),  # a single space begins the next word
        (["the", "▁house"], [0, 1]),  # the first piece always begins a word
        (["▁", "▁a"], [0, 0]),
    ]:
        with subtests.test(pieces=pieces, words=words):
            assert get_word_numbers(pieces) == words


def test_links_follow_most_of_the_attention() -> None:
    # By hand. Words: "March 3" and "3. März"; pieces: ▁Mar ch ▁3 </s> and ▁3 . ▁März </s>.
    weights = [
        [0.1, 0.1, 0.7, 0.1],
        [0.2, 0.2, 0.5, 0.1],
        [0.3, 0.3, 0.2, 0.2],  # both pieces of "March" together have the most
        [0.0, 0.0, 0.0, 1.0],
    ]
    links = extract_links(weights, ["▁Mar", "ch", "▁3"], ["▁3", ".", "▁März"])
    assert links == [(1, 0), (0, 1)]
    assert format_pharaoh(links) == "0-1 1-0"


def test_attention_to_the_end_token_gives_no_link() -> None:
    assert extract_links([[0.2, 0.8], [0.9, 0.1]], ["▁a"], ["▁x", "▁y"]) == [(0, 1)]
    assert extract_links([[1.0]], [], ["▁x"]) == []
    # The first column belongs to a language token.
    assert extract_links([[0.5, 0.4, 0.1], [0.2, 0.7, 0.1]], ["▁a"], ["▁x", "▁y"], num_language_tokens=1) == [(0, 1)]
    assert extract_links([], ["▁a"], []) == []
    assert format_pharaoh([]) == ""
