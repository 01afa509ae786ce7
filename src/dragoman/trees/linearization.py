"""Trees as sequences of tokens, and back: three ways, each of which loses nothing but what it leaves to the source's side.

| name | `(S (NP (DT the) (NN cat)) (VP (VBD sat)))` | from |
| --- | --- | --- |
| `typed` | `(S (NP XX XX )NP (VP XX )VP )S` | Vinyals et al. 2015, with XX for every tag |
| `tensor2tensor` | `S NP DT NN /NP VP VBD /VP /S` | tensor2tensor's wsj_parsing.py: tags, no words |
| `topdown` | `(S (NP the cat ) (VP sat ) )` | the words themselves, closed without a label |

What is not in the tokens, the words and, but for `tensor2tensor`, their tags, is given to the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from dragoman.errors import DataError
from dragoman.trees.tree import Tree, TreeEvent, build_tree, iter_events

LinearizationName = Literal["typed", "tensor2tensor", "topdown"]
LINEARIZATION_NAMES: tuple[LinearizationName, ...] = ("typed", "tensor2tensor", "topdown")

XX = "XX"
"""The token for a word, and the tag of a word that nobody has tagged."""


class Action(NamedTuple):
    """What a token does to a tree that is built from left to right.

    label: of an opening bracket; of a closing one, where the token tells; of a word, its tag, where the token tells
    word: the word, where the token tells
    """

    kind: Literal["open", "word", "close", "junk"]
    label: str | None = None
    word: str | None = None


class Linearization(Protocol):
    """A way to write trees as tokens."""

    @property
    def name(self) -> LinearizationName: ...

    def linearize(self, tree: Tree) -> list[str]:
        """The tree's tokens. Raises DataError for a tree that this way cannot tell."""
        ...

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        """What each token does. With a vocabulary for `tokens`, what each of its tokens will do in any sequence."""
        ...


@dataclass(frozen=True, slots=True)
class TypedLinearization:
    """Brackets that close with their label, XX for each word."""

    name: LinearizationName = "typed"

    def linearize(self, tree: Tree) -> list[str]:
        bracket_signs = {"open": "(", "close": ")"}
        return [XX if kind == "leaf" else f"{bracket_signs[kind]}{label}" for kind, label, _ in iter_events(tree)]

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        return [_parse_typed_action(token) for token in tokens]


@dataclass(frozen=True, slots=True)
class Tensor2TensorLinearization:
    """Labels and tags alike bare, `/` before a label that closes.

    A token opens a bracket where its label closes somewhere in the sequence, or is one of `constituents`; any other is a tag. A
    tag that this would take for a bracket has + before it. A label that begins with + / or \\ has \\; the empty one is \\.
    """

    constituents: frozenset[str] = frozenset()
    name: LinearizationName = "tensor2tensor"

    def linearize(self, tree: Tree) -> list[str]:
        tree_events = list(iter_events(tree))
        brackets = self.constituents.union(label or "" for kind, label, _ in tree_events if kind == "open")
        tokens: list[str] = []
        for kind, label, word in tree_events:
            if label is None:
                raise DataError(
                    f"the word {word!r} stands in its bracket without a tag, and tensor2tensor's way has tags for words"
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
            return Action("junk")
        match token[0]:
            case "/":
                return Action("close", token[1:])
            case "+":
                return Action("word", token[1:])
        label = token.removeprefix("\\")
        return Action("open" if label in brackets else "word", label)


@dataclass(frozen=True, slots=True)
class TopDownLinearization:
    """The words themselves, between brackets that close without a label. \\ stands before a word that begins with ( ) or \\."""

    name: LinearizationName = "topdown"

    def linearize(self, tree: Tree) -> list[str]:
        tokens: list[str] = []
        for kind, label, word in iter_events(tree):
            match kind:
                case "open":
                    tokens.append(f"({label}")
                case "leaf":
                    tokens.append(self.format_word(word))
                case _:
                    tokens.append(")")
        return tokens

    def format_word(self, word: str) -> str:
        """The token for a word."""
        return f"\\{word}" if word.startswith(("(", ")", "\\")) else word

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        return [self._parse_action(token) for token in tokens]

    def _parse_action(self, token: str) -> Action:
        if token == ")":
            return Action("close")
        if token.startswith(")"):
            return Action("junk")
        if token.startswith("("):
            return Action("open", token[1:])
        return Action("word", word=token.removeprefix("\\"))


def linearization(name: LinearizationName, *, constituents: Iterable[str] = ()) -> Linearization:
    """The way of this name. `constituents` are labels that tensor2tensor's way takes for brackets wherever they stand."""
    match name:
        case "typed":
            return TypedLinearization()
        case "tensor2tensor":
            return Tensor2TensorLinearization(frozenset(constituents))
        case "topdown":
            return TopDownLinearization()


def delinearize(
    linearization: Linearization, tokens: Sequence[str], words: Sequence[str], tags: Sequence[str | None] | None = None
) -> Tree:
    """The tree that `how.tokens` made these tokens of: the exact way back.

    words: the tree's leaves, traces among them
    tags: theirs, None for a leaf without one; without any, those that the tokens tell, or else XX
    Raises DataError naming the token where they are no tree over these words; `mend` makes one of any.
    """
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    tree_events: list[TreeEvent] = []
    open_labels: list[str] = []
    word_index = 0
    for number, (token, action) in enumerate(zip(tokens, linearization.parse_actions(tokens), strict=True), start=1):
        location = f"token {number} of {len(tokens)}, {token[:40]!r}"
        if tree_events and not open_labels:
            raise DataError(f"{location}: the tree has come to its end before")
        match action.kind:
            case "open":
                open_labels.append(action.label or "")
                tree_events.append(TreeEvent("open", open_labels[-1]))
            case "word":
                if word_index == len(words):
                    raise DataError(f"{location}: stands for a word, but there are {word_index}, and all have been")
                if action.word not in (None, words[word_index]):
                    raise DataError(f"{location}: the next word is {words[word_index][:40]!r}")
                tree_events.append(TreeEvent("leaf", choose_tag(word_index, action, tags), words[word_index]))
                word_index += 1
            case "close":
                if not open_labels or action.label not in (None, open_labels[-1]):
                    raise DataError(
                        f"{location}: closes no bracket; open is {f'({open_labels[-1]}' if open_labels else 'none'}"
                    )
                tree_events.append(TreeEvent("close", open_labels.pop()))
            case _:
                raise DataError(f"{location}: is no token of the {linearization.name} way")
    if open_labels or not tree_events or word_index < len(words):
        raise DataError(
            f"after {len(tokens)} tokens: {len(open_labels)} brackets are open, {len(words) - word_index} words have not been"
        )
    return build_tree(tree_events)


def choose_tag(word_index: int, action: Action, tags: Sequence[str | None] | None) -> str | None:
    """The tag of the word at `place`: as given, else as its token tells, else XX."""
    if tags is not None:
        return tags[word_index]
    return XX if action.label is None else action.label


def _parse_typed_action(token: str) -> Action:
    if token == XX:
        return Action("word")
    match token[:1]:
        case "(":
            return Action("open", token[1:])
        case ")":
            return Action("close", token[1:])
    return Action("junk")
