# ruff: noqa: RUF001  (the marks of many scripts look like those of English)
"""Unicode normalization of both sides, and the characters that a vocabulary cannot write.

The right values are Unicode's own normal forms, from Python's unicodedata.
"""

from __future__ import annotations

import unicodedata
from itertools import chain
from pathlib import Path

import pytest

from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.extra_tokens import add_extra_tokens
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from dragoman.data.tokenization.written_characters import WrittenCharacters

SOURCES = ["Look: the cat (8 m²) is old, isn't it?", "cafe\u0301 and café", "10\u00a0km are 10 km"] * 9
TARGETS = [
    "看：猫（8 m²）很老，是吗？",
    "กำลังทำ นํ้า",
    "½ … ™ № µ ㎡ ℃ ① ﬁ Ａ １ ー ｶﾞ",
    "हिन्दी क़लम ড়",
    "می\u200cخواهم",
    "10\u00a0km\u202f!\u3000e\u0301\ufeff",
    "한국어 １２３",
] * 9
"""Texts that one of Unicode's normal forms changes."""


def train(**options: object) -> PairTokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 360, "reserved_tokens": 3, **options})
    return train_tokenizer(SOURCES, TARGETS, config, append_source_eos=True, seed=1)


def test_default_keeps_characters_of_target(subtests: pytest.Subtests) -> None:
    for model_type in ["bpe", "char", "byte"]:
        for joint in [True, False]:
            with subtests.test(model_type=model_type, joint=joint):
                tokenizer = train(model_type=model_type, joint=joint, vocab_size=360 if joint else 335)
                for text in TARGETS:
                    assert tokenizer.target.decode(tokenizer.target.encode(text)) == text


def test_default_composes_source_and_keeps_exponents() -> None:
    tokenizer = train()
    assert tokenizer.source.encode("cafe\u0301 10\u00a0km") == tokenizer.source.encode("café 10 km")
    assert tokenizer.source.encode("10² m") != tokenizer.source.encode("102 m")
    assert tokenizer.target.encode("e\u0301") != tokenizer.target.encode("é")


def test_sides_of_joint_vocabulary_share_ids() -> None:
    tokenizer = train()
    assert tokenizer.shares_vocabulary
    assert not tokenizer.is_joint
    assert tokenizer.source.encode("the café") == tokenizer.target.encode("the café")
    extended = add_extra_tokens(tokenizer, ["<ui>"])
    assert extended.source.encode("a <ui>")[-1] == extended.target.encode("b <ui>")[-1] == len(tokenizer.source)
    assert tokenizer.marked is None  # three reserved tokens are too few for the marks


@pytest.mark.parametrize("model_type", ["bpe", "char"])
def test_written_tokenizers_keep_their_normalization(tmp_path: Path, model_type: str) -> None:
    config = TokenizerConfig.model_validate({"model_type": model_type, "vocab_size": 360})
    tokenizer = train(model_type=model_type)
    write_tokenizer(tmp_path, tokenizer)
    copy = read_tokenizer(tmp_path, config, append_source_eos=True)
    for text in chain(SOURCES, TARGETS):
        assert copy.encode_source(text) == tokenizer.encode_source(text)
        assert copy.encode_target(text) == tokenizer.encode_target(text)


def test_nfc_is_that_of_unicode() -> None:
    characters = [chr(code) for code in range(0x20, 0x30000) if unicodedata.category(chr(code)) not in ("Cs", "Zs", "Cn")]
    for form in ("NFC", "NFD"):
        texts = [unicodedata.normalize(form, character) for character in characters]
        assert [normalize(text, "nfc") for text in texts] == [unicodedata.normalize("NFC", text) for text in texts]
    assert normalize("a\u00a0b\u3000c\u202fd", "nfc") == "a b c d"


def test_unwritten_characters_are_counted() -> None:
    tokenizer = train(normalization="nfkc")
    lost = WrittenCharacters(tokenizer.target).count_unwritten(["看：猫（²）²", "กำ ok\tno", "e\u0301"])
    assert lost == {"：": 1, "（": 1, "）": 1, "²": 2, "\u0e33": 1, "\u0301": 1}
    assert WrittenCharacters(train().target).count_unwritten(TARGETS) == {}
