"""The two models that are trained, and the multiplications that a target token costs in each."""

from __future__ import annotations

from dataclasses import dataclass

from .text import VOCABULARY, Lengths


@dataclass(frozen=True)
class Size:
    """Dimensions, batch and how often a rate is told."""

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


TINY = Size("tiny", 4, 128, 256, 4, 0.3, 4096, report_steps=5)
BASE = Size("base", 6, 512, 2048, 8, 0.1, 2048, report_steps=1)
SIZES = {size.name: size for size in (TINY, BASE)}


def matrix_shapes(size: Size) -> dict[tuple[int, int], int]:
    """How many weight matrices a step multiplies with, by width out and in: each forwards, for its input and for itself.

    Projections that read the same are taken as one product, the largest that a program can make of them. The output matrix is
    multiplied with as many rows as the others, though places of padding could be left out.
    """
    layers, d_model, d_ff = size.layers, size.d_model, size.d_ff
    return {
        (3 * d_model, d_model): 2 * layers,  # queries, keys and values of self-attention
        (2 * d_model, d_model): layers,  # keys and values over the source
        (d_model, d_model): 4 * layers,  # queries over the source, and the outputs of all attention
        (d_ff, d_model): 2 * layers,
        (d_model, d_ff): 2 * layers,
        (VOCABULARY, d_model): 1,
    }


def flops_per_target_token(size: Size, lengths: Lengths) -> float:
    """Floating-point operations of matrix products in a training step, per target token; padding costs nothing here.

    A weight costs two operations a token forwards and four backwards. Attention's own products count for real lengths, half of
    them within the target, which is causal. Tokens of the source count where they pass, per token of the target.
    """
    layers, d_model, d_ff = size.layers, size.d_model, size.d_ff
    encoder = layers * (4 * d_model**2 + 2 * d_model * d_ff) + layers * 2 * d_model**2
    decoder = layers * (6 * d_model**2 + 2 * d_model * d_ff) + d_model * VOCABULARY
    attention = layers * 2 * d_model * (lengths.ss + lengths.tt / 2 + lengths.st)
    return 6.0 * (lengths.s * encoder + lengths.t * decoder + attention) / lengths.t
