"""Text to ids: each part of a spool becomes a file of encoded pairs, by several processes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.cleaning.cleaned_corpus import Progress, Spool, kept_rows
from dragoman.data.encoded_corpus import pair_file, pairs_batch, schema_of, write_batches
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.data.tokenization.tree_labels import Labels, source_text
from dragoman.errors import DataError
from dragoman.io.storage import put_in_place, write_json
from dragoman.runtime.processes import spread
from dragoman.trees.ptb import read_tree
from dragoman.trees.tree import leaves

NAMED = 5


@dataclass
class Fate:
    """What became of the pairs of one corpus, with the places of some that did not stay as they were."""

    read: int = 0
    kept: int = 0
    overlong_pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """By the rule that did it."""
    over_long_at: list[str] = field(default_factory=list)
    dropped_at: dict[str, list[str]] = field(default_factory=dict)
    unknown_labels: dict[str, int] = field(default_factory=dict)
    """Of trees: labels that are in none of those that were learnt from."""

    def drop(self, rule: str, origin: str) -> None:
        self.dropped[rule] = self.dropped.get(rule, 0) + 1
        places = self.dropped_at.setdefault(rule, [])
        places += [origin][: NAMED - len(places)]

    def too_long(self, origin: str) -> None:
        self.overlong_pairs += 1
        self.over_long_at += [origin][: NAMED - len(self.over_long_at)]

    def add(self, other: Fate) -> None:
        """Count what became of further pairs."""
        for name in ("read", "kept", "overlong_pairs", "source_tokens", "target_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for rule, count in other.dropped.items():
            self.dropped[rule] = self.dropped.get(rule, 0) + count
            places = self.dropped_at.setdefault(rule, [])
            places += other.dropped_at.get(rule, [])[: NAMED - len(places)]
        for label, count in other.unknown_labels.items():
            self.unknown_labels[label] = self.unknown_labels.get(label, 0) + count
        self.over_long_at += other.over_long_at[: NAMED - len(self.over_long_at)]

    def sentences(self, overlong_pairs: str, *, examples: str = "examples in cleaning.html") -> list[str]:
        """One line for people on each kind of pair that did not stay as it was."""
        told = []
        if empty := self.dropped.get("empty", 0):
            told.append(f"{empty} pairs with an empty side dropped ({_some(self.dropped_at.get('empty', []), empty)})")
        by_rules = {rule: count for rule, count in self.dropped.items() if rule != "empty"}
        if by_rules:
            rules = ", ".join(f"{rule} {count}" for rule, count in by_rules.items())
            told.append(f"{sum(by_rules.values())} pairs dropped by cleaning ({rules}; {examples})")
        if self.overlong_pairs:
            done = {"drop": "dropped", "truncate": "truncated"}[overlong_pairs]
            told.append(
                f"{self.overlong_pairs} pairs beyond data.max_length {done} ({_some(self.over_long_at, self.overlong_pairs)})"
            )
        if self.unknown_labels:
            labels = [f"{label} {count}" for label, count in self.unknown_labels.items()]
            told.append(f"{len(labels)} labels that no tree to learn from has ({_some(labels[:NAMED], len(labels))})")
        return told

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Fate:
        """What `asdict` gave, perhaps before it told of unknown labels. Raises TypeError or KeyError for anything else."""
        whole = {"unknown_labels": {}, **document}
        return cls(**{one.name: whole[one.name] for one in fields(cls)})


def _some(places: list[str], count: int) -> str:
    return ", ".join(places) + (", …" if count > len(places) else "")


@dataclass(frozen=True)
class Encoder:
    """Encodes a record batch of text; sent to each process."""

    tokeniser: Tokeniser
    limit: int | None
    """Longest side in tokens with its end token; none for text that stays as it is."""
    overlong_pairs: Literal["drop", "truncate", "error"]

    @cached_property
    def schema(self) -> pa.Schema:
        return schema_of(max(len(self.tokeniser.source), len(self.tokeniser.target)))

    def __call__(self, place: tuple[Path, int, npt.NDArray[np.bool_] | None]) -> tuple[pa.RecordBatch, Fate]:
        """The encoded rows, and what became of them."""
        text, fate = kept_rows(*place), Fate()
        if isinstance(self.tokeniser.target, Labels):
            sources, targets = self._of_trees(self.tokeniser.target, text, fate)
        else:
            sources = self.tokeniser.source.encode_many(text.column(0).to_pylist())
            targets = self.tokeniser.target.encode_many(text.column(1).to_pylist())
        numbers: list[int] = text.column(3).to_pylist()
        lengths = np.array([list(map(len, sources)), list(map(len, targets))], dtype=np.int64).reshape(2, -1)
        if len(odd := np.flatnonzero((lengths.min(axis=0) == 0) | (lengths.max(axis=0) >= (self.limit or sys.maxsize)))):
            dropped = {row for row in odd.tolist() if not self._fit(sources, targets, row, text.column(2)[row].as_py(), fate)}
            kept = [row for row in range(len(numbers)) if row not in dropped]
            sources, targets = [sources[row] for row in kept], [targets[row] for row in kept]
            numbers = [numbers[row] for row in kept]
        end = self.tokeniser.encode_source("")
        for source in sources:
            source += end
        batch = pairs_batch(sources, targets, numbers, self.schema)
        fate.kept = len(numbers)
        fate.source_tokens = len(batch.column(0).values)
        fate.target_tokens = len(batch.column(1).values) + len(numbers)
        return batch, fate

    def _of_trees(self, labels: Labels, text: pa.RecordBatch, fate: Fate) -> tuple[list[list[int]], list[list[int]]]:
        """The words and the labels of trees in brackets. Raises DataError for one that cannot be told in tokens."""
        origins: list[str] = text.column(2).to_pylist()
        unknown = Counter[str]()
        lines, targets = [], []
        for line, origin in zip(text.column(1).to_pylist(), origins, strict=True):
            tree = labels.plain(read_tree(line, name=origin))
            lines.append(source_text([leaf.word for leaf in leaves(tree)]))
            try:
                targets.append(labels.encode_tree(tree, unknown))
            except DataError as error:
                raise DataError(f"{origin}: {error}") from None
        sources = self.tokeniser.source.encode_many(lines)
        begins_V = self.tokeniser.source.begins
        for words, source, origin in zip(lines, sources, origins, strict=True):
            if (begun := int(begins_V[source].sum())) != len(words.split(" ")):
                raise DataError(f"{origin}: the subword model makes {begun} words of {len(words.split(' '))}; learn another")
        fate.unknown_labels = dict(unknown)
        return sources, targets

    def _fit(self, sources: list[list[int]], targets: list[list[int]], row: int, origin: str, fate: Fate) -> bool:
        """Whether a pair with an empty or an over-long side stays; it is truncated in place where the recipe says so."""
        if not sources[row] or not targets[row]:
            fate.drop("empty", origin)
            return False
        assert self.limit is not None
        if self.overlong_pairs == "error":
            longest = max(len(sources[row]), len(targets[row])) + 1
            raise DataError(
                f"{origin}: {longest} tokens, more than data.max_length = {self.limit}; raise it, or set data.overlong_pairs to "
                "'drop' or 'truncate'"
            )
        fate.too_long(origin)
        for side in (sources, targets):
            del side[row][self.limit - 1 :]
        return self.overlong_pairs == "truncate"


def encode_spool(spool: Spool, folder: Path, name: str, encoder: Encoder, *, processes: int, progress: Progress) -> Fate:
    """Write the files of encoded pairs, save those that stand whole; return what became of the spool's pairs."""
    whole = Fate()
    wanted = []
    for part in range(len(spool.parts)):
        beside = pair_file(folder, name, part).with_suffix(".json")
        if beside.exists():
            whole.add(Fate.from_dict(json.loads(beside.read_bytes())))
        else:
            wanted.append(part)
    places = {part: list(spool.places(part)) for part in wanted}
    encoded = spread(encoder, (place for part in wanted for place in places[part]), processes=processes)
    for part in wanted:
        fate = Fate()

        def batches(part: int = part, fate: Fate = fate) -> Iterator[pa.RecordBatch]:
            for batch, told in islice(encoded, len(places[part])):
                fate.add(told)
                progress(f"encoding {spool.name}", whole.kept + fate.kept, len(spool))
                yield batch

        path = pair_file(folder, name, part)
        write_batches(path.with_suffix(".partial"), batches(), encoder.schema)
        put_in_place(path.with_suffix(".partial"), path)
        write_json(path.with_suffix(".json"), asdict(fate))
        whole.add(fate)
    return whole
