"""Time that a training will take on this machine, measured on a few steps of a random model before anything is prepared."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dragoman.config import ModelConfig, Recipe, TrainingConfig
from dragoman.data.data_defaults import CorpusSize, measure_corpora
from dragoman.model.factory import build_model
from dragoman.runtime.counts import format_minutes
from dragoman.training.compute_plan import choose_compute_plan

MAX_TRIAL_TOKENS = 2048
"""Target tokens of a step that is measured. Time per token is nearly the same for larger steps."""
MAX_TRIALS = 3
MAX_SECONDS = 3.0
"""No further trial starts after this time."""


def describe_minutes(minutes: float) -> str:
    """Return a sentence with the time of a training, and with the load of a machine that other programs use."""
    load, num_cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    busy = f", and less without the other programs: the load is {load:.1f} on {num_cores} cores"
    return f"The training takes about {format_minutes(minutes)} here{busy if load > num_cores else ''}."


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
