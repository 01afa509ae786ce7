"""Other ways to split a text into the pieces of its model: BPE-dropout and unigram sampling, from chance that is handed in.

Both split word by word where no piece reaches over a space: the words of a text are then split independently of each other, and
what was worked out for a word serves again. SentencePiece samples, too, but since it mixes bits of the process into the seed
(0.2.3) no seed gives the same draws in another process.
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

METASPACE = "▁"
# Letters of a word that is likely to come again; a text without spaces is one long word.
MAX_CACHED_WORD_LENGTH = 32


def build_sampler(model: bytes) -> BpeDropout | UnigramSampling:
    """The way to sample that goes with a model. Raises ValueError saying why there is none."""
    model_type, pieces = read_model_type(model), read_pieces(model)
    if model_type not in ("bpe", "unigram"):
        raise ValueError(f"sampling needs a BPE or unigram model, and this one is of the kind {model_type}")
    if any(piece.piece_type == UNUSED for piece in pieces):
        raise ValueError("sampling knows nothing of pieces that are marked as unused, and this model has some")
    return BpeDropout(pieces) if model_type == "bpe" else UnigramSampling(pieces)


class _PieceTable:
    """What both ways know of a model: the ids of its pieces, and of what it has no piece for."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._ids = {piece.text: [index] for index, piece in enumerate(pieces) if piece.piece_type in (NORMAL, USER_DEFINED)}
        self.user_defined = {piece.text for piece in pieces if piece.piece_type == USER_DEFINED}
        self._byte_ids = {int(piece.text[3:5], 16): index for index, piece in enumerate(pieces) if piece.piece_type == BYTE}
        self._unknown_id = next(index for index, piece in enumerate(pieces) if piece.piece_type == UNKNOWN)
        self._splits_by_word = not any(METASPACE in text[1:] for text in self._ids)

    def split_words(self, text: str) -> list[str]:
        """The parts of a text in SentencePiece's spelling that no piece joins."""
        return re.findall(f"{METASPACE}[^{METASPACE}]*|[^{METASPACE}]+", text) if self._splits_by_word else [text]

    def to_ids(self, symbol: str) -> list[int]:
        """The id of a piece; of any other letter its bytes, or unknown."""
        if (ids := self._ids.get(symbol)) is not None:
            return ids
        return [self._byte_ids[byte] for byte in symbol.encode()] if self._byte_ids else [self._unknown_id]

    def merge_unknown(self, ids: list[int]) -> list[int]:
        """A run of unknown letters is one <unk>."""
        if self._byte_ids or self._unknown_id not in ids:
            return ids
        return [index for index, previous in zip(ids, [-1, *ids], strict=False) if not index == previous == self._unknown_id]


class BpeDropout:
    """Merges as BPE does, each left out with probability α when its turn comes (Provilkov, Emelianenko and Voita 2020)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _PieceTable(pieces)
        # Every piece can come of a merge; BPE makes the one of the highest score first.
        self._ranks = {piece.text: -piece.score for piece in pieces if piece.piece_type in (NORMAL, USER_DEFINED)}
        user_defined = sorted(self._table.user_defined, key=len, reverse=True)
        self._symbol_pattern = re.compile("|".join([*map(re.escape, user_defined), "."]), re.DOTALL)
        self._cached_merge = lru_cache(maxsize=2**16)(self._merge_without_dropout)

    def split(self, text: str, alpha: float, rng: Random) -> list[int]:
        """Ids of a normalised text in SentencePiece's spelling, with ▁ for spaces."""
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
        """The word's ids, and how many merges they took."""
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
    """Which of the merges to come are left out; the merges between two of those are drawn at once."""

    def __init__(self, alpha: float, rng: Random) -> None:
        self._alpha = alpha
        self._rng = rng
        self._merges_until_drop = self._draw_gap()

    def _draw_gap(self) -> float:
        if not 0 < self._alpha < 1:
            return 0 if self._alpha else math.inf
        gap = math.log(1 - self._rng.random()) / math.log1p(-self._alpha)  # beyond all numbers for the smallest of α
        return int(gap) if math.isfinite(gap) else math.inf

    def try_apply_all(self, num_merges: int) -> bool:
        """Whether the next merges are all made; if so, they are behind us."""
        if num_merges > self._merges_until_drop:
            return False
        self._merges_until_drop -= num_merges
        return True

    def is_next_dropped(self) -> bool:
        """Whether the next merge is left out."""
        if self._merges_until_drop:
            self._merges_until_drop -= 1
            return False
        self._merges_until_drop = self._draw_gap()
        return True


class UnigramSampling:
    """Draws from all ways to split a text, each as likely as the product of its pieces to the power of α (Kudo 2018)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _PieceTable(pieces)
        scores = {piece.text: piece.score for piece in pieces if piece.piece_type == NORMAL}
        # As in SentencePiece: what the user defined wins over any other piece, an unknown letter is rarer than the rarest.
        user_defined_scores = {text: len(text) * max(scores.values(), default=0.0) - 0.1 for text in self._table.user_defined}
        self._scores = scores | user_defined_scores
        self._unknown_score = min(scores.values(), default=0.0) - 10
        self._max_piece_length = max(map(len, self._scores), default=1)
        self._cached_lattice = lru_cache(maxsize=2**14)(self._build_lattice)

    def split(self, text: str, alpha: float, rng: Random) -> list[int]:
        """Ids of a normalised text in SentencePiece's spelling, with ▁ for spaces."""
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
        """The pieces that end at each place of a word, from the first letter's end on.

        A piece weighs as much as all ways to split what stands before it, times its own probability to the power of α.
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
    """Pieces that end at one place: where each begins, its ids, and the sum of the weights up to it."""

    starts: list[int]
    ids: list[list[int]]
    cumulative_weights: list[float]
