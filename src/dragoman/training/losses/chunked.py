"""Chunked loss of the logits `outputs · outputᵀ`, which are never in memory as a whole.

The logits are computed one chunk of positions at a time. The gradients of a chunk are computed in the forward pass. The part of
the target distribution that all classes share is added at the end.

Shapes: X positions with a real token, D model width, V vocabulary size. A chunk has Z real positions, and Y positions with its
padding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.linear import MatMul, contiguous_rows

# Logits in a chunk on a CPU (28 MB in float32), logits in a block that fits the CPU's caches, and both on a GPU, whose kernels
# need much work.
CPU_CHUNK_LOGITS = 7 * 2**20
CPU_BLOCK_LOGITS = 2**20
GPU_CHUNK_LOGITS = 2**26
# The size of a chunk is a multiple of this, since oneDNN compiles a kernel for each size.
CHUNK_SIZE_MULTIPLE = 64

Sums = tuple[Tensor, Tensor]


def fold_output_bias(outputs: Tensor, output_VD: Tensor, output_bias_V: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs (…, D + 1) that end with 1, and the matrix (V, D + 1) that ends with the bias. Without a bias, both stay.

    The product of the two is that of the inputs plus the bias.
    """
    if output_bias_V is None:
        return outputs, output_VD
    ones = outputs.new_ones(*outputs.shape[:-1], 1)
    return torch.cat([outputs, ones], dim=-1), torch.cat([output_VD, output_bias_V[:, None]], dim=1)


class Criterion(Protocol):
    """Loss of a chunk's logits."""

    @property
    def uniform_mass(self) -> float:
        """Target probability that every class has.

        Its part of the loss, −uniform_mass · Σ logits, is a product of sums over positions and classes. So is its gradient.
        Both are added at the end without a pass over the logits.
        """

    def write_gradient(self, logits_ZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int) -> Sums:
        """Replace the logits by the gradient if `needs_grad`, and return the sums of loss and negative log-likelihood.

        start: index of the first of these positions

        Gradient and loss are without the uniform part of the target distribution.
        """


def chunked_loss(outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor, criterion: Criterion, matmul: MatMul) -> Sums:
    """Return the loss of the outputs and the negative log-likelihood, summed over all positions, in nats.

    Only the loss has a gradient. Under autocast the products have its type and all sums are in float32.
    """
    needs_grad = torch.is_grad_enabled()  # it is False inside of apply
    loss, nll = _ChunkedLoss.apply(outputs_XD, output_VD, targets_X, criterion, needs_grad, matmul)  # type: ignore[no-untyped-call]
    return loss, nll


