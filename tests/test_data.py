"""From text files to batches: what is read, refused, lost or kept, and that order is a function of seed and epoch."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import CorpusConfig, Recipe, SubwordConfig, make_recipe
from dragoman.data import corpus as corpus_room
from dragoman.data import prepare as prepare_room
from dragoman.data.batches import BatchStream, Cursor, batch_of, collate, pad, plan_epoch
from dragoman.data.corpus import SCHEMA, Corpus, EncodedPair, write_corpus
from dragoman.data.pair import Pair
from dragoman.data.prepare import Fate, Prepared, prepare
from dragoman.data.readers import corpus_files, read_aligned, read_pairs, read_tsv
from dragoman.data.subword import BEGIN_ID, END_ID, PADDING_ID, UNKNOWN_ID, Subword, learn_subword, learn_tokeniser
from dragoman.data.text import read_lines
from dragoman.errors import BundleError, DataError, DragomanError, OutputError, RecipeError

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k" / "tok"


def zstd(written: bytes) -> bytes:
    return cast(bytes, pa.compress(written, codec="zstd", asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda written: written,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}
ARCHIVES = [ending for ending in PACKERS if ending]
NUMBERED = "".join(f"line {number}\n" for number in range(1, 2001)).encode()


def told(reading: Callable[[], object], kind: type[DragomanError] = DataError) -> str:
    """The one line with which something is refused."""
    with pytest.raises(kind) as caught:
        reading()
    line = str(caught.value)
    assert line.isprintable(), line
    return line


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\rb\nc\r", ["a\rb", "c\r"]),
        ("a\u2028b\u2029c\u0085d\ve\ff\x1cg\n".encode(), ["a\u2028b\u2029c\u0085d\ve\ff\x1cg"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"a\x00b\n\x00\n", ["a\x00b", "\x00"]),
        ("ä€😀\n".encode(), ["ä€😀"]),
        (b"  a\t b \n", ["  a\t b "]),
    ],
)
def test_a_line_ends_with_a_line_feed_and_nothing_else(tmp_path: Path, ending: str, written: bytes, lines: list[str]) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](written))
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    ("written", "place"),
    [
        (b"ok\nab\xffc\n", "line 2: not UTF-8 (byte 0xff at column 3)"),
        ("ää".encode() + b"\x80\n", "line 1: not UTF-8 (byte 0x80 at column 5)"),  # a column counts bytes
        (b"a\nb\n\xe2\x82", "line 3: not UTF-8 (byte 0xe2 at column 1)"),
        (b"a\n\xed\xa0\x80\n", "line 2: not UTF-8 (byte 0xed at column 1)"),  # a surrogate
        ("a".encode("utf-16"), "line 1: not UTF-8 (byte 0xff at column 1)"),
    ],
)
def test_bytes_that_are_no_text_are_named_with_line_and_column(tmp_path: Path, ending: str, written: bytes, place: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](written))
    assert told(lambda: list(read_lines(path))) == f"{path}, {place}"


@pytest.mark.parametrize("ending", ARCHIVES)
def test_an_archive_of_several_parts_is_read_to_its_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](b"a\nb") + PACKERS[ending](b"c\n") + PACKERS[ending](NUMBERED))
    assert list(read_lines(path)) == ["a", "bc", *NUMBERED.decode().splitlines()]


@pytest.mark.parametrize("ending", ARCHIVES)
def test_an_archive_cut_anywhere_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    packed = PACKERS[ending](NUMBERED)
    draw = random.Random(ending)
    for length in [1, 2, 10, len(packed) - 1, len(packed) - 4, *(draw.randrange(1, len(packed)) for _ in range(40))]:
        path.write_bytes(packed[:length])
        line = told(lambda: list(read_lines(path)))
        assert re.match(rf"{re.escape(str(path))}: (broken after line \d+|cannot be read): .", line), line


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])  # which hold check sums; a .zst file may do without
def test_an_archive_with_a_flipped_bit_is_refused_or_reads_the_same(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    packed = PACKERS[ending](NUMBERED)
    draw = random.Random(ending)
    refused = 0
    for _ in range(60):
        changed = bytearray(packed)
        changed[draw.randrange(10, len(packed))] ^= 1 << draw.randrange(8)  # gzip's head of 10 bytes holds time and system
        path.write_bytes(changed)
        try:
            assert list(read_lines(path)) == NUMBERED.decode().splitlines()
        except DataError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("ending", ARCHIVES)
def test_what_is_no_archive_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"plain text\n")
    assert told(lambda: list(read_lines(path))).startswith(f"{path}: cannot be read: ")


@pytest.mark.parametrize("ending", PACKERS)
def test_what_is_no_file_is_refused(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{ending}"
    assert told(lambda: list(read_lines(path))) == f"{path}: there is no such file"
    path.mkdir()
    assert told(lambda: list(read_lines(path))) == f"{path}: is a folder, not a file"
    below = tmp_path / "file" / f"a{ending}"
    below.parent.touch()
    assert told(lambda: list(read_lines(below))) == f"{below}: cannot be read: Not a directory"

    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dragoman.data.text.open_bytes", closed)
    assert told(lambda: list(read_lines(path))) == f"{path}: may not be read"


def test_standard_input_is_read_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\r\nb\u2028".encode()), encoding="ascii"))
    assert list(read_lines(None)) == ["ä", "b\u2028"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff"), encoding="latin-1"))
    assert told(lambda: list(read_lines(None))) == "standard input, line 2: not UTF-8 (byte 0xff at column 1)"


# --- pairs ------------------------------------------------------------------------------------------------------------


def written(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes(PACKERS[path.suffix if path.suffix in PACKERS else ""]("".join(f"{line}\n" for line in lines).encode()))
    return path


def test_aligned_files_give_pairs_with_their_place(tmp_path: Path) -> None:
    source, target = written(tmp_path / "a.en", ["one", "", "three\tx"]), written(tmp_path / "a.de.gz", ["eins", "zwei", ""])
    pairs = [
        Pair("one", "eins", f"{source}:1"),
        Pair("", "zwei", f"{source}:2"),
        Pair("three\tx", "", f"{source}:3"),
    ]
    assert list(read_aligned(source, target)) == pairs
    corpus = CorpusConfig(source="a.en", target="a.de.gz")
    assert corpus_files(corpus, tmp_path) == [source, target]
    assert list(read_pairs(corpus, tmp_path)) == pairs


@pytest.mark.parametrize("endings", [("", ""), (".gz", ""), ("", ".zst"), (".xz", ".bz2")])
@pytest.mark.parametrize("counts", [(5, 3), (3, 5), (4, 5), (5, 0), (0, 1)])
def test_files_of_unequal_length_are_refused_with_both_counts(
    tmp_path: Path, counts: tuple[int, int], endings: tuple[str, str]
) -> None:
    source, target = (
        written(tmp_path / f"{name}{ending}", ["x"] * count)
        for name, count, ending in zip(("s", "t"), counts, endings, strict=True)
    )
    (fewer, shorter), (more, longer) = sorted(zip(counts, (source, target), strict=True))
    read: list[Pair] = []
    line = told(lambda: read.extend(read_aligned(source, target)))
    assert line == (
        f"{shorter} has {fewer} lines but {longer} has {more}: line n of one must be the translation of line n of the other"
    )
    assert len(read) == fewer


def test_two_fields_are_a_pair(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", ["one\teins", "\t"])
    assert list(read_tsv(path)) == [Pair("one", "eins", f"{path}:1"), Pair("", "", f"{path}:2")]
    assert list(read_pairs(CorpusConfig(tsv="a.tsv"), tmp_path)) == list(read_tsv(path))


@pytest.mark.parametrize(("line", "fields"), [("one", 1), ("", 1), ("one\teins\t0.9", 3), ("a\tb\tc\td", 4)])
def test_any_other_number_of_fields_is_refused(tmp_path: Path, line: str, fields: int) -> None:
    path = written(tmp_path / "a.tsv", ["one\teins", line])
    refused = f"{path}, line 2: {fields} tab-separated fields; expected 2, source and target"
    assert told(lambda: list(read_tsv(path))) == refused


# --- pieces -----------------------------------------------------------------------------------------------------------

# A small language: every word of two consonants and vowels. 270 + 20 is what it is known to give pieces for.
WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]
VOCABULARY = 300


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


@cache
def subword(kind: str = "bpe", **settings: Any) -> Subword:
    config = SubwordConfig(kind=kind, normalisation="identity", **settings)  # type: ignore[arg-type]
    return learn_subword(sentences(400, 1), config, vocabulary_size=VOCABULARY, seed=1)


LINES = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@settings(max_examples=300, deadline=None)
@given(text=st.one_of(LINES, st.lists(st.sampled_from([*WORDS[:20], " ", "  ", "<s>", "<0x41>", "é", "😀"])).map("".join)))
def test_pieces_spell_the_text_save_for_spaces(kind: str, text: str) -> None:
    """Byte fallback and no normalisation: only U+0020 is folded, as the docstring says."""
    model = subword(kind)
    ids = model.encode(text)
    assert model.decode(ids) == re.sub(" +", " ", text).strip(" ")
    assert not {PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID} & set(ids)
    assert all(index < VOCABULARY for index in ids)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_many_lines_are_encoded_as_one_by_one(texts: list[str]) -> None:
    model = subword()
    assert model.encode_many(texts) == [model.encode(text) for text in texts]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1)))
def test_whatever_the_ids_the_text_is_one_line_of_utf8(ids: list[int]) -> None:
    text = subword().decode(ids)
    assert not {"\r", "\n"} & set(text)
    text.encode()


def test_a_line_break_becomes_a_space_and_so_does_the_mark_of_one() -> None:
    model = subword()
    for text, back in {"bala\nbala": "bala bala", "bala\r\nbala": "bala  bala", "\n": " ", "bala▁bala": "bala bala"}.items():
        assert model.decode(model.encode(text)) == back


def test_the_four_special_pieces_have_their_places() -> None:
    model = subword()
    assert (PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID) == (0, 1, 2, 3)
    assert model.pieces([0, 1, 2, 3, 4, 259]) == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>", "<0xFF>"]
    assert len(model) == VOCABULARY
    assert model.decode([BEGIN_ID, *model.encode("bala"), END_ID, PADDING_ID]) == "bala"


def test_settings_reach_the_pieces() -> None:
    assert subword(lowercase=True).encode("BALA bala") == subword(lowercase=True).encode("bala BALA")
    assert subword().encode("BALA") != subword().encode("bala")
    numbers = ["1984 bala", "1984 2024", "2024 mara"] * 50
    for split in (False, True):
        config = SubwordConfig(split_digits=split, normalisation="identity")
        model = learn_subword(numbers, config, vocabulary_size=282, seed=1)
        assert any(re.search(r"\d\d", piece) for piece in model.pieces(range(260, len(model)))) is not split
    composed = learn_subword(sentences(99, 1), SubwordConfig(normalisation="nfkc"), vocabulary_size=VOCABULARY, seed=1)
    for text, normal in {"\ufb01": "fi", "i\u0301": "\u00ed", "\uff21": "A"}.items():  # ligature, accent, full width: NFKC
        assert composed.encode(text) == composed.encode(normal)
        assert subword().encode(text) != subword().encode(normal)
    without = SubwordConfig(byte_fallback=False)
    model = learn_subword(sentences(99, 1), without, vocabulary_size=40, seed=1)
    assert UNKNOWN_ID in model.encode("é")


def test_the_same_text_gives_the_same_model() -> None:
    for kind in ("bpe", "unigram"):
        config = SubwordConfig(kind=kind, normalisation="identity")
        again = learn_subword(sentences(400, 1), config, vocabulary_size=VOCABULARY, seed=1)
        assert again.model == subword(kind).model


@pytest.mark.parametrize("text", ["\ud800", "bala \udcff", "\udc80" * 99, "\ude00\ud83d"])
def test_half_a_surrogate_pair_is_no_text(text: str) -> None:
    model = subword()
    place = min(text.index(half) for half in text if "\ud800" <= half <= "\udfff") + 1
    for refused in (
        lambda: model.encode(text),
        lambda: model.encode_many(["bala", text]),
        lambda: learn_subword(["bala", text], SubwordConfig(), vocabulary_size=VOCABULARY, seed=1),
    ):
        assert f"character {place} is half of a surrogate pair" in told(refused)


def test_a_model_that_is_none_is_refused() -> None:
    whole = subword().model
    draw = random.Random(1)
    cut = [whole[: draw.randrange(len(whole))] for _ in range(20)]
    for model in [b"", b"\x00", whole + whole, draw.randbytes(500), *cut]:
        assert told(partial(Subword, model, name="a.model"), BundleError).startswith("a.model: ")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_damaged_model_is_refused_or_works(kind: str) -> None:
    """The file's digest finds what is no error here; nothing may come but BundleError, least of all a crash."""
    whole = subword(kind).model
    draw = random.Random(kind)
    refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 30])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            model = Subword(bytes(changed))
            model.decode(model.encode("bala é mara"))
            model.decode(range(len(model)))
            model.pieces(range(len(model)))
        except BundleError:
            refused += 1
    assert refused > 100


