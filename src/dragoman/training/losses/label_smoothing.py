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
from dragoman.model.linear import MatMul, torch_matmul
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import Sums, chunked_loss, iter_row_blocks, sum_dtype

# Classes at which log Σ exp is read off in half precision.
NORM_SAMPLE_CLASSES = 256


def compute_smoothing_masses(smoothing_mode: str, epsilon: float, vocab_size: int) -> tuple[float, float]:
    """The target distribution q: every class's share, and what the true class has beyond it, as (beyond, share).

    `uniform`: every class gets ε/V (PyTorch, Marian); `others`: all but the true one share ε (tensor2tensor); `real`: all but
    the true one and padding do (JoeyNMT), where padding's share is taken off again by `smoothed_loss`.
    """
    uniform_mass = (
        epsilon
        / {"uniform": vocab_size, "exclude_target": vocab_size - 1, "exclude_target_and_pad": vocab_size - 2}[smoothing_mode]
    )
    return 1.0 - epsilon - (0.0 if smoothing_mode == "uniform" else uniform_mass), uniform_mass


def batch_loss(
    model: Transformer, batch: Batch, *, epsilon: float, smoothing_mode: str, pos_loss_weight: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its real target tokens. Padding costs no logits.

    pos_loss_weight: of a tag head's loss, which is added to the first
    """
    tagged_batch, batch = batch, strip_tags(model, batch)
    memory_BSD = model.encoder(batch.source_BS)
    outputs_BTD, _ = model.decoder(batch.inputs_BT, model.decoder.start(memory_BSD, batch.source_BS))
    is_real_X = batch.find_nonpad_positions()
    outputs_XD, targets_X = outputs_BTD.flatten(0, 1)[is_real_X], batch.targets_BT.flatten()[is_real_X]
    loss, nll = label_smoothed_loss(
        outputs_XD, model.output, targets_X, epsilon=epsilon, smoothing_mode=smoothing_mode, matmul=model.matmul
    )
    return (loss + pos_loss_weight * pos_tag_loss(model, memory_BSD, tagged_batch) if pos_loss_weight else loss), nll


def strip_tags(model: Transformer, batch: Batch) -> Batch:
    """The batch as a parser's decoder reads and says it, which knows of no tags; any other as it is."""
    if model.words is None:
        return batch
    inputs_BT, targets_BT = model.words.hide_tags(batch.inputs_BT), model.words.hide_tags(batch.targets_BT)
    return replace(batch, inputs_BT=inputs_BT, targets_BT=targets_BT)


def pos_tag_loss(model: Transformer, memory_BSD: Tensor, batch: Batch) -> Tensor:
    """−log p of the tag of each word, summed over all words, in nats.

    memory_BSD: the encoder's output. The batch's targets have the tags, in the order of the source's words.
    """
    assert model.words is not None, "a translator has no tags"
    assert model.tagger is not None, "a parser without a tag head"
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
    """The loss to minimise and the negative log-likelihood of logits `outputs · outputᵀ`, both summed over all places, in nats.

    The gradient is that of the first; under autocast the products are computed in its type, and all sums in float32.
    """
    criterion = _LabelSmoothingCriterion(*compute_smoothing_masses(smoothing_mode, epsilon, len(output_VD)), smoothing_mode)
    return chunked_loss(outputs_XD, output_VD, targets_X, criterion, matmul)


@dataclass(frozen=True)
class _LabelSmoothingCriterion:
    """Cross-entropy against the smoothed distribution q. The gradient by the logits is p − q, here without q's even part.

    Its sums are those of −log p over the true classes, and over all with a share; of the latter's only log Σ exp.
    """

    target_mass: float
    uniform_mass: float
    smoothing_mode: str

    def write_gradient(self, logits_PZV: Tensor, targets_Z: Tensor, needs_grad: bool) -> Sums:
        logits_ZV = logits_PZV[0]
        target_logits_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].to(sum_dtype(logits_ZV.dtype))
        padding_logits_Z = logits_ZV[:, PADDING_ID].to(target_logits_Z.dtype, copy=True)
        if needs_grad and logits_ZV.dtype == torch.bfloat16 and logits_ZV.device.type == "cpu":
            logsumexp_Z = _softmax_in_half_precision(logits_ZV, targets_Z, target_logits_Z)
        else:
            logsumexp_Z = torch.cat(
                [_softmax_in_place(block_1ZV[0], needs_grad) for block_1ZV, _ in iter_row_blocks(logits_PZV)]
            )
        nll, all_classes_nll = (logsumexp_Z - target_logits_Z).sum(), logits_ZV.shape[1] * logsumexp_Z.sum()
        if self.smoothing_mode == "exclude_target_and_pad":
            all_classes_nll = all_classes_nll - (logsumexp_Z - padding_logits_Z).sum()
        if needs_grad:
            if self.smoothing_mode == "exclude_target_and_pad":
                logits_ZV[:, PADDING_ID] += self.uniform_mass
            # Of what is left of a likely class, half precision would keep few bits if it were rounded before.
            target_gradient_Z = (target_logits_Z - logsumexp_Z).exp() - self.target_mass
            logits_ZV[torch.arange(len(targets_Z), device=targets_Z.device), targets_Z] = target_gradient_Z.to(logits_ZV.dtype)
        return nll, all_classes_nll

    def loss(self, sums: Sums) -> Sums:
        nll, all_classes_nll = sums
        return self.target_mass * nll + self.uniform_mass * all_classes_nll, nll


def _softmax_in_place(logits_ZV: Tensor, needs_grad: bool) -> Tensor:
    """Log Σ exp of the logits, as exact as sums are; the probabilities are put in their place, if it learns."""
    exact_ZV = logits_ZV.to(sum_dtype(logits_ZV.dtype))  # the same tensor, where the logits are as exact as that
    max_Z = exact_ZV.amax(dim=-1)
    torch.softmax(exact_ZV, dim=-1, out=exact_ZV)
    if needs_grad and exact_ZV is not logits_ZV:
        logits_ZV.copy_(exact_ZV)
    # Read off where a row is largest, since what is smallest may have no logarithm.
    return max_Z - exact_ZV.amax(dim=-1).log()


def _softmax_in_half_precision(logits_ZV: Tensor, targets_Z: Tensor, target_logits_Z: Tensor) -> Tensor:
    """The same in one pass, where a row's largest logit would cost as much as its probabilities do.

    PyTorch computes them in float32 and rounds them to bfloat16 once. log Σ exp is read off at some classes: each is off by the
    rounding of its probability, 0.2 per cent to either side, their mean by a sixteenth of that. In a row in which none of them
    has a probability that float32 can hold, it is read off at the true class, and a likelihood below 1e-38 counts as that.
    """
    sample_logits_ZA = logits_ZV[:, :NORM_SAMPLE_CLASSES].float()
    torch.softmax(logits_ZV, dim=-1, out=logits_ZV)
    sample_probs_ZA = logits_ZV[:, :NORM_SAMPLE_CLASSES].float()
    is_nonzero_ZA = sample_probs_ZA > 0
    logsumexp_sum_Z = (sample_logits_ZA - sample_probs_ZA.log()).masked_fill_(~is_nonzero_ZA, 0.0).sum(dim=-1)
    num_nonzero_Z = is_nonzero_ZA.sum(dim=-1)
    target_probs_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].float().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(num_nonzero_Z > 0, logsumexp_sum_Z / num_nonzero_Z, target_logits_Z - target_probs_Z.log())
