"""Weights of a model of PyTorch by name: collected, averaged, and loaded into a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.factory import assemble_model
from dragoman.model.transformer import Transformer
from dragoman.model_weights import check_weights


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return each parameter and each buffer of the model's state once, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | collect_buffers(model)


def collect_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to a model's state and that gradients do not train."""
    state_names = model.state_dict().keys()
    return {name: table for name, table in model.named_buffers() if name in state_names}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor | NDArray[Any]], *, location: Path) -> None:
    """Set the weights of a model; weights that it shares stay shared.

    Args:
        model: the model, possibly on the meta device
        weights: a tensor or an array for each name of `collect_weights`
        location: the file or folder that error messages name

    Raises:
        BundleError: a name or a shape differs, or a weight is not a finite number.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in collect_weights(model).items()}
    arrays = {name: weight if isinstance(weight, np.ndarray) else _to_array(weight) for name, weight in weights.items()}
    set_weights(model, check_weights(arrays, shapes, location=location))


def set_weights(model: nn.Module, arrays: Mapping[str, NDArray[np.float32]]) -> None:
    """Set the weights of a model to these arrays, which it reads in place; weights that it shares stay shared."""
    buffers = collect_buffers(model)
    new_tensors: dict[int, Tensor] = {}
    for name, tensor in (dict(model.named_parameters()) | buffers).items():
        values = torch.from_numpy(arrays[name])
        new_tensors[id(tensor)] = values if name in buffers else nn.Parameter(values)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, new_tensors[id(parameter)])
        for name, table in module.named_buffers(recurse=False):
            if id(table) in new_tensors:
                setattr(module, name, new_tensors[id(table)])


def _to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, without a copy if NumPy has its type."""
    tensor = tensor.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def to_arrays(weights: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """Return weights of `collect_weights` as arrays in float32, without a copy of tensors of this type on a CPU."""
    return {name: _to_array(weight.float()) for name, weight in weights.items()}


def list_model_shapes(config: ModelConfig, **options: Any) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights of any architecture. options: those of `build_model`"""
    with torch.device("meta"):
        model = assemble_model(config, **options)
    return {name: tuple(weight.shape) for name, weight in collect_weights(model).items()}


def restore_model(config: ModelConfig, arrays: Mapping[str, NDArray[np.float32]], **options: Any) -> Transformer:
    """Return a model in evaluation mode that reads weights of `check_weights` in place. options: those of `build_model`"""
    with torch.device("meta"):
        model = assemble_model(config, **options)
    set_weights(model, arrays)
    return model.eval()


def average_weights(weight_sets: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several models' weights, summed in float64. All models have the same names and shapes."""

    def average(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([tensor.double() for tensor in tensors]).mean(dim=0)

    return {
        name: average([weights[name] for weights in weight_sets]).to(tensor.dtype) for name, tensor in weight_sets[0].items()
    }
