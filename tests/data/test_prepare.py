# ruff: noqa: RUF001  (full-width marks)
"""Tests of corpus preparation: statistics, caching, interruption, concurrent calls, errors and standard input."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import random
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

import dragoman.cleaning.cleaned_corpus
import dragoman.cleaning.deduplication
from dragoman.cleaning import cleaned_corpus as cleaned_corpus_module
from dragoman.cleaning.cleaned_corpus import FilterPipeline, clean_corpus
from dragoman.cleaning.deduplication import DuplicateFinder
from dragoman.config import CleaningConfig, CorpusConfig, Recipe, make_recipe
from dragoman.data import encoded_corpus as encoded_corpus_module
from dragoman.data import manifest as manifest_module
from dragoman.data import prepare as prepare_module
from dragoman.data.encode import PairStats
from dragoman.data.encoded_corpus import LengthTable, get_lengths_file
from dragoman.data.prepare import PreparedData, prepare
from dragoman.data.tokenization.pair_tokenizer import train_tokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import (
    DragomanError,
    OutputError,
    RunError,
    WorkerLostError,
)
from dragoman.formats.tsv import read_aligned, read_tsv
from expected_errors import error_message, raises_code
from small_language import random_sentences

VOCAB_SIZE = 300

NotifyFn = Callable[[str], None]


def random_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    return list(zip(random_sentences(count, seed), random_sentences(count, seed + 1000), strict=True))


def write_file(path: Path, lines: Sequence[str]) -> Path:
    """Write a file with a modification time one minute ago."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return age_file(path)


