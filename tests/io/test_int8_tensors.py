"""Matrices as int8 rows with a step for each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.errors import BundleError
from dragoman.io.int8_tensors import DequantizedArrays, dequantize_matrices, quantize_matrices
from dragoman.model_weights import restore_arrays


def make_tensors() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(1)
    matrix = (random.standard_normal((9, 33)) * np.logspace(-20, 20, 9)[:, None]).astype(np.float32)
    return {
        "matrix": matrix,
        "zeros": np.zeros((3, 4), np.float32),
        "vector": random.standard_normal(5).astype(np.float32),
        "empty": np.empty((0, 4), np.float32),
    }


def test_values_differ_by_half_a_step_at_most() -> None:
    tensors = make_tensors()
    quantized = quantize_matrices(tensors)
    assert {name for name, tensor in quantized.items() if tensor.dtype == np.int8} == {"matrix", "zeros"}
    restored = dequantize_matrices(quantized)
    assert restored.keys() == tensors.keys()
    steps = np.abs(tensors["matrix"]).max(axis=1, keepdims=True) / 127
    assert (np.abs(restored["matrix"] - tensors["matrix"]) <= 0.5001 * steps).all()
    for name in ("zeros", "vector", "empty"):
        assert np.array_equal(restored[name], tensors[name])


def test_second_quantization_changes_nothing() -> None:
    once = quantize_matrices(make_tensors())
    twice = quantize_matrices(dequantize_matrices(once))
    assert np.array_equal(once["matrix"], twice["matrix"])
    np.testing.assert_allclose(once["matrix.step"], twice["matrix.step"], rtol=1e-6, atol=0.0)


def test_steps_of_half_precision_are_read_as_float32() -> None:
    matrix = np.random.default_rng(2).standard_normal((9, 33)).astype(np.float32)
    quantized = quantize_matrices({"matrix": matrix})
    half = quantized["matrix.step"].astype(np.float16)
    arrays = dequantize_matrices(quantized | {"matrix.step": half})
    assert isinstance(arrays, DequantizedArrays)
    assert arrays.quantized["matrix"][1].dtype == np.float32
    np.testing.assert_array_equal(arrays["matrix"], quantized["matrix"] * half.astype(np.float32)[:, None])


def test_command_writes_a_smaller_bundle(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "int8"
    result = CliRunner().invoke(cli, ["model", "quantize", str(bundle), "-o", str(output)])
    assert result.exit_code == 0, result.output
    sizes = [(path / "weights.safetensors").stat().st_size for path in (output, bundle)]
    assert sizes[0] < 0.5 * sizes[1]
    weights, original = (load_bundle(path).arrays for path in (output, bundle))
    for name, tensor in original.items():
        step = np.abs(tensor).max() / 127
        np.testing.assert_allclose(weights[name], tensor, rtol=0.0, atol=float(step) * 0.51)


def test_damaged_steps_are_one_line(bundle: Path, tmp_path: Path) -> None:
    quantized = quantize_matrices(load_bundle(bundle).arrays)
    name = next(name for name in quantized if name.endswith(".step"))
    with pytest.raises(BundleError, match="quantize the bundle again"):
        restore_arrays(quantized | {name: np.ones(1, np.float32)}, location=tmp_path)
