"""Which numbers a model is computed in when nobody says: those that its decoder's products are clearly fastest in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.inference.backends import device
from dragoman.inference.backends.device import SAMPLE_ROWS, TIMED_ROWS, choose_fastest_precision
from dragoman.inference.backends.shared import Precision
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """On this processor bfloat16 takes half the time again of float32 in narrow products, and a fifth of it in wide ones."""
    asked: list[torch.Size] = []

    def seconds(weight_OI: Tensor, able: Sequence[Precision]) -> dict[tuple[Precision, int], float]:
        asked.append(weight_OI.shape)
        share = 0.2 if len(weight_OI) > 1000 else 1.5
        return {(one, rows): weight_OI.numel() * (share if one == "bfloat16" else 1.0) for one in able for rows in TIMED_ROWS}

    monkeypatch.setattr(device, "_time_products", seconds)
    monkeypatch.setattr(device, "has_bf16_matmul", lambda: True)
    monkeypatch.setattr(device, "supports_compiled", lambda model: False)
    return asked


def model_of(pieces: int) -> Transformer:
    """24,576 weights in the layers of its decoder."""
    config = ModelConfig(d_model=32, d_ff=64, num_heads=4, encoder_layers=1, decoder_layers=2)
    return build_model(config, source_vocab_size=pieces, target_vocab_size=pieces)


@pytest.mark.parametrize(
    ("pieces", "fastest"),
    [
        (20, "float32"),
        (1200, "bfloat16"),  # (24,576 · 1.5 + 38,400 · 0.2) / 62,976 = 0.71
        (3 * SAMPLE_ROWS, "bfloat16"),
    ],
)
def test_the_whole_decoder_counts(measured: list[torch.Size], pieces: int, fastest: str) -> None:
    assert choose_fastest_precision(model_of(pieces)) == fastest
    assert measured == [(64, 32), (min(pieces, SAMPLE_ROWS), 32)]


def test_who_is_not_clearly_faster_is_not_taken(measured: list[torch.Size]) -> None:
    """(24,576 · 1.5 + 32,032 · 0.2) / 56,608 = 0.76 is, beside 1 / 1.25 = 0.8; with 640 pieces, narrow ones, nothing is."""
    assert choose_fastest_precision(model_of(1001)) == "bfloat16"
    assert choose_fastest_precision(model_of(640)) == "float32"


def test_a_shape_is_measured_once(measured: list[torch.Size]) -> None:
    assert [choose_fastest_precision(model_of(1200)) for _ in range(3)] == ["bfloat16"] * 3
    assert len(measured) == 2
    choose_fastest_precision(model_of(1300))
    assert len(measured) == 4


def test_the_measurement_answers() -> None:
    assert choose_fastest_precision(model_of(50)) in device.PRECISIONS
