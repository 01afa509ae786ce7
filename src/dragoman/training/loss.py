"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token; V is the vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.transformer import Transformer


def smoothing_weights(form: str, epsilon: float, vocabulary: int) -> tuple[float, float]:
    """(weight of the true class beyond the share of every class, share of every class) of the target distribution.

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
    logits_XV = logits_XV.float()
    if epsilon == 0.0:
        likelihood = F.cross_entropy(logits_XV, targets_X, reduction="sum")
        return likelihood, likelihood.detach()
    true, share = smoothing_weights(form, epsilon, logits_XV.shape[1])
    log_sum_X = logits_XV.logsumexp(dim=-1)
    nll_X = log_sum_X - logits_XV.gather(1, targets_X[:, None])[:, 0]
    classes = logits_XV.shape[1]
    all_X = classes * log_sum_X - logits_XV.sum(dim=-1)
    if form == "real":
        all_X = all_X - (log_sum_X - logits_XV[:, PADDING_ID])
    return (true * nll_X + share * all_X).sum(), nll_X.detach().sum()
