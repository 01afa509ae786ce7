"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token, Y those of a slice of them, D is the width, V the vocabulary. The logits of a whole
batch never stand in memory: they are made a slice at a time, and what a slice gives to the gradients is taken at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.transformer import Transformer

# Logits at once: 128 MB of them in float32.
SLICE = 2**25


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
    loss, nll = _SmoothedLoss.apply(outputs_XD, output_VD, targets_X, epsilon, form)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """Projection to the vocabulary and cross-entropy against the smoothed distribution q, with their gradients written down.

    That of the logits is p − q. Both gradients are computed on the way forward, slice by slice, and scaled on the way back.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, epsilon: float, form: str
    ) -> tuple[Tensor, Tensor]:
        kind = outputs_XD.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs_XD.dtype
        true, share = smoothing_weights(form, epsilon, len(output_VD))
        projection_VD = output_VD.to(dtype)
        wanted = any(ctx.needs_input_grad)
        to_outputs_XD = torch.empty_like(outputs_XD) if wanted else None
        to_projection_VD = torch.zeros_like(output_VD, dtype=torch.float32) if wanted else None
        nll = everything = torch.zeros((), device=outputs_XD.device)
        with torch.autocast(kind, enabled=False):
            for part in _slices(len(targets_X), max(SLICE // len(output_VD), 1)):
                outputs_YD, targets_Y1 = outputs_XD[part].to(dtype), targets_X[part, None]
                log_probs_YV = functional.linear(outputs_YD, projection_VD).float().log_softmax(dim=-1)
                nll = nll - log_probs_YV.gather(1, targets_Y1).sum()
                everything = everything - log_probs_YV.sum()
                if form == "real":
                    everything = everything + log_probs_YV[:, PADDING_ID].sum()
                if to_outputs_XD is None or to_projection_VD is None:
                    continue
                gradient_YV = log_probs_YV.exp_().sub_(share)
                if form == "real":
                    gradient_YV[:, PADDING_ID] += share
                gradient_YV.scatter_add_(1, targets_Y1, gradient_YV.new_full(targets_Y1.shape, -true))
                gradient_YV = gradient_YV.to(dtype)
                to_outputs_XD[part] = gradient_YV @ projection_VD
                to_projection_VD += gradient_YV.T @ outputs_YD
        ctx.save_for_backward(to_outputs_XD, to_projection_VD)
        ctx.mark_non_differentiable(nll)
        return true * nll + share * everything, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs_XD, to_projection_VD = ctx.saved_tensors
        return to_outputs_XD * grads[0], to_projection_VD * grads[0], None, None, None


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(begin, min(begin + size, length)) for begin in range(0, length, size))
