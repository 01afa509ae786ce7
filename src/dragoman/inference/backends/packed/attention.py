"""What queries find among keys and values, on a processor: in which numbers, and by which of PyTorch's ways.

Dimensions are those of `dragoman.inference.backends.packed.model`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.attention import LONG, KeyValue
from dragoman.model.linear import multiplies_bfloat16
from dragoman.runtime.autotune_cache import recall, remember

# Heads, and the width of each, from which on bfloat16 is worth its conversions: with several queries a head, oneDNN's products
# of it are faster than MKL's of float32; with one, PyTorch's fused attention may be.
MANY_HEADS, WIDE_HEAD = 64, 64
# What is timed: one query for each head of 32 sentences of 27 tokens, on keys and values that no cache holds all of.
HEADS, PLACES, COPIES = 256, 32, 8
ROUNDS = 7
QUESTION = "attention of one query a head in bfloat16"
# So much faster it has to be, since the choice stays and changes what is said at a tie.
CLEARLY = 1.25


def found(query_YTK: Tensor, memory: KeyValue, bias: Tensor | None) -> Tensor:
    """Equation 1, whose scale is in the queries, computed in the memory's numbers. → (T, Y, U) in float32.

    bias: (Y, 1 or T, W), added to the scores
    """
    query_YTK = query_YTK.to(memory.key.dtype)
    queries = query_YTK.shape[1]
    if queries >= LONG or (queries == 1 and memory.key.dtype == torch.bfloat16):
        mask = None if bias is None else bias[None]
        query_1YTK, key_1YWK, value_1YWU = query_YTK[None], memory.key[None], memory.value[None]
        found_YTU = F.scaled_dot_product_attention(query_1YTK, key_1YWK, value_1YWU, attn_mask=mask, scale=1.0)[0]
    else:
        key_YKW = memory.key.mT
        scores_YTW = torch.bmm(query_YTK, key_YKW) if bias is None else torch.baddbmm(bias, query_YTK, key_YKW)
        found_YTU = torch.bmm(scores_YTW.softmax(-1), memory.value)
    return found_YTU.transpose(0, 1).to(torch.float32)


def best_dtype(heads: int, key_width: int, queries: int) -> torch.dtype:
    """The numbers that keys and values are best kept in for this many queries a head, where they need not be exact.

    On a processor made for bfloat16 several queries gain by it wherever there are many heads; whether one does is measured at
    first use, and remembered.
    """
    gains = heads >= MANY_HEADS and key_width >= WIDE_HEAD and multiplies_bfloat16()
    return torch.bfloat16 if gains and (queries > 1 or one_gains(key_width)) else torch.float32


@lru_cache(maxsize=8)
def one_gains(key_width: int) -> bool:
    """Whether attention of one query in bfloat16 is clearly the faster here; within a process the answer never changes."""
    question = f"{QUESTION}, {key_width} wide"
    known = recall(question)
    if known not in ("yes", "no"):
        known = "yes" if _measured(key_width) else "no"
        remember(question, known)
    return known == "yes"


@torch.no_grad()
def _measured(key_width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    query_Y1K = torch.randn(HEADS, 1, key_width, generator=generator)
    bias = torch.zeros(HEADS, 1, PLACES)
    exact = [KeyValue(*torch.randn(2, HEADS, PLACES, key_width, generator=generator).unbind()) for _ in range(COPIES)]
    halves = [KeyValue(one.key.bfloat16(), one.value.bfloat16()) for one in exact]
    ways: dict[torch.dtype, Callable[[], object]] = {
        torch.float32: lambda: [found(query_Y1K, one, bias) for one in exact],
        torch.bfloat16: lambda: [found(query_Y1K, one, bias.bfloat16()) for one in halves],
    }
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in ways}
    for _ in range(ROUNDS):
        for dtype, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[dtype].append(time.perf_counter() - began)
    return median(seconds[torch.bfloat16][1:]) * CLEARLY < median(seconds[torch.float32][1:])
