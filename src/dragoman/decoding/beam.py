"""Beam search as tensor2tensor 1.0.3 ran it for the paper (section 6.1), a pure function of a step.

Each sentence has R hypotheses alive and R finished. At each step the 2R best extensions are taken; those that end compete for
the finished places by score, the R best others live on. A sentence is done when nothing alive can still win, or at its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis, hypothesis_from_rows
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.step import State, Step

DEAD = float("-inf")


@dataclass(frozen=True)
class Pool:
    """R hypotheses for each sentence, in falling order of score.

    score_BR: log-probability (alive) or log-probability over length penalty (finished); -inf marks an empty place
    tokens_BRT, log_probs_BRT: the tokens so far and the log-probability of each
    length_BR: tokens, the end token included
    """

    score_BR: Tensor
    tokens_BRT: Tensor
    log_probs_BRT: Tensor
    length_BR: Tensor

    def take(self, places_BR: Tensor) -> Pool:
        """In each sentence, these places in this order."""
        deep_BRT = places_BR[:, :, None].expand(-1, -1, self.tokens_BRT.shape[2])
        return Pool(
            self.score_BR.gather(1, places_BR),
            self.tokens_BRT.gather(1, deep_BRT),
            self.log_probs_BRT.gather(1, deep_BRT),
            self.length_BR.gather(1, places_BR),
        )

    def best(self, count: int) -> Pool:
        return self.take(self.score_BR.topk(count, dim=1).indices)

    def beside(self, other: Pool) -> Pool:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Pool(*(torch.cat(pair, dim=1) for pair in pairs))

    def keep(self, sentences_B: Tensor) -> Pool:
        return Pool(*(tensor.index_select(0, sentences_B) for tensor in vars(self).values()))

    def hypotheses(self, sentence: int, end_id: int) -> list[Hypothesis]:
        """The filled places of one sentence, as values."""
        found = []
        for place, score in enumerate(self.score_BR[sentence].tolist()):
            if score > DEAD:
                tokens, log_probs = self.tokens_BRT[sentence, place], self.log_probs_BRT[sentence, place]
                length = int(self.length_BR[sentence, place])
                found.append(hypothesis_from_rows(tokens, log_probs, length, score=score, end_id=end_id))
        return found


def _empty_pool(sentences: int, width: int, longest: int, device: torch.device) -> Pool:
    return Pool(
        torch.full((sentences, width), DEAD, device=device),
        torch.zeros(sentences, width, longest, dtype=torch.long, device=device),
        torch.zeros(sentences, width, longest, device=device),
        torch.zeros(sentences, width, dtype=torch.long, device=device),
    )


def _extensions(alive: Pool, log_probs_BRV: Tensor, length: int) -> tuple[Pool, Tensor]:
    """The 2R best hypotheses that are one token longer, and the place in the beam that each grew from."""
    width, vocabulary = log_probs_BRV.shape[1:]
    total_BX = (alive.score_BR[:, :, None] + log_probs_BRV).flatten(1)
    score_BX, index_BX = total_BX.topk(min(2 * width, total_BX.shape[1]), dim=1)
    parent_BX, token_BX = index_BX // vocabulary, index_BX % vocabulary
    grown = alive.take(parent_BX)
    grown.tokens_BRT[:, :, length - 1] = token_BX
    grown.log_probs_BRT[:, :, length - 1] = log_probs_BRV.flatten(1).gather(1, index_BX)
    return replace(grown, score_BR=score_BX, length_BR=torch.full_like(token_BX, length)), parent_BX


def _is_done(alive: Pool, finished: Pool, limit_B: Tensor, penalty: LengthPenalty, counted: int) -> Tensor:
    """No hypothesis alive can still beat the one at place `counted` among the finished.

    Log-probabilities only fall, so the best that one alive can become is its own divided by the largest penalty it can meet.
    A beam of one is greedy search and ends with its first end token.
    """
    if finished.score_BR.shape[1] == 1:
        return finished.score_BR[:, 0] > DEAD
    return finished.score_BR[:, counted] >= alive.score_BR[:, 0] / penalty(limit_B.float())


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
    stop: str = "worst-finished",
    nbest: int = 1,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first; unfinished ones stand after the finished.

    state: that of B sentences; every step then reads N = B · beam_size tokens, the beam of each sentence together
    limits: longest output of each sentence in tokens, its end token included
    stop: what the living must still be able to beat: the "worst-finished" (tensor2tensor 1.0.3), or the "best-finished" (its
        later versions), of which `nbest` are wanted
    """
    assert min(limits, default=1) >= 1
    if not limits:
        return []
    counted = {"worst-finished": beam_size, "best-finished": nbest}[stop] - 1
    found: list[list[Hypothesis]] = [[] for _ in limits]
    sentences_B = torch.arange(len(limits), device=device)
    limit_B = torch.tensor(limits, device=device)
    alive = _empty_pool(len(limits), beam_size, max(limits), device)
    alive.score_BR[:, 0] = 0.0
    finished = _empty_pool(len(limits), beam_size, max(limits), device)
    considered = 2 * beam_size if beam_size > 1 else 1  # a beam of one may only end with its best token, as greedy search does
    last_N = torch.full((len(limits) * beam_size,), start_id, dtype=torch.long, device=device)
    for length in range(1, max(limits) + 1):
        logits_NV, state = step(last_N, state)
        log_probs_NV = logits_NV.float().log_softmax(dim=-1)
        log_probs_NV[:, list(forbidden)] = DEAD
        grown, parent_BX = _extensions(alive, log_probs_NV.view(-1, beam_size, log_probs_NV.shape[1]), length)
        ends_BX = grown.tokens_BRT[:, :, length - 1] == end_id
        counts_BX = ends_BX & (torch.arange(ends_BX.shape[1], device=device) < considered)
        ended = replace(grown, score_BR=(grown.score_BR / penalty(float(length))).masked_fill(~counts_BX, DEAD))
        finished = finished.beside(ended).best(beam_size)
        going_on = replace(grown, score_BR=grown.score_BR.masked_fill(ends_BX, DEAD))
        living = going_on.score_BR.topk(beam_size, dim=1).indices
        alive = going_on.take(living)

        done_B = _is_done(alive, finished, limit_B, penalty, counted) | (limit_B == length)
        for row in done_B.nonzero()[:, 0].tolist():
            cut = replace(alive, score_BR=alive.score_BR / penalty(float(length)))
            ranked = finished.hypotheses(row, end_id) + cut.hypotheses(row, end_id)
            found[int(sentences_B[row])] = ranked[:beam_size]
        if bool(done_B.all()):
            break
        rows_BR = parent_BX.gather(1, living) + torch.arange(len(limit_B), device=device)[:, None] * beam_size
        state = state.reorder(rows_BR.flatten())
        if bool(done_B.any()):
            rest = (~done_B).nonzero()[:, 0]
            state, alive, finished = state.keep(rest), alive.keep(rest), finished.keep(rest)
            sentences_B, limit_B = sentences_B[rest], limit_B[rest]
        last_N = alive.tokens_BRT[:, :, length - 1].flatten()
    return found
