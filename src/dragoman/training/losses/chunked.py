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

from dragoman.model.linear import MatMul, contiguous_rows

# Logits that are made at once on a processor, 28 MB of them in float32, and those worked on at once, so that the caches hold
# them; and both on a GPU, whose kernels want much to do.
CPU_CHUNK_LOGITS = 7 * 2**20
CPU_BLOCK_LOGITS = 2**20
GPU_CHUNK_LOGITS = 2**26
# Places that the size of a slice is a multiple of, since oneDNN makes a kernel for each size.
CHUNK_SIZE_MULTIPLE = 64

Sums = tuple[Tensor, Tensor]


class Criterion(Protocol):
    """What a slice's logits are judged by."""

    @property
    def uniform_mass(self) -> float:
        """What every class alike has of a place's target distribution, in each pass.

        Its part of the loss, −even · Σ logits, and of the gradient is a product of sums over places and classes; it is taken
        at the end, and no logit is touched for it.
        """

    def write_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, needs_grad: bool) -> Sums:
        """Put the gradient of the loss in the place of the logits, if it learns; returns what these places add to the sums.

        Both without the even part of the target distribution.
        """

    def loss(self, sums: Sums) -> Sums:
        """The loss, but for its even part, and the negative log-likelihood that the sums of all places come to."""


def chunked_loss(outputs: Tensor, output_VD: Tensor, targets_X: Tensor, criterion: Criterion, matmul: MatMul) -> Sums:
    """The loss of outputs (X, D) or (P, X, D), and its negative log-likelihood, summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    needs_grad = torch.is_grad_enabled()  # within apply it never is
    loss, nll = _ChunkedLoss.apply(outputs, output_VD, targets_X, criterion, needs_grad, matmul)  # type: ignore[no-untyped-call]
    return loss, nll


class _ChunkedLoss(torch.autograd.Function):
    """Projection to the vocabulary and a loss of it. Gradients are computed slice by slice, and scaled on the way back."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, output_VD: Tensor, targets_X: Tensor, criterion: Criterion, needs_grad: bool, matmul: MatMul
    ) -> Sums:
        device_type, vocab_size = outputs.device.type, len(output_VD)
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else outputs.dtype
        outputs_PXD = _with_pass_dim(outputs)
        num_passes = len(outputs_PXD)
        projection_VD = output_VD.to(dtype)
        outputs_gradient = torch.empty_like(outputs) if needs_grad else None
        projection_gradient_VD: Tensor | None = None
        first_sum = second_sum = torch.zeros((), device=outputs.device)
        chunk_size = choose_chunk_size(
            len(targets_X), num_passes * vocab_size, CPU_CHUNK_LOGITS if device_type == "cpu" else GPU_CHUNK_LOGITS
        )
        with torch.autocast(device_type, enabled=False):
            for start in range(0, len(targets_X), chunk_size):
                targets_Z = targets_X[start : start + chunk_size]
                flat_YD = _pad_positions(outputs_PXD[:, start : start + chunk_size].to(dtype), chunk_size).flatten(0, 1)
                logits_PYV = matmul(flat_YD, projection_VD, None).view(num_passes, chunk_size, vocab_size)
                chunk_sums = criterion.write_gradient(logits_PYV[:, : len(targets_Z)], targets_Z, needs_grad)
                first_sum, second_sum = first_sum + chunk_sums[0], second_sum + chunk_sums[1]
                if outputs_gradient is None:
                    continue
                logits_PYV[:, len(targets_Z) :] = 0
                gradient_YV = logits_PYV.flatten(0, 1)
                chunk_gradient_PYD = matmul(gradient_YV, projection_VD.t(), None).view(num_passes, chunk_size, -1)
                _with_pass_dim(outputs_gradient)[:, start : start + chunk_size] = chunk_gradient_PYD[:, : len(targets_Z)]
                projection_gradient_VD = _accumulate(matmul(gradient_YV.t(), flat_YD.t(), None), projection_gradient_VD)
                del logits_PYV, gradient_YV  # so that the next slice stands where this one did, in the caches
            loss, nll = criterion.loss((first_sum, second_sum))
            outputs_sum_D, classes_sum_D = _sum_rows(outputs_PXD.flatten(0, 1)), _sum_rows(output_VD)
            loss = loss - criterion.uniform_mass * (outputs_sum_D @ classes_sum_D)
            if outputs_gradient is not None and projection_gradient_VD is not None:
                outputs_gradient.sub_(criterion.uniform_mass * classes_sum_D)
                projection_gradient_VD.sub_(criterion.uniform_mass * outputs_sum_D)
        ctx.save_for_backward(outputs_gradient, projection_gradient_VD)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        outputs_gradient, projection_gradient_VD = ctx.saved_tensors
        contiguous_VD = contiguous_rows(projection_gradient_VD)
        scale = torch.mul if contiguous_VD is projection_gradient_VD else Tensor.mul_  # a copy may be written to
        return outputs_gradient * grads[0], scale(contiguous_VD, grads[0]), None, None, None, None


