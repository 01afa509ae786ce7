"""Section 3.5: "for any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos)".

Each frequency ω has a pair of numbers, sin(ω·pos) and cos(ω·pos). By the sum formulas, the pair of pos + k is the pair of pos
times the rotation [[cos ωk, sin ωk], [−sin ωk, cos ωk]]. So PE(pos+k) = M_k·PE(pos), where M_k has these rotations on its
diagonal and does not depend on pos. It also follows that PE(pos)·PE(pos+k) = Σ cos(ωk), which depends on the distance alone.

Vectors that are drawn for each position have no such matrix. The best linear function, by least squares, is the control.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.positions import SINUSOIDS
from dragoman.viz.charts import Panel, Series, render_learning_curve

OFFSETS = (1, 2, 3, 5, 10, 20, 50, 100)
NUM_POSITIONS_FACTOR = 4
"""Positions for each dimension. Any vectors, as many as there are dimensions, have a linear function."""


@dataclass(frozen=True)
class OffsetRow:
    """Positions at one distance.

    rotation_error: largest |M_k·PE(pos) − PE(pos+k)| over all positions and dimensions
    fitted_error: the same for the matrix that least squares fit to the sinusoids
    random_error: the same for the matrix that least squares fit to random vectors of the same size
    dot_product, expected_dot_product: mean of PE(pos)·PE(pos+k), and Σ cos(ωk)
    dot_product_range: largest minus smallest dot product over all positions
    """

    offset: int
    rotation_error: float
    fitted_error: float
    random_error: float
    dot_product: float
    expected_dot_product: float
    dot_product_range: float


def compute_frequencies(layout: str, d_model: int) -> Tensor:
    """Return ω of each pair of dimensions. (D/2,)"""
    half = d_model // 2
    exponent = torch.arange(half, dtype=torch.float64)
    return 10000.0 ** -(exponent / max(half - 1, 1) if layout == "concatenated" else 2.0 * exponent / d_model)


def build_rotation(offset: int, layout: str, d_model: int) -> Tensor:
    """Return M_k, with PE(pos + k) = M_k·PE(pos) for all positions. (D, D)"""
    half = d_model // 2
    angle = offset * compute_frequencies(layout, d_model)
    is_interleaved = layout == "interleaved"
    pairs = torch.arange(half)
    sines, cosines = (2 * pairs, 2 * pairs + 1) if is_interleaved else (pairs, pairs + half)
    rotation_DD = torch.zeros(d_model, d_model, dtype=torch.float64)
    rotation_DD[sines, sines] = rotation_DD[cosines, cosines] = angle.cos()
    rotation_DD[sines, cosines] = angle.sin()
    rotation_DD[cosines, sines] = -angle.sin()
    return rotation_DD


def measure_offsets(
    offsets: Sequence[int] = OFFSETS,
    *,
    layout: str,
    d_model: int,
    num_positions: int,
) -> list[OffsetRow]:
    """Return a row for each offset k, over the positions 0 to num_positions − 1.

    layout: name of `SINUSOIDS`
    """
    table_PD = torch.from_numpy(SINUSOIDS[layout](num_positions + max(offsets), d_model)).double()
    random_PD = torch.randn(table_PD.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    random_PD /= math.sqrt(2.0)  # the mean square of sine and cosine is 1/2
    return [_measure_offset(offset, layout, table_PD, random_PD, num_positions) for offset in offsets]


def _measure_offset(offset: int, layout: str, table_PD: Tensor, random_PD: Tensor, num_positions: int) -> OffsetRow:
    vectors_PD, shifted_PD = table_PD[:num_positions], table_PD[offset : offset + num_positions]
    rotation_DD = build_rotation(offset, layout, table_PD.shape[1])
    dot_products = (vectors_PD * shifted_PD).sum(dim=1)
    angle = offset * compute_frequencies(layout, table_PD.shape[1])
    return OffsetRow(
        offset=offset,
        rotation_error=(vectors_PD @ rotation_DD.T - shifted_PD).abs().max().item(),
        fitted_error=_fit_error(vectors_PD, shifted_PD),
        random_error=_fit_error(random_PD[:num_positions], random_PD[offset : offset + num_positions]),
        dot_product=dot_products.mean().item(),
        expected_dot_product=angle.cos().sum().item(),
        dot_product_range=(dot_products.max() - dot_products.min()).item(),
    )


def _fit_error(vectors_PD: Tensor, shifted_PD: Tensor) -> float:
    """Return the largest error of the linear function with the smallest squared error."""
    fitted_DD = torch.linalg.lstsq(vectors_PD, shifted_PD, driver="gelsd").solution
    return float((vectors_PD @ fitted_DD - shifted_PD).abs().max())


def draw_offsets(rows: Sequence[OffsetRow], *, d_model: int) -> str:
    """Draw the errors and the dot products over log₂ k as an SVG."""

    def build_series(name: str, attribute: str) -> Series:
        return Series(name, [(math.log2(row.offset), float(getattr(row, attribute))) for row in rows])

    return render_learning_curve(
        [
            Panel(
                "largest error",
                [
                    build_series("rotation", "rotation_error"),
                    build_series("least squares", "fitted_error"),
                    build_series("least squares, random vectors", "random_error"),
                ],
                log_scale=True,
            ),
            Panel(
                "PE(pos)·PE(pos+k)",
                [build_series("measured", "dot_product"), build_series("Σ cos(ωk)", "expected_dot_product")],
            ),
        ],
        title="Section 3.5: PE(pos+k) is a linear function of PE(pos)",
        x_label=f"log₂ k, at d_model = {d_model}",
        panel_height=220,
    )
