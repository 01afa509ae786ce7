"""Greedy search and sampling: one hypothesis a sentence, one token at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from dragoman.decoding.constraints import (
    NEG_INF,
    NO_DECODING_CONSTRAINTS,
    NO_SENTENCE_CONSTRAINTS,
    LogitsMasker,
    Phrase,
    SentenceConstraints,
    check_prefixes,
    contains_phrase,
)
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings, SearchState, StepFn
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating
from dragoman.decoding.topk import BlockLogSumExp, TopK, TorchTopK, topk

TokenSelector = Callable[[Tensor, Sequence[int], int, TopK], Tensor]
"""(logits_NV, index of each row's sentence, output length with the new token, top-k implementation) → tokens_N."""

# Number of most probable tokens that sampling sorts; it sorts the whole vocabulary only if a draw falls beyond them.
SAMPLING_TOP_TOKENS = 256
# Marks a step at which no token was allowed.
NO_TOKEN = -1


def argmax(logits_NV: Tensor, sentences: Sequence[int], length: int, topk_impl: TopK) -> Tensor:
    """Return the most probable token of each row, the choice of greedy search."""
    return topk_impl.topk(logits_NV[:, None], None, 1)[:, 0]


def make_sampler(seeds: Sequence[int], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> TokenSelector:
    """Return a selector that samples each token; a draw depends only on the seed of the sentence and the output length.

    seeds: one for each sentence
    temperature: divides the logits
    top_k: samples among the k most probable tokens; 0 uses all
    top_p: then samples among the most probable tokens whose probabilities sum to p (nucleus sampling, Holtzman et al. 2020)
    """

    def draw_uniform(sentence: int, length: int) -> float:
        # Python's generator reads every bit of a seed, torch's only 32. A draw of 24 bits never rounds up to 1 in float32.
        return random.Random(f"{seeds[sentence]} {length}").getrandbits(24) / 2**24

    def select_tokens(logits_NV: Tensor, sentences: Sequence[int], length: int, topk_impl: TopK) -> Tensor:
        uniform_N = torch.tensor([draw_uniform(sentence, length) for sentence in sentences], device=logits_NV.device)
        scaled_NV = logits_NV if temperature == 1.0 else logits_NV / temperature
        return sample_tokens(scaled_NV, logsumexp(scaled_NV), uniform_N, top_k=top_k, top_p=top_p)

    logsumexp = BlockLogSumExp()
    return select_tokens


def sample_tokens(
    logits_NV: Tensor,
    log_sum_N: Tensor,
    uniform_N: Tensor,
    *,
    top_k: int,
    top_p: float,
    num_candidates: int = SAMPLING_TOP_TOKENS,
) -> Tensor:
    """Return the tokens at which the cumulative probability, in descending order, exceeds `uniform_N`. → (N,)

    log_sum_N: log Σ exp of the logits
    uniform_N: draws in [0, 1), as a fraction of the probability mass that top_k and top_p keep
    num_candidates: number of most probable tokens to sort at first; on a GPU the whole vocabulary is sorted
    """
    vocabulary = logits_NV.shape[1]
    count = min(vocabulary, max(num_candidates, top_k)) if logits_NV.device.type == "cpu" else vocabulary
    order_NX = topk(logits_NV[:, None], None, count)
    probs_NX = (logits_NV.gather(1, order_NX) - log_sum_N[:, None]).float().exp()
    if top_k:
        probs_NX[:, top_k:] = 0.0
    mass_before_NX = probs_NX.cumsum(-1) - probs_NX
    cumulative_NX = probs_NX.masked_fill(mass_before_NX >= top_p, 0.0).cumsum(-1)
    total_mass_N1 = cumulative_NX[:, -1:]
    is_exact_N1 = mass_before_NX[:, -1:] >= top_p  # the sorted tokens include all that top_p keeps
    if count == vocabulary or top_k:
        is_exact_N1 = torch.ones_like(is_exact_N1)
    elif top_p == 1.0:
        is_exact_N1, total_mass_N1 = uniform_N[:, None] < total_mass_N1, torch.ones_like(total_mass_N1)
    rank_N1 = torch.searchsorted(cumulative_NX, total_mass_N1 * uniform_N[:, None], right=True).clamp(max=count - 1)
    token_N = order_NX.gather(1, rank_N1)[:, 0]
    if count < vocabulary and not bool(is_exact_N1.all()):
        inexact_rows = (~is_exact_N1[:, 0]).nonzero()[:, 0]
        subset = (logits_NV[inexact_rows], log_sum_N[inexact_rows], uniform_N[inexact_rows])
        token_N[inexact_rows] = sample_tokens(*subset, top_k=top_k, top_p=top_p, num_candidates=vocabulary)
    return token_N


@torch.no_grad()
def decode_tokens(
    step: StepFn,
    state: SearchState,
    *,
    max_lengths: Sequence[int],
    settings: SearchSettings,
    device: torch.device,
    select_tokens: TokenSelector = argmax,
    constraints: Sequence[SentenceConstraints] = (),
    topk_impl: TopK | None = None,
) -> list[Hypothesis]:
    """Return one hypothesis for each sentence: greedy search, or sampling if `select_tokens` samples.

    step: reads one token a sentence
    state: state of the sentences before the first step
    max_lengths: maximum output length of each sentence in tokens, the end token included; at least 1
    constraints: one for each sentence, or empty. Only beam search enforces required phrases; here missing ones are reported
    topk_impl: PyTorch's by default
    """
    assert min(max_lengths, default=1) >= 1
    end_id, decoding_constraints = settings.end_id, settings.decoding_constraints
    constraints = constraints or [NO_SENTENCE_CONSTRAINTS] * len(max_lengths)
    check_prefixes(constraints, max_lengths)
    topk_impl = topk_impl or TorchTopK()
    masker = LogitsMasker(
        decoding_constraints,
        constraints,
        forbidden_ids=settings.forbidden_ids,
        end_id=end_id,
        rows_per_sentence=1,
        device=device,
    )
    may_have_no_token = decoding_constraints != NO_DECODING_CONSTRAINTS or any(
        sentence != NO_SENTENCE_CONSTRAINTS for sentence in constraints
    )
    output_ids: list[list[int]] = [[] for _ in max_lengths]
    done: dict[int, bool] = {}  # done sentences, and whether each was stopped because of a repetition
    active = list(range(len(max_lengths)))
    active_by_step: list[list[int]] = []
    log_probs: list[Tensor] = []
    last_N = torch.full((len(max_lengths),), settings.start_id, dtype=torch.long, device=device)
    step_outputs: list[Tensor] = []  # tokens of each step, if a constraint reads them
    while len(done) < len(max_lengths):
        length = len(active_by_step) + 1
        logits_NV, state = step(last_N, state)
        logits_NV = logits_NV.float()
        log_sum_N = topk_impl.logsumexp(logits_NV)
        masker(logits_NV, _stack_outputs(step_outputs, logits_NV) if masker.needs_outputs else None, length)
        last_N = select_tokens(logits_NV, active, length, topk_impl)
        log_prob_N = (logits_NV.gather(1, last_N[:, None])[:, 0] - log_sum_N).float()
        active_by_step.append(active)
        log_probs.append(log_prob_N)
        step_tokens = (last_N.where(log_prob_N > NEG_INF, NO_TOKEN) if may_have_no_token else last_N).tolist()
        repeating = [False] * len(active)
        if masker.needs_outputs or decoding_constraints.repetition_window:
            step_outputs.append(last_N)
        if decoding_constraints.repetition_window and length % CHECK_INTERVAL == 0:
            repeating = is_repeating(_stack_outputs(step_outputs, logits_NV), decoding_constraints.repetition_window).tolist()
        for sentence, token, repeats in zip(active, step_tokens, repeating, strict=True):
            if sentence not in done:
                output_ids[sentence].append(token)
                repeats = repeats and not constraints[sentence].allow_repetition
                if token in (end_id, NO_TOKEN) or repeats or max_lengths[sentence] == length:
                    done[sentence] = repeats
        kept_rows = [row for row, sentence in enumerate(active) if sentence not in done] if done else active
        num_done = len(active) - len(kept_rows)
        if kept_rows and num_done and num_done >= settings.compaction_threshold * len(active):
            kept_rows_N = torch.tensor(kept_rows, device=device)
            state, last_N = state.select_sentences(kept_rows_N), last_N[kept_rows_N]
            step_outputs = [output_N[kept_rows_N] for output_N in step_outputs]
            masker.select_sentences(kept_rows_N)
            active = [active[row] for row in kept_rows]
    token_log_probs: list[list[float]] = [[] for _ in max_lengths]
    for sentence, log_prob in zip(chain(*active_by_step), torch.cat(log_probs).tolist() if log_probs else [], strict=True):
        token_log_probs[sentence].append(log_prob)
    return [
        to_hypothesis(
            output_ids[index],
            token_log_probs[index],
            done[index],
            end_id=end_id,
            length_penalty=settings.length_penalty,
            include=sentence.include,
        )
        for index, sentence in enumerate(constraints)
    ]


def _stack_outputs(outputs: Sequence[Tensor], logits_NV: Tensor) -> Tensor:
    """Return the tokens of all steps so far. → (N, T)"""
    return (
        torch.stack(list(outputs), dim=1)
        if outputs
        else torch.empty(len(logits_NV), 0, dtype=torch.long, device=logits_NV.device)
    )


def to_hypothesis(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    has_repetition: bool,
    *,
    end_id: int,
    length_penalty: LengthPenalty,
    include: Sequence[Phrase] = (),
) -> Hypothesis:
    """Return the hypothesis that ends with the end token, the last token, or before NO_TOKEN.

    log_probs: those of the tokens; those of later steps, while the sentence was still in the batch, may follow
    include: required phrases
    """
    length = len(tokens) - (tokens[-1] == NO_TOKEN)
    finished = tokens[-1] == end_id
    output_ids, token_log_probs = tuple(tokens[: length - finished]), tuple(log_probs[:length])
    unmet_constraints = tuple(phrase for phrase in include if not contains_phrase(output_ids, phrase))
    score = sum(token_log_probs) / length_penalty(float(max(length, 1)))
    return Hypothesis(output_ids, token_log_probs, score, finished, has_repetition, unmet_constraints)