def test_ids_elsewhere_are_refused() -> None:
    import sentencepiece

    out = io.BytesIO()  # SentencePiece's own places: <unk> 0, <s> 1, </s> 2, no padding
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(99, 1)), model_writer=out, vocab_size=60, model_type="bpe", minloglevel=2
    )
    refused = told(lambda: Subword(out.getvalue(), name="a.model"), BundleError)
    assert refused == "a.model: padding, unknown, begin and end stand at [-1, 0, 1, 2]; dragoman expects [0, 1, 2, 3]"


def least_and_most(config: SubwordConfig, text: list[str]) -> tuple[int, int]:
    """The limits that the complaints name."""
    limits = []
    for size, words in ((5, "or more"), (2**24 - 1, "or less")):
        line = told(partial(learn_subword, text, config, vocabulary_size=size, seed=1), RecipeError)
        match = re.fullmatch(rf"subword\.vocabulary_size = {size} is .* set it to (\d+) {words}\b.*", line)
        assert match is not None, line
        limits.append(int(match[1]))
    return limits[0], limits[1]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_a_vocabulary_that_cannot_be_is_refused_with_the_limit(kind: str, byte_fallback: bool) -> None:
    config = SubwordConfig(kind=kind, byte_fallback=byte_fallback)  # type: ignore[arg-type]
    text = sentences(50, 2)
    least, most = least_and_most(config, text)
    # 4 special pieces, the bytes, the space's mark, and the letters.
    assert least == 4 + (256 if byte_fallback else 0) + 1 + len(set("".join(text)) - {" "})
    if kind == "bpe":
        assert len(learn_subword(text, config, vocabulary_size=least, seed=1)) == least
    assert len(learn_subword(text, config, vocabulary_size=most, seed=1)) == most


