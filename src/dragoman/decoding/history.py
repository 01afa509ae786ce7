"""What was said at each step and after what, as pointers: nothing is copied in a step, and all is read back at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class NodeRef:
    """A hypothesis in a history: that of this sentence which is so many tokens long and ends with this candidate."""

    sentence: int
    length: int
    column: int


@dataclass
class BeamHistory:
    """Step by step, as the batch then was: the candidates, and which of them lived on.

    parents, tokens, log_probs: (sentences left, X candidates)
    living: (sentences left, R places), columns among the candidates
    rows: for each sentence of the whole batch, its row at that step
    """

    parents: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    alive: list[Tensor] = field(default_factory=list)
    batch_rows: list[IntArray] = field(default_factory=list)

    def add(self, parent_BX: Tensor, token_BX: Tensor, log_prob_BX: Tensor, alive_BR: Tensor, batch_rows: IntArray) -> None:
        for steps, tensor in zip(
            (self.parents, self.tokens, self.log_probs, self.alive), (parent_BX, token_BX, log_prob_BX, alive_BR), strict=True
        ):
            steps.append(tensor)
        self.batch_rows.append(batch_rows)

    def trace_back(self, nodes: Sequence[NodeRef]) -> list[tuple[list[int], list[float]]]:
        """The tokens of each and their log-probabilities."""
        if not nodes:
            return []
        longest = max(node.length for node in nodes)
        order = sorted(range(len(nodes)), key=lambda index: -nodes[index].length)
        length_E, sentence_E, column_E = (
            np.array([getattr(nodes[index], name) for index in order]) for name in ("length", "sentence", "column")
        )
        parents, tokens, log_probs, alive = (
            torch.cat(steps[:longest]).cpu().numpy() for steps in (self.parents, self.tokens, self.log_probs, self.alive)
        )
        step_offset = np.cumsum([0, *(len(tensor) for tensor in self.tokens[:longest])])
        # The longest stand first: so many reach each step.
        num_reached = np.searchsorted(-length_E, -np.arange(longest), side="left").tolist()
        token_ET = np.zeros((len(order), longest), dtype=np.int64)
        log_prob_ET = np.zeros((len(order), longest), dtype=np.float64)
        num_next = 0
        for step in reversed(range(longest)):
            num_now = num_reached[step]
            row_E = self.batch_rows[step][sentence_E[:num_now]] + step_offset[step]
            column_E[:num_next] = alive[row_E[:num_next], column_E[:num_next]]
            now_column_E = column_E[:num_now]
            token_ET[:num_now, step], log_prob_ET[:num_now, step] = tokens[row_E, now_column_E], log_probs[row_E, now_column_E]
            column_E[:num_now] = parents[row_E, now_column_E]
            num_next = num_now
        outputs: list[tuple[list[int], list[float]]] = [([], []) for _ in nodes]
        for row, index in enumerate(order):
            length = nodes[index].length
            outputs[index] = (token_ET[row, :length].tolist(), log_prob_ET[row, :length].tolist())
        return outputs
