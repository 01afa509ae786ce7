"""Matrices as int8 rows with a step for each row, a quarter of the size of float32.

A row is divided by its step, max |w| / 127, and rounded. The int8 kernels do the same with float32 weights, so they compute the
same integers from either. Vectors stay as they are.

    NAME               int8 (O, I)
    NAME.step          float32 (O), the step of each row
    NAME.input_step    float32 (1), the step of the product's inputs, where another toolkit has measured it. Without it, each
                       input has its own
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

STEP_SUFFIX, INPUT_STEP_SUFFIX = ".step", ".input_step"
MAX_STEPS = 127
MIN_STEP = 1e-30
"""Step of a row of zeros, or of numbers that are too small for float32."""


def quantize_matrices(tensors: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the tensors with each floating-point matrix as int8, and the steps of its rows beside it.

    Matrices that are int8 already stay as they are.
    """
    quantized: dict[str, AnyArray] = {}
    if isinstance(tensors, DequantizedArrays):
        quantized, tensors = tensors.list_stored(), tensors.arrays
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
    input_steps: stored step of the inputs of some of these matrices
    """

    def __init__(
        self,
        arrays: Mapping[str, AnyArray],
        quantized: Mapping[str, tuple[AnyArray, AnyArray]],
        input_steps: Mapping[str, float],
    ) -> None:
        self.arrays, self.quantized, self.input_steps = arrays, quantized, input_steps
        self._matrices = WeakValueDictionary[str, AnyArray]()

    def list_stored(self) -> dict[str, AnyArray]:
        """Return the int8 matrices and their steps, by the names under which a file holds them."""
        matrices = {name: matrix_OI for name, (matrix_OI, _) in self.quantized.items()}
        steps = {name + STEP_SUFFIX: steps_O for name, (_, steps_O) in self.quantized.items()}
        input_steps = {name + INPUT_STEP_SUFFIX: np.array([step], np.float32) for name, step in self.input_steps.items()}
        return matrices | steps | input_steps

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
        name: (tensors[name], steps_O.astype(np.float32, copy=False) if steps_O.dtype.kind == "f" else steps_O)
        for name, steps_O in steps.items()
    }
    for name, (quantized_OI, steps_O) in quantized.items():
        if quantized_OI.dtype != np.int8 or quantized_OI.ndim != 2 or steps_O.shape != quantized_OI.shape[:1]:
            raise ValueError(
                f"{name + STEP_SUFFIX} has shape {tuple(steps_O.shape)}, and {name} is no int8 matrix that it fits"
            )
    input_steps = {}
    for name in (name for name in quantized if name + INPUT_STEP_SUFFIX in tensors):
        step = tensors[name + INPUT_STEP_SUFFIX]
        if step.shape != (1,) or not is_floating_point(step) or not 0 < step[0] < np.inf:
            raise ValueError(f"{name + INPUT_STEP_SUFFIX} is not one positive number")
        input_steps[name] = float(step[0])
    suffixes = "", STEP_SUFFIX, INPUT_STEP_SUFFIX
    others = tensors.keys() - {name + suffix for name in quantized for suffix in suffixes}
    return DequantizedArrays({name: tensors[name] for name in tensors if name in others}, quantized, input_steps)
