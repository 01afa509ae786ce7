"""Output embedding of the tokens that a proposer chooses from. Prediction heads and a draft decoder share it.

Rare tokens are left out, because they cost more time than they save.

    D width of the model    W tokens that are proposed    V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class ProposalOutput:
    """Rows of a model's output embedding.

    token_ids_W: tokens that are proposed
    output_WD, bias_W: their rows; no bias if the model has none
    """

    token_ids_W: Tensor
    output_WD: Tensor
    bias_W: Tensor | None

    @classmethod
    def from_model(cls, model: Transformer, token_ids_W: Tensor) -> Self:
        """Return the rows of these tokens, on the device of the model."""
        token_ids_W = token_ids_W.to(model.output.device)
        bias_W = None if model.output_bias is None else model.output_bias.detach()[token_ids_W]
        return cls(token_ids_W, model.output.detach()[token_ids_W], bias_W)

    def compute_logits(self, inputs_XD: Tensor) -> Tensor:
        """Return the logits of the proposed tokens. (…, D) → (…, W)"""
        return F.linear(inputs_XD, self.output_WD, self.bias_W)

    @torch.no_grad()
    def choose(self, inputs_XD: Tensor) -> Tensor:
        """Return the most probable token of each row. (…, D) → (…)"""
        return self.token_ids_W[self.compute_logits(inputs_XD).argmax(-1)]
