"""Any sequence of tokens made into a tree over exactly the given words, and a list of what that took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dragoman.trees.linearization import XX, Action, Linearisation, tag_of
from dragoman.trees.simplify import TOP
from dragoman.trees.tree import Tree

Kind = Literal[
    "unknown token",
    "stray closer",
    "closed early",
    "closed late",
    "empty bracket",
    "word added",
    "word dropped",
    "word replaced",
    "word outside",
    "root added",
]
_SENTENCES: dict[Kind, str] = {
    "unknown token": "{what!r} is no token: dropped",
    "stray closer": "{what!r} closes what is not open: dropped",
    "closed early": "the bracket {what!r} was open yet as one around it closed: closed there",
    "closed late": "the bracket {what!r} never closed: closed at the end",
    "empty bracket": "the bracket {what!r} holds no word: dropped",
    "word added": "the word {what!r} was missing: added",
    "word dropped": "{what!r} stands for a word, and there is none for it: dropped",
    "word replaced": "{what!r} is not the next word: read as if it were",
    "word outside": "the word {what!r} stood outside of the tree: taken in",
    "root added": "several brackets, or none, stood side by side: put into one named {what!r}",
}
_SPACE = re.compile(r"\s")
_AHEAD = 8
"""Words ahead among which one that does not fit is looked for."""


@dataclass(frozen=True, slots=True)
class Mending:
    """One thing that was mended. `place`: before or at which token, counted from 0; the number of tokens for the end."""

    kind: Kind
    place: int
    what: str

    def __str__(self) -> str:
        return f"token {self.place + 1}: {_SENTENCES[self.kind].format(what=self.what[:40])}"


@dataclass(frozen=True, slots=True)
class Mended:
    """A tree over exactly the words that were given. Without mendings, the tokens were well-formed."""

    tree: Tree
    mendings: tuple[Mending, ...]


def mend(
    how: Linearisation,
    tokens: Sequence[str],
    words: Sequence[str],
    tags: Sequence[str] | None = None,
    *,
    root: str = TOP,
) -> Mended:
    """The tree of these tokens, mended where they are none over these words; where they are one, it is that of `restore`.

    Words are taken in order; a token for one that does not fit is dropped or read as the next, whichever loses fewer words.
    Missing words go where the tokens ended. Brackets without words are dropped, even if well-formed. What is around one tree
    moves into it; several trees, or words alone, get a root of this name. No words at all make an empty root.
    """
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    site = _Site(tokens, how.actions(tokens), words, tags)
    for place, action in enumerate(site.actions):
        match action.kind if _SPACE.search(action.label or "") is None else "junk":
            case "open":
                site.open(action.label or "")
            case "word":
                site.fit(place, action)
            case "close":
                site.close(place, action.label)
            case _:
                site.note("unknown token", place, tokens[place])
    return site.finish(root)


@dataclass(slots=True)
class _Part:
    """A bracket, or what is outside of any, as far as it has come."""

    label: str
    children: list[Tree] = field(default_factory=list)


class _Site:
    """A tree under repair: the path of open brackets, its outermost part being what is outside of any."""

    def __init__(
        self, tokens: Sequence[str], actions: Sequence[Action], words: Sequence[str], tags: Sequence[str] | None
    ) -> None:
        self.tokens, self.actions, self.words, self.tags = tokens, actions, words, tags
        self.path = [_Part("")]
        self.open_labels: Counter[str] = Counter()
        self.next_word = 0
        self.mendings: list[Mending] = []
        self.following = _following_words(actions)

    def note(self, kind: Kind, place: int, what: str) -> None:
        self.mendings.append(Mending(kind, place, what))

    def open(self, label: str) -> None:
        self.path.append(_Part(label))
        self.open_labels[label] += 1

    def add(self, action: Action) -> None:
        """Put the next word where we are."""
        tag = tag_of(self.next_word, action, self.tags) or XX
        self.path[-1].children.append(Tree(tag, (self.words[self.next_word],)))
        self.next_word += 1

    def fit(self, place: int, action: Action) -> None:
        """A token for a word: which one it is, and which are missing before it."""
        left = len(self.words) - self.next_word
        told = self.tokens[place]
        if not left:
            self.note("word dropped", place, told)
            return
        if action.word is not None and action.word != self.words[self.next_word]:
            if self.following[place] == self.words[self.next_word]:
                self.note("word dropped", place, told)
                return
            ahead = self.words[self.next_word + 1 : self.next_word + 1 + _AHEAD]
            if action.word in ahead:
                for _ in range(ahead.index(action.word) + 1):
                    self.note("word added", place, self.words[self.next_word])
                    self.add(Action("word"))
            else:
                self.note("word replaced", place, told)
        self.add(action)

    def close(self, place: int, label: str | None) -> None:
        """Close the innermost bracket of this label, of any for None, and those within it."""
        if len(self.path) == 1 or (label is not None and not self.open_labels[label]):
            self.note("stray closer", place, self.tokens[place])
            return
        while label not in (None, self.path[-1].label):
            self._close_one(place, "closed early")
        self._close_one(place)

    def _close_one(self, place: int, why: Kind | None = None) -> None:
        part = self.path.pop()
        self.open_labels[part.label] -= 1
        if not part.children:
            self.note("empty bracket", place, part.label)
            return
        if why is not None:
            self.note(why, place, part.label)
        self.path[-1].children.append(_bracket(part))

    def finish(self, root: str) -> Mended:
        end = len(self.tokens)
        outside = self.path[0].children
        if len(self.path) == 1 and len(outside) == 1 and not outside[0].is_tag and self.next_word < len(self.words):
            tree = outside.pop()  # words that are missing go into the one tree that there is
            self.path.append(_Part(tree.label, [child for child in tree.children if isinstance(child, Tree)]))
            self._add_missing(end)
            outside.append(_bracket(self.path.pop()))
        self._add_missing(end)
        while len(self.path) > 1:
            self._close_one(end, "closed late")
        return Mended(self._one_tree(root), tuple(self.mendings))

    def _add_missing(self, end: int) -> None:
        while self.next_word < len(self.words):
            self.note("word added", end, self.words[self.next_word])
            self.add(Action("word"))

    def _one_tree(self, root: str) -> Tree:
        """What is outside of any bracket, as one tree."""
        parts, end = self.path[0].children, len(self.tokens)
        trees = [place for place, part in enumerate(parts) if not part.is_tag]
        untouched = not self.mendings  # then a tag alone is what the tokens told
        if len(parts) == 1 and (trees or untouched):
            return parts[0]
        if len(trees) == 1:
            before, tree, after = parts[: trees[0]], parts[trees[0]], parts[trees[0] + 1 :]
            for part in (*before, *after):
                self.note("word outside", end, str(part.children[0]))
            return Tree(tree.label, (*before, *tree.children, *after))
        self.note("root added", end, root)
        return Tree(root, tuple(parts))


def _bracket(part: _Part) -> Tree:
    return Tree(part.label, tuple(part.children))


def _following_words(actions: Sequence[Action]) -> list[str | None]:
    """For each token the next word that is told after it; None where none is."""
    following: list[str | None] = []
    word: str | None = None
    for action in reversed(actions):
        following.append(word)
        if action.kind == "word":
            word = action.word
    following.reverse()
    return following
