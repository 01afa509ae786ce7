"""Who is asked for words: one model, or several that vote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.interface import EnsembleState, SearchState, StepFn, ensemble_step
from dragoman.decoding.native_search import NativeSearch
from dragoman.decoding.topk import TopK, TorchTopK
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class InferenceModel:
    """What a search asks for words: one model, or several that vote.

    start: source ids (B, S), padded on the right → the state before the first token
    positions: how many tokens it has positions for; none where they never end
    ranking: how a search of these words finds the likeliest
    searcher: searches by itself for what is asked for most; none where Python does
    narrowed: for source ids and further tokens a speaker that knows these and the likely words alone, and their ids (W,) in
        order, the special ones first; none for one that always knows all
    """

    start: Callable[[Tensor], SearchState]
    step: StepFn
    device: torch.device
    max_positions: int | None
    make_topk: Callable[[], TopK] = TorchTopK
    native_search: NativeSearch | None = None
    restrict_vocabulary: Callable[[Tensor, Sequence[int]], tuple[InferenceModel, Tensor]] | None = None


def as_inference_model(models: Sequence[Transformer]) -> InferenceModel:
    """These models as they are; several vote as an ensemble."""
    device, max_positions = models[0].output.device, get_max_positions(models)
    if len(models) == 1:
        return InferenceModel(models[0].start, models[0].step, device, max_positions)
    return ensemble([InferenceModel(model.start, model.step, device, max_positions) for model in models])


def ensemble(members: Sequence[InferenceModel]) -> InferenceModel:
    """All of them as one, whose probabilities are the mean of theirs."""
    if len(members) == 1:
        return members[0]

    def start(source_BS: Tensor) -> SearchState:
        return EnsembleState(tuple(member.start(source_BS) for member in members))

    max_positions = min((member.max_positions for member in members if member.max_positions is not None), default=None)
    step = ensemble_step([member.step for member in members])
    return InferenceModel(start, step, members[0].device, max_positions, members[0].make_topk)


def get_decoder_start_id(config: ModelConfig) -> int:
    """What the decoder reads first. Padding is embedded as a zero vector, which is what `zero` asks for."""
    return {"bos": BEGIN_ID, "eos": END_ID, "zero": PADDING_ID}[config.decoder_start_token]


def get_max_positions(models: Sequence[Transformer]) -> int | None:
    """How many tokens all of the models have positions for; none where positions never end."""
    tables = [stack.embedding.positions for model in models for stack in (model.encoder, model.decoder)]
    return min((len(table.weight) for table in tables if isinstance(table, LearnedPositionalEmbedding)), default=None)
