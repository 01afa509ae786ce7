"""R-Drop (Liang et al. 2021): each pair goes through the model twice, under two dropouts that are to agree.

Their equation 4 is −log P₁(y|x) − log P₂(y|x) + α/2 · (KL(P₁‖P₂) + KL(P₂‖P₁)). Half of it is computed here, so that α is theirs
and a loss or a gradient's norm compares with one without; the likelihoods are label-smoothed as always, the P in KL are not.

X counts the places that hold a real token, Z those of some rows; P is 2, D the width, V the vocabulary. The logits of both
passes over a slice stand in memory, never those of a whole batch (`slices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.linear import Product, plain_product
from dragoman.model.transformer import Transformer
from dragoman.training.loss import smoothing_weights
from dragoman.training.slices import Room, Sums, sliced_loss, to_probabilities

PASSES = 2


def r_drop_loss(model: Transformer, batch: Batch, *, epsilon: float, form: str, alpha: float) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and the mean negative log-likelihood of both passes, summed over the batch's real target tokens.

    The rows of a batch stand twice in one pass, so that it takes the memory of a batch of twice the tokens.
    """
    memory = model.start(batch.source_BS.repeat(PASSES, 1))
    outputs_BTD, _ = model.decoder(batch.inputs_BT.repeat(PASSES, 1), memory)
    real_X = batch.real_places()
    outputs_2XD = outputs_BTD.view(PASSES, -1, outputs_BTD.shape[-1])[:, real_X]
    targets_X = batch.targets_BT.flatten()[real_X]
    return agreeing_loss(outputs_2XD, model.output, targets_X, epsilon=epsilon, form=form, alpha=alpha, product=model.product)


def agreeing_loss(
    outputs_2XD: Tensor,
    output_VD: Tensor,
    targets_X: Tensor,
    *,
    epsilon: float,
    form: str,
    alpha: float,
    product: Product = plain_product,
) -> tuple[Tensor, Tensor]:
    """Half of equation 4 for the logits `outputs · outputᵀ` of both passes, and their mean negative log-likelihood, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    criterion = _Agreeing(*smoothing_weights(form, epsilon, len(output_VD)), form, alpha)
    return sliced_loss(outputs_2XD, output_VD, targets_X, criterion, product)


@dataclass(frozen=True)
class _Agreeing:
    """Half of equation 4. With d = log p − log q, the gradient of both KL by the logits of p is

    p · (d − KL(p‖q)) + p − q, and by those of q the same with p and q exchanged; that of the likelihoods is theirs as always.
    Its sums are those of the loss, and of the mean negative log-likelihood.
    """

    true: float
    share: float
    form: str
    alpha: float
    spare: ClassVar[bool] = True

    def to_gradient(self, logits_PZV: Tensor, targets_Z1: Tensor, room: Room, sums: Sums) -> Sums:
        zero = logits_PZV.new_zeros((), dtype=room.probs_PZV.dtype)
        norms_2Z, both = to_probabilities(room, targets_Z1, self.form, (zero, zero))
        nll, everything = both[0] / PASSES, both[1] / PASSES
        exact_2ZV, apart_ZV = room.exact_PZV, cast(Tensor, room.spare_ZV)
        apart = self._apart_to_gradient(exact_2ZV, room.probs_PZV, norms_2Z, apart_ZV)
        exact_2ZV.sub_(self.share / PASSES)
        if self.form == "real":
            exact_2ZV[:, :, PADDING_ID] += self.share / PASSES
        targets_2Z1 = targets_Z1.expand(PASSES, -1, -1)
        exact_2ZV.scatter_add_(2, targets_2Z1, exact_2ZV.new_full(targets_2Z1.shape, -self.true / PASSES))
        if exact_2ZV is not logits_PZV:
            logits_PZV.copy_(exact_2ZV)
        return sums[0] + (self.true * nll + self.share * everything + apart), sums[1] + nll

    def _apart_to_gradient(self, logits_2ZV: Tensor, probs_2ZV: Tensor, norms_2Z: Tensor, apart_ZV: Tensor) -> Tensor:
        """Put in the place of the logits the gradient of α/4 of both KL and of half of log Σ exp; returns the former."""
        quarter = self.alpha / 4
        torch.sub(logits_2ZV[0], logits_2ZV[1], out=apart_ZV).sub_((norms_2Z[0] - norms_2Z[1])[:, None])
        (p_ZV, q_ZV), (to_p_ZV, to_q_ZV) = probs_2ZV, logits_2ZV
        there_Z, back_Z = (p_ZV * apart_ZV).sum(dim=-1), (q_ZV * apart_ZV).sum(dim=-1).neg()
        apart_ZV.mul_(quarter)
        kept = 1.0 / PASSES + quarter
        torch.add(apart_ZV, (kept - quarter * there_Z)[:, None], out=to_p_ZV).mul_(p_ZV).sub_(q_ZV, alpha=quarter)
        torch.sub((kept - quarter * back_Z)[:, None], apart_ZV, out=to_q_ZV).mul_(q_ZV).sub_(p_ZV, alpha=quarter)
        apart: Tensor = quarter * (there_Z.sum() + back_Z.sum())
        return apart

    def loss(self, sums: Sums) -> Sums:
        return sums
