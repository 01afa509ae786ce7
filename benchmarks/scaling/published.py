"""What others measured, foretold from their figure for one device, their batch and their links.

DGX-1, DGX-2   NVIDIA's Transformer (a fork of fairseq), WMT14 English-German, big, vocabulary 33,708: tokens a second
               on 1, 8 and 16 V100, from the README of NVIDIA/DeepLearningExamples, PyTorch/Translation/Transformer
A100           MLPerf Training v0.7, NVIDIA: 810,000 target tokens a second on 8, which is 128 TFLOP/s on each; on 480
               76 s in all, with batches of 1,536 tokens a GPU
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from dragoman.config import make_recipe

from .cluster import Cluster
from .forecast import foresee
from .loads import Loads, even_loads, loads_of
from .step import BUCKET, ddp_step, update_seconds
from .work import Block, blocks_of, operations_a_token

VOCABULARY = 33_708
EPOCH_TOKENS = 122_300_000
"""Target tokens of an epoch in the MLPerf submission: 810,000 a second for 151 s."""
KERNEL_SECONDS = 5e-6
LINKS = 0.8
_V100 = Cluster(
    devices=1, rate=1.0, kernel_seconds=KERNEL_SECONDS, memory=0.8 * 0.9e12, node=LINKS * 150e9, network=LINKS * 6.25e9
)
_A100 = replace(_V100, rate=128e12, memory=0.8 * 1.55e12, node=LINKS * 300e9, network=LINKS * 25e9)


@dataclass(frozen=True)
class Published:
    """Tokens a second on one device and on several."""

    name: str
    devices: int
    node_size: int
    batch_tokens: int
    alone: float
    together: float
    gradient_bytes: int

    @property
    def efficiency(self) -> float:
        return self.together / (self.devices * self.alone)


POINTS = (
    Published("8 V100 (DGX-1), 2,560 tokens a GPU, float32", 8, 8, 2560, 7_635, 53_641, 4),
    Published("8 V100 (DGX-1), 2,560 tokens a GPU, mixed", 8, 8, 2560, 23_821, 186_442, 2),
    Published("8 V100 (DGX-1), 5,120 tokens a GPU, mixed", 8, 8, 5120, 32_153, 235_077, 2),
    Published("16 V100 (DGX-2), 5,120 tokens a GPU, mixed", 16, 16, 5120, 32_153, 476_585, 2),
)


def big_blocks() -> list[Block]:
    return blocks_of(make_recipe({"preset": "paper", "size": "big"}).model, vocabulary=VOCABULARY)


def foretold(point: Published, *, steps: int) -> tuple[float, float, float]:
    """Efficiency with equal ranks, with dragoman's batches, and with those and nothing sent before the backward pass ends."""
    blocks = big_blocks()
    seconds = point.batch_tokens / point.alone - update_seconds(blocks, _V100)
    rate = point.batch_tokens * operations_a_token(blocks) / seconds
    cluster = replace(_V100, devices=point.devices, node_size=point.node_size, rate=rate)
    uneven = loads_of(batch_tokens=point.batch_tokens, ranks=point.devices, steps=steps)
    even = even_loads(batch_tokens=point.batch_tokens, ranks=point.devices)
    found = []
    for loads, bucket in ((even, BUCKET), (uneven, BUCKET), (uneven, math.inf)):
        take = partial(ddp_step, gradient_bytes=point.gradient_bytes, bucket=bucket)
        found.append(foresee(blocks, cluster, loads, _each_alone(loads), take).efficiency)
    return found[0], found[1], found[2]


def _each_alone(loads: Loads) -> Loads:
    """The same batches, one after the other on one device."""
    return Loads(*(side.reshape(-1, 1) for side in (loads.source_SR, loads.target_SR, loads.tokens_SR)))


def mlperf_epoch_seconds(devices: int, batch_tokens: int, *, steps: int) -> tuple[float, float]:
    """Seconds of an epoch of the A100 submission, and its efficiency over as many devices by themselves."""
    cluster = replace(_A100, devices=devices)
    loads = loads_of(batch_tokens=batch_tokens, ranks=devices, steps=steps)
    found = foresee(big_blocks(), cluster, loads, _each_alone(loads), partial(ddp_step, gradient_bytes=2))
    return EPOCH_TOKENS / found.tokens_a_second, found.efficiency
