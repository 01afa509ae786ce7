"""From text files to batches: what is read and refused, pieces, the encoded corpus, and batches of it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
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

from dragoman.config import CorpusConfig, TokenizerConfig
from dragoman.data.batch_sampler import BatchSampler
from dragoman.data.collate import collate, iter_batches_by_length, pad_sequences
from dragoman.data.encoded_corpus import (
    Corpus,
    LengthTable,
    build_pair_batch,
    build_pair_schema,
    get_lengths_file,
    get_pair_file,
    list_pair_files,
    write_batches,
    write_lengths,
)
from dragoman.data.mixture import Mixture
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.data.tokenization.tokenizer import train_tokenizer
from dragoman.errors import BundleError, DataError, DragomanError, RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import list_corpus_files, read_pairs
from dragoman.formats.text import read_lines
from dragoman.formats.tsv import read_aligned, read_tsv

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k" / "tok"


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
        assert re.match(rf"{re.escape(str(path))}: (damaged after line \d+|cannot be read): .", line), line


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
    assert told(lambda: list(read_lines(path))) == f"{path}: is a folder; give a file"
    below = tmp_path / "file" / f"a{ending}"
    below.parent.touch()
    assert told(lambda: list(read_lines(below))) == f"{below}: cannot be read: Not a directory"

    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dragoman.formats.text.open_bytes", closed)
    assert told(lambda: list(read_lines(path))) == f"{path}: no permission to read it"


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
    assert list_corpus_files(corpus, tmp_path) == [source, target]
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
    assert list(read_pairs(CorpusConfig(file="a.tsv", format="tsv"), tmp_path)) == list(read_tsv(path))


@pytest.mark.parametrize(("line", "fields"), [("one", 1), ("", 1), ("one\teins\t0.9", 3), ("a\tb\tc\td", 4)])
def test_any_other_number_of_fields_is_refused(tmp_path: Path, line: str, fields: int) -> None:
    path = written(tmp_path / "a.tsv", ["one\teins", line])
    refused = f"{path}, line 2: {fields} tab-separated columns; expected 2, source and target"
    assert told(lambda: list(read_tsv(path))) == refused


# --- pieces -----------------------------------------------------------------------------------------------------------

# A small language: every word of two consonants and vowels. 270 + 20 is what it is known to give pieces for.
WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]
VOCABULARY = 300


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


@cache
def subword(kind: str = "bpe", **settings: Any) -> SentencePieceTokenizer:
    config = TokenizerConfig(model_type=kind, normalization="identity", **settings)  # type: ignore[arg-type]
    return train_sentencepiece(sentences(400, 1), config, vocab_size=VOCABULARY, seed=1)


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
    assert model.encode_batch(texts) == [model.encode(text) for text in texts]


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
    assert model.ids_to_pieces([0, 1, 2, 3, 4, 259]) == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>", "<0xFF>"]
    assert len(model) == VOCABULARY
    assert model.decode([BEGIN_ID, *model.encode("bala"), END_ID, PADDING_ID]) == "bala"


def test_settings_reach_the_pieces() -> None:
    assert subword(lowercase=True).encode("BALA bala") == subword(lowercase=True).encode("bala BALA")
    assert subword().encode("BALA") != subword().encode("bala")
    numbers = ["1984 bala", "1984 2024", "2024 mara"] * 50
    for split in (False, True):
        config = TokenizerConfig(split_digits=split, normalization="identity")
        model = train_sentencepiece(numbers, config, vocab_size=282, seed=1)
        assert any(re.search(r"\d\d", piece) for piece in model.ids_to_pieces(range(260, len(model)))) is not split
    composed = train_sentencepiece(sentences(99, 1), TokenizerConfig(normalization="nfkc"), vocab_size=VOCABULARY, seed=1)
    for text, normal in {"\ufb01": "fi", "i\u0301": "\u00ed", "\uff21": "A"}.items():  # ligature, accent, full width: NFKC
        assert composed.encode(text) == composed.encode(normal)
        assert subword().encode(text) != subword().encode(normal)
    without = TokenizerConfig(byte_fallback=False)
    model = train_sentencepiece(sentences(99, 1), without, vocab_size=40, seed=1)
    assert UNKNOWN_ID in model.encode("é")


def test_the_same_text_gives_the_same_model() -> None:
    for kind in ("bpe", "unigram"):
        config = TokenizerConfig(model_type=kind, normalization="identity")
        again = train_sentencepiece(sentences(400, 1), config, vocab_size=VOCABULARY, seed=1)
        assert again.serialized_model == subword(kind).serialized_model


@pytest.mark.parametrize("text", ["\ud800", "bala \udcff", "\udc80" * 99, "\ude00\ud83d"])
def test_half_a_surrogate_pair_is_no_text(text: str) -> None:
    model = subword()
    place = min(text.index(half) for half in text if "\ud800" <= half <= "\udfff") + 1
    for refused in (
        lambda: model.encode(text),
        lambda: model.encode_batch(["bala", text]),
        lambda: train_sentencepiece(["bala", text], TokenizerConfig(), vocab_size=VOCABULARY, seed=1),
    ):
        assert f"character {place} is half of a surrogate pair" in told(refused)


def test_a_model_that_is_none_is_refused() -> None:
    whole = subword().serialized_model
    draw = random.Random(1)
    cut = [whole[: draw.randrange(len(whole))] for _ in range(20)]
    for model in [b"", b"\x00", whole + whole, draw.randbytes(500), *cut]:
        assert told(partial(SentencePieceTokenizer, model, name="a.model"), BundleError).startswith("a.model: ")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_damaged_model_is_refused_or_works(kind: str) -> None:
    """The file's digest finds what is no error here; nothing may come but BundleError, least of all a crash."""
    whole = subword(kind).serialized_model
    draw = random.Random(kind)
    refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 30])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            model = SentencePieceTokenizer(bytes(changed))
            model.decode(model.encode("bala é mara"))
            model.decode(range(len(model)))
            model.ids_to_pieces(range(len(model)))
        except BundleError:
            refused += 1
    assert refused > 100


