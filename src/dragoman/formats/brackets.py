"""Constituency trees in the brackets of the Penn treebank: `(S (NP (PRP It)) (VP (VBZ works)))`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.lines import LONGEST, name_of, read_lines
from dragoman.formats.pair import Pair

DEEPEST = 1_000
"""Brackets within brackets that are still read; sentences come nowhere near."""
_TRACE = "-NONE-"
_IDENTIFIER = re.compile(r"[^()\t]*\t")
_TOKEN = re.compile(r"[()]|[^() \t\r\n]+")


def read_brackets(path: Path | None) -> Iterator[Pair]:
    """Each tree's words without its traces, with the tree on one line, single spaces in it.

    A tree may span lines or share one, and an identifier and a tab may stand before it. Raises DataError naming the line for
    brackets that do not close, and for text outside of a tree.
    """
    name = name_of(path)
    tree = _Tree()
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{name}, line {number}"
        identifier = _IDENTIFIER.match(line) if not tree.labels else None
        for token in _TOKEN.finditer(line, identifier.end() if identifier is not None else 0):
            if not tree.labels and token.group() != "(":
                what = (
                    "a bracket closes that was never opened"
                    if token.group() == ")"
                    else f"{token.group()[:40]!r} is in no tree"
                )
                raise DataError(f"{where}: {what}")
            if not tree.labels:
                tree = _Tree(number)
            tree.add(token.group())
            if len(tree.labels) > DEEPEST or tree.size > LONGEST:
                limit = f"deeper than {DEEPEST} brackets" if tree.size <= LONGEST else f"longer than {LONGEST >> 20} MiB"
                raise DataError(f"{where}: the tree that begins in line {tree.line} is {limit}")
            if not tree.labels:
                yield Pair(" ".join(tree.words), "".join(tree.written), f"{name}:{tree.line}")
    if tree.labels:
        raise DataError(f"{name}, line {tree.line}: the tree that begins here has {len(tree.labels)} brackets that never close")


class _Tree:
    """A tree as far as it has been read: the labels of the brackets open in it, its words, and itself in pieces."""

    def __init__(self, line: int = 0) -> None:
        self.line = line
        self.labels: list[str | None] = []  # None where a bracket's label is yet to come
        self.words: list[str] = []
        self.written: list[str] = []
        self.size = 0

    def add(self, token: str) -> None:
        """Go on by a bracket, a label (the word after an opening one) or a word."""
        self.size += len(token) + 1
        label = self.labels[-1] if self.labels else ""
        if token == ")":
            self.labels.pop()
            self.written.append(token)
        elif token == "(":
            if label is None:
                self.labels[-1] = ""
            self.written.append(" (" if self.labels else "(")
            self.labels.append(None)
        elif label is None:
            self.labels[-1] = token
            self.written.append(token)
        else:
            self.written.append(f" {token}")
            if label != _TRACE:
                self.words.append(token)
