"""What a search needs to know of a model: one step, and a state that can be reordered. An ensemble is a step, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class SearchState(Protocol):
    """Whatever a step carries from token to token, with rows in order of sentences."""

    def reorder(self, rows_N: Tensor) -> Self:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        ...

    def select_sentences(self, sentences_B: Tensor) -> Self:
        """Only these sentences, with all their rows."""
        ...


StepFn = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""(tokens_N, state) → (logits_NV of the next token, state after it), for whatever State the model has.

The logits are the search's to write into until the next step.
"""


@dataclass(frozen=True)
class EnsembleState:
    """The states of several models that read the same sentences."""

    members: tuple[SearchState, ...]

    def reorder(self, rows_N: Tensor) -> EnsembleState:
        return EnsembleState(tuple(member.reorder(rows_N) for member in self.members))

    def select_sentences(self, sentences_B: Tensor) -> EnsembleState:
        return EnsembleState(tuple(member.select_sentences(sentences_B) for member in self.members))


def ensemble_step(steps: Sequence[StepFn]) -> StepFn:
    """A step whose probabilities are the mean of its members' (log of the mean, not mean of the logs)."""

    def step(tokens_N: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        results = [member(tokens_N, member_state) for member, member_state in zip(steps, state.members, strict=True)]
        log_probs = torch.stack([logits_NV.float().log_softmax(-1) for logits_NV, _ in results])
        return log_probs.logsumexp(0) - math.log(len(steps)), EnsembleState(tuple(new_state for _, new_state in results))

    return step
