"""Sequence-level losses: the expected risk of whole outputs, mixed with the likelihood of the references.

The risk of a candidate y is 1 − GLEU(y, reference).

`minimum_risk` (Shen et al. 2016, equations 9 to 11): R = Σ_y Q(y)·risk(y) with Q(y) = P(y|x)^α / Σ_y' P(y'|x)^α over the
different candidates of a sentence. ∂R/∂log P(y|x) = α·Q(y)·(risk(y) − R).

`expected_gleu` (Wu et al. 2016, equation 8): E[risk(y)] over the model's distribution. Its gradient is estimated from K samples
as 1/(K−1) · Σ_k (risk(y_k) − mean risk) · ∇log P(y_k|x). Wu et al. divide by K, which makes the gradient smaller by 1 − 1/K.

Wu et al. add α times the likelihood of the references (equation 9), here `likelihood_weight`.

Shapes: B sentences, R candidates of all sentences, T target positions, X positions with a real token, Z those of a chunk, D
model width, V vocabulary size.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.data.padding import pad_sequences
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.experiments.risk_training.candidates import OutputCandidates, SequenceLossSettings, draw_candidates
from dragoman.experiments.risk_training.config import SequenceLossConfig
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.training.losses.chunked import Sums, chunked_loss, fold_output_bias, sum_dtype
from dragoman.training.losses.label_smoothing import batch_loss, softmax_in_place


def sequence_level_loss(
    model: Transformer, batch: Batch, settings: SequenceLossSettings, *, epsilon: float, smoothing_mode: str
) -> tuple[Tensor, Tensor]:
    """Return weight · risk + likelihood_weight · smoothed loss of the references, and their negative log-likelihood.

    The risk is summed over the sentences of the batch, the other two over the real target tokens, in nats. Only the loss has a
    gradient. The likelihood comes first, so that its dropout does not depend on the candidates.
    """
    config = settings.config
    with nullcontext() if config.reference_weight else torch.no_grad():
        reference_loss, nll = batch_loss(model, batch, epsilon=epsilon, smoothing_mode=smoothing_mode)
    loss = config.reference_weight * reference_loss
    if not config.weight:
        return loss, nll
    candidates = draw_candidates(model, batch, settings)
    return loss + config.weight * expected_risk(model, batch, candidates, config, start_id=settings.start_id), nll


def expected_risk(
    model: Transformer, batch: Batch, candidates: OutputCandidates, config: SequenceLossConfig, *, start_id: int
) -> Tensor:
    """Return the risk of the candidates, summed over the sentences, with its gradient or an estimate of it."""
    outputs_XD, targets_X, rows_X = _compute_outputs(model, batch, candidates, start_id)
    outputs_XD, output_VD = fold_output_bias(outputs_XD, model.output, model.output_bias)
    ones_X, nll_X = torch.ones(len(targets_X), device=targets_X.device), torch.empty(len(targets_X), device=targets_X.device)
    log_probs_R = None
    if config.objective == "minimum_risk":
        with torch.no_grad():
            chunked_loss(outputs_XD, output_VD, targets_X, _WeightedLikelihood(ones_X, nll_X), model.matmul)
        log_probs_R = -_sum_by_row(nll_X, rows_X, len(candidates.target_ids))
    risk, gradient_R = compute_risk(candidates, config, len(batch.source_BS), log_probs_R)
    # The sum of gradient · log-probability has the gradient of the risk. Its value is replaced by the risk.
    surrogate, _ = chunked_loss(outputs_XD, output_VD, targets_X, _WeightedLikelihood(-gradient_R[rows_X], nll_X), model.matmul)
    return surrogate + (risk - surrogate).detach()


def compute_risk(
    candidates: OutputCandidates, config: SequenceLossConfig, num_sentences: int, log_probs_R: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the risk, summed over the sentences, and its gradient by the log-probability of each candidate (R,).

    log_probs_R: log-probability of each candidate, which the objective expected_gleu does not need
    """
    risks_R, sentences_R = 1.0 - candidates.gleu_R, candidates.sentences_R
    if log_probs_R is None:
        counts_R = candidates.counts_R
        num_samples_R = _sum_by_row(counts_R, sentences_R, num_sentences)[sentences_R]
        means_B = _sum_by_row(risks_R * counts_R / num_samples_R, sentences_R, num_sentences)
        return means_B.sum(), counts_R / (num_samples_R - 1.0) * (risks_R - means_B[sentences_R])
    scaled_R = config.sharpness * log_probs_R
    max_B = torch.full((num_sentences,), float("-inf"), device=scaled_R.device)
    max_B = max_B.scatter_reduce(0, sentences_R, scaled_R, "amax")
    powers_R = (scaled_R - max_B[sentences_R]).exp()
    weights_R = powers_R / _sum_by_row(powers_R, sentences_R, num_sentences)[sentences_R]
    means_B = _sum_by_row(weights_R * risks_R, sentences_R, num_sentences)
    return means_B.sum(), config.sharpness * weights_R * (risks_R - means_B[sentences_R])