def test_the_size_that_is_to_change_is_named() -> None:
    config = SubwordConfig(joint=False, vocabulary_size=VOCABULARY, target_vocabulary_size=9)
    line = told(lambda: learn_tokeniser(sentences(99, 1), sentences(99, 2), config, source_eos=True, seed=1), RecipeError)
    assert line.startswith("subword.target_vocabulary_size = 9 is too small")
    config = SubwordConfig(joint=False, vocabulary_size=9)
    line = told(lambda: learn_tokeniser(sentences(99, 1), sentences(99, 2), config, source_eos=True, seed=1), RecipeError)
    assert line.startswith("subword.vocabulary_size = 9 is too small")


@pytest.mark.parametrize("texts", [[], ["", " ", "\t"], ["\u00a0", "\u3000"], ["▁"], ["x" * 70_000]])
def test_a_text_with_nothing_to_learn_from_is_empty(texts: list[str]) -> None:
    line = told(lambda: learn_subword(texts, SubwordConfig(), vocabulary_size=VOCABULARY, seed=1))
    assert line == "the training corpus is empty: no line of up to 65536 bytes holds any text"


@pytest.mark.parametrize("before", [0, 1, 500])
@pytest.mark.parametrize("reason", [DataError("a.txt, line 9: not UTF-8"), KeyboardInterrupt(), ZeroDivisionError("ours")])
def test_what_reading_raises_comes_through_the_learning(before: int, reason: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield from sentences(before, 1)
        raise reason

    with pytest.raises(type(reason)) as caught:
        learn_subword(texts(), SubwordConfig(), vocabulary_size=VOCABULARY, seed=1)
    assert caught.value is reason


def test_joint_pieces_are_of_both_sides_and_separate_ones_of_each() -> None:
    sources, targets = sentences(99, 1), [sentence.upper() for sentence in sentences(99, 2)]
    config = SubwordConfig(vocabulary_size=VOCABULARY + 20)
    joint = learn_tokeniser(sources, targets, config, source_eos=True, seed=1)
    assert joint.joint
    assert joint.source is joint.target
    config = SubwordConfig(joint=False, vocabulary_size=300, target_vocabulary_size=310)
    apart = learn_tokeniser(sources, targets, config, source_eos=False, seed=1)
    assert (apart.joint, len(apart.source), len(apart.target)) == (False, 300, 310)
    assert len(apart.target.encode("BALA")) < len(apart.source.encode("BALA"))  # which spells it in bytes: one each, and a mark
    assert len(apart.source.encode("BALA")) == 5
    assert joint.encode_source("bala") == [*joint.source.encode("bala"), END_ID]
    assert apart.encode_source("bala") == apart.source.encode("bala")
    assert joint.encode_target("BALA") == joint.target.encode("BALA")


# --- the encoded corpus -----------------------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
PAIRS = st.lists(st.tuples(IDS, IDS, st.integers(0, 2**40)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(pairs=PAIRS, rows=st.sampled_from([1, 2, 7, 65_536]))
def test_a_corpus_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[EncodedPair], rows: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.arrow"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_room, "ROWS", rows)
        assert write_corpus(path, iter(pairs)) == len(pairs)
        corpus = Corpus(path)
        back = [(corpus.source(i).tolist(), corpus.target(i).tolist(), corpus.line(i)) for i in range(len(corpus))]
        sources, targets = corpus.lengths()
    assert back == pairs
    assert sources.tolist() == [len(source) for source, _, _ in pairs]
    assert targets.tolist() == [len(target) + 1 for _, target, _ in pairs]  # with the end token


def test_any_arrow_reader_opens_a_corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a.arrow", [([5, END_ID], [6], 1), ([7, END_ID], [], 3)])
    with pa.ipc.open_file(tmp_path / "a.arrow") as reader:
        table = reader.read_all().to_pydict()
    assert table == {"source": [[5, 3], [7, 3]], "target": [[6], []], "line": [1, 3]}


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"

    def refused() -> str:
        line = told(lambda: Corpus(path))
        assert line.startswith(f"{path}: ")
        return line

    refused()
    path.mkdir()
    refused()
    path.rmdir()
    for contents in (b"", b"plain text\n" * 99, b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"\xff" * 200 + b"ARROW1"):
        path.write_bytes(contents)
        refused()
    write_corpus(path, [([5, 6, 3], [7, 8], line) for line in range(50)])
    whole = path.read_bytes()
    for length in range(0, len(whole), 11):
        path.write_bytes(whole[:length])
        refused()
    other = pa.schema([("source", pa.list_(pa.int64())), ("target", pa.list_(pa.int32())), ("line", pa.int64())])
    for schema, columns in ((pa.schema([("a", pa.int32())]), [[1]]), (other, [[[1]], [[1]], [1]])):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        assert "not a prepared corpus" in refused()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for _ in range(2):
            writer.write_batch(pa.record_batch([[[1]], [[1]], [1]], schema=SCHEMA))
    assert "65536 pairs each" in refused()


# --- batches ----------------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)


def plan(lengths: Sequence[tuple[int, int]], **given: Any) -> list[list[int]]:
    sources = np.array([source for source, _ in lengths], np.int32)
    targets = np.array([target for _, target in lengths], np.int32)
    return [batch.tolist() for batch in plan_epoch(sources, targets, **given)]


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200), seed=st.integers(0, 2**31 - 1), shuffle=st.booleans())
def test_an_epoch_has_every_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, shuffle: bool
) -> None:
    batches = plan(lengths, batch_tokens=batch_tokens, seed=seed, epoch=0, shuffle=shuffle)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        longest = max(max(lengths[index]) for index in batch)
        assert longest * len(batch) <= batch_tokens or len(batch) == 1
    assert batches == plan(lengths, batch_tokens=batch_tokens, seed=seed, epoch=0, shuffle=shuffle)


