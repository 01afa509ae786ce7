"""The stack automaton beside a search: of the tokens that may come next, only those that a tree can go on with.

A search drops, doubles and moves its rows; so at each step each row's state is read off its output, in a few passes over small
numbers. On a processor these are numpy's, whose calls cost less than torch's; elsewhere they stay on the device.

Shapes: B sentences, N rows, T tokens said, V vocabulary, R rows of the table of masks, W words of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.decoding.constraints import AllowedTokensFn
from dragoman.trees.constraint_automaton import ConstraintAutomaton


class TreeConstraint:
    """An automaton whose tables stand on a device, for every batch that is searched there."""

    def __init__(self, automaton: ConstraintAutomaton, device: torch.device) -> None:
        self.automaton = automaton
        self.device = device
        self.mask_table_RV = torch.from_numpy(automaton.mask_table_RV).to(device)
        self.depth_change_V, self.word_change_V = (
            self.to_device(automaton.depth_change_V),
            self.to_device(automaton.word_change_V),
        )
        self.label_V = self.to_device(automaton.label_V)

    def build_allowed_tokens_fn(
        self, lengths: Sequence[int], limits: Sequence[int], words: Sequence[Sequence[int]] | None = None
    ) -> AllowedTokensFn:
        """What may come next in one batch's search, as `Rules.allow` asks it.

        lengths: words of each of the batch's sentences
        limits: the most tokens of each output, its end token included
        words: ids of each sentence's words, where tokens tell words
        Raises ValueError where no tree fits into a limit, or a word has no token.
        """
        start = self.automaton.initial_state(lengths, limits, words)  # which checks all of them
        length_B, limit_B = self.to_device(np.array(lengths)), self.to_device(np.array(limits))
        single_row = _SingleRowState(self.automaton, lengths, limits)
        next_BW = torch.from_numpy(np.pad(start.word_ids_NW, ((0, 0), (0, 1)), constant_values=-1)).long().to(self.device)

        def allowed_tokens(outputs_NT: Tensor, sentences_N: Tensor) -> Tensor:
            if len(outputs_NT) == 1 and self._uses_numpy and not self.automaton.has_word_tokens:
                mask_row = single_row.find_mask_row(outputs_NT, int(sentences_N))
                return self.mask_table_RV[mask_row : mask_row + 1]
            output_NT, sentence_N = (outputs_NT.numpy(), sentences_N.numpy()) if self._uses_numpy else (outputs_NT, sentences_N)
            words_left_N, mask_row_N = self._find_mask_rows(output_NT, length_B[sentence_N], limit_B[sentence_N])
            allowed_NV = self.mask_table_RV.index_select(0, torch.as_tensor(mask_row_N))
            if not self.automaton.has_word_tokens:
                return allowed_NV
            position_N = torch.as_tensor(length_B[sentence_N] - words_left_N).clamp(0, next_BW.shape[1] - 1)
            next_N1 = next_BW[sentences_N, position_N][:, None]
            emits_word_N1 = torch.as_tensor(mask_row_N % 2 == 1)[:, None] & (next_N1 >= 0)
            return allowed_NV.scatter(1, next_N1.clamp(min=0), emits_word_N1)

        return allowed_tokens

    @property
    def _uses_numpy(self) -> bool:
        """Whether numpy does it."""
        return self.device.type == "cpu"

    def to_device(self, array: Any) -> Any:
        """An array on a processor, a tensor elsewhere."""
        return array if self._uses_numpy else torch.from_numpy(array).to(self.device)

    def _find_mask_rows(self, output_NT: Any, length_N: Any, limit_N: Any) -> tuple[Any, Any]:
        """The words that are left, and the row of the table of masks (N); of no meaning for a row that is dead already."""
        length = output_NT.shape[1]
        if not length:
            zero_N = length_N * 0
            return length_N, self.automaton.compute_mask_row(length_N, zero_N, zero_N, limit_N, zero_N)
        depth_change_NT = self.depth_change_V[output_NT]
        depth_NT = depth_change_NT.cumsum(1)
        depth_N, words_left_N = depth_NT[:, -1], length_N - self.word_change_V[output_NT].sum(1)
        # The innermost open bracket is the last that opened to this depth.
        position_T = self.to_device(np.arange(length))
        opened_N = ((depth_change_NT > 0) * (depth_NT == depth_N[:, None]) * position_T).argmax(1)
        top_label_N = self.label_V[output_NT[self.to_device(np.arange(len(output_NT))), opened_N]]
        # Brackets opened since the last token that opened none; the first token always opens one.
        last_other_N = ((depth_change_NT <= 0) * position_T).argmax(1)
        num_opens_N = length - 1 - last_other_N + (last_other_N == 0)
        return words_left_N, self.automaton.compute_mask_row(words_left_N, depth_N, num_opens_N, limit_N - length, top_label_N)


class _SingleRowState:
    """The state of the only row that there is, token by token: for one row, each call of numpy's would cost more than this.

    A search that comes down to one row keeps it, so what it said before is what it had said in the call before.
    """

    def __init__(self, automaton: ConstraintAutomaton, lengths: Sequence[int], limits: Sequence[int]) -> None:
        self.automaton, self.lengths, self.limits = automaton, lengths, limits
        self.depth_change, self.word_change = automaton.depth_change_V.tolist(), automaton.word_change_V.tolist()
        self.label = automaton.label_V.tolist()
        self.reset(-1)

    def reset(self, sentence: int) -> None:
        self.sentence, self.num_tokens, self.num_words, self.num_opens = sentence, 0, 0, 0
        self.open_labels: list[int] = []

    def find_mask_row(self, outputs_1T: Tensor, sentence: int) -> int:
        """The row of the table of masks."""
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
        elif self.depth_change[token] < 0 and self.open_labels:  # a row that is dead may close what is not open
            self.open_labels.pop()
