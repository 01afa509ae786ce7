"""Tests from text files to batches: lines, pairs, tokenizers, the encoded corpus, and batches."""

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


def zstd(content: bytes) -> bytes:
    return cast(bytes, pa.compress(content, codec="zstd", asbytes=True))


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}
ARCHIVES = [suffix for suffix in COMPRESSORS if suffix]
NUMBERED_LINES = "".join(f"line {number}\n" for number in range(1, 2001)).encode()


def error_message(action: Callable[[], object], error_type: type[DragomanError] = DataError) -> str:
    """Return the message of the error that `action` raises, which must be one printable line."""
    with pytest.raises(error_type) as caught:
        action()
    message = str(caught.value)
    assert message.isprintable(), message
    return message


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    ("content", "lines"),
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
def test_lines_end_only_with_line_feed(tmp_path: Path, suffix: str, content: bytes, lines: list[str]) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](content))
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    ("content", "location"),
    [
        (b"ok\nab\xffc\n", "line 2: not UTF-8 (byte 0xff at column 3)"),
        ("ää".encode() + b"\x80\n", "line 1: not UTF-8 (byte 0x80 at column 5)"),  # a column counts bytes
        (b"a\nb\n\xe2\x82", "line 3: not UTF-8 (byte 0xe2 at column 1)"),
        (b"a\n\xed\xa0\x80\n", "line 2: not UTF-8 (byte 0xed at column 1)"),  # a surrogate
        ("a".encode("utf-16"), "line 1: not UTF-8 (byte 0xff at column 1)"),
    ],
)
def test_invalid_bytes_are_named_with_location(tmp_path: Path, suffix: str, content: bytes, location: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](content))
    assert error_message(lambda: list(read_lines(path))) == f"{path}, {location}"


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_archive_of_several_parts_is_read_completely(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"a\nb") + COMPRESSORS[suffix](b"c\n") + COMPRESSORS[suffix](NUMBERED_LINES))
    assert list(read_lines(path)) == ["a", "bc", *NUMBERED_LINES.decode().splitlines()]


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_truncated_archive_raises(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    compressed = COMPRESSORS[suffix](NUMBERED_LINES)
    draw = random.Random(suffix)
    for length in [
        1,
        2,
        10,
        len(compressed) - 1,
        len(compressed) - 4,
        *(draw.randrange(1, len(compressed)) for _ in range(40)),
    ]:
        path.write_bytes(compressed[:length])
        message = error_message(lambda: list(read_lines(path)))
        assert re.match(rf"{re.escape(str(path))}: (damaged after line \d+|cannot be read): .", message), message


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])  # these have checksums; a .zst file may have none
def test_damaged_archive_raises_or_reads_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    compressed = COMPRESSORS[suffix](NUMBERED_LINES)
    draw = random.Random(suffix)
    num_errors = 0
    for _ in range(60):
        changed = bytearray(compressed)
        changed[draw.randrange(10, len(compressed))] ^= 1 << draw.randrange(
            8
        )  # gzip's header of 10 bytes holds time and system
        path.write_bytes(changed)
        try:
            assert list(read_lines(path)) == NUMBERED_LINES.decode().splitlines()
        except DataError:
            num_errors += 1
    assert num_errors > 50


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_plain_text_is_no_archive(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"plain text\n")
    assert error_message(lambda: list(read_lines(path))).startswith(f"{path}: cannot be read: ")


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_unreadable_path_raises(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{suffix}"
    assert error_message(lambda: list(read_lines(path))) == f"{path}: there is no such file"
    path.mkdir()
    assert error_message(lambda: list(read_lines(path))) == f"{path}: is a folder; give a file"
    below = tmp_path / "file" / f"a{suffix}"
    below.parent.touch()
    assert error_message(lambda: list(read_lines(below))) == f"{below}: cannot be read: Not a directory"

    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dragoman.formats.text.open_bytes", closed)
    assert error_message(lambda: list(read_lines(path))) == f"{path}: no permission to read it"


def test_standard_input_is_read_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\r\nb\u2028".encode()), encoding="ascii"))
    assert list(read_lines(None)) == ["ä", "b\u2028"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff"), encoding="latin-1"))
    assert error_message(lambda: list(read_lines(None))) == "standard input, line 2: not UTF-8 (byte 0xff at column 1)"


# --- pairs ------------------------------------------------------------------------------------------------------------


def write_file(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes(
        COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""]("".join(f"{line}\n" for line in lines).encode())
    )
    return path


def test_aligned_files_give_located_pairs(tmp_path: Path) -> None:
    source, target = (
        write_file(tmp_path / "a.en", ["one", "", "three\tx"]),
        write_file(tmp_path / "a.de.gz", ["eins", "zwei", ""]),
    )
    pairs = [
        Pair("one", "eins", f"{source}:1"),
        Pair("", "zwei", f"{source}:2"),
        Pair("three\tx", "", f"{source}:3"),
    ]
    assert list(read_aligned(source, target)) == pairs
    corpus = CorpusConfig(source="a.en", target="a.de.gz")
    assert list_corpus_files(corpus, tmp_path) == [source, target]
    assert list(read_pairs(corpus, tmp_path)) == pairs


@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ""), ("", ".zst"), (".xz", ".bz2")])
@pytest.mark.parametrize("counts", [(5, 3), (3, 5), (4, 5), (5, 0), (0, 1)])
def test_unequal_files_error_names_both_counts(tmp_path: Path, counts: tuple[int, int], suffixes: tuple[str, str]) -> None:
    source, target = (
        write_file(tmp_path / f"{name}{suffix}", ["x"] * count)
        for name, count, suffix in zip(("s", "t"), counts, suffixes, strict=True)
    )
    (short_count, short_path), (long_count, long_path) = sorted(zip(counts, (source, target), strict=True))
    pairs: list[Pair] = []
    with pytest.raises(DataError) as caught:
        pairs.extend(read_aligned(source, target))
    message = str(caught.value)
    assert f"{short_path} has {short_count} lines" in message
    assert f"{long_path} has {long_count}" in message
    assert len(pairs) == short_count