def test_ids_elsewhere_are_refused() -> None:
    import sentencepiece

    out = io.BytesIO()  # SentencePiece's own places: <unk> 0, <s> 1, </s> 2, no padding
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(99, 1)), model_writer=out, vocab_size=60, model_type="bpe", minloglevel=2
    )
    refused = told(lambda: SentencePieceTokenizer(out.getvalue(), name="a.model"), BundleError)
    assert refused == "a.model: padding, unknown, begin and end stand at [-1, 0, 1, 2]; dragoman expects [0, 1, 2, 3]"


def least_and_most(config: TokenizerConfig, text: list[str]) -> tuple[int, int]:
    """The limits that the complaints name."""
    limits = []
    for size, words in ((5, "or more"), (2**24 - 1, "or less")):
        line = told(partial(train_sentencepiece, text, config, vocab_size=size, seed=1), RecipeError)
        match = re.fullmatch(rf"subword\.vocab_size = {size} is .* set it to (\d+) {words}\b.*", line)
        assert match is not None, line
        limits.append(int(match[1]))
    return limits[0], limits[1]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_a_vocabulary_that_cannot_be_is_refused_with_the_limit(kind: str, byte_fallback: bool) -> None:
    config = TokenizerConfig(model_type=kind, byte_fallback=byte_fallback)  # type: ignore[arg-type]
    text = sentences(50, 2)
    least, most = least_and_most(config, text)
    # 4 special pieces, the bytes, the space's mark, and the letters.
    assert least == 4 + (256 if byte_fallback else 0) + 1 + len(set("".join(text)) - {" "})
    if kind == "bpe":
        assert len(train_sentencepiece(text, config, vocab_size=least, seed=1)) == least
    assert len(train_sentencepiece(text, config, vocab_size=most, seed=1)) == most


def test_the_size_that_is_to_change_is_named() -> None:
    config = TokenizerConfig(joint=False, vocab_size=VOCABULARY, target_vocab_size=9)
    line = told(
        lambda: train_tokenizer(sentences(99, 1), sentences(99, 2), config, append_source_eos=True, seed=1), RecipeError
    )
    assert line.startswith("tokenizer.target_vocab_size = 9 is too small")
    config = TokenizerConfig(joint=False, vocab_size=9)
    line = told(
        lambda: train_tokenizer(sentences(99, 1), sentences(99, 2), config, append_source_eos=True, seed=1), RecipeError
    )
    assert line.startswith("tokenizer.vocab_size = 9 is too small")


@pytest.mark.parametrize("texts", [[], ["", " ", "\t"], ["\u00a0", "\u3000"], ["▁"], ["x" * 70_000]])
def test_a_text_with_nothing_to_learn_from_is_empty(texts: list[str]) -> None:
    line = told(lambda: train_sentencepiece(texts, TokenizerConfig(), vocab_size=VOCABULARY, seed=1))
    assert line == "the training corpus is empty: no line of up to 65536 bytes holds any text"


