"""The words that pieces make up, and which pieces of a source a head of attention is to look at for each of a target's.

Words are what spaces part, counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.subword_sampling import METASPACE
from dragoman.data.tokenization.tokenizer import PairTokenizer

if TYPE_CHECKING:
    from dragoman.data.encoded_corpus import Ids

Positions = npt.NDArray[np.int64]
AlignmentTarget = tuple[Positions, Positions, npt.NDArray[np.float32]]
"""Places of the target, what they should look at, and which share of them should: those of one target place sum to 1."""
NO_ALIGNMENT: AlignmentTarget = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def get_word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece belongs to."""
    starts_word = np.array([piece.startswith(METASPACE) for piece in pieces], dtype=bool)
    is_space = np.array([piece == METASPACE for piece in pieces], dtype=bool)
    return [int(number) for number in _get_word_numbers(starts_word, is_space)]


def _get_word_numbers(starts_word: npt.NDArray[np.bool_], is_space: npt.NDArray[np.bool_]) -> Positions:
    """A word begins with the first piece and with a space; a piece after a bare space goes on with what that has begun."""
    word_starts = starts_word.copy()
    word_starts[1:] &= ~is_space[:-1]
    word_starts[:1] = True
    return word_starts.cumsum() - 1


class WordBoundaries:
    """The words that ids of one vocabulary make."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = vocabulary.ids_to_pieces(range(len(vocabulary)))
        self._starts_word = np.array([piece.startswith(METASPACE) for piece in pieces], dtype=bool)
        self._is_space = np.array([piece == METASPACE for piece in pieces], dtype=bool)

    def get_word_numbers(self, ids: Ids) -> Positions:
        """The number of the word that each id belongs to; an end token is none of them."""
        return _get_word_numbers(self._starts_word[ids], self._is_space[ids])

    def count_words(self, ids: Ids) -> int:
        return int(self.get_word_numbers(ids)[-1]) + 1 if len(ids) else 0

    def split_words(self, ids: Ids) -> list[bytes]:
        """The words, each as the bytes of its ids: the same for the same."""
        word_starts = np.flatnonzero(np.diff(self.get_word_numbers(ids), prepend=-1))
        return [word_ids.tobytes() for word_ids in np.split(ids, word_starts[1:])] if len(ids) else []


class PairTokens:
    """Both sides of pairs as words."""

    def __init__(self, tokenizer: PairTokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def source(self) -> WordBoundaries:
        return WordBoundaries(self.tokenizer.source)

    @cached_property
    def target(self) -> WordBoundaries:
        return self.source if self.tokenizer.target is self.tokenizer.source else WordBoundaries(self.tokenizer.target)

    def strip_source_eos(self, source: Ids) -> Ids:
        """A source without the end token that the encoder may be given."""
        return source[:-1] if self.tokenizer.append_source_eos else source

    def build_alignment_target(self, links: npt.NDArray[np.int32], source: Ids, target: Ids) -> AlignmentTarget:
        """Each piece of a word looks at all pieces of the words that it is linked with, and nowhere where it is with none.

        The place that says a piece is that of the piece in the target, whose first place has read the start token alone.
        """
        source_words, target_words = (
            self.source.get_word_numbers(self.strip_source_eos(source)),
            self.target.get_word_numbers(target),
        )
        if not len(source_words) or not len(target_words):
            return NO_ALIGNMENT
        # What a truncated pair has lost has no links.
        valid_links = links[(links[:, 0] <= source_words[-1]) & (links[:, 1] <= target_words[-1])]
        is_linked_WW = np.zeros((target_words[-1] + 1, source_words[-1] + 1), dtype=bool)
        is_linked_WW[valid_links[:, 1], valid_links[:, 0]] = True
        is_linked_TS = is_linked_WW[target_words[:, None], source_words]
        target_positions, source_positions = is_linked_TS.nonzero()
        return target_positions, source_positions, (1.0 / is_linked_TS.sum(axis=1)[target_positions]).astype(np.float32)