def test_two_columns_are_a_pair(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", ["one\teins", "\t"])
    assert list(read_tsv(path)) == [Pair("one", "eins", f"{path}:1"), Pair("", "", f"{path}:2")]
    assert list(read_pairs(CorpusConfig(file="a.tsv", format="tsv"), tmp_path)) == list(read_tsv(path))


@pytest.mark.parametrize(("line", "fields"), [("one", 1), ("", 1), ("one\teins\t0.9", 3), ("a\tb\tc\td", 4)])
def test_other_number_of_columns_raises(tmp_path: Path, line: str, fields: int) -> None:
    path = write_file(tmp_path / "a.tsv", ["one\teins", line])
    expected = f"{path}, line 2: {fields} tab-separated columns; expected 2, source and target"
    assert error_message(lambda: list(read_tsv(path))) == expected


# --- tokenizers -------------------------------------------------------------------------------------------------------

# A small language: each word has two consonants and two vowels, which give some 290 pieces.
WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]
VOCAB_SIZE = 300


def random_sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


@cache
def get_tokenizer(model_type: str = "bpe", **settings: Any) -> SentencePieceTokenizer:
    config = TokenizerConfig(model_type=model_type, normalization="identity", **settings)  # type: ignore[arg-type]
    return train_sentencepiece(random_sentences(400, 1), config, vocab_size=VOCAB_SIZE, seed=1)


LINES = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@settings(max_examples=300, deadline=None)
@given(text=st.one_of(LINES, st.lists(st.sampled_from([*WORDS[:20], " ", "  ", "<s>", "<0x41>", "é", "😀"])).map("".join)))
def test_pieces_spell_the_text_except_spaces(model_type: str, text: str) -> None:
    """Byte fallback without normalization changes only spaces."""
    model = get_tokenizer(model_type)
    ids = model.encode(text)
    assert model.decode(ids) == re.sub(" +", " ", text).strip(" ")
    assert not {PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID} & set(ids)
    assert all(index < VOCAB_SIZE for index in ids)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_encode_batch_matches_encode(texts: list[str]) -> None:
    model = get_tokenizer()
    assert model.encode_batch(texts) == [model.encode(text) for text in texts]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_any_ids_decode_to_one_line(ids: list[int]) -> None:
    text = get_tokenizer().decode(ids)
    assert not {"\r", "\n"} & set(text)
    text.encode()


