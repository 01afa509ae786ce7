"""Encoding of text to ids: each part of a cleaned corpus becomes a file of encoded pairs, by several processes."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from dragoman.cleaning.cleaned_corpus import BatchReference, CleanedCorpus, ProgressCallback, read_batch
from dragoman.data.encoded_corpus import build_pair_batch, build_pair_schema, get_pair_file
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.vocabulary import StructuredVocabulary
from dragoman.data.tokenization.written_characters import WrittenCharacters
from dragoman.errors import DataError
from dragoman.formats.parquet import atomic_arrow_file
from dragoman.io.storage import write_json
from dragoman.runtime.processes import MapFunction, map_in_processes

MAX_LISTED_ORIGINS = 5
"""Number of pairs that a message lists as examples."""


@dataclass
class PairStats:
    """Numbers of pairs of one corpus that were kept, dropped or truncated, with the file and line of examples.

    read: pairs that were read
    kept: pairs that were encoded
    overlong_pairs: pairs longer than data.max_length, which were dropped or truncated
    source_tokens: source tokens of the kept pairs, with end tokens
    target_tokens: target tokens of the kept pairs, with end tokens
    dropped: pairs that cleaning dropped, by rule
    overlong_examples: file and line of overlong pairs
    dropped_examples: file and line of dropped pairs, by rule
    unknown_labels: labels of trees that no training tree has, with their counts
    unwritten_target, unwritten_source: characters of each side that its tokenizer cannot write, with their counts
    """

    read: int = 0
    kept: int = 0
    overlong_pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    overlong_examples: list[str] = field(default_factory=list)
    dropped_examples: dict[str, list[str]] = field(default_factory=dict)
    unknown_labels: dict[str, int] = field(default_factory=dict)
    unwritten_target: dict[str, int] = field(default_factory=dict)
    unwritten_source: dict[str, int] = field(default_factory=dict)

    def count_empty(self, origin: str) -> None:
        """Count a dropped pair with an empty side."""
        self.dropped["empty"] = self.dropped.get("empty", 0) + 1
        examples = self.dropped_examples.setdefault("empty", [])
        examples += [origin][: MAX_LISTED_ORIGINS - len(examples)]

    def count_overlong(self, origin: str) -> None:
        self.overlong_pairs += 1
        self.overlong_examples += [origin][: MAX_LISTED_ORIGINS - len(self.overlong_examples)]

    def add(self, stats: PairStats) -> None:
        for name in ("read", "kept", "overlong_pairs", "source_tokens", "target_tokens"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        for rule, count in stats.dropped.items():
            self.dropped[rule] = self.dropped.get(rule, 0) + count
            examples = self.dropped_examples.setdefault(rule, [])
            examples += stats.dropped_examples.get(rule, [])[: MAX_LISTED_ORIGINS - len(examples)]
        for name in ("unknown_labels", "unwritten_target", "unwritten_source"):
            counts = Counter(getattr(self, name)) + Counter(getattr(stats, name))
            setattr(self, name, dict(counts))
        self.overlong_examples += stats.overlong_examples[: MAX_LISTED_ORIGINS - len(self.overlong_examples)]

    def summarize(self, overlong_action: str, *, examples: str = "examples in cleaning.html") -> list[str]:
        """Return one line for each reason to drop or change pairs.

        examples: the source of more examples of dropped pairs
        """
        messages = []
        if empty := self.dropped.get("empty", 0):
            messages.append(
                f"{empty:,} pairs with an empty side dropped ({_join_examples(self.dropped_examples.get('empty', []), empty)})"
            )
        by_filter = {rule: count for rule, count in self.dropped.items() if rule != "empty"}
        if by_filter:
            rules = ", ".join(f"{rule} {count:,}" for rule, count in by_filter.items())
            messages.append(f"{sum(by_filter.values()):,} pairs dropped by cleaning ({rules}; {examples})")
        if self.overlong_pairs:
            verb = {"drop": "dropped", "truncate": "truncated"}[overlong_action]
            overlong_examples = _join_examples(self.overlong_examples, self.overlong_pairs)
            messages.append(f"{self.overlong_pairs:,} pairs beyond data.max_length {verb} ({overlong_examples})")
        if self.unknown_labels:
            labels = [f"{label} {count}" for label, count in self.unknown_labels.items()]
            messages.append(
                f"{len(labels)} labels that no training tree has ({_join_examples(labels[:MAX_LISTED_ORIGINS], len(labels))})"
            )
        if self.unwritten_target:
            counts = sorted(self.unwritten_target.items(), key=lambda item: -item[1])
            characters = [f"{describe_character(character)} {count}" for character, count in counts]
            messages.append(
                f"{len(characters)} characters of the target that the vocabulary cannot write "
                f"({_join_examples(characters[:MAX_LISTED_ORIGINS], len(characters))})"
            )
        return messages

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PairStats:
        """Return the statistics that `asdict` turned into `document`. Raise TypeError or KeyError for anything else."""
        return cls(**{attribute.name: document[attribute.name] for attribute in fields(cls)})


def describe_character(character: str) -> str:
    """Return a character as messages show it, or its code point if it is invisible."""
    is_visible = character.isprintable() and not unicodedata.category(character).startswith("M")
    return character if is_visible else f"U+{ord(character):04X}"


def _join_examples(examples: list[str], count: int) -> str:
    return ", ".join(examples) + (", …" if count > len(examples) else "")


@dataclass(frozen=True)
class PairEncoder:
    """Encoder of record batches of text; each process receives a copy.

    tokenizer: the tokenizers of both sides
    max_length: limit of each side in tokens with its end token; None for no limit
    overlong_pairs: action for pairs above the limit
    is_reversed: whether the target side of the text is the source
    """

    tokenizer: PairTokenizer
    max_length: int | None
    overlong_pairs: Literal["drop", "truncate", "error"]
    is_reversed: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        return build_pair_schema(max(len(self.tokenizer.source), len(self.tokenizer.target)))

    @cached_property
    def _written_characters(self) -> tuple[WrittenCharacters, WrittenCharacters]:
        return WrittenCharacters(self.tokenizer.source), WrittenCharacters(self.tokenizer.target)

    def __call__(self, batch: BatchReference | pa.RecordBatch) -> tuple[pa.RecordBatch, PairStats]:
        """Return the encoded rows of a batch, and their statistics."""
        text, stats = read_batch(batch), PairStats()
        if not self.tokenizer.has_text_target:
            labels = cast(StructuredVocabulary, self.tokenizer.target)
            columns = text.column(1).to_pylist(), text.column(2).to_pylist()
            sources, targets, stats.unknown_labels = labels.encode_pairs(*columns, self.tokenizer.source)
        else:
            columns = text.column(0).to_pylist(), text.column(1).to_pylist()
            source_texts, target_texts = reversed(columns) if self.is_reversed else columns
            sources = self.tokenizer.source.encode_batch(source_texts)
            targets = self.tokenizer.target.encode_batch(target_texts)
            stats.unwritten_source, stats.unwritten_target = (
                writer.count_unwritten(texts)
                for writer, texts in zip(self._written_characters, (source_texts, target_texts), strict=True)
            )
        pair_numbers: list[int] = text.column(3).to_pylist()
        text_lengths = np.array([list(map(len, sources)), list(map(len, targets))], dtype=np.int64).reshape(2, -1)
        lengths = text_lengths + np.array([[len(prefix)] for prefix in self.tokenizer.prefixes])
        if len(
            unfit_rows := np.flatnonzero(
                (text_lengths.min(axis=0) == 0) | (lengths.max(axis=0) >= (self.max_length or sys.maxsize))
            )
        ):
            dropped_rows = {
                row
                for row in unfit_rows.tolist()
                if not self._truncate_or_drop(sources, targets, row, text.column(2)[row].as_py(), stats)
            }
            remaining_rows = [row for row in range(len(pair_numbers)) if row not in dropped_rows]
            sources, targets = [sources[row] for row in remaining_rows], [targets[row] for row in remaining_rows]
            pair_numbers = [pair_numbers[row] for row in remaining_rows]
        source_prefix, target_prefix = self.tokenizer.prefixes
        eos_ids = self.tokenizer.encode_source("")
        for source, target in zip(sources, targets, strict=True):
            source[:0], target[:0] = source_prefix, target_prefix
            source += eos_ids
        encoded = build_pair_batch(sources, targets, pair_numbers, self.schema)
        stats.kept = len(pair_numbers)
        stats.source_tokens = len(encoded.column(0).values)
        stats.target_tokens = len(encoded.column(1).values) + len(pair_numbers)
        return encoded, stats

    def _truncate_or_drop(
        self, sources: list[list[int]], targets: list[list[int]], row: int, origin: str, stats: PairStats
    ) -> bool:
        """Return whether a pair with an empty or an overlong side is kept; truncate it in place if the recipe requests that."""
        if not sources[row] or not targets[row]:
            stats.count_empty(origin)
            return False
        assert self.max_length is not None
        if self.overlong_pairs == "error":
            sides = zip((sources, targets), self.tokenizer.prefixes, strict=True)
            longest = max(len(side[row]) + len(prefix) for side, prefix in sides) + 1
            raise DataError(
                f"{origin}: {longest} tokens, more than data.max_length = {self.max_length}; raise it, or set "
                "data.overlong_pairs to 'drop' or 'truncate'",
                code="input-too-long",
            )
        stats.count_overlong(origin)
        for side, prefix in zip((sources, targets), self.tokenizer.prefixes, strict=True):
            del side[row][max(self.max_length - 1 - len(prefix), 0) :]
        return self.overlong_pairs == "truncate"


def encode_corpus(
    cleaned_corpus: CleanedCorpus,
    folder: Path,
    name: str,
    encoder: PairEncoder,
    *,
    num_workers: int,
    on_progress: ProgressCallback,
    map_items: MapFunction = map_in_processes,
) -> PairStats:
    """Write the files of encoded pairs that do not exist yet, and return the statistics of all pairs.

    name: the prefix of their names
    on_progress: receives the task, the pairs done and the number of pairs
    map_items: function that encodes the batches
    """
    total_stats = PairStats()
    pending_parts = []
    for part in range(len(cleaned_corpus.files)):
        stats_path = get_pair_file(folder, name, part).with_suffix(".json")
        if stats_path.exists():
            total_stats.add(PairStats.from_dict(json.loads(stats_path.read_bytes())))
        else:
            pending_parts.append(part)
    batch_references = {part: list(cleaned_corpus.iter_batches(part)) for part in pending_parts}
    pending = (reference for part in pending_parts for reference in batch_references[part])
    results = map_items(encoder, pending, num_processes=num_workers)
    for part in pending_parts:
        path, stats = get_pair_file(folder, name, part), PairStats()
        with atomic_arrow_file(path, encoder.schema) as writer:
            for batch, batch_stats in islice(results, len(batch_references[part])):
                writer.write_batch(batch)
                stats.add(batch_stats)
                on_progress(f"encoding {cleaned_corpus.name}", total_stats.kept + stats.kept, len(cleaned_corpus))
        write_json(path.with_suffix(".json"), asdict(stats))
        total_stats.add(stats)
    return total_stats
