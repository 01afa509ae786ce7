"""One hypothesis a sentence, token by token: the likeliest each time (greedy), or one drawn by chance (sampling)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis, hypothesis_from_rows
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.step import State, Step

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(log_probs_NV, sentences_N, length of the output with this token) → tokens_N."""


def likeliest(log_probs_NV: Tensor, sentences_N: Tensor, length: int) -> Tensor:
    """Greedy search's choice."""
    return log_probs_NV.argmax(dim=-1)


def sampler(seeds: Sequence[int], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Choose:
    """Draw each token from the (sharpened, cut) distribution; the draw is a function of the sentence's seed and the length.

    top_k: only the k likeliest, 0 for all. top_p: then only the likeliest that together reach this much of the whole
    (Holtzman et al. 2020).
    """

    def draw(sentence: int, length: int) -> float:
        # Python's generator takes every bit of a seed, torch's only 32. 24 bits: none rounds up to 1 in float32.
        return random.Random(f"{seeds[sentence]} {length}").getrandbits(24) / 2**24

    def choose(log_probs_NV: Tensor, sentences_N: Tensor, length: int) -> Tensor:
        sharpened_NV, order_NV = (log_probs_NV / temperature).sort(dim=-1, descending=True)
        probs_NV = sharpened_NV.softmax(dim=-1)
        if top_k:
            probs_NV[:, top_k:] = 0.0
        probs_NV[probs_NV.cumsum(-1) - probs_NV >= top_p] = 0.0
        uniform = [draw(sentence, length) for sentence in sentences_N.tolist()]
        cumulative_NV = probs_NV.cumsum(-1)
        threshold_N1 = cumulative_NV[:, -1:] * torch.tensor(uniform, device=log_probs_NV.device)[:, None]
        rank_N1 = torch.searchsorted(cumulative_NV, threshold_N1, right=True).clamp(max=probs_NV.shape[1] - 1)
        return order_NV.gather(1, rank_N1)[:, 0]

    return choose


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
) -> list[Hypothesis]:
    """Extend each sentence by the chosen token until its end token or its limit (tokens, the end token included).

    limits: at least one token each. A sentence leaves the batch when it ends. `forbidden` tokens are never chosen.
    """
    assert min(limits, default=1) >= 1
    if not limits:
        return []
    found: list[Hypothesis | None] = [None] * len(limits)
    sentences_B = torch.arange(len(limits), device=device)
    limit_B = torch.tensor(limits, device=device)
    tokens_BT = torch.empty(len(limits), max(limits), dtype=torch.long, device=device)
    log_probs_BT = torch.empty(len(limits), max(limits), device=device)
    last_B = torch.full((len(limits),), start_id, dtype=torch.long, device=device)
    for length in range(1, max(limits) + 1):
        logits_BV, state = step(last_B, state)
        log_probs_BV = logits_BV.float().log_softmax(dim=-1)
        log_probs_BV[:, list(forbidden)] = float("-inf")
        last_B = choose(log_probs_BV, sentences_B, length)
        tokens_BT[:, length - 1] = last_B
        log_probs_BT[:, length - 1] = log_probs_BV.gather(1, last_B[:, None])[:, 0]
        done_B = (last_B == end_id) | (limit_B == length)
        if not bool(done_B.any()):
            continue
        for row in done_B.nonzero()[:, 0].tolist():
            score = log_probs_BT[row, :length].sum().item() / penalty(float(length))
            hypothesis = hypothesis_from_rows(tokens_BT[row], log_probs_BT[row], length, score=score, end_id=end_id)
            found[int(sentences_B[row])] = hypothesis
        if bool(done_B.all()):
            break
        rest = (~done_B).nonzero()[:, 0]
        state = state.keep(rest)
        sentences_B, limit_B, last_B = sentences_B[rest], limit_B[rest], last_B[rest]
        tokens_BT, log_probs_BT = tokens_BT[rest], log_probs_BT[rest]
    return [hypothesis for hypothesis in found if hypothesis is not None]