def _sum_by_row(values_X: Tensor, rows_X: Tensor, num_rows: int) -> Tensor:
    """Return the sum of the values of each row."""
    return values_X.new_zeros(num_rows).index_add(0, rows_X, values_X)


def _compute_outputs(
    model: Transformer, batch: Batch, candidates: OutputCandidates, start_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decoder's outputs at the tokens of all candidates (X, D), these tokens (X,) and their candidates (X,)."""
    device = batch.source_BS.device
    targets_RT = torch.from_numpy(pad_sequences(candidates.target_ids)).to(device)
    inputs = pad_sequences([ids[:-1] for ids in candidates.target_ids], prefix_id=start_id)
    inputs_RT = torch.from_numpy(inputs).to(device)
    state = model.start(batch.source_BS).select_sentences(candidates.sentences_R)
    outputs_RTD, _ = model.decoder(inputs_RT, state)
    positions_X = (targets_RT != PADDING_ID).flatten().nonzero().flatten()
    rows_X = positions_X // targets_RT.shape[1]
    return outputs_RTD.flatten(0, 1)[positions_X], targets_RT.flatten()[positions_X], rows_X


@dataclass(frozen=True, eq=False)
class _WeightedLikelihood:
    """Σ weight · −log p over the positions. The gradient by the logits is weight · (p − 1 for the target token).

    Tokens that a search never outputs have no probability, so that the probabilities are those of the search.

    nll_X: −log p of each position, which `chunked_loss` fills
    """

    weights_X: Tensor
    nll_X: Tensor
    uniform_mass: float = 0.0

    def write_gradient(self, logits_ZV: Tensor, targets_Z: Tensor, needs_grad: bool, start: int) -> Sums:
        """Replace the logits by the gradient if `needs_grad`, and return the weighted and the plain sum of −log p."""
        chunk = slice(start, start + len(targets_Z))
        logits_ZV[:, list(FORBIDDEN_IDS)] = float("-inf")
        target_logits_Z = logits_ZV.gather(1, targets_Z[:, None])[:, 0].to(sum_dtype(logits_ZV.dtype))
        logsumexp_Z = softmax_in_place(logits_ZV, needs_grad)
        nll_Z, weights_Z = logsumexp_Z - target_logits_Z, self.weights_X[chunk]
        self.nll_X[chunk] = nll_Z
        if needs_grad:
            rows_Z = torch.arange(len(targets_Z), device=targets_Z.device)
            logits_ZV[rows_Z, targets_Z] = ((-nll_Z).exp() - 1.0).to(logits_ZV.dtype)
            logits_ZV.mul_(weights_Z[:, None])
        return (weights_Z * nll_Z).sum(), nll_Z.sum()
