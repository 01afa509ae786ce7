"""Cleaned text on disk: corpora read once, sifted by several processes, and kept as Arrow files until they are used.

    files → Pairs → sifted chunks → NAME-00000.arrow, NAME-00001.arrow, … → which rows are repeated

A part that is whole has its tally beside it. A spool that was interrupted goes on after its last whole part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.deduplication import DuplicateSearch, digest_pairs, digest_sources
from dragoman.cleaning.rules import Rule, rules_of
from dragoman.cleaning.statistics import Tally, sift
from dragoman.config import CleaningConfig, CorpusConfig, Recipe, RuleName
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.io.storage import put_in_place, write_json
from dragoman.runtime.processes import spread

# Pairs that are sifted and encoded at once: so many, or so many characters of them, whichever comes first.
CHUNK = 16_384
CHUNK_CHARACTERS = 2**22
PART = 64 * CHUNK
SCHEMA = pa.schema(
    [("source", pa.large_string()), ("target", pa.large_string()), ("origin", pa.large_string()), ("number", pa.int64())]
)

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how many pairs of it are done, and how many there are where that is known."""


@dataclass(frozen=True)
class Sieve:
    """What sifts a chunk of pairs; sent to each process, where it makes its rules."""

    config: CleaningConfig
    source_language: str = ""
    target_language: str = ""
    evaluation: EvaluationTexts | None = None
    exempt: tuple[RuleName, ...] = ()

    @cached_property
    def rules(self) -> list[Rule]:
        return rules_of(
            self.config,
            source_language=self.source_language,
            target_language=self.target_language,
            evaluation=self.evaluation,
            exempt=self.exempt,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "rules"}

    def __call__(self, chunk: tuple[int, list[Pair]]) -> tuple[pa.RecordBatch, Tally]:
        """The pairs that stay, and what became of the others; the chunk comes with the number of its first pair."""
        first, pairs = chunk
        kept, tally = sift(pairs, self.rules)
        numbers: Sequence[int] = range(first, first + len(pairs))
        if len(kept) < len(pairs):
            places = {id(pair): number for number, pair in zip(numbers, pairs, strict=True)}
            numbers = [places[id(pair)] for pair in kept]
        columns = [[pair.source for pair in kept], [pair.target for pair in kept], [pair.origin for pair in kept], numbers]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.record_batch(arrays, schema=SCHEMA), tally


@dataclass
class Spool:
    """The cleaned text of one corpus."""

    name: str
    parts: list[Path]
    tally: Tally
    repeated: npt.NDArray[np.bool_] | None = None
    """Of the rows of all parts, those that an earlier row of this or another corpus makes superfluous."""

    def __len__(self) -> int:
        """Pairs that stay."""
        return self.tally.kept

    @property
    def num_rows(self) -> int:
        """Rows of all parts, those included that do not stay."""
        return sum(sum(_rows_of_batches(path)) for path in self.parts)

    def drop(self, rule: RuleName, rows: npt.NDArray[np.bool_]) -> None:
        """Let these rows go, too."""
        before = self.repeated if self.repeated is not None else np.zeros_like(rows)
        dropped = rows & ~before
        self.tally.apply(rule)
        row = 0
        for path, index, _ in self.places():
            batch = kept_rows(path, index)
            for pair in _pairs(batch.filter(pa.array(dropped[row : row + batch.num_rows]))):
                self.tally.drop(rule, pair)
            row += batch.num_rows
        self.repeated = before | rows

    def places(self, part: int | None = None) -> Iterator[tuple[Path, int, npt.NDArray[np.bool_] | None]]:
        """Each record batch (of one part), as a file and an index, with which of its rows stay; all where that is None."""
        row = 0
        for number, path in enumerate(self.parts):
            for index, rows in enumerate(_rows_of_batches(path)):
                keep = None if self.repeated is None else ~self.repeated[row : row + rows]
                row += rows
                if part in (None, number):
                    yield path, index, keep

    def pairs(self) -> Iterator[Pair]:
        """The pairs that stay, in order."""
        for place in self.places():
            yield from _pairs(kept_rows(*place))


def _pairs(batch: pa.RecordBatch) -> Iterator[Pair]:
    for source, target, origin in zip(*(batch.column(side).to_pylist() for side in range(3)), strict=True):
        yield Pair(source, target, origin)


def kept_rows(path: Path, index: int, keep: npt.NDArray[np.bool_] | None = None) -> pa.RecordBatch:
    """One record batch of a part, less the rows that do not stay."""
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(index)
    return batch if keep is None else batch.filter(pa.array(keep))


def _rows_of_batches(path: Path) -> list[int]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]


