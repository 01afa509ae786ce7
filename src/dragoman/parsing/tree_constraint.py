"""Stack automaton that constrains a search to well-formed trees.

A search drops, copies and moves its rows. So at each step the code computes the state of each row from its output, in a few
passes over small arrays. On a CPU these are NumPy arrays, because NumPy's calls cost less than PyTorch's. Elsewhere they stay
on the device.

Shapes: B sentences, N rows, T output tokens, V vocabulary, R rows of the mask table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.decoding.arrays import NUMPY, Array, Arrays
from dragoman.decoding.constraints import AllowedTokensFn
from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton


class TreeConstraint:
    """Constraint automaton with its tables in the arrays of a search, for all batches of that search."""

    def __init__(self, automaton: ConstraintAutomaton, arrays: Arrays) -> None:
        self.automaton, self.arrays = automaton, arrays
        self.table_arrays = NUMPY if arrays.is_on_cpu else arrays
        self.mask_table_RV = arrays.asarray(automaton.mask_table_RV)
        self.depth_change_V, self.word_change_V, self.label_V = (
            self.table_arrays.asarray(table_V)
            for table_V in (automaton.depth_change_V, automaton.word_change_V, automaton.label_V)
        )

    def build_allowed_tokens_fn(self, lengths: Sequence[int], limits: Sequence[int]) -> AllowedTokensFn:
        """Return the function that computes the allowed next tokens of one batch; see `DecodingConstraints`.

        lengths: number of words of each sentence
        limits: most tokens of each output, end token included
        Raises ValueError if no tree fits into a limit.
        """
        self.automaton.check_limits(lengths, limits)
        arrays, tables = self.arrays, self.table_arrays
        length_B, limit_B = tables.asarray(np.array(lengths)), tables.asarray(np.array(limits))
        single_row = _SingleRowState(self.automaton, lengths, limits)

        def allowed_tokens(output_NT: Array, sentence_N: Array) -> Array:
            if arrays.is_on_cpu:
                output_NT, sentence_N = arrays.to_numpy(output_NT), arrays.to_numpy(sentence_N)
            if len(output_NT) == 1 and arrays.is_on_cpu:
                mask_row = single_row.find_mask_row(output_NT, int(sentence_N[0]))
                return self.mask_table_RV[mask_row : mask_row + 1]
            mask_row_N = self._find_mask_rows(output_NT, length_B[sentence_N], limit_B[sentence_N])
            return self.mask_table_RV[arrays.asarray(mask_row_N, arrays.xp.int64)]

        return allowed_tokens

    def _find_mask_rows(self, output_NT: Array, length_N: Array, limit_N: Array) -> Array:
        """Return the row of the mask table of each hypothesis (N,); meaningless for a row with score -inf."""
        length = output_NT.shape[1]
        if not length:
            zero_N = length_N * 0
            return self.automaton.compute_mask_row(length_N, zero_N, zero_N, limit_N, zero_N)
        depth_change_NT = self.depth_change_V[output_NT]
        depth_NT = depth_change_NT.cumsum(1)
        depth_N, words_left_N = depth_NT[:, -1], length_N - self.word_change_V[output_NT].sum(1)
        # The innermost open bracket is the last that opened to this depth.
        position_T = self.table_arrays.arange(length)
        opened_N = ((depth_change_NT > 0) * (depth_NT == depth_N[:, None]) * position_T).argmax(1)
        top_label_N = self.label_V[output_NT[self.table_arrays.arange(len(output_NT)), opened_N]]
        # Brackets opened since the last token that opened none; the first token always opens one.
        last_non_open_N = ((depth_change_NT <= 0) * position_T).argmax(1)
        num_opens_N = length - 1 - last_non_open_N + (last_non_open_N == 0)
        return self.automaton.compute_mask_row(words_left_N, depth_N, num_opens_N, limit_N - length, top_label_N)


class _SingleRowState:
    """State of the row of a search with one row, updated token by token; this is faster than NumPy for one row.

    Such a search keeps its row, so the output of a call continues the output of the call before.
    """

    def __init__(self, automaton: ConstraintAutomaton, lengths: Sequence[int], limits: Sequence[int]) -> None:
        self.automaton, self.lengths, self.limits = automaton, lengths, limits
        self.depth_change, self.word_change = automaton.depth_change_V.tolist(), automaton.word_change_V.tolist()
        self.label = automaton.label_V.tolist()
        self.reset(-1)

    def reset(self, sentence: int) -> None:
        self.sentence, self.num_tokens, self.num_words, self.num_opens = sentence, 0, 0, 0
        self.open_labels: list[int] = []

    def find_mask_row(self, outputs_1T: Array, sentence: int) -> int:
        length = outputs_1T.shape[1]
        if sentence != self.sentence or self.num_tokens not in (length - 1, length):
            self.reset(sentence)
        for token in outputs_1T[0, self.num_tokens :].tolist():
            self.push_token(token)
        words_left, top_label = self.lengths[sentence] - self.num_words, self.open_labels[-1] if self.open_labels else -1
        return int(
            self.automaton.compute_mask_row(
                words_left, len(self.open_labels), self.num_opens, self.limits[sentence] - length, top_label
            )
        )

    def push_token(self, token: int) -> None:
        self.num_tokens += 1
        self.num_words += self.word_change[token]
        self.num_opens = self.num_opens + 1 if self.depth_change[token] > 0 else 0
        if self.depth_change[token] > 0:
            self.open_labels.append(self.label[token])
        elif self.depth_change[token] < 0 and self.open_labels:  # a row with score -inf may close a bracket that is not open
            self.open_labels.pop()