def test_line_break_and_metaspace_become_spaces() -> None:
    model = get_tokenizer()
    for text, back in {"bala\nbala": "bala bala", "bala\r\nbala": "bala  bala", "\n": " ", "bala▁bala": "bala bala"}.items():
        assert model.decode(model.encode(text)) == back


def test_special_pieces_have_fixed_ids() -> None:
    model = get_tokenizer()
    assert (PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID) == (0, 1, 2, 3)
    assert model.ids_to_pieces([0, 1, 2, 3, 4, 259]) == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>", "<0xFF>"]
    assert len(model) == VOCAB_SIZE
    assert model.decode([BEGIN_ID, *model.encode("bala"), END_ID, PADDING_ID]) == "bala"


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


def test_the_same_text_gives_the_same_model() -> None:
    for model_type in ("bpe", "unigram"):
        config = TokenizerConfig(model_type=model_type, normalization="identity")
        again = train_sentencepiece(random_sentences(400, 1), config, vocab_size=VOCAB_SIZE, seed=1)
        assert again.serialized_model == get_tokenizer(model_type).serialized_model


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


def test_other_bytes_are_no_model() -> None:
    intact = get_tokenizer().serialized_model
    draw = random.Random(1)
    cut = [intact[: draw.randrange(len(intact))] for _ in range(20)]
    for model in [b"", b"\x00", intact + intact, draw.randbytes(500), *cut]:
        assert error_message(partial(SentencePieceTokenizer, model, name="a.model"), BundleError).startswith("a.model: ")


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


def test_vocab_size_error_names_the_key() -> None:
    config = TokenizerConfig(joint=False, vocab_size=VOCAB_SIZE, target_vocab_size=9)
    line = error_message(
        lambda: train_tokenizer(random_sentences(99, 1), random_sentences(99, 2), config, append_source_eos=True, seed=1),
        RecipeError,
    )
    assert line.startswith("tokenizer.target_vocab_size = 9: is too small")
    config = TokenizerConfig(joint=False, vocab_size=9)
    line = error_message(
        lambda: train_tokenizer(random_sentences(99, 1), random_sentences(99, 2), config, append_source_eos=True, seed=1),
        RecipeError,
    )
    assert line.startswith("tokenizer.vocab_size = 9: is too small")


