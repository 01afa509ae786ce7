"""How much of each corpus an epoch draws, as the recipe's weights, temperature or stages say.

An epoch holds as many pairs as the corpora that take part have together; a corpus with share p of an epoch of N pairs is gone
round p·N/size times. Without weights and temperature every corpus is gone round once. One of them is always gone round at least
once, so no epoch is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.config import DataConfig


@dataclass(frozen=True)
class _CurriculumStage:
    end_epoch: int | None
    passes: tuple[float, ...]


class Mixture:
    """Rounds of each corpus in each epoch."""

    def __init__(self, stages: Sequence[_CurriculumStage]) -> None:
        self.stages = stages

    @classmethod
    def from_config(cls, config: DataConfig, sizes: Mapping[str, int]) -> Mixture:
        """From the recipe and the number of pairs of each corpus, in whose order the rounds will be told."""
        if config.curriculum:
            return cls(
                [
                    _CurriculumStage(stage.end_epoch, _compute_passes(sizes, stage.weights, stage.temperature))
                    for stage in config.curriculum
                ]
            )
        weights = {name: corpus.weight for name, corpus in config.corpora.items() if corpus.weight is not None}
        return cls([_CurriculumStage(None, _compute_passes(sizes, weights or None, config.temperature))])

    @classmethod
    def single_pass(cls, num_corpora: int = 1) -> Mixture:
        """Every pair of each corpus once in each epoch."""
        return cls([_CurriculumStage(None, (1.0,) * num_corpora)])

    def count_passes_before(self, epoch: int) -> list[float]:
        """How many times each corpus has been gone round when this epoch begins."""
        totals = [0.0] * len(self.stages[0].passes)
        begin = 0
        for stage in self.stages:
            end = epoch if stage.end_epoch is None else min(stage.end_epoch, epoch)
            if end > begin:
                totals = [total + (end - begin) * passes for total, passes in zip(totals, stage.passes, strict=True)]
                begin = end
        return totals


def _compute_passes(
    sizes: Mapping[str, int], weights: Mapping[str, float] | None, temperature: float | None
) -> tuple[float, ...]:
    """Rounds of each corpus in an epoch of one stage."""
    if weights is None and temperature in (None, 1.0):
        return (1.0,) * len(sizes)
    if weights is None:
        assert temperature is not None
        weights = {name: size ** (1.0 / temperature) for name, size in sizes.items()}
    active = [name for name in sizes if weights.get(name)]
    num_pairs = sum(sizes[name] for name in active)
    total_weight = sum(weights[name] for name in active)
    return tuple(weights.get(name, 0.0) / total_weight * num_pairs / size for name, size in sizes.items())
