"""Prefix beam search of connectionist temporal classification (Hannun et al. 2014), which finds likely outputs, not paths.

Paths that merge to the same output add up. A prefix has two probabilities at each position: of paths that end with a blank, and
of those that end with its last token. Only the latter merge with the same token at the next position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.repetition import contains_repetition

NEG_INF = -math.inf


@dataclass(eq=False, slots=True)
class Prefix:
    """Beginning of an output. Its probabilities are natural logarithms.

    blank, token: summed probability of the paths so far that merge to this prefix and end with a blank, and with its last token
    next_blank, next_token: the same one position later
    reached: summed probability of the paths whose output begins with this prefix; no less than that of any longer one
    """

    parent: Prefix | None
    last_token: int | None
    length: int
    children: dict[int, Prefix] = field(default_factory=dict)
    blank: float = NEG_INF
    token: float = NEG_INF
    next_blank: float = NEG_INF
    next_token: float = NEG_INF
    reached: float = NEG_INF

    def advance(self) -> None:
        """Take the probabilities of the next position."""
        self.blank, self.token, self.next_blank, self.next_token = self.next_blank, self.next_token, NEG_INF, NEG_INF

    @property
    def total(self) -> float:
        """Return the log-probability that the output so far is this prefix."""
        return add_logs(self.blank, self.token)

    def get_child(self, token: int) -> Prefix:
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = Prefix(self, token, self.length + 1)
        return child


def search_prefixes(
    tokens: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    *,
    blank_id: int,
    beam_size: int,
    max_length: int,
    allow_repetition: bool,
    settings: SearchSettings,
) -> list[Hypothesis]:
    """Return the likeliest outputs of one sentence, at most `beam_size`, by log-probability over length penalty, best first.

    tokens, log_probs: the likeliest predictions at each position, and their natural log-probabilities; all others, even the
        blank, count as impossible
    blank_id: the prediction that adds no token
    max_length: maximum output length in tokens, the end token included; no longer prefix is searched
    allow_repetition: whether an output may contain a degenerate repetition

    The log-probability of a token is that of its prefix less that of the shorter one. So their sum is that of the output.
    """
    root = Prefix(None, None, 0, blank=0.0, reached=0.0)
    beam = [root]
    for frame_tokens, frame_log_probs in zip(tokens, log_probs, strict=True):
        beam = extend_prefixes(beam, frame_tokens, frame_log_probs, blank_id, beam_size, max_length)
    hypotheses = [build_hypothesis(prefix, allow_repetition=allow_repetition, settings=settings) for prefix in beam]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def extend_prefixes(
    beam: Sequence[Prefix],
    tokens: Sequence[int],
    log_probs: Sequence[float],
    blank_id: int,
    beam_size: int,
    max_length: int,
) -> list[Prefix]:
    """Return the likeliest prefixes after one more position, and drop the probabilities of all others."""
    candidates = dict.fromkeys(beam)
    for prefix in beam:
        total = prefix.total
        for token, log_prob in zip(tokens, log_probs, strict=True):
            if log_prob == NEG_INF:
                continue
            if token == blank_id:
                prefix.next_blank = add_logs(prefix.next_blank, total + log_prob)
                continue
            is_repeated = token == prefix.last_token
            if is_repeated:
                prefix.next_token = add_logs(prefix.next_token, prefix.token + log_prob)
            extension = (prefix.blank if is_repeated else total) + log_prob
            if extension == NEG_INF or prefix.length + 1 >= max_length:
                continue
            child = prefix.get_child(token)
            child.next_token = add_logs(child.next_token, extension)
            child.reached = add_logs(child.reached, extension)
            candidates[child] = None
    for prefix in candidates:
        prefix.advance()
    kept = nlargest(beam_size, candidates, key=lambda prefix: prefix.total)
    kept = [prefix for prefix in kept if prefix.total > NEG_INF] or list(beam[:1])
    for prefix in candidates.keys() - set(kept):
        prefix.blank = prefix.token = NEG_INF
    return kept


def build_hypothesis(prefix: Prefix, *, allow_repetition: bool, settings: SearchSettings) -> Hypothesis:
    nodes: list[Prefix] = []
    node, total = prefix, prefix.total
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    reached = [0.0, *(node.reached for node in reversed(nodes)), total]
    token_log_probs = tuple(min(later - earlier, 0.0) for earlier, later in pairwise(reached))
    tokens = tuple(node.last_token for node in reversed(nodes) if node.last_token is not None)
    window = settings.decoding_constraints.repetition_window
    return Hypothesis(
        tokens=tokens,
        token_log_probs=token_log_probs,
        score=total / settings.length_penalty(float(len(token_log_probs))),
        finished=True,
        has_repetition=bool(window) and not allow_repetition and contains_repetition(tokens, window),
    )


def add_logs(left: float, right: float) -> float:
    if left < right:
        left, right = right, left
    return left if right == NEG_INF else left + math.log1p(math.exp(right - left))
