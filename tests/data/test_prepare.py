"""Preparing a corpus: what came of every pair, nothing done twice, nothing lost, whenever it is stopped or broken off."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cleaning import cleaned_corpus as spool_room
from dragoman.cleaning.cleaned_corpus import FilterPipeline, clean_corpus
from dragoman.cleaning.deduplication import DuplicateFinder
from dragoman.config import CleaningConfig, CorpusConfig, Recipe, make_recipe
from dragoman.data import encoded_corpus as corpus_room
from dragoman.data import manifest as manifest_room
from dragoman.data import prepare as prepare_room
from dragoman.data.encode import PairStats
from dragoman.data.encoded_corpus import LengthTable, get_lengths_file
from dragoman.data.prepare import PreparedData, get_training_prefix, prepare
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import train_tokenizer
from dragoman.errors import (
    DataError,
    DragomanError,
    MissingDependencyError,
    OutputError,
    RecipeError,
    RunError,
    WorkerLostError,
)
from dragoman.formats.pair import Pair
from dragoman.formats.tsv import read_aligned, read_tsv
from dragoman.io.storage import lock_dir

# A small language: every word of two consonants and vowels, known to give the pieces asked for.
WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]
VOCABULARY = 300

Notice = Callable[[str], None]


def told(doing: Callable[[], object], kind: type[DragomanError] = DataError) -> str:
    """The one line with which something is refused."""
    with pytest.raises(kind) as caught:
        doing()
    line = str(caught.value)
    assert line.isprintable(), line
    return line


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


def pairs_of(count: int, seed: int) -> list[tuple[str, str]]:
    return list(zip(sentences(count, seed), sentences(count, seed + 1000), strict=True))


def written(path: Path, lines: Sequence[str]) -> Path:
    """A file that was written a minute ago."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return aged(path)


