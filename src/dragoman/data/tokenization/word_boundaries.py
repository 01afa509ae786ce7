"""Word boundaries of pieces, and the attention targets that guided alignment derives from word links.

Words are separated by spaces and counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dragoman.data.tokenization.special_tokens import METASPACE

if TYPE_CHECKING:
    from dragoman.data.encoded_corpus import Ids
    from dragoman.data.tokenization.pair_tokenizer import PairTokenizer

Positions = npt.NDArray[np.int64]
AlignmentTarget = tuple[Positions, Positions, npt.NDArray[np.float32]]
"""Target positions, source positions and weights of links; the weights of a target position sum to 1."""
NO_ALIGNMENT: AlignmentTarget = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def get_word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the number of the word of each piece."""
    numbers: list[int] = WordBoundaries(pieces).get_word_numbers(slice(None)).tolist()
    return numbers


class WordBoundaries:
    """Word boundaries of the ids of a vocabulary, by the marks of spaces, ▁, in its pieces."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._at_start = np.array([piece.startswith(METASPACE) for piece in pieces], dtype=bool)
        self._is_alone = np.array([piece == METASPACE for piece in pieces], dtype=bool)
        at_end = [piece.endswith(METASPACE) and bool(piece.strip(METASPACE)) for piece in pieces]
        self._at_end = np.array(at_end, dtype=bool)

    def get_word_numbers(self, ids: Ids | slice) -> Positions:
        """Return the number of the word of each id. The ids contain no end token.

        A word starts at the first piece, at ▁, and behind a piece that ends with ▁. A piece after a single ▁ continues its
        word.
        """
        word_starts = self._at_start[ids].copy()
        word_starts[1:] &= ~self._is_alone[ids][:-1]
        word_starts[1:] |= self._at_end[ids][:-1]
        word_starts[:1] = True
        return word_starts.cumsum() - 1

    def count_words(self, ids: Ids) -> int:
        return int(self.get_word_numbers(ids)[-1]) + 1 if len(ids) else 0

    def split_words(self, ids: Ids) -> list[bytes]:
        """Return the words, each as the bytes of its ids; equal words have equal bytes."""
        word_starts = np.flatnonzero(np.diff(self.get_word_numbers(ids), prepend=-1))
        return [word_ids.tobytes() for word_ids in np.split(ids, word_starts[1:])] if len(ids) else []


class PairTokens:
    """Word boundaries of both sides of pairs."""

    def __init__(self, tokenizer: PairTokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def source(self) -> WordBoundaries:
        return WordBoundaries(self.tokenizer.source.ids_to_pieces(range(len(self.tokenizer.source))))

    @cached_property
    def target(self) -> WordBoundaries:
        if self.tokenizer.is_joint:
            return self.source
        return WordBoundaries(self.tokenizer.target.ids_to_pieces(range(len(self.tokenizer.target))))

    def strip_source_eos(self, source: Ids) -> Ids:
        """Return the source ids without the end token that the encoder may read."""
        return source[:-1] if self.tokenizer.append_source_eos else source

    def build_alignment_target(self, links: npt.NDArray[np.int32], source: Ids, target: Ids) -> AlignmentTarget:
        """Return the attention targets of a pair: each piece of a target word is linked to all pieces of its source words.

        A piece of a word without links has no target. The decoder position that predicts a piece has the index of that piece.

        links: source word and target word of each link (L, 2)
        source: source ids, as the encoder reads them
        target: target ids without end token
        """
        source_words, target_words = (
            self.source.get_word_numbers(self.strip_source_eos(source)),
            self.target.get_word_numbers(target),
        )
        if not len(source_words) or not len(target_words):
            return NO_ALIGNMENT
        # Truncation may have removed linked words.
        valid_links = links[(links[:, 0] <= source_words[-1]) & (links[:, 1] <= target_words[-1])]
        is_linked_WW = np.zeros((target_words[-1] + 1, source_words[-1] + 1), dtype=bool)
        is_linked_WW[valid_links[:, 1], valid_links[:, 0]] = True
        is_linked_TS = is_linked_WW[target_words[:, None], source_words]
        target_positions, source_positions = is_linked_TS.nonzero()
        return target_positions, source_positions, (1.0 / is_linked_TS.sum(axis=1)[target_positions]).astype(np.float32)
