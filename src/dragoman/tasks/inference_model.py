"""Who is asked for words: one model, or several that vote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.interface import EnsembleState, State, Step, ensemble_step
from dragoman.decoding.native_search import Searcher
from dragoman.decoding.topk import PlainRanking, Ranking
from dragoman.model.positional_encoding import LearnedPositions
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class Speaker:
    """What a search asks for words: one model, or several that vote.

    start: source ids (B, S), padded on the right → the state before the first token
    positions: how many tokens it has positions for; none where they never end
    ranking: how a search of these words finds the likeliest
    searcher: searches by itself for what is asked for most; none where Python does
    narrowed: for source ids and further tokens a speaker that knows these and the likely words alone, and their ids (W,) in
        order, the special ones first; none for one that always knows all
    """

    start: Callable[[Tensor], State]
    step: Step
    device: torch.device
    positions: int | None
    ranking: Callable[[], Ranking] = PlainRanking
    searcher: Searcher | None = None
    narrowed: Callable[[Tensor, Sequence[int]], tuple[Speaker, Tensor]] | None = None


def speaker_of(models: Sequence[Transformer]) -> Speaker:
    """These models as they are; several vote as an ensemble."""
    device, positions = models[0].output.device, most_positions(models)
    if len(models) == 1:
        return Speaker(models[0].start, models[0].step, device, positions)
    return vote([Speaker(model.start, model.step, device, positions) for model in models])


def vote(speakers: Sequence[Speaker]) -> Speaker:
    """All of them as one, whose probabilities are the mean of theirs."""
    if len(speakers) == 1:
        return speakers[0]

    def start(source_BS: Tensor) -> State:
        return EnsembleState(tuple(speaker.start(source_BS) for speaker in speakers))

    positions = min((one.positions for one in speakers if one.positions is not None), default=None)
    step = ensemble_step([one.step for one in speakers])
    return Speaker(start, step, speakers[0].device, positions, speakers[0].ranking)


def start_id(config: ModelConfig) -> int:
    """What the decoder reads first. Padding is embedded as a zero vector, which is what `zero` asks for."""
    return {"bos": BEGIN_ID, "eos": END_ID, "zero": PADDING_ID}[config.decoder_start_token]


def most_positions(models: Sequence[Transformer]) -> int | None:
    """How many tokens all of the models have positions for; none where positions never end."""
    tables = [stack.embedding.positions for model in models for stack in (model.encoder, model.decoder)]
    return min((len(table.weight) for table in tables if isinstance(table, LearnedPositions)), default=None)
