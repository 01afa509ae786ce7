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
from dragoman.data.tokenization.subword_sampling import SPACE
from dragoman.data.tokenization.tokenizer import Tokeniser

if TYPE_CHECKING:
    from dragoman.data.encoded_corpus import Ids

Places = npt.NDArray[np.int64]
Looks = tuple[Places, Places, npt.NDArray[np.float32]]
"""Places of the target, what they should look at, and which share of them should: those of one target place sum to 1."""
NOWHERE: Looks = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def words_of(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece belongs to."""
    opens = np.array([piece.startswith(SPACE) for piece in pieces], dtype=bool)
    bare = np.array([piece == SPACE for piece in pieces], dtype=bool)
    return [int(number) for number in _numbers(opens, bare)]


def _numbers(opens: npt.NDArray[np.bool_], bare: npt.NDArray[np.bool_]) -> Places:
    """A word begins with the first piece and with a space; a piece after a bare space goes on with what that has begun."""
    begins = opens.copy()
    begins[1:] &= ~bare[:-1]
    begins[:1] = True
    return begins.cumsum() - 1


class Words:
    """The words that ids of one vocabulary make."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = vocabulary.pieces(range(len(vocabulary)))
        self._opens = np.array([piece.startswith(SPACE) for piece in pieces], dtype=bool)
        self._bare = np.array([piece == SPACE for piece in pieces], dtype=bool)

    def numbers(self, ids: Ids) -> Places:
        """The number of the word that each id belongs to; an end token is none of them."""
        return _numbers(self._opens[ids], self._bare[ids])

    def count(self, ids: Ids) -> int:
        return int(self.numbers(ids)[-1]) + 1 if len(ids) else 0

    def split(self, ids: Ids) -> list[bytes]:
        """The words, each as the bytes of its ids: the same for the same."""
        begins = np.flatnonzero(np.diff(self.numbers(ids), prepend=-1))
        return [part.tobytes() for part in np.split(ids, begins[1:])] if len(ids) else []


class Sides:
    """Both sides of pairs as words."""

    def __init__(self, tokeniser: Tokeniser) -> None:
        self.tokeniser = tokeniser

    @cached_property
    def source(self) -> Words:
        return Words(self.tokeniser.source)

    @cached_property
    def target(self) -> Words:
        return self.source if self.tokeniser.target is self.tokeniser.source else Words(self.tokeniser.target)

    def read(self, source: Ids) -> Ids:
        """A source without the end token that the encoder may be given."""
        return source[:-1] if self.tokeniser.append_source_eos else source

    def looks(self, links: npt.NDArray[np.int32], source: Ids, target: Ids) -> Looks:
        """Each piece of a word looks at all pieces of the words that it is linked with, and nowhere where it is with none.

        The place that says a piece is that of the piece in the target, whose first place has read the start token alone.
        """
        from_words, to_words = self.source.numbers(self.read(source)), self.target.numbers(target)
        if not len(from_words) or not len(to_words):
            return NOWHERE
        # What a truncated pair has lost has no links.
        kept = links[(links[:, 0] <= from_words[-1]) & (links[:, 1] <= to_words[-1])]
        linked_WW = np.zeros((to_words[-1] + 1, from_words[-1] + 1), dtype=bool)
        linked_WW[kept[:, 1], kept[:, 0]] = True
        linked_TS = linked_WW[to_words[:, None], from_words]
        target_places, source_places = linked_TS.nonzero()
        return target_places, source_places, (1.0 / linked_TS.sum(axis=1)[target_places]).astype(np.float32)
