"""Beam search as tensor2tensor 1.0.3 ran it for the paper (section 6.1), a pure function of a step.

Each sentence has R alive and R finished hypotheses. Each step takes the 2R best extensions. Those that end compete by score for
the finished slots, and the R best of the others stay alive. A sentence is done at its length limit, or earlier if no alive
hypothesis can still win.

A beam can be divided into G groups. Each group is searched like a sentence of its own, so B sentences take G · B rows of state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.beam_history import BeamHistory, FinishedSentence, NodeRef, finalize
from dragoman.decoding.constraints import (
    NEG_INF,
    NO_SENTENCE_CONSTRAINTS,
    LogitsMasker,
    SentenceConstraints,
    check_prefixes,
    force_tokens,
)
from dragoman.decoding.diverse_beam import SINGLE_GROUP, BeamGroups, diverse_candidates, merge_groups
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings, SearchState, StepFn
from dragoman.decoding.phrase_constraints import PhraseConstraints, select_feasible_groups
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating, penalize_repeated_tokens
from dragoman.decoding.topk import BlockTopK, Candidates, TopK, find_best_candidates


@dataclass(frozen=True, kw_only=True)
class BeamSearchOptions:
    """Width of a beam, its groups, and the rule that ends the search of a sentence.

    beam_size: hypotheses of each sentence; a multiple of the number of groups
    nbest: number of hypotheses that the caller uses
    early_stopping: condition that ends the search of a sentence before its length limit
        `exhaustive`: `beam_size` are finished, and no alive hypothesis can beat the worst of them
        `worst_finished`: no alive hypothesis can beat the worst finished one so far, of any number (tensor2tensor 1.0.3)
        `best`: no alive hypothesis can beat the finished one of rank `nbest` (later versions of tensor2tensor)
        `beam_full`: all finished slots are taken; only ends among the R best extensions compete (fairseq, CTranslate2)
        `heuristic`: as `exhaustive` with the penalty of the present length, which may end before a longer output wins; only
            ends among the R best extensions compete (Hugging Face with `early_stopping=False`)
    groups: a diversity penalty excludes required phrases
    """

    beam_size: int
    nbest: int = 1
    early_stopping: str = "exhaustive"
    groups: BeamGroups = SINGLE_GROUP


@dataclass(frozen=True)
class BeamStep:
    """One step of a beam search, as the `on_step` hook receives it. B counts the groups of the sentences in the batch.

    length: number of output tokens after this step
    sentences: index of each sentence of the batch in the call
    candidates: the X best extensions, best first
    ends_BX: whether a candidate ends and competes for the finished slots
    alive_BR: columns of the candidates that stay in the beam
    alive_score_BR: their log-probabilities; -inf marks an empty slot
    """

    length: int
    sentences: Sequence[int]
    candidates: Candidates
    ends_BX: Array
    alive_BR: Array
    alive_score_BR: Array


def beam_search(
    step: StepFn,
    state: SearchState,
    *,
    max_lengths: Sequence[int],
    settings: SearchSettings,
    options: BeamSearchOptions,
    arrays: Arrays,
    constraints: Sequence[SentenceConstraints] = (),
    topk_impl: TopK | None = None,
    on_step: Callable[[BeamStep], None] | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence, best first; unfinished hypotheses follow the finished ones.

    step: reads N = B · beam_size tokens; the hypotheses of a sentence are adjacent rows
    state: state of B sentences before the first step
    arrays: those that the step reads and returns
    max_lengths: maximum output length of each sentence in tokens, the end token included; at least 1
    constraints: one for each sentence, or empty
    topk_impl: `BlockTopK` by default
    on_step: receives each step, before hypotheses that repeat themselves leave the beam
    """
    num_groups, beam_size = options.groups.num_groups, options.beam_size
    assert min(max_lengths, default=1) >= 1
    assert beam_size % num_groups == 0
    if not max_lengths:
        return []
    sentence_constraints = constraints or [NO_SENTENCE_CONSTRAINTS] * len(max_lengths)
    beam = _Beam(
        settings,
        options,
        max_lengths=[max_length for max_length in max_lengths for _ in range(num_groups)],
        constraints=[sentence for sentence in sentence_constraints for _ in range(num_groups)],
        topk_impl=topk_impl or BlockTopK(arrays),
        arrays=arrays,
        on_step=on_step,
    )
    last_N = arrays.full((len(max_lengths) * beam_size,), settings.start_id, arrays.xp.int64)
    while True:
        logits_NV, state = step(last_N, state)
        rows_N, last_N = beam.step(logits_NV)
        if all(beam.done):
            return beam.collect_results()
        state = state.reorder(rows_N)
        kept = beam.compact(settings.compaction_threshold)
        if kept is not None:
            sentences_B, kept_rows_N = kept
            state, last_N = state.select_sentences(sentences_B), last_N[kept_rows_N]


