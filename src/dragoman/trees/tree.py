"""A constituency tree as a frozen value, and the walk that everything else in this room stands on.

No function here calls itself, so trees of any depth can be walked, compared, hashed, pickled and shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

TRACE = "-NONE-"
"""The tag of what is in the tree but not in the sentence."""


class TreeEvent(NamedTuple):
    """A step of the walk through a tree: a bracket opens, a word with its tag (None where it has none), a bracket closes."""

    kind: Literal["open", "leaf", "close"]
    label: str | None
    word: str = ""


class Leaf(NamedTuple):
    """A word and its part of speech; None for a word that stands in its bracket without one."""

    word: str
    tag: str | None


class Span(NamedTuple):
    """A bracket over the words from `start` up to `end`, which it does not hold; an empty one ends where it starts."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A bracket with its label and what is in it: further trees, and words.

    A tree that holds one word and nothing else is that word's tag; every other is a constituent.
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
    """The walk through a tree, from left to right."""
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
    """The tree of a walk. Raises ValueError where it is not the walk through one tree."""
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
    raise ValueError("these steps do not walk through one tree")


def get_leaves(tree: Tree) -> list[Leaf]:
    """The words and their tags, traces among them."""
    return [Leaf(word, label) for kind, label, word in iter_events(tree) if kind == "leaf"]


def get_words(tree: Tree) -> list[str]:
    """The words of the sentence, which traces are none of."""
    return [word for kind, label, word in iter_events(tree) if kind == "leaf" and label != TRACE]


def get_spans(tree: Tree) -> list[Span]:
    """Every constituent, those around others before them; places are counted in `leaves`."""
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


def get_depth(tree: Tree) -> int:
    """How many constituents are within one another, at most."""
    num_open = max_open = 0
    for kind, _, _ in iter_events(tree):
        num_open += (kind == "open") - (kind == "close")
        max_open = max(max_open, num_open)
    return max_open


def format_brackets(tree: Tree) -> str:
    """The tree on one line, labels and words as they are. To write a file, take `penn.write`, which minds their brackets."""
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