def tsv(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    return written(path, [f"{source}\t{target}" for source, target in pairs])


def aged(path: Path) -> Path:
    minute_ago = path.stat().st_mtime_ns - 60 * 10**9
    os.utime(path, ns=(minute_ago, minute_ago))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with 60 pairs to learn from, as two files, and 10 each to validate and test on."""
    folder = tmp_path / "text"
    folder.mkdir()
    written(folder / "train.en", sentences(60, 1))
    written(folder / "train.de", sentences(60, 2))
    tsv(folder / "valid.tsv", pairs_of(10, 3))
    tsv(folder / "test.tsv", pairs_of(10, 5))
    return folder


def recipe_for(text: Path, *overrides: str, **data: Any) -> Recipe:
    document = {
        "size": "tiny",
        "data": {
            "root": str(text),
            **({} if "corpora" in data else {"train": {"source": "train.en", "target": "train.de"}}),
            "valid": {"file": "valid.tsv"},
            "preprocessing_workers": 1,
            **data,
        },
        "tokenizer": {"vocab_size": VOCABULARY},
    }
    return make_recipe(document, overrides)


def prepared(text: Path, *overrides: str, notice: Notice = lambda _: None, **data: Any) -> PreparedData:
    return prepare(recipe_for(text, *overrides, **data), text.parent / "data", notice)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def nothing_else_beside(text: Path) -> bool:
    return {path.name for path in text.parent.iterdir()} <= {"text", "data"}


def numbers(result: PreparedData, name: str) -> list[int]:
    """Which of the pairs that were read are there, from 1."""
    corpus = result.corpus(name)
    return [corpus.pair_number(index) for index in range(len(corpus))]


# --- what is prepared -------------------------------------------------------------------------------------------------


def test_a_corpus_is_prepared_as_its_text_says(text: Path) -> None:
    notices: list[str] = []
    result = prepared(text, notice=notices.append)
    assert result.is_new
    assert notices == [
        f"reading train: {text / 'train.en'}, {text / 'train.de'}",
        f"reading valid: {text / 'valid.tsv'}",
        f"learning bpe pieces ({VOCABULARY})",
    ]
    for name, pairs in (
        ("train", list(read_aligned(text / "train.en", text / "train.de"))),
        ("valid", list(read_tsv(text / "valid.tsv"))),
    ):
        corpus = result.corpus(name)
        assert len(corpus) == len(pairs)
        for index, pair in enumerate(pairs):
            assert corpus.source(index).tolist() == result.tokenizer.encode_source(pair.source)
            assert corpus.target(index).tolist() == result.tokenizer.encode_target(pair.target)
            assert corpus.pair_number(index) == index + 1
        sources, targets = corpus.lengths()
        kept = len(pairs)
        assert result.pair_counts[name] == PairStats(
            read=kept, kept=kept, source_tokens=int(sources.sum()), target_tokens=int(targets.sum())
        )
        table = LengthTable(get_lengths_file(result.folder, name))
        assert sorted(table.pair_indices.tolist()) == list(range(kept))
        for row, (first, last) in enumerate(pairwise(table.starts)):
            for pair_number in table.pair_indices[first:last]:
                assert (table.source_lengths[row], table.target_lengths[row]) == (sources[pair_number], targets[pair_number])
    assert set(files(text.parent / "data")) == {
        "source.model", "train-00000.arrow", "train.lengths.arrow", "valid-00000.arrow", "valid.lengths.arrow", "prepared.json",
    }  # fmt: skip
    assert nothing_else_beside(text)


def test_prepared_files_open_with_plain_pyarrow(text: Path) -> None:
    result = prepared(text)
    with pa.ipc.open_file(result.folder / "train-00000.arrow") as reader:
        table = reader.read_all()
    assert table.schema.names == ["source", "target", "number"]
    pairs = list(read_aligned(text / "train.en", text / "train.de"))
    assert [result.tokenizer.source.decode(ids[:-1]) for ids in table["source"].to_pylist()] == [pair.source for pair in pairs]
    assert [result.tokenizer.target.decode(ids) for ids in table["target"].to_pylist()] == [pair.target for pair in pairs]
    assert table["number"].to_pylist() == list(range(1, 61))


def test_a_large_vocabulary_takes_four_bytes_an_id(tmp_path: Path) -> None:
    """74,159 characters of the blocks CJK, its extension B and Hangul, each a piece of its own, beside 261 others."""
    folder = tmp_path / "text"
    folder.mkdir()
    blocks = [(0x4E00, 0x9FFF), (0xAC00, 0xD7A0), (0x20000, 0x2A410)]
    characters = [chr(code) for first, end in blocks for code in range(first, end)]
    lines = ["".join(characters[place : place + 100]) for place in range(0, len(characters), 100)]
    tsv(folder / "train.tsv", list(zip(lines, lines[::-1], strict=True)))
    tsv(folder / "valid.tsv", [(lines[0], lines[-1])])
    settings = ["tokenizer.normalization=identity", f"tokenizer.vocab_size={len(characters) + 261}"]
    result = prepared(folder, *settings, train={"file": "train.tsv"})
    corpus = result.corpus("train")
    with pa.ipc.open_file(result.folder / "train-00000.arrow") as reader:
        assert reader.schema.field("source").type.value_type == pa.int32()
    assert max(int(corpus.source(row).max()) for row in range(len(corpus))) == len(characters) + 260
    for row, line in enumerate(lines):
        assert result.tokenizer.source.decode(corpus.source(row).tolist()) == line
        assert result.tokenizer.target.decode(corpus.target(row).tolist()) == lines[-1 - row]


def test_pairs_with_an_empty_side_are_counted_and_named(text: Path) -> None:
    """White space of any kind is empty; so is what the subword model makes nothing of: a zero-width space under NFKC."""
    lines = [*sentences(30, 1), "", " ", "\u3000", "bala", "", "", "bala", "\u200b"]
    others = [*sentences(30, 2), "mara", "mara", "mara", "  ", "", "mara", "\t", "mara"]
    source = written(text / "train.en", lines)
    written(text / "train.de", others)
    written(text / "valid.tsv", ["bala\t", "bala\tmara"])
    result = prepared(text)
    fate = result.pair_counts["train"]
    assert (fate.read, fate.kept, fate.overlong_pairs, fate.dropped) == (38, 30, 0, {"empty": 8})
    places = {f"{source}:{line}" for line in range(31, 39)}
    named = fate.dropped_examples["empty"]
    assert len(set(named)) == 5
    assert set(named) < places
    assert fate.summarize("drop") == [f"8 pairs with an empty side dropped ({', '.join(named)}, …)"]
    assert result.pair_counts["valid"].summarize("drop") == [f"1 pairs with an empty side dropped ({text / 'valid.tsv'}:1)"]
    assert numbers(result, "valid") == [2]


def overlong_pairs(text: Path, choice: str) -> tuple[PreparedData, list[Pair], list[int]]:
    """A preparation with room for 12 tokens a side; its pairs, and the lines (from 0) of those that do not fit."""
    pairs = list(read_aligned(text / "train.en", text / "train.de"))
    result = prepared(text, "data.max_length=12", f"data.overlong_pairs={choice}")
    encoder = result.tokenizer
    longest = [max(len(encoder.encode_source(pair.source)), len(encoder.encode_target(pair.target)) + 1) for pair in pairs]
    beyond = [line for line, length in enumerate(longest) if length > 12]
    assert 5 < len(beyond) < 55
    assert 12 in longest  # one that just fits
    return result, pairs, beyond


def test_over_long_pairs_are_dropped_counted_and_named(text: Path) -> None:
    result, pairs, beyond = overlong_pairs(text, "drop")
    fate = result.pair_counts["train"]
    assert (fate.read, fate.kept, fate.overlong_pairs) == (60, 60 - len(beyond), len(beyond))
    assert fate.overlong_examples == [pairs[line].origin for line in beyond[:5]]
    assert numbers(result, "train") == [line + 1 for line in range(60) if line not in beyond]
    assert fate.summarize("drop") == [
        f"{len(beyond)} pairs beyond data.max_length dropped ({', '.join(fate.overlong_examples)}, …)"
    ]
    assert result.pair_counts["valid"].overlong_pairs == 0  # what is judged on is never shortened


def test_over_long_pairs_are_truncated_counted_and_named(text: Path) -> None:
    result, pairs, beyond = overlong_pairs(text, "truncate")
    fate = result.pair_counts["train"]
    assert (fate.read, fate.kept, fate.overlong_pairs) == (60, 60, len(beyond))
    corpus = result.corpus("train")
    for line, pair in enumerate(pairs):
        assert corpus.source(line).tolist() == [*result.tokenizer.source.encode(pair.source)[:11], END_ID]
        assert corpus.target(line).tolist() == result.tokenizer.target.encode(pair.target)[:11]
    sources, targets = corpus.lengths()
    assert max(sources.max(), targets.max()) == 12
    assert "truncated" in fate.summarize("truncate")[0]


def test_an_over_long_pair_may_be_refused(text: Path) -> None:
    _, pairs, beyond = overlong_pairs(text, "drop")
    before = files(text.parent / "data")
    line = told(lambda: overlong_pairs(text, "error"))
    assert re.match(rf"{re.escape(pairs[beyond[0]].origin)}: \d+ tokens, more than data\.max_length = 12; raise it, or", line)
    assert files(text.parent / "data") == before
    assert nothing_else_beside(text)


def test_the_lines_to_learn_from_are_spread_evenly(text: Path) -> None:
    """Of 100 pairs in two corpora, 13 lines a side: one in every hundred thirteenths, so 7 or 8 pairs from one to the next."""
    corpora = {"a": pairs_of(30, 1), "b": pairs_of(70, 2)}
    for name, pairs in corpora.items():
        tsv(text / f"{name}.tsv", pairs)
    everything = [pair for pairs in corpora.values() for pair in pairs]
    chosen = [row for row in range(100) if row * 13 // 100 != (row + 1) * 13 // 100]
    assert len(chosen) == 13
    assert {after - before for before, after in pairwise(chosen)} == {7, 8}
    settings = ["tokenizer.vocab_size=290", "tokenizer.train_sentences=26"]
    mixture = {name: {"file": f"{name}.tsv"} for name in corpora}
    result = prepared(text, *settings, corpora=mixture)
    config = recipe_for(text, *settings, corpora=mixture).tokenizer
    sources, targets = ([everything[row][side] for row in chosen] for side in (0, 1))
    expected = train_tokenizer(sources, targets, config, append_source_eos=True, seed=1)
    assert result.tokenizer.source.serialized_model == expected.source.serialized_model
    whole = prepared(text, "tokenizer.vocab_size=290", "tokenizer.train_sentences=200", corpora=mixture)
    sources, targets = ([pair[side] for pair in everything] for side in (0, 1))
    expected = train_tokenizer(sources, targets, config, append_source_eos=True, seed=1)
    assert whole.tokenizer.source.serialized_model == expected.source.serialized_model


@pytest.mark.parametrize("joint", [True, False])
def test_a_subword_model_may_be_given(text: Path, joint: bool) -> None:
    one, other = (
        train_sentencepiece(sentences(300, seed), SUBWORD, vocab_size=280 + seed, seed=1).serialized_model for seed in (7, 8)
    )
    (text / "one.model").write_bytes(one)
    (text / "other.model").write_bytes(other)
    settings = ["tokenizer.model_file=one.model", f"tokenizer.joint={str(joint).lower()}", "model.tie_embeddings=decoder"]
    settings += [] if joint else ["tokenizer.target_model_file=other.model"]
    notices: list[str] = []
    result = prepared(text, *settings, notice=notices.append)
    assert not any("learning" in notice for notice in notices)
    assert (result.tokenizer.source.serialized_model, result.tokenizer.target.serialized_model) == (
        one,
        one if joint else other,
    )
    assert not prepared(text, *settings).is_new
    (text / "one.model").write_bytes(other)
    again = prepared(text, *settings)
    assert again.is_new
    assert again.tokenizer.source.serialized_model == other
    (text / "one.model").unlink()
    line = told(lambda: prepared(text, *settings))
    assert line.startswith(f"{text / 'one.model'}: cannot be read: No such file")


SUBWORD = make_recipe({}).tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_model_that_is_to_be_sampled_from_is_sent_to_processes(
    text: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_room, "CHUNK", 5)
    config = SUBWORD.model_copy(update={"model_type": kind})
    (text / "given.model").write_bytes(train_sentencepiece(sentences(300, 7), config, vocab_size=290, seed=1).serialized_model)
    settings = [
        "tokenizer.model_file=given.model",
        "tokenizer.sampling_alpha=0.2",
        f"tokenizer.model_type={kind}",
        "data.cleaning.source_equals_target=true",
    ]
    alone = files(prepared(text, *settings).folder)
    shutil.rmtree(text.parent / "data")
    assert files(prepared(text, *settings, "data.preprocessing_workers=2").folder) == alone


# --- mixtures ---------------------------------------------------------------------------------------------------------

NAMES = ["valid-like", "train", "text", "a", "a-00000", "lengths", "duplicate-pair"]


def test_corpora_may_be_called_anything_that_a_recipe_allows(text: Path) -> None:
    for seed, name in enumerate(NAMES):
        tsv(text / f"{name}.tsv", pairs_of(10 + seed, seed))
    corpora = {name: {"file": f"{name}.tsv"} for name in NAMES}
    result = prepared(text, "data.cleaning.duplicate_pairs=true", corpora=corpora)
    assert list(result.pair_counts) == [*NAMES, "valid"]
    for seed, name in enumerate(NAMES):
        corpus = result.corpus(name)
        pairs = pairs_of(10 + seed, seed)
        assert [corpus.target(row).tolist() for row in range(len(corpus))] == [
            result.tokenizer.encode_target(target) for _, target in pairs
        ]
        assert len(LengthTable(get_lengths_file(result.folder, get_training_prefix(name)))) == len(pairs)
    assert result.pair_counts["valid"].kept == 10
    assert not prepared(text, "data.cleaning.duplicate_pairs=true", corpora=corpora).is_new


def test_a_mixture_is_cleaned_across_its_corpora(text: Path) -> None:
    """Of pairs that stand in several corpora, the first in the recipe's order stays; who is exempt keeps its own."""
    shared, once = pairs_of(5, 1), pairs_of(20, 2)
    shared_source = [(source, "gola") for source, _ in once[:4]]
    tsv(text / "first.tsv", [*once[:10], *shared, shared[0]])
    tsv(text / "second.tsv", [*shared, *once[10:], *shared_source, ("baba", "baba")])
    tsv(text / "third.tsv", [*shared, ("dana", "dana"), *pairs_of(5, 9)])
    corpora: dict[str, Any] = {name: {"file": f"{name}.tsv"} for name in ("first", "second", "third")}
    corpora["third"]["skip_filters"] = ["duplicate-pair", "source-equals-target", "duplicate-source"]
    rules = ["duplicate_pairs", "duplicate_sources", "source_equals_target"]
    result = prepared(text, *(f"data.cleaning.{rule}=true" for rule in rules), corpora=corpora)
    fates = result.pair_counts
    assert numbers(result, "first") == list(range(1, 16))
    assert numbers(result, "second") == list(range(6, 16))
    assert numbers(result, "third") == list(range(1, 12))
    assert fates["first"].dropped == {"duplicate-pair": 1}
    assert fates["first"].dropped_examples == {"duplicate-pair": [f"{text / 'first.tsv'}:16"]}
    assert fates["second"].dropped == {"source-equals-target": 1, "duplicate-pair": 5, "duplicate-source": 4}
    assert fates["third"].dropped == {}
    page = (result.folder / "cleaning.html").read_text(encoding="utf-8")
    assert "An equal pair came before." in page
    assert "baba" in page
    assert not prepared(text, *(f"data.cleaning.{rule}=true" for rule in rules), corpora=corpora).is_new
    assert "cleaning.html" not in files(prepared(text, corpora=corpora).folder)


@pytest.mark.parametrize("rule", ["script", "language"])
def test_a_rule_that_is_set_to_0_is_a_rule(text: Path, rule: str) -> None:
    """The corpus is exempt, so that nothing depends on what the rule makes of a language that is none."""
    train = {"source": "train.en", "target": "train.de", "skip_filters": [rule]}
    languages = ["task.source_language=en", "task.target_language=de"]
    result = prepared(text, f"data.cleaning.{rule}=0.0", *languages, train=train)
    assert "cleaning.html" in files(result.folder)
    assert "cleaning.html" not in files(prepared(text, *languages, train=train).folder)


@pytest.mark.parametrize("spread_over", ["both", "valid", "test"])
def test_what_is_judged_on_is_kept_out_of_training(text: Path, spread_over: str) -> None:
    valid, test = pairs_of(10, 3), pairs_of(10, 5)
    tsv(text / "train.tsv", [*pairs_of(20, 1), (valid[3][0].upper() + "!", "mara"), ("mara", test[4][1]), ("bala", "mala")])
    judged = {"valid": {"file": "valid.tsv"}, "test": {"file": "test.tsv"}}
    data: dict[str, Any] = {name: corpus if spread_over in ("both", name) else None for name, corpus in judged.items()}
    result = prepared(text, "data.cleaning.eval_overlap=true", train={"file": "train.tsv"}, **data)
    gone = {"both": [21, 22], "valid": [21], "test": [22]}[spread_over]
    assert numbers(result, "train") == [number for number in range(1, 24) if number not in gone]
    assert result.pair_counts["train"].dropped == {"eval-overlap": len(gone)}


@pytest.mark.parametrize("overlong_pairs", ["drop", "truncate"])
def test_what_became_of_the_pairs_adds_up(text: Path, overlong_pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_room, "CHUNK", 10)
    monkeypatch.setattr(spool_room, "PART", 30)
    draw = random.Random(1)
    odd = [
        ("", "mara"),
        ("bala", "  "),
        ("mara", "\u200b"),
        ("kala", "kala"),
        ("bala " * 30, "mara " * 30),
        ("bala", "mara " * 9),
    ]
    for name, size in (("a", 95), ("b", 60)):
        tsv(text / f"{name}.tsv", [draw.choice(odd) if draw.random() < 0.4 else pair for pair in pairs_of(size, size)])
    corpora = {name: {"file": f"{name}.tsv"} for name in "ab"}
    rules = ["identical=true", "duplicate_pairs=true", "max_ratio=4.0"]
    settings = [f"data.overlong_pairs={overlong_pairs}", "data.max_length=30", *(f"data.cleaning.{rule}" for rule in rules)]
    result = prepared(text, *settings, corpora=corpora)
    told = json.loads((result.folder / "prepared.json").read_bytes())["fates"]
    assert told == {name: asdict(fate) for name, fate in result.pair_counts.items()}
    for name, size in (("a", 95), ("b", 60), ("valid", 10)):
        fate, corpus = result.pair_counts[name], result.corpus(name)
        gone = sum(fate.dropped.values()) + (fate.overlong_pairs if overlong_pairs == "drop" else 0)
        assert fate.read == size == fate.kept + gone
        assert len(corpus) == fate.kept
        sources, targets = corpus.lengths()
        assert (sources.sum(), targets.sum()) == (fate.source_tokens, fate.target_tokens)
        assert numbers(result, name) == sorted(set(numbers(result, name)))
    assert result.pair_counts["a"].overlong_pairs > 0
    assert set(result.pair_counts["a"].dropped) == {"empty", "source-equals-target", "duplicate-pair", "ratio"}


@pytest.mark.parametrize("size", [1, 10, 19, 20, 21, 40])
def test_parts_may_end_anywhere(text: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of exactly so many parts, of a part without a pair that stays, of one pair."""
    monkeypatch.setattr(spool_room, "CHUNK", 5)
    monkeypatch.setattr(spool_room, "PART", 10)
    pairs = pairs_of(size, 3)
    emptied = [("", "") if 10 <= row < 20 else pair for row, pair in enumerate(pairs)]
    tsv(text / "more.tsv", emptied)
    tsv(text / "some.tsv", pairs_of(60, 1))
    result = prepared(text, corpora={"some": {"file": "some.tsv"}, "more": {"file": "more.tsv"}})
    assert numbers(result, "more") == [row + 1 for row in range(size) if not 10 <= row < 20]
    corpus = result.corpus("more")
    expected = [result.tokenizer.encode_source(source) for source, _ in emptied if source]
    assert [corpus.source(row).tolist() for row in range(len(corpus))] == expected
    assert sorted(LengthTable(get_lengths_file(result.folder, "train.more")).pair_indices.tolist()) == list(
        range(len(expected))
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40), st.integers(1, 8), st.integers(0, 60))
def test_a_chunk_ends_at_so_many_pairs_or_so_many_characters(lengths: list[tuple[int, int]], most: int, room: int) -> None:
    pairs = [Pair("a" * source, "b" * target, str(number)) for number, (source, target) in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_room, "CHUNK", most)
        patch.setattr(spool_room, "CHUNK_CHARACTERS", room)
        chunks = list(spool_room._split_into_chunks(iter(pairs), start_number=7))
    assert [pair for _, chunk in chunks for pair in chunk] == pairs
    sizes = [[len(pair.source) + len(pair.target) for pair in chunk] for _, chunk in chunks]
    assert [first for first, _ in chunks] == [7 + sum(map(len, sizes[:number])) for number in range(len(sizes))]
    assert all(len(chunk) <= most and sum(chunk[:-1]) <= room for chunk in sizes)
    assert all(len(chunk) == most or sum(chunk) > room for chunk in sizes[:-1])


def test_long_lines_take_no_more_memory_than_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 16,384 pairs would hold all 3,000 here, 6 MB of letters; of so many characters, it holds some 60 KB."""
    monkeypatch.setattr(spool_room, "CHUNK_CHARACTERS", 2**16)
    written(tmp_path / "long.tsv", [f"{number:01000}\t{number:01000}" for number in range(3_000)])
    corpus, sieve = CorpusConfig.model_validate({"file": "long.tsv"}), FilterPipeline(CleaningConfig())
    tracemalloc.start()
    try:
        spool = clean_corpus(tmp_path, "long", corpus, tmp_path, sieve, processes=1, on_progress=lambda *_: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert [(pair.source, pair.target) for pair in spool.iter_pairs()] == [(f"{number:01000}",) * 2 for number in range(3_000)]


def chunked(text: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    """Settings of a mixture of three corpora that has something of everything, in small parts."""
    monkeypatch.setattr(spool_room, "CHUNK", 8)
    monkeypatch.setattr(spool_room, "PART", 16)
    shared = pairs_of(6, 77)
    tsv(text / "one-and-all.tsv", [*pairs_of(30, 1), *shared, ("", "mara"), ("bala", "bala"), *shared])
    written(text / "two.en", sentences(16, 4))
    written(text / "two.de", sentences(16, 5))
    tsv(text / "three.tsv", [*shared, *pairs_of(9, 6), ("bala " * 30, "mara " * 30)])
    corpora = {
        "one": {"file": "one-and-all.tsv"},
        "two": {"source": "two.en", "target": "two.de"},
        "three": {"file": "three.tsv", "skip_filters": ["source-equals-target"]},
    }
    settings = ["data.cleaning.duplicate_pairs=true", "data.cleaning.source_equals_target=true", "data.max_length=100"]
    return settings, {"corpora": corpora}


@pytest.mark.slow
def test_the_number_of_processes_changes_no_byte(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    alone = files(prepared(text, *settings, **data).folder)
    shutil.rmtree(text.parent / "data")
    assert files(prepared(text, *settings, **data | {"preprocessing_workers": 2}).folder) == alone


# --- nothing is done twice --------------------------------------------------------------------------------------------


def test_there_is_nothing_to_do_the_second_time(text: Path) -> None:
    first = prepared(text)
    before = files(text.parent / "data")
    notices: list[str] = []
    second = prepared(text, notice=notices.append)
    assert (second.is_new, notices) == (False, [])
    assert files(text.parent / "data") == before
    assert second.pair_counts == first.pair_counts
    assert second.tokenizer.source.serialized_model == first.tokenizer.source.serialized_model
    assert second.tokenizer.is_joint
    corpora = [one.corpus("train") for one in (first, second)]
    assert [corpora[1].source(row).tolist() for row in range(60)] == [corpora[0].source(row).tolist() for row in range(60)]


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read to the end to compare them."""
    seen: list[str] = []
    digest = manifest_room._hash_file

    def watched(path: Path) -> str:
        seen.append(path.name)
        return digest(path)

    monkeypatch.setattr(manifest_room, "_file_digest", watched)
    return seen


INPUTS = {"train.en", "train.de", "valid.tsv"}


def test_inputs_are_read_again_only_where_size_or_time_changed(text: Path, digested: list[str]) -> None:
    prepared(text)
    assert set(digested) > INPUTS
    digested.clear()
    assert not prepared(text).is_new
    assert not INPUTS & set(digested)
    os.utime(text / "train.en")  # touched, and no more than that
    digested.clear()
    assert not prepared(text).is_new
    assert INPUTS & set(digested) == {"train.en"}
    written(text / "train.en", sentences(61, 1)[1:])
    digested.clear()
    assert prepared(text).is_new
    assert INPUTS & set(digested) == {"train.en"}


def test_a_file_that_was_only_touched_is_read_once_more_and_then_not_again(text: Path, digested: list[str]) -> None:
    prepared(text)
    aged(text / "train.en")  # another time, and the same bytes
    for read_again in ({"train.en"}, set[str](), set[str]()):
        digested.clear()
        assert not prepared(text).is_new
        assert INPUTS & set(digested) == read_again


def test_a_file_rewritten_at_once_is_noticed_though_size_and_time_are_the_same(text: Path, digested: list[str]) -> None:
    """Time stamps are as coarse as two seconds on some disks."""
    path = text / "train.en"
    lines = sentences(60, 1)
    path.write_text("".join(f"{line}\n" for line in lines))
    before = path.stat()
    prepared(text)
    path.write_text("".join(f"{line}\n" for line in [*lines[1:], lines[0]]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    second = prepared(text)
    assert second.is_new
    assert second.corpus("train").source(59).tolist() == second.tokenizer.encode_source(lines[0])
    # When it has grown old, it is read once more to be sure, and then no more.
    aged(path)
    for read_again in ({"train.en"}, set[str]()):
        digested.clear()
        assert not prepared(text).is_new
        assert INPUTS & set(digested) == read_again


CHANGES = [
    "data.max_length=255",
    "data.overlong_pairs=truncate",
    "data.overlong_pairs=error",
    "data.cleaning.source_equals_target=true",
    "data.cleaning.max_words=3",
    "data.cleaning.eval_overlap=true",
    "data.valid={file='test.tsv'}",
    "data.valid={file='valid.tsv', fields=['2', '1']}",
    "data.train={source='train.de', target='train.en'}",
    "data.train={source=['train.en', 'train.de'], target=['train.de', 'train.en']}",
    "task.source_language=en",
    "task.target_language=de",
    "training.seed=2",
    "tokenizer.vocab_size=299",
    "tokenizer.model_type=unigram",
    "tokenizer.byte_fallback=false",
    "tokenizer.character_coverage=0.99",
    "tokenizer.normalization=identity",
    "tokenizer.lowercase=true",
    "tokenizer.split_digits=true",
    "tokenizer.joint=false",
    "tokenizer.train_sentences=50",
    "model.append_source_eos=false",
]


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_changed_are_noticed(text: Path, change: str) -> None:
    more = ["model.tie_embeddings=decoder"]
    prepared(text, *more)
    before = files(text.parent / "data")
    assert prepared(text, *more, change).is_new
    assert not prepared(text, *more, change).is_new
    assert prepared(text, *more).is_new
    assert files(text.parent / "data") == before


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "training.max_steps=3",
        "training.batch_tokens=5000",
        "decoding.beam_size=9",
        "model.d_ff=8",
        "data.test={file='none.tsv'}",
        "data.preprocessing_workers=2",
        "data.num_workers=3",
        "data.noise.typos=0.5",
        "tokenizer.sampling_alpha=0.1",
    ],
)
def test_settings_that_make_no_other_corpus_change_nothing(text: Path, change: str) -> None:
    prepared(text)
    assert not prepared(text, change).is_new


def test_how_corpora_are_mixed_makes_no_other_corpora(text: Path) -> None:
    for name in "ab":
        tsv(text / f"{name}.tsv", pairs_of(30, ord(name)))
    plain: dict[str, Any] = {name: {"file": f"{name}.tsv"} for name in "ab"}
    weighted = {name: {**corpus, "weight": weight} for weight, (name, corpus) in zip((3.0, 1.0), plain.items(), strict=True)}
    stages = [{"end_epoch": 2, "weights": {"a": 1.0}}, {}]
    assert prepared(text, corpora=plain).is_new
    assert not prepared(text, corpora=weighted).is_new
    assert not prepared(text, corpora=plain, temperature=3.0).is_new
    assert not prepared(text, corpora=plain, stages=stages).is_new
    assert prepared(
        text, corpora={name: {**corpus, "skip_filters": ["source-equals-target"]} for name, corpus in plain.items()}
    ).is_new
    assert prepared(text, corpora=dict(reversed(plain.items()))).is_new


def test_a_folder_that_moved_is_the_same_text(text: Path) -> None:
    prepared(text)
    moved = Path(shutil.copytree(text, text.parent / "moved"))
    assert not prepare(recipe_for(moved), text.parent / "data").is_new


@pytest.mark.parametrize("name", ["train.en", "train.de", "valid.tsv"])
def test_an_input_that_changed_is_noticed(text: Path, name: str) -> None:
    prepared(text)
    lines = (text / name).read_text(encoding="utf-8").splitlines()
    written(text / name, [*lines[1:], lines[0]])
    assert prepared(text).is_new
    assert not prepared(text).is_new


def test_the_test_set_counts_where_it_is_compared_with(text: Path) -> None:
    settings = ["data.cleaning.eval_overlap=true", "data.test={file='test.tsv'}"]
    prepared(text, *settings)
    assert not prepared(text, *settings).is_new
    tsv(text / "test.tsv", pairs_of(10, 6))
    assert prepared(text, *settings).is_new
    # Of a third column, other texts are compared with, though no file has changed.
    written(text / "test.tsv", [f"{source}\t{target}\tbala" for source, target in pairs_of(10, 6)])
    settings[1] = "data.test={file='test.tsv', fields=['1', '2']}"
    prepared(text, *settings)
    assert prepared(text, settings[0], "data.test={file='test.tsv', fields=['1', '3']}").is_new


def test_a_file_that_went_from_one_corpus_to_another_is_noticed(text: Path) -> None:
    for name in "ab":
        (text / name).mkdir()
    for name, seed in (("a/1", 1), ("a/2", 2), ("b/3", 3)):
        tsv(text / f"{name}.tsv", pairs_of(20, seed))
    corpora = {name: {"file": f"{name}/*.tsv"} for name in "ab"}
    assert {name: fate.kept for name, fate in prepared(text, corpora=corpora).pair_counts.items()} == {
        "a": 40,
        "b": 20,
        "valid": 10,
    }
    (text / "a" / "2.tsv").rename(text / "b" / "2.tsv")
    moved = prepared(text, corpora=corpora)
    assert {name: fate.kept for name, fate in moved.pair_counts.items()} == {"a": 20, "b": 40, "valid": 10}


OUTPUTS = [
    "source.model", "target.model", "train-00000.arrow", "train.lengths.arrow", "valid-00000.arrow", "valid.lengths.arrow",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_an_output_that_changed_is_made_anew(text: Path, name: str, damage: str) -> None:
    apart = ["tokenizer.joint=false", "model.tie_embeddings=decoder"]
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
    assert prepared(text, *apart, notice=notices.append).is_new
    assert notices[0] == f"{folder}: a prepared file is missing or was changed; preparing anew"
    assert files(folder) == before
    assert not prepared(text, *apart).is_new


def test_a_file_too_many_would_be_read_and_so_goes(text: Path) -> None:
    prepared(text)
    folder = text.parent / "data"
    before = files(folder)
    shutil.copy(folder / "valid-00000.arrow", folder / "train-00001.arrow")
    assert prepared(text).is_new
    assert files(folder) == before


FATE = json.dumps(asdict(PairStats()))


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"digest": "DIGEST", "inputs": {}, "files": {}, "fates": {"train": {"keep": 3}}}',
        '{"digest": "DIGEST", "inputs": {}, "files": {}, "fates": [3]}',
        '{"digest": "DIGEST", "inputs": {}, "files": 3, "fates": {}}',
        '{"digest": "DIGEST", "inputs": 3, "files": {}, "fates": {}}',
        '{"digest": "DIGEST", "inputs": {"TEXT/train.en": 3}, "files": {}, "fates": {}}',
        '{"digest": "DIGEST", "inputs": {"TEXT/train.en": {"sha256": 3}}, "files": {}, "fates": {}}',
        '{"digest": "DIGEST", "inputs": {"TEXT/train.en": {"sure": true, "bytes": BYTES, "mtime_ns": TIME}}, "files": {}, '
        f'"fates": {{"train": {FATE}}}}}',
        '{"digest": "DIGEST", "files": {}, "fates": {}}',
        "[" * 100_000,
        "\ud800",
    ],
    ids=lambda damage: damage[:60].encode("ascii", "replace").decode(),
)
def test_a_damaged_note_of_what_was_prepared_is_made_anew(text: Path, damage: str) -> None:
    prepared(text)
    path = text.parent / "data" / "prepared.json"
    before = path.read_bytes()
    stat = (text / "train.en").stat()
    places = {
        "DIGEST": json.loads(before)["digest"],
        "TEXT": str(text),
        "BYTES": str(stat.st_size),
        "TIME": str(stat.st_mtime_ns),
    }
    for name, value in places.items():
        damage = damage.replace(name, value)
    path.write_bytes(damage.encode("utf-8", "surrogatepass"))
    assert prepared(text).is_new
    assert path.read_bytes() == before


def test_what_version_0_1_prepared_is_made_anew(text: Path) -> None:
    folder = text.parent / "data"
    folder.mkdir()
    fate = {
        "kept": 60,
        "empty": 0,
        "overlong_pairs": 0,
        "source_tokens": 9,
        "target_tokens": 9,
        "empty_at": [],
        "over_long_at": [],
    }
    for name in ("source.model", "train.arrow", "valid.arrow"):
        (folder / name).write_bytes(b"old")
    (folder / "prepared.json").write_text(json.dumps({"digest": "old", "files": {}, "fates": {"train": fate}}))
    assert prepared(text).is_new
    assert not {"train.arrow", "valid.arrow"} & set(files(folder))
    assert not prepared(text).is_new


# --- interrupted ------------------------------------------------------------------------------------------------------

Done = list[tuple[str, int]]


def stopping(done: Done, place: int | None = None, stop: Callable[[], NoReturn] | None = None) -> Callable[..., None]:
    """Notes how far each thing was done; Ctrl-C, or what else stops it, comes at the call of this number."""

    def progress(what: str, count: int, _: int | None) -> None:
        if len(done) == place:
            if stop is not None:
                stop()
            raise KeyboardInterrupt
        done.append((what, count))

    return progress


def test_a_preparation_goes_on_wherever_it_was_interrupted(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any call of progress; what was whole is not done again, and no byte is other than it would have been."""
    settings, data = chunked(text, monkeypatch)
    recipe = recipe_for(text, *settings, **data)
    undisturbed: Done = []
    prepare(recipe, text.parent / "undisturbed", on_progress=stopping(undisturbed))
    expected = files(text.parent / "undisturbed")
    assert len(undisturbed) == 24
    for place in range(len(undisturbed)):
        folder = text.parent / f"stopped-{place}"
        before: Done = []
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, folder, on_progress=stopping(before, place))
        after: Done = []
        notices: list[str] = []
        assert prepare(recipe, folder, notices.append, on_progress=stopping(after)).is_new
        assert notices[0] == "going on with a preparation that was interrupted"
        assert files(folder) == expected
        assert not (text.parent / f".stopped-{place}.partial").exists()
        # A part is two chunks, so that the one at work, and the one that had just come, are done again.
        assert len(before) + len(after) <= len(undisturbed) + 2
        assert not prepare(recipe, folder).is_new


def test_a_preparation_may_be_interrupted_again_and_again(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    recipe = recipe_for(text, *settings, **data)
    prepare(recipe, text.parent / "undisturbed")
    interruptions = 0
    while not (text.parent / "data").exists():
        with suppress(KeyboardInterrupt):
            prepare(recipe, text.parent / "data", on_progress=stopping([], 3))
        interruptions += 1
    assert 3 < interruptions < 20
    assert files(text.parent / "data") == files(text.parent / "undisturbed")


def interrupted_at_files(monkeypatch: pytest.MonkeyPatch, doing: Callable[[], object], place: int) -> bool:
    """Do it, with Ctrl-C before the `place`-th renaming of a file, or after it; tells whether it came so far."""
    rename, replace = Path.rename, Path.replace
    seen = 0

    def counting(way: Callable[[Path, Any], Path]) -> Callable[[Path, Any], Path]:
        def renaming(path: Path, target: Any) -> Path:
            nonlocal seen
            seen += 1
            if seen == place + 1 and place % 2 == 0:
                raise KeyboardInterrupt
            found = way(path, target)
            if seen == place + 1:
                raise KeyboardInterrupt
            return found

        return renaming

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counting(rename))
        patch.setattr(Path, "replace", counting(replace))
        try:
            doing()
        except KeyboardInterrupt:
            return True
        return False


def test_it_may_be_interrupted_between_any_two_files(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while what is whole is put in the place of what stood there."""
    monkeypatch.setattr(spool_room, "CHUNK", 20)
    monkeypatch.setattr(spool_room, "PART", 40)
    recipe = recipe_for(text, "data.cleaning.duplicate_pairs=true")
    expected = files(prepare(recipe, text.parent / "undisturbed").folder)
    prepare(recipe_for(text, "data.max_length=12", "data.cleaning.markup=true"), text.parent / "old")
    for place in range(200):
        folder = Path(shutil.copytree(text.parent / "old", text.parent / f"stopped-{place}"))
        if not interrupted_at_files(monkeypatch, lambda folder=folder: prepare(recipe, folder), place):  # type: ignore[misc]
            break
        prepare(recipe, folder)
        assert files(folder) == expected, place
    assert 20 < place < 100


def test_an_interrupted_preparation_of_something_else_is_begun_anew(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    recipe = recipe_for(text, *settings, **data)
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe, text.parent / "data", on_progress=stopping([], 12))
    other = recipe_for(text, *settings, "tokenizer.vocab_size=310", **data)
    prepare(other, text.parent / "other")
    notices: list[str] = []
    prepare(other, text.parent / "data", notices.append)
    assert "going on with a preparation that was interrupted" not in notices
    assert files(text.parent / "data") == files(text.parent / "other")
    shutil.rmtree(text.parent / "data")
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe, text.parent / "data", on_progress=stopping([], 12))
    tsv(text / "three.tsv", pairs_of(20, 8))
    prepare(recipe, text.parent / "changed")
    prepare(recipe, text.parent / "data")
    assert files(text.parent / "data") == files(text.parent / "changed")


def test_a_preparation_goes_on_when_there_is_room_on_the_disk(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    recipe, folder = recipe_for(text, *settings, **data), text.parent / "data"
    prepare(recipe, text.parent / "undisturbed")

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("dragoman.cleaning.cleaned_corpus.DuplicateSearch", partial(DuplicateFinder, max_rows_in_memory=2))
        patch.setattr("dragoman.cleaning.deduplication._append", full)
        assert "the disk is full (" in told(lambda: prepare(recipe, folder), OutputError)
    notices: list[str] = []
    prepare(recipe, folder, notices.append)
    assert notices[0] == "going on with a preparation that was interrupted"
    assert files(folder) == files(text.parent / "undisturbed")


KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.cleaning import cleaned_corpus as spool
from dragoman.config import recipe_from_dict
from dragoman.data.prepare import prepare
import json
if __name__ == "__main__":
    spool.CHUNK, spool.PART = 8, 16
    calls = 0
    def progress(*_):
        global calls
        calls += 1
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    recipe = recipe_from_dict(json.loads(Path(sys.argv[1]).read_bytes()), where="recipe")
    prepare(recipe, Path(sys.argv[2]), progress=progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_preparation_goes_on(text: Path, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    recipe = recipe_for(text, *settings, f"data.preprocessing_workers={processes}", **data)
    prepare(recipe_for(text, *settings, **data), text.parent / "undisturbed")
    folder = text.parent / "data"
    (text.parent / "recipe.json").write_text(json.dumps(recipe.model_dump(mode="json")))
    (text.parent / "killed.py").write_text(KILLED)
    words = [sys.executable, text.parent / "killed.py", text.parent / "recipe.json", folder]
    for place in (2, 5, 4):
        done = subprocess.run([*map(str, words), str(place)], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (text.parent / ".data.partial").exists()
        assert not folder.exists()
    done = subprocess.run([*map(str, words), "999"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(folder) == files(text.parent / "undisturbed")
    assert not (text.parent / ".data.partial").exists()


@pytest.mark.slow
def test_a_preparation_goes_on_after_a_process_was_killed(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = chunked(text, monkeypatch)
    prepare(recipe_for(text, *settings, **data), text.parent / "undisturbed")
    recipe, folder = recipe_for(text, *settings, **data | {"preprocessing_workers": 2}), text.parent / "data"

    def kill(*_: object) -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)

    line = told(lambda: prepare(recipe, folder, on_progress=kill), WorkerLostError)
    assert line.startswith(
        "a process that works ahead has ended, for want of memory perhaps; set data.preprocessing_workers=1 or lower"
    )
    assert (text.parent / ".data.partial").is_dir()
    notices: list[str] = []
    prepare(recipe_for(text, *settings, **data), folder, notices.append)
    assert notices[0] == "going on with a preparation that was interrupted"
    assert files(folder) == files(text.parent / "undisturbed")


CTRL_C = """
import json, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from dragoman.cleaning import cleaned_corpus as spool
from dragoman.config import recipe_from_dict
from dragoman.data.prepare import prepare

submit = ProcessPoolExecutor.submit

def interrupted(pool, *args):
    future = submit(pool, *args)
    time.sleep(float(sys.argv[3]))
    os.killpg(0, signal.SIGINT)
    return future

if __name__ == "__main__":
    spool.CHUNK, spool.PART = 8, 16
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background has it ignored
    ProcessPoolExecutor.submit = interrupted
    recipe = recipe_from_dict(json.loads(Path(sys.argv[1]).read_bytes()), where="recipe")
    try:
        prepare(recipe, Path(sys.argv[2]))
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.slow
def test_ctrl_c_is_answered_by_one_process(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to all: those that have just been started, or are at work, say nothing."""
    settings, data = chunked(text, monkeypatch)
    prepare(recipe_for(text, *settings, **data), text.parent / "undisturbed")
    recipe = recipe_for(text, *settings, **data | {"preprocessing_workers": 2})
    (text.parent / "recipe.json").write_text(json.dumps(recipe.model_dump(mode="json")))
    (text.parent / "interrupted.py").write_text(CTRL_C)
    for seconds in (0.0, 0.1, 0.3, 2.0):
        folder = text.parent / f"after {seconds}"  # its own, since another one's parts could leave too little to spread
        words = [sys.executable, text.parent / "interrupted.py", text.parent / "recipe.json", folder, seconds]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
        prepare(recipe_for(text, *settings, **data), folder)
        assert files(folder) == files(text.parent / "undisturbed")


# --- at the same time -------------------------------------------------------------------------------------------------

BUSY = "another process is at work in there; wait for it, or stop it"


def test_two_preparations_at_once_are_not_mixed(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any call of progress, a second one is refused, of the same or of something else, and the first is as if alone."""
    settings, data = chunked(text, monkeypatch)
    recipe, other = (recipe_for(text, *settings, f"tokenizer.vocab_size={size}", **data) for size in (300, 310))
    folder, work = text.parent / "data", text.parent / ".data.partial"
    refused = []

    def begin_another(*_: object) -> None:
        for one in (recipe, other):
            refused.append(told(lambda one=one: prepare(one, folder), OutputError))  # type: ignore[misc]

    prepare(recipe, folder, on_progress=begin_another)
    assert set(refused) == {f"{work}: {BUSY}"}
    assert len(refused) == 2 * 24
    assert not work.exists()
    prepare(recipe, text.parent / "undisturbed")
    assert files(folder) == files(text.parent / "undisturbed")


def test_what_stands_there_is_served_while_something_else_is_prepared(text: Path) -> None:
    folder, old, new = text.parent / "data", recipe_for(text), recipe_for(text, "tokenizer.vocab_size=310")
    prepare(old, folder)
    prepare(new, text.parent / "undisturbed")
    fresh = []
    prepare(new, folder, on_progress=lambda *_: fresh.append(prepare(old, folder).is_new))
    assert fresh == [False] * 4
    assert files(folder) == files(text.parent / "undisturbed")


def test_another_process_is_refused_and_one_that_is_gone_is_not_waited_for(text: Path) -> None:
    folder, work = text.parent / "data", text.parent / ".data.partial"
    recipe = f"""[data]
root = '{text}'
train = {{ source = 'train.en', target = 'train.de' }}
processes = 1
[tokenizer]
vocab_size = {VOCABULARY}
"""
    (text / "recipe.toml").write_text(recipe)
    words = [sys.executable, "-c", "from dragoman.cli.main import main; main()", "prepare", str(text / "recipe.toml")]
    words.append(f"run={text.parent}")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    work.mkdir()
    with lock_dir(work):
        done = run()
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"dragoman: {work}: {BUSY}\n")
    assert not folder.exists()
    done = run()
    assert (done.returncode, work.exists()) == (0, False), done.stderr
    assert (folder / "prepared.json").is_file()


# --- mistakes ---------------------------------------------------------------------------------------------------------


def spoiled(text: Path, mistake: str) -> list[str]:
    """Make a mistake; the settings to make it with."""
    lines = sentences(60, 1)
    match mistake:
        case "not UTF-8":
            (text / "train.en").write_bytes("".join(f"{line}\n" for line in lines[:49]).encode() + b"bala \xff\n" * 11)
        case "unequal":
            written(text / "train.de", sentences(59, 2))
        case "missing":
            (text / "train.de").unlink()
        case "missing valid":
            (text / "valid.tsv").unlink()
        case "bad valid":
            written(text / "valid.tsv", ["bala\tmara", "bala"])
        case "empty valid":
            written(text / "valid.tsv", ["\t"])
        case "too long":
            written(text / "train.en", [*lines[:59], "bala " * 90])
            return ["data.max_length=60", "data.overlong_pairs=error"]
        case "small vocabulary":
            return ["tokenizer.vocab_size=9"]
        case "large vocabulary":
            return ["tokenizer.vocab_size=90000"]
        case "no model":
            return ["tokenizer.model_file=none.model"]
        case "bad model":
            (text / "bad.model").write_bytes(b"no model")
            return ["tokenizer.model_file=bad.model"]
        case "wrong glob":
            return ["data.train={file='*.nothing'}"]
        case "no ending":
            return ["data.train={file='train.en'}"]
    return []


MISTAKES = {
    "not UTF-8": "train.en, line 50: not UTF-8 (byte 0xff at column 6)",
    "unequal": "train.de has 59 lines but ",
    "missing": "train.de: there is no such file (data.root = ",
    "missing valid": "valid.tsv: there is no such file (data.root = ",
    "bad valid": "valid.tsv, line 2: 1 tab-separated fields",
    "empty valid": "valid.tsv: no pair is left (1 pairs with an empty side dropped",
    "too long": "train.en:60: ",
    "small vocabulary": "tokenizer.vocab_size = 9 is too small",
    "large vocabulary": "tokenizer.vocab_size = 90000 is more than",
    "no model": "none.model: cannot be read: No such file or directory",
    "bad model": "bad.model (tokenizer.model_file): not a SentencePiece model",
    "wrong glob": "*.nothing: there is no such file",
    "no ending": "train.en: the ending '.en' tells no format",
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("before", [False, True], ids=["first", "again"])
def test_a_mistake_leaves_what_stood_there(text: Path, mistake: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_room, "CHUNK", 8)
    monkeypatch.setattr(spool_room, "PART", 16)
    stood: dict[str, bytes] = {}
    if before:
        stood = files(prepared(text).folder)
    settings = spoiled(text, mistake)
    line = told(lambda: prepared(text, *settings), DragomanError)
    assert MISTAKES[mistake] in line
    assert str(text) in line or "vocabulary" in mistake
    assert nothing_else_beside(text)
    assert (text.parent / "data").exists() is before
    if before:
        assert files(text.parent / "data") == stood


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["not UTF-8", "too long"])
def test_a_mistake_is_told_as_well_by_several_processes(text: Path, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_room, "CHUNK", 8)
    monkeypatch.setattr(spool_room, "PART", 16)
    settings = [*spoiled(text, mistake), "data.preprocessing_workers=2", "data.cleaning.source_equals_target=true"]
    assert MISTAKES[mistake] in told(lambda: prepared(text, *settings))
    assert nothing_else_beside(text)


def test_a_missing_extra_leaves_nothing_behind(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    monkeypatch.setitem(sys.modules, "ftfy.badness", None)
    assert "pip install 'dragoman[" in told(lambda: prepared(text, "data.cleaning.mojibake=true"), MissingDependencyError)
    assert nothing_else_beside(text)


def test_what_is_not_accepted_replaces_nothing(text: Path) -> None:
    before = files(prepared(text).folder)
    asked: list[dict[str, str]] = []

    def refuse(digests: dict[str, str]) -> None:
        asked.append(digests)
        raise RunError("begun with another corpus")

    recipe = recipe_for(text, "tokenizer.vocab_size=310")
    for _ in range(2):
        assert told(lambda: prepare(recipe, text.parent / "data", accept=refuse), RunError) == "begun with another corpus"
        assert files(text.parent / "data") == before
        assert nothing_else_beside(text)
    assert sorted(asked[0]) == sorted(before.keys() - {"prepared.json"})
    told_again: list[dict[str, str]] = []
    assert not prepare(recipe_for(text), text.parent / "data", accept=told_again.append).is_new
    assert told_again == [json.loads(before["prepared.json"])["files"]]


def test_a_corpus_without_pairs_is_refused(text: Path) -> None:
    empty_valid = text / "valid.tsv"
    written(empty_valid, ["\t", "\t"])
    assert told(lambda: prepared(text)).startswith(f"{empty_valid}: no pair is left (2 pairs with an empty side dropped")
    written(empty_valid, [])
    assert told(lambda: prepared(text)) == f"{empty_valid}: no pair is left (the corpus is empty)"
    line = told(lambda: prepared(text, "data.max_length=2", valid=None))
    assert "no pair is left (60 pairs beyond data.max_length dropped" in line
    corpora = {"good": {"file": "test.tsv"}, "bad": {"file": "valid.tsv"}}
    small = "tokenizer.vocab_size=280"
    assert told(lambda: prepared(text, small, corpora=corpora, valid=None)).startswith(f"{empty_valid}: no pair is left (the")
    named = ", ".join(str(text / name) for name in ("train.en", "train.de"))
    empty = f"2 pairs with an empty side dropped ({text / 'train.en'}:"  # the examples come in no order
    for lines, why in (([], "the corpus is empty"), (["", " "], empty)):
        written(text / "train.en", lines)
        written(text / "train.de", lines)
        assert told(lambda: prepared(text)).startswith(f"{named}: no pair is left ({why}")
    assert nothing_else_beside(text)


def test_what_leaves_nothing_to_learn_from_or_judge_by_is_told_before_learning(text: Path) -> None:
    notices: list[str] = []
    tsv(text / "same.tsv", [(source, source) for source, _ in pairs_of(40, 1)])
    corpora = {"all": {"source": "train.en", "target": "train.de"}, "same": {"file": "same.tsv"}}
    line = told(lambda: prepared(text, "data.cleaning.source_equals_target=true", corpora=corpora, notice=notices.append))
    told_by = "dragoman clean shows examples"
    assert line == f"{text / 'same.tsv'}: no pair is left (40 pairs dropped by cleaning (identical 40; {told_by}))"
    for lines in ([], ["bala\tmara", "bala"]):
        written(text / "valid.tsv", lines)
        assert str(text / "valid.tsv") in told(lambda: prepared(text, notice=notices.append))
    assert not any("learning" in notice for notice in notices)
    assert nothing_else_beside(text)


def test_a_recipe_without_a_corpus_is_refused(tmp_path: Path) -> None:
    line = told(lambda: prepare(make_recipe({}), tmp_path / "data"), RecipeError)
    assert line == "data.train is not given: name the files to learn from, or those of a mixture in data.corpora"
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_prepared_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = text.parent / "data"
    folder.touch()
    assert told(lambda: prepared(text), OutputError).startswith(f"{folder}: cannot be written: ")
    folder.unlink()

    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, os.strerror(28))

    for room, name in ((corpus_room, "write_batches"), (spool_room, "write_json"), (prepare_room, "write_tokeniser")):
        with monkeypatch.context() as patch:
            patch.setattr(room, name, full)
            assert told(lambda: prepared(text), OutputError).startswith(f"{folder}: the disk is full (")
        assert prepared(text).is_new
        shutil.rmtree(folder)


# --- standard input ---------------------------------------------------------------------------------------------------

PIPE: dict[str, Any] = {"train": {"file": "-", "format": "tsv"}}


class Closed(io.RawIOBase):
    """Standard input that must not be read."""

    def readinto(self, _: Any) -> NoReturn:
        raise AssertionError("standard input was read")

    def readable(self) -> bool:
        return True


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[tuple[str, str]] | None], None]:
    """Put pairs into standard input, or nothing and nobody may look."""

    def put(pairs: Sequence[tuple[str, str]] | None) -> None:
        text = "".join(f"{source}\t{target}\n" for source, target in pairs or ())
        stream = io.BytesIO(text.encode()) if pairs is not None else io.BufferedReader(Closed())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))

    return put


def test_standard_input_is_prepared_and_not_read_again(
    text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text)
    (text / "-").write_text("no pair\n")  # a file of that name is not what is meant
    pipe(pairs_of(60, 1))
    notices: list[str] = []
    first = prepared(text, notice=notices.append, **PIPE)
    assert notices[0] == "reading train: standard input"
    assert first.pair_counts["train"].kept == 60
    assert first.corpus("train").source(0).tolist() == first.tokenizer.encode_source(pairs_of(60, 1)[0][0])
    pipe(None)
    second = prepared(text, **PIPE)
    assert not second.is_new
    assert second.pair_counts == first.pair_counts
    pipe(pairs_of(50, 1))
    assert prepared(text, "tokenizer.vocab_size=310", **PIPE).pair_counts["train"].kept == 50


def test_a_mixture_may_have_standard_input_in_it(text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None]) -> None:
    tsv(text / "more.tsv", pairs_of(20, 2))
    pipe([*pairs_of(5, 3), ("bala", "")])
    corpora = {"more": {"file": "more.tsv"}, "piped": {"file": "-", "format": "tsv"}}
    result = prepared(text, "data.cleaning.duplicate_pairs=true", corpora=corpora)
    assert {name: fate.kept for name, fate in result.pair_counts.items()} == {"more": 20, "piped": 5, "valid": 10}
    assert result.pair_counts["piped"].dropped_examples == {"empty": ["standard input:6"]}


def test_an_empty_pipe_is_told(text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None]) -> None:
    pipe([])
    assert told(lambda: prepared(text, **PIPE)) == "standard input: no pair is left (the corpus is empty)"
    assert nothing_else_beside(text)


def test_what_came_through_a_pipe_before_an_interruption_is_not_mixed_with_what_comes_after(
    text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_room, "CHUNK", 8)
    monkeypatch.setattr(spool_room, "PART", 16)
    recipe = recipe_for(text, **PIPE)
    pipe(pairs_of(60, 2))
    prepare(recipe, text.parent / "undisturbed")
    for place in (3, 10, 14):
        pipe(pairs_of(60, 1))
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, text.parent / f"data-{place}", on_progress=stopping([], place))
        pipe(pairs_of(60, 2))
        prepare(recipe, text.parent / f"data-{place}")
        assert files(text.parent / f"data-{place}") == files(text.parent / "undisturbed")
