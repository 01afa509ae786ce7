"""One hypothesis a sentence, token by token: the likeliest each time (greedy), or one drawn by chance (sampling)."""

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
    DecodingConstraints,
    LogitsMasker,
    Phrase,
    SentenceConstraints,
    contains_phrase,
)
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchState, StepFn
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating
from dragoman.decoding.topk import BlockLogSumExp, TopK, TorchTopK, topk

TokenSelector = Callable[[Tensor, Sequence[int], int, TopK], Tensor]
"""(logits_NV, the sentence of each row, length of the output with this token, how to find the best) → tokens_N."""

# Draws seldom fall beyond the likeliest so many tokens; where one does, the whole vocabulary is sorted.
SAMPLING_TOP_TOKENS = 256
# Stands for a token where nothing was allowed.
NO_TOKEN = -1


def argmax(logits_NV: Tensor, sentences: Sequence[int], length: int, topk_impl: TopK) -> Tensor:
    """Greedy search's choice."""
    return topk_impl.topk(logits_NV[:, None], None, 1)[:, 0]


def make_sampler(seeds: Sequence[int], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> TokenSelector:
    """Draw each token from the (sharpened, cut) distribution; the draw is a function of the sentence's seed and the length.

    top_k: only the k likeliest, 0 for all. top_p: then only the likeliest that together reach this much of the whole
    (Holtzman et al. 2020).
    """

    def draw_uniform(sentence: int, length: int) -> float:
        # Python's generator takes every bit of a seed, torch's only 32. 24 bits: none rounds up to 1 in float32.
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
    """The tokens at which the probabilities, the greatest first, pass this share of what top_k and top_p leave. → (N,)"""
    vocabulary = logits_NV.shape[1]
    count = min(vocabulary, max(num_candidates, top_k)) if logits_NV.device.type == "cpu" else vocabulary
    order_NX = topk(logits_NV[:, None], None, count)
    probs_NX = (logits_NV.gather(1, order_NX) - log_sum_N[:, None]).float().exp()
    if top_k:
        probs_NX[:, top_k:] = 0.0
    mass_before_NX = probs_NX.cumsum(-1) - probs_NX
    cumulative_NX = probs_NX.masked_fill(mass_before_NX >= top_p, 0.0).cumsum(-1)
    total_mass_N1 = cumulative_NX[:, -1:]
    is_exact_N1 = mass_before_NX[:, -1:] >= top_p  # all that is left of the vocabulary was looked at
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
    start_id: int,
    end_id: int,
    forbidden_ids: Sequence[int] = (),
    length_penalty: LengthPenalty,
    select_tokens: TokenSelector = argmax,
    device: torch.device,
    constraints: Sequence[SentenceConstraints] = (),
    decoding_constraints: DecodingConstraints = NO_DECODING_CONSTRAINTS,
    topk_impl: TopK | None = None,
    compaction_threshold: float = 0.0,
) -> list[Hypothesis]:
    """Extend each sentence by the chosen token until its end token or its limit (tokens, the end token included).

    limits: at least one token each. `forbidden` tokens are never chosen
    wishes: one for each sentence, or none at all; a phrase can be placed by a beam only, and is named as missing here
    ranking: PyTorch's where none is given
    leaving: sentences that are done leave the batch together once they are this share of it; 0: at once, 1: all at the end
    """
    assert min(max_lengths, default=1) >= 1
    constraints = constraints or [NO_SENTENCE_CONSTRAINTS] * len(max_lengths)
    assert all(len(wish.prefix) < limit for wish, limit in zip(constraints, max_lengths, strict=True)), (
        "a prefix beyond its limit"
    )
    topk_impl = topk_impl or TorchTopK()
    masker = LogitsMasker(
        decoding_constraints, constraints, forbidden_ids=forbidden_ids, end_id=end_id, rows_per_sentence=1, device=device
    )
    may_have_no_token = decoding_constraints != NO_DECODING_CONSTRAINTS or any(
        wish != NO_SENTENCE_CONSTRAINTS for wish in constraints
    )
    output_ids: list[list[int]] = [[] for _ in max_lengths]
    done: dict[int, bool] = {}  # the sentences that are done, and whether they looped
    active = list(range(len(max_lengths)))
    active_by_step: list[list[int]] = []
    log_probs: list[Tensor] = []
    last_N = torch.full((len(max_lengths),), start_id, dtype=torch.long, device=device)
    step_outputs: list[Tensor] = []  # what the rows have said at each step, where somebody asks
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
        kept_rows = [row for row, number in enumerate(active) if number not in done] if done else active
        if kept_rows and len(kept_rows) < len(active) and len(active) - len(kept_rows) >= compaction_threshold * len(active):
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
            tokens, sentence_log_probs, done[number], end_id=end_id, length_penalty=length_penalty, include=wish.include
        )
        for number, (tokens, sentence_log_probs, wish) in enumerate(zip(output_ids, token_log_probs, constraints, strict=True))
    ]


def _stack_outputs(outputs: Sequence[Tensor], logits_NV: Tensor) -> Tensor:
    """(N, T)"""
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
    """What was said, up to the end token, or to STUCK where nothing was allowed.

    log_probs: those of the tokens, and what was said while the sentence waited to leave. include: phrases that it was to hold
    """
    length = len(tokens) - (tokens[-1] == NO_TOKEN)
    finished = tokens[-1] == end_id
    output_ids, token_log_probs = tuple(tokens[: length - finished]), tuple(log_probs[:length])
    unmet_constraints = tuple(phrase for phrase in include if not contains_phrase(output_ids, phrase))
    score = sum(token_log_probs) / length_penalty(float(max(length, 1)))
    return Hypothesis(output_ids, token_log_probs, score, finished, has_repetition, unmet_constraints)
