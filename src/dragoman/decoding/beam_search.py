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

from dragoman.decoding.beam_history import Ending, outcome
from dragoman.decoding.constraints import DEAD, NO_RULES, NO_WISH, Bans, Rules, Wish, force
from dragoman.decoding.diverse_beam import ONE_GROUP, Groups, diverse_candidates, merged
from dragoman.decoding.history import Entry, History
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import State, Step
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.phrase_constraints import Phrases, placeable
from dragoman.decoding.repetition import EVERY, looping
from dragoman.decoding.topk import Candidates, PlainRanking, Ranking, best_candidates


@torch.no_grad()
def beam_search(
    step: Step,
    state: State,
    *,
    limits: Sequence[int],
    beam_size: int,
    start_id: int,
    end_id: int,
    forbidden: Sequence[int] = (),
    penalty: LengthPenalty,
    stop: str = "exhaustive",
    nbest: int = 1,
    device: torch.device,
    wishes: Sequence[Wish] = (),
    rules: Rules = NO_RULES,
    groups: Groups = ONE_GROUP,
    ranking: Ranking | None = None,
    leaving: float = 0.0,
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
    assert min(limits, default=1) >= 1
    assert beam_size % groups.count == 0
    if not limits:
        return []
    beam = _Beam(
        limits=[limit for limit in limits for _ in range(groups.count)],
        wishes=[wish for wish in wishes or [NO_WISH] * len(limits) for _ in range(groups.count)],
        rows=beam_size // groups.count,
        end_id=end_id,
        forbidden=forbidden,
        penalty=penalty,
        stop=stop,
        nbest=nbest,
        rules=rules,
        groups=groups,
        ranking=ranking or PlainRanking(),
        device=device,
    )
    last_N = torch.full((len(limits) * beam_size,), start_id, dtype=torch.long, device=device)
    while True:
        logits_NV, state = step(last_N, state)
        rows_N, last_N = beam.advance(logits_NV)
        if all(beam.over):
            return beam.results()
        state = state.reorder(rows_N)
        stay = beam.drop(leaving)
        if stay is not None:
            sentences_B, kept_N = stay
            state, last_N = state.keep(sentences_B), last_N[kept_N]


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
        limits: Sequence[int],
        wishes: Sequence[Wish],
        rows: int,
        end_id: int,
        forbidden: Sequence[int],
        penalty: LengthPenalty,
        stop: str,
        nbest: int,
        rules: Rules,
        groups: Groups,
        ranking: Ranking,
        device: torch.device,
    ) -> None:
        sentences = len(limits)
        assert len(wishes) == sentences
        assert all(len(wish.prefix) < limit for wish, limit in zip(wishes, limits, strict=True)), "a prefix beyond its limit"
        self.limits, self.wishes, self.rows, self.end_id = limits, wishes, rows, end_id
        self.penalty, self.rules, self.groups, self.device = penalty, rules, groups, device
        self.counted = (rows if stop == "exhaustive" else min(nbest, rows)) - 1
        self.all_finished = stop == "beam_full"
        self.length = 0
        self.left, self.over = list(range(sentences)), [False] * sentences
        self.place = np.arange(sentences)
        self.cap_B = penalty(torch.tensor(limits, dtype=torch.float, device=device))
        self.first_row_B1 = torch.arange(0, sentences * rows, rows, device=device)[:, None]
        self.score_BR = torch.full((sentences, rows), DEAD, device=device)
        self.score_BR[:, 0] = 0.0
        self.finished_BR = torch.full((sentences, rows), DEAD, device=device)
        self.finished_code_BR = torch.zeros(sentences, rows, dtype=torch.long, device=device)
        self.ranking, self.history = ranking, History()
        self.endings: dict[int, Ending] = {}
        self.looped: dict[int, list[tuple[float, Entry]]] = {}
        self.bans = Bans(rules, wishes, forbidden=forbidden, end_id=end_id, rows=rows, share=groups.count, device=device)
        self.phrases: Phrases | None = None
        if any(wish.include for wish in wishes):
            assert not groups.strength, "phrases in groups that keep apart"
            limited = zip(wishes, limits, strict=True)
            placed = [placeable(wish, rules, forbidden=forbidden, end_id=end_id, limit=limit) for wish, limit in limited]
            self.phrases = Phrases(placed, rows=rows, end_id=end_id, device=device)
        self.outputs_NT: Tensor | None = None
        if self.bans.read_outputs or rules.repetition_window:
            self.outputs_NT = torch.empty(sentences * rows, 0, dtype=torch.long, device=device)

    def advance(self, logits_NV: Tensor) -> tuple[Tensor, Tensor]:
        """One token more: the row that each row has become (N,), and what it says last (N,)."""
        self.length += 1
        logits_NV = logits_NV.float()
        log_sum_BR = self.ranking.log_sums(logits_NV).view(-1, self.rows)
        self.bans(logits_NV, self.outputs_NT, self.length)
        if self.groups.branching:
            self._branch(logits_NV)
        grown = self._grow(logits_NV.view(-1, self.rows, logits_NV.shape[1]), log_sum_BR)
        end_BX = grown.token_BX == self.end_id
        self._finish(grown, end_BX)
        living_BR = self._choose(grown, end_BX)
        token_BR = grown.token_BX.gather(1, living_BR)
        rows_N = (grown.parent_BX.gather(1, living_BR) + self.first_row_B1).flatten()
        last_N = token_BR.flatten()
        self.history.add(grown.parent_BX, grown.token_BX, grown.log_prob_BX, living_BR, self.place)
        if self.outputs_NT is not None:
            self.outputs_NT = torch.cat([self.outputs_NT.index_select(0, rows_N), last_N[:, None]], dim=1)
            if self.rules.repetition_window and self.length % EVERY == 0:
                self._stop_loops(self.outputs_NT, living_BR)
        self._seal(living_BR)
        return rows_N, last_N

    def _grow(self, logits_BRV: Tensor, log_sum_BR: Tensor) -> Candidates:
        count = 2 * self.rows
        if self.phrases is not None:
            penalty = self.penalty(float(self.length))
            return self.phrases.candidates(logits_BRV, log_sum_BR, self.score_BR, count, length=self.length, penalty=penalty)
        if self.groups.strength and self.groups.count > 1:
            shape = (-1, self.groups.count, self.rows)
            return diverse_candidates(
                logits_BRV.view(*shape, logits_BRV.shape[2]),
                log_sum_BR.view(shape),
                self.score_BR.view(shape),
                count,
                strength=self.groups.strength,
                end_id=self.end_id,
            )
        return best_candidates(logits_BRV, log_sum_BR, self.score_BR, count, self.ranking)

    def _branch(self, logits_NV: Tensor) -> None:
        """Where a sentence's prefix has just been said: its groups each take one of the likeliest tokens."""
        count = self.groups.count
        here = [self.length == len(self.wishes[number].prefix) + 1 for number in self.left[::count]]
        if any(here):
            first_BV = logits_NV.view(len(here), count * self.rows, -1)[:, 0]
            token_BG = first_BV.topk(count, dim=1).indices
            token_BG = token_BG.where(torch.tensor(here, device=self.device)[:, None], -1)
            token_N = token_BG.flatten().repeat_interleave(self.rows)
            force(logits_NV, token_N, logits_NV.gather(1, token_N.clamp(min=0)[:, None]))

    def _finish(self, grown: Candidates, end_BX: Tensor) -> None:
        """Those that end compete for the finished places."""
        if end_BX.device.type == "cpu" and not bool(end_BX.any()):
            return  # elsewhere it costs more to ask
        if self.all_finished:
            end_BX = end_BX & (torch.arange(end_BX.shape[1], device=self.device) < self.rows)
        if self.rows == 1:  # as greedy search ends: by its best alone, but for sentences that phrases are asked of
            best_BX = (torch.arange(end_BX.shape[1], device=self.device) == 0).expand_as(end_BX)
            end_BX = end_BX & (best_BX if self.phrases is None else best_BX | ~self.phrases.wishless_B1)
        ended_BX = (grown.score_BX / self.penalty(float(self.length))).masked_fill(~end_BX, DEAD)
        first = self.length * end_BX.shape[1]
        code_BX = torch.arange(first, first + end_BX.shape[1], device=self.device).expand_as(end_BX)
        self.finished_BR, best_BR = torch.cat([self.finished_BR, ended_BX], dim=1).topk(self.rows, dim=1)
        self.finished_code_BR = torch.cat([self.finished_code_BR, code_BX], dim=1).gather(1, best_BR)

    def _choose(self, grown: Candidates, end_BX: Tensor) -> Tensor:
        """Those that live on, as columns among the candidates."""
        going_on_BX = grown.score_BX.masked_fill(end_BX, DEAD)
        if grown.rank_BX is grown.score_BX:
            self.score_BR, living_BR = going_on_BX.topk(self.rows, dim=1)
        else:
            living_BR = grown.rank_BX.masked_fill(end_BX, DEAD).topk(self.rows, dim=1).indices
            self.score_BR = going_on_BX.gather(1, living_BR)
        if self.rules.allow is not None:
            # An empty place shows what the first does, lest an automaton meet what it never allowed.
            living_BR = torch.where(self.score_BR > DEAD, living_BR, living_BR[:, :1])
        if self.phrases is not None:
            self.phrases.choose(living_BR)
        return living_BR

    def _stop_loops(self, outputs_NT: Tensor, living_BR: Tensor) -> None:
        """Hypotheses that go round in circles leave the beam and are remembered."""
        looping_BR = looping(outputs_NT, self.rules.repetition_window).view_as(self.score_BR) & (self.score_BR > DEAD)
        if not bool(looping_BR.any()):
            return
        for row, place in looping_BR.nonzero().tolist():
            number = self.left[row]
            if self.wishes[number].may_loop:
                looping_BR[row, place] = False
            elif not self.over[row]:
                entry = Entry(number, self.length, int(living_BR[row, place]))
                score = float(self.score_BR[row, place]) / self.penalty(float(self.length))
                self.looped.setdefault(number, []).append((score, entry))
        self.score_BR = self.score_BR.masked_fill(looping_BR, DEAD)

    def _seal(self, living_BR: Tensor) -> None:
        """Remember what the sentences have come to that are done now.

        No hypothesis alive can still beat the one at place `counted` among the finished: log-probabilities only fall, so the
        best that one alive can become is its own divided by the largest penalty it can meet. A beam of one is greedy search and
        ends with its first end.
        """
        best_B = self.score_BR.amax(1)
        done_B = self.finished_BR[:, self.counted] >= best_B / self.cap_B
        if self.all_finished:
            done_B |= self.finished_BR[:, -1] > DEAD
        if self.rows == 1:
            done_B = (self.finished_BR[:, 0] > DEAD) | (best_B == DEAD)
        done = done_B.tolist()
        fresh = [
            row
            for row, number in enumerate(self.left)
            if not self.over[row] and (done[row] or self.limits[number] == self.length)
        ]
        if not fresh:
            return
        for row in fresh:
            self.over[row] = True
        rows_B = torch.tensor(fresh, device=self.device)
        partial_B = None
        if self.phrases is not None:
            partial_B = self.phrases.partial_code_B.masked_fill(self.phrases.partial_B == DEAD, -1)[rows_B].tolist()
        columns = (self.finished_BR, self.finished_code_BR, self.score_BR, living_BR)
        finished, codes, score, living = (tensor[rows_B].tolist() for tensor in columns)
        for place, row in enumerate(fresh):
            number = self.left[row]
            partial = None if partial_B is None or partial_B[place] < 0 else int(partial_B[place])
            self.endings[number] = Ending(
                self.length, finished[place], codes[place], score[place], living[place], self.looped.get(number, ()), partial
            )

    def drop(self, leaving: float) -> tuple[Tensor, Tensor] | None:
        """Let sentences go that are done, all their groups: which stay (B,), and their rows (N,). None where all stay."""
        count = self.groups.count
        over = [all(self.over[first : first + count]) for first in range(0, len(self.over), count)]
        if not any(over) or sum(over) < leaving * len(over):
            return None
        sentences_B = torch.tensor([sentence for sentence, done in enumerate(over) if not done], device=self.device)
        stay_B = sentences_B
        if count > 1:
            stay_B = (sentences_B[:, None] * count + torch.arange(count, device=self.device)).flatten()
        rows_N = (stay_B[:, None] * self.rows + torch.arange(self.rows, device=self.device)).flatten()
        stay = [row for row in range(len(self.over)) if not over[row // count]]
        self.left, self.over = [self.left[row] for row in stay], [self.over[row] for row in stay]
        self.place = np.full(len(self.limits), -1)
        self.place[self.left] = np.arange(len(self.left))
        self.cap_B, self.first_row_B1 = self.cap_B[stay_B], self.first_row_B1[: len(stay)]
        self.score_BR, self.finished_BR = self.score_BR[stay_B], self.finished_BR[stay_B]
        self.finished_code_BR = self.finished_code_BR[stay_B]
        self.bans.keep(stay_B)
        if self.phrases is not None:
            self.phrases.keep(stay_B)
        if self.outputs_NT is not None:
            self.outputs_NT = self.outputs_NT[rows_N]
        return sentences_B, rows_N

    def results(self) -> list[list[Hypothesis]]:
        """What each sentence has come to."""
        endings = [self.endings[number] for number in range(len(self.limits))]
        phrases = [wish.include for wish in self.wishes]
        found = outcome(endings, self.history, end_id=self.end_id, penalty=self.penalty, phrases=phrases)
        count = self.groups.count
        if count == 1:
            return found
        return [merged(found[first : first + count], branching=self.groups.branching) for first in range(0, len(found), count)]
