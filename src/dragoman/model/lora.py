"""Low-rank adapters of linear layers (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").

A layer computes x·(W + α/r · B·A)ᵀ + b, in which only A (r, I) and B (O, r) are trained. B begins with zeros, so an untrained
adapter changes nothing. The paper adapts W_q and W_v; QLoRA (Dettmers et al. 2023) adapts all linear layers, which comes
closer to full fine-tuning. The sum is computed as a weight, because B · A is cheap. So a merged model and a model with its
adapter have equal outputs.

    I inputs    O outputs    r rank
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dragoman.model.linear import Linear
from dragoman.model_weights import A_SUFFIX, B_SUFFIX


class LoraLinear(Linear):
    """Linear layer with a low-rank adapter; the weight and the bias of the layer are not trained."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, rank: int, scale: float) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.scale = scale
        self.lora_a = nn.Parameter(torch.empty(rank, in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, rank))

    def compute_weight(self) -> Tensor:
        """Return W + α/r · B·A. → (O, I)"""
        with torch.autocast(self.weight.device.type, enabled=False):
            return merge_weight(self.weight, self.lora_a, self.lora_b, self.scale)


def merge_weight(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    """Return W + scale · B·A. → (O, I)"""
    return torch.addmm(weight, lora_b, lora_a, alpha=scale)


def find_linears(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names of the linear layers that match one of the patterns, in the order of the model."""
    names = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def add_adapters(model: nn.Module, names: Sequence[str], *, rank: int, alpha: float, seed: int) -> None:
    """Replace linear layers by layers with an adapter that changes nothing yet, in place.

    Their A is drawn from N(0, 1/I) by the seed. All other parameters, names and implementations stay.
    """
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        linear = model.get_submodule(name)
        assert isinstance(linear, Linear), f"{name} is not a linear layer"
        adapted = LoraLinear(
            linear.in_features, linear.out_features, bias=linear.bias is not None, rank=rank, scale=alpha / rank
        )
        adapted.weight, adapted.bias, adapted.matmul = linear.weight, linear.bias, linear.matmul
        nn.init.normal_(adapted.lora_a, std=linear.in_features**-0.5, generator=generator)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, adapted)


def split_adapter(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of the base model, and those of its adapters."""
    adapter = {name: tensor for name, tensor in weights.items() if name.endswith((A_SUFFIX, B_SUFFIX))}
    return {name: tensor for name, tensor in weights.items() if name not in adapter}, adapter