def write_tsv(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    return write_file(path, [f"{source}\t{target}" for source, target in pairs])


def age_file(path: Path) -> Path:
    minute_ago = path.stat().st_mtime_ns - 60 * 10**9
    os.utime(path, ns=(minute_ago, minute_ago))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Folder with 60 training pairs in two files, and 10 pairs each for valid and test."""
    folder = tmp_path / "text"
    folder.mkdir()
    write_file(folder / "train.en", random_sentences(60, 1))
    write_file(folder / "train.de", random_sentences(60, 2))
    write_tsv(folder / "valid.tsv", random_pairs(10, 3))
    write_tsv(folder / "test.tsv", random_pairs(10, 5))
    return folder


def make_test_recipe(text: Path, *overrides: str, **data: Any) -> Recipe:
    document = {
        "size": "tiny",
        "data": {
            "root": str(text),
            **({} if "corpora" in data else {"train": {"source": "train.en", "target": "train.de"}}),
            "valid": {"file": "valid.tsv"},
            "preprocessing_workers": 1,
            **data,
        },
        "tokenizer": {"vocab_size": VOCAB_SIZE},
    }
    return make_recipe(document, overrides)


def prepare_text(text: Path, *overrides: str, notify: NotifyFn = lambda _: None, **data: Any) -> PreparedData:
    return prepare(make_test_recipe(text, *overrides, **data), text.parent / "data", notify)


def use_small_parts(monkeypatch: pytest.MonkeyPatch, chunk_pairs: int) -> None:
    """Process so many pairs at a time, and write two such chunks into a file."""
    monkeypatch.setattr(cleaned_corpus_module, "CHUNK_PAIRS", chunk_pairs)
    monkeypatch.setattr(cleaned_corpus_module, "PAIRS_PER_FILE", 2 * chunk_pairs)


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def has_no_other_files(text: Path) -> bool:
    return {path.name for path in text.parent.iterdir()} <= {"text", "data"}


def pair_numbers(result: PreparedData, name: str) -> list[int]:
    """Return the numbers of the pairs in a prepared corpus, from 1."""
    corpus = result.corpus(name)
    return [corpus.pair_number(index) for index in range(len(corpus))]


# --- prepared files ---------------------------------------------------------------------------------------------------


def test_prepared_corpus_matches_its_text(text: Path) -> None:
    notices: list[str] = []
    result = prepare_text(text, notify=notices.append)
    assert result.is_new
    assert notices == [
        f"reading train: {text / 'train.en'}, {text / 'train.de'}",
        f"reading valid: {text / 'valid.tsv'}",
        f"training a bpe tokenizer of {VOCAB_SIZE:,} pieces",
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
    assert set(read_files(text.parent / "data")) == {
        "source.model", "target.model", "train-00000.arrow", "train.lengths.arrow", "valid-00000.arrow", "valid.lengths.arrow",
        "prepared.json",
    }  # fmt: skip
    assert has_no_other_files(text)


def test_characters_that_the_vocabulary_lacks_are_listed(text: Path) -> None:
    """NFKC replaces these characters, as unicodedata says; the default keeps those of the target."""
    write_file(text / "train.en", [*random_sentences(30, 1), "bala m² mara"])
    write_file(text / "train.de", [*random_sentences(30, 2), "bala（²）², mara"])
    write_file(text / "valid.tsv", ["bala\tmara："])
    kept = prepare_text(text)
    assert [counts.unwritten_target for counts in kept.pair_counts.values()] == [{}, {}]
    result = prepare_text(text, "tokenizer.normalization=nfkc")
    assert result.pair_counts["train"].unwritten_target == {"²": 2, "（": 1, "）": 1}
    assert result.pair_counts["train"].unwritten_source == {"²": 1}
    assert result.pair_counts["valid"].unwritten_target == {"：": 1}
    (message,) = result.pair_counts["valid"].summarize("drop")
    assert message == "1 characters of the target that the vocabulary cannot write (： 1)"


def test_empty_pairs_are_counted_and_named(text: Path) -> None:
    """White space of any kind is empty, and so is text without pieces: a zero-width space under NFKC."""
    source_lines = [*random_sentences(30, 1), "", " ", "\u3000", "bala", "", "", "bala", "\u200b"]
    target_lines = [*random_sentences(30, 2), "mara", "mara", "mara", "  ", "", "mara", "\t", "mara"]
    source = write_file(text / "train.en", source_lines)
    write_file(text / "train.de", target_lines)
    write_file(text / "valid.tsv", ["bala\t", "bala\tmara"])
    result = prepare_text(text, "tokenizer.normalization=nfkc")
    stats = result.pair_counts["train"]
    assert (stats.read, stats.kept, stats.overlong_pairs, stats.dropped) == (38, 30, 0, {"empty": 8})
    empty_origins = {f"{source}:{line}" for line in range(31, 39)}
    examples = stats.dropped_examples["empty"]
    assert len(set(examples)) == 5
    assert set(examples) < empty_origins
    assert stats.summarize("drop") == [f"8 pairs with an empty side dropped ({', '.join(examples)}, …)"]
    assert result.pair_counts["valid"].summarize("drop") == [f"1 pairs with an empty side dropped ({text / 'valid.tsv'}:1)"]
    assert pair_numbers(result, "valid") == [2]


@pytest.mark.parametrize("choice", ["drop", "truncate"])
def test_overlong_pairs_are_treated_and_counted(text: Path, choice: str) -> None:
    pairs = list(read_aligned(text / "train.en", text / "train.de"))
    result = prepare_text(text, "data.max_length=12", f"data.overlong_pairs={choice}")
    encoder, corpus, stats = result.tokenizer, result.corpus("train"), result.pair_counts["train"]
    longest = [max(len(encoder.encode_source(pair.source)), len(encoder.encode_target(pair.target)) + 1) for pair in pairs]
    beyond = [line for line, length in enumerate(longest) if length > 12]
    assert 5 < len(beyond) < 55
    assert 12 in longest  # a pair of exactly the limit
    assert stats.overlong_examples == [pairs[line].origin for line in beyond[:5]]
    kept = [line for line in range(60) if choice == "truncate" or line not in beyond]
    assert (stats.read, stats.kept, stats.overlong_pairs) == (60, len(kept), len(beyond))
    assert pair_numbers(result, "train") == [line + 1 for line in kept]
    assert [corpus.source(row).tolist() for row in range(len(kept))] == [
        [*encoder.source.encode(pairs[line].source)[:11], END_ID] for line in kept
    ]
    assert {"drop": "dropped", "truncate": "truncated"}[choice] in stats.summarize(choice)[0]
    assert result.pair_counts["valid"].overlong_pairs == 0  # validation data is never truncated


def test_tokenizer_sample_is_spread_evenly(text: Path) -> None:
    """100 pairs in two corpora give 13 lines a side, so selected pairs are 7 or 8 pairs apart."""
    corpora = {"a": random_pairs(30, 1), "b": random_pairs(70, 2)}
    for name, pairs in corpora.items():
        write_tsv(text / f"{name}.tsv", pairs)
    everything = [pair for pairs in corpora.values() for pair in pairs]
    chosen = [row for row in range(100) if row * 13 // 100 != (row + 1) * 13 // 100]
    assert len(chosen) == 13
    assert {after - before for before, after in pairwise(chosen)} == {7, 8}
    settings = ["tokenizer.vocab_size=290", "tokenizer.train_sentences=26"]
    mixture = {name: {"file": f"{name}.tsv"} for name in corpora}
    result = prepare_text(text, *settings, corpora=mixture)
    config = make_test_recipe(text, *settings, corpora=mixture).tokenizer
    sources, targets = ([everything[row][side] for row in chosen] for side in (0, 1))
    expected = train_tokenizer(sources, targets, config, append_source_eos=True, seed=1)
    assert result.tokenizer.source.serialized_model == expected.source.serialized_model


@pytest.mark.parametrize("joint", [True, False])
def test_tokenizer_model_can_be_imported(text: Path, joint: bool) -> None:
    first_model, second_model = (
        train_sentencepiece(random_sentences(300, seed), TOKENIZER_CONFIG, vocab_size=280 + seed, seed=1).serialized_model
        for seed in (7, 8)
    )
    (text / "first.model").write_bytes(first_model)
    (text / "second.model").write_bytes(second_model)
    settings = ["tokenizer.model_file=first.model", f"tokenizer.joint={str(joint).lower()}", "model.tie_embeddings=decoder"]
    settings += [] if joint else ["tokenizer.target_model_file=second.model"]
    notices: list[str] = []
    result = prepare_text(text, *settings, notify=notices.append)
    assert not any("training a" in notice for notice in notices)
    assert (result.tokenizer.source.serialized_model, result.tokenizer.target.serialized_model) == (
        first_model,
        first_model if joint else second_model,
    )
    assert not prepare_text(text, *settings).is_new
    (text / "first.model").write_bytes(second_model)
    again = prepare_text(text, *settings)
    assert again.is_new
    assert again.tokenizer.source.serialized_model == second_model
    (text / "first.model").unlink()
    message = error_message(lambda: prepare_text(text, *settings))
    assert message.startswith(f"{text / 'first.model'}: cannot be read: No such file")


TOKENIZER_CONFIG = make_recipe({}).tokenizer


# --- mixtures ---------------------------------------------------------------------------------------------------------


def test_mixture_is_cleaned_across_corpora(text: Path) -> None:
    """The first copy of a pair in the recipe's order is kept; a corpus that skips the filter keeps its own copy."""
    shared, unique = random_pairs(5, 1), random_pairs(20, 2)
    shared_source = [(source, "gola") for source, _ in unique[:4]]
    write_tsv(text / "first.tsv", [*unique[:10], *shared, shared[0]])
    write_tsv(text / "second.tsv", [*shared, *unique[10:], *shared_source, ("baba", "baba")])
    write_tsv(text / "third.tsv", [*shared, ("dana", "dana"), *random_pairs(5, 9)])
    corpora: dict[str, Any] = {name: {"file": f"{name}.tsv"} for name in ("first", "second", "third")}
    corpora["third"]["skip_filters"] = ["duplicate-pair", "source-equals-target", "duplicate-source"]
    rules = ["duplicate_pairs", "duplicate_sources", "source_equals_target"]
    result = prepare_text(text, *(f"data.cleaning.{rule}=true" for rule in rules), corpora=corpora)
    pair_counts = result.pair_counts
    assert pair_numbers(result, "first") == list(range(1, 16))
    assert pair_numbers(result, "second") == list(range(6, 16))
    assert pair_numbers(result, "third") == list(range(1, 12))
    assert pair_counts["first"].dropped == {"duplicate-pair": 1}
    assert pair_counts["first"].dropped_examples == {"duplicate-pair": [f"{text / 'first.tsv'}:16"]}
    assert pair_counts["second"].dropped == {"source-equals-target": 1, "duplicate-pair": 5, "duplicate-source": 4}
    assert pair_counts["third"].dropped == {}
    page = (result.folder / "cleaning.html").read_text(encoding="utf-8")
    assert "An equal pair came before." in page
    assert "baba" in page
    assert not prepare_text(text, *(f"data.cleaning.{rule}=true" for rule in rules), corpora=corpora).is_new
    assert "cleaning.html" not in read_files(prepare_text(text, corpora=corpora).folder)


def test_filter_with_threshold_zero_is_enabled(text: Path) -> None:
    languages = ["task.source_language=en", "task.target_language=de"]
    result = prepare_text(text, "data.cleaning.min_script_ratio=0.0", *languages)
    assert "cleaning.html" in read_files(result.folder)


@pytest.mark.parametrize("eval_splits", ["both", "valid", "test"])
def test_evaluation_overlap_is_dropped_from_training(text: Path, eval_splits: str) -> None:
    valid, test = random_pairs(10, 3), random_pairs(10, 5)
    write_tsv(
        text / "train.tsv", [*random_pairs(20, 1), (valid[3][0].upper() + "!", "mara"), ("mara", test[4][1]), ("bala", "mala")]
    )
    eval_corpora = {"valid": {"file": "valid.tsv"}, "test": {"file": "test.tsv"}}
    data: dict[str, Any] = {name: corpus if eval_splits in ("both", name) else None for name, corpus in eval_corpora.items()}
    result = prepare_text(text, "data.cleaning.eval_overlap=true", train={"file": "train.tsv"}, **data)
    dropped = {"both": [21, 22], "valid": [21], "test": [22]}[eval_splits]
    assert pair_numbers(result, "train") == [number for number in range(1, 24) if number not in dropped]
    assert result.pair_counts["train"].dropped == {"eval-overlap": len(dropped)}


@pytest.mark.parametrize("overlong_pairs", ["drop", "truncate"])
def test_pair_counts_add_up(text: Path, overlong_pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaned_corpus_module, "CHUNK_PAIRS", 10)
    monkeypatch.setattr(cleaned_corpus_module, "PAIRS_PER_FILE", 30)
    draw = random.Random(1)
    odd = [("", "mara"), ("mara", "\u200b"), ("kala", "kala"), ("bala " * 30, "mara " * 30), ("bala", "mara " * 9)]
    for name, size in (("a", 95), ("b", 60)):
        pairs = [draw.choice(odd) if draw.random() < 0.4 else pair for pair in random_pairs(size, size)]
        write_tsv(text / f"{name}.tsv", pairs)
    corpora = {name: {"file": f"{name}.tsv"} for name in "ab"}
    rules = ["source_equals_target=true", "duplicate_pairs=true", "max_ratio=4.0"]
    settings = [f"data.overlong_pairs={overlong_pairs}", "data.max_length=30", *(f"data.cleaning.{rule}" for rule in rules)]
    result = prepare_text(text, *settings, corpora=corpora)
    stored_counts = json.loads((result.folder / "prepared.json").read_bytes())["pair_counts"]
    assert stored_counts == {name: asdict(stats) for name, stats in result.pair_counts.items()}
    for name, size in (("a", 95), ("b", 60), ("valid", 10)):
        stats, corpus = result.pair_counts[name], result.corpus(name)
        num_dropped = sum(stats.dropped.values()) + (stats.overlong_pairs if overlong_pairs == "drop" else 0)
        assert stats.read == size == stats.kept + num_dropped
        assert len(corpus) == stats.kept
        sources, targets = corpus.lengths()
        assert (sources.sum(), targets.sum()) == (stats.source_tokens, stats.target_tokens)
        assert pair_numbers(result, name) == sorted(set(pair_numbers(result, name)))
    assert result.pair_counts["a"].overlong_pairs > 0
    assert set(result.pair_counts["a"].dropped) == {"empty", "source-equals-target", "duplicate-pair", "ratio"}


def test_long_lines_need_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 16,384 pairs would hold all 3,000 pairs, 6 MB of letters; the limit of characters keeps it near 60 KB."""
    monkeypatch.setattr(cleaned_corpus_module, "CHUNK_CHARACTERS", 2**16)
    write_file(tmp_path / "long.tsv", [f"{number:01000}\t{number:01000}" for number in range(3_000)])
    corpus, pipeline = CorpusConfig.model_validate({"file": "long.tsv"}), FilterPipeline(CleaningConfig())
    tracemalloc.start()
    try:
        cleaned_corpus = clean_corpus(tmp_path, "long", corpus, tmp_path, pipeline, processes=1, on_progress=lambda *_: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert [(pair.source, pair.target) for pair in cleaned_corpus.iter_pairs()] == [
        (f"{number:01000}",) * 2 for number in range(3_000)
    ]


def make_mixture(text: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    """Return settings and corpora of a mixture in small parts, with duplicates, empty, equal and overlong pairs."""
    use_small_parts(monkeypatch, 8)
    shared = random_pairs(6, 77)
    write_tsv(text / "one-and-all.tsv", [*random_pairs(30, 1), *shared, ("", "mara"), ("bala", "bala"), *shared])
    write_file(text / "two.en", random_sentences(16, 4))
    write_file(text / "two.de", random_sentences(16, 5))
    write_tsv(text / "three.tsv", [*shared, *random_pairs(9, 6), ("bala " * 30, "mara " * 30)])
    corpora = {
        "one": {"file": "one-and-all.tsv"},
        "two": {"source": "two.en", "target": "two.de"},
        "three": {"file": "three.tsv", "skip_filters": ["source-equals-target"]},
    }
    settings = ["data.cleaning.duplicate_pairs=true", "data.cleaning.source_equals_target=true", "data.max_length=100"]
    return settings, {"corpora": corpora}


@pytest.mark.slow
def test_number_of_workers_changes_no_byte(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = make_mixture(text, monkeypatch)
    expected = read_files(prepare_text(text, *settings, **data).folder)
    shutil.rmtree(text.parent / "data")
    assert read_files(prepare_text(text, *settings, **data | {"preprocessing_workers": 2}).folder) == expected


# --- unchanged requests -----------------------------------------------------------------------------------------------


@pytest.fixture
def hashed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed, in order."""
    names: list[str] = []
    hash_file = manifest_module._hash_file

    def hash_and_record(path: Path) -> str:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(manifest_module, "_hash_file", hash_and_record)
    return names


INPUTS = {"train.en", "train.de", "valid.tsv"}


def test_inputs_are_hashed_only_after_changes(text: Path, hashed_files: list[str]) -> None:
    prepare_text(text)
    assert set(hashed_files) > INPUTS
    hashed_files.clear()
    assert not prepare_text(text).is_new
    assert not INPUTS & set(hashed_files)
    os.utime(text / "train.en")  # changes the time only
    hashed_files.clear()
    assert not prepare_text(text).is_new
    assert INPUTS & set(hashed_files) == {"train.en"}
    write_file(text / "train.en", random_sentences(61, 1)[1:])
    hashed_files.clear()
    assert prepare_text(text).is_new
    assert INPUTS & set(hashed_files) == {"train.en"}


def test_quick_rewrite_with_same_time_is_detected(text: Path, hashed_files: list[str]) -> None:
    """File systems store times in steps of up to two seconds."""
    path = text / "train.en"
    lines = random_sentences(60, 1)
    path.write_text("".join(f"{line}\n" for line in lines))
    before = path.stat()
    prepare_text(text)
    path.write_text("".join(f"{line}\n" for line in [*lines[1:], lines[0]]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    second = prepare_text(text)
    assert second.is_new
    assert second.corpus("train").source(59).tolist() == second.tokenizer.encode_source(lines[0])
    # An old file is hashed once more and then settled.
    age_file(path)
    for read_again in ({"train.en"}, set[str]()):
        hashed_files.clear()
        assert not prepare_text(text).is_new
        assert INPUTS & set(hashed_files) == read_again


CHANGES = [
    "data.max_length=255", "data.overlong_pairs=truncate", "data.cleaning.max_words=3", "data.cleaning.eval_overlap=true",
    "data.valid={file='valid.tsv', columns=['2', '1']}", "task.source_language=en", "training.seed=2",
    "tokenizer.vocab_size=299", "tokenizer.byte_fallback=false", "tokenizer.lowercase=true", "tokenizer.joint=false",
    "tokenizer.train_sentences=50", "model.append_source_eos=false",
]  # fmt: skip
UNRELATED_CHANGES = [
    "name=other", "training.max_steps=3", "training.batch_tokens=5000", "decoding.beam_size=9", "model.d_ff=8",
    "data.test={file='none.tsv'}", "data.preprocessing_workers=2", "data.noise.typos=0.5", "tokenizer.sampling_alpha=0.1",
]  # fmt: skip


def test_only_settings_of_the_files_change_the_request(text: Path) -> None:
    def compute_digest(*changes: str) -> str:
        recipe = make_test_recipe(text, "model.tie_embeddings=decoder", *changes)
        return manifest_module.compute_request_digest(recipe, manifest_module.hash_inputs(recipe, {}))

    for changes, is_same in ((CHANGES, False), (UNRELATED_CHANGES, True)):
        for change in changes:
            assert (compute_digest(change) == compute_digest()) == is_same, change


def test_test_set_matters_for_overlap_filter(text: Path) -> None:
    settings = ["data.cleaning.eval_overlap=true", "data.test={file='test.tsv'}"]
    prepare_text(text, *settings)
    assert not prepare_text(text, *settings).is_new
    write_tsv(text / "test.tsv", random_pairs(10, 6))
    assert prepare_text(text, *settings).is_new
    assert prepare_text(text, settings[0], "data.test={file='test.tsv', columns=['2', '1']}").is_new


def test_file_moved_between_corpora_is_detected(text: Path) -> None:
    for name in "ab":
        (text / name).mkdir()
    for name, seed in (("a/1", 1), ("a/2", 2), ("b/3", 3)):
        write_tsv(text / f"{name}.tsv", random_pairs(20, seed))
    corpora = {name: {"file": f"{name}/*.tsv"} for name in "ab"}
    assert {name: stats.kept for name, stats in prepare_text(text, corpora=corpora).pair_counts.items()} == {
        "a": 40,
        "b": 20,
        "valid": 10,
    }
    (text / "a" / "2.tsv").rename(text / "b" / "2.tsv")
    moved = prepare_text(text, corpora=corpora)
    assert {name: stats.kept for name, stats in moved.pair_counts.items()} == {"a": 20, "b": 40, "valid": 10}


OUTPUTS = [
    "source.model", "target.model", "train-00000.arrow", "train.lengths.arrow", "valid-00000.arrow", "valid.lengths.arrow",
]  # fmt: skip


DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "cut": lambda path, content: path.write_bytes(content[:-1]),
    "flip": lambda path, content: path.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:]),
    "remove": lambda path, _: path.unlink(),
}