@pytest.mark.parametrize("before", [0, 1, 500])
@pytest.mark.parametrize("reason", [DataError("a.txt, line 9: not UTF-8"), KeyboardInterrupt(), ZeroDivisionError("ours")])
def test_what_reading_raises_comes_through_the_learning(before: int, reason: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield from sentences(before, 1)
        raise reason

    with pytest.raises(type(reason)) as caught:
        train_sentencepiece(texts(), TokenizerConfig(), vocab_size=VOCABULARY, seed=1)
    assert caught.value is reason


def test_joint_pieces_are_of_both_sides_and_separate_ones_of_each() -> None:
    sources, targets = sentences(99, 1), [sentence.upper() for sentence in sentences(99, 2)]
    config = TokenizerConfig(vocab_size=VOCABULARY + 20)
    joint = train_tokenizer(sources, targets, config, append_source_eos=True, seed=1)
    assert joint.is_joint
    assert joint.source is joint.target
    config = TokenizerConfig(joint=False, vocab_size=300, target_vocab_size=310)
    apart = train_tokenizer(sources, targets, config, append_source_eos=False, seed=1)
    assert (apart.is_joint, len(apart.source), len(apart.target)) == (False, 300, 310)
    assert len(apart.target.encode("BALA")) < len(apart.source.encode("BALA"))  # which spells it in bytes: one each, and a mark
    assert len(apart.source.encode("BALA")) == 5
    assert joint.encode_source("bala") == [*joint.source.encode("bala"), END_ID]
    assert apart.encode_source("bala") == apart.source.encode("bala")
    assert joint.encode_target("BALA") == joint.target.encode("BALA")


# --- the encoded corpus -----------------------------------------------------------------------------------------------

Rows = list[tuple[list[int], list[int], int]]


def write_rows(path: Path, batches: Sequence[Rows], *, vocabulary: int = 100) -> int:
    """A file of encoded pairs (source, target, number), as many record batches as there are lists of them."""
    schema = build_pair_schema(vocabulary)
    columns = (([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]) for rows in batches)
    return write_batches(path, (build_pair_batch(*sides, schema) for sides in columns), schema)


def files_of_rows(largest: int) -> st.SearchStrategy[list[list[Rows]]]:
    """Files of record batches of pairs whose ids go up to `largest`."""
    ids = st.lists(st.integers(0, largest), max_size=6)
    row = st.tuples(ids, ids, st.integers(0, 2**40))
    return st.lists(st.lists(st.lists(row, max_size=12), max_size=4), max_size=3)


@pytest.mark.parametrize("vocabulary", [2**16, 2**31])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_corpus_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, vocabulary: int, data: st.DataObject
) -> None:
    """Whatever the number of files and of record batches in them, empty ones included."""
    files = data.draw(files_of_rows(vocabulary - 1))
    paths = [tmp_path_factory.getbasetemp() / f"round-trip-{number:05d}.arrow" for number in range(len(files))]
    for path, batches in zip(paths, files, strict=True):
        assert write_rows(path, batches, vocabulary=vocabulary) == sum(map(len, batches))
    rows = [row for batches in files for batch in batches for row in batch]
    corpus = Corpus(paths)
    assert len(corpus) == len(rows)
    assert [(corpus.source(i).tolist(), corpus.target(i).tolist(), corpus.pair_number(i)) for i in range(len(corpus))] == rows
    sources, targets = corpus.lengths()
    assert sources.tolist() == [len(source) for source, _, _ in rows]
    assert targets.tolist() == [len(target) + 1 for _, target, _ in rows]  # with the end token


def test_ids_take_two_bytes_where_the_vocabulary_allows() -> None:
    assert build_pair_schema(2**16).field("source").type.value_type == pa.uint16()
    assert build_pair_schema(2**16 + 1).field("source").type.value_type == pa.int32()


def test_any_arrow_reader_opens_a_corpus(tmp_path: Path) -> None:
    path = get_pair_file(tmp_path, "a", 0)
    write_rows(path, [[([5, END_ID], [6], 1)], [([7, END_ID], [], 3), ([8, END_ID], [9], 4)]])
    with pa.ipc.open_file(path) as reader:
        table = reader.read_all().to_pydict()
    assert table == {"source": [[5, 3], [7, 3], [8, 3]], "target": [[6], [], [9]], "number": [1, 3, 4]}
    write_lengths(get_lengths_file(tmp_path, "a"), Corpus([path]))
    with pa.ipc.open_file(get_lengths_file(tmp_path, "a")) as reader:
        table = reader.read_all().to_pydict()
    assert table == {"source": [2, 2], "target": [1, 2], "pairs": [[1], [0, 2]]}


