"""Label-smoothed cross-entropy (section 5.4), summed over the real target tokens, and the negative log-likelihood.

Shapes: X positions with a real token, Z those of a chunk, D model width, V vocabulary size. The logits of a whole
batch are never in memory (`losses.chunked`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.model.linear import MatMul, torch_matmul
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import (
    CPU_CHUNK_LOGITS,
    Sums,
    chunked_loss,
    fold_output_bias,
    split_into_blocks,
    sum_dtype,
)

# In half precision, log Σ exp is computed from this many classes.
NORM_SAMPLE_CLASSES = 256


def compute_smoothing_masses(smoothing_mode: str, epsilon: float, vocab_size: int) -> tuple[float, float]:
    """Return the target distribution q as (extra probability of the true class, probability of every class).

    `uniform`: every class gets ε/V (PyTorch, Marian).
    `exclude_target`: all classes but the true one share ε (tensor2tensor).
    `exclude_target_and_pad`: all but the true one and padding share ε (JoeyNMT). `label_smoothed_loss` subtracts the
    probability of padding again.
    """
    uniform_mass = (
        epsilon
        / {"uniform": vocab_size, "exclude_target": vocab_size - 1, "exclude_target_and_pad": vocab_size - 2}[smoothing_mode]
    )
    return 1.0 - epsilon - (0.0 if smoothing_mode == "uniform" else uniform_mass), uniform_mass


def batch_loss(
    model: Transformer, batch: Batch, *, epsilon: float, smoothing_mode: str, pos_loss_weight: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss and the negative log-likelihood of a batch, summed over its real target tokens, in nats.

    Padding has no logits.

    pos_loss_weight: weight of the tagging head's loss, which is added to the smoothed loss
    """
    memory_BSD, (outputs_XD, output_VD, targets_X) = _force_targets(model, batch)
    loss, nll = label_smoothed_loss(
        outputs_XD, output_VD, targets_X, epsilon=epsilon, smoothing_mode=smoothing_mode, matmul=model.matmul
    )
    return (loss + pos_loss_weight * pos_tag_loss(model, memory_BSD, batch) if pos_loss_weight else loss), nll


def count_correct_tokens(model: Transformer, batch: Batch) -> int:
    """Return the number of real target tokens that are the likeliest ones after the reference's tokens before them."""
    _, (outputs_XD, output_VD, targets_X) = _force_targets(model, batch)
    return count_likeliest(outputs_XD, output_VD, targets_X)


