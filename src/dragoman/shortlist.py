"""Lexical shortlist: the target tokens that a batch is likely to need, as two tables.

The first table has the likely target tokens of each source token. The second one has tokens that every batch may use. A
shortlist is a file of its own in a checksummed folder, or a file of a bundle.

    V source tokens    K candidate target tokens of one source token    F frequent target tokens    W tokens of a batch
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, get_identity
from dragoman.errors import BundleError
from dragoman.io.safetensors import StoredArrays, save_tensors
from dragoman.io.storage import atomic_dir
from dragoman.runtime.tensor_files import TensorFiles

SHORTLIST_FILE = "shortlist.safetensors"
NUM_SPECIAL_TOKENS = 4
"""Padding, unknown, begin and end are the first tokens of every vocabulary and of every shortlist."""


@dataclass(frozen=True)
class Shortlist:
    """Shortlist of a bundle.

    candidates_VK: likely target tokens of each source token, padded with 0
    frequent_F: target tokens that every batch may use
    is_joint: source and target have one vocabulary, so each source token is also a candidate
    vocabulary_digest: SHA-256 of the tokenizers
    """

    candidates_VK: NDArray[np.integer[Any]]
    frequent_F: NDArray[np.integer[Any]]
    is_joint: bool
    vocabulary_digest: bytes

    def select_tokens(self, source_BS: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens that translations of these sources may use, in order, the special tokens first. → (W,)"""
        source_ids = np.unique(source_BS)
        candidate_ids = self.candidates_VK[source_ids].flatten()
        token_sets: list[NDArray[Any]] = [np.arange(NUM_SPECIAL_TOKENS), self.frequent_F, candidate_ids]
        return np.unique(np.concatenate([*token_sets, source_ids] if self.is_joint else token_sets))

    @property
    def tables(self) -> dict[str, NDArray[Any]]:
        """Tables of the file."""
        return {
            "candidates": self.candidates_VK.astype(np.int32, copy=False),
            "frequent": self.frequent_F.astype(np.int32, copy=False),
            "joint": np.array([self.is_joint]),
            "vocabulary": np.frombuffer(self.vocabulary_digest, dtype=np.uint8),
        }

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write a checksummed folder. Raises OutputError if it exists or cannot be written."""
        checksums: dict[str, str] = {}
        with atomic_dir(path, overwrite=overwrite, digests=checksums) as folder:
            checksums[SHORTLIST_FILE] = save_tensors(folder / SHORTLIST_FILE, self.tables)


def read_shortlist(path: Path, tokenizer: PairTokenizer) -> Shortlist:
    """Return the shortlist of a folder, which may be a bundle that holds one.

    tokenizer: that of the bundle

    Raises BundleError if it is missing, truncated or changed, does not fit the vocabulary, or was built for another one.
    """
    try:
        with TensorFiles(path, BundleError, only=[SHORTLIST_FILE]) as files:
            tables = StoredArrays(files[SHORTLIST_FILE])
            candidates_VK, frequent_F = (tables[name].astype(np.int32, copy=False) for name in ("candidates", "frequent"))
            is_joint, digest = bool(tables["joint"].item()), tables["vocabulary"].tobytes()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BundleError(
            f"{path}: is not a readable shortlist: {error}; build it again with dragoman model shortlist"
        ) from None
    if digest != compute_vocabulary_digest(tokenizer):
        raise BundleError(
            f"{path}: was built with other tokenizers than this bundle's; build it with this bundle", code="shortlist-mismatch"
        )
    num_source, num_target = len(tokenizer.source), len(tokenizer.target)
    is_table = candidates_VK.ndim == 2 and len(candidates_VK) == num_source and frequent_F.ndim == 1
    if not is_table or not all(((ids >= 0) & (ids < num_target)).all() for ids in (candidates_VK, frequent_F)):
        raise BundleError(
            f"{path}: is not a shortlist of {num_source:,} source tokens with ids below {num_target:,}; build it again with "
            "dragoman model shortlist"
        )
    return Shortlist(candidates_VK, frequent_F, is_joint, digest)


def compute_vocabulary_digest(tokenizer: PairTokenizer) -> bytes:
    """Return the SHA-256 of both tokenizers, whose ids are in the tables."""
    return hashlib.sha256(get_identity(tokenizer.source) + get_identity(tokenizer.target)).digest()
