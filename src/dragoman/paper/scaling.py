"""Footnote 4: the dot product of two random vectors of d_k numbers has mean 0 and variance d_k, so equation 1 scales it.

If the numbers of q and k are independent with mean 0 and variance 1, each product q_i·k_i has mean 0 and variance 1. The
variance of their sum is d_k. Divided by √d_k, the sum has variance 1 for any d_k.

Without the division, the softmax over S keys gets steeper as d_k grows, and its gradient vanishes. The gradient of the
softmax p by its inputs is diag(p) − p·pᵀ. Its trace 1 − Σ p² is measured. It is 0 for one sure key, and 1 − 1/S for equal
weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.viz.charts import Panel, Series, render_learning_curve

KEY_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NUM_KEYS = 32
"""Dot products in each softmax."""
NUM_DOT_PRODUCTS = 2**16
# Numbers in memory at a time.
_BLOCK_NUMBERS = 2**22


@dataclass(frozen=True)
class ScalingRow:
    """Dot products of random queries and keys of one width.

    expected_variance: d_k
    standard_error: that of the measured variance
    weight, scaled_weight: mean of the largest attention weight, without and with the division by √d_k
    gradient, scaled_gradient: mean trace of the gradient of the softmax by its inputs, without and with it
    """

    d_k: int
    mean: float
    variance: float
    expected_variance: float
    standard_error: float
    scaled_variance: float
    weight: float
    scaled_weight: float
    gradient: float
    scaled_gradient: float


def measure_scaling(key_widths: Sequence[int] = KEY_WIDTHS, *, num_products: int = NUM_DOT_PRODUCTS) -> list[ScalingRow]:
    """Return a row for each d_k, from at least `num_products` dot products of numbers from N(0, 1)."""
    generator = torch.Generator().manual_seed(1)
    return [_measure_width(d_k, num_products, generator) for d_k in key_widths]


def _measure_width(d_k: int, num_products: int, generator: torch.Generator) -> ScalingRow:
    num_groups = -(-num_products // NUM_KEYS)
    block_size = max(_BLOCK_NUMBERS // (NUM_KEYS * d_k), 1)
    scores_QS = torch.cat(
        [_draw_scores(min(block_size, num_groups - start), d_k, generator) for start in range(0, num_groups, block_size)]
    ).double()
    scaled_QS = scores_QS / math.sqrt(d_k)
    weights_QS, scaled_weights_QS = scores_QS.softmax(dim=-1), scaled_QS.softmax(dim=-1)
    return ScalingRow(
        d_k=d_k,
        mean=scores_QS.mean().item(),
        variance=scores_QS.var().item(),
        expected_variance=float(d_k),
        standard_error=compute_standard_error(d_k, scores_QS.numel()),
        scaled_variance=scaled_QS.var().item(),
        weight=weights_QS.amax(dim=-1).mean().item(),
        scaled_weight=scaled_weights_QS.amax(dim=-1).mean().item(),
        gradient=_compute_gradient_trace(weights_QS),
        scaled_gradient=_compute_gradient_trace(scaled_weights_QS),
    )


def _draw_scores(num_groups: int, d_k: int, generator: torch.Generator) -> Tensor:
    """Return q·k, in groups for a softmax. Each product has a query and a key of its own, so all are independent. (Q, S)"""
    query_QS1K = torch.randn(num_groups, NUM_KEYS, 1, d_k, generator=generator)
    key_QSK1 = torch.randn(num_groups, NUM_KEYS, d_k, 1, generator=generator)
    return torch.matmul(query_QS1K, key_QSK1)[:, :, 0, 0]


def _compute_gradient_trace(weights_QS: Tensor) -> float:
    return (1.0 - weights_QS.square().sum(dim=-1)).mean().item()


def compute_standard_error(d_k: int, num_products: int) -> float:
    """Return the standard error of the measured variance of q·k.

    A product of two numbers from N(0, 1) has an excess kurtosis of 9 − 3 = 6, and the mean of d_k of them one of 6/d_k. The
    variance of a measured variance σ² over n values is σ⁴ · (2 + excess kurtosis) / n.
    """
    return d_k * math.sqrt((2.0 + 6.0 / d_k) / num_products)


def draw_scaling(rows: Sequence[ScalingRow]) -> str:
    """Draw variance, largest weight and gradient over log₂ d_k as an SVG."""

    def build_series(name: str, attribute: str) -> Series:
        return Series(name, [(math.log2(row.d_k), float(getattr(row, attribute))) for row in rows])

    plain, scaled = "q·k", "q·k / √d_k"
    return render_learning_curve(
        [
            Panel(
                "variance",
                [
                    build_series(plain, "variance"),
                    build_series(scaled, "scaled_variance"),
                    build_series("d_k", "expected_variance"),
                ],
                log_scale=True,
            ),
            Panel(
                f"largest of {NUM_KEYS} weights",
                [build_series(plain, "weight"), build_series(scaled, "scaled_weight")],
                include_zero=True,
            ),
            Panel(
                "gradient of the softmax",
                [build_series(plain, "gradient"), build_series(scaled, "scaled_gradient")],
                include_zero=True,
            ),
        ],
        title="Footnote 4: why dot products are divided by √d_k",
        x_label="log₂ d_k",
        panel_height=180,
    )
