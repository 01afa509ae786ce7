"""Phrases that an output must hold: dynamic beam allocation (Post and Vilar 2018) for all sentences at once (Hu et al. 2019).

Hypotheses that hold equally many of the wished tokens form a bank. Beside the best extensions of all, those that go on with a
phrase and the best of each hypothesis are candidates; the beam takes the best of every bank, the fullest bank first, then the
second best of every bank, and so on. An output may end once it holds all. A phrase counts once it stands in the output whole,
wherever and as part of whatever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.decoding.constraints import BEFORE, DEAD, Phrase, Rules, Wish, bank, holds
from dragoman.decoding.topk import Candidates, best_candidates

# Added to a log-probability for each phrase that is missing: it outweighs all that an output can gain otherwise.
MISSING = -1e6


def placeable(wish: Wish, rules: Rules, *, forbidden: Sequence[int], end_id: int, limit: int) -> tuple[Phrase, ...]:
    """Those of the phrases that no ban excludes for certain, as far as there is room for them."""
    never = {*forbidden, *rules.suppressed, end_id}
    room, placed = limit - 1 - len(wish.prefix), []
    for phrase in dict.fromkeys(wish.include):
        assert phrase, "an empty phrase"
        banned = never.intersection(phrase) or any(holds(phrase, excluded) for excluded in wish.exclude)
        if not banned and len(phrase) <= room:
            placed.append(phrase)
            room -= len(phrase)
    return tuple(placed)


@dataclass(frozen=True)
class Progress:
    """How far each of Y hypotheses has come.

    tail_BYM: the last M tokens, M being the longest phrase
    matched_BYP: how many tokens of each phrase stand at its end
    held_BYP: whether it holds the phrase whole
    """

    tail_BYM: Tensor
    matched_BYP: Tensor
    held_BYP: Tensor

    def take(self, places_BX: Tensor) -> Progress:
        def taken(tensor_BYM: Tensor) -> Tensor:
            return tensor_BYM.gather(1, places_BX[:, :, None].expand(-1, -1, tensor_BYM.shape[2]))

        return Progress(*(taken(tensor) for tensor in vars(self).values()))

    def keep(self, sentences_B: Tensor) -> Progress:
        return Progress(*(tensor[sentences_B] for tensor in vars(self).values()))


class Phrases:
    """The phrases of each sentence, and how far its hypotheses have come with them."""

    def __init__(self, phrases: Sequence[Sequence[Phrase]], *, rows: int, end_id: int, device: torch.device) -> None:
        self.end_id = end_id
        self.token_BPM = bank(phrases, to_the_right=False, padding=-1, device=device)
        self.length_BP = (self.token_BPM >= 0).sum(-1)
        sentences, most, longest = self.token_BPM.shape
        held_BP = self.length_BP == 0
        self.wishless_B1 = held_BP.all(-1, keepdim=True)  # these sentences are searched as if there were no phrases at all
        self.now = Progress(
            torch.full((sentences, rows, longest), BEFORE, device=device),
            torch.zeros(sentences, rows, most, dtype=torch.long, device=device),
            held_BP[:, None].expand(-1, rows, -1),
        )
        self.grown = self.now
        # The best output that ended without all phrases: what is given where none comes to hold them.
        self.partial_B = torch.full((sentences,), DEAD, dtype=torch.float64, device=device)
        self.partial_code_B = torch.zeros(sentences, dtype=torch.long, device=device)

    def candidates(
        self, logits_BRV: Tensor, log_sum_BR: Tensor, score_BR: Tensor, count: int, *, length: int, penalty: float
    ) -> Candidates:
        """The best of all, those that go on with a phrase, the best of each row; and of each row the one that ends."""
        end_BR = (logits_BRV[:, :, self.end_id] - log_sum_BR).float()
        whole_BR = self.now.held_BYP.all(-1)
        logits_BRV[:, :, self.end_id].masked_fill_(~whole_BR, DEAD)
        some = self._gather(logits_BRV, log_sum_BR, score_BR, count)
        parent_BX, token_BX = some.parent_BX, some.token_BX
        before = self.now.take(parent_BX)
        self.grown = self._progress(torch.cat([before.tail_BYM[:, :, 1:], token_BX[:, :, None]], dim=2), before.held_BYP)
        tokens_BX = torch.where(self.grown.held_BYP, self.length_BP[:, None], self.grown.matched_BYP).sum(-1)
        some = replace(some, rank_BX=self._allocated(some, tokens_BX))

        row_BR = torch.arange(score_BR.shape[1], device=score_BR.device).expand_as(score_BR)
        ends_BX = (some.token_BX == self.end_id) & (some.score_BX > DEAD)
        there_BR = ((some.parent_BX[:, :, None] == row_BR[:, None]) & ends_BX[:, :, None]).any(1)
        ended_BR = (score_BR + end_BR).masked_fill(there_BR | ~whole_BR | self.wishless_B1, DEAD)
        never_BR = torch.full_like(score_BR, DEAD)  # what has ended cannot live on
        self._remember_partial(score_BR + end_BR, whole_BR, penalty, first=length * (parent_BX.shape[1] + score_BR.shape[1]))
        ends = Candidates(row_BR, torch.full_like(row_BR, self.end_id), end_BR, ended_BR, never_BR)
        return Candidates(*(torch.cat(pair, dim=1) for pair in zip(vars(some).values(), vars(ends).values(), strict=True)))

    def _gather(self, logits_BRV: Tensor, log_sum_BR: Tensor, score_BR: Tensor, count: int) -> Candidates:
        best = best_candidates(logits_BRV, log_sum_BR, score_BR, count)
        rows, vocabulary = logits_BRV.shape[1:]
        place_BRP1 = self.now.matched_BYP[:, :, :, None].clamp(max=self.token_BPM.shape[2] - 1)
        next_BRP = self.token_BPM[:, None].expand(-1, rows, -1, -1).gather(3, place_BRP1)[:, :, :, 0].clamp(min=0)
        own_BR1 = logits_BRV.argmax(-1, keepdim=True)
        token_BRX = torch.cat([next_BRP, own_BR1], dim=2)
        log_prob_BRX = (logits_BRV.gather(2, token_BRX) - log_sum_BR[:, :, None]).float()
        useless_BRX = torch.cat([self.now.held_BYP, self.wishless_B1[:, :, None].expand_as(own_BR1)], dim=2)
        score_BRX = (score_BR[:, :, None] + log_prob_BRX).masked_fill(useless_BRX, DEAD)
        parent_BRX = torch.arange(rows, device=token_BRX.device)[:, None].expand_as(token_BRX)
        parent_BX = torch.cat([best.parent_BX, parent_BRX.flatten(1)], dim=1)
        token_BX = torch.cat([best.token_BX, token_BRX.flatten(1)], dim=1)
        place_BX = parent_BX * vocabulary + token_BX
        again_BX = (place_BX[:, :, None] == place_BX[:, None, :]).tril(-1).any(-1)
        score_BX = torch.cat([best.score_BX, score_BRX.flatten(1)], dim=1).masked_fill(again_BX, DEAD)
        log_prob_BX = torch.cat([best.log_prob_BX, log_prob_BRX.flatten(1)], dim=1)
        return Candidates(parent_BX, token_BX, log_prob_BX, score_BX, score_BX)

    def _progress(self, tail_BYM: Tensor, held_BYP: Tensor) -> Progress:
        longest = tail_BYM.shape[2]
        matched_BYP = torch.zeros_like(held_BYP, dtype=torch.long)
        for size in range(1, longest + 1):
            stands_BYP = (tail_BYM[:, :, None, longest - size :] == self.token_BPM[:, None, :, :size]).all(-1)
            held_BYP = held_BYP | (stands_BYP & (self.length_BP == size)[:, None])
            matched_BYP = torch.where(stands_BYP & (self.length_BP > size)[:, None], size, matched_BYP)
        return Progress(tail_BYM, matched_BYP, held_BYP)

    def _allocated(self, some: Candidates, tokens_BX: Tensor) -> Tensor:
        """Greater for what the beam takes before: by place within the bank, then by the bank's tokens."""
        living_BX = (some.score_BX > DEAD) & (some.token_BX != self.end_id)
        better_BXX = some.score_BX[:, None, :] > some.score_BX[:, :, None]
        equal_BXX = (some.score_BX[:, None, :] == some.score_BX[:, :, None]).tril(-1)
        rivals_BXX = (tokens_BX[:, None, :] == tokens_BX[:, :, None]) & living_BX[:, None, :]
        place_BX = ((better_BXX | equal_BXX) & rivals_BXX).sum(-1)
        banks_B1 = self.length_BP.sum(-1, keepdim=True) + 1
        rank_BX = tokens_BX - place_BX * banks_B1
        return rank_BX.to(some.score_BX.dtype).masked_fill(~living_BX, DEAD)

    def _remember_partial(self, score_BR: Tensor, whole_BR: Tensor, penalty: float, *, first: int) -> None:
        """first: the code of the first of this step's candidates, of which the R that end are the last."""
        missing_BR = (~self.now.held_BYP).sum(-1)
        value_BR = (score_BR.double() / penalty + MISSING * missing_BR).masked_fill(whole_BR, DEAD)
        value_B, row_B = value_BR.max(1)
        better_B = value_B > self.partial_B
        columns = self.grown.tail_BYM.shape[1]
        self.partial_code_B = torch.where(better_B, first + columns + row_B, self.partial_code_B)
        self.partial_B = torch.where(better_B, value_B, self.partial_B)

    def choose(self, living_BR: Tensor) -> None:
        """The beam has taken these of the candidates."""
        self.now = self.grown.take(living_BR.clamp(max=self.grown.tail_BYM.shape[1] - 1))

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sentences."""
        self.token_BPM, self.length_BP = self.token_BPM[sentences_B], self.length_BP[sentences_B]
        self.partial_B, self.partial_code_B = self.partial_B[sentences_B], self.partial_code_B[sentences_B]
        self.wishless_B1, self.now = self.wishless_B1[sentences_B], self.now.keep(sentences_B)
