"""Tests of reserved tokens: their ids, user text that looks like them, and outputs without them."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.config import DecodingConfig, TokenizerConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from dragoman.tasks.translation import build_decoding_constraints
from expected_errors import raises_code

TEXTS = ["<reserved 0> says ⟦0⟧ and >>de<< to the old dog", "the dog of the old man reads >>de<< and <reserved 1>"] * 20
LANGUAGES = ["en", "de"]
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "bpe": {"vocab_size": 320},
    "unigram": {"vocab_size": 285},
    "word-piece": {"vocab_size": 295},
    "word": {"vocab_size": 40, "byte_fallback": False},
    "char": {"vocab_size": 320},
    "byte": {"vocab_size": 260},
}


def train(model_type: str, **keys: Any) -> PairTokenizer:
    options = {"normalization": "identity", "language_token": ">>{}<<"} | MODEL_TYPES[model_type] | keys
    config = TokenizerConfig(model_type=model_type, **options)  # type: ignore[arg-type]
    return train_tokenizer(TEXTS, TEXTS, config, append_source_eos=True, seed=1, languages=LANGUAGES)


def test_reserved_ids_follow_special_ids(subtests: pytest.Subtests) -> None:
    """The free tokens come first and the language tokens last; the other pieces are those of a vocabulary without them."""
    for model_type in MODEL_TYPES:
        with subtests.test(model_type=model_type):
            vocabulary = train(model_type).source
            plain = train(model_type, reserved_tokens=2).source
            assert vocabulary.reserved_ids == tuple(range(4, 68))
            assert vocabulary.ids_to_pieces([4, 65, 66, 67]) == ["<reserved 0>", "<reserved 61>", ">>en<<", ">>de<<"]
            assert [vocabulary.piece_to_id(piece) for piece in ("<reserved 0>", ">>de<<")] == [4, 67]
            assert vocabulary.ids_to_pieces(range(68, len(vocabulary))) == plain.ids_to_pieces(range(6, len(plain)))


def test_text_never_becomes_a_reserved_token(subtests: pytest.Subtests) -> None:
    """The vocabulary's own names in a text are ordinary text, which decodes to itself."""
    for model_type in MODEL_TYPES:
        with subtests.test(model_type=model_type):
            vocabulary = train(model_type).source
            for text in (TEXTS[0], ">>de<<", "<reserved 0>", "<reserved 61> >>en<<"):
                ids = vocabulary.encode(text)
                assert not set(ids) & set(vocabulary.reserved_ids)
                if model_type != "word":
                    assert vocabulary.decode(ids) == text
            if model_type in ("bpe", "unigram", "word-piece"):
                sampled = [vocabulary.sample_encode(TEXTS[0], alpha=0.5, seed=seed) for seed in range(20)]
                assert not set().union(*sampled) & set(vocabulary.reserved_ids)


def test_reserved_tokens_decode_to_nothing(subtests: pytest.Subtests) -> None:
    for model_type in MODEL_TYPES:
        with subtests.test(model_type=model_type):
            vocabulary = train(model_type).source
            ids = vocabulary.encode("the old dog")
            assert vocabulary.decode([67, *ids, 4]) == vocabulary.decode(ids) == "the old dog"


def test_written_tokenizer_keeps_reserved_tokens(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for model_type in MODEL_TYPES:
        with subtests.test(model_type=model_type):
            tmp_path = tmp_path_factory.mktemp("case")
            tokenizer = train(model_type)
            write_tokenizer(tmp_path, tokenizer)
            config = TokenizerConfig(model_type=model_type, byte_fallback=model_type != "word")  # type: ignore[arg-type]
            copy = read_tokenizer(tmp_path, config, append_source_eos=True).source
            assert copy.reserved_ids == tokenizer.source.reserved_ids
            assert copy.ids_to_pieces(range(len(copy))) == tokenizer.source.ids_to_pieces(range(len(copy)))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_marks_become_reserved_tokens(model_type: str) -> None:
    """Placeholder n has the id 4 + n, and the marks of terms follow; words beside marks have the pieces of plain text."""
    tokenizer = train(model_type)
    assert tokenizer.marked is not None
    plain, marked = tokenizer.source, tokenizer.marked.source
    assert tokenizer.marked.is_joint
    text = "the⟦t⟧ old dog⟦=⟧ man⟦/t⟧ reads ⟦31⟧, ⟦0⟧."
    ids = marked.encode(text)
    assert [index for index in ids if index in plain.reserved_ids] == [36, 37, 38, 35, 4]
    assert ids[: ids.index(38)] == [*plain.encode("the"), 36, *plain.encode("old dog"), 37, *plain.encode("man")]
    assert marked.decode(ids) == text
    assert plain.decode(ids) == "the old dog man reads , ."
    assert [marked.encode(line) for line in ("the old dog", ">>de<< <reserved 3>")] == [
        plain.encode(line) for line in ("the old dog", ">>de<< <reserved 3>")
    ]
    assert marked.sample_encode(text, alpha=0.0, seed=1) == ids
    sampled = {tuple(marked.sample_encode("the ⟦7⟧ dog", alpha=0.5, seed=seed)) for seed in range(20)}
    assert len(sampled) > 1
    assert all(11 in ids and marked.decode(ids) == "the ⟦7⟧ dog" for ids in sampled)


@pytest.mark.parametrize(("model_type", "keys"), [("bpe", {"reserved_tokens": 36}), ("word", {}), ("char", {})])
def test_vocabulary_without_reserved_tokens_has_no_marks(model_type: str, keys: dict[str, int]) -> None:
    """36 reserved tokens with two languages leave 34, but 35 have a mark."""
    assert train(model_type, **keys).marked is None


def test_searches_suppress_reserved_tokens() -> None:
    vocabulary = train("bpe").target
    assert build_decoding_constraints(DecodingConfig(), vocabulary).suppress_tokens == tuple(range(4, 68))


def test_too_many_languages_are_refused() -> None:
    with raises_code("tokenizer-mismatch", "tokenizer.reserved_tokens = 1"):
        train("bpe", reserved_tokens=1)


def test_language_token_that_is_a_piece_is_refused() -> None:
    config = TokenizerConfig(model_type="char", language_token="{}")
    with raises_code("tokenizer-mismatch", "language_token", "change the pattern"):
        train_tokenizer(["d e"] * 9, ["d"], config, append_source_eos=True, seed=1, languages=["d"])
