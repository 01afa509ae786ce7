"""Conversion of trees to ids and back, with a closed list of labels from a treebank.

A stored target holds the tag of each word instead of the token XX, so one row of ids holds brackets and tags. If the decoder
predicts XX for each word, `hidden_ids` lists the ids of tags that it reads and predicts as XX.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, get_args

from dragoman.config import TaskConfig
from dragoman.data.tokenization.special_tokens import END_ID, SPECIAL_IDS, SPECIAL_PIECES, UNKNOWN_ID, WORD_ID
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.errors import BundleError, DataError
from dragoman.parsing.trees import ptb as penn
from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton
from dragoman.parsing.trees.linearization import XX, Linearization, LinearizationName, linearization
from dragoman.parsing.trees.simplify import TOP, AnnotationMode, simplify
from dragoman.parsing.trees.tree import Tree, get_leaves, iter_events

XX_ID = WORD_ID
"""Id of XX in every list of labels."""
_FORBIDDEN_IN_WORD = re.compile(r"[\s\u2581\x00]")


def to_source_text(words: Sequence[str]) -> str:
    """Return words as one line for the encoder's tokenizer, with one space between words; ▁ and spaces in a word become _."""
    return " ".join(_FORBIDDEN_IN_WORD.sub("_", penn.escape_word(word)) or "_" for word in words)


def normalize_tree(tree: Tree, *, function_tags: AnnotationMode, traces: AnnotationMode) -> Tree:
    """Return the simplified tree, with a bracket around a single word."""
    tree = simplify(tree, function_tags=function_tags, traces=traces)
    return Tree(TOP, (tree,)) if tree.is_preterminal else tree


