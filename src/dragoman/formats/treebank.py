"""Constituency trees in the brackets of the Penn treebank: `(S (NP (PRP It)) (VP (VBZ works)))`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.formats.pair import Pair
from dragoman.formats.text import name_of, read_lines
from dragoman.trees import ptb as penn
from dragoman.trees.tree import brackets, words

DEEPEST = 1_000
"""Brackets within brackets that are still read; sentences come nowhere near."""


def read_trees(path: Path | None, *, words: penn.Words = "escaped", deepest: int = penn.DEEPEST) -> Iterator[penn.Placed]:
    """Stream a file's trees (standard input's for None), each with the line that it begins in.

    A tree may span lines or share one, and an identifier and a tab may stand before it. Raises DataError naming the line.
    """
    return penn.read(read_lines(path), name_of(path), words=words, deepest=deepest)


def read_brackets(path: Path | None) -> Iterator[Pair]:
    """Each tree's words without its traces, with the tree on one line, single spaces in it.

    Raises DataError naming the line.
    """
    name = name_of(path)
    for tree, line in read_trees(path, deepest=DEEPEST):
        yield Pair(" ".join(words(tree)), brackets(tree), f"{name}:{line}")
