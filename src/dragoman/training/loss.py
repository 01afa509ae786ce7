"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token, Y the places of a slice, Z those of them that are real; D is the width, V the
vocabulary. The logits of a whole batch never stand in memory: they are made a slice at a time, and what a slice gives to the
gradients is taken at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.transformer import Transformer

# Logits at once: 16 MB of them in float32.
SLICE = 2**22


def smoothing_weights(form: str, epsilon: float, vocabulary: int) -> tuple[float, float]:
    """The target distribution q: every class's share, and what the true class has beyond it, as (beyond, share).

    `uniform`: every class gets ε/V (PyTorch, Marian); `others`: all but the true one share ε (tensor2tensor); `real`: all but
    the true one and padding do (JoeyNMT), where padding's share is taken off again by `smoothed_loss`.
    """
    share = epsilon / {"uniform": vocabulary, "others": vocabulary - 1, "real": vocabulary - 2}[form]
    return 1.0 - epsilon - (0.0 if form == "uniform" else share), share


def batch_loss(model: Transformer, batch: Batch, *, epsilon: float, form: str) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its real target tokens. Padding costs no logits."""
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.start(batch.source_BS))
    real_BT = batch.targets_BT != PADDING_ID
    return smoothed_loss(outputs_BTD[real_BT], model.output, batch.targets_BT[real_BT], epsilon=epsilon, form=form)


def smoothed_loss(
    outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, *, epsilon: float, form: str
) -> tuple[Tensor, Tensor]:
    """The loss to minimise and the negative log-likelihood of logits `outputs · outputᵀ`, both summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    learns = torch.is_grad_enabled()  # within apply it never is
    loss, nll = _SmoothedLoss.apply(outputs_XD, output_VD, targets_X, epsilon, form, learns)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """Projection to the vocabulary and cross-entropy against the smoothed distribution q, with their gradients written down.

    That of the logits is p − q. Both gradients are computed on the way forward, slice by slice, and scaled on the way back.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, epsilon: float, form: str, learns: bool
    ) -> tuple[Tensor, Tensor]:
        kind = outputs_XD.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs_XD.dtype
        true, share = smoothing_weights(form, epsilon, len(output_VD))
        projection_VD = output_VD.to(dtype)
        to_outputs_XD = torch.empty_like(outputs_XD) if learns else None
        to_projection_VD = torch.zeros_like(output_VD, dtype=torch.float32) if learns else None
        nll = everything = torch.zeros((), device=outputs_XD.device)
        # A power of two, so that there are few sizes; three or four slices, so that little of the last is filled up.
        size = max(min(SLICE // len(output_VD), 1 << (len(targets_X) // 4).bit_length()), 1)
        room = _room(size, *output_VD.shape, dtype, outputs_XD.device)
        with torch.autocast(kind, enabled=False):
            for begin in range(0, len(targets_X), len(room.outputs_YD)):
                targets_Z1 = targets_X[begin : begin + len(room.outputs_YD), None]
                real = slice(len(targets_Z1))  # the last slice is filled up with places that count for nothing
                room.outputs_YD[real] = outputs_XD[begin : begin + len(targets_Z1)]
                room.outputs_YD[len(targets_Z1) :] = 0
                torch.mm(room.outputs_YD, projection_VD.T, out=room.products_YV)
                torch.log_softmax(room.logits_YV.copy_(room.products_YV), dim=-1, out=room.log_probs_YV)
                log_probs_ZV = room.log_probs_YV[real]
                nll = nll - log_probs_ZV.gather(1, targets_Z1).sum()
                everything = everything - log_probs_ZV.sum()
                if form == "real":
                    everything = everything + log_probs_ZV[:, PADDING_ID].sum()
                if to_outputs_XD is None or to_projection_VD is None:
                    continue
                gradient_ZV = log_probs_ZV.exp_().sub_(share)
                if form == "real":
                    gradient_ZV[:, PADDING_ID] += share
                gradient_ZV.scatter_add_(1, targets_Z1, gradient_ZV.new_full(targets_Z1.shape, -true))
                room.log_probs_YV[len(targets_Z1) :] = 0
                gradient_YV = room.products_YV.copy_(room.log_probs_YV)
                to_outputs_XD[begin : begin + len(targets_Z1)] = (gradient_YV @ projection_VD)[real]
                to_projection_VD += gradient_YV.T @ room.outputs_YD
        ctx.save_for_backward(to_outputs_XD, to_projection_VD)
        ctx.mark_non_differentiable(nll)
        return true * nll + share * everything, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs_XD, to_projection_VD = ctx.saved_tensors
        return to_outputs_XD * grads[0], to_projection_VD * grads[0], None, None, None, None


class _Room(NamedTuple):
    """Where the logits of a slice are worked on."""

    outputs_YD: Tensor
    products_YV: Tensor
    logits_YV: Tensor
    log_probs_YV: Tensor


@lru_cache(maxsize=4)
def _room(size: int, vocabulary: int, width: int, dtype: torch.dtype, device: torch.device) -> _Room:
    """Kept from step to step, so that it is faulted in once; the few sizes that come keep oneDNN's kernels few, too."""
    return _Room(
        torch.empty(size, width, dtype=dtype, device=device),
        torch.empty(size, vocabulary, dtype=dtype, device=device),
        torch.empty(size, vocabulary, device=device),
        torch.empty(size, vocabulary, device=device),
    )
