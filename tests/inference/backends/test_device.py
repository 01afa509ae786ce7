"""Tests of the precision of a model on a processor: the one that is chosen, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.config import ModelConfig
from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled import backend
from dragoman.inference.backends.compiled.backend import KernelObstacle
from dragoman.inference.backends.device import resolve_device
from dragoman.inference.backends.select import choose_backend, supports_compiled
from dragoman.inference.backends.torch_backend import TorchModel
from expected_errors import raises_code


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_kernel_obstacle", lambda: KernelObstacle("there are no kernels"))


def test_unusual_layers_compute_in_float32() -> None:
    keys: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 4, "decoder_mixer": "recurrent"}
    assert not supports_compiled(ModelConfig(**keys))


def test_gpu_takes_neither_shortlist_nor_spectrogram() -> None:
    assert choose_backend(ModelConfig(), "cuda", "bfloat16") is TorchModel
    with raises_code("shortlist-unsupported", "leave the shortlist out"):
        choose_backend(ModelConfig(), "cuda", "float32", has_shortlist=True)
    keys: dict[str, Any] = {"frontend": "log-mel", "position_encoding": "learned", "tie_embeddings": "decoder"}
    with raises_code("frontend-unsupported", "use a CPU"):
        choose_backend(ModelConfig(**keys), "cuda", "float32")


def test_bfloat16_needs_a_gpu() -> None:
    with pytest.raises(DeviceError, match="'bfloat16' is not available on cpu; choose float32 or int8, or a GPU") as raised:
        resolve_device("cpu", "bfloat16")
    assert raised.value.code == "precision-unsupported"


@pytest.mark.usefixtures("no_kernels")
def test_int8_needs_kernels() -> None:
    with pytest.raises(DeviceError, match="because there are no kernels; choose float32") as raised:
        resolve_device("cpu", "int8")
    assert raised.value.code == "precision-unsupported"


def test_processor_without_kernels_translates_in_float32(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, a beam and an ensemble have the results of the kernels, apart from rounding."""
    pytest.importorskip("torch")
    if not supports_compiled(ModelConfig()):
        pytest.skip("this machine does not run the kernels")
    lines = ["one red two", "big blue three four"]
    expected, expected_of_two = (
        dragoman.load(*paths, task="translation", device="cpu", precision="float32").translate(lines)
        for paths in ((bundle,), (bundle, bundle))
    )
    monkeypatch.setattr(backend, "find_kernel_obstacle", lambda: KernelObstacle("there are no kernels"))
    translator = dragoman.load(bundle, task="translation", device="cpu")
    assert translator.precision == "float32"
    assert [item.text for item in translator.translate(lines)] == [item.text for item in expected]
    both = dragoman.load(bundle, bundle, task="translation", device="cpu")
    assert [item.text for item in both.translate(lines)] == [item.text for item in expected_of_two]
