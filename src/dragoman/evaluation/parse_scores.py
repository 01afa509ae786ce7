"""Parses beside gold trees, one a sentence and none where there is none: brackets by COLLINS.prm's rules, and right tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.evaluation.evalb import SentenceScore, score_trees, share
from dragoman.trees.simplify import with_tags_of
from dragoman.trees.tree import Tree, leaves


@dataclass(frozen=True)
class ParseComparison:
    """What parses are worth beside the gold trees of their sentences, of which there are as many."""

    parses: Sequence[Tree | None]
    gold: Sequence[Tree]

    @cached_property
    def by_own_tags(self) -> list[SentenceScore]:
        """By the tags in the parses."""
        return score_trees(self.gold, self.parses)

    @cached_property
    def by_gold_tags(self) -> list[SentenceScore]:
        """With the gold tags put in first, since a wrong tag of a punctuation mark alone makes other words by the rules."""
        pairs = zip(self.parses, self.gold, strict=True)
        return score_trees(self.gold, [tree and with_tags_of([wanted], [tree])[0] for tree, wanted in pairs])

    @property
    def tagging(self) -> float:
        """The share of the gold trees' words, in percent, that have the right tag; without a tree none of them has."""
        right = words = 0
        for tree, wanted in zip(self.parses, self.gold, strict=True):
            told = [] if tree is None else leaves(tree)
            words += len(leaves(wanted))
            right += sum(one.tag == other.tag for one, other in zip(told, leaves(wanted), strict=False))
        return share(right, words)
