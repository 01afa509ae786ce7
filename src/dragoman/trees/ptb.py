"""Trees in the brackets of the Penn treebank: `(S (NP (PRP It)) (VP (VBZ works)))`.

A word that is a bracket stands there by its name, -LRB-, -RRB-, -LSB-, -RSB-, -LCB- or -RCB-. That name is what a tree holds
after reading, unless plain words are asked for, in reading as in writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dragoman.errors import DataError
from dragoman.trees.tree import Tree, TreeEvent, build_tree, format_brackets, iter_events

WordForm = Literal["escaped", "plain"]
"""Whether brackets among a tree's words bear the names that files have for them, or are ( ) [ ] { }."""

MAX_DEPTH = 100_000
"""Brackets within brackets that are still read."""
MAX_TREE_CHARACTERS = 2**24
"""Characters of the longest tree that is still read."""
BRACKET_NAMES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

_BRACKETS_BY_NAME = {name: sign for sign, name in BRACKET_NAMES.items()}
_IDENTIFIER = re.compile(r"[^()\t]*\t")
# A tag with its word; an opening bracket with its label; a closing one; anything else between spaces and brackets.
_TOKEN = re.compile(r"\(([^() \t\r\n]+)[ \t\r]+([^() \t\r\n]+)[ \t\r]*\)|(\([^() \t\r\n]*)|(\))|([^() \t\r\n]+)")
_LEAF, _OPEN, _CLOSE = 2, 3, 4
_SPACE = re.compile(r"[ \t\r\n]")


class LocatedTree(NamedTuple):
    """A tree, and the line that it begins in."""

    tree: Tree
    line: int


@dataclass(slots=True)
class _OpenBracket:
    """A bracket that is open yet; its label is None as long as it may still come."""

    label: str | None
    children: list[Tree | str] = field(default_factory=list)


def split_words(text: str) -> list[str]:
    """The words of a line, as brackets part them: by spaces and tabs, while a thin or a no-break space may stand in a word."""
    return [word for word in _SPACE.split(text) if word] if text.strip() else []


def is_word(text: str) -> bool:
    """Whether brackets can hold it as a word or a tag."""
    return bool(text) and _SPACE.search(text) is None


def escape_word(word: str) -> str:
    """A plain word as a tree in brackets has it: a bracket by its name, and a round one within a word, too."""
    return BRACKET_NAMES.get(word) or _escape_round_brackets(word)


def unescape_word(word: str) -> str:
    """A word as text has it: the name of a bracket becomes the bracket."""
    return _BRACKETS_BY_NAME.get(word, word)


def format_tree(tree: Tree, *, word_form: WordForm = "escaped") -> str:
    """The tree on one line, single spaces in it. Round brackets in words and labels, which no file can hold, go by their names.

    Raises ValueError for a word or a label with white space in it, an empty word and a word with an empty tag: no reader would
    find them again.
    """
    tree_events: list[TreeEvent] = []
    for kind, label, word in iter_events(tree):
        if kind == "leaf" and (not word or label == ""):
            raise ValueError(f"brackets cannot hold the word {word!r} with the tag {label!r}")
        for text in (word, label or ""):
            if _SPACE.search(text):
                raise ValueError(f"brackets cannot hold {text!r}, which has white space in it")
        tree_events.append(
            TreeEvent(
                kind,
                label and _escape_round_brackets(label),
                escape_word(word) if word_form == "plain" else _escape_round_brackets(word),
            )
        )
    return format_brackets(build_tree(tree_events))


def _escape_round_brackets(text: str) -> str:
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def read_tree(text: str, *, word_form: WordForm = "escaped", name: str = "the tree") -> Tree:
    """The one tree that a text holds. Raises DataError where it holds none or several."""
    trees = [located_tree.tree for located_tree in iter_trees(text.split("\n"), name, word_form=word_form)]
    if len(trees) != 1:
        raise DataError(f"{name}: holds {len(trees)} trees, not one")
    return trees[0]


def iter_trees(
    lines: Iterable[str], name: str, *, word_form: WordForm = "escaped", max_depth: int = MAX_DEPTH, start_line: int = 1
) -> Iterator[LocatedTree]:
    """Stream the trees of a file's lines; `name` is what messages call it, `first` the number of its first line.

    A tree may span lines or share one, and an identifier and a tab may stand before it. A root without a label, `( (S …))`, has
    the empty one. Raises DataError naming the line for brackets that do not close, and for text outside of a tree.
    """
    open_brackets: list[_OpenBracket] = []
    tree_line = size = 0
    for number, line in enumerate(lines, start=start_line):
        identifier = _IDENTIFIER.match(line) if not open_brackets else None
        for token in _TOKEN.finditer(line, identifier.end() if identifier is not None else 0):
            kind = token.lastindex
            if not open_brackets:
                if kind not in (_LEAF, _OPEN):
                    raise DataError(f"{name}, line {number}: {_describe_outside_token(token.group())}")
                tree_line, size = number, 0
            finished_tree = _apply_token(open_brackets, token, word_form)
            if len(open_brackets) > max_depth:
                problem = f"the tree that begins in line {tree_line} is deeper than {max_depth} brackets"
                raise DataError(f"{name}, line {number}: {problem}")
            if finished_tree is not None:
                yield LocatedTree(finished_tree, tree_line)
        size += len(line)
        if open_brackets and size > MAX_TREE_CHARACTERS:
            problem = f"the tree that begins in line {tree_line} is longer than {MAX_TREE_CHARACTERS >> 20} MiB"
            raise DataError(f"{name}, line {number}: {problem}")
    if open_brackets:
        raise DataError(
            f"{name}, line {tree_line}: the tree that begins here has {len(open_brackets)} brackets that never close"
        )


def _apply_token(open_brackets: list[_OpenBracket], token: re.Match[str], word_form: WordForm) -> Tree | None:
    """Go on by a token; the tree, when it has come to its end."""
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
        finished_tree = Tree(tag, (unescape_word(word) if word_form == "plain" else word,))
    else:
        assert parent is not None
        if parent.label is None:
            parent.label = token.group()
        else:
            parent.children.append(unescape_word(token.group()) if word_form == "plain" else token.group())
        return None
    if not open_brackets:
        return finished_tree
    if open_brackets[-1].label is None:
        open_brackets[-1].label = ""
    open_brackets[-1].children.append(finished_tree)
    return None


def _describe_outside_token(token: str) -> str:
    return "a bracket closes that was never opened" if token == ")" else f"{token[:40]!r} is in no tree"
