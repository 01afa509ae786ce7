"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token; V is the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.transformer import Transformer


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
    return smoothed_loss(model.logits(outputs_BTD[real_BT]), batch.targets_BT[real_BT], epsilon=epsilon, form=form)


def smoothed_loss(logits_XV: Tensor, targets_X: Tensor, *, epsilon: float, form: str) -> tuple[Tensor, Tensor]:
    """The loss to minimise and the negative log-likelihood, both summed over all places, in nats."""
    loss, nll = _SmoothedLoss.apply(logits_XV.float(), targets_X, epsilon, form)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """Cross-entropy against the smoothed target distribution q, with its gradient p − q written down.

    Left to autograd, the logsumexp, the gather and the sum would each make another matrix as large as the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits_XV: Tensor, targets_X: Tensor, epsilon: float, form: str) -> tuple[Tensor, Tensor]:
        true, share = smoothing_weights(form, epsilon, logits_XV.shape[1])
        log_probs_XV = logits_XV.log_softmax(dim=-1)
        nll = -log_probs_XV.gather(1, targets_X[:, None]).sum()
        everything = -log_probs_XV.sum()
        if form == "real":
            everything = everything + log_probs_XV[:, PADDING_ID].sum()
        ctx.save_for_backward(log_probs_XV, targets_X)
        ctx.true, ctx.share, ctx.form = true, share, form
        ctx.mark_non_differentiable(nll)
        return true * nll + share * everything, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        log_probs_XV, targets_X = ctx.saved_tensors
        gradient_XV = log_probs_XV.exp().sub_(ctx.share)
        if ctx.form == "real":
            gradient_XV[:, PADDING_ID] += ctx.share
        true_X1 = torch.full_like(targets_X[:, None], -ctx.true, dtype=gradient_XV.dtype)
        return gradient_XV.scatter_add_(1, targets_X[:, None], true_X1).mul_(grads[0]), None, None, None
