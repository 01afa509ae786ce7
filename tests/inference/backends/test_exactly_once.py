"""Each placeholder exactly once in every output, with random weights, on every back end that this machine has."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.inference.backends.protocol import Precision
from dragoman.inference.backends.select import build_inference_model, supports_compiled
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.tasks.inference_model import InferenceModel
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.torch_engine.static_model import build_static_inference_model
from torch_models import wrap_model

RESERVED = range(4, 36)
WORDS = range(36, 64)
MAX_BEAM_SIZE = 8


CONFIG = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, d_ff=32, num_heads=2, tie_embeddings="none")


def make_model(seed: int) -> Transformer:
    """Return a random model, with large weights so that outputs differ, whose outputs end after some ten tokens."""
    torch.manual_seed(seed)
    model = build_model(CONFIG, source_vocab_size=64, target_vocab_size=64, padding_id=PADDING_ID).eval()
    with torch.no_grad():
        model.output.mul_(2.0)
        model.output[END_ID] *= 2.0
    return model


def build_backends(model: Transformer, device: torch.device) -> dict[str, InferenceModel]:
    """Return the model on each back end of a device: on a processor also with the static steps of a GPU."""
    if device.type == "cuda":
        trained_model = wrap_model(model.to(device), CONFIG)
        precisions: tuple[Precision, ...] = ("float32", "bfloat16")
        return {name: build_inference_model([trained_model], "cuda", name, None) for name in precisions} | {
            "plain": as_inference_model([model])
        }
    backends = {
        "plain": as_inference_model([model]),
        "static": build_static_inference_model(model),
    }
    if supports_compiled(CONFIG):
        backends["compiled"] = build_inference_model([wrap_model(model, CONFIG)], "cpu", "int8", None)
    return backends


def make_segments(count: int, seed: int) -> tuple[list[list[int]], list[SentenceConstraints]]:
    """Return sources with up to five codes, in one of sixty all of them, and their constraints."""
    rng = random.Random(seed)
    sources, constraints = [], []
    for index in range(count):
        codes = rng.sample(RESERVED, len(RESERVED) if index % 60 == 49 else rng.randint(0, 5))
        tokens = [*codes, *rng.choices(WORDS, k=rng.randint(0, 8))]
        rng.shuffle(tokens)
        sources.append([*tokens, END_ID])
        constraints.append(SentenceConstraints(exactly_once=tuple(codes)))
    return sources, constraints


def list_searches() -> list[dict[str, Any]]:
    beams: list[dict[str, Any]] = [
        {
            "beam_size": beam_size,
            "nbest": 1 + beam_size % 3 if beam_size > 2 else 1,
            "early_stopping": ("exhaustive", "best", "beam_full", "heuristic")[beam_size % 4],
        }
        for beam_size in range(1, MAX_BEAM_SIZE + 1)
    ]
    return [
        *({"method": "beam", **beam} for beam in beams),
        {"method": "beam", "beam_size": 6, "num_beam_groups": 3, "nbest": 5, "diversity_penalty": 1.0},
        {"method": "beam", "beam_size": 4, "nbest": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"method": "greedy"},
        {"method": "sample", "nbest": 2, "temperature": 2.0},
    ]


def count_wrong_outputs(count: int, device: torch.device, *, stride: int = 1) -> dict[str, int]:
    """Return for each back end the number of outputs in which a code is not exactly once, over `count` segments.

    stride: each back end runs one in this many of the searches, and back ends that follow each other run different ones
    """
    num_wrong = {}
    for backend, (name, inference_model) in enumerate(build_backends(make_model(seed=3), device).items()):
        num_wrong[name] = 0
        searches = list_searches()[backend % stride :: stride]
        for number, search in enumerate(searches):
            sources, constraints = make_segments(count // len(searches) + 1, seed=number)
            config = DecodingConfig(**{"max_extra_tokens": 4, "batch_tokens": 20_000, "repetition_window": 8, **search})
            outputs = generate(
                BatchSearch(
                    inference_model,
                    config,
                    start_id=PADDING_ID,
                    decoding_constraints=DecodingConstraints(
                        no_repeat_ngram_size=config.no_repeat_ngram_size,
                        suppress_tokens=tuple(RESERVED),
                        repetition_window=config.repetition_window,
                    ),
                ),
                sources,
                constraints=constraints,
            )
            for hypotheses, sentence in zip(outputs, constraints, strict=True):
                assert hypotheses
                expected = Counter(sentence.exactly_once)
                for hypothesis in hypotheses:
                    codes = Counter(token for token in hypothesis.tokens if token in RESERVED)
                    num_wrong[name] += codes != expected
    return num_wrong


@pytest.mark.usefixtures("one_core")
def test_each_code_is_exactly_once_in_every_output() -> None:
    assert set(count_wrong_outputs(200, torch.device("cpu"), stride=4).values()) == {0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_each_code_is_exactly_once_on_a_gpu() -> None:
    assert set(count_wrong_outputs(10_000, torch.device("cuda")).values()) == {0}
