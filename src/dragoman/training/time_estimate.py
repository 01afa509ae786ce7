"""Time that a training will take on this machine, measured on a few steps of a random model before anything is prepared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dragoman.config import ModelConfig, Recipe, TrainingConfig
from dragoman.data.data_defaults import BYTES_PER_TOKEN, CorpusSize, measure_corpora
from dragoman.data.encoded_corpus import Corpus
from dragoman.formats.pair import Pair
from dragoman.model.factory import build_model
from dragoman.runtime.counts import format_minutes
from dragoman.runtime.thread_count import describe_load
from dragoman.training.compute_plan import choose_compute_plan
from dragoman.training.monitoring.events import EvaluationCost
from dragoman.training.monitoring.flops import count_forward_flops

MAX_TRIAL_TOKENS = 2048
"""Target tokens of a step that is measured. Time per token is nearly the same for larger steps."""
MAX_TRIALS = 3
MAX_SECONDS = 3.0
"""No further trial starts after this time."""
LOSS_SHARE, SEARCH_SHARE = 0.5, 0.1
"""Shares of the peak FLOP/s that a loss over a corpus and a search reach on a CPU."""
NUM_LOSS_PASSES = 2
"""Forward passes of a validation over its corpus: for the loss, and for the accuracy."""


def describe_minutes(minutes: float) -> str:
    """Return a sentence with the time of a training, and with the load of a machine that other programs use."""
    load = describe_load()
    busy = f", and less without the other programs: {load}" if load else ""
    return f"The training takes about {format_minutes(minutes)} here{busy}."


def estimate_recipe_minutes(recipe: Recipe) -> float:
    """Return the minutes of all steps of a recipe, by `estimate_minutes`."""
    corpus = measure_corpora(Path(recipe.data.root), recipe.training_directions.values())
    return round(estimate_minutes(recipe.model, recipe.training, corpus, vocab_size=recipe.tokenizer.vocab_size), 1)


def estimate_minutes(
    model_config: ModelConfig,
    config: TrainingConfig,
    corpus: CorpusSize,
    *,
    vocab_size: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the minutes of all steps of a training, without its data preparation and its validations.

    A step is the forward and the backward pass, and the sums of an optimizer, on sentences of the corpus's mean length. The
    shortest of a few trials counts.

    clock: function that returns seconds
    """
    plan = choose_compute_plan(config)
    length = max(round(corpus.tokens / max(corpus.pairs, 1)) + 1, 2)
    num_sentences = max(min(config.batch_tokens, MAX_TRIAL_TOKENS) // length, 1)
    model = build_model(model_config, source_vocab_size=vocab_size, target_vocab_size=vocab_size).to(plan.device)
    plan.apply_to(model)
    ids_BT = torch.randint(4, vocab_size, (num_sentences, length), device=plan.device)
    optimizer = torch.optim.Adam(model.parameters())

    def wait() -> None:
        if plan.device.type == "cuda":
            torch.cuda.synchronize(plan.device)

    seconds: list[tuple[float, float]] = []
    while len(seconds) < MAX_TRIALS and sum(map(sum, seconds)) < MAX_SECONDS:
        start = clock()
        with plan.autocast():
            logits_BTV = model(ids_BT, ids_BT)
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), ids_BT.flatten())
        torch.autograd.backward(loss)
        wait()
        update_start = clock()
        optimizer.step()
        wait()
        end = clock()
        seconds.append((update_start - start, end - update_start))
    batch_seconds, update_seconds = map(min, zip(*seconds, strict=True))
    num_batches = config.batches_per_update * config.batch_tokens / (num_sentences * length)
    num_steps: int = config.max_steps
    minutes: float = num_steps * (num_batches * batch_seconds + update_seconds) / 60.0
    return minutes


def estimate_evaluations(
    model: ModelConfig,
    beam_size: int,
    validation: Corpus | None,
    translated: Sequence[Pair],
    test_sets: Mapping[str, Sequence[Pair]],
    vocab_size: int,
) -> EvaluationCost:
    """Return the cost of a validation and of the test sets on a CPU.

    beam_size: beam of the search on the test sets
    translated: validation pairs that are translated as well
    """

    def count_flops(pairs: Iterable[Pair]) -> int:
        texts = [(len(pair.source.encode()), len(pair.target.encode())) for pair in pairs]
        lengths = np.ceil(np.array(texts).reshape(-1, 2) / BYTES_PER_TOKEN).astype(np.int64) + 1
        return count_forward_flops(model, vocab_size, lengths[:, 0], lengths[:, 1])

    loss_flops = search_flops = 0
    if validation is not None:
        loss_flops = NUM_LOSS_PASSES * count_forward_flops(
            model, vocab_size, *(lengths.astype(np.int64) for lengths in validation.lengths())
        )
        search_flops = count_flops(translated)
    test_flops = beam_size * sum(map(count_flops, test_sets.values()))
    return EvaluationCost(
        validation_flops=loss_flops / LOSS_SHARE + search_flops / SEARCH_SHARE, test_flops=test_flops / SEARCH_SHARE
    )
