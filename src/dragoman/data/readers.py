"""Pairs from files: two aligned plain files, or one with a tab between the sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from dragoman.config import CorpusConfig
from dragoman.data.pair import Pair
from dragoman.data.text import read_lines
from dragoman.errors import DataError


def corpus_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """The files that a corpus is made of, in a fixed order."""
    return [root / name for name in (corpus.source, corpus.target, corpus.tsv) if name is not None]


def read_pairs(corpus: CorpusConfig, root: Path) -> Iterator[Pair]:
    """Stream the pairs of a corpus. Raises DataError naming file and line."""
    files = corpus_files(corpus, root)
    return read_tsv(files[0]) if corpus.tsv is not None else read_aligned(files[0], files[1])


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Line n of one file with line n of the other. Files of unequal length are refused, both counts named."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (one, other) in enumerate(zip_longest(sources, targets), start=1):
        if one is None or other is None:
            rest = 1 + sum(1 for _ in (targets if one is None else sources))
            shorter, longer = (source, target) if one is None else (target, source)
            raise DataError(
                f"{shorter} has {number - 1} lines but {longer} has {number - 1 + rest}: "
                "line n of one must be the translation of line n of the other"
            )
        yield Pair(one, other, f"{source}:{number}")


def read_tsv(path: Path) -> Iterator[Pair]:
    """`source TAB target` on each line."""
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise DataError(f"{path}, line {number}: {len(fields)} tab-separated fields; expected 2, source and target")
        yield Pair(fields[0], fields[1], f"{path}:{number}")