def _force_targets(model: Transformer, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the output of the encoder, and (outputs_XD, output_VD, targets_X) of the decoder for the real targets."""
    batch = strip_tags(model, batch)
    memory_BSD = model.encoder(batch.source_BS)
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.start_decoder(memory_BSD, batch.source_BS))
    is_real_X = batch.find_nonpad_positions()
    outputs_XD, targets_X = outputs_BTD.flatten(0, 1)[is_real_X], batch.targets_BT.flatten()[is_real_X]
    return memory_BSD, (*fold_output_bias(outputs_XD, model.output, model.output_bias), targets_X)


def count_likeliest(outputs_XD: Tensor, output_VD: Tensor, targets_X: Tensor) -> int:
    """Return the number of positions whose largest logit is that of the target."""
    chunk_size = max(1, CPU_CHUNK_LOGITS // len(output_VD))
    num_likeliest = 0
    for start in range(0, len(targets_X), chunk_size):
        logits_ZV = F.linear(outputs_XD[start : start + chunk_size], output_VD)
        num_likeliest += int((logits_ZV.argmax(dim=-1) == targets_X[start : start + chunk_size]).sum())
    return num_likeliest


def strip_tags(model: Transformer, batch: Batch) -> Batch:
    """Return a parser's batch without the part-of-speech tags, which its decoder does not predict; else the same batch."""
    if model.words is None:
        return batch
    inputs_BT, targets_BT = model.words.hide_tags(batch.inputs_BT), model.words.hide_tags(batch.targets_BT)
    return replace(batch, inputs_BT=inputs_BT, targets_BT=targets_BT)


def pos_tag_loss(model: Transformer, memory_BSD: Tensor, batch: Batch) -> Tensor:
    """Return −log p of the tag of each word, summed over all words, in nats.

    memory_BSD: output of the encoder
    batch: its targets hold the tags, in the order of the source's words
    """
    assert model.words is not None, "a translation model has no tags"
    assert model.tagger is not None, "this parser has no tagging head"
    logits_BWV = model.tagger(model.words.gather_word_outputs(memory_BSD, batch.source_BS))
    tags_BW = model.words.gather_tags(batch.targets_BT, logits_BWV.shape[1])
    return F.cross_entropy(logits_BWV.flatten(0, 1), tags_BW.flatten(), reduction="sum", ignore_index=PADDING_ID)


def label_smoothed_loss(
    outputs_XD: Tensor,
    output_VD: Tensor,
    targets_X: Tensor,
    *,
    epsilon: float,
    smoothing_mode: str,
    matmul: MatMul = torch_matmul,
) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss and the negative log-likelihood of the logits `outputs · outputᵀ`, summed, in nats.

    Only the loss has a gradient. Under autocast the products have its type and all sums are in float32.
    """
    criterion = LabelSmoothingCriterion(*compute_smoothing_masses(smoothing_mode, epsilon, len(output_VD)), smoothing_mode)
    return chunked_loss(outputs_XD, output_VD, targets_X, criterion, matmul)


@dataclass(frozen=True)
class LabelSmoothingCriterion:
    """Cross-entropy against the smoothed distribution q. The gradient by the logits is p − q, here without q's uniform part."""

    target_mass: float
    uniform_mass: float
    smoothing_mode: str

    def write_gradient(self, logits_ZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int = 0) -> Sums:
        target_logits_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].to(sum_dtype(logits_ZV.dtype))
        padding_logits_Z = logits_ZV[:, PADDING_ID].to(target_logits_Z.dtype, copy=True)
        if needs_grad and logits_ZV.dtype == torch.bfloat16 and logits_ZV.device.type == "cpu":
            logsumexp_Z = _softmax_in_half_precision(logits_ZV, targets_Z, target_logits_Z)
        else:
            logsumexp_Z = softmax_in_place(logits_ZV, needs_grad)
        nll, all_classes_nll = (logsumexp_Z - target_logits_Z).sum(), logits_ZV.shape[1] * logsumexp_Z.sum()
        if self.smoothing_mode == "exclude_target_and_pad":
            all_classes_nll = all_classes_nll - (logsumexp_Z - padding_logits_Z).sum()
        if needs_grad:
            if self.smoothing_mode == "exclude_target_and_pad":
                logits_ZV[:, PADDING_ID] += self.uniform_mass
            # The difference is computed in float32: in half precision it would have few bits for a likely class.
            target_gradient_Z = (target_logits_Z - logsumexp_Z).exp() - self.target_mass
            logits_ZV[torch.arange(len(targets_Z), device=targets_Z.device), targets_Z] = target_gradient_Z.to(logits_ZV.dtype)
        return self.target_mass * nll + self.uniform_mass * all_classes_nll, nll


def softmax_in_place(logits_ZV: Tensor, needs_grad: bool) -> Tensor:
    """Return log Σ exp of the logits in float32 at least, and replace the logits by the probabilities if `needs_grad`."""
    blocks = []
    for block_ZV in split_into_blocks(logits_ZV):
        exact_ZV = block_ZV.to(sum_dtype(block_ZV.dtype))  # the same tensor if the logits are float32
        max_Z = exact_ZV.amax(dim=-1)
        torch.softmax(exact_ZV, dim=-1, out=exact_ZV)
        if needs_grad and exact_ZV is not block_ZV:
            block_ZV.copy_(exact_ZV)
        # The largest probability has a logarithm; the smallest may be 0.
        blocks.append(max_Z - exact_ZV.amax(dim=-1).log())
    return torch.cat(blocks)


def _softmax_in_half_precision(logits_ZV: Tensor, targets_Z: Tensor, target_logits_Z: Tensor) -> Tensor:
    """Return log Σ exp of bfloat16 logits and replace them by the probabilities, in one pass.

    PyTorch computes the probabilities in float32 and rounds them to bfloat16 once. log Σ exp is the mean over sample classes.
    Each is off by the rounding of its probability, 0.2 % to either side, and their mean by a sixteenth of that. If no sample
    class of a row has a nonzero probability, the true class is used. A likelihood below 1e-38 counts as 1e-38.
    """
    sample_logits_ZA = logits_ZV[:, :NORM_SAMPLE_CLASSES].float()
    torch.softmax(logits_ZV, dim=-1, out=logits_ZV)
    sample_probs_ZA = logits_ZV[:, :NORM_SAMPLE_CLASSES].float()
    is_nonzero_ZA = sample_probs_ZA > 0
    logsumexp_sum_Z = (sample_logits_ZA - sample_probs_ZA.log()).masked_fill_(~is_nonzero_ZA, 0.0).sum(dim=-1)
    num_nonzero_Z = is_nonzero_ZA.sum(dim=-1)
    target_probs_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].float().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(num_nonzero_Z > 0, logsumexp_sum_Z / num_nonzero_Z, target_logits_Z - target_probs_Z.log())
