"""How well links between words agree with those that are held to be right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.word_aligner import Link


@dataclass(frozen=True)
class AlignmentScore:
    """Of links that were found and links that are right, how many there are, and how many are both; every link is sure.

    Precision, recall and error rate are those of Och and Ney (2003), 1 and 1 and 0 where there was nothing to find or to miss.
    """

    num_matched: int
    num_predicted: int
    num_gold: int

    @property
    def precision(self) -> float:
        return self.num_matched / self.num_predicted if self.num_predicted else 1.0

    @property
    def recall(self) -> float:
        return self.num_matched / self.num_gold if self.num_gold else 1.0

    @property
    def error_rate(self) -> float:
        """1 − 2·|A ∩ S| / (|A| + |S|)"""
        return 1 - 2 * self.num_matched / (self.num_predicted + self.num_gold) if self.num_predicted + self.num_gold else 0.0


def score_alignments(predicted: Sequence[Iterable[Link]], gold: Sequence[Iterable[Link]]) -> AlignmentScore:
    """Over the links of all pairs together."""
    pairs = [(set(one), set(other)) for one, other in zip(predicted, gold, strict=True)]
    return AlignmentScore(
        sum(len(one & other) for one, other in pairs), sum(len(one) for one, _ in pairs), sum(len(other) for _, other in pairs)
    )
