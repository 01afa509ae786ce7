"""Scores of parses against gold trees: brackets by the rules of COLLINS.prm, and tagging accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.parsing.evalb.scorer import SentenceScore, percent, score_trees
from dragoman.parsing.trees.simplify import copy_tags
from dragoman.parsing.trees.tree import Tree, get_leaves


@dataclass(frozen=True)
class ParseComparison:
    """Parses and the gold trees of the same sentences; None stands for a missing parse."""

    parses: Sequence[Tree | None]
    gold: Sequence[Tree]

    @cached_property
    def scores_with_predicted_tags(self) -> list[SentenceScore]:
        """Return the scores of the parses as they are."""
        return score_trees(self.gold, self.parses)

    @cached_property
    def scores_with_gold_tags(self) -> list[SentenceScore]:
        """Return the scores after the gold tags have replaced the predicted ones.

        By the rules, a wrong tag of a punctuation mark changes which words count, so the sentence would fail.
        """
        pairs = zip(self.parses, self.gold, strict=True)
        return score_trees(self.gold, [tree and copy_tags([gold_tree], [tree])[0] for tree, gold_tree in pairs])

    @property
    def tagging_accuracy(self) -> float:
        """Return the percentage of words with the right tag; all words of a missing parse are wrong."""
        num_correct = num_words = 0
        for tree, gold_tree in zip(self.parses, self.gold, strict=True):
            leaves, gold_leaves = [] if tree is None else get_leaves(tree), get_leaves(gold_tree)
            num_words += len(gold_leaves)
            num_correct += sum(leaf.tag == gold_leaf.tag for leaf, gold_leaf in zip(leaves, gold_leaves, strict=False))
        return percent(num_correct, num_words)
