"""Constituency trees in the brackets of the Penn treebank: `(S (NP (PRP It)) (VP (VBZ works)))`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path, read_lines
from dragoman.trees import ptb as penn
from dragoman.trees.tree import format_brackets, get_words

MAX_TREE_DEPTH = 1_000
"""Brackets within brackets that are still read; sentences come nowhere near."""


def read_trees(
    path: Path | None, *, word_form: penn.WordForm = "escaped", max_depth: int = penn.MAX_DEPTH
) -> Iterator[penn.LocatedTree]:
    """Stream a file's trees (standard input's for None), each with the line that it begins in.

    A tree may span lines or share one, and an identifier and a tab may stand before it. Raises DataError naming the line.
    """
    return penn.iter_trees(read_lines(path), describe_path(path), word_form=word_form, max_depth=max_depth)


def read_brackets(path: Path | None) -> Iterator[Pair]:
    """Each tree's words without its traces, with the tree on one line, single spaces in it.

    Raises DataError naming the line.
    """
    name = describe_path(path)
    for tree, line in read_trees(path, max_depth=MAX_TREE_DEPTH):
        yield Pair(" ".join(get_words(tree)), format_brackets(tree), f"{name}:{line}")
