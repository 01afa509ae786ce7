"""Compiled search over blocks: its tokens, probabilities and scores are those of compiled greedy search, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.shared import Precision
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.factory import build_model
from dragoman.model.prediction_heads import PredictionHead, PredictionHeads
from dragoman.tasks.generation import generate
from dragoman.tasks.inference_model import InferenceModel

pytest.importorskip("numba", reason="Numba is not installed")

from dragoman.inference.backends.block_decoding import BlockDecoding
from dragoman.inference.backends.compiled.block_search import CompiledBlockSearch
from dragoman.inference.backends.compiled.kernels.cpu_features import get_instruction_set

pytestmark = pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")

VOCABULARY, START_ID, NUM_SOURCES = 700, PADDING_ID, 20
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {"num_heads": 3},
    "pre-norm, odd widths": {
        "norm": "pre",
        "d_model": 42,
        "d_ff": 77,
        "num_heads": 3,
        "activation": "silu",
        "output_bias": True,
    },
    "learned positions": {"num_heads": 4, "position_encoding": "learned", "max_positions": 40},
}
RULES: dict[str, DecodingConstraints] = {
    "none": NO_DECODING_CONSTRAINTS,
    "repetition window": DecodingConstraints(repetition_window=8),
    "minimum length and suppressed tokens": DecodingConstraints(min_length=9, suppress_tokens=(5, 6, 7, 40, 41)),
    "no repeated bigram": DecodingConstraints(no_repeat_ngram_size=2),
}


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def build_accelerated_model(
    keys: dict[str, Any], proposer_kind: str = "heads", precision: Precision = "int8"
) -> InferenceModel:
    """Return a random model with heads of which many propose its tokens: the inputs of the output embedding hardly differ."""
    torch.manual_seed(2)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 48, "d_ff": 64, "tie_embeddings": "none"}
    config = ModelConfig(**(shape | keys))
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING_ID).eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    model.output[END_ID] *= 1.5
    d_model = model.output.shape[1]
    heads = PredictionHeads(num_heads=4, d_model=d_model, d_inner=20, token_ids_W=torch.arange(3, VOCABULARY))
    for head in heads.heads:
        torch.nn.init.normal_(cast(PredictionHead, head).outer.weight, std=0.3)
    acceptance = {2: 1.5, 3: 1.7, 4: 1.8, 5: 1.9}
    proposer: Proposer = heads.eval()
    if proposer_kind != "heads":
        d_ff = config.d_ff if proposer_kind == "copy" else None
        proposer = DraftDecoder.from_model(model, token_ids_W=torch.arange(3, VOCABULARY), num_proposals=4, d_ff=d_ff)
        for parameter in proposer.parameters():
            parameter.add_((0.02 if proposer_kind == "draft" else 0.0) * torch.randn_like(parameter))
    return build_inference_model([model], torch.device("cpu"), precision, None, proposer=proposer, acceptance=acceptance)


@pytest.fixture(scope="module")
def inference_models(one_core: None) -> dict[str, InferenceModel]:
    with torch.no_grad():
        models = {name: build_accelerated_model(keys) for name, keys in MODELS.items()}
        models |= {f"draft, {name}": build_accelerated_model(keys, "draft") for name, keys in MODELS.items()}
        odd_widths = MODELS["pre-norm, odd widths"]
        return models | {
            f"{kind}, float32": build_accelerated_model(odd_widths, kind, "float32") for kind in ("heads", "draft")
        }


def search(inference_model: InferenceModel, block_size: int, **options: Any) -> list[Hypothesis]:
    """Return the greedy outputs, with blocks of this size, or without heads for 1."""
    block_search = inference_model.block_search
    assert isinstance(block_search, BlockDecoding)
    assert isinstance(block_search.search, CompiledBlockSearch)
    rng = random.Random(3)
    sources = [[*rng.choices(range(4, VOCABULARY), k=rng.randint(1, 25)), END_ID] for _ in range(NUM_SOURCES)]
    block_search._choices = {(size, False): block_size for size in (1, 4, 16, 64)}
    config = DecodingConfig(method="greedy", max_extra_tokens=12, speculative="off" if block_size == 1 else "on")
    outputs = generate(inference_model, sources, config, start_id=START_ID, **options)
    return [hypotheses[0] for hypotheses in outputs]


def check_equal(outputs: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [replace(output, step_lengths=None) for output in outputs] == expected
    assert all(sum(output.step_lengths or ()) == len(output.token_log_probs) for output in outputs)
    assert all(min(output.step_lengths or ()) >= 1 for output in outputs)


@pytest.mark.parametrize("name", [*MODELS, *(f"draft, {name}" for name in MODELS), "heads, float32", "draft, float32"])
@pytest.mark.parametrize("rules", RULES)
def test_blocks_equal_greedy_search(inference_models: dict[str, InferenceModel], name: str, rules: str) -> None:
    constraints = [SentenceConstraints(allow_repetition=index % 3 == 0) for index in range(NUM_SOURCES)]
    options = {"decoding_constraints": RULES[rules], "constraints": constraints}
    expected = search(inference_models[name], 1, **options)
    for block_size in (2, 5):
        outputs = search(inference_models[name], block_size, **options)
        check_equal(outputs, expected)
        assert any(len(output.step_lengths or ()) < len(output.token_log_probs) for output in outputs)


def test_prompt_is_read_before_the_first_block(inference_models: dict[str, InferenceModel]) -> None:
    for inference_model in inference_models.values():
        expected = search(inference_model, 1, prompt=(7, 8, 9, 10, 11))
        check_equal(search(inference_model, 3, prompt=(7, 8, 9, 10, 11)), expected)


@pytest.mark.parametrize("name", ["post-norm", "draft, post-norm", "draft, float32"])
@pytest.mark.parametrize("rows_per_group", [2 * NUM_SOURCES, 8, 1])
def test_thread_groups_equal_one_thread(
    inference_models: dict[str, InferenceModel], rows_per_group: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five threads search in one group of three, in groups of several, or each alone. They propose the same tokens."""
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 5)
    monkeypatch.setattr("dragoman.inference.backends.compiled.model.WIDTH_PER_THREAD", 16)
    monkeypatch.setattr("dragoman.inference.backends.compiled.search.ROWS_PER_GROUP", rows_per_group)
    inference_model = inference_models[name]
    expected, alone = search(inference_model, 1), search(inference_model, 4)
    torch.set_num_threads(5)
    try:
        outputs = search(inference_model, 4)
    finally:
        torch.set_num_threads(1)
    check_equal(outputs, expected)
    assert [output.step_lengths for output in outputs] == [output.step_lengths for output in alone]


