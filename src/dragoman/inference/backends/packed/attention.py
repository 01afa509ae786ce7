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

from dragoman.model.attention import FUSED_MIN_KEYS, KeyValue
from dragoman.model.linear import has_bf16_matmul
from dragoman.runtime.autotune_cache import get_measurement, put_measurement

# Heads, and the width of each, from which on bfloat16 is worth its conversions: with several queries a head, oneDNN's products
# of it are faster than MKL's of float32; with one, PyTorch's fused attention may be.
MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH = 64, 64
# What is timed: one query for each head of 32 sentences of 27 tokens, on keys and values that no cache holds all of.
TIMED_HEADS, TIMED_POSITIONS, TIMED_COPIES = 256, 32, 8
TRIALS = 7
CACHE_KEY = "attention of one query a head in bfloat16"
# So much faster it has to be, since the choice stays and changes what is said at a tie.
MIN_SPEEDUP = 1.25


def attend(query_YTK: Tensor, kv: KeyValue, bias: Tensor | None) -> Tensor:
    """Equation 1, whose scale is in the queries, computed in the memory's numbers. → (T, Y, U) in float32.

    bias: (Y, 1 or T, W), added to the scores
    """
    query_YTK = query_YTK.to(kv.key.dtype)
    num_queries = query_YTK.shape[1]
    if num_queries >= FUSED_MIN_KEYS or (num_queries == 1 and kv.key.dtype == torch.bfloat16):
        mask = None if bias is None else bias[None]
        query_1YTK, key_1YWK, value_1YWU = query_YTK[None], kv.key[None], kv.value[None]
        output_YTU = F.scaled_dot_product_attention(query_1YTK, key_1YWK, value_1YWU, attn_mask=mask, scale=1.0)[0]
    else:
        key_YKW = kv.key.mT
        scores_YTW = torch.bmm(query_YTK, key_YKW) if bias is None else torch.baddbmm(bias, query_YTK, key_YKW)
        output_YTU = torch.bmm(scores_YTW.softmax(-1), kv.value)
    return output_YTU.transpose(0, 1).to(torch.float32)


def choose_kv_dtype(num_heads: int, key_width: int, num_queries: int) -> torch.dtype:
    """The numbers that keys and values are best kept in for this many queries a head, where they need not be exact.

    On a processor made for bfloat16 several queries gain by it wherever there are many heads; whether one does is measured at
    first use, and remembered.
    """
    can_use_bf16 = num_heads >= MIN_BF16_HEADS and key_width >= MIN_BF16_HEAD_WIDTH and has_bf16_matmul()
    return torch.bfloat16 if can_use_bf16 and (num_queries > 1 or is_bf16_faster_for_one_query(key_width)) else torch.float32


@lru_cache(maxsize=8)
def is_bf16_faster_for_one_query(key_width: int) -> bool:
    """Whether attention of one query in bfloat16 is clearly the faster here; within a process the answer never changes."""
    cache_key = f"{CACHE_KEY}, {key_width} wide"
    answer = get_measurement(cache_key)
    if answer not in ("yes", "no"):
        answer = "yes" if _is_bf16_faster(key_width) else "no"
        put_measurement(cache_key, answer)
    return answer == "yes"


@torch.no_grad()
def _is_bf16_faster(key_width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    query_Y1K = torch.randn(TIMED_HEADS, 1, key_width, generator=generator)
    bias = torch.zeros(TIMED_HEADS, 1, TIMED_POSITIONS)
    float32_kv = [
        KeyValue(*torch.randn(2, TIMED_HEADS, TIMED_POSITIONS, key_width, generator=generator).unbind())
        for _ in range(TIMED_COPIES)
    ]
    bf16_kv = [KeyValue(kv.key.bfloat16(), kv.value.bfloat16()) for kv in float32_kv]
    variants: dict[torch.dtype, Callable[[], object]] = {
        torch.float32: lambda: [attend(query_Y1K, kv, bias) for kv in float32_kv],
        torch.bfloat16: lambda: [attend(query_Y1K, kv, bias.bfloat16()) for kv in bf16_kv],
    }
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in variants}
    for _ in range(TRIALS):
        for dtype, run_variant in variants.items():
            start_time = time.perf_counter()
            run_variant()
            seconds[dtype].append(time.perf_counter() - start_time)
    return median(seconds[torch.bfloat16][1:]) * MIN_SPEEDUP < median(seconds[torch.float32][1:])
