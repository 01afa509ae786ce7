"""Training of lexical shortlists by the model's own attention over sentence pairs.

The search of a batch outputs the tokens of the shortlist only. It is faster, and its translations differ slightly.

    V source tokens    K candidate target tokens of one source token    F frequent target tokens    W tokens of a batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import DataError
from dragoman.formats.text import is_blank
from dragoman.shortlist import Shortlist, compute_vocabulary_digest
from dragoman.tasks.forced_decoding import ForcedDecoder, compute_cross_attentions
from dragoman.tasks.inference_model import get_decoder_start_id

# Smaller attention weights are ignored.
MIN_ATTENTION = 0.1
PAIR_BATCH_SIZE = 512


def build_shortlist(
    bundle: Bundle,
    decoder: ForcedDecoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    per_token: int,
    num_frequent: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[Shortlist, int]:
    """Return the shortlist of these pairs, and the number of pairs that are longer than the training pairs and are skipped.

    decoder: the bundle's model, whose attention shows the likely target tokens
    per_token: most candidate target tokens of one source token
    num_frequent: number of the most frequent target tokens, which every batch may use
    on_progress: called with the number of pairs that are finished

    Raises DataError if no pair has text on both sides and the length of a training pair.
    """
    if not sources:
        raise DataError("shortlist: there are no sentence pairs; give files with text")
    source_vocab_size, target_vocab_size = len(bundle.tokenizer.source), len(bundle.tokenizer.target)
    attention_by_token_pair: dict[int, float] = {}
    num_skipped = 0
    target_counts_V = np.zeros(target_vocab_size)
    for start in range(0, len(sources), PAIR_BATCH_SIZE):
        chunk = list(zip(sources[start : start + PAIR_BATCH_SIZE], targets[start : start + PAIR_BATCH_SIZE], strict=True))
        texts = [(source, target) for source, target in chunk if not (is_blank(source) or is_blank(target))]
        source_ids = [bundle.tokenizer.encode_source(source) for source, _ in texts]
        target_ids = [bundle.tokenizer.encode_target(target) for _, target in texts]
        pairs = [pair for pair in zip(source_ids, target_ids, strict=True) if pair[0] and pair[1]]
        short_pairs = [pair for pair in pairs if max(map(len, pair)) < bundle.recipe.data.max_length]
        num_skipped, pairs = num_skipped + len(pairs) - len(short_pairs), short_pairs
        for key, weight in _sum_attention(bundle, decoder, pairs, target_vocab_size):
            attention_by_token_pair[key] = attention_by_token_pair.get(key, 0.0) + weight
        np.add.at(target_counts_V, np.asarray([token for sentence in target_ids for token in sentence], dtype=np.int64), 1)
        on_progress(len(chunk))
    if not attention_by_token_pair:
        reason = f"{num_skipped:,} are longer than the training pairs" if num_skipped else "all have a blank side"
        raise DataError(
            f"shortlist: none of the {len(sources):,} pairs can be used ({reason}); give files with text", code="empty-data"
        )
    keys = np.fromiter(attention_by_token_pair.keys(), np.int64, len(attention_by_token_pair))
    candidates_VK = _select_candidates(
        keys,
        np.fromiter(attention_by_token_pair.values(), np.float64, len(attention_by_token_pair)),
        source_vocab_size,
        target_vocab_size,
        per_token,
    )
    frequent_F = np.argsort(-target_counts_V, kind="stable")[:num_frequent].astype(np.int32)
    return Shortlist(
        candidates_VK,
        frequent_F,
        bundle.tokenizer.shares_vocabulary,
        compute_vocabulary_digest(bundle.tokenizer),
    ), num_skipped


def _sum_attention(
    bundle: Bundle, decoder: ForcedDecoder, pairs: Sequence[tuple[list[int], list[int]]], target_vocab_size: int
) -> list[tuple[int, float]]:
    """Return the attention of each target token to each source token in the last layer, keyed by source · V_target + target."""
    weights = compute_cross_attentions(
        decoder,
        [source for source, _ in pairs],
        [target for _, target in pairs],
        start_id=get_decoder_start_id(bundle.recipe.model),
        prompt=bundle.tokenizer.decoder_prompt,
        finished=[True] * len(pairs),
        transform=lambda weights_LHTS: weights_LHTS[-1].mean(0),
    )
    keys, values = [], []
    for (source, target), weights_TS in zip(pairs, weights, strict=True):
        mean_TS = weights_TS[: len(target)]
        target_X, source_X = np.nonzero(mean_TS >= MIN_ATTENTION)
        keys.append(np.asarray(source)[source_X] * target_vocab_size + np.asarray(target)[target_X])
        values.append(mean_TS[target_X, source_X])
    if not keys:
        return []
    key_X, index_X = np.unique(np.concatenate(keys), return_inverse=True)
    return list(zip(key_X.tolist(), np.bincount(index_X, np.concatenate(values)).tolist(), strict=True))


def _select_candidates(
    keys: NDArray[np.int64], values: NDArray[np.float64], source_vocab_size: int, target_vocab_size: int, per_token: int
) -> NDArray[np.int32]:
    """Return the target tokens with the most attention to each source token, padded with 0. → (V, K)"""
    order = np.lexsort((keys % target_vocab_size, -values, keys // target_vocab_size))
    source, target = keys[order] // target_vocab_size, keys[order] % target_vocab_size
    starts = np.flatnonzero(np.r_[True, source[1:] != source[:-1]]) if len(source) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(source)) - np.repeat(starts, np.diff(np.r_[starts, len(source)]))
    is_selected = (rank < per_token) & (target != END_ID)
    candidates_VK = np.zeros((source_vocab_size, per_token), dtype=np.int32)
    candidates_VK[source[is_selected], rank[is_selected]] = target[is_selected]
    return candidates_VK
