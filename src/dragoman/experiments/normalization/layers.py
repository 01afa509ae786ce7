"""Normalizations beside the paper's layer normalization: batch normalization, weight normalization, and none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.experiments.token_masks import ReadsTokenMask
from dragoman.model.dropout import Dropout
from dragoman.model.linear import Linear

MOMENTUM = 0.1
"""Share of a batch in the running mean and variance, PyTorch's default."""


class BatchNorm(ReadsTokenMask):
    """Batch normalization over the real tokens of a batch (Ioffe and Szegedy 2015), with running statistics for inference.

    In training, the statistics of a position depend on later positions of other sentences and of its own. Inference is causal.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return (x − mean) / √(variance + ε) · weight + bias. → (B, T, D)

        The statistics of a training batch leave padding out.
        """
        mean_D, var_D = self.running_mean, self.running_var
        if self.training:
            x_XD = (x_BTD.flatten(0, 1) if self.token_mask_BT is None else x_BTD[self.token_mask_BT]).float()
            mean_D, var_D = x_XD.mean(dim=0), x_XD.var(dim=0, correction=0)
            self._update_running_statistics(mean_D, var_D, len(x_XD))
        scale_D = (var_D + self.eps).rsqrt() * self.weight
        return (x_BTD - mean_D) * scale_D + self.bias

    @torch.no_grad()
    def _update_running_statistics(self, mean_D: Tensor, var_D: Tensor, count: int) -> None:
        """Move the running statistics towards those of a batch, whose variance is made unbiased first."""
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), MOMENTUM)
        self.running_var.lerp_((var_D * (count / max(count - 1, 1))).to(self.running_var.dtype), MOMENTUM)


def build_norm(normalization: str, d_model: int, epsilon: float) -> nn.Module:
    """Return the normalization of activations with this name in the recipe. `weight` and `none` normalize no activations."""
    match normalization:
        case "layer":
            return nn.LayerNorm(d_model, eps=epsilon)
        case "batch":
            return BatchNorm(d_model, eps=epsilon)
        case _:
            return nn.Identity()


class ScaledPostNorm(nn.Module):
    """Norm of the residual sum: norm((x + Dropout(y)) · scale), or norm(Dropout(y) · scale) without a residual connection."""

    def __init__(self, *, norm: nn.Module, dropout: float, residual: bool, scale: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.residual = residual
        self.scale = scale

    def sublayer_input(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return the norm of the residual sum for the sublayer's output y. → (B, T, D)"""
        return cast(Tensor, self.norm(self.add_residual(x_BTD, y_BTD)))

    def add_residual(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return (x + Dropout(y)) · scale, or Dropout(y) · scale without a residual connection. → (B, T, D)"""
        y_BTD = self.dropout(y_BTD)
        sum_BTD = x_BTD + y_BTD if self.residual else y_BTD
        return sum_BTD if self.scale == 1.0 else sum_BTD * self.scale


class ScaledPreNorm(ScaledPostNorm):
    """Norm of the sublayer's input, in the place of `PreNorm`. See `ScaledPostNorm` for the arguments."""

    def sublayer_input(self, x_BTD: Tensor) -> Tensor:
        """Return norm(x), the input of the sublayer. → (B, T, D)"""
        return cast(Tensor, self.norm(x_BTD))

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return the residual sum for the sublayer's output y. → (B, T, D)"""
        return self.add_residual(x_BTD, y_BTD)


class WeightNormLinear(Linear):
    """Linear layer with weight normalization: W = gain · V / ‖V‖ for each output (Salimans and Kingma 2016)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.gain = nn.Parameter(torch.empty(out_features))
        self.set_initial_weights()

    @torch.no_grad()
    def set_initial_weights(self) -> None:
        """Set the gain so that W = V."""
        self.gain.copy_(self.weight.norm(dim=1))

    def compute_weight(self) -> Tensor:
        """Return gain · V / ‖V‖. → (O, I)"""
        return torch._weight_norm(self.weight, self.gain[:, None], 0)


def add_weight_normalization(modules: Iterable[nn.Module]) -> None:
    """Replace each linear layer in these modules by one with weight normalization, in place."""
    for module in modules:
        for name, child in list(module.named_children()):
            if type(child) is Linear:
                normalized = WeightNormLinear(child.in_features, child.out_features, bias=child.bias is not None)
                normalized.variance_gain = child.variance_gain
                setattr(module, name, normalized)
            else:
                add_weight_normalization([child])
