"""Restricted self-attention in blocks: the numbers of a mask, at a cost that grows with the length."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from dragoman.experiments.local_attention.blocks import MIN_BLOCK_SIZE, local_attention
from dragoman.model.attention import explicit_attention
from dragoman.model.masks import window_mask
from dragoman.paper.flop_counter import count_operations
from dragoman.paper.table1_layers import LayerKind, build_layer

CPU = torch.device("cpu")


def test_blocks_equal_masked_attention(subtests: pytest.Subtests) -> None:
    for radius, length in product([1, MIN_BLOCK_SIZE, 40], [1, 2 * MIN_BLOCK_SIZE, 90]):
        with subtests.test(radius=radius, length=length):
            torch.manual_seed(length + radius)
            inputs = [torch.randn(2, 3, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
            query, key, value = inputs
            output = local_attention(query, key, value, radius)
            expected = explicit_attention(query, key, value, window_mask(length, length, radius, device=CPU), 0.0)
            torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
            gradients, expected_gradients = (torch.autograd.grad(x.square().sum(), inputs) for x in (output, expected))
            torch.testing.assert_close(gradients, expected_gradients, rtol=1e-11, atol=1e-12)


def test_cost_grows_linearly() -> None:
    """Four times the length costs four times the bytes and operations; with a mask it costs sixteen times."""

    def cost_growth(kind: LayerKind) -> tuple[float, float]:
        small, large = (
            count_operations(build_layer(kind, 8, 16), torch.randn(1, n, 8, requires_grad=True)) for n in (256, 1024)
        )
        return large.peak_bytes / small.peak_bytes, large.operations / small.operations

    assert cost_growth("restricted self-attention") == pytest.approx((4, 4), rel=0.02)
    assert cost_growth("self-attention") == pytest.approx((16, 16), rel=0.15)
