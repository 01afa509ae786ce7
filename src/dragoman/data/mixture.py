"""Passes over each corpus in an epoch, from the weights, the temperatures or the curriculum of the recipe.

Each direction of a corpus counts as a corpus; the two directions of one corpus share its weight. With `pair_temperature`, the
shares are those of the pairs of languages, by their sizes (Arivazhagan et al. 2019), and the corpora of a pair share by size.
An epoch draws as many pairs as its active corpora hold together. A corpus with share p of an epoch of N pairs is passed over
p·N/size times. Without weights and temperature, each corpus is passed over once. At least one corpus is passed over once or
more, so no epoch is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dragoman.config import DataConfig, Direction, LanguagePair

NameT = TypeVar("NameT", str, LanguagePair)


@dataclass(frozen=True)
class _CurriculumStage:
    end_epoch: int | None
    passes: tuple[float, ...]


class Mixture:
    """Passes over each corpus in each epoch."""

    def __init__(self, stages: Sequence[_CurriculumStage]) -> None:
        self.stages = stages

    @classmethod
    def from_config(
        cls, config: DataConfig, sizes: Mapping[str, int], directions: Mapping[str, Direction] | None = None
    ) -> Mixture:
        """Return the mixture of a recipe.

        sizes: number of pairs of each direction, in the order of the results
        directions: directions of the corpora by name; by default each corpus has one
        """
        directions = directions or {}

        def share_weights(weights: Mapping[str, float] | None) -> dict[str, float] | None:
            """Return the weight of each direction: that of its corpus, or half of it if the corpus has two."""
            if not weights:
                return None
            corpus_names = {name: directions[name].corpus_name if name in directions else name for name in sizes}
            counts = Counter(corpus_names.values())
            return {name: weights.get(corpus, 0.0) / counts[corpus] for name, corpus in corpus_names.items()}

        if config.pair_temperature is not None:
            languages = {name: directions[name].languages for name in sizes}
            return cls([_CurriculumStage(None, _compute_pair_passes(sizes, languages, config.pair_temperature))])
        if config.curriculum:
            return cls(
                [
                    _CurriculumStage(stage.end_epoch, _compute_passes(sizes, share_weights(stage.weights), stage.temperature))
                    for stage in config.curriculum
                ]
            )
        weights = {name: corpus.weight for name, corpus in config.corpora.items() if corpus.weight is not None}
        return cls([_CurriculumStage(None, _compute_passes(sizes, share_weights(weights), config.temperature))])

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
    sizes: Mapping[NameT, int], weights: Mapping[NameT, float] | None, temperature: float | None
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


def _compute_pair_passes(
    sizes: Mapping[str, int], languages: Mapping[str, LanguagePair], temperature: float
) -> tuple[float, ...]:
    """Return the passes over each corpus: one share for each pair of languages, spread over its corpora by size."""
    pair_sizes: dict[LanguagePair, int] = {}
    for name, size in sizes.items():
        pair_sizes[languages[name]] = pair_sizes.get(languages[name], 0) + size
    passes_by_pair = dict(zip(pair_sizes, _compute_passes(pair_sizes, None, temperature), strict=True))
    return tuple(passes_by_pair[languages[name]] for name in sizes)
