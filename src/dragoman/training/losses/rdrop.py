"""R-Drop (Liang et al. 2021): each pair goes through the model twice, under two dropouts that are to agree.

Their equation 4 is −log P₁(y|x) − log P₂(y|x) + α/2 · (KL(P₁‖P₂) + KL(P₂‖P₁)). Half of it is computed here, so that α is theirs
and a loss or a gradient's norm compares with one without; the likelihoods are label-smoothed as always, the P in KL are not.

X counts the places that hold a real token, Z those of some rows; P is 2, D the width, V the vocabulary. The logits of both
passes over a slice stand in memory, never those of a whole batch (`slices`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.model.linear import Product, plain_product
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import Sums, exact, kept_room, rows_at_once, sliced_loss, some_rows
from dragoman.training.losses.label_smoothing import smoothing_weights

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

    @property
    def even(self) -> float:
        return self.share / PASSES

    def to_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, learns: bool) -> Sums:
        """The gradient is put there in any case, since the loss is made of the same tensors."""
        loss = nll = logits_PZV.new_zeros((), dtype=exact(logits_PZV.dtype))
        rows = rows_at_once(logits_PZV)
        for some_2ZV, which in some_rows(logits_PZV):
            targets_2Z1 = targets_Z[which, None].expand(PASSES, -1, -1)
            room = _Room.of(some_2ZV, rows)
            exact_2ZV = room.exact_2ZV
            norms_2Z, true_2Z = _fill_probabilities(room), exact_2ZV.gather(2, targets_2Z1)[:, :, 0]
            apart_from_true, everything = (norms_2Z - true_2Z).sum(), exact_2ZV.shape[2] * norms_2Z.sum()
            if self.form == "exclude_target_and_pad":
                everything = everything - (norms_2Z - exact_2ZV[:, :, PADDING_ID]).sum()
            apart = self._apart_to_gradient(room, norms_2Z)
            if self.form == "exclude_target_and_pad":
                exact_2ZV[:, :, PADDING_ID] += self.even
            exact_2ZV.scatter_add_(2, targets_2Z1, exact_2ZV.new_full(targets_2Z1.shape, -self.true / PASSES))
            if exact_2ZV is not some_2ZV:
                some_2ZV.copy_(exact_2ZV)
            loss = loss + self.true / PASSES * apart_from_true + self.even * everything + apart
            nll = nll + apart_from_true / PASSES
        return loss, nll

    def _apart_to_gradient(self, room: _Room, norms_2Z: Tensor) -> Tensor:
        """Put in the place of the logits the gradient of α/4 of both KL and of half of log Σ exp; returns the former."""
        quarter = self.alpha / 4
        logits_2ZV, probs_2ZV, apart_ZV = room.exact_2ZV, room.probs_2ZV, room.apart_ZV
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


@dataclass(frozen=True)
class _Room:
    """Where some rows are worked on, in float32 at least: their logits, or a copy as exact as sums are; and what is not filled
    yet, the places for their probabilities and for how far the passes lie apart.
    """

    exact_2ZV: Tensor
    probs_2ZV: Tensor
    apart_ZV: Tensor

    @classmethod
    def of(cls, logits_2ZV: Tensor, rows: int) -> _Room:
        """For these logits, of which a pass never has more than so many rows."""
        passes, places, vocabulary = logits_2ZV.shape
        dtype = exact(logits_2ZV.dtype)
        copied = logits_2ZV.dtype != dtype
        kept = kept_room((passes * (1 + copied) + 1) * rows * vocabulary, dtype, logits_2ZV.device)
        count, one = logits_2ZV.numel(), places * vocabulary
        exact_2ZV = kept[-count:].view(logits_2ZV.shape).copy_(logits_2ZV) if copied else logits_2ZV
        return cls(exact_2ZV, kept[:count].view(logits_2ZV.shape), kept[count : count + one].view(places, vocabulary))


def _fill_probabilities(room: _Room) -> Tensor:
    """Fill in the probabilities; returns log Σ exp (P, Z) of the logits."""
    torch.softmax(room.exact_2ZV, dim=-1, out=room.probs_2ZV)
    # Read off where a row is largest, since what is smallest may have no logarithm.
    return room.exact_2ZV.amax(dim=-1) - room.probs_2ZV.amax(dim=-1).log()
