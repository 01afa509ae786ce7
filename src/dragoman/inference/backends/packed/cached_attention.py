"""Attention over cached keys and values on a processor, in float32 or bfloat16, by the fastest of PyTorch's functions.

Dimensions are those of `dragoman.inference.backends.packed.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.attention import FUSED_MIN_KEYS, KeyValue
from dragoman.runtime.autotuner import choose_cached, measure_seconds, select_fastest
from dragoman.runtime.cpu_support import has_bf16_matmul

# Heads of all sentences, and the width of each, from which on bfloat16 pays for its conversions. With several queries a head,
# oneDNN's products of bfloat16 are faster than MKL's of float32; with one query, PyTorch's fused attention may be.
MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH = 64, 64
# The probe: one query for each head of 32 sentences of 27 tokens, on more keys and values than any cache holds.
TIMED_HEADS, TIMED_POSITIONS, TIMED_COPIES = 256, 32, 8
TRIALS = 7
CACHE_KEY = "attention of one query a head in bfloat16"
# bfloat16 must be this much faster, because the choice is kept and changes results at a tie.
MIN_SPEEDUP = 1.25


def attend(query_YTK: Tensor, kv: KeyValue, bias: Tensor | None) -> Tensor:
    """Return the result of equation 1 (T, Y, U) in float32, computed in the type of the keys and values.

    query_YTK: queries that include the scale of equation 1
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
    """Return the fastest type of keys and values for this many queries a head, if rounding is acceptable.

    Many heads with several queries each gain by bfloat16 on every processor with its instructions. One query a head is
    measured at first use and cached.
    """
    can_use_bf16 = num_heads >= MIN_BF16_HEADS and key_width >= MIN_BF16_HEAD_WIDTH and has_bf16_matmul()
    return torch.bfloat16 if can_use_bf16 and (num_queries > 1 or is_bf16_faster_for_one_query(key_width)) else torch.float32


@lru_cache(maxsize=8)
def is_bf16_faster_for_one_query(key_width: int) -> bool:
    """Return whether attention of one query is clearly faster in bfloat16. The answer never changes within a process."""
    key = f"{CACHE_KEY}, {key_width} wide"
    return choose_cached(key, ("no", "yes"), lambda: "yes" if _is_bf16_faster(key_width) else "no") == "yes"


@torch.no_grad()
def _is_bf16_faster(key_width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    query_Y1K = torch.randn(TIMED_HEADS, 1, key_width, generator=generator)
    bias = torch.zeros(TIMED_HEADS, 1, TIMED_POSITIONS)
    kv_copies = [
        KeyValue(*torch.randn(2, TIMED_HEADS, TIMED_POSITIONS, key_width, generator=generator).unbind())
        for _ in range(TIMED_COPIES)
    ]

    def attend_all(copies: list[KeyValue], bias: Tensor) -> None:
        for kv in copies:
            attend(query_Y1K, kv, bias)

    bf16_copies = [KeyValue(kv.key.bfloat16(), kv.value.bfloat16()) for kv in kv_copies]
    candidates: dict[str, Callable[[], object]] = {
        "float32": partial(attend_all, kv_copies, bias),
        "bfloat16": partial(attend_all, bf16_copies, bias.bfloat16()),
    }
    seconds = measure_seconds(candidates, rounds=TRIALS)
    return select_fastest(seconds, default="float32", min_speedup=MIN_SPEEDUP) == "bfloat16"
