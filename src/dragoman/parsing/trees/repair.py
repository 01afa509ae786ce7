"""Repair of malformed linearizations: a tree over exactly the given words from any tokens, with a list of the repairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dragoman.parsing.trees.linearization import XX, Action, Linearization
from dragoman.parsing.trees.simplify import TOP
from dragoman.parsing.trees.tree import Tree

RepairKind = Literal[
    "unknown token",
    "stray closer",
    "closed early",
    "closed late",
    "empty bracket",
    "word added",
    "word dropped",
    "word outside",
    "root added",
]
_MESSAGES: dict[RepairKind, str] = {
    "unknown token": "{text!r} is not a token of the linearization: dropped",
    "stray closer": "{text!r} closes no open bracket: dropped",
    "closed early": "bracket {text!r} was still open when an outer bracket closed: closed there",
    "closed late": "bracket {text!r} never closed: closed at the end",
    "empty bracket": "bracket {text!r} has no words: dropped",
    "word added": "word {text!r} was missing: added",
    "word dropped": "{text!r} stands for a word, but no word is left for it: dropped",
    "word outside": "word {text!r} was outside of the tree: moved into it",
    "root added": "the output has no single outer bracket: root {text!r} added",
}
_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair.

    token_index: index of the token at or before which the repair is; the number of tokens for the end
    text: the token, label or word
    """

    kind: RepairKind
    token_index: int
    text: str

    def __str__(self) -> str:
        return f"token {self.token_index + 1}: {_MESSAGES[self.kind].format(text=self.text[:40])}"


@dataclass(frozen=True, slots=True)
class RepairedTree:
    """Tree over exactly the given words, with the repairs; there are none if the tokens were well-formed."""

    tree: Tree
    repairs: tuple[Repair, ...]


def repair_tree(
    linearization: Linearization,
    tokens: Sequence[str],
    words: Sequence[str],
    tags: Sequence[str] | None = None,
) -> RepairedTree:
    """Return a tree over exactly these words from any tokens; for well-formed tokens without repairs.

    Missing words are added at the end. Brackets without words are dropped, even if well-formed. Words outside of a single tree
    move into it. Several trees, or words alone, get a root with the label `TOP`. Without words the root is empty.

    Raises ValueError if the numbers of tags and words differ.
    """
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"tags: {len(tags)} tags for {len(words)} words; give one tag for each word")
    builder = _TreeBuilder(tokens, linearization.parse_actions(tokens), words, tags)
    for token_index, action in enumerate(builder.actions):
        match action.kind if _SPACE.search(action.label or "") is None else "invalid":
            case "open":
                builder.open_bracket(action.label or "")
            case "word":
                builder.match_word(token_index, action.label)
            case "close":
                builder.close_bracket(token_index, action.label)
            case _:
                builder.record("unknown token", token_index, tokens[token_index])
    return builder.finish()


@dataclass(slots=True)
class _OpenNode:
    """Open bracket with its children so far; the outermost node stands for the text outside of all brackets."""

    label: str
    children: list[Tree] = field(default_factory=list)


class _TreeBuilder:
    """Builder of a repaired tree; it holds the path of open brackets."""

    def __init__(
        self, tokens: Sequence[str], actions: Sequence[Action], words: Sequence[str], tags: Sequence[str] | None
    ) -> None:
        self.tokens, self.actions, self.words, self.tags = tokens, actions, words, tags
        self.open_nodes = [_OpenNode("")]
        self.open_labels: Counter[str] = Counter()
        self.word_index = 0
        self.repairs: list[Repair] = []

    def record(self, kind: RepairKind, token_index: int, text: str) -> None:
        self.repairs.append(Repair(kind, token_index, text))

    def open_bracket(self, label: str) -> None:
        self.open_nodes.append(_OpenNode(label))
        self.open_labels[label] += 1

    def add_next_word(self, tag: str | None = None) -> None:
        """Add the next word to the innermost open bracket, with the caller's tag, else this one, else XX."""
        tag = (tag if self.tags is None else self.tags[self.word_index]) or XX
        self.open_nodes[-1].children.append(Tree(tag, (self.words[self.word_index],)))
        self.word_index += 1

    def match_word(self, token_index: int, tag: str | None) -> None:
        """Apply a token that stands for a word: add the next word, or drop the token if there is none."""
        if self.word_index < len(self.words):
            self.add_next_word(tag)
        else:
            self.record("word dropped", token_index, self.tokens[token_index])

    def close_bracket(self, token_index: int, label: str | None) -> None:
        """Close the innermost bracket with this label (with any label for None), and those within it."""
        if len(self.open_nodes) == 1 or (label is not None and not self.open_labels[label]):
            self.record("stray closer", token_index, self.tokens[token_index])
            return
        while label not in (None, self.open_nodes[-1].label):
            self._close_innermost(token_index, "closed early")
        self._close_innermost(token_index)

    def _close_innermost(self, token_index: int, kind: RepairKind | None = None) -> None:
        node = self.open_nodes.pop()
        self.open_labels[node.label] -= 1
        if not node.children:
            self.record("empty bracket", token_index, node.label)
            return
        if kind is not None:
            self.record(kind, token_index, node.label)
        self.open_nodes[-1].children.append(_to_tree(node))

    def finish(self) -> RepairedTree:
        """Add missing words, close open brackets and return the tree."""
        end = len(self.tokens)
        outer_trees = self.open_nodes[0].children
        if (
            len(self.open_nodes) == 1
            and len(outer_trees) == 1
            and not outer_trees[0].is_preterminal
            and self.word_index < len(self.words)
        ):
            tree = outer_trees.pop()  # missing words go into the only tree
            self.open_nodes.append(_OpenNode(tree.label, [child for child in tree.children if isinstance(child, Tree)]))
            self._add_missing_words(end)
            outer_trees.append(_to_tree(self.open_nodes.pop()))
        self._add_missing_words(end)
        while len(self.open_nodes) > 1:
            self._close_innermost(end, "closed late")
        return RepairedTree(self._join_trees(), tuple(self.repairs))

    def _add_missing_words(self, end: int) -> None:
        while self.word_index < len(self.words):
            self.record("word added", end, self.words[self.word_index])
            self.add_next_word()

    def _join_trees(self) -> Tree:
        outer_trees, end = self.open_nodes[0].children, len(self.tokens)
        constituent_indices = [index for index, outer_tree in enumerate(outer_trees) if not outer_tree.is_preterminal]
        is_unrepaired = not self.repairs  # in this case a single tag is the well-formed output
        if len(outer_trees) == 1 and (constituent_indices or is_unrepaired):
            return outer_trees[0]
        if len(constituent_indices) == 1:
            before, tree, after = (
                outer_trees[: constituent_indices[0]],
                outer_trees[constituent_indices[0]],
                outer_trees[constituent_indices[0] + 1 :],
            )
            for outside_word in (*before, *after):
                self.record("word outside", end, str(outside_word.children[0]))
            return Tree(tree.label, (*before, *tree.children, *after))
        self.record("root added", end, TOP)
        return Tree(TOP, tuple(outer_trees))


def _to_tree(node: _OpenNode) -> Tree:
    return Tree(node.label, tuple(node.children))
