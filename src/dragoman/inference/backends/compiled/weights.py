"""Weights of products, in int8 or float32, in the layout of the kernels.

O, I  outputs and inputs    L layers    P panels of N = 16 outputs    Q groups of four inputs    R rows of one block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.compiled.arena import allocate, get_address
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.entry_points import pack_weights
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL_U8,
    LANES,
    OUTPUT_BLOCK,
    STORE,
    VECTOR_BYTES,
    LinearWeights,
)
from dragoman.inference.backends.compiled.threads import get_thread_limit, run_with_each
from dragoman.model_weights import ModelWeights
from dragoman.runtime.shared_weights import share_array

VNNI_GROUP = 4
# Rows that are converted at once, so that temporary copies stay small.
BLOCK_ROWS = 256
# Size of the packed weights of a product from which several threads pack integers. With less, threads wait for Python's lock.
# Several threads that load floats take too much memory.
MIN_THREADED_BYTES = 2**22
CompiledPrecision = Literal["int8", "float32"]


@dataclass(frozen=True)
class Int8Rows:
    """Weight matrix (O, I) as integers, which are multiplied by the step (O) of their output, and then by its factor (O)."""

    int8_OI: NDArray[np.int8]
    steps_O: NDArray[np.float32]
    factors_O: NDArray[np.float32]

    def __getitem__(self, outputs: slice | NDArray[np.int64]) -> Int8Rows:
        return Int8Rows(self.int8_OI[outputs], self.steps_O[outputs], self.factors_O[outputs])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.int8_OI.shape


Matrix = NDArray[np.float32] | Int8Rows
"""Weight matrix (O, I)."""


@dataclass(frozen=True)
class WeightLoader:
    """Weight matrix (O, I) that can be loaded again at any time.

    load: returns the matrix
    shape: (O, I)
    release: is called whenever nothing refers to a loaded matrix any more
    """

    load: Callable[[], Matrix]
    shape: tuple[int, int]
    release: Callable[[], None] = lambda: None

    @classmethod
    def from_matrix(cls, matrix: Matrix, release: Callable[[], None] = lambda: None) -> WeightLoader:
        """Return the loader of a matrix."""
        num_outputs, num_inputs = matrix.shape
        return cls(lambda: matrix, (num_outputs, num_inputs), release)

    def iter_blocks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield the rows of each block and their weights (R, I)."""
        matrix = self.load()
        for start in range(0, self.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            yield rows, matrix[rows]
            self.release()


class WeightPacker:
    """Packer of weights in one precision. arrays: packed arrays, which the kernels know by their addresses"""

    def __init__(self, precision: CompiledPrecision) -> None:
        self.precision, self.arrays = precision, list[NDArray[Any]]()

    def add_array(self, array: NDArray[Any]) -> int:
        """Keep an array alive, and return its address."""
        self.arrays.append(np.ascontiguousarray(array))
        return get_address(self.arrays[-1])

    def pack(
        self,
        weights: Sequence[WeightLoader],
        biases: Sequence[NDArray[np.float32] | None],
        epilogue: int,
        input_steps: Sequence[float | None] = (),
    ) -> LinearWeights:
        """Return the weights and biases of one product in all layers, whose arrays the packer keeps.

        input_steps: stored step of each layer's inputs in int8, which counts if no layer lacks it
        """
        num_outputs = weights[0].shape[0]
        # The outputs of all products but those of attention and of the vocabulary are rows in whole vectors.
        row_width = num_outputs if epilogue == STORE else round_up(num_outputs)
        if self.precision == "float32":
            weights_address, bias = self._share(pack_float32_weights(weights, biases))
            scale = compensation = steps = 0
        else:
            weights_address, scale, bias, compensation = self._share(pack_int8_weights(weights, biases, epilogue))
            has_steps = bool(input_steps) and None not in input_steps
            steps = self.add_array(np.array(input_steps, np.float32)) if has_steps else 0
        return LinearWeights(
            weights_address,
            scale,
            bias,
            compensation,
            steps,
            row_width,
            pad_outputs(num_outputs),
            epilogue,
            self.precision == "float32",
        )

    def _share(self, arrays: Sequence[NDArray[Any]]) -> list[int]:
        """Put arrays into memory that worker processes may share, keep them, and return their addresses."""
        return [self.add_array(share_array(array)) for array in arrays]


def load_matrix(weights: ModelWeights, name: str, precision: CompiledPrecision) -> Matrix:
    """Return a matrix by its name, in int8 if it is stored so and the precision is int8."""
    stored = weights.get_quantized(name) if precision == "int8" else None
    return weights.arrays[name] if stored is None else Int8Rows(*stored, np.ones_like(stored[1]))


def pack_output(
    weight_WD: Matrix, bias_W: NDArray[np.float32] | None, precision: CompiledPrecision, input_step: float | None
) -> tuple[LinearWeights, list[NDArray[Any]]]:
    """Return the packed weights before the softmax of some words, and the arrays that hold them."""
    packer = WeightPacker(precision)
    return packer.pack([WeightLoader.from_matrix(weight_WD)], [bias_W], STORE, [input_step]), packer.arrays


def round_up(width: int) -> int:
    """Return the width in whole vectors."""
    return -(-width // LANES) * LANES


def pad_outputs(num_outputs: int) -> int:
    """Return the number of outputs in whole blocks."""
    return -(-num_outputs // OUTPUT_BLOCK) * OUTPUT_BLOCK


def pad_axis(x: NDArray[Any], length: int, axis: int = -1) -> NDArray[Any]:
    """Return an array with zeros behind its numbers, up to this length of one axis."""
    if x.shape[axis] == length:
        return x
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, length - x.shape[axis])
    return np.pad(x, padding)


def pack_float32_weights(
    weights: Sequence[WeightLoader], biases: Sequence[NDArray[np.float32] | None]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights and biases of one product in all layers, as `LinearWeights` describes them."""
    num_outputs, num_inputs = weights[0].shape
    shape = len(weights), pad_outputs(num_outputs) // LANES, round_up(num_inputs), LANES
    weights_LPIN = allocate(shape, np.float32, make=np.zeros)
    for panels_PIN, weight in zip(weights_LPIN, weights, strict=True):
        for rows, block_RI in weight.iter_blocks():
            assert not isinstance(block_RI, Int8Rows), "the packer of floats loads floats"
            panels_PNI = pad_axis(block_RI, round_up(len(block_RI)), axis=0).reshape(-1, LANES, num_inputs)
            first = rows.start // LANES
            panels_PIN[first : first + len(panels_PNI), :num_inputs] = panels_PNI.swapaxes(1, 2)
    return weights_LPIN, _pad_biases(biases, num_outputs)


def _pad_biases(biases: Sequence[NDArray[np.float32] | None], num_outputs: int) -> NDArray[np.float32]:
    """Return the biases of all layers (L, O), with zeros for those that are missing and behind the outputs."""
    bias_LO = allocate((len(biases), pad_outputs(num_outputs)), np.float32, make=np.zeros)
    for layer, bias_O in enumerate(biases):
        if bias_O is not None:
            bias_LO[layer, :num_outputs] = bias_O
    return bias_LO


def pack_int8_weights(
    weights: Sequence[WeightLoader], biases: Sequence[NDArray[np.float32] | None], epilogue: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Return the weights, scales, biases and compensations of one product in all layers, as `LinearWeights` describes them."""
    num_outputs, num_inputs = weights[0].shape[0], round_up(weights[0].shape[1])
    num_layers, num_panels = len(weights), pad_outputs(num_outputs) // LANES
    num_quads = -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES // VNNI_GROUP
    int8_LPQ = allocate((num_layers, num_panels, num_quads, LANES, VNNI_GROUP), np.int8, make=np.zeros)
    scale_LO = allocate((num_layers, num_panels * LANES), np.float32, make=np.zeros)
    compensation_LO = allocate(scale_LO.shape, np.int32, make=np.zeros)
    instruction_set = get_instruction_set()
    assert instruction_set is not None
    input_offset = instruction_set.get_input_offset(nonnegative=epilogue == ADD_RESIDUAL_U8)

    def pack_block(item: tuple[int, slice, Matrix]) -> None:
        layer, rows, block = item
        matrix_RI = block.int8_OI if isinstance(block, Int8Rows) else np.asarray(block, np.float32)
        multipliers = (block.steps_O, block.factors_O) if isinstance(block, Int8Rows) else ()
        contiguous_RI = np.ascontiguousarray(pad_axis(matrix_RI, num_inputs))
        outputs = int8_LPQ[layer, rows.start // LANES], scale_LO[layer, rows], compensation_LO[layer, rows]
        pack_weights(
            get_address(contiguous_RI),
            *(map(get_address, multipliers) if multipliers else (0, 0)),
            len(contiguous_RI),
            num_inputs,
            *map(get_address, outputs),
            input_offset,
        )

    # Each block has rows of its own, so the order of the blocks changes nothing.
    blocks = ((layer, rows, block) for layer, weight in enumerate(weights) for rows, block in weight.iter_blocks())
    first = next(blocks)
    is_threaded = isinstance(first[-1], Int8Rows) and int8_LPQ.nbytes >= MIN_THREADED_BYTES
    run_with_each(pack_block, chain([first], blocks), get_thread_limit() if is_threaded else 1)
    return int8_LPQ, scale_LO, _pad_biases(biases, num_outputs), compensation_LO
