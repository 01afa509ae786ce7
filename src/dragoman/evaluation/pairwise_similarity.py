"""Each line of a few against each other one, by sentence chrF or BLEU: what a choice by minimum Bayes risk asks for.

The numbers are those of sacreBLEU's `sentence_score`, all at once: that two lines share an n-gram k times means that both hold
it a first, a second, … a k-th time, so counting what they share is a product of matrices of zeros and ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER
from sacrebleu.metrics.chrf import CHRF

Table = npt.NDArray[np.float64]
"""Row i, column j: line i as a hypothesis, line j as its reference; in percent."""
Counts = npt.NDArray[np.int64]


def pairwise_chrf(lines: Sequence[str]) -> Table:
    """chrF2 of each line against each."""
    letters = ["".join(line.split()) for line in lines]
    ids = [np.fromiter(map(ord, line), np.int64, len(line)) for line in letters]
    precision = recall = orders = np.zeros((len(lines), len(lines)))
    for total, shared in _shared(ids, CHRF.CHAR_ORDER):
        hypothesis, reference = total[:, None], total[None, :]
        both = (hypothesis > 0) & (reference > 0)  # an order that one of them is too short for does not count
        precision = precision + np.where(both, shared / np.maximum(hypothesis, 1), 0.0)
        recall = recall + np.where(both, shared / np.maximum(reference, 1), 0.0)
        orders = orders + both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    factor = CHRF.BETA**2
    below = factor * precision + recall
    score: Table = 100.0 * (1 + factor) * precision * recall / np.where(below > 0, below, 1.0)
    return score


def pairwise_bleu(lines: Sequence[str], *, tokenize: str = "13a") -> Table:
    """BLEU of each line against each, of sacreBLEU's tokens, with exponential smoothing and effective order."""
    cut = _bleu(tokenize).tokenizer
    tokens = [cut(line.rstrip()).split() for line in lines]
    number = {token: place for place, token in enumerate(dict.fromkeys(chain(*tokens)))}
    ids = [np.array([number[token] for token in line], np.int64) for line in tokens]
    lengths = np.array([len(line) for line in tokens], np.float64)
    logarithms = orders = np.zeros((len(lines), len(lines)))
    some, halving = np.zeros(logarithms.shape, bool), np.ones(logarithms.shape)
    for total, shared in _shared(ids, MAX_NGRAM_ORDER):
        counts = total[:, None] > 0
        missed = counts & (shared == 0)
        halving = np.where(missed, halving * 2.0, halving)
        found = np.where(missed, 1.0 / halving, np.maximum(shared, 1.0)) / np.maximum(total[:, None], 1)
        logarithms = logarithms + np.where(counts, np.log(100.0 * found), 0.0)
        orders = orders + counts
        some |= shared > 0
    brevity = np.minimum(0.0, 1.0 - lengths[None, :] / np.maximum(lengths[:, None], 1.0))
    score: Table = np.where(some, np.exp(brevity + logarithms / np.maximum(orders, 1)), 0.0)
    return score


@lru_cache(maxsize=4)
def _bleu(tokenize: str) -> BLEU:
    return BLEU(tokenize=tokenize, effective_order=True)


def _shared(lines: Sequence[Counts], orders: int) -> Iterator[tuple[Counts, Table]]:
    """For n-grams of 1, 2, … ids: how many each line holds (N,), and how many each two of them share (N, N)."""
    count = len(lines)
    ids = np.concatenate(lines) if count else np.zeros(0, np.int64)
    row = np.concatenate([np.repeat(np.arange(count), [len(line) for line in lines]), [-1]])
    begin, gram = np.arange(len(ids)), np.zeros(len(ids), np.int64)
    for order in range(1, orders + 1):
        whole = row[begin] == row[np.minimum(begin + order - 1, len(ids))]
        begin, gram = begin[whole], gram[whole]
        _, letter = np.unique(ids[begin + order - 1], return_inverse=True)
        _, gram = np.unique(gram * (len(ids) + 1) + letter, return_inverse=True)
        held = np.bincount(row[begin] * (kinds := int(gram.max(initial=0)) + 1) + gram, minlength=count * kinds)
        yield np.bincount(row[begin], minlength=count), _least(held.reshape(count, kinds))


def _least(held_NG: Counts) -> Table:
    """Σ_g min(held_ig, held_jg) for each two rows."""
    shared = np.zeros((len(held_NG), len(held_NG)))
    for times in range(1, int(held_NG.max(initial=0)) + 1):
        held_NG = held_NG[:, (held_NG >= times).any(0)]
        often_NG = (held_NG >= times).astype(np.float32)
        shared += often_NG @ often_NG.T
    return shared
