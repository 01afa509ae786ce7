"""Two model sizes of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchmarkSize:
    """Dimensions, batch size and report interval."""

    name: str
    layers: int
    """In each stack."""
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    batch_tokens: int
    """Padded tokens on the longer side."""
    report_steps: int
    """Steps between two reports, the same for all."""


TINY = BenchmarkSize("tiny", 4, 128, 256, 4, 0.3, 4096, report_steps=5)
BASE = BenchmarkSize("base", 6, 512, 2048, 8, 0.1, 2048, report_steps=1)
SIZES = {size.name: size for size in (TINY, BASE)}
