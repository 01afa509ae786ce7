"""Matrices as int8 rows with a step for each row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from dragoman.bundle import collect_weights, load_bundle, restore_weights
from dragoman.cli.main import cli
from dragoman.errors import BundleError
from dragoman.io.int8_tensors import dequantize_matrices, quantize_matrices


def make_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(9, 33, generator=generator) * torch.logspace(-20, 20, 9)[:, None]
    return {
        "matrix": matrix,
        "zeros": torch.zeros(3, 4),
        "vector": torch.randn(5, generator=generator),
        "empty": torch.empty(0, 4),
    }


def test_values_differ_by_half_a_step_at_most() -> None:
    tensors = make_tensors()
    quantized = quantize_matrices(tensors)
    assert {name for name, tensor in quantized.items() if tensor.dtype == torch.int8} == {"matrix", "zeros"}
    restored = dequantize_matrices(quantized)
    assert restored.keys() == tensors.keys()
    steps = tensors["matrix"].abs().amax(dim=1, keepdim=True) / 127
    assert bool(((restored["matrix"] - tensors["matrix"]).abs() <= 0.5001 * steps).all())
    for name in ("zeros", "vector", "empty"):
        assert torch.equal(restored[name], tensors[name])


def test_second_quantization_changes_nothing() -> None:
    once = quantize_matrices(make_tensors())
    twice = quantize_matrices(dequantize_matrices(once))
    assert torch.equal(once["matrix"], twice["matrix"])
    torch.testing.assert_close(once["matrix.step"], twice["matrix.step"], rtol=1e-6, atol=0.0)


def test_tensors_without_int8_stay_the_same_object() -> None:
    tensors = make_tensors()
    assert dequantize_matrices(tensors) is tensors


@pytest.mark.parametrize("steps", [torch.ones(8), torch.ones(9, 1), torch.tensor(1.0)])
def test_steps_of_another_shape_are_refused(steps: torch.Tensor) -> None:
    quantized = quantize_matrices(make_tensors()) | {"matrix.step": steps}
    with pytest.raises(ValueError, match=r"matrix\.step has shape"):
        dequantize_matrices(quantized)


def test_command_writes_a_smaller_bundle(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "int8"
    result = CliRunner().invoke(cli, ["quantize", str(bundle), "-o", str(output)])
    assert result.exit_code == 0, result.output
    sizes = [(path / "weights.safetensors").stat().st_size for path in (output, bundle)]
    assert sizes[0] < 0.5 * sizes[1]
    weights, original = (collect_weights(load_bundle(path).model) for path in (output, bundle))
    for name, tensor in original.items():
        step = tensor.abs().amax() / 127
        torch.testing.assert_close(weights[name], tensor, rtol=0.0, atol=float(step) * 0.51)


def test_damaged_steps_are_one_line(bundle: Path, tmp_path: Path) -> None:
    quantized = quantize_matrices(collect_weights(load_bundle(bundle).model))
    name = next(name for name in quantized if name.endswith(".step"))
    with pytest.raises(BundleError, match="quantize the bundle again"):
        restore_weights(quantized | {name: torch.ones(1)}, location=tmp_path)
