"""Beam search as tensor2tensor 1.0.3 ran it for the paper (section 6.1), a pure function of a step.

Each sentence has R hypotheses alive and R finished. At each step the 2R best extensions are taken; those that end compete for
the finished places by score, the R best others live on. A sentence is done when nothing alive can still win, or at its limit.

A beam may be divided into groups; each then searches as a sentence of its own would, and G · B such sentences stand where
B did.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.decoding.beam_history import FinishedSentence, finalize
from dragoman.decoding.constraints import (
    NEG_INF,
    NO_DECODING_CONSTRAINTS,
    NO_SENTENCE_CONSTRAINTS,
    DecodingConstraints,
    LogitsMasker,
    SentenceConstraints,
    force_tokens,
)
from dragoman.decoding.diverse_beam import SINGLE_GROUP, BeamGroups, diverse_candidates, merge_groups
from dragoman.decoding.history import BeamHistory, NodeRef
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchState, StepFn
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.phrase_constraints import PhraseConstraints, select_feasible_phrases
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating
from dragoman.decoding.topk import Candidates, TopK, TorchTopK, find_best_candidates


@torch.no_grad()
def beam_search(
    step: StepFn,
    state: SearchState,
    *,
    max_lengths: Sequence[int],
    beam_size: int,
    start_id: int,
    end_id: int,
    forbidden_ids: Sequence[int] = (),
    length_penalty: LengthPenalty,
    early_stopping: str = "exhaustive",
    nbest: int = 1,
    device: torch.device,
    constraints: Sequence[SentenceConstraints] = (),
    decoding_constraints: DecodingConstraints = NO_DECODING_CONSTRAINTS,
    groups: BeamGroups = SINGLE_GROUP,
    topk_impl: TopK | None = None,
    compaction_threshold: float = 0.0,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first; unfinished ones stand after the finished.

    state: that of B sentences; every step then reads N = B · beam_size tokens, the beam of each sentence together
    limits: longest output of each sentence in tokens, its end token included
    stop: what the living must still be able to beat: the "exhaustive" (tensor2tensor 1.0.3), or the "best" (its
        later versions), of which `nbest` are wanted. "beam_full", as fairseq and CTranslate2 have it: or all R finished
        places are taken, for which only those compete that end among the R best extensions
    wishes: one for each sentence, or none at all
    ranking: PyTorch's where none is given
    groups: their number divides beam_size; with groups kept apart by their strength, no wish includes a phrase
    leaving: sentences that are done leave the batch together once they are this share of it; 0: at once, 1: all at the end
    """
    assert min(max_lengths, default=1) >= 1
    assert beam_size % groups.num_groups == 0
    if not max_lengths:
        return []
    beam = _Beam(
        max_lengths=[limit for limit in max_lengths for _ in range(groups.num_groups)],
        constraints=[
            wish for wish in constraints or [NO_SENTENCE_CONSTRAINTS] * len(max_lengths) for _ in range(groups.num_groups)
        ],
        group_size=beam_size // groups.num_groups,
        end_id=end_id,
        forbidden_ids=forbidden_ids,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        nbest=nbest,
        decoding_constraints=decoding_constraints,
        groups=groups,
        topk_impl=topk_impl or TorchTopK(),
        device=device,
    )
    last_N = torch.full((len(max_lengths) * beam_size,), start_id, dtype=torch.long, device=device)
    while True:
        logits_NV, state = step(last_N, state)
        rows_N, last_N = beam.step(logits_NV)
        if all(beam.done):
            return beam.collect_results()
        state = state.reorder(rows_N)
        kept = beam.compact(compaction_threshold)
        if kept is not None:
            sentences_B, kept_rows_N = kept
            state, last_N = state.select_sentences(sentences_B), last_N[kept_rows_N]