def spool_corpus(
    folder: Path, name: str, corpus: CorpusConfig, root: Path, sieve: Sieve, *, processes: int, progress: Progress
) -> Spool:
    """Read, sift and keep a corpus in `folder`, going on after the parts that are whole."""
    whole = [] if corpus.reads_standard_input else _whole_parts(folder, name)
    parts = [folder / f"{name}-{number:05d}.arrow" for number in range(len(whole))]
    tally = Tally.merged_all(Tally.from_dict(part["tally"]) for part in whole)
    if whole and whole[-1]["last"]:
        return Spool(name, parts, tally)
    pairs = read_pairs(corpus, root, source_language=sieve.source_language, target_language=sieve.target_language)
    chunks = _chunks(islice(pairs, tally.read, None), first=tally.read + 1)
    # With nothing but empty sides to look for, handing pairs to another process takes longer than looking.
    sifted = spread(sieve, chunks, processes=processes if len(sieve.rules) > 1 else 1)
    last = False
    while not last:
        path = folder / f"{name}-{len(parts):05d}.arrow"
        partly = Tally()
        unfinished = path.with_suffix(".partial")
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            last = True
            for batch, told in sifted:
                writer.write_batch(batch)
                partly = partly.merged(told)
                progress(f"reading {name}", tally.read + partly.read, None)
                if partly.read >= PART:
                    last = False
                    break
        put_in_place(unfinished, path)
        write_json(path.with_suffix(".json"), {"last": last, "tally": partly.to_dict()}, overwrite=True)
        parts.append(path)
        tally = tally.merged(partly)
    return Spool(name, parts, tally)


def _whole_parts(folder: Path, name: str) -> list[dict[str, Any]]:
    """What stands beside the parts that are whole, up to the first that is not."""
    found: list[dict[str, Any]] = []
    while (path := folder / f"{name}-{len(found):05d}.json").exists() and path.with_suffix(".arrow").exists():
        found.append(json.loads(path.read_bytes()))
    return found


def _chunks(pairs: Iterable[Pair], *, first: int) -> Iterator[tuple[int, list[Pair]]]:
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(chunk) == CHUNK or characters > CHUNK_CHARACTERS:
            yield first, chunk
            first += len(chunk)
            chunk, characters = [], 0
    if chunk:
        yield first, chunk


def drop_repeated(
    spools: Sequence[Spool], folder: Path, config: CleaningConfig, exempt: Sequence[Sequence[str]], *, processes: int
) -> None:
    """Mark the rows that repeat an earlier one, across all corpora in their order, as the rules on duplicates ask."""
    asked: list[tuple[RuleName, bool]] = [
        ("duplicate-pair", config.duplicate_pairs),
        ("duplicate-source", config.duplicate_sources),
    ]
    for rule, wanted in asked:
        if not wanted:
            continue
        places = [place[:2] for spool in spools for place in spool.places()]
        with DuplicateSearch(folder / rule) as search:
            for digests in spread(partial(_digests, rule), places, processes=processes):
                search.add(digests)
            repeated = search.repeated()
        ends = np.cumsum([spool.num_rows for spool in spools])
        for spool, rows, exempted in zip(spools, np.split(repeated, ends[:-1]), exempt, strict=True):
            if rule not in exempted:
                spool.drop(rule, rows)


def _digests(rule: RuleName, place: tuple[Path, int]) -> npt.NDArray[np.uint64]:
    batch = kept_rows(*place)
    sources = batch.column(0).to_pylist()
    return digest_sources(sources) if rule == "duplicate-source" else digest_pairs(sources, batch.column(1).to_pylist())


def spool_training(recipe: Recipe, folder: Path, *, processes: int, progress: Progress) -> list[Spool]:
    """Read and clean the corpora that the recipe learns from, each into its files in `folder`."""
    root, cleaning = Path(recipe.data.root), recipe.data.cleaning
    corpora = recipe.data.training_corpora()
    if not corpora:
        raise RecipeError("data.train is not given: name the files to learn from, or those of a mixture in data.corpora")
    sieve = Sieve(cleaning, recipe.task.source_language, recipe.task.target_language)
    if cleaning.eval_overlap:
        sieve = replace(sieve, evaluation=EvaluationTexts.of(_evaluation_pairs(recipe, root)))
    folder.mkdir(parents=True, exist_ok=True)
    spools = []
    for name, corpus in corpora.items():
        own = replace(sieve, exempt=tuple(corpus.skip_filters))
        spools.append(spool_corpus(folder, name, corpus, root, own, processes=processes, progress=progress))
    exempt = [corpus.skip_filters for corpus in corpora.values()]
    drop_repeated(spools, folder, cleaning, exempt, processes=processes)
    return spools


def _evaluation_pairs(recipe: Recipe, root: Path) -> Iterator[Pair]:
    languages = {"source_language": recipe.task.source_language, "target_language": recipe.task.target_language}
    for corpus in (recipe.data.valid, recipe.data.test):
        if corpus is not None:
            yield from read_pairs(corpus, root, **languages)
