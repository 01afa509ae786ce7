"""Constituency tree as an immutable value, and its traversal as events, which the other modules of the package use.

No function is recursive, so trees of any depth can be traversed, compared, hashed, pickled and printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

TRACE = "-NONE-"
"""Tag of a trace: a leaf of the tree that is not a word of the sentence."""


class TreeEvent(NamedTuple):
    """Event of a traversal: a bracket opens, a leaf with its word and tag (None if it has none), or a bracket closes."""

    kind: Literal["open", "leaf", "close"]
    label: str | None
    word: str = ""

    @property
    def is_open(self) -> bool:
        return self.kind == "open"


class Leaf(NamedTuple):
    """Word with its tag, which is None for a word without one."""

    word: str
    tag: str | None


class Span(NamedTuple):
    """Bracket over the words start … end − 1; an empty bracket has end = start."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """Bracket with a label and children, which are trees or words.

    A tree with one word as its only child is a tagged word; every other tree is a constituent.
    """

    label: str
    children: tuple[Tree | str, ...]

    @property
    def is_preterminal(self) -> bool:
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return self is other or tuple(iter_events(self)) == tuple(iter_events(other))

    def __hash__(self) -> int:
        return hash(tuple(iter_events(self)))

    def __repr__(self) -> str:
        return f"<Tree {format_brackets(self)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return build_tree, (list(iter_events(self)),)


def iter_events(tree: Tree) -> Iterator[TreeEvent]:
    """Yield the events of a tree from left to right."""
    if tree.is_preterminal:
        yield TreeEvent("leaf", tree.label, str(tree.children[0]))
        return
    yield TreeEvent("open", tree.label)
    open_nodes = [(tree.label, iter(tree.children))]
    while open_nodes:
        label, children = open_nodes[-1]
        for child in children:
            if isinstance(child, str):
                yield TreeEvent("leaf", None, child)
                continue
            grandchildren = child.children
            if len(grandchildren) == 1 and isinstance(word := grandchildren[0], str):
                yield TreeEvent("leaf", child.label, word)
            else:
                yield TreeEvent("open", child.label)
                open_nodes.append((child.label, iter(grandchildren)))
                break
        else:
            open_nodes.pop()
            yield TreeEvent("close", label)


def build_tree(tree_events: Iterable[TreeEvent]) -> Tree:
    """Return the tree of these events. Raises ValueError if they are not the events of one tree."""
    labels, contents = [""], [list[Tree | str]()]
    for kind, label, word in tree_events:
        if kind == "open":
            labels.append(label or "")
            contents.append([])
        elif kind == "leaf":
            contents[-1].append(word if label is None else Tree(label, (word,)))
        else:
            children = tuple(contents.pop())
            if not contents:
                break
            contents[-1].append(Tree(labels.pop(), children))
    match contents:
        case [[Tree() as tree]]:
            return tree
    raise ValueError("tree_events: not the events of one tree; take them from iter_events")


def get_leaves(tree: Tree) -> list[Leaf]:
    """Return the words with their tags, traces included."""
    return [Leaf(word, label) for kind, label, word in iter_events(tree) if kind == "leaf"]


def get_words(tree: Tree) -> list[str]:
    """Return the words of the sentence, without traces."""
    return [word for kind, label, word in iter_events(tree) if kind == "leaf" and label != TRACE]


def get_spans(tree: Tree) -> list[Span]:
    """Return the span of every constituent, outer ones first; positions count the leaves, traces included."""
    constituents: list[Span] = []
    open_indices: list[int] = []
    word_index = 0
    for kind, label, _ in iter_events(tree):
        if kind == "leaf":
            word_index += 1
        elif kind == "open":
            open_indices.append(len(constituents))
            constituents.append(Span(label or "", word_index, word_index))
        else:
            index = open_indices.pop()
            constituents[index] = constituents[index]._replace(end=word_index)
    return constituents


def format_brackets(tree: Tree) -> str:
    """Return the tree on one line without escapes. To write a file, call `ptb.format_tree`, which escapes brackets."""
    pieces: list[str] = []
    for kind, label, word in iter_events(tree):
        match kind:
            case "open":
                pieces.append(f" ({label}")
            case "leaf":
                pieces.append(f" {word}" if label is None else f" ({label} {word})")
            case _:
                pieces.append(")")
    return "".join(pieces)[1:]
