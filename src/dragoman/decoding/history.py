"""What was said at each step and after what, as pointers: nothing is copied in a step, and all is read back at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Entry:
    """A hypothesis in a history: that of this sentence which is so many tokens long and ends with this candidate."""

    sentence: int
    length: int
    column: int


@dataclass
class History:
    """Step by step, as the batch then was: the candidates, and which of them lived on.

    parents, tokens, log_probs: (sentences left, X candidates)
    living: (sentences left, R places), columns among the candidates
    rows: for each sentence of the whole batch, its row at that step
    """

    parents: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    living: list[Tensor] = field(default_factory=list)
    rows: list[Numbers] = field(default_factory=list)

    def add(self, parent_BX: Tensor, token_BX: Tensor, log_prob_BX: Tensor, living_BR: Tensor, rows: Numbers) -> None:
        for steps, tensor in zip(
            (self.parents, self.tokens, self.log_probs, self.living), (parent_BX, token_BX, log_prob_BX, living_BR), strict=True
        ):
            steps.append(tensor)
        self.rows.append(rows)

    def read(self, entries: Sequence[Entry]) -> list[tuple[list[int], list[float]]]:
        """The tokens of each and their log-probabilities."""
        if not entries:
            return []
        longest = max(entry.length for entry in entries)
        order = sorted(range(len(entries)), key=lambda index: -entries[index].length)
        length_E, sentence_E, column_E = (
            np.array([getattr(entries[index], name) for index in order]) for name in ("length", "sentence", "column")
        )
        parents, tokens, log_probs, living = (
            torch.cat(steps[:longest]).cpu().numpy() for steps in (self.parents, self.tokens, self.log_probs, self.living)
        )
        first = np.cumsum([0, *(len(tensor) for tensor in self.tokens[:longest])])
        # The longest stand first: so many reach each step.
        reached = np.searchsorted(-length_E, -np.arange(longest), side="left").tolist()
        said_ET = np.zeros((len(order), longest), dtype=np.int64)
        log_prob_ET = np.zeros((len(order), longest), dtype=np.float64)
        after = 0
        for step in reversed(range(longest)):
            here = reached[step]
            row_E = self.rows[step][sentence_E[:here]] + first[step]
            column_E[:after] = living[row_E[:after], column_E[:after]]
            at_E = column_E[:here]
            said_ET[:here, step], log_prob_ET[:here, step] = tokens[row_E, at_E], log_probs[row_E, at_E]
            column_E[:here] = parents[row_E, at_E]
            after = here
        read: list[tuple[list[int], list[float]]] = [([], []) for _ in entries]
        for place, index in enumerate(order):
            length = entries[index].length
            read[index] = (said_ET[place, :length].tolist(), log_prob_ET[place, :length].tolist())
        return read
