"""Parses beside gold trees, one a sentence and none where there is none: brackets by COLLINS.prm's rules, and right tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.evaluation.evalb import SentenceScore, percent, score_trees
from dragoman.trees.simplify import copy_tags
from dragoman.trees.tree import Tree, get_leaves


@dataclass(frozen=True)
class ParseComparison:
    """What parses are worth beside the gold trees of their sentences, of which there are as many."""

    parses: Sequence[Tree | None]
    gold: Sequence[Tree]

    @cached_property
    def scores_with_predicted_tags(self) -> list[SentenceScore]:
        """By the tags in the parses."""
        return score_trees(self.gold, self.parses)

    @cached_property
    def scores_with_gold_tags(self) -> list[SentenceScore]:
        """With the gold tags put in first, since a wrong tag of a punctuation mark alone makes other words by the rules."""
        pairs = zip(self.parses, self.gold, strict=True)
        return score_trees(self.gold, [tree and copy_tags([gold_tree], [tree])[0] for tree, gold_tree in pairs])

    @property
    def tagging_accuracy(self) -> float:
        """The share of the gold trees' words, in percent, that have the right tag; without a tree none of them has."""
        num_correct = num_words = 0
        for tree, gold_tree in zip(self.parses, self.gold, strict=True):
            predicted_leaves = [] if tree is None else get_leaves(tree)
            num_words += len(get_leaves(gold_tree))
            num_correct += sum(
                one.tag == other.tag for one, other in zip(predicted_leaves, get_leaves(gold_tree), strict=False)
            )
        return percent(num_correct, num_words)
