"""Weights of products, in int8 or float32, in the layout of the kernels.

O, I  outputs and inputs    L layers    P panels of N = 16 outputs    Q groups of four inputs    R rows of one block
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

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
from dragoman.inference.backends.shared import LazyWeight
from dragoman.runtime.shared_weights import share_tensor

VNNI_GROUP = 4
CompiledPrecision = Literal["int8", "float32"]
# Kernels read tensors by address, so PyTorch's default type and device must not change them.
F32_OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


class WeightPacker:
    """Packer of weights in one precision. tensors: packed tensors, which the kernels know by their addresses"""

    def __init__(self, precision: CompiledPrecision) -> None:
        self.precision, self.tensors = precision, list[Tensor]()

    def add_tensor(self, tensor: Tensor) -> int:
        """Keep a tensor alive, and return its address."""
        self.tensors.append(tensor.contiguous())
        return self.tensors[-1].data_ptr()

    def pack(self, weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int) -> LinearWeights:
        """Return the weights and biases of one product in all layers, whose tensors the packer keeps."""
        num_outputs = weights[0].shape[0]
        # The outputs of all products but those of attention and of the vocabulary are rows in whole vectors.
        row_width = num_outputs if epilogue == STORE else round_up(num_outputs)
        if self.precision == "float32":
            weights_address, bias = self._share(pack_float32_weights(weights, biases))
            scale = compensation = 0
        else:
            weights_address, scale, bias, compensation = self._share(pack_int8_weights(weights, biases, epilogue))
        return LinearWeights(
            weights_address,
            scale,
            bias,
            compensation,
            row_width,
            pad_outputs(num_outputs),
            epilogue,
            self.precision == "float32",
        )

    def _share(self, tensors: Sequence[Tensor]) -> list[int]:
        """Put tensors into memory that worker processes may share, keep them, and return their addresses."""
        return [self.add_tensor(share_tensor(tensor)) for tensor in tensors]


@torch.no_grad()
def pack_output(weight_WD: Tensor, bias_W: Tensor | None, precision: CompiledPrecision) -> tuple[LinearWeights, list[Tensor]]:
    """Return the packed weights before the softmax of some words, and the tensors that hold them."""
    packer = WeightPacker(precision)
    return packer.pack([LazyWeight.from_tensor(weight_WD)], [bias_W], STORE), packer.tensors


def round_up(width: int) -> int:
    """Return the width in whole vectors."""
    return -(-width // LANES) * LANES


def pad_outputs(num_outputs: int) -> int:
    """Return the number of outputs in whole blocks."""
    return -(-num_outputs // OUTPUT_BLOCK) * OUTPUT_BLOCK


def pack_float32_weights(weights: Sequence[LazyWeight], biases: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of one product in all layers, as `LinearWeights` describes them."""
    num_outputs, num_inputs = weights[0].shape
    padded_outputs, padded_inputs = pad_outputs(num_outputs), round_up(num_inputs)
    weights_LPIN = torch.zeros(len(weights), padded_outputs // LANES, padded_inputs, LANES, **F32_OPTIONS)
    bias_LO = _pad_biases(biases, num_outputs)
    for panels_PIN, weight in zip(weights_LPIN, weights, strict=True):
        for rows, block_RI in weight.iter_blocks():
            block_OI = F.pad(block_RI, (0, 0, 0, round_up(len(block_RI)) - len(block_RI))).contiguous()
            first = rows.start // LANES
            panels_PIN[first : first + len(block_OI) // LANES, :num_inputs] = block_OI.view(-1, LANES, num_inputs).transpose(
                1, 2
            )
    return weights_LPIN, bias_LO


def _pad_biases(biases: Sequence[Tensor | None], num_outputs: int) -> Tensor:
    """Return the biases of all layers (L, O), with zeros for those that are missing and behind the outputs."""
    bias_LO = torch.zeros(len(biases), pad_outputs(num_outputs), **F32_OPTIONS)
    for layer, bias_O in enumerate(biases):
        if bias_O is not None:
            bias_LO[layer, :num_outputs] = bias_O.detach()
    return bias_LO


def pack_int8_weights(
    weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights, scales, biases and compensations of one product in all layers, as `LinearWeights` describes them."""
    num_outputs, num_inputs = weights[0].shape[0], round_up(weights[0].shape[1])
    num_layers, num_panels = len(weights), pad_outputs(num_outputs) // LANES
    num_quads = -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES // VNNI_GROUP
    int8_LPQ = torch.zeros(num_layers, num_panels, num_quads, LANES, VNNI_GROUP, dtype=torch.int8, device="cpu")
    scale_LO, bias_LO = torch.zeros(num_layers, num_panels * LANES, **F32_OPTIONS), _pad_biases(biases, num_outputs)
    compensation_LO = torch.zeros(num_layers, num_panels * LANES, dtype=torch.int32, device="cpu")
    instruction_set = get_instruction_set()
    assert instruction_set is not None
    input_offset = instruction_set.get_input_offset(nonnegative=epilogue == ADD_RESIDUAL_U8)
    for layer, weight in enumerate(weights):
        for rows, block_RI in weight.iter_blocks():
            contiguous_RI = F.pad(block_RI, (0, num_inputs - block_RI.shape[1])).contiguous()
            panel, scale = int8_LPQ[layer, rows.start // LANES].data_ptr(), scale_LO[layer, rows].data_ptr()
            compensation = compensation_LO[layer, rows].data_ptr()
            pack_weights(contiguous_RI.data_ptr(), len(contiguous_RI), num_inputs, panel, scale, compensation, input_offset)
    return int8_LPQ, scale_LO, bias_LO, compensation_LO
