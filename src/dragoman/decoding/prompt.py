"""Prompt of the decoder: tokens that it reads after the start token, and that belong to no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.decoding.arrays import Array
from dragoman.decoding.interface import SearchState, StepFn


@dataclass(frozen=True)
class PromptedState:
    """State of a model that reads a prompt.

    is_prompted: whether the model has read the prompt
    """

    inner: SearchState
    is_prompted: bool = False

    def reorder(self, rows_N: Array) -> PromptedState:
        """Return the state in which row i is the former row rows_N[i]."""
        return PromptedState(self.inner.reorder(rows_N), self.is_prompted)

    def select_sentences(self, sentences_B: Array) -> PromptedState:
        """Return the state of these sentences alone."""
        return PromptedState(self.inner.select_sentences(sentences_B), self.is_prompted)


def prompted_step(step: StepFn, prompt: Sequence[int]) -> StepFn:
    """Return a step that reads the prompt after the first token, and returns the logits of the token after the prompt."""

    def read_prompt(tokens_N: Array, state: PromptedState) -> tuple[Array, PromptedState]:
        logits_NV, inner = step(tokens_N, state.inner)
        if not state.is_prompted:
            for token in prompt:
                logits_NV, inner = step(tokens_N * 0 + token, inner)
        return logits_NV, PromptedState(inner, True)

    return read_prompt