class _Beam:
    """The state of the search, for the sentences that are still in the batch.

    score_BR: log-probability of those alive; -inf marks an empty place
    finished_BR: log-probability over length penalty of those finished; -inf likewise
    finished_code_BR: which these are: length · X + column, X being the number of candidates at each step
    outputs_NT: tokens of those alive, kept only where something asks for them
    left, over: the number of each sentence in the batch that was given, and whether it is done
    """

    def __init__(
        self,
        *,
        max_lengths: Sequence[int],
        constraints: Sequence[SentenceConstraints],
        group_size: int,
        end_id: int,
        forbidden_ids: Sequence[int],
        length_penalty: LengthPenalty,
        early_stopping: str,
        nbest: int,
        decoding_constraints: DecodingConstraints,
        groups: BeamGroups,
        topk_impl: TopK,
        device: torch.device,
    ) -> None:
        num_sentences = len(max_lengths)
        assert len(constraints) == num_sentences
        assert all(len(wish.prefix) < limit for wish, limit in zip(constraints, max_lengths, strict=True)), (
            "a prefix beyond its limit"
        )
        self.max_lengths, self.constraints, self.group_size, self.end_id = max_lengths, constraints, group_size, end_id
        self.length_penalty, self.decoding_constraints, self.groups, self.device = (
            length_penalty,
            decoding_constraints,
            groups,
            device,
        )
        self.threshold_rank = (group_size if early_stopping == "exhaustive" else min(nbest, group_size)) - 1
        self.stop_when_full = early_stopping == "beam_full"
        self.length = 0
        self.active, self.done = list(range(num_sentences)), [False] * num_sentences
        self.batch_rows = np.arange(num_sentences)
        self.max_penalty_B = length_penalty(torch.tensor(max_lengths, dtype=torch.float, device=device))
        self.first_row_B1 = torch.arange(0, num_sentences * group_size, group_size, device=device)[:, None]
        self.score_BR = torch.full((num_sentences, group_size), NEG_INF, device=device)
        self.score_BR[:, 0] = 0.0
        self.finished_score_BR = torch.full((num_sentences, group_size), NEG_INF, device=device)
        self.finished_node_id_BR = torch.zeros(num_sentences, group_size, dtype=torch.long, device=device)
        self.topk_impl, self.history = topk_impl, BeamHistory()
        self.finished_sentences: dict[int, FinishedSentence] = {}
        self.repetition_nodes: dict[int, list[tuple[float, NodeRef]]] = {}
        self.masker = LogitsMasker(
            decoding_constraints,
            constraints,
            forbidden_ids=forbidden_ids,
            end_id=end_id,
            rows_per_sentence=group_size,
            num_groups=groups.num_groups,
            device=device,
        )
        self.phrase_constraints: PhraseConstraints | None = None
        if any(wish.include for wish in constraints):
            assert not groups.diversity_penalty, "phrases in groups that keep apart"
            limited_constraints = zip(constraints, max_lengths, strict=True)
            feasible_phrases = [
                select_feasible_phrases(
                    wish, decoding_constraints, forbidden_ids=forbidden_ids, end_id=end_id, max_length=limit
                )
                for wish, limit in limited_constraints
            ]
            self.phrase_constraints = PhraseConstraints(feasible_phrases, group_size=group_size, end_id=end_id, device=device)
        self.outputs_NT: Tensor | None = None
        if self.masker.needs_outputs or decoding_constraints.repetition_window:
            self.outputs_NT = torch.empty(num_sentences * group_size, 0, dtype=torch.long, device=device)

    def step(self, logits_NV: Tensor) -> tuple[Tensor, Tensor]:
        """One token more: the row that each row has become (N,), and what it says last (N,)."""
        self.length += 1
        logits_NV = logits_NV.float()
        log_sum_BR = self.topk_impl.logsumexp(logits_NV).view(-1, self.group_size)
        self.masker(logits_NV, self.outputs_NT, self.length)
        if self.groups.return_alternatives:
            self._branch_groups(logits_NV)
        expanded = self._expand(logits_NV.view(-1, self.group_size, logits_NV.shape[1]), log_sum_BR)
        end_BX = expanded.token_BX == self.end_id
        self._add_finished(expanded, end_BX)
        alive_BR = self._select_alive(expanded, end_BX)
        token_BR = expanded.token_BX.gather(1, alive_BR)
        rows_N = (expanded.parent_BX.gather(1, alive_BR) + self.first_row_B1).flatten()
        last_N = token_BR.flatten()
        self.history.add(expanded.parent_BX, expanded.token_BX, expanded.log_prob_BX, alive_BR, self.batch_rows)
        if self.outputs_NT is not None:
            self.outputs_NT = torch.cat([self.outputs_NT.index_select(0, rows_N), last_N[:, None]], dim=1)
            if self.decoding_constraints.repetition_window and self.length % CHECK_INTERVAL == 0:
                self._stop_repetitions(self.outputs_NT, alive_BR)
        self._record_finished(alive_BR)
        return rows_N, last_N

    def _expand(self, logits_BRV: Tensor, log_sum_BR: Tensor) -> Candidates:
        count = 2 * self.group_size
        if self.phrase_constraints is not None:
            penalty = self.length_penalty(float(self.length))
            return self.phrase_constraints.find_candidates(
                logits_BRV, log_sum_BR, self.score_BR, count, length=self.length, penalty=penalty
            )
        if self.groups.diversity_penalty and self.groups.num_groups > 1:
            shape = (-1, self.groups.num_groups, self.group_size)
            return diverse_candidates(
                logits_BRV.view(*shape, logits_BRV.shape[2]),
                log_sum_BR.view(shape),
                self.score_BR.view(shape),
                count,
                diversity_penalty=self.groups.diversity_penalty,
                end_id=self.end_id,
            )
        return find_best_candidates(logits_BRV, log_sum_BR, self.score_BR, count, self.topk_impl)

    def _branch_groups(self, logits_NV: Tensor) -> None:
        """Where a sentence's prefix has just been said: its groups each take one of the likeliest tokens."""
        num_groups = self.groups.num_groups
        is_first_free = [self.length == len(self.constraints[number].prefix) + 1 for number in self.active[::num_groups]]
        if any(is_first_free):
            first_BV = logits_NV.view(len(is_first_free), num_groups * self.group_size, -1)[:, 0]
            token_BG = first_BV.topk(num_groups, dim=1).indices
            token_BG = token_BG.where(torch.tensor(is_first_free, device=self.device)[:, None], -1)
            token_N = token_BG.flatten().repeat_interleave(self.group_size)
            force_tokens(logits_NV, token_N, logits_NV.gather(1, token_N.clamp(min=0)[:, None]))

    def _add_finished(self, expanded: Candidates, end_BX: Tensor) -> None:
        """Those that end compete for the finished places."""
        if end_BX.device.type == "cpu" and not bool(end_BX.any()):
            return  # elsewhere it costs more to ask
        if self.stop_when_full:
            end_BX = end_BX & (torch.arange(end_BX.shape[1], device=self.device) < self.group_size)
        if self.group_size == 1:  # as greedy search ends: by its best alone, but for sentences that phrases are asked of
            best_BX = (torch.arange(end_BX.shape[1], device=self.device) == 0).expand_as(end_BX)
            end_BX = end_BX & (
                best_BX if self.phrase_constraints is None else best_BX | ~self.phrase_constraints.has_no_phrases_B1
            )
        ended_score_BX = (expanded.score_BX / self.length_penalty(float(self.length))).masked_fill(~end_BX, NEG_INF)
        first_node_id = self.length * end_BX.shape[1]
        node_id_BX = torch.arange(first_node_id, first_node_id + end_BX.shape[1], device=self.device).expand_as(end_BX)
        self.finished_score_BR, best_BR = torch.cat([self.finished_score_BR, ended_score_BX], dim=1).topk(
            self.group_size, dim=1
        )
        self.finished_node_id_BR = torch.cat([self.finished_node_id_BR, node_id_BX], dim=1).gather(1, best_BR)

    def _select_alive(self, expanded: Candidates, end_BX: Tensor) -> Tensor:
        """Those that live on, as columns among the candidates."""
        score_BX = expanded.score_BX.masked_fill(end_BX, NEG_INF)
        if expanded.priority_BX is expanded.score_BX:
            self.score_BR, alive_BR = score_BX.topk(self.group_size, dim=1)
        else:
            alive_BR = expanded.priority_BX.masked_fill(end_BX, NEG_INF).topk(self.group_size, dim=1).indices
            self.score_BR = score_BX.gather(1, alive_BR)
        if self.decoding_constraints.allowed_tokens_fn is not None:
            # An empty place shows what the first does, lest an automaton meet what it never allowed.
            alive_BR = torch.where(self.score_BR > NEG_INF, alive_BR, alive_BR[:, :1])
        if self.phrase_constraints is not None:
            self.phrase_constraints.select_candidates(alive_BR)
        return alive_BR

    def _stop_repetitions(self, outputs_NT: Tensor, alive_BR: Tensor) -> None:
        """Hypotheses that go round in circles leave the beam and are remembered."""
        repeating_BR = is_repeating(outputs_NT, self.decoding_constraints.repetition_window).view_as(self.score_BR) & (
            self.score_BR > NEG_INF
        )
        if not bool(repeating_BR.any()):
            return
        for row, rank in repeating_BR.nonzero().tolist():
            sentence = self.active[row]
            if self.constraints[sentence].may_loop:
                repeating_BR[row, rank] = False
            elif not self.done[row]:
                node = NodeRef(sentence, self.length, int(alive_BR[row, rank]))
                score = float(self.score_BR[row, rank]) / self.length_penalty(float(self.length))
                self.repetition_nodes.setdefault(sentence, []).append((score, node))
        self.score_BR = self.score_BR.masked_fill(repeating_BR, NEG_INF)

    def _record_finished(self, alive_BR: Tensor) -> None:
        """Remember what the sentences have come to that are done now.

        No hypothesis alive can still beat the one at place `counted` among the finished: log-probabilities only fall, so the
        best that one alive can become is its own divided by the largest penalty it can meet. A beam of one is greedy search and
        ends with its first end.
        """
        best_B = self.score_BR.amax(1)
        done_B = self.finished_score_BR[:, self.threshold_rank] >= best_B / self.max_penalty_B
        if self.stop_when_full:
            done_B |= self.finished_score_BR[:, -1] > NEG_INF
        if self.group_size == 1:
            done_B = (self.finished_score_BR[:, 0] > NEG_INF) | (best_B == NEG_INF)
        done = done_B.tolist()
        newly_done = [
            row
            for row, number in enumerate(self.active)
            if not self.done[row] and (done[row] or self.max_lengths[number] == self.length)
        ]
        if not newly_done:
            return
        for row in newly_done:
            self.done[row] = True
        rows_B = torch.tensor(newly_done, device=self.device)
        partial_node_ids = None
        if self.phrase_constraints is not None:
            partial_node_ids = self.phrase_constraints.partial_node_id_B.masked_fill(
                self.phrase_constraints.partial_score_B == NEG_INF, -1
            )[rows_B].tolist()
        tensors = (self.finished_score_BR, self.finished_node_id_BR, self.score_BR, alive_BR)
        finished_scores, finished_node_ids, alive_scores, alive_columns = (tensor[rows_B].tolist() for tensor in tensors)
        for index, row in enumerate(newly_done):
            number = self.active[row]
            partial_node_id = None if partial_node_ids is None or partial_node_ids[index] < 0 else int(partial_node_ids[index])
            self.finished_sentences[number] = FinishedSentence(
                self.length,
                finished_scores[index],
                finished_node_ids[index],
                alive_scores[index],
                alive_columns[index],
                self.repetition_nodes.get(number, ()),
                partial_node_id,
            )

    def compact(self, compaction_threshold: float) -> tuple[Tensor, Tensor] | None:
        """Let sentences go that are done, all their groups: which stay (B,), and their rows (N,). None where all stay."""
        num_groups = self.groups.num_groups
        sentence_done = [all(self.done[start : start + num_groups]) for start in range(0, len(self.done), num_groups)]
        if not any(sentence_done) or sum(sentence_done) < compaction_threshold * len(sentence_done):
            return None
        sentences_B = torch.tensor([sentence for sentence, done in enumerate(sentence_done) if not done], device=self.device)
        kept_B = sentences_B
        if num_groups > 1:
            kept_B = (sentences_B[:, None] * num_groups + torch.arange(num_groups, device=self.device)).flatten()
        rows_N = (kept_B[:, None] * self.group_size + torch.arange(self.group_size, device=self.device)).flatten()
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
        """What each sentence has come to."""
        finished_sentences = [self.finished_sentences[number] for number in range(len(self.max_lengths))]
        phrases = [wish.include for wish in self.constraints]
        hypotheses = finalize(
            finished_sentences, self.history, end_id=self.end_id, length_penalty=self.length_penalty, phrases=phrases
        )
        num_groups = self.groups.num_groups
        if num_groups == 1:
            return hypotheses
        return [
            merge_groups(hypotheses[start : start + num_groups], return_alternatives=self.groups.return_alternatives)
            for start in range(0, len(hypotheses), num_groups)
        ]
