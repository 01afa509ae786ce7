"""Int8 weights in the layout of the kernels.

O, I  outputs and inputs    L layers    P panels of 16 outputs    Q groups of four inputs    R rows of one block
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled.jit_cache import pack_weights
from dragoman.inference.backends.compiled.kernels.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL_U8,
    LANES,
    OUTPUT_BLOCK,
    STORE,
    VECTOR_BYTES,
    Int8Weights,
)
from dragoman.inference.backends.shared import LazyWeight
from dragoman.runtime.shared_weights import share_tensor

VNNI_GROUP = 4
# Kernels read tensors by address, so PyTorch's default type and device must not change them.
F32_OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
F16_OPTIONS: dict[str, Any] = {"dtype": torch.float16, "device": "cpu"}


class Int8Packer:
    """Packer of int8 weights. tensors: packed tensors, which the kernels know by their addresses"""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def add_tensor(self, tensor: Tensor) -> int:
        """Keep a tensor alive, and return its address."""
        self.tensors.append(tensor.contiguous())
        return self.tensors[-1].data_ptr()

    def pack_int8(self, weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int) -> Int8Weights:
        tensors = pack_int8_weights(weights, biases, epilogue)
        weights_address, scale, bias, compensation = map(self.add_tensor, map(share_tensor, tensors))
        num_outputs = weights[0].shape[0]
        # The outputs of all products but those of attention and of the vocabulary are rows in whole vectors.
        row_width = num_outputs if epilogue == STORE else round_up(num_outputs)
        return Int8Weights(weights_address, scale, bias, compensation, row_width, tensors[1].shape[1], epilogue)


@torch.no_grad()
def pack_output(weight_WD: Tensor, bias_W: Tensor | None) -> tuple[Int8Weights, list[Tensor]]:
    """Return the packed weights before the softmax of some words, and the tensors that hold them."""
    packer = Int8Packer()
    return packer.pack_int8([LazyWeight.from_tensor(weight_WD)], [bias_W], STORE), packer.tensors


def round_up(width: int) -> int:
    """Return the width in whole vectors."""
    return -(-width // LANES) * LANES


def pack_int8_weights(
    weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights, scales, biases and compensations of one product in all layers, as `Int8Weights` describes them."""
    num_outputs, num_inputs = weights[0].shape[0], round_up(weights[0].shape[1])
    num_layers, num_panels, num_quads = (
        len(weights),
        -(-num_outputs // OUTPUT_BLOCK) * OUTPUT_BLOCK // LANES,
        -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES // VNNI_GROUP,
    )
    int8_LPQ = torch.zeros(num_layers, num_panels, num_quads, LANES, VNNI_GROUP, dtype=torch.int8, device="cpu")
    scale_LO, bias_LO = torch.zeros(2, num_layers, num_panels * LANES, **F32_OPTIONS).unbind()
    compensation_LO = torch.zeros(num_layers, num_panels * LANES, dtype=torch.int32, device="cpu")
    instruction_set = get_instruction_set()
    assert instruction_set is not None
    input_offset = instruction_set.get_input_offset(nonnegative=epilogue == ADD_RESIDUAL_U8)
    for layer, (weight, bias_O) in enumerate(zip(weights, biases, strict=True)):
        if bias_O is not None:
            bias_LO[layer, :num_outputs] = bias_O.detach()
        for rows, block_RI in weight.iter_blocks():
            contiguous_RI = F.pad(block_RI, (0, num_inputs - block_RI.shape[1])).contiguous()
            panel, scale = int8_LPQ[layer, rows.start // LANES].data_ptr(), scale_LO[layer, rows].data_ptr()
            compensation = compensation_LO[layer, rows].data_ptr()
            pack_weights(contiguous_RI.data_ptr(), len(contiguous_RI), num_inputs, panel, scale, compensation, input_offset)
    return int8_LPQ, scale_LO, bias_LO, compensation_LO