class _ChunkedLoss(torch.autograd.Function):
    """Projection to the vocabulary with its loss. The forward pass computes the gradients, the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs_XD: Tensor,
        output_VD: Tensor,
        targets_X: Tensor,
        criterion: Criterion,
        needs_grad: bool,
        matmul: MatMul,
    ) -> Sums:
        device_type = outputs_XD.device.type
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else outputs_XD.dtype
        projection_VD = output_VD.to(dtype)
        gradient_XD = torch.empty_like(outputs_XD) if needs_grad else None
        projection_gradient_VD: Tensor | None = None
        needs_projection_grad = ctx.needs_input_grad[1]  # false for a frozen output matrix, as with adapters
        loss = nll = torch.zeros((), device=outputs_XD.device)
        chunk_size = choose_chunk_size(
            len(targets_X), len(output_VD), CPU_CHUNK_LOGITS if device_type == "cpu" else GPU_CHUNK_LOGITS
        )
        with torch.autocast(device_type, enabled=False):
            for start in range(0, len(targets_X), chunk_size):
                targets_Z = targets_X[start : start + chunk_size]
                outputs_YD = _pad_positions(outputs_XD[start : start + chunk_size].to(dtype), chunk_size)
                logits_YV = matmul(outputs_YD, projection_VD, None)
                chunk_loss, chunk_nll = criterion.write_gradient(logits_YV[: len(targets_Z)], targets_Z, needs_grad, start)
                loss, nll = loss + chunk_loss, nll + chunk_nll
                if gradient_XD is None:
                    continue
                gradient_YV = logits_YV  # `write_gradient` has replaced the logits
                gradient_YV[len(targets_Z) :] = 0
                gradient_XD[start : start + chunk_size] = matmul(gradient_YV, projection_VD.t(), None)[: len(targets_Z)]
                if needs_projection_grad:
                    projection_gradient_VD = _accumulate(matmul(gradient_YV.t(), outputs_YD.t(), None), projection_gradient_VD)
                del logits_YV, gradient_YV  # the next chunk reuses this memory, which is in the caches
            outputs_sum_D, classes_sum_D = _sum_rows(outputs_XD), _sum_rows(output_VD)
            loss = loss - criterion.uniform_mass * (outputs_sum_D @ classes_sum_D)
            if gradient_XD is not None:
                gradient_XD.sub_(criterion.uniform_mass * classes_sum_D)
            if projection_gradient_VD is not None:
                projection_gradient_VD.sub_(criterion.uniform_mass * outputs_sum_D)
        ctx.save_for_backward(gradient_XD, projection_gradient_VD)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gradient_XD, projection_gradient_VD = ctx.saved_tensors
        if projection_gradient_VD is None:
            return gradient_XD * grads[0], None, None, None, None, None
        contiguous_VD = contiguous_rows(projection_gradient_VD)
        scale = torch.mul if contiguous_VD is projection_gradient_VD else Tensor.mul_  # a copy may be written to
        return gradient_XD * grads[0], scale(contiguous_VD, grads[0]), None, None, None, None


def _accumulate(part_VD: Tensor, sum_VD: Tensor | None) -> Tensor:
    """Add a chunk's part to the sum, in float32 at least. The part is contiguous, or its transpose is."""
    if sum_VD is None:
        return part_VD.to(sum_dtype(part_VD.dtype))
    if part_VD.dtype == sum_VD.dtype or part_VD.device.type != "cpu":
        return sum_VD.add_(part_VD)
    buffer = _cached_buffer(part_VD.numel(), sum_VD.dtype, part_VD.device)
    return sum_VD.add_(buffer.as_strided(part_VD.shape, part_VD.stride()).copy_(part_VD))


@lru_cache(maxsize=4)
def _cached_buffer(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return scratch memory for one user at a time. It is kept, so its pages are faulted in once."""
    return torch.empty(size, dtype=dtype, device=device)


def _sum_rows(rows: Tensor) -> Tensor:
    """Return the sum of all rows."""
    return rows.sum(0, dtype=sum_dtype(rows.dtype))


def split_into_blocks(logits_ZV: Tensor) -> tuple[Tensor, ...]:
    """Return views of blocks of rows that fit the caches."""
    max_logits = CPU_BLOCK_LOGITS if logits_ZV.device.type == "cpu" else GPU_CHUNK_LOGITS
    return torch.split(logits_ZV, max(max_logits // logits_ZV.shape[1], 1))


def choose_chunk_size(num_positions: int, vocab_size: int, max_logits: int) -> int:
    """Return the positions in a chunk of at most `max_logits` logits. Only the last chunk has padding, and little."""
    max_size = max(max_logits // vocab_size, 1)
    multiple = CHUNK_SIZE_MULTIPLE if max_size >= CHUNK_SIZE_MULTIPLE else 1
    num_chunks = max(-(-num_positions // (max_size // multiple * multiple)), 1)
    return max(-(-num_positions // (num_chunks * multiple)) * multiple, 1)


def _pad_positions(outputs_ZD: Tensor, size: int) -> Tensor:
    """Pad with zeros to this many positions, so that kernels are compiled for few sizes."""
    return outputs_ZD if len(outputs_ZD) == size else F.pad(outputs_ZD, (0, 0, 0, size - len(outputs_ZD)))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
