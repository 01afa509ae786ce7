"""A loss of logits `outputs · outputᵀ` that never stand in memory whole: they are made a slice of places at a time, and what a
slice gives to the gradients is taken at once, on the way forward; what all classes have alike, at the end.

P counts the passes of the model over a batch (one, or two for R-Drop), X the places that hold a real token, Y the places of a
slice, Z those of them that are real; D is the width, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.linear import Product, in_order

# Logits that are made at once on a processor, 28 MB of them in float32, and those worked on at once, so that the caches hold
# them; and both on a GPU, whose kernels want much to do.
SLICE = 7 * 2**20
AT_ONCE = 2**20
GPU_SLICE = 2**26
# Places that the size of a slice is a multiple of, since oneDNN makes a kernel for each size.
STEP = 64

Sums = tuple[Tensor, Tensor]


class Criterion(Protocol):
    """What a slice's logits are judged by."""

    @property
    def even(self) -> float:
        """What every class alike has of a place's target distribution, in each pass.

        Its part of the loss, −even · Σ logits, and of the gradient is a product of sums over places and classes; it is taken
        at the end, and no logit is touched for it.
        """

    def to_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, learns: bool) -> Sums:
        """Put the gradient of the loss in the place of the logits, if it learns; returns what these places add to the sums.

        Both without the even part of the target distribution.
        """

    def loss(self, sums: Sums) -> Sums:
        """The loss, but for its even part, and the negative log-likelihood that the sums of all places come to."""


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
                more = criterion.to_gradient(logits_PYV[:, : len(targets_Z)], targets_Z, learns)
                one, other = one + more[0], other + more[1]
                if to_outputs is None:
                    continue
                logits_PYV[:, len(targets_Z) :] = 0
                gradient_YV = logits_PYV.flatten(0, 1)
                to_some_PYD = product(gradient_YV, projection_VD.t(), None).view(passes, size, -1)
                _by_passes(to_outputs)[:, begin : begin + size] = to_some_PYD[:, : len(targets_Z)]
                to_projection_VD = _added(product(gradient_YV.t(), flat_YD.t(), None), to_projection_VD)
                del logits_PYV, gradient_YV  # so that the next slice stands where this one did, in the caches
            loss, nll = criterion.loss((one, other))
            places_D, classes_D = _summed(outputs_PXD.flatten(0, 1)), _summed(output_VD)
            loss = loss - criterion.even * (places_D @ classes_D)
            if to_outputs is not None and to_projection_VD is not None:
                to_outputs.sub_(criterion.even * classes_D)
                to_projection_VD.sub_(criterion.even * places_D)
        ctx.save_for_backward(to_outputs, to_projection_VD)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_outputs, to_projection_VD = ctx.saved_tensors
        ordered_VD = in_order(to_projection_VD)
        scale = torch.mul if ordered_VD is to_projection_VD else Tensor.mul_  # a copy may be written to
        return to_outputs * grads[0], scale(ordered_VD, grads[0]), None, None, None, None


def _added(part_VD: Tensor, sum_VD: Tensor | None) -> Tensor:
    """The sum with one part more, as exact as sums are. A product has its numbers in one piece, in this order or across."""
    if sum_VD is None:
        return part_VD.to(exact(part_VD.dtype))
    if part_VD.dtype == sum_VD.dtype or part_VD.device.type != "cpu":
        return sum_VD.add_(part_VD)
    room = kept_room(part_VD.numel(), sum_VD.dtype, part_VD.device)
    return sum_VD.add_(room.as_strided(part_VD.shape, part_VD.stride()).copy_(part_VD))


@lru_cache(maxsize=4)
def kept_room(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers to work with, for one user at a time; kept as long as the process, so that their memory is faulted in once."""
    return torch.empty(size, dtype=dtype, device=device)


def _by_passes(outputs: Tensor) -> Tensor:
    """(P, X, D)"""
    return outputs if outputs.dim() == 3 else outputs[None]


def _summed(rows: Tensor) -> Tensor:
    """The sum of all rows."""
    return rows.sum(0, dtype=exact(rows.dtype))


def some_rows(logits_PZV: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """The logits, as many rows of each pass at a time as caches hold, and which rows they are."""
    rows = rows_at_once(logits_PZV)
    for begin in range(0, logits_PZV.shape[1], rows):
        which = slice(begin, begin + rows)
        yield logits_PZV[:, which], which


def rows_at_once(logits_PZV: Tensor) -> int:
    """Rows of each pass that caches hold."""
    passes, _, vocabulary = logits_PZV.shape
    return max((AT_ONCE if logits_PZV.device.type == "cpu" else GPU_SLICE) // (passes * vocabulary), 1)


def slice_size(places: int, vocabulary: int, logits: int) -> int:
    """Places in a slice of at most so many logits: all of one size, few sizes in all, and little of the last filled up."""
    most = max(logits // vocabulary, 1)
    step = STEP if most >= STEP else 1
    slices = max(-(-places // (most // step * step)), 1)
    return max(-(-places // (slices * step)) * step, 1)


def _filled_up(outputs_PZD: Tensor, size: int) -> Tensor:
    """With places of nothing up to this many, so that there are few sizes to make kernels for."""
    return outputs_PZD if (places := outputs_PZD.shape[1]) == size else F.pad(outputs_PZD, (0, 0, 0, size - places))


def exact(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
