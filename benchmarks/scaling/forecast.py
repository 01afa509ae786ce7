"""From a model, a cluster and the loads of its ranks to a step's mean time, tokens a second and efficiency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from .cluster import Cluster
from .loads import Floats, Loads
from .step import Step, Timed, timed, update_seconds
from .work import Block

TakeStep = Callable[[Sequence[Timed], Cluster], Step]


@dataclass(frozen=True)
class Forecast:
    """Means over some steps, in seconds. Efficiency is tokens a second over what so many devices would do, each alone."""

    devices: int
    step_seconds: float
    computing: float
    updating: float
    exposed: float
    imbalance: float
    """The slowest rank's work over the mean of all."""
    tokens_a_second: float
    efficiency: float

    def hours(self, steps: int) -> float:
        return steps * self.step_seconds / 3600.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def foresee(
    blocks: Sequence[Block], cluster: Cluster, loads: Loads, alone: Loads, take: TakeStep, *, noise: float = 0.0
) -> Forecast:
    """What training comes to.

    loads: what each rank gets in each step
    alone: what one device by itself goes through, batch after batch, in each step that it is compared by
    noise: σ of the logarithm of a rank's pace, drawn anew in every step
    """
    pace_SR = _pace(loads, noise)
    work_SR = _work(blocks, loads) * pace_SR
    steps = []
    for number, slowest in enumerate(work_SR.argmax(axis=1)):
        place = (number, int(slowest))
        source, target = (float(side[place] * pace_SR[place]) for side in (loads.source_SR, loads.target_SR))
        steps.append(take(timed(blocks, cluster, source_tokens=source, target_tokens=target), cluster))
    seconds = fmean(step.seconds for step in steps)
    rate = float(loads.tokens_SR.sum(axis=1).mean()) / seconds
    return Forecast(
        devices=cluster.devices,
        step_seconds=seconds,
        computing=fmean(step.computing for step in steps),
        updating=fmean(step.updating for step in steps),
        exposed=fmean(step.exposed for step in steps),
        imbalance=float((work_SR.max(axis=1) / work_SR.mean(axis=1)).mean()),
        tokens_a_second=rate,
        efficiency=rate / (cluster.devices * _rate_alone(blocks, cluster, alone, noise)),
    )


def _rate_alone(blocks: Sequence[Block], cluster: Cluster, alone: Loads, noise: float) -> float:
    """Tokens a second of one device that sums its batches and updates the weights once a step."""
    pace_SR = _pace(alone, noise)
    batches = zip((alone.source_SR * pace_SR).ravel(), (alone.target_SR * pace_SR).ravel(), strict=True)
    parts = (timed(blocks, cluster, source_tokens=source, target_tokens=target) for source, target in batches)
    computing = sum(part.forward + part.backward for batch in parts for part in batch)
    updating = len(alone.source_SR) * update_seconds(blocks, replace(cluster, devices=1))
    return float(alone.tokens_SR.sum()) / (computing + updating)


def _work(blocks: Sequence[Block], loads: Loads) -> Floats:
    """Multiplications of each rank in each step."""
    source, target = sum(block.source for block in blocks), sum(block.target for block in blocks)
    return source * loads.source_SR + target * loads.target_SR


def _pace(loads: Loads, noise: float) -> Floats:
    drawn: Floats = np.exp(np.random.default_rng(2).normal(0.0, noise, loads.source_SR.shape))
    return drawn
