"""A loss of logits `outputs · outputᵀ` that never stand in memory whole: they are made a slice of places at a time, and what a
slice gives to the gradients is taken at once, on the way forward.

P counts the passes of the model over a batch (one, or two for R-Drop), X the places that hold a real token, Y the places of a
slice, Z those of them that are real; D is the width, V the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.subword import PADDING_ID
from dragoman.model.linear import Product, in_order

# Logits that are made at once on a processor, 28 MB of them in float32, and those worked on at once, so that the caches hold
# them; and both on a GPU, whose kernels want much to do.
SLICE = 7 * 2**20
AT_ONCE = 2**20
GPU_SLICE = 2**26
# Places that the size of a slice is a multiple of, since oneDNN makes a kernel for each size.
STEP = 64

Sums = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Room:
    """Where some rows are worked on, in float32 at least: their logits, or a copy as exact as sums are; and what is not filled
    yet, the place for their probabilities, and as much as one pass takes if that was asked for.
    """

    exact_PZV: Tensor
    probs_PZV: Tensor
    spare_ZV: Tensor | None


class Criterion(Protocol):
    """What a slice's logits are judged by."""

    @property
    def spare(self) -> bool:
        """Whether it needs room for one number more by each logit of one pass."""

    def to_gradient(self, logits_PZV: Tensor, targets_Z1: Tensor, room: Room, sums: Sums) -> Sums:
        """Put the gradient of the loss in the place of the logits; returns the sums with what these rows add to them."""

    def loss(self, sums: Sums) -> Sums:
        """The loss and the negative log-likelihood that the sums of all places come to."""


def sliced_loss(outputs: Tensor, output_VD: Tensor, targets_X: Tensor, criterion: Criterion, product: Product) -> Sums:
    """The loss of outputs (X, D) or (P, X, D), and its negative log-likelihood, summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    learns = torch.is_grad_enabled()  # within apply it never is
    loss, nll = _SlicedLoss.apply(outputs, output_VD, targets_X, criterion, learns, product)  # type: ignore[no-untyped-call]
    return loss, nll


class _SlicedLoss(torch.autograd.Function):
    """Projection to the vocabulary and a loss of it. Gradients are computed slice by slice, and scaled on the way back."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, output_VD: Tensor, targets_X: Tensor, criterion: Criterion, learns: bool, product: Product
    ) -> Sums:
        kind, vocabulary = outputs.device.type, len(output_VD)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs.dtype
        outputs_PXD = _by_passes(outputs)
        passes = len(outputs_PXD)
        projection_VD = output_VD.to(dtype)
        to_outputs = torch.empty_like(outputs) if learns else None
        to_projection_VD: Tensor | None = None
        one = other = torch.zeros((), device=outputs.device)
        size = slice_size(len(targets_X), passes * vocabulary, SLICE if kind == "cpu" else GPU_SLICE)
        with torch.autocast(kind, enabled=False):
            for begin in range(0, len(targets_X), size):
                targets_Z = targets_X[begin : begin + size]
                flat_YD = _filled_up(outputs_PXD[:, begin : begin + size].to(dtype), size).flatten(0, 1)
                logits_PYV = product(flat_YD, projection_VD, None).view(passes, size, vocabulary)
                more = _to_gradient(logits_PYV[:, : len(targets_Z)], targets_Z, criterion)
                one, other = one + more[0], other + more[1]
                if to_outputs is None:
                    continue
                logits_PYV[:, len(targets_Z) :] = 0
                gradient_YV = logits_PYV.flatten(0, 1)
                to_some_PYD = product(gradient_YV, projection_VD.t(), None).view(passes, size, -1)
                _by_passes(to_outputs)[:, begin : begin + size] = to_some_PYD[:, : len(targets_Z)]
                part_VD = product(gradient_YV.t(), flat_YD.t(), None).to(_exact(dtype))
                to_projection_VD = part_VD if to_projection_VD is None else to_projection_VD.add_(part_VD)
        loss, nll = criterion.loss((one, other))
        ctx.save_for_backward(to_outputs, None if to_projection_VD is None else in_order(to_projection_VD))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs, to_projection_VD = ctx.saved_tensors
        return to_outputs * grads[0], to_projection_VD * grads[0], None, None, None, None


