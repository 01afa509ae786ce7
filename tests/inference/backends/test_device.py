"""Tests of the precision that is chosen for a model if the caller leaves it open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.errors import DeviceError
from dragoman.inference.backends import device
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.device import choose_fastest_precision, resolve_device
from dragoman.inference.backends.packed import fastest_precision
from dragoman.inference.backends.packed.fastest_precision import SAMPLE_ROWS, TIMED_ROWS
from dragoman.inference.backends.protocol import PRECISIONS, SUPPORTED, Precision, fall_back
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.factory import build_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def timed_shapes(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the timed weights, if bfloat16 takes 1.5 times as long as float32 in narrow products, and 0.2 in wide ones."""
    shapes: list[torch.Size] = []

    def time_products(weight_OI: Tensor, precisions: Sequence[Precision]) -> dict[tuple[Precision, int], float]:
        shapes.append(weight_OI.shape)
        ratio = 0.2 if len(weight_OI) > 1000 else 1.5
        return {
            (precision, rows): weight_OI.numel() * (ratio if precision == "bfloat16" else 1.0)
            for precision in precisions
            for rows in TIMED_ROWS
        }

    monkeypatch.setattr(fastest_precision, "_time_products", time_products)
    monkeypatch.setattr(fastest_precision, "has_bf16_matmul", lambda: True)
    monkeypatch.setattr(device, "supports_compiled", lambda config, precision: False)
    return shapes


def make_model(vocab_size: int) -> TrainedModel:
    """Return a model with 24,576 weights in the layers of its decoder."""
    config = ModelConfig(d_model=32, d_ff=64, num_heads=4, encoder_layers=1, decoder_layers=2)
    model = build_model(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    return TrainedModel.from_transformer(model, config)


@pytest.mark.parametrize(
    ("vocab_size", "fastest"),
    [
        (20, "float32"),
        (1200, "bfloat16"),  # (24,576 · 1.5 + 38,400 · 0.2) / 62,976 = 0.71
        (3 * SAMPLE_ROWS, "bfloat16"),
    ],
)
def test_precision_depends_on_whole_decoder(timed_shapes: list[torch.Size], vocab_size: int, fastest: str) -> None:
    assert choose_fastest_precision(make_model(vocab_size)) == fastest
    assert timed_shapes == [(64, 32), (min(vocab_size, SAMPLE_ROWS), 32)]


def test_float32_stays_unless_clearly_slower(timed_shapes: list[torch.Size]) -> None:
    """(24,576 · 1.5 + 32,032 · 0.2) / 56,608 = 0.76 is below 1 / 1.25 = 0.8; with 640 tokens all products are narrow."""
    assert choose_fastest_precision(make_model(1001)) == "bfloat16"
    assert choose_fastest_precision(make_model(640)) == "float32"


def test_each_shape_is_measured_once(timed_shapes: list[torch.Size]) -> None:
    assert [choose_fastest_precision(make_model(1200)) for _ in range(3)] == ["bfloat16"] * 3
    assert len(timed_shapes) == 2
    choose_fastest_precision(make_model(1300))
    assert len(timed_shapes) == 4


def test_measurement_returns_a_precision() -> None:
    assert choose_fastest_precision(make_model(50)) in PRECISIONS


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_unavailable_precision_is_refused(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("supports_bf16_matmul", "has_int8_matmul"):
        monkeypatch.setattr(f"dragoman.runtime.cpu_support.{name}", lambda: False)
    monkeypatch.setattr(CompiledBackend, "check_machine", lambda self, precision: fall_back("Numba is not installed"))
    with pytest.raises(DeviceError, match="choose float32") as raised:
        resolve_device("cpu", precision)
    assert raised.value.code == "precision-unsupported"


def test_int8_needs_one_back_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch for ARM has no int8 products, but the compiled back end runs there."""
    monkeypatch.setattr("dragoman.runtime.cpu_support.has_int8_matmul", lambda: False)
    monkeypatch.setattr(CompiledBackend, "check_machine", lambda self, precision: SUPPORTED)
    assert resolve_device("cpu", "int8").precision == "int8"
