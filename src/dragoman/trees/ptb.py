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
from dragoman.trees.tree import Event, Tree, brackets, build, events

Words = Literal["escaped", "plain"]
"""Whether brackets among a tree's words bear the names that files have for them, or are ( ) [ ] { }."""

DEEPEST = 100_000
"""Brackets within brackets that are still read."""
LONGEST = 2**24
"""Characters of the longest tree that is still read."""
NAMES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

_SIGNS = {name: sign for sign, name in NAMES.items()}
_IDENTIFIER = re.compile(r"[^()\t]*\t")
# A tag with its word; an opening bracket with its label; a closing one; anything else between spaces and brackets.
_TOKEN = re.compile(r"\(([^() \t\r\n]+)[ \t\r]+([^() \t\r\n]+)[ \t\r]*\)|(\([^() \t\r\n]*)|(\))|([^() \t\r\n]+)")
_LEAF, _OPEN, _CLOSE = 2, 3, 4
_SPACE = re.compile(r"[ \t\r\n]")


class Placed(NamedTuple):
    """A tree, and the line that it begins in."""

    tree: Tree
    line: int


@dataclass(slots=True)
class _Open:
    """A bracket that is open yet; its label is None as long as it may still come."""

    label: str | None
    children: list[Tree | str] = field(default_factory=list)


def split_words(text: str) -> list[str]:
    """The words of a line, as brackets part them: by spaces and tabs, while a thin or a no-break space may stand in a word."""
    return [word for word in _SPACE.split(text) if word] if text.strip() else []


def is_word(text: str) -> bool:
    """Whether brackets can hold it as a word or a tag."""
    return bool(text) and _SPACE.search(text) is None


def escaped(word: str) -> str:
    """A plain word as a tree in brackets has it: a bracket by its name, and a round one within a word, too."""
    return NAMES.get(word) or _unbracketed(word)


def plain(word: str) -> str:
    """A word as text has it: the name of a bracket becomes the bracket."""
    return _SIGNS.get(word, word)


def write(tree: Tree, *, words: Words = "escaped") -> str:
    """The tree on one line, single spaces in it. Round brackets in words and labels, which no file can hold, go by their names.

    Raises ValueError for a word or a label with white space in it, an empty word and a word with an empty tag: no reader would
    find them again.
    """
    steps: list[Event] = []
    for kind, label, word in events(tree):
        if kind == "leaf" and (not word or label == ""):
            raise ValueError(f"brackets cannot hold the word {word!r} with the tag {label!r}")
        for text in (word, label or ""):
            if _SPACE.search(text):
                raise ValueError(f"brackets cannot hold {text!r}, which has white space in it")
        steps.append(Event(kind, label and _unbracketed(label), escaped(word) if words == "plain" else _unbracketed(word)))
    return brackets(build(steps))


def _unbracketed(text: str) -> str:
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def read_tree(text: str, *, words: Words = "escaped", name: str = "the tree") -> Tree:
    """The one tree that a text holds. Raises DataError where it holds none or several."""
    found = [placed.tree for placed in read(text.split("\n"), name, words=words)]
    if len(found) != 1:
        raise DataError(f"{name}: holds {len(found)} trees, not one")
    return found[0]


def read(
    lines: Iterable[str], name: str, *, words: Words = "escaped", deepest: int = DEEPEST, first: int = 1
) -> Iterator[Placed]:
    """Stream the trees of a file's lines; `name` is what messages call it, `first` the number of its first line.

    A tree may span lines or share one, and an identifier and a tab may stand before it. A root without a label, `( (S …))`, has
    the empty one. Raises DataError naming the line for brackets that do not close, and for text outside of a tree.
    """
    path: list[_Open] = []
    begun = size = 0
    for number, line in enumerate(lines, start=first):
        identifier = _IDENTIFIER.match(line) if not path else None
        for token in _TOKEN.finditer(line, identifier.end() if identifier is not None else 0):
            kind = token.lastindex
            if not path:
                if kind not in (_LEAF, _OPEN):
                    raise DataError(f"{name}, line {number}: {_outside(token.group())}")
                begun, size = number, 0
            done = _extend(path, token, words)
            if len(path) > deepest:
                what = f"the tree that begins in line {begun} is deeper than {deepest} brackets"
                raise DataError(f"{name}, line {number}: {what}")
            if done is not None:
                yield Placed(done, begun)
        size += len(line)
        if path and size > LONGEST:
            what = f"the tree that begins in line {begun} is longer than {LONGEST >> 20} MiB"
            raise DataError(f"{name}, line {number}: {what}")
    if path:
        raise DataError(f"{name}, line {begun}: the tree that begins here has {len(path)} brackets that never close")


def _extend(path: list[_Open], token: re.Match[str], words: Words) -> Tree | None:
    """Go on by a token; the tree, when it has come to its end."""
    kind = token.lastindex
    parent = path[-1] if path else None
    if kind == _CLOSE:
        assert parent is not None
        path.pop()
        done = Tree(parent.label or "", tuple(parent.children))
    elif kind == _OPEN:
        if parent is not None and parent.label is None:
            parent.label = ""
        path.append(_Open(token.group()[1:] or None))
        return None
    elif kind == _LEAF:
        tag, word = token.group(1, 2)
        done = Tree(tag, (plain(word) if words == "plain" else word,))
    else:
        assert parent is not None
        if parent.label is None:
            parent.label = token.group()
        else:
            parent.children.append(plain(token.group()) if words == "plain" else token.group())
        return None
    if not path:
        return done
    if path[-1].label is None:
        path[-1].label = ""
    path[-1].children.append(done)
    return None


def _outside(token: str) -> str:
    return "a bracket closes that was never opened" if token == ")" else f"{token[:40]!r} is in no tree"
