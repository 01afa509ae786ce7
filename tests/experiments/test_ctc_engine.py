"""CTC models of the compiled back end beside PyTorch, and prefix beam search beside the sum over all paths."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.experiments.ctc.compiled import CompiledCtc
from dragoman.experiments.ctc.decoder import predict_frames
from dragoman.experiments.ctc.prefix_search import search_prefixes
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.threads import limit_threads
from dragoman.inference.backends.compiled.weights import CompiledPrecision
from dragoman.inference.backends.select import build_inference_model, find_float32_reason
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.model_weights import list_shapes
from dragoman.shortlist import Shortlist
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.torch_engine.inference_model import as_inference_model
from int8_products import quantize
from torch_models import wrap_model

PAD, UNK, BEGIN, END = range(4)
VOCABULARY = 90
# Rounding of float32 sums in another order over the layers, as in the tests of the kernels.
ROUNDING = 1e-5
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "paper": {},
    "three positions": {"ctc_upsampling": 3, "norm": "pre"},
    "one position": {"ctc_upsampling": 1, "output_bias": True, "attention_bias": True},
    "window": {"attention_window": 2, "embedding_norm": True},
    "no whole vectors": {"d_model": 42, "activation": "gelu", "tie_embeddings": "decoder"},
    "positions in halves": {"position_encoding": "halves", "position_offset": 2, "target_space_embedding": True},
    "gate": {"activation": "swiglu", "norm_type": "rms", "feed_forward_bias": False, "tie_embeddings": "inputs"},
}
SOURCES = [[5, 6, 7, 8, 9, 10, 11, END], [12, END], [20, 21, 22, END], [30, 31, 30, 31, 30, 40, 41, 42, 43, 44, 45, 46, END]]

pytestmark = pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def make_config(**keys: Any) -> ModelConfig:
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 48, "d_ff": 80, "num_heads": 3, "decoder": "ctc"}
    return ModelConfig.model_validate(shape | keys)


def make_model(seed: int, **keys: Any) -> Transformer:
    """Return a model with random weights, norms and biases."""
    torch.manual_seed(seed)
    model = build_model(make_config(**keys), source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def compile_model(model: Transformer, precision: CompiledPrecision = "int8", **keys: Any) -> CompiledCtc:
    config = make_config(**keys)
    extension = config.compiled_extension
    assert extension is not None
    compiled = extension.compile(wrap_model(model, config).get_weights(), precision)
    assert isinstance(compiled, CompiledCtc)
    return compiled


def pad(sources: list[list[int]]) -> NDArray[np.int64]:
    source_BS = np.full((len(sources), max(map(len, sources))), PAD)
    for row, source in enumerate(sources):
        source_BS[row, : len(source)] = source
    return source_BS


def test_float32_outputs_equal_pytorch(subtests: pytest.Subtests) -> None:
    decodings: list[dict[str, Any]] = [{"method": "greedy"}, {"method": "beam", "beam_size": 3, "nbest": 3, "alpha": 0.6}]
    for name, keys in MODEL_KEYS.items():
        for seed, decoding in itertools.product(range(2), decodings):
            with subtests.test(name=name, seed=seed, decoding=decoding):
                config, model = make_config(**keys), make_model(seed, **keys)
                trained = wrap_model(model, config)
                compiled = build_inference_model([trained], "cpu", "float32", None)
                outputs, expected = (
                    generate(BatchSearch(inference_model, DecodingConfig(**decoding), start_id=BEGIN), SOURCES)
                    for inference_model in (compiled, as_inference_model([model]))
                )
                assert isinstance(cast(Any, compiled.own_search).predict.__self__, CompiledCtc)
                for hypotheses, expected_hypotheses in zip(outputs, expected, strict=True):
                    assert [hypothesis.tokens for hypothesis in hypotheses] == [
                        hypothesis.tokens for hypothesis in expected_hypotheses
                    ]
                    for hypothesis, expected_hypothesis in zip(hypotheses, expected_hypotheses, strict=True):
                        np.testing.assert_allclose(
                            hypothesis.token_log_probs, expected_hypothesis.token_log_probs, rtol=1e-3, atol=1e-4
                        )


def test_int8_predictions_equal_those_of_the_quantized_model(subtests: pytest.Subtests) -> None:
    """Rounding sometimes moves an input to the next step, so some predictions differ, by less than int8 from float32."""
    for name, keys in MODEL_KEYS.items():
        if keys.get("d_model") is not None:
            continue  # the emulation knows the padding of heads, not that of the width
        with subtests.test(name=name):
            model, source_BS = make_model(1, **keys), pad(SOURCES)
            exact = predict_frames(model, source_BS, [BEGIN, END], 1)
            compiled = compile_model(model, **keys).predict(source_BS, [BEGIN, END], 1)
            quantized = predict_frames(quantize(model, make_config(**keys)), source_BS, [BEGIN, END], 1)
            tokens, expected, float_tokens = (
                np.concatenate([prediction.tokens for prediction in predictions])
                for predictions in (compiled, quantized, exact)
            )
            assert float((tokens == expected).mean()) >= 0.95
            assert float((tokens == float_tokens).mean()) <= float((tokens == expected).mean())
            differences = np.abs(
                np.concatenate([prediction.log_probs for prediction in compiled])
                - np.concatenate([prediction.log_probs for prediction in quantized])
            )
            assert float(np.median(differences)) < ROUNDING


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_batch_and_threads_do_not_change_predictions(precision: CompiledPrecision) -> None:
    """Compare to the last bit: sentences alone, in several blocks, and with a second thread for each product."""
    generator = random.Random(0)
    sources = [[generator.randrange(4, VOCABULARY) for _ in range(generator.randint(1, 30))] for _ in range(30)]
    compiled = compile_model(make_model(0, d_model=512, num_heads=8), precision, d_model=512, num_heads=8)
    with limit_threads(1):
        together = compiled.predict(pad(sources), [BEGIN, END], 4)
        for row in (0, 1, 17, 29):
            assert compiled.predict(pad([sources[row]]), [BEGIN, END], 4) == [together[row]]
    with limit_threads(2):
        assert compiled.predict(pad(sources), [BEGIN, END], 4) == together


def test_shortlist_gives_its_words_only() -> None:
    model, words = make_model(0), [PAD, UNK, BEGIN, END, *range(40, 60)]
    shortlist = Shortlist(np.zeros((VOCABULARY, 1), np.int64), np.arange(40, 60), False, b"")
    trained = wrap_model(model, make_config())
    inference_model = build_inference_model([trained], "cpu", "float32", shortlist)
    search = BatchSearch(inference_model, DecodingConfig(method="greedy"), start_id=BEGIN)
    others = [token for token in range(VOCABULARY) if token not in words]
    for source, (hypothesis,) in zip(SOURCES, generate(search, SOURCES), strict=True):
        (prediction,) = predict_frames(model, pad([source]), [BEGIN, END, *others], 1)
        path = [token for token, _ in itertools.groupby(token for (token,) in prediction.tokens)]
        assert hypothesis.tokens == tuple(token for token in path if token != PAD) != ()


def test_model_is_computed_without_pytorch_in_both_precisions() -> None:
    config, model = make_config(), make_model(0)
    assert find_float32_reason([config], "cpu") is None
    assert find_float32_reason([make_config(position_encoding="none")], "cpu") is not None
    assert find_float32_reason([config], "cuda") is not None
    shapes = list_shapes(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    assert shapes == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def search(
    tokens: list[list[int]], log_probs: list[list[float]], *, beam_size: int, max_length: int = 99, alpha: float = 0.0
) -> list[Hypothesis]:
    settings = SearchSettings(start_id=BEGIN, end_id=END, length_penalty=LengthPenalty("gnmt", alpha))
    options: dict[str, Any] = {"blank_id": PAD, "max_length": max_length, "allow_repetition": False, "settings": settings}
    return search_prefixes(tokens, log_probs, beam_size=beam_size, **options)


def draw_predictions(num_frames: int, seed: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return all of four predictions at each position, with random log-probabilities."""
    logits_FV = np.random.default_rng(seed).standard_normal((num_frames, 4)) * 2
    log_probs_FV = logits_FV - np.log(np.exp(logits_FV).sum(1, keepdims=True))
    return [[PAD, 5, 6, 7]] * num_frames, log_probs_FV.tolist()


