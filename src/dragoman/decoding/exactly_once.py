"""Tokens that an output must contain exactly once, such as those that stand for placeholders: a mask on the logits.

The mask bars such a token once the output has it, and the end token while one is missing. When the length limit leaves room for
the missing tokens alone, only they are allowed. So every output that ends has each of them once, and every output that reaches
the limit as well. All searches use the mask, because it reads nothing but the outputs so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dragoman.decoding.arrays import Array, Arrays


class ExactlyOnceMask:
    """Mask for the tokens of each sentence. C counts the tokens of the sentence with most of them.

    token_BC: the tokens, with -1 behind them
    max_length_B1: maximum output length in tokens, the end token included
    """

    def __init__(
        self, tokens: Sequence[Sequence[int]], max_lengths: Sequence[int], *, rows_per_sentence: int, arrays: Arrays
    ) -> None:
        width = max(map(len, tokens))
        rows = [[*sentence, *[-1] * (width - len(sentence))] for sentence in tokens]
        self.arrays, self.rows_per_sentence = arrays, rows_per_sentence
        self.token_BC = arrays.asarray(rows, arrays.xp.int64)
        self.max_length_B1 = arrays.asarray(list(max_lengths), arrays.xp.int64)[:, None]

    def gather_logits(self, logits_NV: Array) -> Array:
        """Return the logits of the tokens. → (N, C)"""
        return self.arrays.take(logits_NV, self._expand(self.token_BC).clip(min=0))

    def find_missing(self, outputs_NT: Array) -> Array:
        """Return which tokens are not in each output yet. → (N, C)"""
        token_NC = self._expand(self.token_BC)
        return (token_NC >= 0) & (outputs_NT[:, :, None] != token_NC[:, None]).all(1)

    def __call__(self, logits_NV: Array, logit_NC: Array, outputs_NT: Array, *, length: int, end_id: int) -> None:
        """Mask token number `length` (from 1) after these outputs, in place.

        logit_NC: logits that the missing tokens get, also if another mask bars them
        """
        arrays, where = self.arrays, self.arrays.xp.where
        missing_NC, token_NC = self.find_missing(outputs_NT), self._expand(self.token_BC)
        num_missing_N, index_NC = missing_NC.sum(1), token_NC.clip(min=0)
        has_no_room_N = (num_missing_N > 0) & (self._expand(self.max_length_B1)[:, 0] - length <= num_missing_N)
        logits_NV[:, end_id] = where(num_missing_N > 0, -inf, logits_NV[:, end_id])
        arrays.reduce_at(logits_NV, index_NC, arrays.cast(where(token_NC >= 0, -inf, inf), logits_NV.dtype), "minimum")
        logits_NV[has_no_room_N] = -inf
        arrays.reduce_at(logits_NV, index_NC, where(missing_NC, logit_NC, -inf), "maximum")

    def _expand(self, array_BX: Array) -> Array:
        """Return the row of each hypothesis. → (N, X)"""
        return self.arrays.repeat(array_BX, self.rows_per_sentence)

    def select_sentences(self, sentences_B: Array) -> None:
        """Keep the tokens of these sentences alone."""
        self.token_BC, self.max_length_B1 = self.token_BC[sentences_B], self.max_length_B1[sentences_B]
