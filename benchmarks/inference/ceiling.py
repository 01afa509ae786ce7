"""What the machine allows: for one sentence the time to read the weights, for more the time to multiply by them, both measured.

Nothing else is counted: no attention, no softmax, no search. The share that a system reaches is of this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from common.usage import CommandError

from dragoman.config import ModelConfig

from .serve import SOURCE_TOKENS, TARGET_TOKENS

BYTES = {"int8": 1, "bfloat16": 2, "float32": 4}
Shape = tuple[int, int]


@dataclass(frozen=True)
class Limit:
    """Target tokens a second by precision, and what binds."""

    rates: dict[str, float]
    binds: str

    @property
    def best(self) -> tuple[str, float]:
        return max(self.rates.items(), key=lambda item: item[1])


def once_a_sentence(config: ModelConfig) -> Counter[Shape]:
    """Products over the source, by width out and in: the encoder, and the keys and values that the decoder looks at."""
    d, ff, layers = config.d_model, config.d_ff, config.encoder_layers
    found = Counter({(3 * d, d): layers, (d, d): layers, (ff, d): layers, (d, ff): layers})
    return found + Counter({(2 * d, d): config.decoder_layers})


def once_a_token(config: ModelConfig, vocabulary: int) -> Counter[Shape]:
    """Products of a step of the decoder."""
    d, ff, layers = config.d_model, config.d_ff, config.decoder_layers
    return Counter({(3 * d, d): layers, (d, d): 3 * layers, (ff, d): layers, (d, ff): layers, (vocabulary, d): 1})


def _bytes(shapes: Counter[Shape]) -> int:
    return sum(count * shape[0] * shape[1] for shape, count in shapes.items())


def limits(config: ModelConfig, vocabulary: int, cells: list[tuple[int, int]], *, threads: int) -> dict[tuple[int, int], Limit]:
    """By batch and beam, for SOURCE_TOKENS in and TARGET_TOKENS out."""
    source, step = once_a_sentence(config), once_a_token(config, vocabulary)
    sizes = [_bytes(step) * width for width in BYTES.values()]
    many = [(batch, beam) for batch, beam in cells if batch > 1]
    wanted = sorted(
        {(batch * SOURCE_TOKENS, *shape) for batch, _ in many for shape in source}
        | {(batch * beam, *shape) for batch, beam in many for shape in step}
    )
    program = Path(__file__).with_name("products.py")
    command: list[str | Path] = [sys.executable, program, str(threads), json.dumps({"read": sizes, "multiply": wanted})]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True)
    if done.returncode:
        raise CommandError(f"products.py: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    told = json.loads(done.stdout)
    speed = dict(zip(BYTES, told["read"], strict=True))
    seconds = dict(zip(wanted, told["multiply"], strict=True))
    found = {}
    for batch, beam in cells:
        parts = [(source, batch * SOURCE_TOKENS, 1), (step, batch * beam, TARGET_TOKENS)]
        rates = {}
        for precision, width in BYTES.items():
            if batch == 1:
                needed = sum(times * _bytes(shapes) * width for shapes, _, times in parts) / speed[precision]
            else:
                needed = sum(
                    times * count * seconds[(rows, *shape)][precision]
                    for shapes, rows, times in parts
                    for shape, count in shapes.items()
                )
            rates[precision] = batch * TARGET_TOKENS / needed
        found[batch, beam] = Limit(rates, "memory" if batch == 1 else "products")
    return found
