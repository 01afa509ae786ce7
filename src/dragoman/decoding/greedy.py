"""One hypothesis a sentence, token by token: the likeliest each time (greedy), or one drawn by chance (sampling)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from dragoman.decoding.constraints import DEAD, NO_RULES, NO_WISH, Bans, Phrase, Rules, Wish, holds
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import State, Step
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.repetition import EVERY, looping
from dragoman.decoding.topk import LogSums, PlainRanking, Ranking, top

Choose = Callable[[Tensor, Sequence[int], int, Ranking], Tensor]
"""(logits_NV, the sentence of each row, length of the output with this token, how to find the best) → tokens_N."""

# Draws seldom fall beyond the likeliest so many tokens; where one does, the whole vocabulary is sorted.
LIKELY = 256
# Stands for a token where nothing was allowed.
STUCK = -1


def likeliest(logits_NV: Tensor, sentences: Sequence[int], length: int, ranking: Ranking) -> Tensor:
    """Greedy search's choice."""
    return ranking.top(logits_NV[:, None], None, 1)[:, 0]


def sampler(seeds: Sequence[int], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Choose:
    """Draw each token from the (sharpened, cut) distribution; the draw is a function of the sentence's seed and the length.

    top_k: only the k likeliest, 0 for all. top_p: then only the likeliest that together reach this much of the whole
    (Holtzman et al. 2020).
    """

    def draw(sentence: int, length: int) -> float:
        # Python's generator takes every bit of a seed, torch's only 32. 24 bits: none rounds up to 1 in float32.
        return random.Random(f"{seeds[sentence]} {length}").getrandbits(24) / 2**24

    def choose(logits_NV: Tensor, sentences: Sequence[int], length: int, ranking: Ranking) -> Tensor:
        uniform_N = torch.tensor([draw(sentence, length) for sentence in sentences], device=logits_NV.device)
        sharpened_NV = logits_NV if temperature == 1.0 else logits_NV / temperature
        return drawn(sharpened_NV, log_sums(sharpened_NV), uniform_N, top_k=top_k, top_p=top_p)

    log_sums = LogSums()
    return choose


def drawn(
    logits_NV: Tensor, log_sum_N: Tensor, uniform_N: Tensor, *, top_k: int, top_p: float, looked_at: int = LIKELY
) -> Tensor:
    """The tokens at which the probabilities, the greatest first, pass this share of what top_k and top_p leave. → (N,)"""
    vocabulary = logits_NV.shape[1]
    count = min(vocabulary, max(looked_at, top_k)) if logits_NV.device.type == "cpu" else vocabulary
    order_NX = top(logits_NV[:, None], None, count)
    probs_NX = (logits_NV.gather(1, order_NX) - log_sum_N[:, None]).float().exp()
    if top_k:
        probs_NX[:, top_k:] = 0.0
    before_NX = probs_NX.cumsum(-1) - probs_NX
    cumulative_NX = probs_NX.masked_fill(before_NX >= top_p, 0.0).cumsum(-1)
    kept_N1 = cumulative_NX[:, -1:]
    sure_N1 = before_NX[:, -1:] >= top_p  # all that is left of the vocabulary was looked at
    if count == vocabulary or top_k:
        sure_N1 = torch.ones_like(sure_N1)
    elif top_p == 1.0:
        sure_N1, kept_N1 = uniform_N[:, None] < kept_N1, torch.ones_like(kept_N1)
    rank_N1 = torch.searchsorted(cumulative_NX, kept_N1 * uniform_N[:, None], right=True).clamp(max=count - 1)
    token_N = order_NX.gather(1, rank_N1)[:, 0]
    if count < vocabulary and not bool(sure_N1.all()):
        rest = (~sure_N1[:, 0]).nonzero()[:, 0]
        some = (logits_NV[rest], log_sum_N[rest], uniform_N[rest])
        token_N[rest] = drawn(*some, top_k=top_k, top_p=top_p, looked_at=vocabulary)
    return token_N


@torch.no_grad()
def one_by_one(
    step: Step,
    state: State,
    *,
    limits: Sequence[int],
    start_id: int,
    end_id: int,
    forbidden: Sequence[int] = (),
    penalty: LengthPenalty,
    choose: Choose = likeliest,
    device: torch.device,
    wishes: Sequence[Wish] = (),
    rules: Rules = NO_RULES,
    ranking: Ranking | None = None,
    leaving: float = 0.0,
) -> list[Hypothesis]:
    """Extend each sentence by the chosen token until its end token or its limit (tokens, the end token included).

    limits: at least one token each. `forbidden` tokens are never chosen
    wishes: one for each sentence, or none at all; a phrase can be placed by a beam only, and is named as missing here
    ranking: PyTorch's where none is given
    leaving: sentences that are done leave the batch together once they are this share of it; 0: at once, 1: all at the end
    """
    assert min(limits, default=1) >= 1
    wishes = wishes or [NO_WISH] * len(limits)
    assert all(len(wish.prefix) < limit for wish, limit in zip(wishes, limits, strict=True)), "a prefix beyond its limit"
    ranking = ranking or PlainRanking()
    bans = Bans(rules, wishes, forbidden=forbidden, end_id=end_id, rows=1, device=device)
    may_strand = rules != NO_RULES or any(wish != NO_WISH for wish in wishes)
    spoken: list[list[int]] = [[] for _ in limits]
    over: dict[int, bool] = {}  # the sentences that are done, and whether they looped
    left = list(range(len(limits)))
    lefts: list[list[int]] = []
    log_probs: list[Tensor] = []
    last_N = torch.full((len(limits),), start_id, dtype=torch.long, device=device)
    outputs: list[Tensor] = []  # what the rows have said at each step, where somebody asks
    while len(over) < len(limits):
        length = len(lefts) + 1
        logits_NV, state = step(last_N, state)
        logits_NV = logits_NV.float()
        log_sum_N = ranking.log_sums(logits_NV)
        bans(logits_NV, _table(outputs, logits_NV) if bans.read_outputs else None, length)
        last_N = choose(logits_NV, left, length, ranking)
        log_prob_N = (logits_NV.gather(1, last_N[:, None])[:, 0] - log_sum_N).float()
        lefts.append(left)
        log_probs.append(log_prob_N)
        said = (last_N.where(log_prob_N > DEAD, STUCK) if may_strand else last_N).tolist()
        looped = [False] * len(left)
        if bans.read_outputs or rules.repetition_window:
            outputs.append(last_N)
        if rules.repetition_window and length % EVERY == 0:
            looped = looping(_table(outputs, logits_NV), rules.repetition_window).tolist()
        for number, token, loops in zip(left, said, looped, strict=True):
            if number not in over:
                spoken[number].append(token)
                loops = loops and not wishes[number].may_loop
                if token in (end_id, STUCK) or loops or limits[number] == length:
                    over[number] = loops
        stay = [row for row, number in enumerate(left) if number not in over] if over else left
        if stay and len(stay) < len(left) and len(left) - len(stay) >= leaving * len(left):
            stay_N = torch.tensor(stay, device=device)
            state, last_N = state.keep(stay_N), last_N[stay_N]
            outputs = [said_N[stay_N] for said_N in outputs]
            bans.keep(stay_N)
            left = [left[row] for row in stay]
    thought: list[list[float]] = [[] for _ in limits]
    for number, log_prob in zip(chain(*lefts), torch.cat(log_probs).tolist() if log_probs else [], strict=True):
        thought[number].append(log_prob)
    return [
        as_hypothesis(tokens, those, over[number], end_id=end_id, penalty=penalty, include=wish.include)
        for number, (tokens, those, wish) in enumerate(zip(spoken, thought, wishes, strict=True))
    ]


def _table(outputs: Sequence[Tensor], logits_NV: Tensor) -> Tensor:
    """(N, T)"""
    return (
        torch.stack(list(outputs), dim=1)
        if outputs
        else torch.empty(len(logits_NV), 0, dtype=torch.long, device=logits_NV.device)
    )


def as_hypothesis(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    looped: bool,
    *,
    end_id: int,
    penalty: LengthPenalty,
    include: Sequence[Phrase] = (),
) -> Hypothesis:
    """What was said, up to the end token, or to STUCK where nothing was allowed.

    log_probs: those of the tokens, and what was said while the sentence waited to leave. include: phrases that it was to hold
    """
    length = len(tokens) - (tokens[-1] == STUCK)
    finished = tokens[-1] == end_id
    said, token_log_probs = tuple(tokens[: length - finished]), tuple(log_probs[:length])
    missing = tuple(phrase for phrase in include if not holds(said, phrase))
    score = sum(token_log_probs) / penalty(float(max(length, 1)))
    return Hypothesis(said, token_log_probs, score, finished, looped, missing)