def drawn_lengths(count: int = 2000) -> list[tuple[int, int]]:
    draw = random.Random(3)
    return [(length := min(2 + int(draw.expovariate(0.08)), 90), max(1, length + draw.randint(-3, 3))) for _ in range(count)]


def test_the_order_is_of_the_seed_and_the_epoch() -> None:
    lengths = drawn_lengths()
    first = plan(lengths, batch_tokens=400, seed=5, epoch=0)
    assert plan(lengths, batch_tokens=400, seed=5, epoch=1) != first
    assert plan(lengths, batch_tokens=400, seed=6, epoch=0) != first
    together = {frozenset(batch) for batch in first} & {
        frozenset(batch) for batch in plan(lengths, batch_tokens=400, seed=5, epoch=1)
    }
    assert len(together) < len(first) / 2  # not the same batches in another order, save where lengths are rare


def test_an_epoch_does_not_go_from_short_to_long() -> None:
    lengths = drawn_lengths()
    shuffled, ordered = (
        np.array(
            [
                np.mean([max(lengths[index]) for index in batch])
                for batch in plan(lengths, batch_tokens=400, seed=5, epoch=2, shuffle=shuffle)
            ]
        )
        for shuffle in (True, False)
    )
    assert (np.diff(ordered) >= 0).all()
    place = np.arange(len(shuffled))
    assert abs(np.corrcoef(place, shuffled)[0, 1]) < 4 / np.sqrt(len(shuffled))  # as of independent draws


