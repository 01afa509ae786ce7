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
from dragoman.trees.constraint_automaton import ConstraintAutomaton
from dragoman.trees.linearization import XX, Action, Linearization, LinearizationName, TopDownLinearization, linearization
from dragoman.trees.simplify import TOP, AnnotationMode, simplify
from dragoman.trees.tree import Tree, get_leaves, iter_events

XX_ID = len(SPECIAL_IDS)
"""The id of XX in every list."""
_FORBIDDEN_IN_WORD = re.compile(r"[\s\u2581\x00]")


def to_source_text(words: Sequence[str]) -> str:
    """Words as the encoder's subword model reads them: one space between them, and none, nor ▁, which marks one, within."""
    return " ".join(_FORBIDDEN_IN_WORD.sub("_", penn.escape_word(word)) or "_" for word in words)


def normalize_tree(tree: Tree, *, function_tags: AnnotationMode, traces: AnnotationMode) -> Tree:
    """The tree without what is left out, and with a bracket around a word that stands alone."""
    tree = simplify(tree, function_tags=function_tags, traces=traces)
    return Tree(TOP, (tree,)) if tree.is_preterminal else tree


@dataclass(frozen=True, slots=True)
class DelexicalizedTopDown:
    """The top-down way with XX for each word, since no closed list holds them all."""

    name: LinearizationName = "topdown"

    def linearize(self, tree: Tree) -> list[str]:
        templates = {"open": "({}", "leaf": XX, "close": ")"}
        return [templates[kind].format(label) for kind, label, _ in iter_events(tree)]

    def parse_actions(self, tokens: Sequence[str]) -> list[Action]:
        top_down = TopDownLinearization()
        return [
            Action("word") if token == XX else action if action.kind != "word" else Action("junk")
            for token, action in zip(tokens, top_down.parse_actions(tokens), strict=True)
        ]


