"""Speed limit of a cell: no program can read the weights and multiply by them in int8 in less time on this machine.

A step takes at least the time to read its weights once, and at least the time of its products with the instruction that the
kernels use. Attention, softmax, search and float32 count for nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.usage import run_commands

from dragoman.config import ModelConfig

from .serve import SOURCE_TOKENS, TARGET_TOKENS

Shape = tuple[int, int]


@dataclass(frozen=True)
class SpeedLimit:
    """Limit in target tokens per second, and what bounds most of the time: memory or products."""

    rate: float
    bound_by: str


def products_per_sentence(config: ModelConfig) -> Counter[Shape]:
    """Count the matrix products over the source, by output and input width."""
    d, ff, layers = config.d_model, config.d_ff, config.encoder_layers
    encoder_products = Counter({(3 * d, d): layers, (d, d): layers, (ff, d): layers, (d, ff): layers})
    return encoder_products + Counter({(2 * d, d): config.decoder_layers})


def products_per_token(config: ModelConfig, vocabulary: int) -> Counter[Shape]:
    """Count the matrix products of one decoder step, by output and input width."""
    d, ff, layers = config.d_model, config.d_ff, config.decoder_layers
    return Counter({(3 * d, d): layers, (d, d): 3 * layers, (ff, d): layers, (d, ff): layers, (vocabulary, d): 1})


def compute_limits(
    config: ModelConfig, vocabulary: int, cells: Sequence[tuple[int, int]], *, threads: int
) -> dict[tuple[int, int], SpeedLimit]:
    """Return the limits by batch and beam size, for SOURCE_TOKENS in and TARGET_TOKENS out.

    The first step has one row for each sentence. The last one is left out, because its tokens may be known.

    Raises CommandError.
    """
    counts = [products_per_sentence(config), products_per_token(config, vocabulary)]
    source, step = (sum(count * height * width for (height, width), count in shapes.items()) for shapes in counts)
    program = Path(__file__).with_name("products.py")
    speed = json.loads(run_commands([sys.executable, program, str(threads), json.dumps([source, step])]).output)
    limits = {}
    for batch, beam in cells:
        needed = {"memory": 0.0, "products": 0.0}
        for weights, rows, times, read_speed in (
            (source, batch * SOURCE_TOKENS, 1, speed["read"][0]),
            (step, batch, 1, speed["read"][1]),
            (step, batch * beam, TARGET_TOKENS - 2, speed["read"][1]),
        ):
            seconds = {"memory": weights / read_speed, "products": rows * weights / speed["multiply"]}
            bound_by = max(seconds, key=seconds.__getitem__)
            needed[bound_by] += times * seconds[bound_by]
        limits[batch, beam] = SpeedLimit(batch * TARGET_TOKENS / sum(needed.values()), max(needed, key=needed.__getitem__))
    return limits
