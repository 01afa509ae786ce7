"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token, Z those of some rows; P is 1, D the width, V the vocabulary. The logits of a whole
batch never stand in memory (`slices`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.model.linear import Product, plain_product
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import Sums, exact, sliced_loss, some_rows

# Classes at which log Σ exp is read off in half precision.
ANCHORS = 256


def smoothing_weights(form: str, epsilon: float, vocabulary: int) -> tuple[float, float]:
    """The target distribution q: every class's share, and what the true class has beyond it, as (beyond, share).

    `uniform`: every class gets ε/V (PyTorch, Marian); `others`: all but the true one share ε (tensor2tensor); `real`: all but
    the true one and padding do (JoeyNMT), where padding's share is taken off again by `smoothed_loss`.
    """
    share = epsilon / {"uniform": vocabulary, "exclude_target": vocabulary - 1, "exclude_target_and_pad": vocabulary - 2}[form]
    return 1.0 - epsilon - (0.0 if form == "uniform" else share), share


def batch_loss(
    model: Transformer, batch: Batch, *, epsilon: float, form: str, pos_loss_weight: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its real target tokens. Padding costs no logits.

    pos_loss_weight: of a tag head's loss, which is added to the first
    """
    told, batch = batch, as_said(model, batch)
    memory_BSD = model.encoder(batch.source_BS)
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.decoder.start(memory_BSD, batch.source_BS))
    real_X = batch.real_places()
    outputs_XD, targets_X = outputs_BTD.flatten(0, 1)[real_X], batch.targets_BT.flatten()[real_X]
    loss, nll = smoothed_loss(outputs_XD, model.output, targets_X, epsilon=epsilon, form=form, product=model.product)
    return (loss + pos_loss_weight * tag_loss(model, memory_BSD, told) if pos_loss_weight else loss), nll


def as_said(model: Transformer, batch: Batch) -> Batch:
    """The batch as a parser's decoder reads and says it, which knows of no tags; any other as it is."""
    if model.words is None:
        return batch
    inputs_BT, targets_BT = model.words.said(batch.inputs_BT), model.words.said(batch.targets_BT)
    return replace(batch, inputs_BT=inputs_BT, targets_BT=targets_BT)


def tag_loss(model: Transformer, memory_BSD: Tensor, batch: Batch) -> Tensor:
    """−log p of the tag of each word, summed over all words, in nats.

    memory_BSD: the encoder's output. The batch's targets have the tags, in the order of the source's words.
    """
    assert model.words is not None, "a translator has no tags"
    assert model.tagger is not None, "a parser without a tag head"
    logits_BWV = model.tagger(model.words.first(memory_BSD, batch.source_BS))
    tags_BW = model.words.tags(batch.targets_BT, logits_BWV.shape[1])
    return F.cross_entropy(logits_BWV.flatten(0, 1), tags_BW.flatten(), reduction="sum", ignore_index=PADDING_ID)


def smoothed_loss(
    outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, *, epsilon: float, form: str, product: Product = plain_product
) -> tuple[Tensor, Tensor]:
    """The loss to minimise and the negative log-likelihood of logits `outputs · outputᵀ`, both summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    criterion = _Smoothed(*smoothing_weights(form, epsilon, len(output_VD)), form)
    return sliced_loss(outputs_XD, output_VD, targets_X, criterion, product)


@dataclass(frozen=True)
class _Smoothed:
    """Cross-entropy against the smoothed distribution q. The gradient by the logits is p − q, here without q's even part.

    Its sums are those of −log p over the true classes, and over all with a share; of the latter's only log Σ exp.
    """

    true: float
    even: float
    form: str

    def to_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, learns: bool) -> Sums:
        logits_ZV = logits_PZV[0]
        true_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].to(exact(logits_ZV.dtype))
        padding_Z = logits_ZV[:, PADDING_ID].to(true_Z.dtype, copy=True)
        if learns and logits_ZV.dtype == torch.bfloat16 and logits_ZV.device.type == "cpu":
            norms_Z = _to_halved_probabilities(logits_ZV, targets_Z, true_Z)
        else:
            norms_Z = torch.cat([_become_probabilities(some_1ZV[0], learns) for some_1ZV, _ in some_rows(logits_PZV)])
        nll, everything = (norms_Z - true_Z).sum(), logits_ZV.shape[1] * norms_Z.sum()
        if self.form == "exclude_target_and_pad":
            everything = everything - (norms_Z - padding_Z).sum()
        if learns:
            if self.form == "exclude_target_and_pad":
                logits_ZV[:, PADDING_ID] += self.even
            # Of what is left of a likely class, half precision would keep few bits if it were rounded before.
            beyond_Z = (true_Z - norms_Z).exp() - self.true
            logits_ZV[torch.arange(len(targets_Z), device=targets_Z.device), targets_Z] = beyond_Z.to(logits_ZV.dtype)
        return nll, everything

    def loss(self, sums: Sums) -> Sums:
        nll, everything = sums
        return self.true * nll + self.even * everything, nll


def _become_probabilities(logits_ZV: Tensor, learns: bool) -> Tensor:
    """Log Σ exp of the logits, as exact as sums are; the probabilities are put in their place, if it learns."""
    exact_ZV = logits_ZV.to(exact(logits_ZV.dtype))  # the same tensor, where the logits are as exact as that
    most_Z = exact_ZV.amax(dim=-1)
    torch.softmax(exact_ZV, dim=-1, out=exact_ZV)
    if learns and exact_ZV is not logits_ZV:
        logits_ZV.copy_(exact_ZV)
    # Read off where a row is largest, since what is smallest may have no logarithm.
    return most_Z - exact_ZV.amax(dim=-1).log()


def _to_halved_probabilities(logits_ZV: Tensor, targets_Z: Tensor, true_Z: Tensor) -> Tensor:
    """The same in one pass, where a row's largest logit would cost as much as its probabilities do.

    PyTorch computes them in float32 and rounds them to bfloat16 once. log Σ exp is read off at some classes: each is off by the
    rounding of its probability, 0.2 per cent to either side, their mean by a sixteenth of that. In a row in which none of them
    has a probability that float32 can hold, it is read off at the true class, and a likelihood below 1e-38 counts as that.
    """
    some_ZA = logits_ZV[:, :ANCHORS].float()
    torch.softmax(logits_ZV, dim=-1, out=logits_ZV)
    probs_ZA = logits_ZV[:, :ANCHORS].float()
    held_ZA = probs_ZA > 0
    apart_Z = (some_ZA - probs_ZA.log()).masked_fill_(~held_ZA, 0.0).sum(dim=-1)
    held_Z = held_ZA.sum(dim=-1)
    likelihood_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].float().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(held_Z > 0, apart_Z / held_Z, true_Z - likelihood_Z.log())