def _by_passes(outputs: Tensor) -> Tensor:
    """(P, X, D)"""
    return outputs if outputs.dim() == 3 else outputs[None]


def _to_gradient(logits_PZV: Tensor, targets_Z: Tensor, criterion: Criterion) -> Sums:
    """Put the gradient of the loss in the place of a slice's logits, as many rows at a time as caches hold."""
    passes, places, vocabulary = logits_PZV.shape
    rows = max((AT_ONCE if logits_PZV.device.type == "cpu" else GPU_SLICE) // (passes * vocabulary), 1)
    zero = torch.zeros((), device=logits_PZV.device)
    sums = zero, zero
    for begin in range(0, places, rows):
        some_PZV = logits_PZV[:, begin : begin + rows]
        room = _room(some_PZV, rows, spare=criterion.spare)
        sums = criterion.to_gradient(some_PZV, targets_Z[begin : begin + rows, None], room, sums)
    return sums


def to_probabilities(room: Room, targets_Z1: Tensor, form: str, sums: Sums) -> tuple[Tensor, Sums]:
    """Fill in the probabilities; returns log Σ exp (P, Z) of the logits, and the sums with what is added to them.

    The sums are those of −log p over the true classes, and over all that have a share of what smoothing gives away (`form`).
    """
    exact_PZV, probs_PZV = room.exact_PZV, room.probs_PZV
    nll, everything = sums
    torch.softmax(exact_PZV, dim=-1, out=probs_PZV)
    # log Σ exp, read off where a row is largest, since what is smallest may have no logarithm.
    norms_PZ = exact_PZV.amax(dim=-1) - probs_PZV.amax(dim=-1).log()
    true_PZ = exact_PZV.gather(2, targets_Z1.expand(len(exact_PZV), -1, -1))[:, :, 0]
    nll = nll + (norms_PZ - true_PZ).sum()
    everything = everything + exact_PZV.shape[2] * norms_PZ.sum() - exact_PZV.sum()
    if form == "real":
        everything = everything - (norms_PZ - exact_PZV[:, :, PADDING_ID]).sum()
    return norms_PZ, (nll, everything)


def slice_size(places: int, vocabulary: int, logits: int) -> int:
    """Places in a slice of at most so many logits: all of one size, few sizes in all, and little of the last filled up."""
    most = max(logits // vocabulary, 1)
    step = STEP if most >= STEP else 1
    slices = max(-(-places // (most // step * step)), 1)
    return max(-(-places // (slices * step)) * step, 1)


def _filled_up(outputs_PZD: Tensor, size: int) -> Tensor:
    """With places of nothing up to this many, so that there are few sizes to make kernels for."""
    return outputs_PZD if (places := outputs_PZD.shape[1]) == size else F.pad(outputs_PZD, (0, 0, 0, size - places))


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _room(logits_PZV: Tensor, rows: int, *, spare: bool) -> Room:
    """For these logits, of which a pass never has more than so many rows."""
    passes, places, vocabulary = logits_PZV.shape
    dtype = _exact(logits_PZV.dtype)
    copied = logits_PZV.dtype != dtype
    kept = _kept_room((passes * (1 + copied) + spare) * rows * vocabulary, dtype, logits_PZV.device)
    count, one = logits_PZV.numel(), places * vocabulary
    exact_PZV = kept[-count:].view(logits_PZV.shape).copy_(logits_PZV) if copied else logits_PZV
    spare_ZV = kept[count : count + one].view(places, vocabulary) if spare else None
    return Room(exact_PZV, kept[:count].view(logits_PZV.shape), spare_ZV)


@lru_cache(maxsize=4)
def _kept_room(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept from step to step, so that it is faulted in once."""
    return torch.empty(size, dtype=dtype, device=device)
