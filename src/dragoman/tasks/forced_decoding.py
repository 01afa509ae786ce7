"""Forced decoding: the scores of given targets, and the cross-attention of given outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dragoman.config import DecodingConfig
from dragoman.data.collate import collate
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.errors import BundleError
from dragoman.model.attention import Attention, record_attention
from dragoman.model.transformer import Transformer, check_predicts_by_steps
from dragoman.tasks.generation import OnProgress, batch_by_length


@torch.no_grad()
def score_pairs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    prompt: Sequence[int] = (),
    on_progress: OnProgress = lambda _: None,
) -> list[Hypothesis]:
    """Return each target as a scored hypothesis of its source (forced decoding). prompt: see `generate`

    Raises BundleError for a model that predicts all tokens at once.
    """
    check_predicts_by_steps(model, "the score of a given target")
    results: dict[int, Hypothesis] = {}
    penalty = LengthPenalty(config.length_penalty, config.alpha, len(prompt))
    lengths = [max(len(source), len(prompt) + len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    for indices in batch_by_length(lengths, config.batch_tokens):
        batch_targets = [targets[index] for index in indices]
        batch = collate(
            [sources[index] for index in indices], [[*prompt, *target] for target in batch_targets], start_id=start_id
        ).to(model.output.device)
        logits_BTV = model(batch.source_BS, batch.inputs_BT)[:, len(prompt) :]
        scored = score_targets(logits_BTV, batch_targets, end_id=END_ID, length_penalty=penalty)
        results.update(zip(indices, scored, strict=True))
        on_progress(len(indices))
    return [results[index] for index in range(len(sources))]


@torch.no_grad()
def compute_cross_attentions(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start_id: int,
    prompt: Sequence[int] = (),
    finished: Sequence[bool],
    batch_tokens: int = 4096,
    transform: Callable[[Tensor], Tensor] = lambda weights_LHTS: weights_LHTS,
) -> list[Tensor]:
    """Return the cross-attention weights of each pair: (layers, heads, T + 1, S), or T rows if the target is unfinished.

    prompt: see `generate`; its tokens have no rows
    finished: whether each target ends with the end token, which then has a row
    transform: applied to the weights of each pair; only its result is kept in memory

    Raises BundleError for a model without cross-attention, and for one that predicts all tokens at once.
    """
    check_predicts_by_steps(model, "an alignment")
    attentions = [module for name, module in model.decoder.named_modules() if name.endswith("cross_attention")]
    if not attentions:
        raise BundleError(
            "this model: the decoder has no attention to the source, so there are no alignments; use another model",
            code="no-cross-attention",
        )
    outputs = [target if has_end else target[:-1] for target, has_end in zip(targets, finished, strict=True)]
    lengths = [max(len(source), len(prompt) + len(target) + 1) for source, target in zip(sources, outputs, strict=True)]
    results: dict[int, Tensor] = {}
    for indices in batch_by_length(lengths, batch_tokens):
        batch_outputs = [[*prompt, *outputs[index]] for index in indices]
        batch = collate([sources[index] for index in indices], batch_outputs, start_id=start_id)
        batch = batch.to(model.output.device)
        with record_attention([module for module in attentions if isinstance(module, Attention)]) as weights:
            model(batch.source_BS, batch.inputs_BT)
        weights_BLHTS = torch.stack(weights, dim=1).float().cpu()
        for row, index in enumerate(indices):
            queries = slice(len(prompt), len(prompt) + len(outputs[index]) + 1)
            results[index] = transform(weights_BLHTS[row, :, :, queries, : len(sources[index])]).clone()
    return [results[index] for index in range(len(sources))]


def score_targets(
    logits_BTV: Tensor, targets: Sequence[Sequence[int]], *, end_id: int, length_penalty: LengthPenalty
) -> list[Hypothesis]:
    """Return each target as a hypothesis with the log-probabilities of its tokens and its end token.

    logits_BTV: the model's logits after the start token and each target token (teacher forcing)
    targets: ids without start and end token, at most T − 1 each
    """
    hypotheses = []
    for logits_TV, target in zip(logits_BTV, targets, strict=True):
        ids_T = torch.tensor([*target, end_id], device=logits_BTV.device)
        log_probs_TV = logits_TV[: len(ids_T)].float().log_softmax(dim=-1)
        token_log_probs = log_probs_TV.gather(1, ids_T[:, None])[:, 0].tolist()
        score = sum(token_log_probs) / length_penalty(float(len(ids_T)))
        hypotheses.append(Hypothesis(tuple(target), tuple(token_log_probs), score, True))
    return hypotheses