def test_within_a_batch_lengths_are_alike() -> None:
    lengths = drawn_lengths()
    batches = plan(lengths, batch_tokens=400, seed=5, epoch=0)
    real = sum(max(pair) for pair in lengths)
    padded = sum(len(batch) * max(max(lengths[index]) for index in batch) for batch in batches)
    assert padded / real < 1.05


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(4, 99), max_size=5), min_size=1, max_size=5),
    first=st.sampled_from([None, BEGIN_ID, PADDING_ID]),
    last=st.sampled_from([None, END_ID]),
    arrays=st.booleans(),
)
def test_rows_are_padded_on_the_right(rows: list[list[int]], first: int | None, last: int | None, arrays: bool) -> None:
    framed = [[*([] if first is None else [first]), *row, *([] if last is None else [last])] for row in rows]
    width = max(map(len, framed))
    expected = [row + [PADDING_ID] * (width - len(row)) for row in framed]
    padded = pad([np.array(row, np.int32) for row in rows] if arrays else rows, first=first, last=last)
    assert padded.dtype == torch.int64
    assert padded.tolist() == expected


def test_the_decoder_reads_the_target_shifted_by_one() -> None:
    batch = collate([[5, 6, 3], [7, 3]], [[8], [9, 10, 11]], start_id=BEGIN_ID)
    assert batch.source_BS.tolist() == [[5, 6, 3], [7, 3, 0]]
    assert batch.inputs_BT.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.targets_BT.tolist() == [[8, 3, 0, 0], [9, 10, 11, 3]]
    assert batch.num_target_tokens == 6
    assert batch.to(torch.device("cpu")).targets_BT.tolist() == batch.targets_BT.tolist()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    draw = random.Random(4)
    path = tmp_path_factory.mktemp("corpus") / "a.arrow"
    pairs = [
        ([*draw.choices(range(4, 99), k=draw.randint(1, 9)), END_ID], draw.choices(range(4, 99), k=draw.randint(1, 9)), number)
        for number in range(1, 61)
    ]
    write_corpus(path, pairs)
    return Corpus(path)


def stream_from(corpus: Corpus, cursor: Cursor) -> BatchStream:
    return BatchStream(corpus, batch_tokens=60, seed=7, start_id=BEGIN_ID, cursor=cursor)


def same(one: Any, other: Any) -> bool:
    tensors = ("source_BS", "inputs_BT", "targets_BT")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)


def test_a_stream_goes_on_from_any_cursor_as_if_uninterrupted(corpus: Corpus) -> None:
    stream = stream_from(corpus, Cursor())
    whole = []
    for _ in range(3 * stream.batches_in_epoch()):
        before = stream.cursor
        whole.append((before, stream.next(), stream.cursor))
    assert stream.cursor.epoch >= 2
    for place in range(0, len(whole), 3):
        again = stream_from(corpus, whole[place][0])
        for _, batch, after in whole[place : place + 4]:
            assert same(again.next(), batch)
            assert again.cursor == after