def test_the_files_of_one_corpus_are_those_of_its_name(tmp_path: Path) -> None:
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        for part in (0, 1):
            get_pair_file(tmp_path, name, part).touch()
        get_lengths_file(tmp_path, name).touch()
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        assert list_pair_files(tmp_path, name) == [tmp_path / f"{name}-00000.arrow", tmp_path / f"{name}-00001.arrow"]
    assert list_pair_files(tmp_path, "a") == []


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"

    def refused() -> str:
        line = told(lambda: Corpus([path]))
        assert line.startswith(f"{path}: ")
        return line

    refused()
    path.mkdir()
    refused()
    path.rmdir()
    for contents in (b"", b"plain text\n" * 99, b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"\xff" * 200 + b"ARROW1"):
        path.write_bytes(contents)
        refused()
    write_rows(path, [[([5, 6, 3], [7, 8], number) for number in range(50)]])
    whole = path.read_bytes()
    for length in range(0, len(whole), 11):
        path.write_bytes(whole[:length])
        refused()
    other = pa.schema([("source", pa.list_(pa.int64())), ("target", pa.list_(pa.int32())), ("number", pa.int64())])
    for schema, columns in ((pa.schema([("a", pa.int32())]), [[1]]), (other, [[[1]], [[1]], [1]])):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        assert "not a prepared corpus" in refused()


# --- batches ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(4, 99), max_size=5), min_size=1, max_size=5),
    first=st.sampled_from([None, BEGIN_ID, PADDING_ID]),
    last=st.sampled_from([None, END_ID]),
    kind=st.sampled_from([None, np.uint16, np.int32]),
)
def test_rows_are_padded_on_the_right(rows: list[list[int]], first: int | None, last: int | None, kind: type | None) -> None:
    framed = [[*([] if first is None else [first]), *row, *([] if last is None else [last])] for row in rows]
    width = max(map(len, framed))
    expected = [row + [PADDING_ID] * (width - len(row)) for row in framed]
    padded = pad_sequences(rows if kind is None else [np.array(row, kind) for row in rows], prefix_id=first, suffix_id=last)
    assert padded.dtype == torch.int64
    assert padded.tolist() == expected


def test_the_decoder_reads_the_target_shifted_by_one() -> None:
    batch = collate([[5, 6, 3], [7, 3]], [[8], [9, 10, 11]], start_id=BEGIN_ID)
    assert batch.source_BS.tolist() == [[5, 6, 3], [7, 3, 0]]
    assert batch.inputs_BT.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.targets_BT.tolist() == [[8, 3, 0, 0], [9, 10, 11, 3]]
    assert batch.num_target_tokens == 6
    assert batch.to(torch.device("cpu")).targets_BT.tolist() == batch.targets_BT.tolist()


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
def test_validation_reads_each_pair_once_from_short_to_long(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]], batch_tokens: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "validation-00000.arrow"
    write_rows(path, [[([5] * source, [6] * target, 1) for source, target in lengths]])
    seen: Counter[tuple[int, int]] = Counter()
    before = 0
    for batch in iter_batches_by_length(Corpus([path]), batch_tokens=batch_tokens, start_id=BEGIN_ID):
        rows = list(zip(batch.source_BS.count_nonzero(1).tolist(), batch.targets_BT.count_nonzero(1).tolist(), strict=True))
        longest = max(map(max, rows))
        assert longest * len(rows) <= batch_tokens or len(rows) == 1
        assert min(map(max, rows)) >= before
        before = longest
        seen += Counter(rows)
    assert seen == Counter((source, target + 1) for source, target in lengths)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no Multi30k in {MULTI30K}")
def test_little_of_a_multi30k_batch_is_padding(tmp_path: Path) -> None:
    """At 25,000 tokens a batch there are only 20, each a twentieth of all lengths, so this is the hard end."""
    texts = [list(read_lines(MULTI30K / f"train.{language}.gz")) for language in ("en", "de")]
    config = TokenizerConfig(vocab_size=10_000, normalization="identity")
    tokeniser = train_tokenizer(texts[0], texts[1], config, append_source_eos=True, seed=1)
    sources, targets = (side.encode_batch(text) for side, text in zip((tokeniser.source, tokeniser.target), texts, strict=True))
    assert len(sources) == 29_000
    rows = [([*source, END_ID], target, 1) for source, target in zip(sources, targets, strict=True)]
    write_rows(get_pair_file(tmp_path, "a", 0), [rows], vocabulary=10_000)
    corpus = Corpus(list_pair_files(tmp_path, "a"))
    write_lengths(get_lengths_file(tmp_path, "a"), corpus)
    order = BatchSampler([LengthTable(get_lengths_file(tmp_path, "a"))], Mixture.single_pass(), batch_tokens=25_000, seed=1)
    source, target = corpus.lengths()
    longest = np.maximum(source, target)
    batches = [order.get_batch(0, number).pair_indices for number in range(len(order.plan_epoch(0)))]
    counted = sum(len(batch) * int(longest[batch].max()) for batch in batches)
    assert 1 - longest.sum() / counted < 0.05  # what the budget counts: the longer side of each pair
    padded = sum(len(batch) * (int(source[batch].max()) + int(target[batch].max())) for batch in batches)
    assert 1 - (source.sum() + target.sum()) / padded < 0.10  # both sides: what the model is given