class _Beam:
    """State of the search for the sentences that are still in the batch; with groups, B counts groups.

    score_BR: log-probability of each alive hypothesis; -inf marks an empty slot
    finished_score_BR: log-probability over length penalty of each finished hypothesis; -inf marks an empty slot
    finished_node_id_BR: their node ids, length · X + column for X candidates a step
    outputs_NT: tokens of the alive hypotheses; None if no constraint reads them
    active, done: index of each row's sentence among all sentences, and whether it is done
    """

    def __init__(
        self,
        settings: SearchSettings,
        options: BeamSearchOptions,
        *,
        max_lengths: Sequence[int],
        constraints: Sequence[SentenceConstraints],
        topk_impl: TopK,
        arrays: Arrays,
        on_step: Callable[[BeamStep], None] | None,
    ) -> None:
        check_prefixes(constraints, max_lengths)
        num_sentences, group_size = len(max_lengths), options.beam_size // options.groups.num_groups
        self.max_lengths, self.constraints = max_lengths, constraints
        self.end_id, self.length_penalty = settings.end_id, settings.length_penalty
        self.decoding_constraints, self.repetition_penalty = settings.decoding_constraints, settings.repetition_penalty
        self.groups, self.group_size = options.groups, group_size
        self.topk_impl, self.arrays, self.on_step = topk_impl, arrays, on_step
        xp = arrays.xp
        needs_all_slots = options.early_stopping in ("exhaustive", "heuristic")
        self.threshold_rank = (group_size if needs_all_slots else min(options.nbest, group_size)) - 1
        self.stops_at_worst_finished = options.early_stopping == "worst_finished"
        self.stop_when_full = options.early_stopping == "beam_full"
        self.uses_present_length = options.early_stopping == "heuristic"
        self.only_best_may_end = options.early_stopping in ("beam_full", "heuristic")
        self.length = 0
        self.active, self.done = list(range(num_sentences)), [False] * num_sentences
        self.batch_rows = np.arange(num_sentences)
        self.max_penalty_B = self.length_penalty(arrays.asarray(list(max_lengths), xp.float32))
        self.first_row_B1 = arrays.arange(num_sentences)[:, None] * group_size
        self.score_BR = arrays.full((num_sentences, group_size), NEG_INF, xp.float32)
        self.score_BR[:, 0] = 0.0
        self.finished_score_BR = arrays.full((num_sentences, group_size), NEG_INF, xp.float32)
        self.finished_node_id_BR = arrays.full((num_sentences, group_size), 0, xp.int64)
        self.history = BeamHistory(arrays)
        self.finished_sentences: dict[int, FinishedSentence] = {}
        self.repetition_nodes: dict[int, list[tuple[float, NodeRef]]] = {}
        self.masker = LogitsMasker(
            settings.decoding_constraints,
            constraints,
            max_lengths=max_lengths,
            forbidden_ids=settings.forbidden_ids,
            end_id=settings.end_id,
            rows_per_sentence=group_size,
            num_groups=options.groups.num_groups,
            arrays=arrays,
        )
        self.phrase_constraints: PhraseConstraints | None = None
        if any(sentence.include for sentence in constraints):
            assert not options.groups.diversity_penalty, "required phrases exclude a diversity penalty"
            self.phrase_constraints = self._build_phrase_constraints(settings)
        self.outputs_NT: Array | None = None
        if self.masker.needs_outputs or settings.decoding_constraints.repetition_window or settings.repetition_penalty != 1.0:
            self.outputs_NT = arrays.full((num_sentences * group_size, 0), 0, xp.int64)

    def _build_phrase_constraints(self, settings: SearchSettings) -> PhraseConstraints | None:
        """Return the phrases that the search looks for; None if other constraints exclude all of them."""
        feasible_groups = [
            select_feasible_groups(
                sentence,
                settings.decoding_constraints,
                forbidden_ids=settings.forbidden_ids,
                end_id=settings.end_id,
                max_length=max_length,
            )
            for sentence, max_length in zip(self.constraints, self.max_lengths, strict=True)
        ]
        if not any(feasible_groups):
            return None
        return PhraseConstraints(
            feasible_groups,
            group_size=self.group_size,
            end_id=self.end_id,
            topk_impl=self.topk_impl,
            arrays=self.arrays,
        )

    def step(self, logits_NV: Array) -> tuple[Array, Array]:
        """Extend the hypotheses by one token. Return the former row of each new row (N,) and the new last tokens (N,)."""
        self.length += 1
        take = self.arrays.take
        logits_NV = self.arrays.cast(logits_NV, self.arrays.xp.float32)
        log_sum_BR = self.topk_impl.logsumexp(logits_NV).reshape(-1, self.group_size)
        expanded = self._expand_with_limits(logits_NV, log_sum_BR)
        is_end_BX = expanded.token_BX == self.end_id
        ends_BX = self._add_finished(expanded, is_end_BX)
        alive_BR = self._select_alive(expanded, is_end_BX)
        rows_N = (take(expanded.parent_BX, alive_BR) + self.first_row_B1).reshape(-1)
        last_N = take(expanded.token_BX, alive_BR).reshape(-1)
        self.history.add(expanded.parent_BX, expanded.token_BX, expanded.log_prob_BX, alive_BR, self.batch_rows)
        if self.on_step is not None:
            sentences = [index // self.groups.num_groups for index in self.active]
            self.on_step(BeamStep(self.length, sentences, expanded, ends_BX, alive_BR, self.score_BR))
        if self.outputs_NT is not None:
            self.outputs_NT = self.arrays.xp.concat([self.outputs_NT[rows_N], last_N[:, None]], axis=1)
            if self.decoding_constraints.repetition_window and self.length % CHECK_INTERVAL == 0:
                self._stop_repetitions(self.outputs_NT, alive_BR)
        self._record_finished(alive_BR)
        return rows_N, last_N

    def _expand_with_limits(self, logits_NV: Array, log_sum_BR: Array) -> Candidates:
        """Return the best extensions under the repetition penalty and the constraints.

        The penalty is a part of the scores. The token log-probabilities stay those of the model.
        """
        model_logits_BRV = None
        search_log_sum_BR = log_sum_BR
        if self.repetition_penalty != 1.0 and self.outputs_NT is not None and self.length > 1:
            model_logits_BRV = self.arrays.xp.asarray(logits_NV, copy=True).reshape(*log_sum_BR.shape, -1)
            penalize_repeated_tokens(logits_NV, self.outputs_NT, self.repetition_penalty, self.arrays)
            search_log_sum_BR = self.topk_impl.logsumexp(logits_NV).reshape(log_sum_BR.shape)
        self.masker(logits_NV, self.outputs_NT, self.length)
        if self.groups.return_alternatives:
            self._branch_groups(logits_NV)
        expanded = self._expand(logits_NV.reshape(*log_sum_BR.shape, -1), search_log_sum_BR)
        if model_logits_BRV is None:
            return expanded
        index_BX = expanded.parent_BX * model_logits_BRV.shape[2] + expanded.token_BX
        logit_BX = self.arrays.take(model_logits_BRV.reshape(len(index_BX), -1), index_BX)
        log_prob_BX = logit_BX - self.arrays.take(log_sum_BR, expanded.parent_BX)
        return replace(expanded, log_prob_BX=self.arrays.cast(log_prob_BX, self.arrays.xp.float32))

    def _expand(self, logits_BRV: Array, log_sum_BR: Array) -> Candidates:
        """Return the 2R best extensions, or what the phrase constraints and the groups make of them."""
        count = 2 * self.group_size
        if self.phrase_constraints is not None:
            penalty = self.length_penalty(float(self.length))
            return self.phrase_constraints.find_candidates(
                logits_BRV, log_sum_BR, self.score_BR, count, length=self.length, penalty=penalty
            )
        if self.groups.diversity_penalty and self.groups.num_groups > 1:
            shape = (-1, self.groups.num_groups, self.group_size)
            return diverse_candidates(
                logits_BRV.reshape(*shape, logits_BRV.shape[2]),
                log_sum_BR.reshape(shape),
                self.score_BR.reshape(shape),
                count,
                diversity_penalty=self.groups.diversity_penalty,
                end_id=self.end_id,
                topk_impl=self.topk_impl,
                arrays=self.arrays,
            )
        return find_best_candidates(logits_BRV, log_sum_BR, self.score_BR, count, topk_impl=self.topk_impl, arrays=self.arrays)

    def _branch_groups(self, logits_NV: Array) -> None:
        """Force each group to one of the most probable tokens, in sentences whose prefix is complete."""
        arrays, num_groups = self.arrays, self.groups.num_groups
        is_first_free = [self.length == len(self.constraints[index].prefix) + 1 for index in self.active[::num_groups]]
        if any(is_first_free):
            first_BV = logits_NV.reshape(len(is_first_free), num_groups * self.group_size, -1)[:, 0]
            is_first_free_B1 = arrays.asarray(is_first_free, arrays.xp.bool)[:, None]
            token_BG = arrays.xp.where(is_first_free_B1, arrays.topk(first_BV, num_groups), -1)
            token_N = arrays.repeat(token_BG.reshape(-1), self.group_size)
            force_tokens(logits_NV, token_N, arrays.take(logits_NV, token_N.clip(min=0)[:, None])[:, 0], arrays)

    def _add_finished(self, expanded: Candidates, is_end_BX: Array) -> Array:
        """Put candidates that end into the finished slots, if they score higher. Return which candidates competed (B, X)."""
        arrays, xp = self.arrays, self.arrays.xp
        if arrays.is_on_cpu and not bool(is_end_BX.any()):
            return is_end_BX  # on a GPU the test would force a synchronization
        ends_BX = is_end_BX
        column_X = arrays.arange(is_end_BX.shape[1])
        if self.only_best_may_end:
            ends_BX = ends_BX & (column_X < self.group_size)
        if self.group_size == 1:  # greedy search ends only with its best token; sentences with required phrases differ
            is_best_BX = xp.broadcast_to(column_X == 0, is_end_BX.shape)
            if self.phrase_constraints is not None:
                is_best_BX = is_best_BX | ~self.phrase_constraints.has_no_phrases_B1
            ends_BX = ends_BX & is_best_BX
        ended_score_BX = xp.where(ends_BX, expanded.score_BX / self.length_penalty(float(self.length)), NEG_INF)
        node_id_BX = xp.broadcast_to(column_X + self.length * len(column_X), is_end_BX.shape)
        score_BX = xp.concat([self.finished_score_BR, ended_score_BX], axis=1)
        best_BR = arrays.topk(score_BX, self.group_size)
        self.finished_score_BR = arrays.take(score_BX, best_BR)
        self.finished_node_id_BR = arrays.take(xp.concat([self.finished_node_id_BR, node_id_BX], axis=1), best_BR)
        return ends_BX

    def _select_alive(self, expanded: Candidates, is_end_BX: Array) -> Array:
        """Return the columns of the candidates that stay in the beam (B, R) and update their scores."""
        arrays, where = self.arrays, self.arrays.xp.where
        score_BX = priority_BX = where(is_end_BX, NEG_INF, expanded.score_BX)
        if expanded.priority_BX is not expanded.score_BX:
            priority_BX = where(is_end_BX, NEG_INF, expanded.priority_BX)
        alive_BR = arrays.topk(priority_BX, self.group_size)
        self.score_BR = arrays.take(score_BX, alive_BR)
        if self.decoding_constraints.allowed_tokens_fn is not None:
            # An empty slot repeats the first hypothesis, so that the automaton reads only outputs that it allowed.
            alive_BR = where(self.score_BR > NEG_INF, alive_BR, alive_BR[:, :1])
        if self.phrase_constraints is not None:
            self.phrase_constraints.select_candidates(alive_BR)
        return alive_BR

    def _stop_repetitions(self, outputs_NT: Array, alive_BR: Array) -> None:
        """Remove hypotheses with a degenerate repetition from the beam and record them.

        One that lacks a token of `exactly_once` stays until it has them all.
        """
        window = self.decoding_constraints.repetition_window
        repeating_N = is_repeating(outputs_NT, window, self.arrays) & ~self.masker.find_incomplete(outputs_NT)
        repeating_BR = repeating_N.reshape(self.score_BR.shape) & (self.score_BR > NEG_INF)
        if not bool(repeating_BR.any()):
            return
        for row, rank in self.arrays.xp.argwhere(repeating_BR).tolist():
            sentence = self.active[row]
            if self.constraints[sentence].allow_repetition:
                repeating_BR[row, rank] = False
            elif not self.done[row]:
                node = NodeRef(sentence, self.length, int(alive_BR[row, rank]))
                score = float(self.score_BR[row, rank]) / self.length_penalty(float(self.length))
                self.repetition_nodes.setdefault(sentence, []).append((score, node))
        self.score_BR = self.arrays.xp.where(repeating_BR, NEG_INF, self.score_BR)

    def _record_finished(self, alive_BR: Array) -> None:
        """Record the sentences that are done after this step.

        A log-probability only falls with each token. So the best score that an alive hypothesis can still reach is its
        log-probability divided by the largest penalty of its sentence. The search ends if the finished hypothesis at
        `threshold_rank` is at least as good; for `worst_finished`, the last one so far. `heuristic` divides by the penalty of
        the present length instead. A beam of one is greedy search and ends with its first end token.
        """
        xp = self.arrays.xp
        best_B = xp.amax(self.score_BR, 1)
        penalty_B = self.length_penalty(float(self.length)) if self.uses_present_length else self.max_penalty_B
        threshold_B = self.finished_score_BR[:, self.threshold_rank]
        if self.stops_at_worst_finished:
            is_finished_BR = self.finished_score_BR > NEG_INF
            # Scores are negative, so 0 is no minimum.
            worst_B = xp.amin(xp.where(is_finished_BR, self.finished_score_BR, 0.0), 1)
            threshold_B = xp.where(is_finished_BR.any(1), worst_B, NEG_INF)
        done_B = threshold_B >= best_B / penalty_B
        if self.stop_when_full:
            done_B |= self.finished_score_BR[:, -1] > NEG_INF
        if self.group_size == 1:
            done_B = (self.finished_score_BR[:, 0] > NEG_INF) | (best_B == NEG_INF)
        done = done_B.tolist()
        newly_done = [
            row
            for row, sentence in enumerate(self.active)
            if not self.done[row] and (done[row] or self.max_lengths[sentence] == self.length)
        ]
        if not newly_done:
            return
        for row in newly_done:
            self.done[row] = True
        rows_B = self.arrays.asarray(newly_done, xp.int64)
        partial_node_ids = None
        if self.phrase_constraints is not None:
            has_none_B = self.phrase_constraints.partial_score_B == NEG_INF
            partial_node_ids = xp.where(has_none_B, -1, self.phrase_constraints.partial_node_id_B)[rows_B].tolist()
        arrays_BR = (self.finished_score_BR, self.finished_node_id_BR, self.score_BR, alive_BR)
        finished_scores, finished_node_ids, alive_scores, alive_columns = (array_BR[rows_B].tolist() for array_BR in arrays_BR)
        for index, row in enumerate(newly_done):
            sentence = self.active[row]
            partial_node_id = None if partial_node_ids is None or partial_node_ids[index] < 0 else int(partial_node_ids[index])
            self.finished_sentences[sentence] = FinishedSentence(
                self.length,
                finished_scores[index],
                finished_node_ids[index],
                alive_scores[index],
                alive_columns[index],
                self.repetition_nodes.get(sentence, ()),
                partial_node_id,
            )

    def compact(self, compaction_threshold: float) -> tuple[Array, Array] | None:
        """Drop sentences whose groups are all done, if they make up `compaction_threshold` of the batch.

        Return the indices of the remaining sentences (B,) and of their rows (N,), or None if all remain.
        """
        arrays, num_groups = self.arrays, self.groups.num_groups
        sentence_done = [all(self.done[start : start + num_groups]) for start in range(0, len(self.done), num_groups)]
        if not any(sentence_done) or sum(sentence_done) < compaction_threshold * len(sentence_done):
            return None
        sentences_B = arrays.asarray([index for index, done in enumerate(sentence_done) if not done], arrays.xp.int64)
        kept_B = sentences_B
        if num_groups > 1:
            kept_B = (sentences_B[:, None] * num_groups + arrays.arange(num_groups)).reshape(-1)
        rows_N = (kept_B[:, None] * self.group_size + arrays.arange(self.group_size)).reshape(-1)
        kept_rows = [row for row in range(len(self.done)) if not sentence_done[row // num_groups]]
        self.active, self.done = [self.active[row] for row in kept_rows], [self.done[row] for row in kept_rows]
        self.batch_rows = np.full(len(self.max_lengths), -1)
        self.batch_rows[self.active] = np.arange(len(self.active))
        self.max_penalty_B, self.first_row_B1 = self.max_penalty_B[kept_B], self.first_row_B1[: len(kept_rows)]
        self.score_BR, self.finished_score_BR = self.score_BR[kept_B], self.finished_score_BR[kept_B]
        self.finished_node_id_BR = self.finished_node_id_BR[kept_B]
        self.masker.select_sentences(kept_B)
        if self.phrase_constraints is not None:
            self.phrase_constraints.select_sentences(kept_B)
        if self.outputs_NT is not None:
            self.outputs_NT = self.outputs_NT[rows_N]
        return sentences_B, rows_N

    def collect_results(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, those of its groups merged."""
        hypotheses = finalize(
            [self.finished_sentences[sentence] for sentence in range(len(self.max_lengths))],
            self.history,
            end_id=self.end_id,
            length_penalty=self.length_penalty,
        )
        num_groups = self.groups.num_groups
        if num_groups == 1:
            return hypotheses
        return [
            merge_groups(hypotheses[start : start + num_groups], return_alternatives=self.groups.return_alternatives)
            for start in range(0, len(hypotheses), num_groups)
        ]
