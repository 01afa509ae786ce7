"""Phrase that a search looks for in the text of an output, in any tokens.

The text is UTF-8. A state is the number of bytes of the phrase that an output ends with, as in Knuth, Morris and Pratt (1977).
One token can continue the phrase, begin inside a word, complete the phrase and go on, or hold all of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

NO_TOKEN = -1


@dataclass(frozen=True)
class Phrase:
    """Phrase as text and as tokens.

    text: UTF-8 of the phrase, at least one byte
    tokens: usual tokens of the phrase, which a search tries to place
    pieces: text of each token that can be a part of the phrase, or hold the phrase
    only_first: the search places the phrase only at the start of an output
    """

    text: bytes
    tokens: tuple[int, ...]
    pieces: Mapping[int, bytes] = field(compare=False, repr=False)
    only_first: bool = False
    _steps: dict[tuple[int, int], tuple[int, bool]] = field(default_factory=dict, init=False, compare=False, repr=False)
    _completing: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def advance(self, state: int, token: int) -> tuple[int, bool]:
        """Return the state after one more token, and whether the token completes the phrase."""
        piece = self.pieces.get(token)
        if piece is None:
            return 0, False
        if (step := self._steps.get((state, token))) is None:
            text = self.text[:state] + piece
            longest = min(len(text), len(self.text) - 1)
            new_state = next((length for length in range(longest, 0, -1) if text.endswith(self.text[:length])), 0)
            step = self._steps[state, token] = new_state, self.text in text
        return step

    def find_state(self, tokens: Sequence[int]) -> int:
        """Return the state after these last tokens of an output."""
        start, num_bytes = len(tokens), 0
        while start > 0 and num_bytes < len(self.text) - 1 and (piece := self.pieces.get(tokens[start - 1])) is not None:
            start, num_bytes = start - 1, num_bytes + len(piece)
        state = 0
        for token in tokens[start:]:
            state, _ = self.advance(state, token)
        return state

    def is_in(self, tokens: Sequence[int]) -> bool:
        """Return whether the text of an output holds the phrase."""
        state, is_complete = 0, False
        for token in tokens:
            state, is_complete = self.advance(state, token)
            if is_complete:
                return True
        return False

    def list_completing_tokens(self, state: int) -> tuple[int, ...]:
        """Return the tokens that complete the phrase in this state."""
        if (tokens := self._completing.get(state)) is None:
            tokens = self._completing[state] = tuple(token for token in self.pieces if self.advance(state, token)[1])
        return tokens

    def get_next_token(self, state: int) -> int:
        """Return the token that continues the phrase: the usual one, or else the longest; NO_TOKEN if there is none."""
        if state in self._ends:
            return self.tokens[self._ends.index(state)]
        lengths = range(len(self.text) - state, 0, -1)
        return next(
            (token for length in lengths if (token := self._ids.get(self.text[state : state + length])) is not None), NO_TOKEN
        )

    def count_tokens(self, state: int) -> int:
        """Return the number of usual tokens that this state has passed."""
        return bisect_right(self._ends, state) - 1

    @cached_property
    def _ends(self) -> list[int]:
        """Number of bytes before each of the usual tokens."""
        return list(accumulate((len(self.pieces[token]) for token in self.tokens[:-1]), initial=0))

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Tokens by their text. Of equal ones, the last counts: pieces of bytes come first in a vocabulary."""
        return {piece: token for token, piece in self.pieces.items()}

    def restrict(self, local_ids: Mapping[int, int]) -> Phrase:
        """Return the phrase in the numbers of a restricted vocabulary, which has all usual tokens of a required phrase."""
        pieces = {local_ids[token]: piece for token, piece in self.pieces.items() if token in local_ids}
        return replace(self, tokens=tuple(local_ids[token] for token in self.tokens if token in local_ids), pieces=pieces)


PhraseGroup = tuple[Phrase, ...]
"""Phrases of which an output must contain one."""
