"""Alignment error rate of predicted word alignments against gold alignments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.word_aligner import Link


@dataclass(frozen=True)
class AlignmentScore:
    """Counts of predicted links, gold links and links in both; all gold links are sure links.

    Precision, recall and error rate follow Och and Ney (2003). Without any links they are 1, 1 and 0.
    """

    num_matched: int
    num_predicted: int
    num_gold: int

    @property
    def precision(self) -> float:
        """Return |A ∩ S| / |A|."""
        return self.num_matched / self.num_predicted if self.num_predicted else 1.0

    @property
    def recall(self) -> float:
        """Return |A ∩ S| / |S|."""
        return self.num_matched / self.num_gold if self.num_gold else 1.0

    @property
    def error_rate(self) -> float:
        """Return 1 − 2·|A ∩ S| / (|A| + |S|)."""
        return 1 - 2 * self.num_matched / (self.num_predicted + self.num_gold) if self.num_predicted + self.num_gold else 0.0


def score_alignments(predicted: Sequence[Iterable[Link]], gold: Sequence[Iterable[Link]]) -> AlignmentScore:
    """Return the counts over the links of all pairs."""
    pairs = [(set(predicted_links), set(gold_links)) for predicted_links, gold_links in zip(predicted, gold, strict=True)]
    return AlignmentScore(
        num_matched=sum(len(predicted_links & gold_links) for predicted_links, gold_links in pairs),
        num_predicted=sum(len(predicted_links) for predicted_links, _ in pairs),
        num_gold=sum(len(gold_links) for _, gold_links in pairs),
    )