@pytest.mark.parametrize("texts", [[], ["", " ", "\t"], ["\u00a0", "\u3000"], ["▁"], ["x" * 70_000]])
def test_text_without_training_lines_raises(texts: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        train_sentencepiece(texts, TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1)
    assert caught.value.code == "empty-data"


@pytest.mark.parametrize("before", [0, 1, 500])
@pytest.mark.parametrize("reason", [DataError("a.txt, line 9: not UTF-8"), KeyboardInterrupt(), ZeroDivisionError("ours")])
def test_training_passes_reader_errors_on(before: int, reason: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield from random_sentences(before, 1)
        raise reason

    with pytest.raises(type(reason)) as caught:
        train_sentencepiece(texts(), TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1)
    assert caught.value is reason


def test_joint_and_separate_tokenizers() -> None:
    sources, targets = random_sentences(99, 1), [sentence.upper() for sentence in random_sentences(99, 2)]
    config = TokenizerConfig(vocab_size=VOCAB_SIZE + 20)
    joint = train_tokenizer(sources, targets, config, append_source_eos=True, seed=1)
    assert joint.is_joint
    assert joint.source is joint.target
    config = TokenizerConfig(joint=False, vocab_size=300, target_vocab_size=310)
    separate = train_tokenizer(sources, targets, config, append_source_eos=False, seed=1)
    assert (separate.is_joint, len(separate.source), len(separate.target)) == (False, 300, 310)
    assert len(separate.target.encode("BALA")) < len(
        separate.source.encode("BALA")
    )  # the source spells it in bytes: one each, and a mark
    assert len(separate.source.encode("BALA")) == 5
    assert joint.encode_source("bala") == [*joint.source.encode("bala"), END_ID]
    assert separate.encode_source("bala") == separate.source.encode("bala")
    assert joint.encode_target("BALA") == joint.target.encode("BALA")


# --- the encoded corpus -----------------------------------------------------------------------------------------------

Rows = list[tuple[list[int], list[int], int]]


def write_rows(path: Path, batches: Sequence[Rows], *, vocab_size: int = 100) -> int:
    """Write a file of encoded pairs (source, target, number) with one record batch per list."""
    schema = build_pair_schema(vocab_size)
    columns = (([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]) for rows in batches)
    return write_batches(path, (build_pair_batch(*sides, schema) for sides in columns), schema)


def pair_files(largest: int) -> st.SearchStrategy[list[list[Rows]]]:
    """Return a strategy of files of record batches of pairs with ids up to `largest`."""
    ids = st.lists(st.integers(0, largest), max_size=6)
    row = st.tuples(ids, ids, st.integers(0, 2**40))
    return st.lists(st.lists(st.lists(row, max_size=12), max_size=4), max_size=3)


@pytest.mark.parametrize("vocab_size", [2**16, 2**31])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_encoded_corpus_round_trip(tmp_path_factory: pytest.TempPathFactory, vocab_size: int, data: st.DataObject) -> None:
    """Cover any number of files and record batches, including empty ones."""
    files = data.draw(pair_files(vocab_size - 1))
    paths = [tmp_path_factory.getbasetemp() / f"round-trip-{number:05d}.arrow" for number in range(len(files))]
    for path, batches in zip(paths, files, strict=True):
        assert write_rows(path, batches, vocab_size=vocab_size) == sum(map(len, batches))
    rows = [row for batches in files for batch in batches for row in batch]
    corpus = Corpus(paths)
    assert len(corpus) == len(rows)
    assert [(corpus.source(i).tolist(), corpus.target(i).tolist(), corpus.pair_number(i)) for i in range(len(corpus))] == rows
    sources, targets = corpus.lengths()
    assert sources.tolist() == [len(source) for source, _, _ in rows]
    assert targets.tolist() == [len(target) + 1 for _, target, _ in rows]  # with the end token


def test_small_vocabulary_uses_two_bytes_per_id() -> None:
    assert build_pair_schema(2**16).field("source").type.value_type == pa.uint16()
    assert build_pair_schema(2**16 + 1).field("source").type.value_type == pa.int32()


def test_pyarrow_opens_an_encoded_corpus(tmp_path: Path) -> None:
    path = get_pair_file(tmp_path, "a", 0)
    write_rows(path, [[([5, END_ID], [6], 1)], [([7, END_ID], [], 3), ([8, END_ID], [9], 4)]])
    with pa.ipc.open_file(path) as reader:
        table = reader.read_all().to_pydict()
    assert table == {"source": [[5, 3], [7, 3], [8, 3]], "target": [[6], [], [9]], "number": [1, 3, 4]}
    write_lengths(get_lengths_file(tmp_path, "a"), Corpus([path]))
    with pa.ipc.open_file(get_lengths_file(tmp_path, "a")) as reader:
        table = reader.read_all().to_pydict()
    assert table == {"source": [2, 2], "target": [1, 2], "pairs": [[1], [0, 2]]}


def test_pair_files_are_found_by_name(tmp_path: Path) -> None:
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        for part in (0, 1):
            get_pair_file(tmp_path, name, part).touch()
        get_lengths_file(tmp_path, name).touch()
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        assert list_pair_files(tmp_path, name) == [tmp_path / f"{name}-00000.arrow", tmp_path / f"{name}-00001.arrow"]
    assert list_pair_files(tmp_path, "a") == []


def test_other_files_are_no_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"

    def open_error() -> str:
        message = error_message(lambda: Corpus([path]))
        assert message.startswith(f"{path}: ")
        return message

    open_error()
    path.mkdir()
    open_error()
    path.rmdir()
    for contents in (b"", b"plain text\n" * 99, b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"\xff" * 200 + b"ARROW1"):
        path.write_bytes(contents)
        open_error()
    write_rows(path, [[([5, 6, 3], [7, 8], number) for number in range(50)]])
    intact = path.read_bytes()
    for length in range(0, len(intact), 11):
        path.write_bytes(intact[:length])
        open_error()
    wrong_schema = pa.schema([("source", pa.list_(pa.int64())), ("target", pa.list_(pa.int32())), ("number", pa.int64())])
    for schema, columns in ((pa.schema([("a", pa.int32())]), [[1]]), (wrong_schema, [[[1]], [[1]], [1]])):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        assert "holds no prepared corpus" in open_error()


# --- batches ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(4, 99), max_size=5), min_size=1, max_size=5),
    first=st.sampled_from([None, BEGIN_ID, PADDING_ID]),
    last=st.sampled_from([None, END_ID]),
    model_type=st.sampled_from([None, np.uint16, np.int32]),
)
def test_rows_are_padded_on_the_right(
    rows: list[list[int]], first: int | None, last: int | None, model_type: type | None
) -> None:
    extended = [[*([] if first is None else [first]), *row, *([] if last is None else [last])] for row in rows]
    width = max(map(len, extended))
    expected = [row + [PADDING_ID] * (width - len(row)) for row in extended]
    padded = pad_sequences(
        rows if model_type is None else [np.array(row, model_type) for row in rows], prefix_id=first, suffix_id=last
    )
    assert padded.dtype == torch.int64
    assert padded.tolist() == expected


def test_decoder_input_is_shifted_target() -> None:
    batch = collate([[5, 6, 3], [7, 3]], [[8], [9, 10, 11]], start_id=BEGIN_ID)
    assert batch.source_BS.tolist() == [[5, 6, 3], [7, 3, 0]]
    assert batch.inputs_BT.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.targets_BT.tolist() == [[8, 3, 0, 0], [9, 10, 11, 3]]
    assert batch.num_target_tokens == 6
    assert batch.to(torch.device("cpu")).targets_BT.tolist() == batch.targets_BT.tolist()


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
def test_validation_batches_ascend_in_length(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]], batch_tokens: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "validation-00000.arrow"
    write_rows(path, [[([5] * source, [6] * target, 1) for source, target in lengths]])
    read_lengths: Counter[tuple[int, int]] = Counter()
    previous_longest = 0
    for batch in iter_batches_by_length(Corpus([path]), batch_tokens=batch_tokens, start_id=BEGIN_ID):
        rows = list(zip(batch.source_BS.count_nonzero(1).tolist(), batch.targets_BT.count_nonzero(1).tolist(), strict=True))
        longest = max(map(max, rows))
        assert longest * len(rows) <= batch_tokens or len(rows) == 1
        assert min(map(max, rows)) >= previous_longest
        previous_longest = longest
        read_lengths += Counter(rows)
    assert read_lengths == Counter((source, target + 1) for source, target in lengths)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no Multi30k in {MULTI30K}")
