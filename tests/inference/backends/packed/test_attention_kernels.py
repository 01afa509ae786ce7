"""Tests of attention in the packed back end: equal results in every format, and a format that is measured once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dragoman.inference.backends.packed import cached_attention
from dragoman.inference.backends.packed.cached_attention import MIN_BF16_HEAD_WIDTH, MIN_BF16_HEADS, attend, choose_kv_dtype
from dragoman.model.attention import FUSED_MIN_KEYS, KeyValue

# Half a step of eight bits of fraction, for values near 1, in queries, keys, values and results.
ROUNDING = 4 * 2**-9


@pytest.mark.parametrize("num_queries", [1, 3, FUSED_MIN_KEYS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_equals_equation_1(num_queries: int, dtype: torch.dtype) -> None:
    """Compare with the equation in float64; the bias hides the last positions."""
    torch.manual_seed(1)
    heads, positions, width = 6, 20, 16
    query, key = torch.randn(heads, num_queries, width) / 4, torch.randn(heads, positions, width)
    value = torch.rand(heads, positions, width)
    bias = torch.zeros(heads, 1, positions)
    bias[:, :, -7:] = float("-inf")
    weights = (query.double() @ key.double().mT)[:, :, :-7].softmax(-1)
    expected = (weights @ value[:, :-7].double()).transpose(0, 1).float()
    output = attend(query, KeyValue(key.to(dtype), value.to(dtype)), bias.to(dtype))
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else ROUNDING)


def test_one_query_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cached_attention, "has_bf16_matmul", lambda: True)
    measured_widths: list[int] = []

    def is_bf16_faster(key_width: int) -> bool:
        measured_widths.append(key_width)
        return key_width == MIN_BF16_HEAD_WIDTH

    monkeypatch.setattr(cached_attention, "_is_bf16_faster", is_bf16_faster)
    for _ in range(2):
        cached_attention.is_bf16_faster_for_one_query.cache_clear()  # as in another process
        assert choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 1) == torch.bfloat16
        assert choose_kv_dtype(MIN_BF16_HEADS, 2 * MIN_BF16_HEAD_WIDTH, 1) == torch.float32
    assert measured_widths == [MIN_BF16_HEAD_WIDTH, 2 * MIN_BF16_HEAD_WIDTH]
    assert (
        choose_kv_dtype(MIN_BF16_HEADS - 1, MIN_BF16_HEAD_WIDTH, 1)
        == choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH - 1, 4)
        == torch.float32
    )
    assert choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 4) == torch.bfloat16
    monkeypatch.setattr(cached_attention, "has_bf16_matmul", lambda: False)
    assert (
        choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 1)
        == choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 4)
        == torch.float32
    )
    cached_attention.is_bf16_faster_for_one_query.cache_clear()


def test_measurement_returns_an_answer() -> None:
    assert cached_attention._is_bf16_faster(MIN_BF16_HEAD_WIDTH) in (True, False)
