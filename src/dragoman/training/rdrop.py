"""R-Drop (Liang et al. 2021): each pair goes through the model twice, under two dropouts that are to agree.

Their equation 4 is −log P₁(y|x) − log P₂(y|x) + α/2 · (KL(P₁‖P₂) + KL(P₂‖P₁)). Half of it is computed here, so that α is theirs
and a loss or a gradient's norm compares with one without; the likelihoods are label-smoothed as always, the P in KL are not.

X counts the places that hold a real token, Y those of a slice, Z those of them that are real; D is the width, V the vocabulary.
The logits of both passes over a slice stand in memory, never those of a whole batch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.linear import Product, in_order
from dragoman.model.transformer import Transformer
from dragoman.training.loss import AT_ONCE, GPU_SLICE, SLICE, slice_size, smoothing_weights

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
    product: Product = F.linear,
) -> tuple[Tensor, Tensor]:
    """Half of equation 4 for the logits `outputs · outputᵀ` of both passes, and their mean negative log-likelihood, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    learns = torch.is_grad_enabled()  # within apply it never is
    given = (outputs_2XD, output_VD, targets_X, epsilon, form, alpha, learns, product)
    loss, nll = _AgreeingLoss.apply(*given)  # type: ignore[no-untyped-call]
    return loss, nll


