"""Required phrases: dynamic beam allocation (Post and Vilar 2018), vectorized over all sentences (Hu et al. 2019).

Phrases form groups, and the text of an output must contain one phrase of each group. A group of one phrase requires it.

Hypotheses that contain equally many of the required tokens form a bank. The candidates are the best extensions overall, those
that continue a phrase, and the best extension of each hypothesis. The beam takes the best of every bank, starting with the
fullest bank, then the second best of every bank, and so on. An output may end only once it contains all phrases. A phrase
counts once the text of the output contains it, in any tokens, at any position, and also as a part of a longer phrase. A group
counts as many tokens as its phrase with the most progress, and all its tokens once one phrase is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.constraints import NEG_INF, DecodingConstraints, SentenceConstraints
from dragoman.decoding.phrase import NO_TOKEN, Phrase, PhraseGroup
from dragoman.decoding.topk import Candidates, TopK, find_best_candidates

# Added to a score for each missing phrase; larger than any difference between scores.
UNMET_PENALTY = -1e6


def select_feasible_groups(
    constraints: SentenceConstraints,
    decoding_constraints: DecodingConstraints,
    *,
    forbidden_ids: Sequence[int],
    end_id: int,
    max_length: int,
) -> tuple[PhraseGroup, ...]:
    """Return the groups with those phrases that no other constraint excludes for certain and that fit into the length limit."""
    banned_ids = {*forbidden_ids, *decoding_constraints.suppress_tokens, end_id}
    free_tokens = max_length - 1 - len(constraints.prefix) - len(constraints.exactly_once)
    feasible_groups: list[PhraseGroup] = []
    for group in dict.fromkeys(constraints.include):
        phrases = tuple(
            phrase
            for phrase in dict.fromkeys(group)
            if not banned_ids.intersection(phrase.tokens)
            and not any(excluded.text in phrase.text for excluded in constraints.exclude)
            and len(phrase.tokens) <= free_tokens
        )
        if phrases:
            feasible_groups.append(phrases)
            free_tokens -= max(len(phrase.tokens) for phrase in phrases)
    return tuple(feasible_groups)


@dataclass(frozen=True)
class PhraseProgress:
    """Progress of each of Y hypotheses with each phrase and each group.

    state_BYP: number of bytes of the phrase that the text of the hypothesis ends with
    matched_BYP: number of tokens of the phrase in that state
    is_met_BYG: whether the text of the hypothesis contains a whole phrase of the group
    """

    state_BYP: Array
    matched_BYP: Array
    is_met_BYG: Array

    def select_hypotheses(self, sentence_B1: Array, index_BX: Array) -> PhraseProgress:
        """Return the progress of the hypotheses with these indices. sentence_B1: 0, 1, …"""
        return PhraseProgress(*(array[sentence_B1, index_BX] for array in vars(self).values()))

    def select_sentences(self, sentences_B: Array) -> PhraseProgress:
        """Return the progress of these sentences alone."""
        return PhraseProgress(*(array[sentences_B] for array in vars(self).values()))


class PhraseConstraints:
    """Required phrases of each sentence, in groups, and the progress of its hypotheses with them."""

    def __init__(
        self, groups: Sequence[Sequence[PhraseGroup]], *, group_size: int, end_id: int, topk_impl: TopK, arrays: Arrays
    ) -> None:
        self.end_id, self.topk_impl, self.arrays, xp = end_id, topk_impl, arrays, arrays.xp
        self.phrases: list[list[Phrase]] = [list(chain.from_iterable(sentence_groups)) for sentence_groups in groups]
        sentences, max_phrases = len(groups), max(map(len, self.phrases), default=0)
        lengths = [[len(phrase.tokens) for phrase in row] + [0] * (max_phrases - len(row)) for row in self.phrases]
        length_BP = arrays.asarray(lengths, xp.int64).reshape(sentences, max_phrases)
        # The last group holds what only fills the array. It has no tokens, so it is met from the start.
        max_groups = max(map(len, groups), default=0)
        group_numbers = [[number for number, group in enumerate(sentence) for _ in group] for sentence in groups]
        group_numbers = [numbers + [max_groups] * (max_phrases - len(numbers)) for numbers in group_numbers]
        self.group_BP = arrays.asarray(group_numbers, xp.int64).reshape(sentences, max_phrases)
        self.is_member_BPG = self.group_BP[:, :, None] == arrays.arange(max_groups + 1)
        self.sentence_B1 = arrays.arange(sentences)[:, None]
        self.group_length_BG = self._max_by_group(length_BP[:, None])[:, 0]
        is_empty_BG = self.group_length_BG == 0
        # The search of a sentence without phrases does not depend on the phrases of the others.
        self.has_no_phrases_B1 = is_empty_BG.all(-1)[:, None]
        nothing_BYP = arrays.full((sentences, group_size, max_phrases), 0, xp.int64)
        self.progress = PhraseProgress(
            nothing_BYP,
            nothing_BYP,
            xp.broadcast_to(is_empty_BG[:, None], (sentences, group_size, max_groups + 1)),
        )
        self.candidate_progress = self.progress
        # The best output that ended without all phrases; the result if no output contains them all.
        self.partial_score_B = arrays.full((sentences,), NEG_INF, xp.float64)
        self.partial_node_id_B = arrays.full((sentences,), 0, xp.int64)

    def _max_by_group(self, value_BYP: Array) -> Array:
        """Return the largest value of the phrases of each group; values are not negative. → (B, Y, G)"""
        return self.arrays.xp.amax(value_BYP[:, :, :, None] * self.is_member_BPG[:, None], 2)

    def find_candidates(
        self, logits_BRV: Array, log_sum_BR: Array, score_BR: Array, count: int, *, length: int, penalty: float
    ) -> Candidates:
        """Return the best extensions, those that continue a phrase, the best of each row, and those that end a row."""
        arrays, xp = self.arrays, self.arrays.xp
        end_BR = arrays.cast(logits_BRV[:, :, self.end_id] - log_sum_BR, xp.float32)
        all_met_BR = self.progress.is_met_BYG.all(-1)
        logits_BRV[:, :, self.end_id] = xp.where(all_met_BR, logits_BRV[:, :, self.end_id], NEG_INF)
        extensions = self._collect_extensions(logits_BRV, log_sum_BR, score_BR, count, is_first=length == 1)
        parent_BX = extensions.parent_BX
        self.candidate_progress = self._update_progress(
            self.progress.select_hypotheses(self.sentence_B1, parent_BX), extensions.token_BX
        )
        matched_BXG = self._max_by_group(self.candidate_progress.matched_BYP)
        tokens_BX = xp.where(self.candidate_progress.is_met_BYG, self.group_length_BG[:, None], matched_BXG).sum(-1)
        extensions = replace(extensions, priority_BX=self._rank_by_bank(extensions, tokens_BX))

        row_BR = xp.broadcast_to(arrays.arange(score_BR.shape[1]), score_BR.shape)
        ends_BX = (extensions.token_BX == self.end_id) & (extensions.score_BX > NEG_INF)
        is_listed_BR = ((extensions.parent_BX[:, :, None] == row_BR[:, None]) & ends_BX[:, :, None]).any(1)
        ended_BR = xp.where(is_listed_BR | ~all_met_BR | self.has_no_phrases_B1, NEG_INF, score_BR + end_BR)
        neg_inf_BR = xp.full_like(score_BR, NEG_INF)  # an ended hypothesis leaves the beam
        self._update_partial(
            score_BR + end_BR, all_met_BR, penalty, first_node_id=length * (parent_BX.shape[1] + score_BR.shape[1])
        )
        ends = Candidates(row_BR, xp.full_like(row_BR, self.end_id), end_BR, ended_BR, neg_inf_BR)
        return Candidates(
            *(xp.concat(pair, axis=1) for pair in zip(vars(extensions).values(), vars(ends).values(), strict=True))
        )

    def _collect_extensions(
        self, logits_BRV: Array, log_sum_BR: Array, score_BR: Array, count: int, *, is_first: bool
    ) -> Candidates:
        arrays, xp = self.arrays, self.arrays.xp
        best = find_best_candidates(logits_BRV, log_sum_BR, score_BR, count, topk_impl=self.topk_impl, arrays=arrays)
        sentences, rows, vocabulary = logits_BRV.shape
        next_BRP = self._list_next_tokens(is_first=is_first)
        best_token_BR1 = logits_BRV.argmax(-1)[:, :, None]
        token_BRX = xp.concat([next_BRP.clip(min=0), best_token_BR1], axis=2)
        log_prob_BRX = arrays.cast(arrays.take(logits_BRV, token_BRX) - log_sum_BR[:, :, None], xp.float32)
        is_met_BRP = arrays.take(self.progress.is_met_BYG, self.group_BP[:, None])
        has_no_phrases_BR1 = xp.broadcast_to(self.has_no_phrases_B1[:, :, None], best_token_BR1.shape)
        excluded_BRX = xp.concat([is_met_BRP | (next_BRP == NO_TOKEN), has_no_phrases_BR1], axis=2)
        score_BRX = xp.where(excluded_BRX, NEG_INF, score_BR[:, :, None] + log_prob_BRX)
        parent_BRX = xp.broadcast_to(arrays.arange(rows)[:, None], token_BRX.shape)
        parent_BX, token_BX, score_BX, log_prob_BX = (
            xp.concat([best_BX, extra_BRX.reshape(sentences, -1)], axis=1)
            for best_BX, extra_BRX in (
                (best.parent_BX, parent_BRX),
                (best.token_BX, token_BRX),
                (best.score_BX, score_BRX),
                (best.log_prob_BX, log_prob_BRX),
            )
        )
        flat_index_BX = parent_BX * vocabulary + token_BX
        is_duplicate_BX = xp.tril(flat_index_BX[:, :, None] == flat_index_BX[:, None, :], -1).any(-1)
        score_BX = xp.where(is_duplicate_BX, NEG_INF, score_BX)
        return Candidates(parent_BX, token_BX, log_prob_BX, score_BX, score_BX)

    def _list_next_tokens(self, *, is_first: bool) -> Array:
        """Return the token that continues each phrase after each hypothesis; NO_TOKEN if there is none. → (B, R, P)"""
        next_BRP = np.full(self.progress.state_BYP.shape, NO_TOKEN)
        for sentence, phrases in enumerate(self.phrases):
            if phrases:
                next_BRP[sentence, :, : len(phrases)] = [
                    [
                        NO_TOKEN if phrase.only_first and not (state or is_first) else phrase.get_next_token(state)
                        for phrase, state in zip(phrases, states, strict=False)
                    ]
                    for states in self.progress.state_BYP[sentence].tolist()
                ]
        return self.arrays.asarray(next_BRP)

    def _update_progress(self, parents: PhraseProgress, token_BX: Array) -> PhraseProgress:
        """Return the progress of hypotheses that add one token to these."""
        updates_BXP3 = np.zeros((*parents.state_BYP.shape, 3), dtype=np.int64)
        for sentence, phrases in enumerate(self.phrases):
            if not phrases:
                continue
            states, tokens = parents.state_BYP[sentence].tolist(), token_BX[sentence].tolist()
            updates_BXP3[sentence, :, : len(phrases)] = [
                [
                    (new_state, phrase.count_tokens(new_state), is_complete)
                    for phrase, state in zip(phrases, row, strict=False)
                    for new_state, is_complete in [phrase.advance(state, token)]
                ]
                for row, token in zip(states, tokens, strict=True)
            ]
        state_BXP, matched_BXP, is_complete_BXP = (self.arrays.asarray(updates_BXP3[..., index]) for index in range(3))
        return PhraseProgress(state_BXP, matched_BXP, parents.is_met_BYG | (self._max_by_group(is_complete_BXP) > 0))

    def _rank_by_bank(self, extensions: Candidates, tokens_BX: Array) -> Array:
        """Return a priority for each extension: by rank within the bank, then by the tokens of the bank. → (B, X)"""
        alive_BX = (extensions.score_BX > NEG_INF) & (extensions.token_BX != self.end_id)
        better_BXX = extensions.score_BX[:, None, :] > extensions.score_BX[:, :, None]
        equal_BXX = self.arrays.xp.tril(extensions.score_BX[:, None, :] == extensions.score_BX[:, :, None], -1)
        same_bank_BXX = (tokens_BX[:, None, :] == tokens_BX[:, :, None]) & alive_BX[:, None, :]
        rank_in_bank_BX = ((better_BXX | equal_BXX) & same_bank_BXX).sum(-1)
        num_banks_B1 = self.group_length_BG.sum(-1)[:, None] + 1
        priority_BX = tokens_BX - rank_in_bank_BX * num_banks_B1
        return self.arrays.xp.where(alive_BX, self.arrays.cast(priority_BX, extensions.score_BX.dtype), NEG_INF)

    def _update_partial(self, score_BR: Array, all_met_BR: Array, penalty: float, *, first_node_id: int) -> None:
        """Update the best output that ended without a phrase of every group.

        first_node_id: node id of the first candidate of this step; the last R candidates are those that end
        """
        arrays, where = self.arrays, self.arrays.xp.where
        num_unmet_BR = (~self.progress.is_met_BYG).sum(-1)
        value_BR = arrays.cast(score_BR, arrays.xp.float64) / penalty + UNMET_PENALTY * num_unmet_BR
        value_BR = where(all_met_BR, NEG_INF, value_BR)
        row_B, value_B = value_BR.argmax(1), arrays.xp.amax(value_BR, 1)
        better_B = value_B > self.partial_score_B
        num_columns = self.candidate_progress.state_BYP.shape[1]
        self.partial_node_id_B = where(better_B, first_node_id + num_columns + row_B, self.partial_node_id_B)
        self.partial_score_B = where(better_B, value_B, self.partial_score_B)

    def select_candidates(self, alive_BR: Array) -> None:
        """Keep the progress of the candidates that stay in the beam."""
        last = self.candidate_progress.state_BYP.shape[1] - 1
        self.progress = self.candidate_progress.select_hypotheses(self.sentence_B1, alive_BR.clip(max=last))

    def select_sentences(self, sentences_B: Array) -> None:
        """Keep the phrases of these sentences alone."""
        self.phrases = [self.phrases[sentence] for sentence in sentences_B.tolist()]
        self.group_BP, self.group_length_BG = self.group_BP[sentences_B], self.group_length_BG[sentences_B]
        self.is_member_BPG, self.sentence_B1 = self.is_member_BPG[sentences_B], self.sentence_B1[: len(self.phrases)]
        self.partial_score_B, self.partial_node_id_B = self.partial_score_B[sentences_B], self.partial_node_id_B[sentences_B]
        self.has_no_phrases_B1, self.progress = self.has_no_phrases_B1[sentences_B], self.progress.select_sentences(sentences_B)
