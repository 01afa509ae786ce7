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
from dragoman.io.storage import check_seal, sealed_folder
from dragoman.tasks.generation import cross_attentions
from dragoman.tasks.inference_model import start_id

TABLES = "shortlist.safetensors"
SPECIAL = 4
"""Padding, unknown, begin and end stand first in every vocabulary, and in every list."""
# Attention to a token below this share says nothing about it.
FAINT = 0.1
PAIRS_AT_ONCE = 512


@dataclass(frozen=True)
class Shortlist:
    """near_VK: filled up with 0. joint: one vocabulary, so that every token of the source may come out as it is.

    vocabulary: SHA-256 of the subword models
    """

    near_VK: Tensor
    usual_F: Tensor
    joint: bool
    vocabulary: bytes

    def words(self, source_BS: Tensor) -> Tensor:
        """The tokens that translations of these sources may hold, in order; the special ones first. → (W,)"""
        read = np.unique(source_BS.cpu().numpy())
        found = [np.arange(SPECIAL), self.usual_F.numpy(), self.near_VK.numpy()[read].flatten()]
        return torch.from_numpy(np.unique(np.concatenate([*found, read] if self.joint else found)))

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write a sealed folder. Raises OutputError where it exists or cannot be written."""
        tables = {
            "near": self.near_VK.int(),
            "usual": self.usual_F.int(),
            "joint": torch.tensor([self.joint]),
            "vocabulary": torch.tensor(list(self.vocabulary), dtype=torch.uint8),
        }
        written: dict[str, str] = {}
        with sealed_folder(path, overwrite=overwrite, written=written) as folder:
            written[TABLES] = save_tensors(folder / TABLES, tables)


def read_shortlist(path: Path, bundle: Bundle) -> Shortlist:
    """Raises BundleError where it is missing, cut or changed, or was learnt for another vocabulary."""
    check_seal(path, BundleError)
    try:
        tables = MappedTensors(path / TABLES)
        near_VK, usual_F, joint, vocabulary = (tables[name].long() for name in ("near", "usual", "joint", "vocabulary"))
        digest = bytes(vocabulary.tolist())
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BundleError(f"{path}: is not a shortlist that can be read: {error}") from None
    if digest != _digest(bundle):
        raise BundleError(f"{path}: was learnt with other subword models than this bundle's; learn it with this bundle")
    return Shortlist(near_VK, usual_F, bool(joint), digest)


def learn_shortlist(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    each: int,
    usual: int,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Shortlist, int]:
    """Count, over these pairs, from which tokens of the source each of the target came; and the pairs that were left out,
    since the model has not learnt from any that are so long.

    each: tokens of the target that are kept for one of the source, at most
    usual: tokens that are in every list, the most frequent in the targets

    Raises DataError where there are no pairs.
    """
    if not sources:
        raise DataError("a shortlist is learnt from pairs, and there are none")
    rows, columns = len(bundle.tokeniser.source), len(bundle.tokeniser.target)
    near: dict[int, float] = {}
    left_out = 0
    said_V = np.zeros(columns)
    for first in range(0, len(sources), PAIRS_AT_ONCE):
        read = [bundle.tokeniser.encode_source(text) for text in sources[first : first + PAIRS_AT_ONCE]]
        made = [bundle.tokeniser.encode_target(text) for text in targets[first : first + PAIRS_AT_ONCE]]
        pairs = [pair for pair in zip(read, made, strict=True) if pair[0] and pair[1]]
        short = [pair for pair in pairs if max(map(len, pair)) < bundle.recipe.data.max_length]
        left_out, pairs = left_out + len(pairs) - len(short), short
        for key, weight in _looks(bundle, pairs, columns):
            near[key] = near.get(key, 0.0) + weight
        np.add.at(said_V, np.asarray([token for one in made for token in one], dtype=np.int64), 1)
        advance(len(read))
    keys = np.fromiter(near.keys(), np.int64, len(near))
    near_VK = _best(keys, np.fromiter(near.values(), np.float64, len(near)), rows, columns, each)
    usual_F = np.argsort(-said_V, kind="stable")[:usual].copy()
    return Shortlist(torch.from_numpy(near_VK), torch.from_numpy(usual_F), bundle.tokeniser.joint, _digest(bundle)), left_out


def _digest(bundle: Bundle) -> bytes:
    """Of both subword models, whose ids the tables hold."""
    return hashlib.sha256(bundle.tokeniser.source.model + bundle.tokeniser.target.model).digest()


def _looks(bundle: Bundle, pairs: Sequence[tuple[list[int], list[int]]], columns: int) -> list[tuple[int, float]]:
    """How much each token of the target looked at each of the source, in the last layer: by source · columns + target."""
    weights = cross_attentions(
        bundle.model,
        [source for source, _ in pairs],
        [target for _, target in pairs],
        start_id=start_id(bundle.recipe.model),
        finished=[True] * len(pairs),
        read=lambda weights_LHTS: weights_LHTS[-1].mean(dim=0),
    )
    keys, values = [], []
    for (source, target), weights_TS in zip(pairs, weights, strict=True):
        mean_TS = weights_TS.numpy()[: len(target)]
        target_X, source_X = np.nonzero(mean_TS >= FAINT)
        keys.append(np.asarray(source)[source_X] * columns + np.asarray(target)[target_X])
        values.append(mean_TS[target_X, source_X])
    if not keys:
        return []
    key_X, place_X = np.unique(np.concatenate(keys), return_inverse=True)
    return list(zip(key_X.tolist(), np.bincount(place_X, np.concatenate(values)).tolist(), strict=True))


def _best(keys: NDArray[np.int64], values: NDArray[np.float64], rows: int, columns: int, each: int) -> NDArray[np.int64]:
    """The targets with the most attention of each source, filled up with 0. → (V, K)"""
    order = np.lexsort((keys % columns, -values, keys // columns))
    source, target = keys[order] // columns, keys[order] % columns
    starts = np.flatnonzero(np.r_[True, source[1:] != source[:-1]]) if len(source) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(source)) - np.repeat(starts, np.diff(np.r_[starts, len(source)]))
    kept = (rank < each) & (target != END_ID)
    near_VK = np.zeros((rows, each), dtype=np.int64)
    near_VK[source[kept], rank[kept]] = target[kept]
    return near_VK
