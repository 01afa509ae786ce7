"""Definition of the products of the compiled back end in int8, in PyTorch, for comparisons with the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dragoman.config import ModelConfig
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.kernels.structs import MIN_SCALE, HeadLayout
from dragoman.inference.backends.compiled.pack import compute_head_layout
from dragoman.model.attention import Attention, KeyValue
from dragoman.model.transformer import Transformer

D_FF = (80, 77)
"""Inner widths of feed-forward networks, whose inputs are never negative after a ReLU."""


def sum_lanes(weight: Tensor) -> Tensor:
    """Return the sums of weights (O, I) whose products AVX2 adds in 16 bits: of each eight, 0, 1, 4 and 5, and the others."""
    return F.pad(weight, (0, -weight.shape[1] % 8)).view(len(weight), -1, 2, 2, 2).sum((2, 4)).flatten(1)


def compute_weight_steps(weight: Tensor) -> Tensor:
    """Return the step of each output by definition: 1/127 of its greatest weight, or more with AVX2."""
    step_O = weight.abs().amax(1) / 127
    if (instruction_set := get_instruction_set()) is not None and instruction_set.max_lane_weights is not None:
        # A sum of 126 steps has at most 128 after its four weights are rounded.
        for sign in (1, -1):
            step_O = step_O.maximum(sum_lanes((sign * weight).relu()).amax(1) / 126)
    return step_O.clamp(min=MIN_SCALE)


QUANTIZED_WEIGHTS: Any = WeakTensorKeyDictionary()
"""Integers times steps of the weights that `int8_matmul` has read."""


def keep_order(weight: Tensor) -> Tensor:
    """Return the weight unchanged."""
    return weight


def int8_matmul(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False, reorder: Callable[[Tensor], Tensor] = keep_order
) -> Tensor:
    """Return the int8 product by definition.

    Inputs have steps of 1/127 of the greatest of their row, or 1/255 after a ReLU.

    reorder: returns the weight in the order of packed inputs
    """
    is_after_relu = weight.shape[1] in D_FF and bool((x >= 0).all())
    step_X1 = (x.abs().amax(-1, keepdim=True).double() / (255 if is_after_relu else 127)).clamp(min=MIN_SCALE)
    if weight not in QUANTIZED_WEIGHTS:
        step_O1 = compute_weight_steps(reorder(weight))[:, None]
        QUANTIZED_WEIGHTS[weight] = (weight / step_O1).round() * step_O1.double()
    inputs, weights = (x * (1 / step_X1).float()).round() * step_X1, QUANTIZED_WEIGHTS[weight]
    result: Tensor = (inputs @ weights.t() if bias is None else inputs @ weights.t() + bias).float()
    return result.relu() if relu else result


def quantize(model: Transformer, config: ModelConfig) -> Transformer:
    """Replace the model's products by int8 ones, with keys and values in 16 bits."""
    for name, module in model.named_modules():
        if hasattr(module, "matmul") and "pointer" not in name:  # the pointer's projection stays in float32
            cast(Any, module).matmul = int8_matmul_in_f16 if name.endswith((".key", ".value")) else int8_matmul
    for module in model.modules():
        if isinstance(module, Attention):
            head_layout = compute_head_layout(config, "int8")
            reorder = partial(interleave_inputs, head_layout=head_layout, num_heads=module.num_heads)
            cast(Any, module.output).matmul = partial(int8_matmul, reorder=reorder)
    if config.position_encoding == "rotary":
        for layer in (*model.encoder.layers, *model.decoder.layers):
            round_turned_keys(cast(Any, layer).attention)
    return model


def round_turned_keys(attention: Any) -> None:
    """Round the keys of a self-attention to 16 bits after their rotation, as a cache holds them, and not before."""
    project_qkv = attention.project_qkv
    attention.key.matmul = int8_matmul

    def project_and_round(x_BTD: Tensor, rotation_TK: Tensor) -> tuple[Tensor, KeyValue]:
        query_BHTK, (key_BHTK, value_BHTU) = project_qkv(x_BTD, rotation_TK)
        return query_BHTK, KeyValue(key_BHTK.half().float(), value_BHTU)

    attention.project_qkv = project_and_round


def interleave_inputs(weight: Tensor, head_layout: HeadLayout, num_heads: int) -> Tensor:
    """Return an output projection's weight (D, U) whose inputs alternate between the heads of a group, with padding."""
    width = head_layout.value_width // (head_layout.num_groups * head_layout.num_heads)
    heads_DHW = weight.view(len(weight), num_heads, -1)
    heads_DHW = F.pad(heads_DHW, (0, width - heads_DHW.shape[2], 0, head_layout.num_groups * head_layout.num_heads - num_heads))
    return heads_DHW.view(len(weight), head_layout.num_groups, head_layout.num_heads, width).transpose(2, 3).flatten(1)


def int8_matmul_in_f16(x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """Return the int8 product in floats of 16 bits, as a cache holds it."""
    return int8_matmul(x, weight, bias, **options).half().float()
