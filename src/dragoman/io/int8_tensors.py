"""Matrices as int8 rows with a step for each row, a quarter of the size of float32.

A row is divided by its step, max |w| / 127, and rounded. The int8 kernels do the same with float32 weights, so they compute the
same integers from either. Vectors stay as they are.

    NAME         int8 (O, I)
    NAME.step    float32 (O), the step of each row
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dragoman.io.safetensors import is_floating_point

AnyArray = NDArray[Any]

STEP_SUFFIX = ".step"
MAX_STEPS = 127
MIN_STEP = 1e-30
"""Step of a row of zeros, or of numbers that are too small for float32."""


def quantize_matrices(tensors: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the tensors with each floating-point matrix as int8, and the steps of its rows beside it."""
    quantized: dict[str, AnyArray] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not is_floating_point(tensor) or 0 in tensor.shape:
            quantized[name] = tensor
            continue
        matrix_OI = tensor.astype(np.float32)
        steps_O = np.maximum(np.abs(matrix_OI).max(axis=1) / np.float32(MAX_STEPS), np.float32(MIN_STEP))
        quantized[name] = np.rint(matrix_OI / steps_O[:, None]).astype(np.int8)
        quantized[name + STEP_SUFFIX] = steps_O
    return quantized


class DequantizedArrays(Mapping[str, AnyArray]):
    """Arrays whose int8 matrices become float32 when they are read. A matrix that is still in use is not made again.

    arrays: the other arrays
    quantized: int8 matrix (O, I) and steps (O) of each name
    """

    def __init__(self, arrays: Mapping[str, AnyArray], quantized: Mapping[str, tuple[AnyArray, AnyArray]]) -> None:
        self.arrays, self.quantized = arrays, quantized
        self._matrices = WeakValueDictionary[str, AnyArray]()

    def __getitem__(self, name: str) -> AnyArray:
        if name not in self.quantized:
            return self.arrays[name]
        matrix_OI = self._matrices.get(name)
        if matrix_OI is None:
            quantized_OI, steps_O = self.quantized[name]
            matrix_OI = self._matrices[name] = quantized_OI * steps_O[:, None]
        return matrix_OI

    def __iter__(self) -> Iterator[str]:
        return chain(self.arrays, self.quantized)

    def __len__(self) -> int:
        return len(self.arrays) + len(self.quantized)


def dequantize_matrices(tensors: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
    """Return the tensors with each int8 matrix as float32; the same object if there is none.

    Raises ValueError if a matrix and its steps do not fit.
    """
    names = [name for name in tensors if name + STEP_SUFFIX in tensors]
    if not names:
        return tensors
    steps = {name: tensors[name + STEP_SUFFIX] for name in names}
    # The kernels read the steps as float32.
    quantized = {
        name: (tensors[name], steps_O.astype(np.float32, copy=False) if np.issubdtype(steps_O.dtype, np.floating) else steps_O)
        for name, steps_O in steps.items()
    }
    for name, (quantized_OI, steps_O) in quantized.items():
        if quantized_OI.dtype != np.int8 or quantized_OI.ndim != 2 or steps_O.shape != quantized_OI.shape[:1]:
            raise ValueError(
                f"{name + STEP_SUFFIX} has shape {tuple(steps_O.shape)}, and {name} is no int8 matrix that it fits"
            )
    others = tensors.keys() - quantized.keys() - {name + STEP_SUFFIX for name in quantized}
    return DequantizedArrays({name: tensors[name] for name in tensors if name in others}, quantized)
