"""Tests of word-pieces: which are chosen, and the segmentation into the fewest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, train_tokenizer
from dragoman.data.tokenization.word_pieces import choose_pieces
from dragoman.errors import DataError, RecipeError

SYLLABLES = [a + b for a in "bdgklmn" for b in "aeiou"]


def make_sentences(count: int, seed: int) -> list[str]:
    draw = Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 5))) for _ in range(80)]
    return [" ".join(draw.choices(words, k=8)) + draw.choice(".!?") for _ in range(count)]


def train(texts: list[str], **keys: Any) -> PairTokenizer:
    config = TokenizerConfig(model_type="word-piece", **{"reserved_tokens": 0, "vocab_size": 340} | keys)
    return train_tokenizer(texts, texts, config, append_source_eos=True, seed=1)


def count_fewest(word: str, pieces: Collection[str]) -> int:
    """Return the fewest pieces that make a word, by dynamic programming."""
    fewest = [0]
    for end in range(1, len(word) + 1):
        fewest.append(min(fewest[start] + 1 for start in range(end) if word[start:end] in pieces))
    return fewest[-1]


def test_most_frequent_parts_are_chosen() -> None:
    """▁ab begins both words, so it occurs 5 times. With ▁abc (2) it remains for the other 3. Parts behind ▁ begin no piece."""
    words = Counter({"▁ab": 3, "▁abc": 2})
    assert choose_pieces(words, 5) == ["a", "b", "c", "▁", "▁ab"]
    assert choose_pieces(words, 6) == ["a", "b", "c", "▁", "▁ab", "▁abc"]
    assert choose_pieces(words, 7) == choose_pieces(words, 6)
    assert choose_pieces(words, 2) == ["a", "b", "c", "▁"]


def test_words_have_the_fewest_pieces() -> None:
    tokenizer = train(make_sentences(200, 1)).source
    assert len(tokenizer) == 340
    pieces = set(tokenizer.ids_to_pieces(range(260, 340)))
    assert any(len(piece) > 3 for piece in pieces)
    for text in make_sentences(50, 2):
        expected = sum(count_fewest(f"▁{word}", pieces) for word in text.split())
        assert len(tokenizer.encode(text)) == expected
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_no_piece_joins_letters_and_punctuation() -> None:
    tokenizer = train(["the end.", "an end.", "(the end)"] * 50, vocab_size=275).source
    assert any(piece == "▁end" for piece in tokenizer.ids_to_pieces(range(len(tokenizer))))
    for piece in tokenizer.ids_to_pieces(range(260, len(tokenizer))):
        assert not (re.search(r"\w", piece) and re.search(r"[.()]", piece))


@pytest.mark.parametrize("text", ["Straße und Wörter", "我昨天买了三本书", "x" * 1000, "<s> </s>"])
def test_unknown_characters_become_bytes(text: str) -> None:
    tokenizer = train(make_sentences(50, 1), vocab_size=300).target
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_vocabulary_size_that_does_not_fit_is_refused() -> None:
    """The message has the size that fits, with the 4 special pieces and the 256 bytes."""
    for size, problem in (
        (261, "too small for the characters of the text; set it to"),
        (9000, "more than the text has pieces"),
    ):
        with pytest.raises(RecipeError, match=problem) as raised:
            train(make_sentences(50, 1), vocab_size=size)
        fitting_size = int(re.findall(r"\d+", str(raised.value))[-1])
        assert len(train(make_sentences(50, 1), vocab_size=fitting_size).source) == fitting_size
    with pytest.raises(DataError, match="training corpus: is empty"):
        train([" ", ""])
