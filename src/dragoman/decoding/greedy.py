"""Greedy search and sampling: one hypothesis a sentence, one token at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.constraints import (
    NEG_INF,
    NO_DECODING_CONSTRAINTS,
    NO_SENTENCE_CONSTRAINTS,
    LogitsMasker,
    SentenceConstraints,
    check_prefixes,
)
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings, SearchState, StepFn
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating, penalize_repeated_tokens
from dragoman.decoding.topk import BlockTopK, TopK

TokenSelector = Callable[[Array, Sequence[int], int, TopK], Array]
"""(logits_NV, index of each row's sentence, output length with the new token, top-k implementation) → tokens_N."""

# Number of most probable tokens that sampling sorts; it sorts the whole vocabulary only if a draw falls beyond them.
SAMPLING_TOP_TOKENS = 256
# Marks a step at which no token was allowed.
NO_TOKEN = -1


def argmax(logits_NV: Array, sentences: Sequence[int], length: int, topk_impl: TopK) -> Array:
    """Return the most probable token of each row, the choice of greedy search."""
    return topk_impl.topk(logits_NV[:, None], None, 1)[:, 0]


def make_sampler(
    seeds: Sequence[int], arrays: Arrays, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> TokenSelector:
    """Return a selector that samples each token; a draw depends only on the seed of the sentence and the output length.

    seeds: one for each sentence
    temperature: divides the logits
    top_k: samples among the k most probable tokens; 0 uses all
    top_p: then samples among the most probable tokens whose probabilities sum to p (nucleus sampling, Holtzman et al. 2020)
    """

    def draw_uniform(sentence: int, length: int) -> float:
        # Python's generator reads every bit of a seed, torch's only 32. A draw of 24 bits never rounds up to 1 in float32.
        return random.Random(f"{seeds[sentence]} {length}").getrandbits(24) / 2**24

    def select_tokens(logits_NV: Array, sentences: Sequence[int], length: int, topk_impl: TopK) -> Array:
        uniform_N = arrays.asarray([draw_uniform(sentence, length) for sentence in sentences], arrays.xp.float32)
        scaled_NV = logits_NV if temperature == 1.0 else logits_NV / temperature
        return sample_tokens(scaled_NV, topk_impl.logsumexp(scaled_NV), uniform_N, topk, top_k=top_k, top_p=top_p)

    topk = BlockTopK(arrays)  # for hundreds of tokens; other implementations may be made for few
    return select_tokens


def sample_tokens(
    logits_NV: Array,
    log_sum_N: Array,
    uniform_N: Array,
    topk: BlockTopK,
    *,
    top_k: int,
    top_p: float,
    num_candidates: int = SAMPLING_TOP_TOKENS,
) -> Array:
    """Return the tokens at which the cumulative probability, in descending order, exceeds `uniform_N`. → (N,)

    log_sum_N: log Σ exp of the logits
    uniform_N: draws in [0, 1), as a fraction of the probability mass that top_k and top_p keep
    num_candidates: number of most probable tokens to sort at first; on a GPU the whole vocabulary is sorted
    """
    arrays, xp, vocabulary = topk.arrays, topk.arrays.xp, logits_NV.shape[1]
    count = min(vocabulary, max(num_candidates, top_k)) if arrays.is_on_cpu else vocabulary
    order_NX = topk.topk(logits_NV[:, None], None, count)
    probs_NX = xp.exp(arrays.cast(arrays.take(logits_NV, order_NX) - log_sum_N[:, None], xp.float32))
    if top_k:
        probs_NX[:, top_k:] = 0.0
    mass_before_NX = arrays.cumsum(probs_NX) - probs_NX
    probs_NX[mass_before_NX >= top_p] = 0.0
    cumulative_NX = arrays.cumsum(probs_NX)
    total_mass_N1 = cumulative_NX[:, -1:]
    is_exact_N1 = mass_before_NX[:, -1:] >= top_p  # the sorted tokens include all that top_p keeps
    if count == vocabulary or top_k:
        is_exact_N1 = xp.ones_like(is_exact_N1)
    elif top_p == 1.0:
        is_exact_N1, total_mass_N1 = uniform_N[:, None] < total_mass_N1, xp.ones_like(total_mass_N1)
    rank_N = (cumulative_NX <= total_mass_N1 * uniform_N[:, None]).sum(-1).clip(max=count - 1)
    token_N = arrays.take(order_NX, rank_N[:, None])[:, 0]
    if count < vocabulary and not bool(is_exact_N1.all()):
        inexact_rows = xp.argwhere(~is_exact_N1[:, 0])[:, 0]
        subset = (logits_NV[inexact_rows], log_sum_N[inexact_rows], uniform_N[inexact_rows])
        token_N[inexact_rows] = sample_tokens(*subset, topk, top_k=top_k, top_p=top_p, num_candidates=vocabulary)
    return token_N


def decode_tokens(
    step: StepFn,
    state: SearchState,
    *,
    max_lengths: Sequence[int],
    settings: SearchSettings,
    arrays: Arrays,
    select_tokens: TokenSelector = argmax,
    constraints: Sequence[SentenceConstraints] = (),
    topk_impl: TopK | None = None,
) -> list[Hypothesis]:
    """Return one hypothesis for each sentence: greedy search, or sampling if `select_tokens` samples.

    step: reads one token a sentence
    state: state of the sentences before the first step
    arrays: those that the step reads and returns
    max_lengths: maximum output length of each sentence in tokens, the end token included; at least 1
    constraints: one for each sentence, or empty. Only beam search enforces required phrases
    topk_impl: `BlockTopK` by default
    """
    assert min(max_lengths, default=1) >= 1
    batch = _TokenBatch(
        settings,
        constraints or [NO_SENTENCE_CONSTRAINTS] * len(max_lengths),
        max_lengths=max_lengths,
        select_tokens=select_tokens,
        topk_impl=topk_impl or BlockTopK(arrays),
        arrays=arrays,
    )
    last_N = arrays.full((len(max_lengths),), settings.start_id, arrays.xp.int64)
    while len(batch.done) < len(max_lengths):
        logits_NV, state = step(last_N, state)
        last_N = batch.step(logits_NV)
        rows_N = batch.compact(settings.compaction_threshold)
        if rows_N is not None:
            state, last_N = state.select_sentences(rows_N), last_N[rows_N]
    return batch.collect_results()


class _TokenBatch:
    """State of the search for the sentences that are still in the batch, one row a sentence.

    active: index of each row's sentence among all sentences
    done: done sentences, and whether each was stopped because of a repetition
    output_ids: tokens of each sentence
    step_log_probs: for each step, the sentences in the batch and the log-probability of each token (N,)
    step_outputs: tokens of each step (N,), if a constraint reads them
    """

    def __init__(
        self,
        settings: SearchSettings,
        constraints: Sequence[SentenceConstraints],
        *,
        max_lengths: Sequence[int],
        select_tokens: TokenSelector,
        topk_impl: TopK,
        arrays: Arrays,
    ) -> None:
        check_prefixes(constraints, max_lengths)
        self.settings, self.constraints, self.max_lengths = settings, constraints, max_lengths
        self.select_tokens, self.topk_impl, self.arrays = select_tokens, topk_impl, arrays
        self.repetition_window = settings.decoding_constraints.repetition_window
        self.masker = LogitsMasker(
            settings.decoding_constraints,
            constraints,
            max_lengths=max_lengths,
            forbidden_ids=settings.forbidden_ids,
            end_id=settings.end_id,
            rows_per_sentence=1,
            arrays=arrays,
        )
        self.may_have_no_token = settings.decoding_constraints != NO_DECODING_CONSTRAINTS or any(
            sentence != NO_SENTENCE_CONSTRAINTS for sentence in constraints
        )
        self.active = list(range(len(max_lengths)))
        self.done: dict[int, bool] = {}
        self.output_ids: list[list[int]] = [[] for _ in max_lengths]
        self.step_log_probs: list[tuple[list[int], Array]] = []
        self.step_outputs: list[Array] = []

    def step(self, logits_NV: Array) -> Array:
        """Extend each output by one token, and return the tokens. → (N,)"""
        length = len(self.step_log_probs) + 1
        arrays, xp = self.arrays, self.arrays.xp
        logits_NV = arrays.cast(logits_NV, xp.float32)
        log_sum_N = self.topk_impl.logsumexp(logits_NV)
        model_logits_NV = logits_NV
        if self.settings.repetition_penalty != 1.0:
            model_logits_NV = xp.asarray(logits_NV, copy=True)
            penalize_repeated_tokens(logits_NV, self._stack_outputs(), self.settings.repetition_penalty, arrays)
        self.masker(logits_NV, self._stack_outputs() if self.masker.needs_outputs else None, length)
        token_N = self.select_tokens(logits_NV, self.active, length, self.topk_impl)
        positions = arrays.arange(len(token_N)), token_N
        log_prob_N = arrays.cast(model_logits_NV[positions] - log_sum_N, xp.float32)
        if model_logits_NV is not logits_NV:
            log_prob_N[logits_NV[positions] == NEG_INF] = NEG_INF
        self.step_log_probs.append((self.active, log_prob_N))
        if self.masker.needs_outputs or self.repetition_window or self.settings.repetition_penalty != 1.0:
            self.step_outputs.append(token_N)
        repeating = [False] * len(self.active)
        if self.repetition_window and length % CHECK_INTERVAL == 0:
            outputs_NT = self._stack_outputs()
            repeating_N = is_repeating(outputs_NT, self.repetition_window, arrays)
            repeating = (repeating_N & ~self.masker.find_incomplete(outputs_NT)).tolist()
        tokens = (xp.where(log_prob_N > NEG_INF, token_N, NO_TOKEN) if self.may_have_no_token else token_N).tolist()
        for sentence, token, repeats in zip(self.active, tokens, repeating, strict=True):
            if sentence not in self.done:
                self.output_ids[sentence].append(token)
                repeats = repeats and not self.constraints[sentence].allow_repetition
                if token in (self.settings.end_id, NO_TOKEN) or repeats or self.max_lengths[sentence] == length:
                    self.done[sentence] = repeats
        return token_N

    def _stack_outputs(self) -> Array:
        """Return the tokens of all steps so far. → (N, T)"""
        if not self.step_outputs:
            return self.arrays.full((len(self.active), 0), 0, self.arrays.xp.int64)
        return self.arrays.xp.stack(self.step_outputs, axis=1)

    def compact(self, compaction_threshold: float) -> Array | None:
        """Drop the done sentences if they make up `compaction_threshold` of the batch.

        Return the rows of the remaining sentences (N,), or None if all remain.
        """
        rows = [row for row, sentence in enumerate(self.active) if sentence not in self.done] if self.done else self.active
        num_done = len(self.active) - len(rows)
        if not rows or not num_done or num_done < compaction_threshold * len(self.active):
            return None
        rows_N = self.arrays.asarray(rows, self.arrays.xp.int64)
        self.step_outputs = [token_N[rows_N] for token_N in self.step_outputs]
        self.masker.select_sentences(rows_N)
        self.active = [self.active[row] for row in rows]
        return rows_N

    def collect_results(self) -> list[Hypothesis]:
        """Return the hypothesis of each sentence."""
        token_log_probs: list[list[float]] = [[] for _ in self.max_lengths]
        if self.step_log_probs:
            sentences, log_probs = zip(*self.step_log_probs, strict=True)
            for sentence, log_prob in zip(chain(*sentences), self.arrays.xp.concat(log_probs).tolist(), strict=True):
                token_log_probs[sentence].append(log_prob)
        return [
            to_hypothesis(
                self.output_ids[index],
                token_log_probs[index],
                self.done[index],
                end_id=self.settings.end_id,
                length_penalty=self.settings.length_penalty,
            )
            for index in range(len(self.constraints))
        ]


def to_hypothesis(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    has_repetition: bool,
    *,
    end_id: int,
    length_penalty: LengthPenalty,
) -> Hypothesis:
    """Return the hypothesis that ends with the end token, the last token, or before NO_TOKEN.

    log_probs: those of the tokens; those of later steps, while the sentence was still in the batch, may follow
    """
    length = len(tokens) - (tokens[-1] == NO_TOKEN)
    finished = tokens[-1] == end_id
    output_ids, token_log_probs = tuple(tokens[: length - finished]), tuple(log_probs[:length])
    score = sum(token_log_probs) / length_penalty(float(max(length, 1)))
    return Hypothesis(output_ids, token_log_probs, score, finished, has_repetition)
