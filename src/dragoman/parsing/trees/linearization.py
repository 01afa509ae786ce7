"""Linearizations: three lossless conversions between trees and token sequences.

| name | `(S (NP (DT the) (NN cat)) (VP (VBD sat)))` | source |
| --- | --- | --- |
| `typed` | `(S (NP XX XX )NP (VP XX )VP )S` | Vinyals et al. 2015, with XX for every tag |
| `tensor2tensor` | `S NP DT NN /NP VP VBD /VP /S` | tensor2tensor's wsj_parsing.py: tags, no words |
| `topdown` | `(S (NP XX XX ) (VP XX ) )` | `typed` with closing brackets without labels |

`repair.repair_tree` returns the tree. It takes what the tokens lack: the words, and their tags except for `tensor2tensor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from dragoman.errors import DataError
from dragoman.parsing.trees.tree import Tree, iter_events

LinearizationName = Literal["typed", "tensor2tensor", "topdown"]
LINEARIZATION_NAMES: tuple[LinearizationName, ...] = ("typed", "tensor2tensor", "topdown")

XX = "XX"
"""Token that stands for any word, and tag of a word without a known tag."""


class Action(NamedTuple):
    """Effect of a token on a tree that is built from left to right.

    label: label of an opening bracket, label of a closing bracket or None, tag of a word or None
    """

    kind: Literal["open", "word", "close", "invalid"]
    label: str | None = None

    @property
    def is_open(self) -> bool:
        return self.kind == "open"

    @property
    def is_close(self) -> bool:
        return self.kind == "close"


class Linearization(Protocol):
    """Conversion of trees to tokens."""

    @property
    def name(self) -> LinearizationName: ...

    def linearize(self, tree: Tree) -> list[str]:
        """Return the tokens of a tree. Raises DataError for a tree that the linearization cannot express."""
        ...

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        """Return the action of each token. `tokens` may be a sequence or a whole vocabulary."""
        ...


@dataclass(frozen=True, slots=True)
class BracketLinearization:
    """Linearization with XX for each word. The closing brackets of `typed` have labels, those of `topdown` have none."""

    name: Literal["typed", "topdown"]

    def linearize(self, tree: Tree) -> list[str]:
        templates = {"open": "({}", "leaf": XX, "close": "){}" if self.name == "typed" else ")"}
        return [templates[kind].format(label) for kind, label, _ in iter_events(tree)]

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        return [self._parse_action(token) for token in tokens]

    def _parse_action(self, token: str) -> Action:
        if token == XX:
            return Action("word")
        match token[:1]:
            case "(":
                return Action("open", token[1:])
            case ")" if self.name == "typed":
                return Action("close", token[1:])
        return Action("close" if token == ")" else "invalid")


@dataclass(frozen=True, slots=True)
class Tensor2TensorLinearization:
    """Linearization with bare labels and tags, and `/` before a closing label.

    A token opens a bracket if its label closes somewhere in the sequence, or is one of `constituents`; otherwise it is a tag.
    A tag that equals such a label is prefixed with +. A label that begins with + / or \\ is prefixed with \\, and the empty
    label is \\.
    """

    constituents: frozenset[str] = frozenset()
    name: LinearizationName = "tensor2tensor"

    def linearize(self, tree: Tree) -> list[str]:
        """Return the tokens of a tree. Raises DataError for a word without a tag."""
        tree_events = list(iter_events(tree))
        brackets = self.constituents.union(label or "" for kind, label, _ in tree_events if kind == "open")
        tokens: list[str] = []
        for kind, label, word in tree_events:
            if label is None:
                raise DataError(
                    f"word {word!r}: has no tag, but the tensor2tensor linearization needs one; write (TAG word)",
                    code="invalid-tree",
                )
            if kind == "close":
                tokens.append(f"/{label}")
            elif kind == "leaf" and label in brackets:
                tokens.append(f"+{label}")
            else:
                tokens.append(f"\\{label}" if not label or label[0] in "+/\\" else label)
        return tokens

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        brackets = self.constituents.union(token[1:] for token in tokens if token.startswith("/"))
        return [self._parse_action(token, brackets) for token in tokens]

    def _parse_action(self, token: str, brackets: frozenset[str]) -> Action:
        if not token:
            return Action("invalid")
        match token[0]:
            case "/":
                return Action("close", token[1:])
            case "+":
                return Action("word", token[1:])
        label = token.removeprefix("\\")
        return Action("open" if label in brackets else "word", label)


def linearization(name: LinearizationName, *, constituents: Iterable[str] = ()) -> Linearization:
    """Return the linearization with this name. `constituents`: labels that `tensor2tensor` always reads as brackets."""
    return Tensor2TensorLinearization(frozenset(constituents)) if name == "tensor2tensor" else BracketLinearization(name)
