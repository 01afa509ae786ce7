"""Regularization towards the initial model: KL(old‖new) of the two output distributions is added to the loss of each token.

Yu et al. 2013 ("KL-divergence regularized deep neural network adaptation") propose it for the adaptation of acoustic models,
Khayrallah et al. 2018 ("Regularized training objective for continued training for domain adaptation in NMT") for translation.
The initial model has no dropout and no gradient.

Shapes: X positions with a real token, Z those of a chunk, D model width, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.model.linear import MatMul
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import Sums, chunked_loss, fold_output_bias, sum_dtype
from dragoman.training.losses.label_smoothing import LabelSmoothingCriterion, compute_smoothing_masses


def kl_regularized_loss(
    model: Transformer, initial_model: Transformer, batch: Batch, *, epsilon: float, smoothing_mode: str, weight: float
) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss plus weight · KL(old‖new), and the negative log-likelihood.

    Both are summed over the real target tokens, in nats. Only the loss has a gradient.
    """
    outputs_XD, output_VD = _compute_outputs(model, batch)
    with torch.no_grad():
        initial_outputs_XD, initial_output_VD = _compute_outputs(initial_model, batch)
    criterion = _KlCriterion(
        LabelSmoothingCriterion(*compute_smoothing_masses(smoothing_mode, epsilon, len(output_VD)), smoothing_mode),
        weight,
        initial_outputs_XD,
        initial_output_VD,
        initial_model.matmul,
    )
    targets_X = batch.targets_BT.flatten()[batch.find_nonpad_positions()]
    return chunked_loss(outputs_XD, output_VD, targets_X, criterion, model.matmul)


def _compute_outputs(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the decoder outputs of the real positions (X, D) and the output matrix (V, D), whose product is the logits."""
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.start(batch.source_BS))
    return fold_output_bias(outputs_BTD.flatten(0, 1)[batch.find_nonpad_positions()], model.output, model.output_bias)


@dataclass(frozen=True)
class _KlCriterion:
    """Label-smoothed cross-entropy plus weight · KL(old‖new). The gradient of the KL term by the logits is p_new − p_old."""

    smoothing: LabelSmoothingCriterion
    weight: float
    initial_outputs_XD: Tensor
    initial_output_VD: Tensor
    initial_matmul: MatMul

    @property
    def uniform_mass(self) -> float:
        return self.smoothing.uniform_mass

    def write_gradient(self, logits_ZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int) -> Sums:
        """Replace the logits by the gradient if `needs_grad`, and return the sums of loss and likelihood."""
        dtype = logits_ZV.dtype
        initial_ZD = self.initial_outputs_XD[start : start + len(targets_Z)].to(dtype)
        initial_logits_ZV = self.initial_matmul(initial_ZD, self.initial_output_VD.to(dtype), None)
        old_log_probs_ZV = initial_logits_ZV.to(sum_dtype(dtype)).log_softmax(dim=-1)
        old_probs_ZV = old_log_probs_ZV.exp()
        # KL = Σ p_old · log p_old − Σ p_old · logits + log Σ exp(logits), and the last term is −log p of any class + its logit.
        target_logits_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].to(old_probs_ZV.dtype)
        divergence = (old_probs_ZV * (old_log_probs_ZV - logits_ZV)).sum() + target_logits_Z.sum()
        loss, nll = self.smoothing.write_gradient(logits_ZV, targets_Z, needs_grad, start)
        if needs_grad:
            self._add_divergence_gradient(logits_ZV, targets_Z, old_probs_ZV)
        return loss + self.weight * (divergence + nll), nll

    def _add_divergence_gradient(self, gradient_ZV: Tensor, targets_Z: Tensor, old_probs_ZV: Tensor) -> None:
        """Add weight · (p_new − p_old) to p_new − q, where q is the target distribution without its uniform part."""
        gradient_ZV.mul_(1.0 + self.weight)
        rows_Z = torch.arange(len(targets_Z), device=targets_Z.device)
        gradient_ZV[rows_Z, targets_Z] += self.weight * self.smoothing.target_mass
        if self.smoothing.smoothing_mode == "exclude_target_and_pad":
            gradient_ZV[:, PADDING_ID] -= self.weight * self.smoothing.uniform_mass
        gradient_ZV.sub_(old_probs_ZV, alpha=self.weight)
