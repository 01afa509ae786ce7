"""Worked example of equation 1 and of multi-head attention: one query, two keys and two values in each of eight heads.

In the first head, the query has the products 112 and 96 with the two keys. Divided by √64, they are 14 and 12, and their
softmax is 0.88 and 0.12. So the output of the head is z₁ = 0.88·v₁ + 0.12·v₂. The other heads have other differences between
the two products. The outputs of all heads are concatenated and multiplied by W^O (section 3.2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dragoman.model.attention import attention_weights, explicit_attention
from dragoman.viz.attention_svg import render_matrix

D_K, D_V = 64, 4
FIRST_PRODUCTS = (112.0, 96.0)
VALUES = ((1.0, 0.0, 2.0, 0.0), (0.0, 1.0, 0.0, 2.0))
"""v₁ and v₂, the same in each head."""
DIFFERENCES = (16.0, 12.0, 8.0, 4.0, -4.0, -8.0, -12.0, -16.0)
"""Product with the first key minus that with the second one, in each head."""


@dataclass(frozen=True)
class ExampleHead:
    """One head: products of the query with both keys, these divided by √d_k, their softmax, and the output z."""

    head: int
    products: Sequence[float]
    scaled: Sequence[float]
    weights: Sequence[float]
    output: Sequence[float]


@dataclass(frozen=True)
class WorkedExample:
    """All heads, their concatenated outputs, and these times a W^O that takes the mean of the heads."""

    d_k: int
    values: Sequence[Sequence[float]]
    heads: Sequence[ExampleHead]
    concatenated: Sequence[float]
    output: Sequence[float]


def compute_example() -> WorkedExample:
    num_heads = len(DIFFERENCES)
    mean_product = sum(FIRST_PRODUCTS) / 2
    products_HS = torch.tensor([[mean_product + gap / 2, mean_product - gap / 2] for gap in DIFFERENCES])
    query_BHTK = torch.ones(1, num_heads, 1, D_K)
    # A key of equal numbers a/d_k has the product a with a query of ones.
    key_BHSK = (products_HS / D_K)[None, :, :, None].expand(1, num_heads, 2, D_K)
    value_BHSU = torch.tensor(VALUES)[None, None].expand(1, num_heads, 2, D_V)
    products_BHTS = query_BHTK @ key_BHSK.transpose(-2, -1)
    weights_BHTS = attention_weights(query_BHTK, key_BHSK, None)
    heads_BHTU = explicit_attention(query_BHTK, key_BHSK, value_BHSU, None, 0.0)
    concatenated_BTC = heads_BHTU.transpose(1, 2).flatten(-2)
    output_CD = torch.eye(D_V).repeat(num_heads, 1) / num_heads
    heads = [
        ExampleHead(
            head + 1,
            products_BHTS[0, head, 0].tolist(),
            (products_BHTS[0, head, 0] / math.sqrt(D_K)).tolist(),
            weights_BHTS[0, head, 0].tolist(),
            heads_BHTU[0, head, 0].tolist(),
        )
        for head in range(num_heads)
    ]
    return WorkedExample(D_K, VALUES, heads, concatenated_BTC[0, 0].tolist(), (concatenated_BTC @ output_CD)[0, 0].tolist())


def draw_example(example: WorkedExample) -> str:
    return render_matrix(
        [head.weights for head in example.heads],
        [f"head {head.head}" for head in example.heads],
        ["v₁", "v₂"],
        title="Weights of two values in eight heads",
        subtitle="softmax(q·k / √64)",
        description="Weight of each value, one head a row.",
        tooltips=True,
    )
