"""The tree that English gets without looking at its words: every bracket runs to the end of the sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from dragoman.trees.simplify import TOP
from dragoman.trees.tree import Event, Leaf, Tree, build, leaves, spans

PUNCTUATION = frozenset({".", ",", ":", "``", "''"})
"""Tags of words that end a sentence from outside of its phrases."""


class Branching(NamedTuple):
    """The labels of a right-branching tree: of the bracket around the sentence, and of those within."""

    around: str = "S"
    within: str = "VP"


USUAL = Branching()


def commonest_labels(trees: Iterable[Tree]) -> Branching:
    """The labels that a right-branching tree has best: the commonest around a sentence, and around what ends one.

    Brackets around one word are not counted, since right-branching trees have none. The trees have a root, `TOP`.
    """
    around, within = Counter[str](), Counter[str]()
    for tree in trees:
        end = _end(leaves(tree), PUNCTUATION)
        for label, start, stop in spans(tree)[1:]:
            if stop >= end and stop - start > 1:
                (within if start else around)[label] += 1
    return Branching(_commonest(around, USUAL.around), _commonest(within, USUAL.within))


def right_branching(sentence: Sequence[Leaf], labels: Branching = USUAL, *, outside: Collection[str] = PUNCTUATION) -> Tree:
    """`(TOP (S (DT the) (VP (NN cat) (VBD sat)) (. .)))`: each bracket holds a word and the bracket of all that follow.

    Words whose tags are `outside` stand in the outer bracket where they end the sentence. Without words, the root is empty.
    """
    end = _end(sentence, outside)
    steps = [Event("open", TOP)]
    opened = [TOP]
    for place, (word, tag) in enumerate(sentence):
        if place == 0 or place < end - 1:
            opened.append(labels.within if place else labels.around)
            steps.append(Event("open", opened[-1]))
        steps.append(Event("leaf", tag, word))
        if place == end - 1:
            steps += (Event("close", opened.pop()) for _ in range(len(opened) - 2))
    steps += (Event("close", label) for label in reversed(opened))
    return build(steps)


def _end(sentence: Sequence[Leaf], outside: Collection[str]) -> int:
    """How many words there are before the punctuation at the end; all, where there is nothing else."""
    end = len(sentence)
    while end and sentence[end - 1].tag in outside:
        end -= 1
    return end or len(sentence)


def _commonest(labels: Counter[str], otherwise: str) -> str:
    return max(labels, key=labels.__getitem__) if labels else otherwise
