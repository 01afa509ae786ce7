"""What queries find is the same in every way of computing it, and the way is chosen by what was measured, once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dragoman.inference.backends.packed import attention
from dragoman.inference.backends.packed.attention import MIN_BF16_HEAD_WIDTH, MIN_BF16_HEADS, attend, choose_kv_dtype
from dragoman.model.attention import FUSED_MIN_KEYS, KeyValue

# Of a value near 1, half a step of eight bits of fraction in q, k, v and what is found.
ROUNDING = 4 * 2**-9


@pytest.mark.parametrize("queries", [1, 3, FUSED_MIN_KEYS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_found_is_equation_1(queries: int, dtype: torch.dtype) -> None:
    """Beside the equation written out in float64; the last places are hidden."""
    torch.manual_seed(1)
    heads, places, width = 6, 20, 16
    query, key = torch.randn(heads, queries, width) / 4, torch.randn(heads, places, width)
    value = torch.rand(heads, places, width)
    bias = torch.zeros(heads, 1, places)
    bias[:, :, -7:] = float("-inf")
    weights = (query.double() @ key.double().mT)[:, :, :-7].softmax(-1)
    wanted = (weights @ value[:, :-7].double()).transpose(0, 1).float()
    ours = attend(query, KeyValue(key.to(dtype), value.to(dtype)), bias.to(dtype))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6 if dtype == torch.float32 else ROUNDING)


def test_one_query_is_measured_once_and_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention, "has_bf16_matmul", lambda: True)
    asked: list[int] = []

    def measured(key_width: int) -> bool:
        asked.append(key_width)
        return key_width == MIN_BF16_HEAD_WIDTH

    monkeypatch.setattr(attention, "_is_bf16_faster", measured)
    for _ in range(2):
        attention.is_bf16_faster_for_one_query.cache_clear()  # as in another process
        assert choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 1) == torch.bfloat16
        assert choose_kv_dtype(MIN_BF16_HEADS, 2 * MIN_BF16_HEAD_WIDTH, 1) == torch.float32
    assert asked == [MIN_BF16_HEAD_WIDTH, 2 * MIN_BF16_HEAD_WIDTH]
    assert (
        choose_kv_dtype(MIN_BF16_HEADS - 1, MIN_BF16_HEAD_WIDTH, 1)
        == choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH - 1, 4)
        == torch.float32
    )
    assert choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 4) == torch.bfloat16
    monkeypatch.setattr(attention, "has_bf16_matmul", lambda: False)
    assert (
        choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 1)
        == choose_kv_dtype(MIN_BF16_HEADS, MIN_BF16_HEAD_WIDTH, 4)
        == torch.float32
    )
    attention.is_bf16_faster_for_one_query.cache_clear()


def test_the_measurement_answers() -> None:
    assert attention._is_bf16_faster(MIN_BF16_HEAD_WIDTH) in (True, False)
