"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token, Z those of some rows; P is 1, D the width, V the vocabulary. The logits of a whole
batch never stand in memory (`slices`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.linear import Product, plain_product
from dragoman.model.transformer import Transformer
from dragoman.training.slices import Room, Sums, sliced_loss, to_probabilities


def smoothing_weights(form: str, epsilon: float, vocabulary: int) -> tuple[float, float]:
    """The target distribution q: every class's share, and what the true class has beyond it, as (beyond, share).

    `uniform`: every class gets ε/V (PyTorch, Marian); `others`: all but the true one share ε (tensor2tensor); `real`: all but
    the true one and padding do (JoeyNMT), where padding's share is taken off again by `smoothed_loss`.
    """
    share = epsilon / {"uniform": vocabulary, "others": vocabulary - 1, "real": vocabulary - 2}[form]
    return 1.0 - epsilon - (0.0 if form == "uniform" else share), share


def batch_loss(
    model: Transformer, batch: Batch, *, epsilon: float, form: str, tag_weight: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its real target tokens. Padding costs no logits.

    tag_weight: of a tag head's loss, which is added to the first
    """
    told, batch = batch, as_said(model, batch)
    memory_BSD = model.encoder(batch.source_BS)
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.decoder.start(memory_BSD, batch.source_BS))
    real_X = batch.real_places()
    outputs_XD, targets_X = outputs_BTD.flatten(0, 1)[real_X], batch.targets_BT.flatten()[real_X]
    loss, nll = smoothed_loss(outputs_XD, model.output, targets_X, epsilon=epsilon, form=form, product=model.product)
    return (loss + tag_weight * tag_loss(model, memory_BSD, told) if tag_weight else loss), nll


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
    """Cross-entropy against the smoothed distribution q. The gradient by the logits is p − q.

    Its sums are those of −log p over the true classes, and over all with a share.
    """

    true: float
    share: float
    form: str
    spare: ClassVar[bool] = False

    def to_gradient(self, logits_PZV: Tensor, targets_Z1: Tensor, room: Room, sums: Sums) -> Sums:
        _, sums = to_probabilities(room, targets_Z1, self.form, sums)
        given_ZV, probs_ZV = logits_PZV[0], room.probs_PZV[0]
        if self.form == "real":
            probs_ZV[:, PADDING_ID] += self.share
        probs_ZV.scatter_add_(1, targets_Z1, probs_ZV.new_full(targets_Z1.shape, -self.true))
        if room.exact_PZV is logits_PZV:
            torch.sub(probs_ZV, self.share, out=given_ZV)
        else:  # into another type it would go by way of yet another tensor
            given_ZV.copy_(probs_ZV.sub_(self.share))
        return sums

    def loss(self, sums: Sums) -> Sums:
        nll, everything = sums
        return self.true * nll + self.share * everything, nll
