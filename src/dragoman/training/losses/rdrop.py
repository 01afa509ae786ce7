"""R-Drop (Liang et al. 2021): each pair passes through the model twice, and the two outputs under dropout should agree.

Their equation 4 is −log P₁(y|x) − log P₂(y|x) + α/2 · (KL(P₁‖P₂) + KL(P₂‖P₁)). Half of it is computed here, so α is theirs and
the loss compares with a loss without R-Drop. The likelihoods are label-smoothed as always, the distributions in KL are not.

Shapes: X positions with a real token, Z those of a chunk, P = 2 passes, D model width, V vocabulary size. The logits of both
passes over a chunk are in memory, never those of a whole batch (`losses.chunked`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.model.linear import MatMul, torch_matmul
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import (
    Sums,
    cached_buffer,
    chunked_loss,
    count_block_rows,
    fold_output_bias,
    iter_row_blocks,
    sum_dtype,
)
from dragoman.training.losses.label_smoothing import compute_smoothing_masses

NUM_PASSES = 2


def r_drop_loss(
    model: Transformer, batch: Batch, *, epsilon: float, smoothing_mode: str, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and the mean negative log-likelihood of both passes, summed over the real target tokens, in nats.

    The rows of the batch are repeated in one forward pass, so it needs the memory of a batch with twice the tokens.
    """
    memory = model.start(batch.source_BS.repeat(NUM_PASSES, 1))
    outputs_BTD, _ = model.decoder(batch.inputs_BT.repeat(NUM_PASSES, 1), memory)
    is_real_X = batch.find_nonpad_positions()
    outputs_2XD = outputs_BTD.view(NUM_PASSES, -1, outputs_BTD.shape[-1])[:, is_real_X]
    targets_X = batch.targets_BT.flatten()[is_real_X]
    outputs_2XD, output_VD = fold_output_bias(outputs_2XD, model.output, model.output_bias)
    return consistency_loss(
        outputs_2XD, output_VD, targets_X, epsilon=epsilon, smoothing_mode=smoothing_mode, alpha=alpha, matmul=model.matmul
    )


def consistency_loss(
    outputs_2XD: Tensor,
    output_VD: Tensor,
    targets_X: Tensor,
    *,
    epsilon: float,
    smoothing_mode: str,
    alpha: float,
    matmul: MatMul = torch_matmul,
) -> tuple[Tensor, Tensor]:
    """Return half of equation 4 for the logits `outputs · outputᵀ` of both passes, and their mean negative log-likelihood.

    Both are in nats. Only the loss has a gradient. Under autocast the products have its type and all sums are in float32.
    """
    criterion = _RDropCriterion(*compute_smoothing_masses(smoothing_mode, epsilon, len(output_VD)), smoothing_mode, alpha)
    return chunked_loss(outputs_2XD, output_VD, targets_X, criterion, matmul)