def test_each_epoch_of_a_stream_is_its_plan(corpus: Corpus) -> None:
    stream = stream_from(corpus, Cursor())
    for epoch in range(3):
        batches = plan_epoch(*corpus.lengths(), batch_tokens=60, seed=7, epoch=epoch)
        for number, indices in enumerate(batches):
            assert same(stream.next(), batch_of(corpus, indices, start_id=BEGIN_ID))
            assert stream.cursor == Cursor(epoch, number + 1)
    assert stream.cursor.epoch == 2
    assert stream_from(corpus, stream.cursor).next().num_target_tokens == stream.next().num_target_tokens
    assert stream.cursor == Cursor(3, 1)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no Multi30k in {MULTI30K}")
def test_little_of_a_multi30k_batch_is_padding() -> None:
    """At 25,000 tokens a batch there are only 20, each a twentieth of all lengths, so this is the hard end."""
    texts = [list(read_lines(MULTI30K / f"train.{language}.gz")) for language in ("en", "de")]
    config = SubwordConfig(vocabulary_size=10_000, normalisation="identity")
    tokeniser = learn_tokeniser(texts[0], texts[1], config, source_eos=True, seed=1)
    sources, targets = (np.array([len(ids) + 1 for ids in tokeniser.source.encode_many(text)], np.int32) for text in texts)
    assert len(sources) == 29_000
    batches = plan_epoch(sources, targets, batch_tokens=25_000, seed=1, epoch=0)
    longest = np.maximum(sources, targets)
    counted = sum(len(batch) * int(longest[batch].max()) for batch in batches)
    assert 1 - longest.sum() / counted < 0.05  # what the budget counts: the longer side of each pair
    padded = sum(len(batch) * (int(sources[batch].max()) + int(targets[batch].max())) for batch in batches)
    assert 1 - (sources.sum() + targets.sum()) / padded < 0.10  # both sides: what the model is given


# --- preparing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with 60 pairs to learn from, as two files, and 10 to validate on, as one."""
    folder = tmp_path / "text"
    folder.mkdir()
    written(folder / "train.en", sentences(60, 1))
    written(folder / "train.de.gz", sentences(60, 2))
    written(folder / "valid.tsv", [f"{one}\t{other}" for one, other in zip(sentences(10, 3), sentences(10, 4), strict=True)])
    return folder


def recipe_for(text: Path, *overrides: str) -> Recipe:
    document = {
        "size": "tiny",
        "data": {
            "root": str(text),
            "train": {"source": "train.en", "target": "train.de.gz"},
            "valid": {"tsv": "valid.tsv"},
        },
        "subword": {"vocabulary_size": VOCABULARY},
    }
    return make_recipe(document, overrides)


def prepared(text: Path, *overrides: str, notice: Callable[[str], None] = lambda _: None) -> Prepared:
    return prepare(recipe_for(text, *overrides), text.parent / "data", notice)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_corpus_is_prepared_as_its_text_says(text: Path) -> None:
    notices: list[str] = []
    result = prepared(text, notice=notices.append)
    assert result.fresh
    assert notices == [
        f"learning bpe pieces ({VOCABULARY})",
        f"encoding train: {text / 'train.en'}, {text / 'train.de.gz'}",
        f"encoding valid: {text / 'valid.tsv'}",
    ]
    valid = result.valid
    assert valid is not None
    for corpus, pairs in (
        (result.train, list(read_aligned(text / "train.en", text / "train.de.gz"))),
        (valid, list(read_tsv(text / "valid.tsv"))),
    ):
        assert len(corpus) == len(pairs)
        for index, pair in enumerate(pairs):
            assert corpus.source(index).tolist() == result.tokeniser.encode_source(pair.source)
            assert corpus.target(index).tolist() == result.tokeniser.encode_target(pair.target)
            assert corpus.line(index) == index + 1
    sources, targets = result.train.lengths()
    assert result.fates["train"] == Fate(kept=60, source_tokens=int(sources.sum()), target_tokens=int(targets.sum()))
    assert result.fates["valid"].kept == 10
    assert set(files(text.parent / "data")) == {"source.model", "train.arrow", "valid.arrow", "prepared.json"}


def test_there_is_nothing_to_do_the_second_time(text: Path) -> None:
    first = prepared(text)
    before = files(text.parent / "data")
    notices: list[str] = []
    second = prepared(text, notice=notices.append)
    assert (second.fresh, notices) == (False, [])
    assert files(text.parent / "data") == before
    assert second.fates == first.fates
    assert second.tokeniser.source.model == first.tokeniser.source.model
    assert second.tokeniser.joint
    assert [second.train.source(i).tolist() for i in range(60)] == [first.train.source(i).tolist() for i in range(60)]


