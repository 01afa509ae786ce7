"""Constituency trees in Penn Treebank brackets: `(S (NP (PRP It)) (VP (VBZ works)))`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path, read_lines
from dragoman.parsing.trees import ptb
from dragoman.parsing.trees.tree import format_brackets, get_words

MAX_TREE_DEPTH = 1_000
"""Largest number of nested brackets, far beyond that of any sentence."""


def read_trees(path: Path | None, *, max_depth: int = ptb.MAX_DEPTH) -> Iterator[ptb.LocatedTree]:
    """Return an iterator over the trees of a file, each with the line in which it begins. A path of None is standard input.

    A tree may span several lines or share one, and an identifier and a tab may precede it. Raises DataError, which names the
    line, for brackets that do not match and for trees over `max_depth`.
    """
    return ptb.iter_trees(read_lines(path), describe_path(path), max_depth=max_depth)


def read_brackets(path: Path | None) -> Iterator[Pair]:
    """Yield the words of each tree, without traces, as the source, and the tree on one line as the target.

    Raises DataError, which names the line, for brackets that do not match.
    """
    name = describe_path(path)
    for tree, line in read_trees(path, max_depth=MAX_TREE_DEPTH):
        yield Pair(" ".join(get_words(tree)), format_brackets(tree), f"{name}:{line}")
