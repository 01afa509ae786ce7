"""The words that a batch is likely to need: learnt from where the model looked, and all that its last product computes.

A shortlist is a sealed folder with two tables. Which tokens of the target came from each token of the source, by the model's
own attention over pairs; and which are usual whatever was said. A batch takes what its sources ask for, and the search never
sees the rest, so that a word outside the list cannot be said: faster, and not quite the same translation.

    V tokens of the source    K tokens of the target near to one    F usual tokens of the target    W words of a batch
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError, DataError
from dragoman.io.safetensors import MappedTensors, save_tensors
from dragoman.io.storage import atomic_dir, verify_checksums
from dragoman.tasks.generation import compute_cross_attentions
from dragoman.tasks.inference_model import get_decoder_start_id

TABLES_FILE = "shortlist.safetensors"
NUM_SPECIAL_TOKENS = 4
"""Padding, unknown, begin and end stand first in every vocabulary, and in every list."""
# Attention to a token below this share says nothing about it.
MIN_ATTENTION = 0.1
PAIR_BATCH_SIZE = 512


@dataclass(frozen=True)
class Shortlist:
    """near_VK: filled up with 0. joint: one vocabulary, so that every token of the source may come out as it is.

    vocabulary: SHA-256 of the subword models
    """

    candidates_VK: Tensor
    frequent_F: Tensor
    is_joint: bool
    vocabulary_digest: bytes

    def select_tokens(self, source_BS: Tensor) -> Tensor:
        """The tokens that translations of these sources may hold, in order; the special ones first. → (W,)"""
        source_ids = np.unique(source_BS.cpu().numpy())
        token_sets = [np.arange(NUM_SPECIAL_TOKENS), self.frequent_F.numpy(), self.candidates_VK.numpy()[source_ids].flatten()]
        return torch.from_numpy(np.unique(np.concatenate([*token_sets, source_ids] if self.is_joint else token_sets)))

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write a sealed folder. Raises OutputError where it exists or cannot be written."""
        tables = {
            "near": self.candidates_VK.int(),
            "usual": self.frequent_F.int(),
            "joint": torch.tensor([self.is_joint]),
            "vocabulary": torch.tensor(list(self.vocabulary_digest), dtype=torch.uint8),
        }
        checksums: dict[str, str] = {}
        with atomic_dir(path, overwrite=overwrite, written=checksums) as folder:
            checksums[TABLES_FILE] = save_tensors(folder / TABLES_FILE, tables)


def read_shortlist(path: Path, bundle: Bundle) -> Shortlist:
    """Raises BundleError where it is missing, cut or changed, or was learnt for another vocabulary."""
    verify_checksums(path, BundleError)
    try:
        tables = MappedTensors(path / TABLES_FILE)
        candidates_VK, frequent_F, is_joint, digest_bytes = (
            tables[name].long() for name in ("near", "usual", "joint", "vocabulary")
        )
        digest = bytes(digest_bytes.tolist())
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BundleError(f"{path}: is not a shortlist that can be read: {error}") from None
    if digest != _compute_vocabulary_digest(bundle):
        raise BundleError(f"{path}: was learnt with other subword models than this bundle's; learn it with this bundle")
    return Shortlist(candidates_VK, frequent_F, bool(is_joint), digest)


