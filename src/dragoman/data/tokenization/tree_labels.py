"""Trees to ids and back: a closed list of labels, learnt from a treebank, and words as an encoder reads them.

A stored target holds the tag of each word where the tree's tokens have XX, so that one row of ids tells brackets and tags.
Where a parser's sequence is to say XX alone, `hidden` names the ids that it reads and says as XX.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from dragoman.config import TaskConfig
from dragoman.data.tokenization.special_tokens import END_ID, SPECIAL_IDS, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.errors import BundleError, DataError
from dragoman.trees import ptb as penn
from dragoman.trees.constraint_automaton import Automaton
from dragoman.trees.linearization import XX, Action, Linearisation, Name, TopDown, linearization
from dragoman.trees.simplify import TOP, Kept, simplify
from dragoman.trees.tree import Tree, events, leaves

XX_ID = len(SPECIAL_IDS)
"""The id of XX in every list."""
_NOT_IN_A_WORD = re.compile(r"[\s\u2581\x00]")


def source_text(words: Sequence[str]) -> str:
    """Words as the encoder's subword model reads them: one space between them, and none, nor ▁, which marks one, within."""
    return " ".join(_NOT_IN_A_WORD.sub("_", penn.escaped(word)) or "_" for word in words)


def plain_tree(tree: Tree, *, functions: Kept, traces: Kept) -> Tree:
    """The tree without what is left out, and with a bracket around a word that stands alone."""
    tree = simplify(tree, functions=functions, traces=traces)
    return Tree(TOP, (tree,)) if tree.is_tag else tree


@dataclass(frozen=True, slots=True)
class Wordless:
    """The top-down way with XX for each word, since no closed list holds them all."""

    name: Name = "topdown"

    def tokens(self, tree: Tree) -> list[str]:
        signs = {"open": "({}", "leaf": XX, "close": ")"}
        return [signs[kind].format(label) for kind, label, _ in events(tree)]

    def actions(self, tokens: Sequence[str]) -> list[Action]:
        how = TopDown()
        return [
            Action("word") if token == XX else action if action.kind != "word" else Action("junk")
            for token, action in zip(tokens, how.actions(tokens), strict=True)
        ]


