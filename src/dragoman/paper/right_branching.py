"""Right-branching baseline for English: a tree in which every bracket extends to the end of the sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dragoman.parsing.trees.simplify import TOP
from dragoman.parsing.trees.tree import Leaf, Tree, TreeEvent, build_tree, get_leaves, get_spans

PUNCTUATION_TAGS = frozenset({".", ",", ":", "``", "''"})
"""Tags of punctuation, which is outside of the phrases at the end of a sentence."""


class RightBranchingLabels(NamedTuple):
    """Labels of a right-branching tree: that of the outermost bracket, and that of the others."""

    outer: str = "S"
    inner: str = "VP"


DEFAULT_LABELS = RightBranchingLabels()


def find_most_common_labels(trees: Iterable[Tree]) -> RightBranchingLabels:
    """Return the most common label of brackets over a whole sentence, and of brackets that end a sentence.

    Brackets over one word do not count, because right-branching trees have none. The trees have a root `TOP`.
    """
    outer_counts, inner_counts = Counter[str](), Counter[str]()
    for tree in trees:
        end = _find_phrase_end(get_leaves(tree))
        for label, start, span_end in get_spans(tree)[1:]:
            if span_end >= end and span_end - start > 1:
                (inner_counts if start else outer_counts)[label] += 1
    return RightBranchingLabels(
        _find_most_common(outer_counts, DEFAULT_LABELS.outer), _find_most_common(inner_counts, DEFAULT_LABELS.inner)
    )


def build_right_branching_tree(sentence: Sequence[Leaf], labels: RightBranchingLabels = DEFAULT_LABELS) -> Tree:
    """Return a tree like `(TOP (S (DT the) (VP (NN cat) (VBD sat)) (. .)))`: each bracket has a word and one bracket.

    Punctuation at the end is a child of the outermost bracket. Without words the root is empty.
    """
    end = _find_phrase_end(sentence)
    tree_events = [TreeEvent("open", TOP)]
    open_labels = [TOP]
    for word_index, (word, tag) in enumerate(sentence):
        if word_index == 0 or word_index < end - 1:
            open_labels.append(labels.inner if word_index else labels.outer)
            tree_events.append(TreeEvent("open", open_labels[-1]))
        tree_events.append(TreeEvent("leaf", tag, word))
        if word_index == end - 1:
            tree_events += (TreeEvent("close", open_labels.pop()) for _ in range(len(open_labels) - 2))
    tree_events += (TreeEvent("close", label) for label in reversed(open_labels))
    return build_tree(tree_events)


def _find_phrase_end(sentence: Sequence[Leaf]) -> int:
    """Return the number of words before the final punctuation, or of all words if there are no others."""
    end = len(sentence)
    while end and sentence[end - 1].tag in PUNCTUATION_TAGS:
        end -= 1
    return end or len(sentence)


def _find_most_common(labels: Counter[str], default: str) -> str:
    return max(labels, key=labels.__getitem__) if labels else default
