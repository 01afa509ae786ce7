"""Passes over each corpus in an epoch, from the weights, the temperature or the curriculum of the recipe.

An epoch draws as many pairs as its active corpora hold together. A corpus with share p of an epoch of N pairs is passed over
p·N/size times. Without weights and temperature, each corpus is passed over once. At least one corpus is passed over once or
more, so no epoch is empty.
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
    """Passes over each corpus in each epoch."""

    def __init__(self, stages: Sequence[_CurriculumStage]) -> None:
        self.stages = stages

    @classmethod
    def from_config(cls, config: DataConfig, sizes: Mapping[str, int]) -> Mixture:
        """Return the mixture of a recipe. `sizes` holds the number of pairs of each corpus, in the order of the results."""
        if config.curriculum:
            return cls(
                [
                    _CurriculumStage(stage.end_epoch, _compute_passes(sizes, stage.weights, stage.temperature))
                    for stage in config.curriculum
                ]
            )
        weights = {name: corpus.weight for name, corpus in config.corpora.items() if corpus.weight is not None}
        return cls([_CurriculumStage(None, _compute_passes(sizes, weights or None, config.temperature))])

    def count_passes_before(self, epoch: int) -> list[float]:
        """Return the passes over each corpus in all epochs before this one."""
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
    """Return the passes over each corpus in an epoch of one stage."""
    if weights is None and temperature in (None, 1.0):
        return (1.0,) * len(sizes)
    if weights is None:
        assert temperature is not None
        weights = {name: size ** (1.0 / temperature) for name, size in sizes.items()}
    active = [name for name in sizes if weights.get(name)]
    num_pairs = sum(sizes[name] for name in active)
    total_weight = sum(weights[name] for name in active)
    return tuple(weights.get(name, 0.0) / total_weight * num_pairs / size for name, size in sizes.items())
