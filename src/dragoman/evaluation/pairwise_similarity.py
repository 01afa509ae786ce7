"""Pairwise sentence chrF or BLEU between all lines of a list, the utility of minimum Bayes risk decoding.

The numbers equal those of sacreBLEU's `sentence_score`. Two lines share an n-gram k times if each contains it at least k times.
So the counts of shared n-grams are sums of products of binary matrices, one for each k.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from dragoman.errors import naming_missing_library
from dragoman.evaluation.metrics import bleu_metric

ScoreMatrix = npt.NDArray[np.float64]
"""Score in percent of line i (row) as the hypothesis with line j (column) as its reference."""
CountArray = npt.NDArray[np.int64]
CHRF_ORDER, CHRF_BETA, BLEU_ORDER = 6, 2, 4
"""Longest n-grams of characters, weight of the recall, and longest n-grams of tokens."""
DIGITS, DECIMAL_MARKS = "0-9", ".,"
SYMBOLS = re.escape("".join(sorted(set(string.punctuation) - set("',-."))))
STEPS_13A = (
    (re.compile(f"([{SYMBOLS}])"), r" \1 "),
    (re.compile(f"([^{DIGITS}])([{DECIMAL_MARKS}])"), r"\1 \2 "),
    (re.compile(f"([{DECIMAL_MARKS}])([^{DIGITS}])"), r" \1 \2"),
    (re.compile(f"([{DIGITS}])-"), r"\1 - "),
)
"""Expressions of the tokenizer 13a and their replacements, in order. ASCII punctuation but `'`, `,`, `-` and `.` are tokens; a
period or a comma is one beside a character that is no digit; and so is a hyphen behind a digit.

Source: the rule of NIST's mteval-v13a."""


def pairwise_chrf(lines: Sequence[str]) -> ScoreMatrix:
    """Return chrF2 of each line against each. → (N, N)"""
    characters = ["".join(line.split()) for line in lines]
    ids = [np.fromiter(map(ord, line), np.int64, len(line)) for line in characters]
    precision = recall = orders = np.zeros((len(lines), len(lines)))
    for total, shared in _count_shared_ngrams(ids, CHRF_ORDER):
        hypothesis, reference = total[:, None], total[None, :]
        in_both = (hypothesis > 0) & (reference > 0)  # ignore n-grams longer than one of the two lines
        precision = precision + np.where(in_both, shared / np.maximum(hypothesis, 1), 0.0)
        recall = recall + np.where(in_both, shared / np.maximum(reference, 1), 0.0)
        orders = orders + in_both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    beta_squared = CHRF_BETA**2
    denominator = beta_squared * precision + recall
    score: ScoreMatrix = 100.0 * (1 + beta_squared) * precision * recall / np.where(denominator > 0, denominator, 1.0)
    return score


def pairwise_bleu(lines: Sequence[str], *, tokenize: str = "13a") -> ScoreMatrix:
    """Return BLEU of each line against each, with exponential smoothing and effective order. → (N, N)

    tokenize: sacreBLEU's tokenizer

    Raises RecipeError for a tokenizer that is unknown or cannot run, and MissingDependencyError without sacreBLEU for another
    one than 13a and none.
    """
    tokenizer = _build_tokenizer(tokenize)
    tokens = [tokenizer(line.rstrip()).split() for line in lines]
    token_ids = {token: index for index, token in enumerate(dict.fromkeys(chain(*tokens)))}
    ids = [np.array([token_ids[token] for token in line], np.int64) for line in tokens]
    lengths = np.array([len(line) for line in tokens], np.float64)
    log_precisions = orders = np.zeros((len(lines), len(lines)))
    has_match, smoothing = np.zeros(log_precisions.shape, bool), np.ones(log_precisions.shape)
    for total, shared in _count_shared_ngrams(ids, BLEU_ORDER):
        counts = total[:, None] > 0
        is_unmatched = counts & (shared == 0)
        smoothing = np.where(is_unmatched, smoothing * 2.0, smoothing)
        precision = np.where(is_unmatched, 1.0 / smoothing, np.maximum(shared, 1.0)) / np.maximum(total[:, None], 1)
        log_precisions = log_precisions + np.where(counts, np.log(100.0 * precision), 0.0)
        orders = orders + counts
        has_match |= shared > 0
    brevity = np.minimum(0.0, 1.0 - lengths[None, :] / np.maximum(lengths[:, None], 1.0))
    score: ScoreMatrix = np.where(has_match, np.exp(brevity + log_precisions / np.maximum(orders, 1)), 0.0)
    return score


def tokenize_13a(line: str) -> str:
    """Return the tokens of a line of mteval-v13a, as sacreBLEU's tokenizer `13a` makes them, with spaces between them."""
    line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        line = line.replace(entity, character)
    line = f" {line} "
    for expression, replacement in STEPS_13A:
        line = expression.sub(replacement, line)
    return " ".join(line.split())


@lru_cache(maxsize=4)
def _build_tokenizer(tokenize: str) -> Callable[[str], str]:
    if tokenize == "none":
        return str
    if tokenize == "13a":
        return tokenize_13a
    with naming_missing_library(f"BLEU with the tokenizer {tokenize}"):
        tokenizer: Callable[[str], str] = bleu_metric(tokenize).tokenizer
    return tokenizer


def _count_shared_ngrams(lines: Sequence[CountArray], orders: int) -> Iterator[tuple[CountArray, ScoreMatrix]]:
    """Yield the number of n-grams in each line (N,) and in common to each two lines (N, N), for n = 1, 2, …, `orders`."""
    count = len(lines)
    ids = np.concatenate(lines) if count else np.zeros(0, np.int64)
    row = np.concatenate([np.repeat(np.arange(count), [len(line) for line in lines]), [-1]])
    start, ngram = np.arange(len(ids)), np.zeros(len(ids), np.int64)
    for order in range(1, orders + 1):
        is_within_line = row[start] == row[np.minimum(start + order - 1, len(ids))]
        start, ngram = start[is_within_line], ngram[is_within_line]
        _, last_id = np.unique(ids[start + order - 1], return_inverse=True)
        _, ngram = np.unique(ngram * (len(ids) + 1) + last_id, return_inverse=True)
        ngram_counts = np.bincount(
            row[start] * (num_ngrams := int(ngram.max(initial=0)) + 1) + ngram, minlength=count * num_ngrams
        )
        yield np.bincount(row[start], minlength=count), _sum_minima(ngram_counts.reshape(count, num_ngrams))


def _sum_minima(count_NG: CountArray) -> ScoreMatrix:
    """Return Σ_g min(count_ig, count_jg) for each two rows. → (N, N)"""
    shared = np.zeros((len(count_NG), len(count_NG)))
    for min_count in range(1, int(count_NG.max(initial=0)) + 1):
        count_NG = count_NG[:, (count_NG >= min_count).any(0)]
        has_count_NG = (count_NG >= min_count).astype(np.float32)
        shared += has_count_NG @ has_count_NG.T
    return shared