class TreeLabels:
    """Output vocabulary of a parser: the four special ids, XX, brackets and tags.

    `encode` and `decode` handle tokens separated by spaces; `encode_tree` returns the ids of a tree.

    Args:
        name: the linearization
        brackets: labels of brackets, the most frequent first
        tags: part-of-speech tags, the most frequent first
        function_tags: treatment of function tags
        traces: treatment of traces
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
        self.linearization: Linearization = linearization(name, constituents=self.brackets)
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
        """Return the token of a word with this tag, in the form of the linearization if it writes tags."""
        if self.name != "tensor2tensor":
            return tag
        word = Tree(tag, ("x",))
        return self.linearization.linearize(Tree(TOP, (word, word)))[1]

    reserved_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shift_ids(self) -> list[int]:
        """Ids that represent a word."""
        return [XX_ID, *range(len(self) - len(self.tags), len(self))]

    @property
    def hidden_ids(self) -> list[int]:
        """Ids of tags that the decoder reads and predicts as XX; none if the linearization contains tags."""
        return [] if self.name == "tensor2tensor" else self.shift_ids[1:]

    @cached_property
    def serialized_model(self) -> bytes:
        """Bytes of the file of labels: JSON, from which `read_labels` returns the same labels."""
        document = {
            "linearization": self.name,
            "function_tags": self.function_tags,
            "traces": self.traces,
            "brackets": self.brackets,
            "tags": self.tags,
        }
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()

    def normalize(self, tree: Tree) -> Tree:
        return normalize_tree(tree, function_tags=self.function_tags, traces=self.traces)

    def describe(self) -> str:
        return f"the trees have {len(self.brackets)} bracket labels and {len(self.tags)} tags"

    def get_source_text(self, target: str) -> str:
        """Return the words of a tree in brackets as one line for the encoder's tokenizer."""
        return to_source_text([leaf.word for leaf in get_leaves(self.normalize(penn.read_tree(target)))])

    def encode_pairs(
        self, targets: Sequence[str], origins: Sequence[str], source: TextTokenizer
    ) -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
        """Return the source ids and the label ids of trees in brackets, and the counts of unknown labels.

        Raises DataError if a tree has no tokens, or if the tokenizer divides its words otherwise.
        """
        unknown_counts = Counter[str]()
        lines, label_ids = [], []
        for line, origin in zip(targets, origins, strict=True):
            tree = self.normalize(penn.read_tree(line, name=origin))
            lines.append(to_source_text([leaf.word for leaf in get_leaves(tree)]))
            try:
                label_ids.append(self.encode_tree(tree, unknown_counts))
            except DataError as error:
                raise DataError(f"{origin}: {error}", code=error.code) from None
        source_ids = source.encode_batch(lines)
        for words, ids, origin in zip(lines, source_ids, origins, strict=True):
            if (num_words := int(source.word_start_mask[ids].sum())) != len(words.split(" ")):
                raise DataError(
                    f"{origin}: the tokenizer makes {num_words} words of {len(words.split(' '))}; train another tokenizer",
                    code="invalid-tree",
                )
        return source_ids, label_ids, dict(unknown_counts)

    def encode_tree(self, tree: Tree, unknown_counts: Counter[str] | None = None) -> list[int]:
        """Return the ids of a simplified tree. An unknown bracket becomes <unk>, an unknown tag becomes XX.

        Args:
            tree: a tree that `normalize` returned
            unknown_counts: receives the counts of unknown labels

        Raises DataError: the linearization cannot express the tree.
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
        """Return the ids that the decoder reads and predicts: hidden tags become XX."""
        hidden_ids = set(self.hidden_ids)
        return [XX_ID if index in hidden_ids else index for index in ids]

    def build_automaton(self) -> ConstraintAutomaton:
        """Return the automaton of valid token sequences, without hidden tags."""
        return ConstraintAutomaton(
            self.linearization, self.tokens, end_id=END_ID, special_ids=[*SPECIAL_IDS[:END_ID], *self.hidden_ids]
        )

    # Methods of `Vocabulary`

    def encode(self, text: str) -> list[int]:
        """Return the ids of tokens separated by spaces."""
        return [self._ids.get(token, UNKNOWN_ID) for token in text.split(" ")] if text else []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return `encode(text)`, because labels have one segmentation."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.ids_to_pieces(ids))

    def piece_to_id(self, piece: str) -> int | None:
        return UNKNOWN_ID if piece == SPECIAL_PIECES[UNKNOWN_ID] else self._ids.get(piece)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.tokens[index] for index in ids]


def collect_labels(trees: Iterable[Tree], task: TaskConfig) -> TreeLabels:
    """Return all labels of a treebank, the most frequent first. Raise DataError if no tree has a bracket."""
    brackets, tags = Counter[str](), Counter[str]()
    for tree in trees:
        for kind, label, _ in iter_events(normalize_tree(tree, function_tags=task.function_tags, traces=task.traces)):
            if kind == "open":
                brackets[label or ""] += 1
            elif kind == "leaf" and label is not None:
                tags[label] += 1
    if not brackets:
        raise DataError("treebank: is empty, no tree holds a word; check data.train", code="empty-data")
    if task.linearization == "tensor2tensor" and XX in brackets:
        raise DataError(
            f"treebank: a bracket has the label {XX}, which represents a word; set task.linearization = 'typed'",
            code="invalid-tree",
        )
    sorted_labels = [sorted(counts, key=lambda label: (-counts[label], label)) for counts in (brackets, tags)]
    return TreeLabels(task.linearization, *sorted_labels, function_tags=task.function_tags, traces=task.traces)


def read_labels(serialized_model: bytes, *, name: str) -> TreeLabels:
    """Return the labels of a file. Raise BundleError if it holds none."""
    try:
        document: dict[str, Any] = json.loads(serialized_model)
        name_in_file, label_lists = document["linearization"], (document["brackets"], document["tags"])
        simplifications = {"function_tags": document["function_tags"], "traces": document["traces"]}
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
        raise BundleError(
            f"{name}: is not a list of labels, or is damaged; copy the file again", code="tokenizer-damaged"
        ) from None