def test_changed_output_is_prepared_again(subtests: pytest.Subtests, text: Path) -> None:
    separate = ["tokenizer.joint=false", "model.tie_embeddings=decoder"]
    folder = prepare_text(text, *separate).folder
    before = read_files(folder)
    for damage in DAMAGES:
        for name in OUTPUTS if damage == "flip" else OUTPUTS[::3]:
            with subtests.test(name=name, damage=damage):
                DAMAGES[damage](folder / name, before[name])
                notices: list[str] = []
                assert prepare_text(text, *separate, notify=notices.append).is_new
                assert notices[0] == f"{folder}: a prepared file is missing or was changed; preparing again"
                assert read_files(folder) == before


def test_damaged_manifest_is_prepared_again(subtests: pytest.Subtests, text: Path) -> None:
    path = prepare_text(text).folder / "prepared.json"
    before = path.read_bytes()
    intact = json.loads(before)
    for change in (
        {"files": 3},
        {"inputs": None},
        {"files": {}, "pair_counts": {"train": asdict(PairStats())}},
        {"pair_counts": {"train": {"kept": 3}}},
    ):
        with subtests.test(change=change):
            path.write_text(json.dumps(intact | change))
            assert prepare_text(text).is_new
            assert path.read_bytes() == before
    for content in (b"", b"{", b"[" * 100_000):
        path.write_bytes(content)
        assert prepare_text(text).is_new
        assert path.read_bytes() == before


