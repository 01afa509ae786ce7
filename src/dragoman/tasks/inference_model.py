"""The model that a search steps: one Transformer, or an ensemble of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.arrays import Arrays
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import EnsembleState, SearchSettings, SearchState, StepFn, ensemble_step
from dragoman.decoding.native_search import NativeSearch
from dragoman.decoding.prompt import PromptedState, prompted_step
from dragoman.decoding.topk import TopK


class OwnSearch(Protocol):
    """Search of a model that predicts all tokens at once."""

    def __call__(
        self,
        source_BS: NDArray[np.int64],
        *,
        limits: Sequence[int],
        settings: SearchSettings,
        may_repeat: Sequence[bool],
        beam_size: int | None,
    ) -> list[list[Hypothesis]]:
        """Return the outputs of each source, best first.

        limits: maximum output length of each source in tokens
        may_repeat: whether the output of each source may contain a degenerate repetition
        beam_size: number of outputs that beam search keeps for each source; None for the one output of greedy search
        """
        ...


@dataclass(frozen=True)
class InferenceModel:
    """Interface between a search and the models: one model, or an ensemble.

    start: maps source ids (B, S) in NumPy, padded on the right, or what else the model reads, to the state before the first
        token
    step: maps the last tokens (N,) and the state to logits (N, V) and the next state
    arrays: library and device of the tokens and the logits
    max_positions: number of tokens that the model has positions for; None if positions never end
    make_topk: makes the object that finds the likeliest tokens of a search; None for `BlockTopK`
    native_search: search in machine code for common requests; None if Python does every search
    own_search: search of a model that predicts all tokens at once; None for a model that predicts token by token
    restrict_vocabulary: maps source ids and required tokens to a model with a smaller output vocabulary, and to the token
        ids (W,) of that vocabulary, special tokens first. It is None without a shortlist.
    numbers_per_vector: source ids for each position of the encoder. An output has at most as many tokens as the encoder has
        positions, and `max_extra_tokens` more.
    """

    start: Callable[[NDArray[Any]], SearchState]
    step: StepFn
    arrays: Arrays
    max_positions: int | None
    make_topk: Callable[[], TopK] | None = None
    native_search: NativeSearch | None = None
    own_search: OwnSearch | None = None
    restrict_vocabulary: Callable[[NDArray[np.int64], Sequence[int]], tuple[InferenceModel, NDArray[np.int64]]] | None = None
    numbers_per_vector: int = 1


def ensemble(members: Sequence[InferenceModel]) -> InferenceModel:
    """Return one inference model whose probabilities are the mean of the members' probabilities."""
    if len(members) == 1:
        return members[0]

    def start(source_BS: NDArray[np.int64]) -> SearchState:
        return EnsembleState(tuple(member.start(source_BS) for member in members))

    max_positions = min((member.max_positions for member in members if member.max_positions is not None), default=None)
    arrays = members[0].arrays
    step = ensemble_step([member.step for member in members], arrays)
    numbers_per_vector = min(member.numbers_per_vector for member in members)
    return InferenceModel(start, step, arrays, max_positions, members[0].make_topk, numbers_per_vector=numbers_per_vector)


def prompt_decoder(inference_model: InferenceModel, prompt: Sequence[int]) -> InferenceModel:
    """Return the inference model whose decoder reads a prompt after the start token; the same one for an empty prompt."""
    if not prompt:
        return inference_model
    return replace(
        inference_model,
        start=lambda source_BS: PromptedState(inference_model.start(source_BS)),
        step=prompted_step(inference_model.step, prompt),
        native_search=None,
    )


def get_decoder_start_id(config: ModelConfig) -> int:
    """Return the first decoder input. `zero` maps to padding, which the model embeds as a zero vector."""
    return {"bos": BEGIN_ID, "eos": END_ID, "zero": PADDING_ID}[config.decoder_start_token]
