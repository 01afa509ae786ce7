"""Codes of subword-nmt and fastBPE: segmentations of both programs, their laws, and damaged files."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme, join_pieces, parse_codes, read_codes
from expected_errors import raises_code

# `subword-nmt learn-bpe -s 12 < sample.txt` (0.3.8), where sample.txt has these four lines:
#   der alte Mann sitzt auf der Bank / ein alter Mann und eine alte Frau sitzen
#   die Frau sitzt auf einer alten Bank / zwei Männer sitzen unter der Brücke
CODES = [
    "#version: 0.2",
    "e r</w>",
    "t z",
    "s i",
    "si tz",
    "l t",
    "a n",
    "a lt",
    "e n</w>",
    "e i",
    "d er</w>",
    "u n",
    "u f</w>",
]
# `fastbpe learnbpe 12 sample.txt` (0.1.0)
FASTBPE_CODES = [
    "e r</w> 7", "t z 4", "a n 4", "a l 4", "s i 4", "al t 4", "si tz 4", "e n</w> 3", "e i 3", "d er</w> 3", "B an 2", "r a 2",
]  # fmt: skip
# A codes file as subword-nmt wrote it before version 0.2, with the end of the word as a symbol.
OLD_CODES = ["n </w>", "e n</w>", "r </w>", "e r</w>", "a l", "al t", "d er</w>"]

LINES = ["der alte Mann mit der Katze sitzt im  Baum", "Bänke unter Brücken", "a x Übermut"]
# `subword-nmt apply-bpe -c CODES < lines`
SEGMENTED = [
    "der alt@@ e M@@ an@@ n m@@ i@@ t der K@@ a@@ tz@@ e sitz@@ t i@@ m B@@ a@@ u@@ m",
    "B@@ ä@@ n@@ k@@ e un@@ t@@ er B@@ r@@ ü@@ c@@ k@@ en",
    "a x Ü@@ b@@ e@@ r@@ m@@ u@@ t",
]
# The same command with CODES without its first line, which subword-nmt reads as codes before version 0.2.
SEGMENTED_WITHOUT_VERSION = [
    "d@@ e@@ r alt@@ e M@@ an@@ n m@@ i@@ t d@@ e@@ r K@@ a@@ tz@@ e sitz@@ t i@@ m B@@ a@@ u@@ m",
    "B@@ ä@@ n@@ k@@ e un@@ t@@ e@@ r B@@ r@@ ü@@ c@@ k@@ e@@ n",
    "a x Ü@@ b@@ e@@ r@@ m@@ u@@ t",
]
# `subword-nmt apply-bpe -c OLD_CODES < lines`
SEGMENTED_OLD = [
    "der alt@@ e M@@ a@@ n@@ n m@@ i@@ t der K@@ a@@ t@@ z@@ e s@@ i@@ t@@ z@@ t i@@ m B@@ a@@ u@@ m",
    "B@@ ä@@ n@@ k@@ e u@@ n@@ t@@ er B@@ r@@ ü@@ c@@ k@@ en",
    "a x Ü@@ b@@ e@@ r@@ m@@ u@@ t",
]
# `fastbpe applybpe out lines FASTBPE_CODES`, which keeps the double space of the first line
SEGMENTED_FASTBPE = [
    "der alt@@ e M@@ an@@ n m@@ i@@ t der K@@ a@@ tz@@ e sitz@@ t i@@ m B@@ a@@ u@@ m",
    "B@@ ä@@ n@@ k@@ e u@@ n@@ t@@ er B@@ r@@ ü@@ c@@ k@@ en",
    "a x Ü@@ b@@ e@@ r@@ m@@ u@@ t",
]

WORDS = st.text(st.sampled_from("abcde"), min_size=1, max_size=40)
MERGES = st.lists(
    st.sampled_from(["a b", "b a", "a a", "ab a", "aa a", "c d</w>", "ab c", "e e", "ee e</w>", "a b</w>", "d e"])
)


def test_segmentation_equals_the_programs(subtests: pytest.Subtests) -> None:
    for codes, segmented in [
        (CODES, SEGMENTED),
        (CODES[1:], SEGMENTED_WITHOUT_VERSION),
        (["#version: 0.1", *CODES[1:]], SEGMENTED_WITHOUT_VERSION),
        (OLD_CODES, SEGMENTED_OLD),
        (FASTBPE_CODES, SEGMENTED_FASTBPE),
    ]:
        with subtests.test(codes=codes, segmented=segmented):
            scheme = parse_codes(codes, "codes")
            assert [" ".join(scheme.split(line)) for line in LINES] == segmented
            assert [scheme.join(line.split(" ")) for line in segmented] == [line.replace("  ", " ") for line in LINES]


def apply_merges_naively(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Apply the first merge of the list that fits to the whole word, until none fits (Sennrich et al. 2016, algorithm 1)."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    while pairs := set(pairwise(symbols)) & set(merges):
        best = min(pairs, key=merges.index)
        merged: list[str] = []
        for symbol in symbols:
            if merged and (merged[-1], symbol) == best:
                merged[-1] += symbol
            else:
                merged.append(symbol)
        symbols = merged
    return [symbol.removesuffix("</w>") for symbol in symbols]


@given(word=WORDS, lines=MERGES)
def test_merges_apply_one_after_another(word: str, lines: list[str]) -> None:
    """Any order of merges: a merge may come before those that make its symbols."""
    merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    pieces = SubwordNmtScheme(merges).split(word)
    expected = [word] if len(word) == 1 else apply_merges_naively(word, merges)
    assert [piece.removesuffix("@@") for piece in pieces] == expected
    assert all(piece.endswith("@@") for piece in pieces[:-1])
    assert not pieces[-1].endswith("@@")


@given(words=st.lists(st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_joining_undoes_splitting(words: list[str]) -> None:
    text = " ".join(words)
    scheme = parse_codes(CODES, "codes")
    if not any("@@" in word for word in words):
        assert scheme.join(scheme.split(text)) == text


def test_segmented_text_is_joined_first() -> None:
    scheme = parse_codes(CODES, "codes")
    for line in LINES:
        tokens = scheme.split(line)
        assert scheme.split(" ".join(tokens)) == tokens
    assert join_pieces("un@@ t@@ er @@ a b@@") == "unter @@ a b@@"


def test_scheme_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(parse_codes(OLD_CODES, "codes")))
    assert [" ".join(copy.split(line)) for line in LINES] == SEGMENTED_OLD


def test_damaged_codes_are_refused(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, code, line in [
        ("", "empty-data", None),
        ("#version: 0.2\n", "empty-data", None),
        ("#version: 0.3\na b\n", "invalid-format", 1),
        ("#version: 0.2\na b\na b 3\n", "invalid-format", 3),
        ("a b\na b c\n", "invalid-format", 2),
        ("a b 3\na b\n", "invalid-format", 2),
        ("a b 3\na b x\n", "invalid-format", 2),
        ("a\n", "invalid-format", 1),
        ("a  b\n", "invalid-format", 1),
    ]:
        with subtests.test(text=text, code=code, line=line):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "codes"
            path.write_text(text, encoding="utf-8")
            with raises_code(code) as caught:
                read_codes(path, "codes_file")
            location = f"{path} (tokenizer.codes_file)" + (f", line {line}: " if line else ": ")
            assert str(caught.value).startswith(location)
            assert str(caught.value).isprintable()