class _AgreeingLoss(torch.autograd.Function):
    """Projection to the vocabulary and the loss of both passes, with its gradients computed on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs_2XD: Tensor,
        output_VD: Tensor,
        targets_X: Tensor,
        epsilon: float,
        form: str,
        alpha: float,
        learns: bool,
        product: Product,
    ) -> tuple[Tensor, Tensor]:
        kind, vocabulary = outputs_2XD.device.type, len(output_VD)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs_2XD.dtype
        projection_VD = output_VD.to(dtype)
        to_outputs_2XD = torch.empty_like(outputs_2XD) if learns else None
        to_projection_VD: Tensor | None = None
        loss = nll = torch.zeros((), device=outputs_2XD.device)
        size = slice_size(len(targets_X), PASSES * vocabulary, SLICE if kind == "cpu" else GPU_SLICE)
        with torch.autocast(kind, enabled=False):
            for begin in range(0, len(targets_X), size):
                targets_Z = targets_X[begin : begin + size]
                some_2ZD = outputs_2XD[:, begin : begin + size].to(dtype)
                # Filled up with places of nothing, so that there are few sizes to make kernels for.
                flat_YD = F.pad(some_2ZD, (0, 0, 0, size - len(targets_Z))).flatten(0, 1)
                logits_2YV = product(flat_YD, projection_VD, None).view(PASSES, size, vocabulary)
                more, more_nll = _to_gradient(logits_2YV[:, : len(targets_Z)], targets_Z, epsilon, form, alpha)
                loss, nll = loss + more, nll + more_nll
                if to_outputs_2XD is None:
                    continue
                logits_2YV[:, len(targets_Z) :] = 0
                gradient_YV = logits_2YV.flatten(0, 1)
                to_some_2YD = product(gradient_YV, projection_VD.t(), None).view(PASSES, size, -1)
                to_outputs_2XD[:, begin : begin + size] = to_some_2YD[:, : len(targets_Z)]
                part_VD = product(gradient_YV.t(), flat_YD.t(), None).to(_exact(dtype))
                to_projection_VD = part_VD if to_projection_VD is None else to_projection_VD.add_(part_VD)
        ctx.save_for_backward(to_outputs_2XD, None if to_projection_VD is None else in_order(to_projection_VD))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs_2XD, to_projection_VD = ctx.saved_tensors
        return to_outputs_2XD * grads[0], to_projection_VD * grads[0], None, None, None, None, None, None


def _to_gradient(logits_2ZV: Tensor, targets_Z: Tensor, epsilon: float, form: str, alpha: float) -> tuple[Tensor, Tensor]:
    """Put the gradient of the loss in the place of the logits; returns loss and mean negative log-likelihood, summed."""
    vocabulary = logits_2ZV.shape[2]
    rows = max((AT_ONCE if logits_2ZV.device.type == "cpu" else GPU_SLICE) // (PASSES * vocabulary), 1)
    loss = nll = torch.zeros((), device=logits_2ZV.device)
    for begin in range(0, len(targets_Z), rows):
        at_Z1 = targets_Z[begin : begin + rows, None]
        more, more_nll = _rows_to_gradient(logits_2ZV[:, begin : begin + rows], at_Z1, rows, epsilon, form, alpha)
        loss, nll = loss + more, nll + more_nll
    return loss, nll


def _rows_to_gradient(
    given_2ZV: Tensor, targets_Z1: Tensor, rows: int, epsilon: float, form: str, alpha: float
) -> tuple[Tensor, Tensor]:
    """The same for as many rows as caches hold. With d = log p − log q, the gradient of both KL by the logits of p is

    p · (d − KL(p‖q)) + p − q, and by those of q the same with p and q exchanged; that of the likelihoods is theirs as always.
    """
    true, share = smoothing_weights(form, epsilon, given_2ZV.shape[2])
    quarter = alpha / 4
    probs_2ZV, apart_ZV, exact_2ZV = _room(given_2ZV, rows)
    targets_2Z1 = targets_Z1.expand(PASSES, -1, -1)
    torch.softmax(exact_2ZV, dim=-1, out=probs_2ZV)
    # log Σ exp, read off where a row is largest, since what is smallest may have no logarithm.
    norms_2Z = exact_2ZV.amax(dim=-1) - probs_2ZV.amax(dim=-1).log()
    nll = (norms_2Z - exact_2ZV.gather(2, targets_2Z1)[:, :, 0]).sum() / PASSES
    everything = (given_2ZV.shape[2] * norms_2Z.sum() - exact_2ZV.sum()) / PASSES
    if form == "real":
        everything = everything - (norms_2Z - exact_2ZV[:, :, PADDING_ID]).sum() / PASSES

    torch.sub(exact_2ZV[0], exact_2ZV[1], out=apart_ZV).sub_((norms_2Z[0] - norms_2Z[1])[:, None])
    (p_ZV, q_ZV), (to_p_ZV, to_q_ZV) = probs_2ZV, exact_2ZV
    there_Z, back_Z = (p_ZV * apart_ZV).sum(dim=-1), (q_ZV * apart_ZV).sum(dim=-1).neg()
    apart_ZV.mul_(quarter)
    kept = 1.0 / PASSES + quarter
    torch.add(apart_ZV, (kept - quarter * there_Z)[:, None], out=to_p_ZV).mul_(p_ZV).sub_(q_ZV, alpha=quarter)
    torch.sub((kept - quarter * back_Z)[:, None], apart_ZV, out=to_q_ZV).mul_(q_ZV).sub_(p_ZV, alpha=quarter)
    exact_2ZV.sub_(share / PASSES)
    if form == "real":
        exact_2ZV[:, :, PADDING_ID] += share / PASSES
    exact_2ZV.scatter_add_(2, targets_2Z1, exact_2ZV.new_full(targets_2Z1.shape, -true / PASSES))
    if exact_2ZV is not given_2ZV:
        given_2ZV.copy_(exact_2ZV)
    return true * nll + share * everything + quarter * (there_Z.sum() + back_Z.sum()), nll


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _room(logits_2ZV: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where probabilities and their distances are worked on, and the logits themselves, or a copy as exact as sums are."""
    passes, places, vocabulary = logits_2ZV.shape
    dtype = _exact(logits_2ZV.dtype)
    room = _kept_room(5 * rows * vocabulary, dtype, logits_2ZV.device)
    count = passes * places * vocabulary
    probs_2ZV = room[:count].view(logits_2ZV.shape)
    apart_ZV = room[count : count + count // 2].view(places, vocabulary)
    if logits_2ZV.dtype == dtype:
        return probs_2ZV, apart_ZV, logits_2ZV
    return probs_2ZV, apart_ZV, room[-count:].view(logits_2ZV.shape).copy_(logits_2ZV)


@lru_cache(maxsize=2)
def _kept_room(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept from step to step, so that it is faulted in once."""
    return torch.empty(size, dtype=dtype, device=device)