def test_multi30k_batches_have_little_padding(tmp_path: Path) -> None:
    """A budget of 25,000 tokens gives only 20 batches, each with a twentieth of all lengths, which is a hard case."""
    texts = [list(read_lines(MULTI30K / f"train.{language}.gz")) for language in ("en", "de")]
    config = TokenizerConfig(vocab_size=10_000, normalization="identity")
    tokenizer = train_tokenizer(texts[0], texts[1], config, append_source_eos=True, seed=1)
    sources, targets = (side.encode_batch(text) for side, text in zip((tokenizer.source, tokenizer.target), texts, strict=True))
    assert len(sources) == 29_000
    rows = [([*source, END_ID], target, 1) for source, target in zip(sources, targets, strict=True)]
    write_rows(get_pair_file(tmp_path, "a", 0), [rows], vocab_size=10_000)
    corpus = Corpus(list_pair_files(tmp_path, "a"))
    write_lengths(get_lengths_file(tmp_path, "a"), corpus)
    sampler = BatchSampler([LengthTable(get_lengths_file(tmp_path, "a"))], Mixture.single_pass(), batch_tokens=25_000, seed=1)
    source, target = corpus.lengths()
    longest = np.maximum(source, target)
    batches = [sampler.get_batch(0, number).pair_indices for number in range(len(sampler.plan_epoch(0)))]
    counted = sum(len(batch) * int(longest[batch].max()) for batch in batches)
    assert 1 - longest.sum() / counted < 0.05  # the budget counts the longer side of each pair
    padded = sum(len(batch) * (int(source[batch].max()) + int(target[batch].max())) for batch in batches)
    assert 1 - (source.sum() + target.sum()) / padded < 0.10  # the model reads both sides
