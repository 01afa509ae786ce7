"""Subword sampling: BPE-dropout and unigram sampling with a random generator of the caller.

If no piece contains an inner space, both segment a text word by word and cache the result of each word. SentencePiece 0.2.3
samples as well, but it mixes bits of the process into the seed, so no seed gives the same samples in another process.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from random import Random
from typing import NamedTuple

from dragoman.data.tokenization.sentencepiece_proto import (
    BYTE,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    read_model_type,
    read_pieces,
)
from dragoman.data.tokenization.special_tokens import METASPACE

# Longer words rarely repeat, so they are not cached; a text without spaces is one long word.
MAX_CACHED_WORD_LENGTH = 32


def build_sampler(model: bytes) -> BpeDropout | UnigramSampling:
    """Return the sampler for a model. Raise ValueError with the reason if there is none."""
    model_type, pieces = read_model_type(model), read_pieces(model)
    if model_type not in ("bpe", "unigram"):
        raise ValueError(f"sampling needs a BPE or unigram model, and this one is of the type {model_type}")
    if any(piece.piece_type == UNUSED for piece in pieces):
        raise ValueError("sampling does not support pieces that are marked as unused, and this model has some")
    return BpeDropout(pieces) if model_type == "bpe" else UnigramSampling(pieces)


class _PieceTable:
    """Ids of the pieces of a model, and of characters that have no piece."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._ids = {piece.text: [index] for index, piece in enumerate(pieces) if piece.piece_type in (NORMAL, USER_DEFINED)}
        self.user_defined = {piece.text for piece in pieces if piece.piece_type == USER_DEFINED}
        self._byte_ids = {int(piece.text[3:5], 16): index for index, piece in enumerate(pieces) if piece.piece_type == BYTE}
        self._unknown_id = next(index for index, piece in enumerate(pieces) if piece.piece_type == UNKNOWN)
        self._splits_by_word = not any(METASPACE in text[1:] for text in self._ids)

    def split_words(self, text: str) -> list[str]:
        """Return the words of a text with ▁ for spaces; the whole text if a piece may contain an inner space."""
        return re.findall(f"{METASPACE}[^{METASPACE}]*|[^{METASPACE}]+", text) if self._splits_by_word else [text]

    def to_ids(self, symbol: str) -> list[int]:
        """Return the id of a piece; for any other character the ids of its bytes, or the unknown id."""
        if (ids := self._ids.get(symbol)) is not None:
            return ids
        return [self._byte_ids[byte] for byte in symbol.encode()] if self._byte_ids else [self._unknown_id]

    def merge_unknown(self, ids: list[int]) -> list[int]:
        """Return the ids with one <unk> for each run of unknown characters."""
        if self._byte_ids or self._unknown_id not in ids:
            return ids
        return [index for index, previous in zip(ids, [-1, *ids], strict=False) if not index == previous == self._unknown_id]