# Each alone makes another corpus.
CHANGES = [
    "data.max_length=20",
    "data.over_long=truncate",
    "subword.vocabulary_size=290",
    "subword.kind=unigram",
    "subword.lowercase=true",
    "subword.normalisation=identity",
    "subword.split_digits=true",
    "subword.joint=false",
    "model.source_eos=false",
    "data.valid={tsv='valid.tsv.gz'}",
]


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_changed_are_noticed(text: Path, change: str) -> None:
    more = ["model.tying=two-way"]
    written(text / "valid.tsv.gz", ["bala\tmara"])
    prepared(text, *more)
    assert prepared(text, *more, change).fresh
    assert not prepared(text, *more, change).fresh
    assert prepared(text, *more).fresh
    assert "target.model" not in files(text.parent / "data")


@pytest.mark.parametrize(
    "change", ["name=other", "training.max_steps=3", "decoding.beam_size=9", "model.d_ff=8", "data.test={tsv='none.tsv'}"]
)
def test_settings_that_make_no_other_corpus_change_nothing(text: Path, change: str) -> None:
    prepared(text)
    assert not prepared(text, change).fresh


@pytest.mark.parametrize("name", ["train.en", "train.de.gz", "valid.tsv"])
def test_an_input_that_changed_is_noticed(text: Path, name: str) -> None:
    first = prepared(text)
    assert first.valid is not None
    before = len(first.train) + len(first.valid)
    for path in [text / "train.en", text / "train.de.gz"] if name.startswith("train") else [text / name]:
        kept = list(read_lines(path))
        written(path, [*kept[1:], kept[0]] if path.name == name else kept)
    again = prepared(text)
    assert again.fresh
    assert again.valid is not None
    assert len(again.train) + len(again.valid) == before
    assert not prepared(text).fresh


@pytest.mark.parametrize("name", ["source.model", "target.model", "train.arrow", "valid.arrow"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_an_output_that_changed_is_made_anew(text: Path, name: str, damage: str) -> None:
    apart = ["subword.joint=false", "model.tying=two-way"]
    prepared(text, *apart)
    folder = text.parent / "data"
    before = files(folder)
    whole = bytearray(before[name])
    whole[len(whole) // 2] ^= 1
    match damage:
        case "cut":
            (folder / name).write_bytes(before[name][:-1])
        case "flip":
            (folder / name).write_bytes(whole)
        case "remove":
            (folder / name).unlink()
        case _:
            (folder / name).write_bytes(b"")
    notices: list[str] = []
    assert prepared(text, *apart, notice=notices.append).fresh
    assert notices[0] == f"{folder}: a prepared file is missing or was changed; preparing anew"
    assert files(folder) == before
    assert not prepared(text, *apart).fresh


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"digest": "DIGEST", "files": {}, "fates": {"train": {"keep": 3}}}',
        b'{"digest": "DIGEST", "files": {}, "fates": [3]}',
        b'{"digest": "DIGEST", "files": 3, "fates": {}}',
        b'{"digest": "DIGEST", "fates": {}}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda damage: damage[:40].decode(errors="replace"),
)
def test_a_damaged_note_of_what_was_prepared_is_made_anew(text: Path, damage: bytes) -> None:
    prepared(text)
    path = text.parent / "data" / "prepared.json"
    before = path.read_bytes()
    path.write_bytes(damage.replace(b"DIGEST", json.loads(before)["digest"].encode()))
    assert prepared(text).fresh
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("corpus", ["train", "valid"])
def test_an_interrupted_preparation_is_done_again(
    text: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], corpus: str
) -> None:
    expected = files_of_fresh(text)
    fit = prepare_room._fit

    def breaking(pair: Pair, *rest: Any, training: bool) -> Any:
        if pair.origin.endswith(":7") and training is (corpus == "train"):
            raise kind
        return fit(pair, *rest, training=training)

    with monkeypatch.context() as patch:
        patch.setattr(prepare_room, "_fit", breaking)
        with pytest.raises(kind):
            prepared(text)
    assert prepared(text).fresh
    assert files(text.parent / "data") == expected


def files_of_fresh(text: Path) -> dict[str, bytes]:
    """What a preparation that nothing disturbed writes."""
    prepare(recipe_for(text), text.parent / "undisturbed")
    return files(text.parent / "undisturbed")


def test_pairs_with_an_empty_side_are_counted_and_named(text: Path) -> None:
    lines = [*sentences(30, 1), "", " ", "\u3000", "bala", "", "", "bala"]
    others = [*sentences(30, 2), "mara", "mara", "mara", "  ", "", "mara", "\t"]
    source = written(text / "train.en", lines)
    written(text / "train.de.gz", others)
    written(text / "valid.tsv", ["bala\t", "bala\tmara"])
    result = prepared(text)
    fate = result.fates["train"]
    assert (fate.kept, fate.empty, fate.over_long) == (30, 7, 0)
    places = [f"{source}:{line}" for line in range(31, 36)]
    assert fate.empty_at == places
    assert fate.sentences("drop") == [f"7 pairs with an empty side dropped ({', '.join(places)}, …)"]
    assert result.fates["valid"].sentences("drop") == [f"1 pairs with an empty side dropped ({text / 'valid.tsv'}:1)"]
    assert result.valid is not None
    assert result.valid.line(0) == 2


