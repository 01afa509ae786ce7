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
from dragoman.trees.tree import Event, Tree, build, events

Name = Literal["typed", "tensor2tensor", "topdown"]
NAMES: tuple[Name, ...] = ("typed", "tensor2tensor", "topdown")

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


class Linearisation(Protocol):
    """A way to write trees as tokens."""

    @property
    def name(self) -> Name: ...

    def tokens(self, tree: Tree) -> list[str]:
        """The tree's tokens. Raises DataError for a tree that this way cannot tell."""
        ...

    def actions(self, tokens: Sequence[str]) -> list[Action]:
        """What each token does. With a vocabulary for `tokens`, what each of its tokens will do in any sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Typed:
    """Brackets that close with their label, XX for each word."""

    name: Name = "typed"

    def tokens(self, tree: Tree) -> list[str]:
        signs = {"open": "(", "close": ")"}
        return [XX if kind == "leaf" else f"{signs[kind]}{label}" for kind, label, _ in events(tree)]

    def actions(self, tokens: Sequence[str]) -> list[Action]:
        return [_typed(token) for token in tokens]


@dataclass(frozen=True, slots=True)
class TensorToTensor:
    """Labels and tags alike bare, `/` before a label that closes.

    A token opens a bracket where its label closes somewhere in the sequence, or is one of `constituents`; any other is a tag. A
    tag that this would take for a bracket has + before it. A label that begins with + / or \\ has \\; the empty one is \\.
    """

    constituents: frozenset[str] = frozenset()
    name: Name = "tensor2tensor"

    def tokens(self, tree: Tree) -> list[str]:
        steps = list(events(tree))
        brackets = self.constituents.union(label or "" for kind, label, _ in steps if kind == "open")
        tokens: list[str] = []
        for kind, label, word in steps:
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

    def actions(self, tokens: Sequence[str]) -> list[Action]:
        brackets = self.constituents.union(token[1:] for token in tokens if token.startswith("/"))
        return [self._action(token, brackets) for token in tokens]

    def _action(self, token: str, brackets: frozenset[str]) -> Action:
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
class TopDown:
    """The words themselves, between brackets that close without a label. \\ stands before a word that begins with ( ) or \\."""

    name: Name = "topdown"

    def tokens(self, tree: Tree) -> list[str]:
        tokens: list[str] = []
        for kind, label, word in events(tree):
            match kind:
                case "open":
                    tokens.append(f"({label}")
                case "leaf":
                    tokens.append(self.word_token(word))
                case _:
                    tokens.append(")")
        return tokens

    def word_token(self, word: str) -> str:
        """The token for a word."""
        return f"\\{word}" if word.startswith(("(", ")", "\\")) else word

    def actions(self, tokens: Sequence[str]) -> list[Action]:
        return [self._action(token) for token in tokens]

    def _action(self, token: str) -> Action:
        if token == ")":
            return Action("close")
        if token.startswith(")"):
            return Action("junk")
        if token.startswith("("):
            return Action("open", token[1:])
        return Action("word", word=token.removeprefix("\\"))


def linearization(name: Name, *, constituents: Iterable[str] = ()) -> Linearisation:
    """The way of this name. `constituents` are labels that tensor2tensor's way takes for brackets wherever they stand."""
    match name:
        case "typed":
            return Typed()
        case "tensor2tensor":
            return TensorToTensor(frozenset(constituents))
        case "topdown":
            return TopDown()


def restore(how: Linearisation, tokens: Sequence[str], words: Sequence[str], tags: Sequence[str | None] | None = None) -> Tree:
    """The tree that `how.tokens` made these tokens of: the exact way back.

    words: the tree's leaves, traces among them
    tags: theirs, None for a leaf without one; without any, those that the tokens tell, or else XX
    Raises DataError naming the token where they are no tree over these words; `mend` makes one of any.
    """
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    steps: list[Event] = []
    path: list[str] = []
    place = 0
    for number, (token, action) in enumerate(zip(tokens, how.actions(tokens), strict=True), start=1):
        where = f"token {number} of {len(tokens)}, {token[:40]!r}"
        if steps and not path:
            raise DataError(f"{where}: the tree has come to its end before")
        match action.kind:
            case "open":
                path.append(action.label or "")
                steps.append(Event("open", path[-1]))
            case "word":
                if place == len(words):
                    raise DataError(f"{where}: stands for a word, but there are {place}, and all have been")
                if action.word not in (None, words[place]):
                    raise DataError(f"{where}: the next word is {words[place][:40]!r}")
                steps.append(Event("leaf", tag_of(place, action, tags), words[place]))
                place += 1
            case "close":
                if not path or action.label not in (None, path[-1]):
                    raise DataError(f"{where}: closes no bracket; open is {f'({path[-1]}' if path else 'none'}")
                steps.append(Event("close", path.pop()))
            case _:
                raise DataError(f"{where}: is no token of the {how.name} way")
    if path or not steps or place < len(words):
        raise DataError(f"after {len(tokens)} tokens: {len(path)} brackets are open, {len(words) - place} words have not been")
    return build(steps)


def tag_of(place: int, action: Action, tags: Sequence[str | None] | None) -> str | None:
    """The tag of the word at `place`: as given, else as its token tells, else XX."""
    if tags is not None:
        return tags[place]
    return XX if action.label is None else action.label


def _typed(token: str) -> Action:
    if token == XX:
        return Action("word")
    match token[:1]:
        case "(":
            return Action("open", token[1:])
        case ")":
            return Action("close", token[1:])
    return Action("junk")