class TreeLabels:
    """What a parser says: brackets, XX and tags by id, the special four first, then XX.

    `encode` and `decode` are of tokens with a space between them; `encode_tree` makes ids of a tree.
    """

    def __init__(
        self,
        name: LinearizationName,
        brackets: Sequence[str],
        tags: Sequence[str],
        *,
        function_tags: AnnotationMode = "strip",
        traces: AnnotationMode = "strip",
    ) -> None:
        self.name = name
        self.brackets, self.tags = tuple(brackets), tuple(tag for tag in tags if tag != XX)
        self.function_tags, self.traces = function_tags, traces
        self.linearization: Linearization = (
            DelexicalizedTopDown() if name == "topdown" else linearization(name, constituents=self.brackets)
        )
        bracket_tokens = [self._get_bracket_tokens(label) for label in self.brackets]
        bracket_and_word_tokens = dict.fromkeys(
            [XX, *(opener for opener, _ in bracket_tokens), *(closer for _, closer in bracket_tokens)]
        )
        self._tag_tokens = {tag: self._get_tag_token(tag) for tag in self.tags}
        self.tokens = [*SPECIAL_PIECES, *bracket_and_word_tokens, *self._tag_tokens.values()]
        self._ids = {token: index for index, token in enumerate(self.tokens) if index not in SPECIAL_IDS}

    def _get_bracket_tokens(self, label: str) -> tuple[str, str]:
        word = Tree(XX, ("x",))
        opener, *_, closer = self.linearization.linearize(Tree(label, (word, word)))
        return opener, closer

    def _get_tag_token(self, tag: str) -> str:
        """What stands for a word of this tag: as the way writes it where it writes tags."""
        if self.name != "tensor2tensor":
            return tag
        word = Tree(tag, ("x",))
        return self.linearization.linearize(Tree(TOP, (word, word)))[1]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shift_ids(self) -> list[int]:
        """Ids that stand for a word."""
        return [XX_ID, *range(len(self) - len(self.tags), len(self))]

    @property
    def hidden_ids(self) -> list[int]:
        """Ids of tags that are read and said as XX; none where the sequence says the tags."""
        return [] if self.name == "tensor2tensor" else self.shift_ids[1:]

    @cached_property
    def serialized_model(self) -> bytes:
        """What is kept on disk: JSON, from which `read_labels` makes the same list."""
        document = {
            "linearization": self.name,
            "functions": self.function_tags,
            "traces": self.traces,
            "brackets": self.brackets,
            "tags": self.tags,
        }
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()

    def normalize(self, tree: Tree) -> Tree:
        """The tree as it is learnt."""
        return normalize_tree(tree, function_tags=self.function_tags, traces=self.traces)

    def encode_tree(self, tree: Tree, unknown_counts: Counter[str] | None = None) -> list[int]:
        """The ids of a plain tree; a bracket that is not in the list becomes <unk>, a tag that is not XX.

        unknown: counts the labels that are not in the list. Raises DataError for a tree that this way cannot tell.
        """
        tags = iter(get_leaves(tree))
        ids: list[int] = []
        tokens = self.linearization.linearize(tree)
        for token, (kind, label, _) in zip(tokens, iter_events(tree), strict=True):
            if kind == "leaf":
                tag = next(tags).tag
                token_id = self._ids.get(self._tag_tokens.get(tag or XX, XX), XX_ID)
                if token_id == XX_ID and tag not in (None, XX) and unknown_counts is not None:
                    unknown_counts[tag] += 1
                ids.append(token_id)
            else:
                ids.append(self._ids.get(token, UNKNOWN_ID))
                if ids[-1] == UNKNOWN_ID and kind == "open" and unknown_counts is not None:
                    unknown_counts[label or ""] += 1
        return ids

    def hide_tags(self, ids: Sequence[int]) -> list[int]:
        """The same ids as the decoder reads and says them."""
        hidden_ids = set(self.hidden_ids)
        return [XX_ID if index in hidden_ids else index for index in ids]

    def build_automaton(self) -> ConstraintAutomaton:
        """What may follow in these tokens; none of the hidden ones."""
        return ConstraintAutomaton(
            self.linearization, self.tokens, end_id=END_ID, special_ids=[*SPECIAL_IDS[:END_ID], *self.hidden_ids]
        )

    # As a subword model has them

    def encode(self, text: str) -> list[int]:
        """The ids of tokens with a space between them."""
        return [self._ids.get(token, UNKNOWN_ID) for token in text.split(" ")] if text else []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """As `encode`: labels are never split."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.ids_to_pieces(ids))

    def piece_to_id(self, piece: str) -> int | None:
        return UNKNOWN_ID if piece == SPECIAL_PIECES[UNKNOWN_ID] else self._ids.get(piece)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.tokens[index] for index in ids]


def collect_labels(trees: Iterable[Tree], task: TaskConfig) -> TreeLabels:
    """All labels of a treebank, the most frequent first. Raises DataError where there is no bracket around any word."""
    brackets, tags = Counter[str](), Counter[str]()
    for tree in trees:
        for kind, label, _ in iter_events(normalize_tree(tree, function_tags=task.function_tags, traces=task.traces)):
            if kind == "open":
                brackets[label or ""] += 1
            elif kind == "leaf" and label is not None:
                tags[label] += 1
    if not brackets:
        raise DataError("the treebank is empty: no tree holds a word")
    if task.linearization == "tensor2tensor" and XX in brackets:
        raise DataError(f"a bracket is labelled {XX}, which stands for a word; set task.linearization = 'typed'")
    sorted_labels = [sorted(counts, key=lambda label: (-counts[label], label)) for counts in (brackets, tags)]
    return TreeLabels(task.linearization, *sorted_labels, function_tags=task.function_tags, traces=task.traces)


def read_labels(serialized_model: bytes, *, name: str) -> TreeLabels:
    """The list that a file holds. Raises BundleError where it is none."""
    try:
        document: dict[str, Any] = json.loads(serialized_model)
        name_in_file, label_lists = document["linearization"], (document["brackets"], document["tags"])
        simplifications = {"functions": document["functions"], "traces": document["traces"]}
        are_texts = all(isinstance(label, str) for labels in label_lists for label in labels)
        if (
            name_in_file not in get_args(LinearizationName)
            or not are_texts
            or not label_lists[0]
            or {*simplifications.values()} - {*get_args(AnnotationMode)}
        ):
            raise ValueError
        return TreeLabels(name_in_file, *label_lists, **simplifications)
    except (ValueError, TypeError, KeyError, RecursionError, DataError):
        raise BundleError(f"{name}: is not a list of labels, or a damaged one") from None