# --- interruption -----------------------------------------------------------------------------------------------------

ProgressCalls = list[tuple[str, int]]


def interrupt_at(
    calls: ProgressCalls, index: int | None = None, stop: Callable[[], NoReturn] | None = None
) -> Callable[..., None]:
    """Return a progress callback that records its calls, and calls `stop` or raises KeyboardInterrupt at call `index`."""

    def progress(task_name: str, count: int, _: int | None) -> None:
        # The search for duplicates is short and starts anew after an interruption. The first call of a task reports no work.
        if task_name.startswith("finding ") or not count:
            return
        if len(calls) == index:
            if stop is not None:
                stop()
            raise KeyboardInterrupt
        calls.append((task_name, count))

    return progress


@pytest.mark.slow
def test_preparation_resumes_after_interruption_anywhere(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt at each call of progress: complete files are kept, and the result equals that of an undisturbed run."""
    settings, data = make_mixture(text, monkeypatch)
    recipe = make_test_recipe(text, *settings, **data)
    undisturbed: ProgressCalls = []
    prepare(recipe, text.parent / "undisturbed", on_progress=interrupt_at(undisturbed))
    expected = read_files(text.parent / "undisturbed")
    assert len(undisturbed) == 24
    for index in range(len(undisturbed)):
        folder = text.parent / f"stopped-{index}"
        before: ProgressCalls = []
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, folder, on_progress=interrupt_at(before, index))
        after: ProgressCalls = []
        notices: list[str] = []
        assert prepare(recipe, folder, notices.append, on_progress=interrupt_at(after)).is_new
        assert notices[0] == "resuming an interrupted preparation"
        assert read_files(folder) == expected
        assert not (text.parent / f".stopped-{index}.partial").exists()
        # A part has two chunks, so at most two chunks are processed again.
        assert len(before) + len(after) <= len(undisturbed) + 2
        assert not prepare(recipe, folder).is_new


def interrupt_at_file(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], index: int) -> bool:
    """Raise KeyboardInterrupt at rename `index` of a file, before it or after it; return whether it was reached."""
    rename, replace = Path.rename, Path.replace
    num_renames = 0

    def count_renames(rename_file: Callable[[Path, Any], Path]) -> Callable[[Path, Any], Path]:
        def rename_and_count(path: Path, target: Any) -> Path:
            nonlocal num_renames
            num_renames += 1
            if num_renames == index + 1 and index % 2 == 0:
                raise KeyboardInterrupt
            new_path = rename_file(path, target)
            if num_renames == index + 1:
                raise KeyboardInterrupt
            return new_path

        return rename_and_count

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", count_renames(rename))
        patch.setattr(Path, "replace", count_renames(replace))
        try:
            action()
        except KeyboardInterrupt:
            return True
        return False


@pytest.mark.slow
def test_interruption_between_any_two_files(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interruption may also come while new files replace old ones."""
    use_small_parts(monkeypatch, 20)
    recipe = make_test_recipe(text, "data.cleaning.duplicate_pairs=true")
    expected = read_files(prepare(recipe, text.parent / "undisturbed").folder)
    prepare(make_test_recipe(text, "data.max_length=12", "data.cleaning.markup=true"), text.parent / "old")
    for index in range(200):
        folder = Path(shutil.copytree(text.parent / "old", text.parent / f"stopped-{index}"))
        if not interrupt_at_file(monkeypatch, lambda folder=folder: prepare(recipe, folder), index):  # type: ignore[misc]
            break
        prepare(recipe, folder)
        assert read_files(folder) == expected, index
    assert 20 < index < 100


def test_other_interrupted_preparation_is_discarded(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = make_mixture(text, monkeypatch)
    recipe = make_test_recipe(text, *settings, **data)
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe, text.parent / "data", on_progress=interrupt_at([], 12))
    changed = make_test_recipe(text, *settings, "tokenizer.vocab_size=310", **data)
    prepare(changed, text.parent / "expected")
    notices: list[str] = []
    prepare(changed, text.parent / "data", notices.append)
    assert "resuming an interrupted preparation" not in notices
    assert read_files(text.parent / "data") == read_files(text.parent / "expected")


def test_preparation_resumes_after_full_disk(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = make_mixture(text, monkeypatch)
    recipe, folder = make_test_recipe(text, *settings, **data), text.parent / "data"
    prepare(recipe, text.parent / "undisturbed")

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(dragoman.cleaning.cleaned_corpus, "DuplicateFinder", partial(DuplicateFinder, max_rows_in_memory=2))
        patch.setattr(dragoman.cleaning.deduplication, "_append_to_buckets", full)
        assert "the disk is full (" in error_message(lambda: prepare(recipe, folder), OutputError)
    notices: list[str] = []
    prepare(recipe, folder, notices.append)
    assert notices[0] == "resuming an interrupted preparation"
    assert read_files(folder) == read_files(text.parent / "undisturbed")


@pytest.mark.slow
def test_preparation_resumes_after_killed_worker(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data = make_mixture(text, monkeypatch)
    prepare(make_test_recipe(text, *settings, **data), text.parent / "undisturbed")
    recipe, folder = make_test_recipe(text, *settings, **data | {"preprocessing_workers": 2}), text.parent / "data"

    def kill(*_: object) -> None:
        for process in multiprocessing.active_children():
            process.kill()  # does nothing if the process has ended already

    message = error_message(lambda: prepare(recipe, folder, on_progress=kill), WorkerLostError)
    assert message.startswith("data.preprocessing_workers: a worker process was killed")
    assert (text.parent / ".data.partial").is_dir()
    notices: list[str] = []
    prepare(make_test_recipe(text, *settings, **data), folder, notices.append)
    assert notices[0] == "resuming an interrupted preparation"
    assert read_files(folder) == read_files(text.parent / "undisturbed")


# --- concurrent calls -------------------------------------------------------------------------------------------------

BUSY = "another process is at work in it; wait for it, or stop it"


def test_concurrent_preparations_do_not_mix(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call at each call of progress raises, for the same or another request, and does not disturb the first."""
    settings, data = make_mixture(text, monkeypatch)
    recipe, second_recipe = (make_test_recipe(text, *settings, f"tokenizer.vocab_size={size}", **data) for size in (300, 310))
    folder, work = text.parent / "data", text.parent / ".data.partial"
    messages = []

    def start_second(*_: object) -> None:
        for request in (recipe, second_recipe):
            messages.append(error_message(lambda request=request: prepare(request, folder), OutputError))  # type: ignore[misc]

    prepare(recipe, folder, on_progress=start_second)
    assert set(messages) == {f"{work}: {BUSY}"}
    assert len(messages) >= 2 * 24
    assert not work.exists()
    prepare(recipe, text.parent / "undisturbed")
    assert read_files(folder) == read_files(text.parent / "undisturbed")


# --- errors -----------------------------------------------------------------------------------------------------------


def make_mistake(text: Path, mistake: str) -> list[str]:
    """Damage the text, and return the settings that trigger the error."""
    lines = random_sentences(60, 1)
    match mistake:
        case "not UTF-8":
            (text / "train.en").write_bytes("".join(f"{line}\n" for line in lines[:49]).encode() + b"bala \xff\n" * 11)
        case "unequal":
            write_file(text / "train.de", random_sentences(59, 2))
        case "missing":
            (text / "train.de").unlink()
        case "too long":
            write_file(text / "train.en", [*lines[:59], "bala " * 90])
            return ["data.max_length=60", "data.overlong_pairs=error"]
    return []


MISTAKES = {
    "not UTF-8": "train.en, line 50: not UTF-8 (byte 0xff at column 6)",
    "unequal": "train.de has 59 lines but ",
    "missing": "train.de: there is no such file (data.root = ",
    "too long": "train.en:60: ",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_keeps_old_files(text: Path, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch, 8)
    expected = read_files(prepare_text(text).folder)
    settings = make_mistake(text, mistake)
    message = error_message(lambda: prepare_text(text, *settings), DragomanError)
    assert MISTAKES[mistake] in message
    assert str(text) in message
    assert has_no_other_files(text)
    assert read_files(text.parent / "data") == expected


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["not UTF-8", "too long"])
def test_workers_report_the_same_error(text: Path, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch, 8)
    settings = [*make_mistake(text, mistake), "data.preprocessing_workers=2", "data.cleaning.source_equals_target=true"]
    assert MISTAKES[mistake] in error_message(lambda: prepare_text(text, *settings))
    assert has_no_other_files(text)


def test_rejected_files_replace_nothing(text: Path) -> None:
    before = read_files(prepare_text(text).folder)
    offered: list[dict[str, str]] = []

    def reject(digests: dict[str, str]) -> None:
        offered.append(digests)
        raise RunError("begun with another corpus")

    recipe = make_test_recipe(text, "tokenizer.vocab_size=310")
    for _ in range(2):
        assert (
            error_message(lambda: prepare(recipe, text.parent / "data", accept=reject), RunError) == "begun with another corpus"
        )
        assert read_files(text.parent / "data") == before
        assert has_no_other_files(text)
    assert sorted(offered[0]) == sorted(before.keys() - {"prepared.json"})
    offered_again: list[dict[str, str]] = []
    assert not prepare(make_test_recipe(text), text.parent / "data", accept=offered_again.append).is_new
    assert offered_again == [json.loads(before["prepared.json"])["files"]]


def test_corpus_without_pairs_raises_before_tokenizer_training(text: Path) -> None:
    notices: list[str] = []

    def prepare_error(*overrides: str, **data: Any) -> str:
        return error_message(lambda: prepare_text(text, *overrides, notify=notices.append, **data))

    write_tsv(text / "same.tsv", [(source, source) for source, _ in random_pairs(40, 1)])
    corpora = {"all": {"source": "train.en", "target": "train.de"}, "same": {"file": "same.tsv"}}
    reason = "40 pairs dropped by cleaning (source-equals-target 40; dragoman clean shows examples)"
    message = prepare_error("data.cleaning.source_equals_target=true", corpora=corpora)
    assert message.startswith(f"{text / 'same.tsv'}: no pair is left ({reason}); ")
    valid = text / "valid.tsv"
    for lines, reason in ((["\t", "\t"], "2 pairs with an empty side dropped"), ([], "the corpus is empty")):
        write_file(valid, lines)
        assert prepare_error().startswith(f"{valid}: no pair is left ({reason}")
    write_file(valid, ["bala\tmara", "bala"])
    assert str(valid) in prepare_error()
    assert not any("training a" in notice for notice in notices)
    message = prepare_error("data.max_length=2", valid=None)
    assert "no pair is left (60 pairs beyond data.max_length dropped" in message
    assert has_no_other_files(text)


def test_recipe_without_corpus_raises(tmp_path: Path) -> None:
    with raises_code("missing-key"):
        prepare(make_recipe({}), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = text.parent / "data"
    folder.touch()
    assert error_message(lambda: prepare_text(text), OutputError).startswith(f"{folder}: cannot be written: ")
    folder.unlink()

    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, os.strerror(28))

    for module, name in (
        (encoded_corpus_module, "write_batches"),
        (cleaned_corpus_module, "write_json"),
        (prepare_module, "write_tokenizer"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            assert error_message(lambda: prepare_text(text), OutputError).startswith(f"{folder}: the disk is full (")
        assert prepare_text(text).is_new
        shutil.rmtree(folder)


# --- standard input ---------------------------------------------------------------------------------------------------

PIPE: dict[str, Any] = {"train": {"file": "-", "format": "tsv"}}


class Closed(io.RawIOBase):
    """Standard input that raises when it is read."""

    def readinto(self, _: Any) -> NoReturn:
        raise AssertionError("standard input was read")

    def readable(self) -> bool:
        return True


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[tuple[str, str]] | None], None]:
    """Function that puts pairs into standard input; with None, reading it fails the test."""

    def put(pairs: Sequence[tuple[str, str]] | None) -> None:
        text = "".join(f"{source}\t{target}\n" for source, target in pairs or ())
        stream = io.BytesIO(text.encode()) if pairs is not None else io.BufferedReader(Closed())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))

    return put


def test_standard_input_is_read_once(
    text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text)
    (text / "-").write_text("no pair\n")  # "-" means standard input, not this file
    pipe(random_pairs(60, 1))
    notices: list[str] = []
    first = prepare_text(text, notify=notices.append, **PIPE)
    assert notices[0] == "reading train: standard input"
    assert first.pair_counts["train"].kept == 60
    assert first.corpus("train").source(0).tolist() == first.tokenizer.encode_source(random_pairs(60, 1)[0][0])
    pipe(None)
    second = prepare_text(text, **PIPE)
    assert not second.is_new
    assert second.pair_counts == first.pair_counts
    pipe(random_pairs(50, 1))
    assert prepare_text(text, "tokenizer.vocab_size=310", **PIPE).pair_counts["train"].kept == 50


def test_empty_pipe_raises(text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None]) -> None:
    pipe([])
    assert error_message(lambda: prepare_text(text, **PIPE)).startswith(
        "standard input: no pair is left (the corpus is empty); "
    )
    assert has_no_other_files(text)


def test_interrupted_pipe_starts_again(
    text: Path, pipe: Callable[[Sequence[tuple[str, str]] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_parts(monkeypatch, 8)
    recipe = make_test_recipe(text, **PIPE)
    pipe(random_pairs(60, 2))
    prepare(recipe, text.parent / "undisturbed")
    for index in (3, 10, 14):
        pipe(random_pairs(60, 1))
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, text.parent / f"data-{index}", on_progress=interrupt_at([], index))
        pipe(random_pairs(60, 2))
        prepare(recipe, text.parent / f"data-{index}")
        assert read_files(text.parent / f"data-{index}") == read_files(text.parent / "undisturbed")