class BpeDropout:
    """BPE segmentation that skips each merge with probability α (Provilkov, Emelianenko and Voita 2020)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _PieceTable(pieces)
        # BPE applies the merge with the highest score first; every piece may be the result of a merge.
        self._ranks = {piece.text: -piece.score for piece in pieces if piece.piece_type in (NORMAL, USER_DEFINED)}
        user_defined = sorted(self._table.user_defined, key=len, reverse=True)
        self._symbol_pattern = re.compile("|".join([*map(re.escape, user_defined), "."]), re.DOTALL)
        self._cached_merge = lru_cache(maxsize=2**16)(self._merge_without_dropout)

    def split(self, text: str, alpha: float, rng: Random) -> list[int]:
        """Return the ids of a normalized text with ▁ for spaces."""
        schedule = _DropoutSchedule(alpha, rng)
        ids: list[int] = []
        for word in self._table.split_words(text):
            full_ids, num_merges = (self._cached_merge if len(word) <= MAX_CACHED_WORD_LENGTH else self._merge_without_dropout)(
                word
            )
            ids += full_ids if schedule.try_apply_all(num_merges) else self._merge(word, schedule)[0]
        return self._table.merge_unknown(ids)

    def _merge_without_dropout(self, word: str) -> tuple[list[int], int]:
        return self._merge(word, None)

    def _merge(self, word: str, schedule: _DropoutSchedule | None) -> tuple[list[int], int]:
        """Return the ids of a word, and the number of merges."""
        symbols: list[str] = self._symbol_pattern.findall(word)
        previous, following = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
        frozen_positions = {position for position, symbol in enumerate(symbols) if symbol in self._table.user_defined}
        queue: list[tuple[float, int, int, str]] = []

        def push_merge(left: int, right: int) -> None:
            merged = symbols[left] + symbols[right]
            if (rank := self._ranks.get(merged)) is not None and not frozen_positions & {left, right}:
                heappush(queue, (rank, left, right, merged))

        for left in range(len(symbols) - 1):
            push_merge(left, left + 1)
        num_merges = 0
        while queue:
            _, left, right, merged = heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != merged:
                continue
            if schedule is not None and schedule.is_next_dropped():
                continue
            num_merges += 1
            symbols[left], symbols[right] = merged, ""
            following[left] = following[right]
            if following[left] >= 0:
                previous[following[left]] = left
                push_merge(left, following[left])
            if previous[left] >= 0:
                push_merge(previous[left], left)
        return [index for symbol in symbols if symbol for index in self._table.to_ids(symbol)], num_merges


class _DropoutSchedule:
    """Schedule of the skipped merges. One draw gives the number of merges until the next skipped one."""

    def __init__(self, alpha: float, rng: Random) -> None:
        self._alpha = alpha
        self._rng = rng
        self._merges_until_drop = self._draw_gap()

    def _draw_gap(self) -> float:
        if not 0 < self._alpha < 1:
            return 0 if self._alpha else math.inf
        gap = math.log(1 - self._rng.random()) / math.log1p(-self._alpha)  # infinite for the smallest α
        return int(gap) if math.isfinite(gap) else math.inf

    def try_apply_all(self, num_merges: int) -> bool:
        """Return whether the next `num_merges` merges are all applied; if so, advance past them."""
        if num_merges > self._merges_until_drop:
            return False
        self._merges_until_drop -= num_merges
        return True

    def is_next_dropped(self) -> bool:
        """Return whether the next merge is skipped, and advance past it."""
        if self._merges_until_drop:
            self._merges_until_drop -= 1
            return False
        self._merges_until_drop = self._draw_gap()
        return True


class UnigramSampling:
    """Random segmentation, with the probability of the product of its pieces to the power of α (Kudo 2018)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _PieceTable(pieces)
        scores = {piece.text: piece.score for piece in pieces if piece.piece_type == NORMAL}
        # SentencePiece's rules: a user-defined piece precedes all others; an unknown character is rarer than the rarest piece.
        user_defined_scores = {text: len(text) * max(scores.values(), default=0.0) - 0.1 for text in self._table.user_defined}
        self._scores = scores | user_defined_scores
        self._unknown_score = min(scores.values(), default=0.0) - 10
        self._max_piece_length = max(map(len, self._scores), default=1)
        self._cached_lattice = lru_cache(maxsize=2**14)(self._build_lattice)

    def split(self, text: str, alpha: float, rng: Random) -> list[int]:
        ids: list[int] = []
        for word in self._table.split_words(text):
            lattice, end = (
                (self._cached_lattice if len(word) <= MAX_CACHED_WORD_LENGTH else self._build_lattice)(word, alpha),
                len(word),
            )
            reversed_pieces: list[list[int]] = []
            while end:
                node = lattice[end - 1]
                choice = bisect_right(
                    node.cumulative_weights, rng.random() * node.cumulative_weights[-1], hi=len(node.cumulative_weights) - 1
                )
                reversed_pieces.append(node.ids[choice])
                end = node.starts[choice]
            for piece_ids in reversed(reversed_pieces):
                ids += piece_ids
        return self._table.merge_unknown(ids)

    def _build_lattice(self, word: str, alpha: float) -> list[_LatticeNode]:
        """Return the pieces that end at each position of a word, from the end of the first letter on.

        The weight of a piece is the weight of all segmentations before it, times its own probability to the power of α.
        """
        lattice: list[_LatticeNode] = []
        forward_logs = [0.0]
        for end in range(1, len(word) + 1):
            node = _LatticeNode([], [], [])
            logs = []
            for start in range(max(0, end - self._max_piece_length), end):
                text = word[start:end]
                score = self._scores.get(text)
                if score is None and start == end - 1:
                    score = self._unknown_score
                if score is not None:
                    node.starts.append(start)
                    node.ids.append(self._table.to_ids(text))
                    logs.append(forward_logs[start] + alpha * score)
            max_log = max(logs)
            node.cumulative_weights.extend(accumulate(math.exp(log - max_log) for log in logs))
            forward_logs.append(max_log + math.log(node.cumulative_weights[-1]))
            lattice.append(node)
        return lattice


class _LatticeNode(NamedTuple):
    """Pieces that end at one position: the start of each, its ids, and the cumulative weights."""

    starts: list[int]
    ids: list[list[int]]
    cumulative_weights: list[float]