def build_shortlist(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    per_token: int,
    num_frequent: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[Shortlist, int]:
    """Count, over these pairs, from which tokens of the source each of the target came; and the pairs that were left out,
    since the model has not learnt from any that are so long.

    each: tokens of the target that are kept for one of the source, at most
    usual: tokens that are in every list, the most frequent in the targets

    Raises DataError where there are no pairs.
    """
    if not sources:
        raise DataError("a shortlist is learnt from pairs, and there are none")
    source_vocab_size, target_vocab_size = len(bundle.tokenizer.source), len(bundle.tokenizer.target)
    attention_by_token_pair: dict[int, float] = {}
    num_skipped = 0
    target_counts_V = np.zeros(target_vocab_size)
    for start in range(0, len(sources), PAIR_BATCH_SIZE):
        source_ids = [bundle.tokenizer.encode_source(text) for text in sources[start : start + PAIR_BATCH_SIZE]]
        target_ids = [bundle.tokenizer.encode_target(text) for text in targets[start : start + PAIR_BATCH_SIZE]]
        pairs = [pair for pair in zip(source_ids, target_ids, strict=True) if pair[0] and pair[1]]
        short_pairs = [pair for pair in pairs if max(map(len, pair)) < bundle.recipe.data.max_length]
        num_skipped, pairs = num_skipped + len(pairs) - len(short_pairs), short_pairs
        for key, weight in _sum_attention(bundle, pairs, target_vocab_size):
            attention_by_token_pair[key] = attention_by_token_pair.get(key, 0.0) + weight
        np.add.at(target_counts_V, np.asarray([token for sentence in target_ids for token in sentence], dtype=np.int64), 1)
        on_progress(len(source_ids))
    keys = np.fromiter(attention_by_token_pair.keys(), np.int64, len(attention_by_token_pair))
    candidates_VK = _select_candidates(
        keys,
        np.fromiter(attention_by_token_pair.values(), np.float64, len(attention_by_token_pair)),
        source_vocab_size,
        target_vocab_size,
        per_token,
    )
    frequent_F = np.argsort(-target_counts_V, kind="stable")[:num_frequent].copy()
    return Shortlist(
        torch.from_numpy(candidates_VK),
        torch.from_numpy(frequent_F),
        bundle.tokenizer.is_joint,
        _compute_vocabulary_digest(bundle),
    ), num_skipped


def _compute_vocabulary_digest(bundle: Bundle) -> bytes:
    """Of both subword models, whose ids the tables hold."""
    return hashlib.sha256(bundle.tokenizer.source.serialized_model + bundle.tokenizer.target.serialized_model).digest()


def _sum_attention(
    bundle: Bundle, pairs: Sequence[tuple[list[int], list[int]]], target_vocab_size: int
) -> list[tuple[int, float]]:
    """How much each token of the target looked at each of the source, in the last layer: by source · columns + target."""
    weights = compute_cross_attentions(
        bundle.model,
        [source for source, _ in pairs],
        [target for _, target in pairs],
        start_id=get_decoder_start_id(bundle.recipe.model),
        finished=[True] * len(pairs),
        transform=lambda weights_LHTS: weights_LHTS[-1].mean(dim=0),
    )
    keys, values = [], []
    for (source, target), weights_TS in zip(pairs, weights, strict=True):
        mean_TS = weights_TS.numpy()[: len(target)]
        target_X, source_X = np.nonzero(mean_TS >= MIN_ATTENTION)
        keys.append(np.asarray(source)[source_X] * target_vocab_size + np.asarray(target)[target_X])
        values.append(mean_TS[target_X, source_X])
    if not keys:
        return []
    key_X, index_X = np.unique(np.concatenate(keys), return_inverse=True)
    return list(zip(key_X.tolist(), np.bincount(index_X, np.concatenate(values)).tolist(), strict=True))


def _select_candidates(
    keys: NDArray[np.int64], values: NDArray[np.float64], source_vocab_size: int, target_vocab_size: int, per_token: int
) -> NDArray[np.int64]:
    """The targets with the most attention of each source, filled up with 0. → (V, K)"""
    order = np.lexsort((keys % target_vocab_size, -values, keys // target_vocab_size))
    source, target = keys[order] // target_vocab_size, keys[order] % target_vocab_size
    starts = np.flatnonzero(np.r_[True, source[1:] != source[:-1]]) if len(source) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(source)) - np.repeat(starts, np.diff(np.r_[starts, len(source)]))
    is_selected = (rank < per_token) & (target != END_ID)
    candidates_VK = np.zeros((source_vocab_size, per_token), dtype=np.int64)
    candidates_VK[source[is_selected], rank[is_selected]] = target[is_selected]
    return candidates_VK
