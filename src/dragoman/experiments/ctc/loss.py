"""CTC loss: −log of the summed probability of all paths of a CTC decoder that merge to the target (Graves et al. 2006).

A path has a token or a blank at each position of the decoder. The target has no end token. Only the classes of the target and
the blank occur on its paths, so the loss is computed in two parts whose sum is exact:

    Σ_f (log Σ_v exp logit_fv − log Σ_c exp logit_fc) + CTC over the classes c of the sentence alone

The logits of the whole vocabulary are in memory one chunk at a time (`losses.chunked`).

Shapes: B sentences, F positions of the decoder, L target tokens, C = L + 1 classes of a sentence: the blank and its tokens.
D is the model width, and V the vocabulary size. X counts the positions of tokens in the flattened positions, Z those of a
chunk. P = 1 pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.experiments.ctc.decoder import compute_frame_outputs, count_frames, find_fitting
from dragoman.model.transformer import Transformer
from dragoman.training.losses.chunked import Sums, chunked_loss, fold_output_bias
from dragoman.training.losses.label_smoothing import softmax_in_place

ABSENT_LOGIT = -1e4
"""Logit of a class that a sentence does not have. Its probability is 0 in float32, and its gradient is a number."""


def ctc_loss(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the CTC loss summed over the batch, in nats, twice: with a gradient, and as the negative log-likelihood.

    A sentence whose target does not fit has no loss; `CtcDecoder.count_learned` counts it.
    """
    outputs_BFD = compute_frame_outputs(model, batch.source_BS)
    num_frames_B = count_frames(model, batch.source_BS)
    fits_B = find_fitting(batch.targets_BT, num_frames_B)
    num_frames_B = num_frames_B * fits_B
    is_frame_BF = torch.arange(outputs_BFD.shape[1], device=fits_B.device) < num_frames_B[:, None]
    tokens_BL = batch.targets_BT.masked_fill(batch.targets_BT == END_ID, PADDING_ID)
    outputs_BFD, output_VD = fold_output_bias(outputs_BFD, model.output, model.output_bias)

    class_logits_BFC, labels_BL = compute_class_logits(outputs_BFD, output_VD, tokens_BL)
    class_logits_BFC = class_logits_BFC.float()
    paths = F.ctc_loss(
        class_logits_BFC.log_softmax(dim=-1).transpose(0, 1),
        labels_BL,
        num_frames_B,
        (tokens_BL != PADDING_ID).sum(dim=1) * fits_B,
        blank=0,
        reduction="sum",
    )
    is_frame_X = is_frame_BF.flatten().nonzero().flatten()
    outputs_XD = outputs_BFD.flatten(0, 1)[is_frame_X]
    logsumexp, _ = chunked_loss(outputs_XD, output_VD, is_frame_X, LogSumExpCriterion(), model.matmul)
    class_logsumexp = class_logits_BFC.logsumexp(dim=-1).masked_fill(~is_frame_BF, 0.0).sum()
    loss = paths + logsumexp - class_logsumexp
    return loss, loss.detach()


def compute_class_logits(outputs_BFD: Tensor, output_VD: Tensor, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the classes of each sentence (B, F, C), and the class of each target token (B, L).

    tokens_BL: target tokens, padded on the right

    Class 0 is the blank, and class i the token at position i − 1. A token that occurs again has its first class; the later
    class is absent, as is that of padding.
    """
    is_equal_BLL = tokens_BL[:, :, None] == tokens_BL[:, None, :]
    first_BL = is_equal_BLL.int().argmax(dim=2)
    is_absent_BL = (first_BL != torch.arange(tokens_BL.shape[1], device=tokens_BL.device)) | (tokens_BL == PADDING_ID)
    blank_B1 = torch.full_like(tokens_BL[:, :1], PADDING_ID)
    classes_BCD = output_VD[torch.cat([blank_B1, tokens_BL], dim=1)]
    logits_BFC = torch.bmm(outputs_BFD, classes_BCD.to(outputs_BFD.dtype).transpose(1, 2))
    is_absent_BC = F.pad(is_absent_BL, (1, 0), value=False)
    return logits_BFC.masked_fill(is_absent_BC[:, None], ABSENT_LOGIT), first_BL + 1


@dataclass(frozen=True)
class LogSumExpCriterion:
    """Sum of log Σ exp over the vocabulary, whose gradient by the logits are the probabilities."""

    uniform_mass: float = 0.0

    def write_gradient(self, logits_ZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int = 0) -> Sums:
        logsumexp = softmax_in_place(logits_ZV, needs_grad).sum()
        return logsumexp, logsumexp
