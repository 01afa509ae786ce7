"""Sparsely gated mixture of experts with noisy top-k gating (Shazeer et al. 2017, "Outrageously Large Neural Networks").

X tokens    E experts    k experts of one token
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.experiments.token_masks import ReadsTokenMask
from dragoman.model.linear import Linear

NOISE_EPSILON = 1e-2
"""Smallest standard deviation of the noise of the gates, that of the authors' code."""


class Experts(ReadsTokenMask):
    """Mixture of experts: y = Σ G(x)_i · E_i(x) over the k experts of each token (equations 1 to 5).

    experts: feed-forward networks, (X, D) → (X, D) each
    num_active: k
    """

    def __init__(self, *, d_model: int, experts: Sequence[nn.Module], num_active: int) -> None:
        super().__init__()
        self.num_active = num_active
        self.gate = Linear(d_model, len(experts), bias=False)
        self.noise = Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.balance_losses: list[Tensor] | None = None

    def set_initial_weights(self) -> None:
        """Set the gates to zero, so that all experts begin with the same load (appendix A)."""
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.noise.weight)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts. In training, noise is added to the gates. → (B, T, D)

        The load-balancing loss leaves padding out.
        """
        x_XD = x_BTD.flatten(0, -2)
        clean_XE = self.gate(x_XD).float()
        std_XE = F.softplus(self.noise(x_XD).float()) + NOISE_EPSILON
        noisy_XE = clean_XE + torch.randn_like(clean_XE) * std_XE if self.training else clean_XE
        gates_XE = compute_gates(noisy_XE, self.num_active)
        if self.training and self.balance_losses is not None:
            load_XE = compute_load(clean_XE, noisy_XE, std_XE, self.num_active)
            is_token_X = slice(None) if self.token_mask_BT is None else self.token_mask_BT.flatten()
            sums = (gates_XE[is_token_X].sum(dim=0), load_XE[is_token_X].sum(dim=0))
            self.balance_losses.append(squared_variation(sums[0]) + squared_variation(sums[1]))
        return self._combine_experts(x_XD, gates_XE).view_as(x_BTD)

    def _combine_experts(self, x_XD: Tensor, gates_XE: Tensor) -> Tensor:
        """Return Σ gate · expert(x). Each expert reads its own tokens only. → (X, D)"""
        y_XD = torch.zeros_like(x_XD)
        for expert, gates_X in zip(self.experts, gates_XE.unbind(dim=1), strict=True):
            rows = gates_X.nonzero()[:, 0]
            output_YD = expert(x_XD[rows]) * gates_X[rows, None]
            y_XD = y_XD.index_add(0, rows, output_YD.to(y_XD.dtype))
        return y_XD


class Skip(nn.Module):
    """Residual connection of a layer without a feed-forward network, which passes x on."""

    def sublayer_input(self, x_BTD: Tensor) -> Tensor:
        return x_BTD

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return x. → (B, T, D)"""
        return x_BTD


def compute_gates(logits_XE: Tensor, num_active: int) -> Tensor:
    """Return the softmax over the `num_active` largest logits of each token, and 0 elsewhere (equations 3 and 5). → (X, E)"""
    top_Xk, indices_Xk = logits_XE.topk(num_active, dim=1)
    return torch.zeros_like(logits_XE).scatter(1, indices_Xk, top_Xk.softmax(dim=1))


def compute_load(clean_XE: Tensor, noisy_XE: Tensor, std_XE: Tensor, num_active: int) -> Tensor:
    """Return the probability that new noise of one gate alone would choose its expert (equations 8 and 9). → (X, E)"""
    if num_active == clean_XE.shape[1]:
        return torch.ones_like(clean_XE)
    top_XK = noisy_XE.topk(num_active + 1, dim=1).values
    # The k-th largest of the other gates: without a chosen gate it is the next one, without another gate the last chosen one.
    next_X1, last_X1 = top_XK[:, num_active:], top_XK[:, num_active - 1 : num_active]
    threshold_XE = torch.where(noisy_XE > next_X1, next_X1, last_X1)
    return 0.5 * (1.0 + torch.erf((clean_XE - threshold_XE) / (std_XE * math.sqrt(2.0))))


def squared_variation(sums_E: Tensor) -> Tensor:
    """Return the squared coefficient of variation: variance / mean² (equations 6 and 7)."""
    return sums_E.var(correction=0) / (sums_E.mean().square() + 1e-10)


@contextmanager
def record_balance_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the load-balancing loss of each mixture of experts while the model runs: CV(importance)² + CV(load)²."""
    losses: list[Tensor] = []
    modules = [module for module in model.modules() if isinstance(module, Experts)]
    for module in modules:
        module.balance_losses = losses
    try:
        yield losses
    finally:
        for module in modules:
            module.balance_losses = None
