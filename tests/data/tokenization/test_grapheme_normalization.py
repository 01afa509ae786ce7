"""Tests of the normalization by graphemes; the library `tokenizers` gives the right values."""

from __future__ import annotations

import io
import unicodedata
from random import Random
from typing import Any

import pytest
import sentencepiece as spm

from dragoman.data.tokenization.grapheme_normalization import GraphemeNormalizer
from dragoman.data.tokenization.sentencepiece_proto import read_charsmap

MARKS = [chr(code_point) for code_point in range(0x20000) if unicodedata.category(chr(code_point))[0] == "M"]
HANGUL = [chr(code_point) for code_point in (*range(0x1100, 0x1200), *range(0xAC00, 0xAC40))]
OTHERS = [
    chr(code_point)
    for code_point in (
        *range(1, 0x250),
        *range(0x600, 0x700),
        *range(0xE00, 0xF00),
        *range(0x2000, 0x2200),
        *range(0xFF01, 0xFFE7),
    )
    if unicodedata.category(chr(code_point)) != "Cn"
]


def build_normalizer(rule: str) -> tuple[GraphemeNormalizer, bytes]:
    buffer = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]), model_writer=buffer, vocab_size=7, model_type="char", minloglevel=2,
        normalization_rule_name=rule,
    )  # fmt: skip
    normalizer = spm.SentencePieceNormalizer(
        model_proto=buffer.getvalue(), add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )
    charsmap = read_charsmap(buffer.getvalue())
    return GraphemeNormalizer(charsmap, normalizer.normalize), charsmap


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf"])
def test_graphemes_are_replaced_as_in_tokenizers(rule: str) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers", reason="gives the right values: dragoman[test]")
    normalizer, charsmap = build_normalizer(rule)
    peer = tokenizers.normalizers.Precompiled(charsmap)
    random = Random(1)
    for _ in range(3000):
        parts = random.choices((MARKS, HANGUL, OTHERS, OTHERS, ["\u200d", "\u200c", "\r\n", "🙂"]), k=random.randint(1, 7))
        text = "".join(random.choice(part) for part in parts)
        assert normalizer.normalize(text) == peer.normalize_str(text), ascii(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e\u0301", "é"),
        ("e\u0323\u0302", "ẹ"),  # five bytes: the entry of the first two characters stands for all three
        ("ﬁ\u0301", "fi"),
        ("\u1100\u1161", "\u1100\u1161"),  # six bytes: each character is looked up alone
    ],
)
def test_marks_behind_an_entry_vanish(text: str, expected: str) -> None:
    assert build_normalizer("nmt_nfkc")[0].normalize(text) == expected


@pytest.mark.parametrize("charsmap", [b"", b"\0\0\0\0", b"\x05\0\0\0aaaaa", b"\xff\xff\xff\x7fabcd"])
def test_damaged_table_raises(charsmap: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        GraphemeNormalizer(charsmap, str)
