"""Tokenizers that are trained on text: round trips, settings, damaged models, and limits of the vocabulary."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.errors import BundleError, DataError, RecipeError
from expected_errors import error_message, raises_code
from small_language import WORDS, random_sentences

VOCAB_SIZE = 300


@cache
def get_tokenizer(model_type: str = "bpe", **settings: Any) -> SentencePieceTokenizer:
    config = TokenizerConfig(model_type=model_type, normalization="identity", **settings)  # type: ignore[arg-type]
    return train_sentencepiece(random_sentences(400, 1), config, vocab_size=VOCAB_SIZE, seed=1)


LINES = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@given(text=st.one_of(LINES, st.lists(st.sampled_from([*WORDS[:20], " ", "  ", "<s>", "<0x41>", "é", "😀"])).map("".join)))
def test_pieces_spell_the_text_except_spaces(model_type: str, text: str) -> None:
    """Byte fallback without normalization changes only spaces."""
    model = get_tokenizer(model_type)
    ids = model.encode(text)
    assert model.decode(ids) == re.sub(" +", " ", text).strip(" ")
    assert not {PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID} & set(ids)
    assert all(index < VOCAB_SIZE for index in ids)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_any_ids_decode_to_one_line(ids: list[int]) -> None:
    text = get_tokenizer().decode(ids)
    assert not {"\r", "\n"} & set(text)
    text.encode()


def test_settings_change_the_pieces() -> None:
    assert get_tokenizer(lowercase=True).encode("BALA bala") == get_tokenizer(lowercase=True).encode("bala BALA")
    assert get_tokenizer().encode("BALA") != get_tokenizer().encode("bala")
    numbers = ["1984 bala", "1984 2024", "2024 mara"] * 50
    for split in (False, True):
        config = TokenizerConfig(split_digits=split, normalization="identity")
        model = train_sentencepiece(numbers, config, vocab_size=282, seed=1)
        assert any(re.search(r"\d\d", piece) for piece in model.ids_to_pieces(range(260, len(model)))) is not split
    composed = train_sentencepiece(
        random_sentences(99, 1), TokenizerConfig(normalization="nfkc"), vocab_size=VOCAB_SIZE, seed=1
    )
    for text, normal in {"\ufb01": "fi", "i\u0301": "\u00ed", "\uff21": "A"}.items():  # ligature, accent, full width: NFKC
        assert composed.encode(text) == composed.encode(normal)
        assert get_tokenizer().encode(text) != get_tokenizer().encode(normal)
    without = TokenizerConfig(byte_fallback=False)
    model = train_sentencepiece(random_sentences(99, 1), without, vocab_size=40, seed=1)
    assert UNKNOWN_ID in model.encode("é")


@pytest.mark.parametrize("text", ["\ud800", "bala \udcff", "\udc80" * 99, "\ude00\ud83d"])
def test_half_surrogate_pair_raises(text: str) -> None:
    model = get_tokenizer()
    position = min(text.index(half) for half in text if "\ud800" <= half <= "\udfff") + 1
    for action in (
        lambda: model.encode(text),
        lambda: model.encode_batch(["bala", text]),
        lambda: train_sentencepiece(["bala", text], TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1),
    ):
        assert f"character {position} is half of a surrogate pair" in error_message(action)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_damaged_model_raises_or_works(model_type: str) -> None:
    """Damage raises only BundleError, never a crash; checksums detect the rest."""
    intact = get_tokenizer(model_type).serialized_model
    draw = random.Random(model_type)
    num_errors = 0
    for _ in range(400):
        changed = bytearray(intact)
        for _ in range(draw.choice([1, 1, 1, 30])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            model = SentencePieceTokenizer(bytes(changed))
            model.decode(model.encode("bala é mara"))
            model.decode(range(len(model)))
            model.ids_to_pieces(range(len(model)))
        except BundleError:
            num_errors += 1
    assert num_errors > 100


def test_other_special_ids_raise() -> None:
    import sentencepiece

    out = io.BytesIO()  # SentencePiece's default ids: <unk> 0, <s> 1, </s> 2, no padding
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(random_sentences(99, 1)), model_writer=out, vocab_size=60, model_type="bpe", minloglevel=2
    )
    message = error_message(lambda: SentencePieceTokenizer(out.getvalue(), name="a.model"), BundleError)
    assert "have the ids [-1, 0, 1, 2], but dragoman needs [0, 1, 2, 3]" in message


def find_vocab_limits(config: TokenizerConfig, text: list[str]) -> tuple[int, int]:
    """Return the limits of the vocabulary size from the error messages."""
    limits = []
    for size, words in ((5, "or more"), (2**24 - 1, "or less")):
        message = error_message(partial(train_sentencepiece, text, config, vocab_size=size, seed=1), RecipeError)
        match = re.fullmatch(rf"tokenizer\.vocab_size = {size}: is .* set it to (\d+) {words}\b.*", message)
        assert match is not None, message
        limits.append(int(match[1]))
    return limits[0], limits[1]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_impossible_vocab_size_error_names_limit(model_type: str, byte_fallback: bool) -> None:
    config = TokenizerConfig(model_type=model_type, byte_fallback=byte_fallback)  # type: ignore[arg-type]
    text = random_sentences(50, 2)
    lower, upper = find_vocab_limits(config, text)
    # 4 special pieces, the bytes, the mark of a space, and the letters.
    assert lower == 4 + (256 if byte_fallback else 0) + 1 + len(set("".join(text)) - {" "})
    if model_type == "bpe":
        assert len(train_sentencepiece(text, config, vocab_size=lower, seed=1)) == lower
    assert len(train_sentencepiece(text, config, vocab_size=upper, seed=1)) == upper


def test_text_without_training_lines_raises(subtests: pytest.Subtests) -> None:
    for texts in [[], ["", " ", "\t"], ["\u00a0", "\u3000"], ["▁"], ["x" * 70_000]]:
        with subtests.test(texts=texts), raises_code("empty-data"):
            train_sentencepiece(texts, TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1)


@pytest.mark.parametrize("before", [0, 1, 500])
@pytest.mark.parametrize("reason", [DataError("a.txt, line 9: not UTF-8"), KeyboardInterrupt(), ZeroDivisionError("ours")])
def test_training_passes_reader_errors_on(before: int, reason: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield from random_sentences(before, 1)
        raise reason

    with pytest.raises(type(reason)) as caught:
        train_sentencepiece(texts(), TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1)
    assert caught.value is reason
