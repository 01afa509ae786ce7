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

from dragoman.decoding.constraints import Allow
from dragoman.trees.constraint_automaton import Automaton


class Constraint:
    """An automaton whose tables stand on a device, for every batch that is searched there."""

    def __init__(self, automaton: Automaton, device: torch.device) -> None:
        self.automaton = automaton
        self.device = device
        self.table_RV = torch.from_numpy(automaton.table_RV).to(device)
        self.deeper_V, self.wordier_V = self.placed(automaton.deeper_V), self.placed(automaton.wordier_V)
        self.label_V = self.placed(automaton.label_V)

    def beside(self, lengths: Sequence[int], limits: Sequence[int], words: Sequence[Sequence[int]] | None = None) -> Allow:
        """What may come next in one batch's search, as `Rules.allow` asks it.

        lengths: words of each of the batch's sentences
        limits: the most tokens of each output, its end token included
        words: ids of each sentence's words, where tokens tell words
        Raises ValueError where no tree fits into a limit, or a word has no token.
        """
        start = self.automaton.start(lengths, limits, words)  # which checks all of them
        length_B, limit_B = self.placed(np.array(lengths)), self.placed(np.array(limits))
        alone = _Alone(self.automaton, lengths, limits)
        next_BW = torch.from_numpy(np.pad(start.words_NW, ((0, 0), (0, 1)), constant_values=-1)).long().to(self.device)

        def allow(outputs_NT: Tensor, sentences_N: Tensor) -> Tensor:
            if len(outputs_NT) == 1 and self._counts and not self.automaton.tells_words:
                row = alone.row(outputs_NT, int(sentences_N))
                return self.table_RV[row : row + 1]
            said_NT, of_N = (outputs_NT.numpy(), sentences_N.numpy()) if self._counts else (outputs_NT, sentences_N)
            left_N, mask_N = self._masks(said_NT, length_B[of_N], limit_B[of_N])
            allowed_NV = self.table_RV.index_select(0, torch.as_tensor(mask_N))
            if not self.automaton.tells_words:
                return allowed_NV
            place_N = torch.as_tensor(length_B[of_N] - left_N).clamp(0, next_BW.shape[1] - 1)
            next_N1 = next_BW[sentences_N, place_N][:, None]
            telling_N1 = torch.as_tensor(mask_N % 2 == 1)[:, None] & (next_N1 >= 0)
            return allowed_NV.scatter(1, next_N1.clamp(min=0), telling_N1)

        return allow

    @property
    def _counts(self) -> bool:
        """Whether numpy does it."""
        return self.device.type == "cpu"

    def placed(self, array: Any) -> Any:
        """An array on a processor, a tensor elsewhere."""
        return array if self._counts else torch.from_numpy(array).to(self.device)

    def _masks(self, said_NT: Any, length_N: Any, limit_N: Any) -> tuple[Any, Any]:
        """The words that are left, and the row of the table of masks (N); of no meaning for a row that is dead already."""
        length = said_NT.shape[1]
        if not length:
            zero_N = length_N * 0
            return length_N, self.automaton.row_of(length_N, zero_N, zero_N, limit_N, zero_N)
        deeper_NT = self.deeper_V[said_NT]
        depth_NT = deeper_NT.cumsum(1)
        depth_N, left_N = depth_NT[:, -1], length_N - self.wordier_V[said_NT].sum(1)
        # The innermost open bracket is the last that opened to this depth.
        place_T = self.placed(np.arange(length))
        opened_N = ((deeper_NT > 0) * (depth_NT == depth_N[:, None]) * place_T).argmax(1)
        top_N = self.label_V[said_NT[self.placed(np.arange(len(said_NT))), opened_N]]
        # Brackets opened since the last token that opened none; the first token always opens one.
        other_N = ((deeper_NT <= 0) * place_T).argmax(1)
        opens_N = length - 1 - other_N + (other_N == 0)
        return left_N, self.automaton.row_of(left_N, depth_N, opens_N, limit_N - length, top_N)


class _Alone:
    """The state of the only row that there is, token by token: for one row, each call of numpy's would cost more than this.

    A search that comes down to one row keeps it, so what it said before is what it had said in the call before.
    """

    def __init__(self, automaton: Automaton, lengths: Sequence[int], limits: Sequence[int]) -> None:
        self.automaton, self.lengths, self.limits = automaton, lengths, limits
        self.deeper, self.wordier = automaton.deeper_V.tolist(), automaton.wordier_V.tolist()
        self.label = automaton.label_V.tolist()
        self.begin(-1)

    def begin(self, sentence: int) -> None:
        self.sentence, self.said, self.words, self.opens = sentence, 0, 0, 0
        self.path: list[int] = []

    def row(self, outputs_1T: Tensor, sentence: int) -> int:
        """The row of the table of masks."""
        length = outputs_1T.shape[1]
        if sentence != self.sentence or self.said not in (length - 1, length):
            self.begin(sentence)
        for token in outputs_1T[0, self.said :].tolist():
            self.add(token)
        left, top = self.lengths[sentence] - self.words, self.path[-1] if self.path else -1
        return int(self.automaton.row_of(left, len(self.path), self.opens, self.limits[sentence] - length, top))

    def add(self, token: int) -> None:
        self.said += 1
        self.words += self.wordier[token]
        self.opens = self.opens + 1 if self.deeper[token] > 0 else 0
        if self.deeper[token] > 0:
            self.path.append(self.label[token])
        elif self.deeper[token] < 0 and self.path:  # a row that is dead may close what is not open
            self.path.pop()