class Labels:
    """What a parser says: brackets, XX and tags by id, the special four first, then XX.

    `encode` and `decode` are of tokens with a space between them; `encode_tree` makes ids of a tree.
    """

    def __init__(
        self, name: Name, brackets: Sequence[str], tags: Sequence[str], *, functions: Kept = "strip", traces: Kept = "strip"
    ) -> None:
        self.name = name
        self.brackets, self.tags = tuple(brackets), tuple(tag for tag in tags if tag != XX)
        self.functions, self.traces = functions, traces
        self.how: Linearisation = Wordless() if name == "topdown" else linearization(name, constituents=self.brackets)
        closed = [self._bracket_tokens(label) for label in self.brackets]
        named = dict.fromkeys([XX, *(opener for opener, _ in closed), *(closer for _, closer in closed)])
        self._tag_tokens = {tag: self._tag_token(tag) for tag in self.tags}
        self.tokens = [*SPECIAL_PIECES, *named, *self._tag_tokens.values()]
        self._ids = {token: index for index, token in enumerate(self.tokens) if index not in SPECIAL_IDS}

    def _bracket_tokens(self, label: str) -> tuple[str, str]:
        word = Tree(XX, ("x",))
        opener, *_, closer = self.how.tokens(Tree(label, (word, word)))
        return opener, closer

    def _tag_token(self, tag: str) -> str:
        """What stands for a word of this tag: as the way writes it where it writes tags."""
        if self.name != "tensor2tensor":
            return tag
        word = Tree(tag, ("x",))
        return self.how.tokens(Tree(TOP, (word, word)))[1]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shifts(self) -> list[int]:
        """Ids that stand for a word."""
        return [XX_ID, *range(len(self) - len(self.tags), len(self))]

    @property
    def hidden(self) -> list[int]:
        """Ids of tags that are read and said as XX; none where the sequence says the tags."""
        return [] if self.name == "tensor2tensor" else self.shifts[1:]

    @cached_property
    def model(self) -> bytes:
        """What is kept on disk: JSON, from which `read_labels` makes the same list."""
        told = {
            "linearization": self.name,
            "functions": self.functions,
            "traces": self.traces,
            "brackets": self.brackets,
            "tags": self.tags,
        }
        return (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode()

    def plain(self, tree: Tree) -> Tree:
        """The tree as it is learnt."""
        return plain_tree(tree, functions=self.functions, traces=self.traces)

    def encode_tree(self, tree: Tree, unknown: Counter[str] | None = None) -> list[int]:
        """The ids of a plain tree; a bracket that is not in the list becomes <unk>, a tag that is not XX.

        unknown: counts the labels that are not in the list. Raises DataError for a tree that this way cannot tell.
        """
        tags = iter(leaves(tree))
        ids: list[int] = []
        tokens = self.how.tokens(tree)
        for token, (kind, label, _) in zip(tokens, events(tree), strict=True):
            if kind == "leaf":
                tag = next(tags).tag
                known = self._ids.get(self._tag_tokens.get(tag or XX, XX), XX_ID)
                if known == XX_ID and tag not in (None, XX) and unknown is not None:
                    unknown[tag] += 1
                ids.append(known)
            else:
                ids.append(self._ids.get(token, UNKNOWN_ID))
                if ids[-1] == UNKNOWN_ID and kind == "open" and unknown is not None:
                    unknown[label or ""] += 1
        return ids

    def said(self, ids: Sequence[int]) -> list[int]:
        """The same ids as the decoder reads and says them."""
        hidden = set(self.hidden)
        return [XX_ID if index in hidden else index for index in ids]

    def automaton(self) -> Automaton:
        """What may follow in these tokens; none of the hidden ones."""
        return Automaton(self.how, self.tokens, end=END_ID, special=[*SPECIAL_IDS[:END_ID], *self.hidden])

    # As a subword model has them

    def encode(self, text: str) -> list[int]:
        """The ids of tokens with a space between them."""
        return [self._ids.get(token, UNKNOWN_ID) for token in text.split(" ")] if text else []

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """As `encode`: labels are never split."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.pieces(ids))

    def id_of(self, piece: str) -> int | None:
        return UNKNOWN_ID if piece == SPECIAL_PIECES[UNKNOWN_ID] else self._ids.get(piece)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.tokens[index] for index in ids]


def learn_labels(trees: Iterable[Tree], task: TaskConfig) -> Labels:
    """All labels of a treebank, the most frequent first. Raises DataError where there is no bracket around any word."""
    brackets, tags = Counter[str](), Counter[str]()
    for tree in trees:
        for kind, label, _ in events(plain_tree(tree, functions=task.function_tags, traces=task.traces)):
            if kind == "open":
                brackets[label or ""] += 1
            elif kind == "leaf" and label is not None:
                tags[label] += 1
    if not brackets:
        raise DataError("the treebank is empty: no tree holds a word")
    if task.linearization == "tensor2tensor" and XX in brackets:
        raise DataError(f"a bracket is labelled {XX}, which stands for a word; set task.linearization = 'typed'")
    ranked = [sorted(found, key=lambda label: (-found[label], label)) for found in (brackets, tags)]
    return Labels(task.linearization, *ranked, functions=task.function_tags, traces=task.traces)


def read_labels(model: bytes, *, name: str) -> Labels:
    """The list that a file holds. Raises BundleError where it is none."""
    try:
        told: dict[str, Any] = json.loads(model)
        how, lists = told["linearization"], (told["brackets"], told["tags"])
        kept = {"functions": told["functions"], "traces": told["traces"]}
        texts = all(isinstance(one, str) for many in lists for one in many)
        if how not in get_args(Name) or not texts or not lists[0] or {*kept.values()} - {*get_args(Kept)}:
            raise ValueError
        return Labels(how, *lists, **kept)
    except (ValueError, TypeError, KeyError, RecursionError, DataError):
        raise BundleError(f"{name}: is not a list of labels, or a damaged one") from None