@dataclass(frozen=True)
class _RDropCriterion:
    """Half of equation 4.

    With d = log p − log q, the gradient of both KL terms by the logits of p is p · (d − KL(p‖q)) + p − q. By the logits of q it
    is the same with p and q exchanged. The sums are those of the loss and of the mean negative log-likelihood.
    """

    target_mass: float
    smoothing_mass: float
    smoothing_mode: str
    alpha: float

    @property
    def uniform_mass(self) -> float:
        return self.smoothing_mass / NUM_PASSES

    def write_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int = 0) -> Sums:
        """Replace the logits by the gradient, even without `needs_grad`, and return the sums of loss and likelihood."""
        loss = nll = logits_PZV.new_zeros((), dtype=sum_dtype(logits_PZV.dtype))
        max_rows = count_block_rows(logits_PZV)
        for block_2ZV, block in iter_row_blocks(logits_PZV):
            targets_2Z1 = targets_Z[block, None].expand(NUM_PASSES, -1, -1)
            buffers = _RDropBuffers.allocate(block_2ZV, max_rows)
            exact_2ZV = buffers.exact_2ZV
            logsumexp_2Z, target_logits_2Z = _fill_probabilities(buffers), exact_2ZV.gather(2, targets_2Z1)[:, :, 0]
            block_nll, all_classes_nll = (logsumexp_2Z - target_logits_2Z).sum(), exact_2ZV.shape[2] * logsumexp_2Z.sum()
            if self.smoothing_mode == "exclude_target_and_pad":
                all_classes_nll = all_classes_nll - (logsumexp_2Z - exact_2ZV[:, :, PADDING_ID]).sum()
            divergence = self._write_divergence_gradient(buffers, logsumexp_2Z)
            if self.smoothing_mode == "exclude_target_and_pad":
                exact_2ZV[:, :, PADDING_ID] += self.uniform_mass
            exact_2ZV.scatter_add_(2, targets_2Z1, exact_2ZV.new_full(targets_2Z1.shape, -self.target_mass / NUM_PASSES))
            if exact_2ZV is not block_2ZV:
                block_2ZV.copy_(exact_2ZV)
            loss = loss + self.target_mass / NUM_PASSES * block_nll + self.uniform_mass * all_classes_nll + divergence
            nll = nll + block_nll / NUM_PASSES
        return loss, nll

    def _write_divergence_gradient(self, buffers: _RDropBuffers, logsumexp_2Z: Tensor) -> Tensor:
        """Replace the logits by the gradient of α/4 · both KL terms and of half of log Σ exp. Return α/4 · both KL terms."""
        kl_weight = self.alpha / 4
        logits_2ZV, probs_2ZV, log_ratio_ZV = buffers.exact_2ZV, buffers.probs_2ZV, buffers.log_ratio_ZV
        torch.sub(logits_2ZV[0], logits_2ZV[1], out=log_ratio_ZV).sub_((logsumexp_2Z[0] - logsumexp_2Z[1])[:, None])
        (p_ZV, q_ZV), (to_p_ZV, to_q_ZV) = probs_2ZV, logits_2ZV
        kl_pq_Z, kl_qp_Z = (p_ZV * log_ratio_ZV).sum(dim=-1), (q_ZV * log_ratio_ZV).sum(dim=-1).neg()
        log_ratio_ZV.mul_(kl_weight)
        own_weight = 1.0 / NUM_PASSES + kl_weight
        torch.add(log_ratio_ZV, (own_weight - kl_weight * kl_pq_Z)[:, None], out=to_p_ZV).mul_(p_ZV).sub_(q_ZV, alpha=kl_weight)
        torch.sub((own_weight - kl_weight * kl_qp_Z)[:, None], log_ratio_ZV, out=to_q_ZV).mul_(q_ZV).sub_(p_ZV, alpha=kl_weight)
        divergence: Tensor = kl_weight * (kl_pq_Z.sum() + kl_qp_Z.sum())
        return divergence

    def loss(self, sums: Sums) -> Sums:
        return sums


@dataclass(frozen=True)
class _RDropBuffers:
    """Work buffers for a block of rows, in float32 at least: logits, probabilities, and log ratios of the two passes."""

    exact_2ZV: Tensor
    probs_2ZV: Tensor
    log_ratio_ZV: Tensor

    @classmethod
    def allocate(cls, logits_2ZV: Tensor, max_rows: int) -> _RDropBuffers:
        """Return buffers for these logits. A pass never has more than `max_rows` rows."""
        num_passes, num_positions, vocab_size = logits_2ZV.shape
        dtype = sum_dtype(logits_2ZV.dtype)
        needs_copy = logits_2ZV.dtype != dtype
        buffer = cached_buffer((num_passes * (1 + needs_copy) + 1) * max_rows * vocab_size, dtype, logits_2ZV.device)
        count, pass_size = logits_2ZV.numel(), num_positions * vocab_size
        exact_2ZV = buffer[-count:].view(logits_2ZV.shape).copy_(logits_2ZV) if needs_copy else logits_2ZV
        return cls(
            exact_2ZV, buffer[:count].view(logits_2ZV.shape), buffer[count : count + pass_size].view(num_positions, vocab_size)
        )


def _fill_probabilities(buffers: _RDropBuffers) -> Tensor:
    """Compute the probabilities, and return log Σ exp (P, Z) of the logits."""
    torch.softmax(buffers.exact_2ZV, dim=-1, out=buffers.probs_2ZV)
    # The largest probability has a logarithm; the smallest may be 0.
    return buffers.exact_2ZV.amax(dim=-1) - buffers.probs_2ZV.amax(dim=-1).log()