def over_long(text: Path, choice: str) -> tuple[Prepared, list[Pair], list[int]]:
    """A preparation with room for 12 tokens a side; its pairs, and the lines (from 0) of those that do not fit."""
    pairs = list(read_aligned(text / "train.en", text / "train.de.gz"))
    result = prepared(text, "data.max_length=12", f"data.over_long={choice}")
    encoder = result.tokeniser
    longest = [max(len(encoder.encode_source(pair.source)), len(encoder.encode_target(pair.target)) + 1) for pair in pairs]
    beyond = [line for line, length in enumerate(longest) if length > 12]
    assert 5 < len(beyond) < 55
    assert 12 in longest  # one that just fits
    return result, pairs, beyond


def test_over_long_pairs_are_dropped_counted_and_named(text: Path) -> None:
    result, pairs, beyond = over_long(text, "drop")
    fate = result.fates["train"]
    assert (fate.kept, fate.over_long) == (60 - len(beyond), len(beyond))
    assert fate.over_long_at == [pairs[line].origin for line in beyond[:5]]
    assert [result.train.line(index) - 1 for index in range(len(result.train))] == [
        line for line in range(60) if line not in beyond
    ]
    assert fate.sentences("drop") == [f"{len(beyond)} pairs beyond data.max_length dropped ({', '.join(fate.over_long_at)}, …)"]
    assert result.fates["valid"].over_long == 0  # what is judged on is never shortened


def test_over_long_pairs_are_truncated_counted_and_named(text: Path) -> None:
    result, pairs, beyond = over_long(text, "truncate")
    fate = result.fates["train"]
    assert (fate.kept, fate.over_long) == (60, len(beyond))
    for line, pair in enumerate(pairs):
        assert result.train.source(line).tolist() == [*result.tokeniser.source.encode(pair.source)[:11], END_ID]
        assert result.train.target(line).tolist() == result.tokeniser.target.encode(pair.target)[:11]
    sources, targets = result.train.lengths()
    assert max(sources.max(), targets.max()) == 12
    assert "truncated" in fate.sentences("truncate")[0]


def test_an_over_long_pair_may_be_refused(text: Path) -> None:
    _, pairs, beyond = over_long(text, "drop")
    line = told(lambda: over_long(text, "refuse"))
    assert re.match(rf"{re.escape(pairs[beyond[0]].origin)}: \d+ tokens, more than data\.max_length = 12; raise it, or", line)


def test_a_corpus_without_pairs_is_refused(text: Path) -> None:
    empty_valid = text / "valid.tsv"
    empty_valid.write_text("\t\n\t\n")
    assert told(lambda: prepared(text)).startswith(f"{empty_valid}: no pair is left (2 pairs with an empty side dropped")
    empty_valid.write_text("")
    assert told(lambda: prepared(text)) == f"{empty_valid}: no pair is left (the corpus is empty)"
    assert "no pair is left (60 pairs beyond data.max_length dropped" in told(lambda: prepared(text, "data.max_length=2"))
    for lines in ([], ["", " "]):
        written(text / "train.en", lines)
        written(text / "train.de.gz", lines)
        assert told(lambda: prepared(text)).startswith("the training corpus is empty: ")


def test_a_corpus_that_cannot_be_read_is_named(text: Path) -> None:
    written(text / "train.de.gz", sentences(59, 2))
    assert told(lambda: prepared(text)).startswith(f"{text / 'train.de.gz'} has 59 lines but {text / 'train.en'} has 60: ")
    (text / "train.en").write_bytes(b"bala\n" * 59 + b"\xff\n")
    assert told(lambda: prepared(text)) == f"{text / 'train.en'}, line 60: not UTF-8 (byte 0xff at column 1)"
    (text / "train.en").unlink()
    assert told(lambda: prepared(text)) == f"{text / 'train.en'}: cannot be read: No such file or directory"
    recipe = make_recipe({})
    assert told(lambda: prepare(recipe, text.parent), RecipeError) == ("data.train is not given: name the files to learn from")


def test_a_place_where_nothing_can_be_prepared_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = text.parent / "data"
    folder.touch()
    assert told(lambda: prepared(text), OutputError).startswith(f"{folder}: cannot be written: ")
    folder.unlink()

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(prepare_room, "write_corpus", full)
        assert told(lambda: prepared(text), OutputError).startswith(f"{folder}: the disk is full (")
    assert prepared(text).fresh


def test_every_pair_of_a_corpus_is_in_some_batch_of_an_epoch(text: Path) -> None:
    """The way of a pair, from its line to its batch."""
    result = prepared(text)
    stream = BatchStream(result.train, batch_tokens=100, seed=1, start_id=BEGIN_ID, cursor=Cursor())
    seen: Counter[str] = Counter()
    for _ in range(stream.batches_in_epoch()):
        batch = stream.next()
        for row in batch.targets_BT.tolist():
            seen[result.tokeniser.target.decode(row)] += 1
    assert seen == Counter(read_lines(text / "train.de.gz"))
