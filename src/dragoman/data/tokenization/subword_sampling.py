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
    model_kind,
    read_pieces,
)

SPACE = "▁"
# Letters of a word that is likely to come again; a text without spaces is one long word.
LONGEST_KEPT = 32


def sampler_of(model: bytes) -> BpeDropout | UnigramSampling:
    """The way to sample that goes with a model. Raises ValueError saying why there is none."""
    kind, pieces = model_kind(model), read_pieces(model)
    if kind not in ("bpe", "unigram"):
        raise ValueError(f"sampling needs a BPE or unigram model, and this one is of the kind {kind}")
    if any(piece.kind == UNUSED for piece in pieces):
        raise ValueError("sampling knows nothing of pieces that are marked as unused, and this model has some")
    return BpeDropout(pieces) if kind == "bpe" else UnigramSampling(pieces)


class _Table:
    """What both ways know of a model: the ids of its pieces, and of what it has no piece for."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._ids = {piece.text: [index] for index, piece in enumerate(pieces) if piece.kind in (NORMAL, USER_DEFINED)}
        self.user_defined = {piece.text for piece in pieces if piece.kind == USER_DEFINED}
        self._bytes = {int(piece.text[3:5], 16): index for index, piece in enumerate(pieces) if piece.kind == BYTE}
        self._unknown = next(index for index, piece in enumerate(pieces) if piece.kind == UNKNOWN)
        self._by_word = not any(SPACE in text[1:] for text in self._ids)

    def words(self, text: str) -> list[str]:
        """The parts of a text in SentencePiece's spelling that no piece joins."""
        return re.findall(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+", text) if self._by_word else [text]

    def of(self, symbol: str) -> list[int]:
        """The id of a piece; of any other letter its bytes, or unknown."""
        if (ids := self._ids.get(symbol)) is not None:
            return ids
        return [self._bytes[byte] for byte in symbol.encode()] if self._bytes else [self._unknown]

    def one_unknown(self, ids: list[int]) -> list[int]:
        """A run of unknown letters is one <unk>."""
        if self._bytes or self._unknown not in ids:
            return ids
        return [index for index, before in zip(ids, [-1, *ids], strict=False) if not index == before == self._unknown]


class BpeDropout:
    """Merges as BPE does, each left out with probability α when its turn comes (Provilkov, Emelianenko and Voita 2020)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _Table(pieces)
        # Every piece can come of a merge; BPE makes the one of the highest score first.
        self._ranks = {piece.text: -piece.score for piece in pieces if piece.kind in (NORMAL, USER_DEFINED)}
        whole = sorted(self._table.user_defined, key=len, reverse=True)
        self._symbols = re.compile("|".join([*map(re.escape, whole), "."]), re.DOTALL)
        self._undropped = lru_cache(maxsize=2**16)(self._without_dropout)

    def split(self, text: str, alpha: float, random: Random) -> list[int]:
        """Ids of a normalised text in SentencePiece's spelling, with ▁ for spaces."""
        drops = _Drops(alpha, random)
        ids: list[int] = []
        for word in self._table.words(text):
            usual, merges = (self._undropped if len(word) <= LONGEST_KEPT else self._without_dropout)(word)
            ids += usual if drops.none_in(merges) else self._merge(word, drops)[0]
        return self._table.one_unknown(ids)

    def _without_dropout(self, word: str) -> tuple[list[int], int]:
        return self._merge(word, None)

    def _merge(self, word: str, drops: _Drops | None) -> tuple[list[int], int]:
        """The word's ids, and how many merges they took."""
        symbols: list[str] = self._symbols.findall(word)
        before, after = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
        frozen = {place for place, symbol in enumerate(symbols) if symbol in self._table.user_defined}
        agenda: list[tuple[float, int, int, str]] = []

        def consider(left: int, right: int) -> None:
            joined = symbols[left] + symbols[right]
            if (rank := self._ranks.get(joined)) is not None and not frozen & {left, right}:
                heappush(agenda, (rank, left, right, joined))

        for left in range(len(symbols) - 1):
            consider(left, left + 1)
        merges = 0
        while agenda:
            _, left, right, joined = heappop(agenda)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue
            if drops is not None and drops.next():
                continue
            merges += 1
            symbols[left], symbols[right] = joined, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
                consider(left, after[left])
            if before[left] >= 0:
                consider(before[left], left)
        return [index for symbol in symbols if symbol for index in self._table.of(symbol)], merges


class _Drops:
    """Which of the merges to come are left out; the merges between two of those are drawn at once."""

    def __init__(self, alpha: float, random: Random) -> None:
        self._alpha = alpha
        self._random = random
        self._left = self._between()

    def _between(self) -> float:
        if not 0 < self._alpha < 1:
            return 0 if self._alpha else math.inf
        far = math.log(1 - self._random.random()) / math.log1p(-self._alpha)  # beyond all numbers for the smallest of α
        return int(far) if math.isfinite(far) else math.inf

    def none_in(self, merges: int) -> bool:
        """Whether the next merges are all made; if so, they are behind us."""
        if merges > self._left:
            return False
        self._left -= merges
        return True

    def next(self) -> bool:
        """Whether the next merge is left out."""
        if self._left:
            self._left -= 1
            return False
        self._left = self._between()
        return True


class UnigramSampling:
    """Draws from all ways to split a text, each as likely as the product of its pieces to the power of α (Kudo 2018)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._table = _Table(pieces)
        scores = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
        # As in SentencePiece: what the user defined wins over any other piece, an unknown letter is rarer than the rarest.
        whole = {text: len(text) * max(scores.values(), default=0.0) - 0.1 for text in self._table.user_defined}
        self._scores = scores | whole
        self._unknown_score = min(scores.values(), default=0.0) - 10
        self._longest = max(map(len, self._scores), default=1)
        self._ways = lru_cache(maxsize=2**14)(self._ways_of)

    def split(self, text: str, alpha: float, random: Random) -> list[int]:
        """Ids of a normalised text in SentencePiece's spelling, with ▁ for spaces."""
        ids: list[int] = []
        for word in self._table.words(text):
            ways, end = (self._ways if len(word) <= LONGEST_KEPT else self._ways_of)(word, alpha), len(word)
            backwards: list[list[int]] = []
            while end:
                way = ways[end - 1]
                drawn = bisect_right(way.sums, random.random() * way.sums[-1], hi=len(way.sums) - 1)
                backwards.append(way.ids[drawn])
                end = way.starts[drawn]
            for piece in reversed(backwards):
                ids += piece
        return self._table.one_unknown(ids)

    def _ways_of(self, word: str, alpha: float) -> list[_Ways]:
        """The pieces that end at each place of a word, from the first letter's end on.

        A piece weighs as much as all ways to split what stands before it, times its own probability to the power of α.
        """
        ways: list[_Ways] = []
        forward = [0.0]
        for end in range(1, len(word) + 1):
            way = _Ways([], [], [])
            logs = []
            for start in range(max(0, end - self._longest), end):
                text = word[start:end]
                score = self._scores.get(text)
                if score is None and start == end - 1:
                    score = self._unknown_score
                if score is not None:
                    way.starts.append(start)
                    way.ids.append(self._table.of(text))
                    logs.append(forward[start] + alpha * score)
            largest = max(logs)
            way.sums.extend(accumulate(math.exp(log - largest) for log in logs))
            forward.append(largest + math.log(way.sums[-1]))
            ways.append(way)
        return ways


class _Ways(NamedTuple):
    """Pieces that end at one place: where each begins, its ids, and the sum of the weights up to it."""

    starts: list[int]
    ids: list[list[int]]
    sums: list[float]
