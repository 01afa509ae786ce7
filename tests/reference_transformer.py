"""Forward pass of a Transformer from nn.functional, over tensors with the names of another toolkit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


@dataclass(frozen=True)
class StackNames:
    """Names of the tensors of one stack.

    Attributes:
        layer: prefix of a layer, with a place for its number
        projections: query, key, value and output of an attention
        attentions: self-attention, and cross-attention of a decoder
        norms: layer normalization of each attention and of the feed-forward network
        linears: inner and outer matrix of the feed-forward network
        final_norm: layer normalization of the stack's output
    """

    layer: str
    projections: tuple[str, str, str, str]
    attentions: tuple[str, ...]
    norms: tuple[str, ...]
    linears: tuple[str, str]
    final_norm: str


def make_stack(
    names: StackNames,
    noise: Callable[..., Tensor],
    *,
    num_layers: int,
    d_model: int,
    d_ff: int,
    has_final_norm: bool = True,
    has_bias: Callable[[str], bool] = lambda name: True,
) -> dict[str, Tensor]:
    """Return random tensors of one stack.

    noise: returns random values of a shape
    has_bias: returns whether a linear layer of this name has a bias
    """
    inner, outer = names.linears
    linears = {f"{attention}.{part}": (d_model, d_model) for attention in names.attentions for part in names.projections}
    linears |= {inner: (d_ff, d_model), outer: (d_model, d_ff)}
    state: dict[str, Tensor] = {}
    for number in range(num_layers):
        layer = names.layer.format(number)
        for name, shape in linears.items():
            state[f"{layer}.{name}.weight"] = noise(*shape)
            if has_bias(name):
                state[f"{layer}.{name}.bias"] = noise(shape[0])
        for norm in names.norms:
            state |= {f"{layer}.{norm}.weight": 1 + noise(d_model), f"{layer}.{norm}.bias": noise(d_model)}
    if has_final_norm:
        state |= {f"{names.final_norm}.weight": 1 + noise(d_model), f"{names.final_norm}.bias": noise(d_model)}
    return state


def run_stack(
    state: Mapping[str, Tensor],
    names: StackNames,
    x_BTD: Tensor,
    memory_BSD: Tensor | None,
    *,
    num_layers: int,
    num_heads: int,
    is_pre_norm: bool,
    activation: str,
    epsilon: float,
) -> Tensor:
    """Return the outputs of the encoder, or of the decoder if there is a memory. A missing bias is zero. → (B, T, D)"""
    x, width = x_BTD, x_BTD.shape[-1]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), state[f"{name}.weight"], state[f"{name}.bias"], epsilon)

    def attend(x: Tensor, keys: Tensor, name: str, *, is_causal: bool) -> Tensor:
        query, key, value = (
            linear(values, f"{name}.{projection}").view(*values.shape[:2], num_heads, -1).transpose(1, 2)
            for projection, values in zip(names.projections, (x, keys, keys), strict=False)
        )
        context = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return linear(context.transpose(1, 2).flatten(2), f"{name}.{names.projections[3]}")

    for number in range(num_layers):
        layer = names.layer.format(number)

        def add_residual(x: Tensor, sublayer: Callable[[Tensor], Tensor], name: str) -> Tensor:
            return x + sublayer(norm(x, name)) if is_pre_norm else norm(x + sublayer(x), name)

        def self_attend(y: Tensor, layer: str = layer) -> Tensor:
            return attend(y, y, f"{layer}.{names.attentions[0]}", is_causal=memory_BSD is not None)

        def cross_attend(y: Tensor, layer: str = layer) -> Tensor:
            assert memory_BSD is not None
            return attend(y, memory_BSD, f"{layer}.{names.attentions[1]}", is_causal=False)

        def feed_forward(y: Tensor, layer: str = layer) -> Tensor:
            return linear(ACTIVATIONS[activation](linear(y, f"{layer}.{names.linears[0]}")), f"{layer}.{names.linears[1]}")

        sublayers = [self_attend, *([] if memory_BSD is None else [cross_attend]), feed_forward]
        for sublayer, name in zip(sublayers, names.norms, strict=True):
            x = add_residual(x, sublayer, f"{layer}.{name}")
    return norm(x, names.final_norm) if f"{names.final_norm}.weight" in state else x


def sinusoids(length: int, width: int, *, is_interleaved: bool) -> Tensor:
    """Return positions in the order sin, cos, sin, … of the paper, or all sines and then all cosines. (length, width)"""
    count = width // 2
    exponents = torch.arange(count).double() / (count if is_interleaved else count - 1)
    angles = torch.arange(length).double()[:, None] / 10000**exponents
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1 if is_interleaved else 1)
    return pairs.flatten(1).float()