def sum_paths(tokens: list[list[int]], log_probs: list[list[float]]) -> dict[tuple[int, ...], float]:
    """Return the probability of each output: the sum over every path that merges to it."""
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(4), repeat=len(tokens)):
        output = tuple(token for token, _ in itertools.groupby(tokens[0][index] for index in path) if token != PAD)
        sums[output] += math.exp(sum(frame[index] for frame, index in zip(log_probs, path, strict=True)))
    return sums


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wide_beam_equals_the_sum_over_all_paths(seed: int) -> None:
    tokens, log_probs = draw_predictions(5, seed)
    sums = sum_paths(tokens, log_probs)
    hypotheses = search(tokens, log_probs, beam_size=len(sums))
    assert [hypothesis.tokens for hypothesis in hypotheses] == sorted(sums, key=lambda output: -sums[output])
    for hypothesis in hypotheses:
        output = hypothesis.tokens
        starts = [
            sum(probability for other, probability in sums.items() if other[:length] == output[:length])
            for length in range(len(output) + 1)
        ]
        expected = np.diff(np.log([*starts, sums[output]]))
        np.testing.assert_allclose(hypothesis.token_log_probs, expected, atol=1e-9)
        assert hypothesis.finished


def test_length_penalty_ranks_the_beam() -> None:
    tokens, log_probs = draw_predictions(5, 0)
    sums = sum_paths(tokens, log_probs)
    penalty = LengthPenalty("gnmt", 2.0)
    expected = sorted(sums, key=lambda output: -math.log(sums[output]) / penalty(float(len(output) + 1)))
    outputs = [hypothesis.tokens for hypothesis in search(tokens, log_probs, beam_size=len(sums), alpha=2.0)]
    assert outputs == expected
    assert outputs != [hypothesis.tokens for hypothesis in search(tokens, log_probs, beam_size=len(sums))]


def test_beam_keeps_the_length_limit() -> None:
    tokens, log_probs = draw_predictions(6, 0)
    assert max(len(hypothesis.tokens) for hypothesis in search(tokens, log_probs, beam_size=50, max_length=3)) == 2
    assert [hypothesis.tokens for hypothesis in search(tokens, log_probs, beam_size=2, max_length=1)] == [()]


def test_position_without_predictions_ends_no_search() -> None:
    assert [hypothesis.tokens for hypothesis in search([[0, 0]], [[-math.inf, -math.inf]], beam_size=2)] == [()]
