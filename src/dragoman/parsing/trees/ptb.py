"""Trees in the bracket format of the Penn Treebank: `(S (NP (PRP It)) (VP (VBZ works)))`.

A word that is a bracket is escaped as -LRB-, -RRB-, -LSB-, -RSB-, -LCB- or -RCB-. A tree keeps the escaped form after reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.errors import DataError
from dragoman.parsing.trees.tree import Tree, TreeEvent, build_tree, format_brackets, iter_events

MAX_DEPTH = 100_000
"""Maximum depth of a tree that is read."""
MAX_TREE_CHARACTERS = 2**24
"""Maximum number of characters of a tree that is read."""
BRACKET_NAMES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

_IDENTIFIER = re.compile(r"[^()\t]*\t")
# A tag with its word; an opening bracket with its label; a closing one; anything else between spaces and brackets.
_TOKEN = re.compile(r"\(([^() \t\r\n]+)[ \t\r]+([^() \t\r\n]+)[ \t\r]*\)|(\([^() \t\r\n]*)|(\))|([^() \t\r\n]+)")
_LEAF, _OPEN, _CLOSE = 2, 3, 4
_SPACE = re.compile(r"[ \t\r\n]")


class LocatedTree(NamedTuple):
    """Tree with the number of its first line."""

    tree: Tree
    line: int


@dataclass(slots=True)
class _OpenBracket:
    """Open bracket; its label is None until the next token decides it."""

    label: str | None
    children: list[Tree | str] = field(default_factory=list)


def split_words(text: str) -> list[str]:
    """Return the words of a line, split at spaces and tabs as the bracket format does; other white space is part of a word."""
    return [word for word in _SPACE.split(text) if word] if text.strip() else []


def is_word(text: str) -> bool:
    """Return whether the bracket format can express the text as a word or a tag."""
    return bool(text) and _SPACE.search(text) is None


def escape_word(word: str) -> str:
    """Return the escaped form of a plain word: of a word that is a bracket, and of round brackets within a word."""
    return BRACKET_NAMES.get(word) or _escape_round_brackets(word)


def format_tree(tree: Tree) -> str:
    """Return the tree on one line with single spaces. Round brackets in words and labels are escaped.

    Raises ValueError for white space in a word or label, an empty word, and an empty tag, because no reader could restore them.
    """
    tree_events: list[TreeEvent] = []
    for kind, label, word in iter_events(tree):
        if kind == "leaf" and (not word or label == ""):
            raise ValueError(f"word {word!r} with tag {label!r}: is empty, which the bracket format cannot express")
        for text in (word, label or ""):
            if _SPACE.search(text):
                raise ValueError(f"{text!r}: has white space, which the bracket format cannot express; remove it")
        tree_events.append(TreeEvent(kind, label and _escape_round_brackets(label), _escape_round_brackets(word)))
    return format_brackets(build_tree(tree_events))


def _escape_round_brackets(text: str) -> str:
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def read_tree(text: str, *, name: str = "the tree") -> Tree:
    """Return the only tree in a text. Raises DataError if there is none or more than one."""
    trees = [located_tree.tree for located_tree in iter_trees(text.split("\n"), name)]
    if len(trees) != 1:
        raise DataError(f"{name}: has {len(trees)} trees; write exactly one", code="invalid-tree")
    return trees[0]


def iter_trees(lines: Iterable[str], name: str, *, max_depth: int = MAX_DEPTH, start_line: int = 1) -> Iterator[LocatedTree]:
    """Yield the trees of a file's lines.

    name: the file's name in error messages
    max_depth: maximum number of open brackets
    start_line: number of the first line

    A tree may span lines or share a line, and an identifier with a tab may precede it. A root may have an empty label, as in
    `( (S …))`. Raises DataError with the line for brackets that do not close, and for text outside of a tree.
    """
    open_brackets: list[_OpenBracket] = []
    tree_line = size = 0
    for line_number, line in enumerate(lines, start=start_line):
        identifier = _IDENTIFIER.match(line) if not open_brackets else None
        for token in _TOKEN.finditer(line, identifier.end() if identifier is not None else 0):
            kind = token.lastindex
            if not open_brackets:
                if kind not in (_LEAF, _OPEN):
                    raise DataError(
                        f"{name}, line {line_number}: {_describe_outside_token(token.group())}", code="invalid-tree"
                    )
                tree_line, size = line_number, 0
            finished_tree = _apply_token(open_brackets, token)
            if len(open_brackets) > max_depth:
                problem = f"the tree that begins in line {tree_line} is deeper than {max_depth} brackets"
                raise DataError(f"{name}, line {line_number}: {problem}", code="invalid-tree")
            if finished_tree is not None:
                yield LocatedTree(finished_tree, tree_line)
        size += len(line)
        if open_brackets and size > MAX_TREE_CHARACTERS:
            problem = f"the tree that begins in line {tree_line} is longer than {MAX_TREE_CHARACTERS >> 20} MiB"
            raise DataError(f"{name}, line {line_number}: {problem}", code="invalid-tree")
    if open_brackets:
        raise DataError(
            f"{name}, line {tree_line}: the tree that begins here has {len(open_brackets)} brackets that never close",
            code="invalid-tree",
        )


def _apply_token(open_brackets: list[_OpenBracket], token: re.Match[str]) -> Tree | None:
    """Apply one token to the open brackets. Return the tree if the token completes it."""
    kind = token.lastindex
    parent = open_brackets[-1] if open_brackets else None
    if kind == _CLOSE:
        assert parent is not None
        open_brackets.pop()
        finished_tree = Tree(parent.label or "", tuple(parent.children))
    elif kind == _OPEN:
        if parent is not None and parent.label is None:
            parent.label = ""
        open_brackets.append(_OpenBracket(token.group()[1:] or None))
        return None
    elif kind == _LEAF:
        tag, word = token.group(1, 2)
        finished_tree = Tree(tag, (word,))
    else:
        assert parent is not None
        if parent.label is None:
            parent.label = token.group()
        else:
            parent.children.append(token.group())
        return None
    if not open_brackets:
        return finished_tree
    if open_brackets[-1].label is None:
        open_brackets[-1].label = ""
    open_brackets[-1].children.append(finished_tree)
    return None


def _describe_outside_token(token: str) -> str:
    return "a bracket closes that never opened" if token == ")" else f"{token[:40]!r} is outside of any tree"
