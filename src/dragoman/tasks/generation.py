"""Ids in, hypotheses out: models, search and batches put together, for validation and engine alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.batches import collate, pad
from dragoman.data.subword import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.beam import beam_search
from dragoman.decoding.greedy import Choose, likeliest, one_by_one, sampler
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.scoring import score_targets
from dragoman.decoding.step import EnsembleState, State, Step, ensemble_step
from dragoman.model.attention import Attention, watch_attention
from dragoman.model.positions import LearnedPositions
from dragoman.model.transformer import Transformer

FORBIDDEN = (PADDING_ID, BEGIN_ID)
# Sampled sentence i draws from stream seed · STREAMS + i, so that its place, not its batch, decides what it becomes.
STREAMS = 1 << 32

Advance = Callable[[int], None]


def start_id(config: ModelConfig) -> int:
    """What the decoder reads first. Padding is embedded as a zero vector, which is what `zero` asks for."""
    return {"bos": BEGIN_ID, "eos": END_ID, "zero": PADDING_ID}[config.decoder_start]


def most_positions(models: Sequence[Transformer]) -> int | None:
    """How many tokens all of the models have positions for; none where positions never end."""
    tables = [stack.embedding.positions for model in models for stack in (model.encoder, model.decoder)]
    return min((len(table.weight) for table in tables if isinstance(table, LearnedPositions)), default=None)


def _device(model: Transformer) -> torch.device:
    return model.output.device


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the sentences, longest first, under a budget of padded tokens."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@torch.no_grad()
def generate(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    places: Sequence[int] | None = None,
    advance: Advance = lambda _: None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order given; several models vote as an ensemble.

    sources: ids as the encoder reads them, none empty and none longer than the models have positions for
    places: the number of each in its text, which chooses the stream that sampling draws from; 0, 1, … when not given
    advance: told how many sentences were finished
    """
    results: list[list[Hypothesis]] = [[] for _ in sources]
    rows = {"beam": config.beam_size, "greedy": 1, "sample": config.nbest}[config.method]
    numbers = range(len(sources)) if places is None else places
    most = most_positions(models)
    for batch in _batches([len(source) for source in sources], max(1, config.batch_tokens // rows)):
        limits = [len(sources[index]) + config.extra_length for index in batch]
        limits = limits if most is None else [min(limit, most) for limit in limits]
        found = _search(
            models, [sources[index] for index in batch], limits, [numbers[index] for index in batch], config, start_id
        )
        for index, hypotheses in zip(batch, found, strict=True):
            results[index] = hypotheses[: config.nbest]
        advance(len(batch))
    return results


def _search(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    places: Sequence[int],
    config: DecodingConfig,
    start: int,
) -> list[list[Hypothesis]]:
    device = _device(models[0])
    penalty = LengthPenalty(config.length_penalty, config.alpha)
    if config.method == "beam":
        step, state = _begin(models, pad(sources).to(device))
        return beam_search(
            step,
            state,
            limits=limits,
            beam_size=config.beam_size,
            start_id=start,
            end_id=END_ID,
            forbidden=FORBIDDEN,
            penalty=penalty,
            stop=config.stop,
            nbest=config.nbest,
            device=device,
        )
    draws = config.nbest if config.method == "sample" else 1
    repeated = [source for source in sources for _ in range(draws)]
    choose: Choose = likeliest
    if config.method == "sample":
        seeds = [config.seed * STREAMS + place * draws + draw for place in places for draw in range(draws)]
        choose = sampler(seeds, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    step, state = _begin(models, pad(repeated).to(device))
    found = one_by_one(
        step,
        state,
        limits=[limit for limit in limits for _ in range(draws)],
        start_id=start,
        end_id=END_ID,
        forbidden=FORBIDDEN,
        penalty=penalty,
        choose=choose,
        device=device,
    )
    groups = [found[first : first + draws] for first in range(0, len(found), draws)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


def _begin(models: Sequence[Transformer], source_BS: Tensor) -> tuple[Step, State]:
    states = tuple(model.start(source_BS) for model in models)
    if len(models) == 1:
        return models[0].step, states[0]
    return ensemble_step([model.step for model in models]), EnsembleState(states)


@torch.no_grad()
def score_pairs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    advance: Advance = lambda _: None,
) -> list[Hypothesis]:
    """Forced scoring: each given target as a hypothesis of its source."""
    results: dict[int, Hypothesis] = {}
    penalty = LengthPenalty(config.length_penalty, config.alpha)
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    for indices in _batches(lengths, config.batch_tokens):
        wanted = [targets[index] for index in indices]
        batch = collate([sources[index] for index in indices], wanted, start_id=start_id).to(_device(model))
        scored = score_targets(model(batch.source_BS, batch.inputs_BT), wanted, end_id=END_ID, penalty=penalty)
        results.update(zip(indices, scored, strict=True))
        advance(len(indices))
    return [results[index] for index in range(len(sources))]


@torch.no_grad()
def cross_attention(
    model: Transformer, source: Sequence[int], target: Sequence[int], *, start_id: int, finished: bool = True
) -> Tensor:
    """Where the decoder looked in the source when it said each target token, and the end if it came to it.

    → (layers, heads, T + 1, S), or T without the end
    """
    attentions = [module for name, module in model.decoder.named_modules() if name.endswith("cross_attention")]
    batch = collate([source], [target if finished else target[:-1]], start_id=start_id).to(_device(model))
    with watch_attention([module for module in attentions if isinstance(module, Attention)]) as weights:
        model(batch.source_BS, batch.inputs_BT)
    return torch.cat(weights).float().cpu()