@pytest.mark.parametrize("prompt", [(), (7, 9, 8, 10, 11)])
def test_draft_that_is_the_model_is_always_right(prompt: tuple[int, ...]) -> None:
    """A draft of a model with one layer that keeps all units begins as that layer.

    So each step but the first and the last writes a block.
    """
    keys = {"decoder_layers": 1, "num_heads": 2}
    with torch.no_grad():
        inference_model = build_accelerated_model(keys, "copy")
    for block_size in (2, 4):
        outputs = search(inference_model, block_size, prompt=prompt)
        check_equal(outputs, search(inference_model, 1, prompt=prompt))
        for output in outputs:
            first, *others = output.step_lengths or ()
            assert first == 1
            assert all(length == block_size for length in others[:-1])


def test_wide_heads_are_not_compiled() -> None:
    torch.manual_seed(1)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, d_ff=48, num_heads=2)
    model = build_model(config, source_vocab_size=40, target_vocab_size=40, padding_id=PADDING_ID).eval()
    heads = PredictionHeads(num_heads=1, d_model=32, d_inner=500, token_ids_W=torch.arange(40)).eval()
    inference_model = build_inference_model([model], torch.device("cpu"), "int8", None, proposer=heads, acceptance={2: 1.5})
    assert inference_model.block_search is None
