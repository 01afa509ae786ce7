"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the un-smoothed sum beside it.

X counts the places that hold a real token, Y the places of a slice, Z those of them that are real; D is the width, V the
vocabulary. The logits of a whole batch never stand in memory: they are made a slice at a time, and what a slice gives to the
gradients is taken at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.subword import PADDING_ID
from dragoman.model.linear import Product, in_order
from dragoman.model.transformer import Transformer

# Logits that are made at once on a processor, 28 MB of them in float32, and those worked on at once, so that the caches hold
# them; and both on a GPU, whose kernels want much to do.
SLICE = 7 * 2**20
AT_ONCE = 2**20
GPU_SLICE = 2**26
# Places that the size of a slice is a multiple of, since oneDNN makes a kernel for each size.
STEP = 64


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
    outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, *, epsilon: float, form: str, product: Product = F.linear
) -> tuple[Tensor, Tensor]:
    """The loss to minimise and the negative log-likelihood of logits `outputs · outputᵀ`, both summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    learns = torch.is_grad_enabled()  # within apply it never is
    loss, nll = _SmoothedLoss.apply(outputs_XD, output_VD, targets_X, epsilon, form, learns, product)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """Projection to the vocabulary and cross-entropy against the smoothed distribution q, with their gradients written down.

    That of the logits is p − q. Both gradients are computed on the way forward, slice by slice, and scaled on the way back.
    """

    @staticmethod
    def forward(
        ctx: Any,
        outputs_XD: Tensor,
        output_VD: Tensor,
        targets_X: Tensor,
        epsilon: float,
        form: str,
        learns: bool,
        product: Product,
    ) -> tuple[Tensor, Tensor]:
        kind, vocabulary = outputs_XD.device.type, len(output_VD)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs_XD.dtype
        true, share = smoothing_weights(form, epsilon, vocabulary)
        projection_VD = output_VD.to(dtype)
        to_outputs_XD = torch.empty_like(outputs_XD) if learns else None
        to_projection_VD: Tensor | None = None
        nll = everything = torch.zeros((), device=outputs_XD.device)
        size = slice_size(len(targets_X), vocabulary, SLICE if kind == "cpu" else GPU_SLICE)
        with torch.autocast(kind, enabled=False):
            for begin in range(0, len(targets_X), size):
                targets_Z1 = targets_X[begin : begin + size, None]
                outputs_YD = _filled_up(outputs_XD[begin : begin + size].to(dtype), size)
                logits_YV = product(outputs_YD, projection_VD, None)
                more_nll, more = _to_gradient(logits_YV[: len(targets_Z1)], targets_Z1, true, share, form)
                nll, everything = nll + more_nll, everything + more
                if to_outputs_XD is None:
                    continue
                gradient_YV = logits_YV
                gradient_YV[len(targets_Z1) :] = 0
                to_outputs_XD[begin : begin + size] = product(gradient_YV, projection_VD.t(), None)[: len(targets_Z1)]
                part_VD = product(gradient_YV.t(), outputs_YD.t(), None)
                to_projection_VD = part_VD.float() if to_projection_VD is None else to_projection_VD.add_(part_VD)
        ctx.save_for_backward(to_outputs_XD, None if to_projection_VD is None else in_order(to_projection_VD))
        ctx.mark_non_differentiable(nll)
        return true * nll + share * everything, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs_XD, to_projection_VD = ctx.saved_tensors
        return to_outputs_XD * grads[0], to_projection_VD * grads[0], None, None, None, None, None


def _to_gradient(logits_ZV: Tensor, targets_Z1: Tensor, true: float, share: float, form: str) -> tuple[Tensor, Tensor]:
    """Put p − q in the place of the logits; returns the sums of −log p over the true classes, and over all with a share."""
    vocabulary = logits_ZV.shape[1]
    rows = max((AT_ONCE if logits_ZV.device.type == "cpu" else GPU_SLICE) // vocabulary, 1)
    probs_RV, exact_RV = _room(rows, vocabulary, logits_ZV.dtype, logits_ZV.device)
    nll = everything = torch.zeros((), device=logits_ZV.device)
    for begin in range(0, len(logits_ZV), rows):
        given_ZV, at_Z1 = logits_ZV[begin : begin + rows], targets_Z1[begin : begin + rows]
        probs_ZV = probs_RV[: len(at_Z1)]
        exact_ZV = given_ZV if exact_RV is None else exact_RV[: len(at_Z1)].copy_(given_ZV)
        torch.softmax(exact_ZV, dim=-1, out=probs_ZV)
        # log Σ exp, read off where a row is largest, since what is smallest may have no logarithm.
        norms_Z = exact_ZV.amax(dim=-1) - probs_ZV.amax(dim=-1).log()
        nll = nll + (norms_Z - exact_ZV.gather(1, at_Z1)[:, 0]).sum()
        everything = everything + vocabulary * norms_Z.sum() - exact_ZV.sum()
        if form == "real":
            everything = everything - (norms_Z - exact_ZV[:, PADDING_ID]).sum()
            probs_ZV[:, PADDING_ID] += share
        probs_ZV.scatter_add_(1, at_Z1, probs_ZV.new_full(at_Z1.shape, -true))
        if exact_RV is None:
            torch.sub(probs_ZV, share, out=given_ZV)
        else:  # into another type it would go by way of yet another tensor
            given_ZV.copy_(probs_ZV.sub_(share))
    return nll, everything


def slice_size(places: int, vocabulary: int, logits: int) -> int:
    """Places in a slice of at most so many logits: all of one size, few sizes in all, and little of the last filled up."""
    most = max(logits // vocabulary, 1)
    step = STEP if most >= STEP else 1
    slices = max(-(-places // (most // step * step)), 1)
    return max(-(-places // (slices * step)) * step, 1)


def _filled_up(outputs_ZD: Tensor, size: int) -> Tensor:
    """With places of nothing up to this many, so that there are few sizes to make kernels for."""
    return outputs_ZD if len(outputs_ZD) == size else F.pad(outputs_ZD, (0, 0, 0, size - len(outputs_ZD)))


@lru_cache(maxsize=2)
def _room(rows: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where probabilities, and where logits in float32 are worked on; kept from step to step, so that it is faulted in once."""
    probs_RV = torch.empty(rows, vocabulary, device=device)
    return probs_RV, None if dtype == torch.float32 else torch.empty_like(probs_RV)