def _accumulate(part_VD: Tensor, sum_VD: Tensor | None) -> Tensor:
    """The sum with one part more, as exact as sums are. A product has its numbers in one piece, in this order or across."""
    if sum_VD is None:
        return part_VD.to(sum_dtype(part_VD.dtype))
    if part_VD.dtype == sum_VD.dtype or part_VD.device.type != "cpu":
        return sum_VD.add_(part_VD)
    buffer = cached_buffer(part_VD.numel(), sum_VD.dtype, part_VD.device)
    return sum_VD.add_(buffer.as_strided(part_VD.shape, part_VD.stride()).copy_(part_VD))


@lru_cache(maxsize=4)
def cached_buffer(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers to work with, for one user at a time; kept as long as the process, so that their memory is faulted in once."""
    return torch.empty(size, dtype=dtype, device=device)


def _with_pass_dim(outputs: Tensor) -> Tensor:
    """(P, X, D)"""
    return outputs if outputs.dim() == 3 else outputs[None]


def _sum_rows(rows: Tensor) -> Tensor:
    """The sum of all rows."""
    return rows.sum(0, dtype=sum_dtype(rows.dtype))


def iter_row_blocks(logits_PZV: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """The logits, as many rows of each pass at a time as caches hold, and which rows they are."""
    block_rows = count_block_rows(logits_PZV)
    for start in range(0, logits_PZV.shape[1], block_rows):
        block = slice(start, start + block_rows)
        yield logits_PZV[:, block], block


def count_block_rows(logits_PZV: Tensor) -> int:
    """Rows of each pass that caches hold."""
    num_passes, _, vocab_size = logits_PZV.shape
    return max((CPU_BLOCK_LOGITS if logits_PZV.device.type == "cpu" else GPU_CHUNK_LOGITS) // (num_passes * vocab_size), 1)


def choose_chunk_size(num_positions: int, vocab_size: int, max_logits: int) -> int:
    """Places in a slice of at most so many logits: all of one size, few sizes in all, and little of the last filled up."""
    max_size = max(max_logits // vocab_size, 1)
    multiple = CHUNK_SIZE_MULTIPLE if max_size >= CHUNK_SIZE_MULTIPLE else 1
    num_chunks = max(-(-num_positions // (max_size // multiple * multiple)), 1)
    return max(-(-num_positions // (num_chunks * multiple)) * multiple, 1)


def _pad_positions(outputs_PZD: Tensor, size: int) -> Tensor:
    """With places of nothing up to this many, so that there are few sizes to make kernels for."""
    return (
        outputs_PZD if (num_positions := outputs_PZD.shape[1]) == size else F.pad(outputs_PZD, (0, 0, 0, size - num_positions))
    )


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
