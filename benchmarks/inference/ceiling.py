"""Speed limit of the machine: the time to read the weights (one sentence) or to multiply by them (more sentences).

The limit ignores attention, softmax and search.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.usage import CommandError

from dragoman.config import ModelConfig

from .serve import SOURCE_TOKENS, TARGET_TOKENS

BYTES = {"int8": 1, "bfloat16": 2, "float32": 4}
Shape = tuple[int, int]


@dataclass(frozen=True)
class SpeedLimit:
    """Limit in target tokens per second by precision, and what bounds it."""

    rates: dict[str, float]
    bound_by: str

    @property
    def best(self) -> tuple[str, float]:
        return max(self.rates.items(), key=lambda item: item[1])


def products_per_sentence(config: ModelConfig) -> Counter[Shape]:
    """Count the matrix products over the source, by output and input width."""
    d, ff, layers = config.d_model, config.d_ff, config.encoder_layers
    encoder_products = Counter({(3 * d, d): layers, (d, d): layers, (ff, d): layers, (d, ff): layers})
    return encoder_products + Counter({(2 * d, d): config.decoder_layers})


def products_per_token(config: ModelConfig, vocabulary: int) -> Counter[Shape]:
    """Count the matrix products of one decoder step, by output and input width."""
    d, ff, layers = config.d_model, config.d_ff, config.decoder_layers
    return Counter({(3 * d, d): layers, (d, d): 3 * layers, (ff, d): layers, (d, ff): layers, (vocabulary, d): 1})


def _bytes(shapes: Counter[Shape]) -> int:
    return sum(count * shape[0] * shape[1] for shape, count in shapes.items())


def compute_limits(
    config: ModelConfig,
    vocabulary: int,
    cells: Sequence[tuple[int, int]],
    *,
    threads: int,
    seconds: float,
    limit_seconds: float = math.inf,
) -> dict[tuple[int, int], SpeedLimit]:
    """Return the limits by batch and beam size, for SOURCE_TOKENS in and TARGET_TOKENS out.

    A limit has the precisions that the processor does not emulate. seconds: time for each product and route
    limit_seconds: the measurement is stopped after this time

    Raises CommandError.
    """
    source, step = products_per_sentence(config), products_per_token(config, vocabulary)
    sizes = [_bytes(step) * width for width in BYTES.values()]
    batched_cells = [(batch, beam) for batch, beam in cells if batch > 1]
    products = sorted(
        {(batch * SOURCE_TOKENS, *shape) for batch, _ in batched_cells for shape in source}
        | {(batch * beam, *shape) for batch, beam in batched_cells for shape in step}
    )
    program = Path(__file__).with_name("products.py")
    command: list[str | Path] = [
        sys.executable,
        program,
        str(threads),
        json.dumps({"read": sizes, "multiply": products, "seconds": seconds}),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    timeout = limit_seconds if limit_seconds < math.inf else None
    try:
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CommandError(f"products.py: was stopped after {limit_seconds:.0f} s, for lack of time") from None
    if completed.returncode:
        raise CommandError(f"products.py: {(completed.stderr.strip().splitlines() or ['no output'])[-1]}")
    answer = json.loads(completed.stdout)
    speed = dict(zip(BYTES, answer["read"], strict=True))
    product_seconds = dict(zip(products, answer["multiply"], strict=True))
    limits_by_cell = {}
    for batch, beam in cells:
        parts = [(source, batch * SOURCE_TOKENS, 1), (step, batch * beam, TARGET_TOKENS)]
        rates = {}
        for precision, width in BYTES.items():
            if precision not in answer["precisions"]:
                continue
            if batch == 1:
                needed = sum(times * _bytes(shapes) * width for shapes, _, times in parts) / speed[precision]
            elif any(precision not in product_seconds[(rows, *shape)] for shapes, rows, _ in parts for shape in shapes):
                continue
            else:
                needed = sum(
                    times * count * product_seconds[(rows, *shape)][precision]
                    for shapes, rows, times in parts
                    for shape, count in shapes.items()
                )
            rates[precision] = batch * TARGET_TOKENS / needed
        limits_by_cell[batch, beam] = SpeedLimit(rates, "memory" if batch == 1 else "products")
    return limits_by_cell
