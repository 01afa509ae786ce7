"""The forward pass in NumPy against the PyTorch model, for every switch of the configuration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.activations import erf
from dragoman.config import ModelConfig
from dragoman.model.attention import record_attention
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.model.weights import collect_weights
from dragoman.model_forward import MAX_SCORES, NumpyTransformer, softmax
from dragoman.model_weights import ModelWeights

VOCABULARY, START, END, WORD = 23, 2, 3, 1
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 16, "d_ff": 32, "num_heads": 2}
SOURCES = np.array([[7, 8, 9, 4, 5, 6, 11, 3], [5, 3, 0, 0, 0, 0, 0, 0], [11, 6, 4, 10, 3, 0, 0, 0]])
INPUTS = np.array([[2, 8, 9, 10, 5], [2, 0, 0, 0, 0], [2, 19, 4, 0, 0]])
TARGETS = np.array([[8, 9, 10, 5, 3], [3, 0, 0, 0, 0], [19, 4, 3, 0, 0]])

T5_KEYS: dict[str, Any] = {
    "norm_type": "rms",
    "feed_forward_bias": False,
    "position_encoding": "relative",
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "scale_embeddings": False,
}
SWITCHES: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "post-norm with a final norm": {"final_norm": True},
    "pre-norm without a final norm": {"norm": "pre", "final_norm": False},
    "large epsilon": {"norm_epsilon": 1e-2},
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "attention bias": {"attention_bias": True},
    "d_k and d_v": {"d_k": 3, "d_v": 5, "num_heads": 4},
    "one head": {"num_heads": 1},
    "grouped heads": {"num_heads": 4, "num_key_value_heads": 2, "d_k": 3, "d_v": 5, "attention_bias": True},
    "one head of keys and values": {"num_heads": 4, "num_key_value_heads": 1},
    "concatenated sinusoids": {"position_encoding": "concatenated"},
    "sinusoids in halves": {"position_encoding": "halves", "position_offset": 2},
    "offset": {"position_offset": 7},
    "embedding norm": {"embedding_norm": True, "target_space_embedding": True},
    "learned positions": {"position_encoding": "learned", "max_positions": 8},
    "decoder tie": {"tie_embeddings": "decoder"},
    "no tie": {"tie_embeddings": "none"},
    "output bias": {"output_bias": True},
    "unscaled embeddings": {"scale_embeddings": False},
    "target space": {"target_space_embedding": True},
    "window": {"attention_window": 2},
    "window of one": {"attention_window": 1, "norm": "pre", "attention_bias": True},
    "SSRU": {"decoder_autoregression": "ssru"},
    "SSRU with pre-norm": {"decoder_autoregression": "ssru", "norm": "pre", "attention_window": 2},
    "T5": {**T5_KEYS, "norm": "pre"},
    "T5 v1.1": {**T5_KEYS, "norm": "pre", "activation": "geglu", "tie_embeddings": "inputs"},
    "SwiGLU with biases": {**T5_KEYS, "activation": "swiglu", "feed_forward_bias": True, "attention_window": 3},
    "rotary": {"position_encoding": "rotary"},
    "rotary, grouped heads": {"position_encoding": "rotary", "num_heads": 4, "num_key_value_heads": 2, "d_k": 6, "d_v": 5},
    "one layer a stack": {"encoder_layers": 1, "decoder_layers": 1},
    "parser": {"pointer": True},
    "parser without a pointer": {"pointer": False},
}


def make_model(**keys: Any) -> Transformer:
    """Return a random model with random biases and norms, so that each of them matters."""
    torch.manual_seed(1)
    is_parser = "pointer" in keys
    model = build_model(
        ModelConfig.model_validate({**SIZES, **keys}),
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        word_id=WORD if is_parser else None,
        tagging=is_parser,
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    if model.words is not None:
        model.words.fill(begins=[7, 9, 5, 11, 10], shifts=[8, 10, 19], hidden=[])
    return model


def make_numpy_model(model: Transformer, **keys: Any) -> NumpyTransformer:
    """Return the forward pass in NumPy over the weights of a PyTorch model."""
    arrays = {name: weight.numpy() for name, weight in collect_weights(model).items()}
    word_id = None if model.words is None else WORD
    return NumpyTransformer(ModelWeights(ModelConfig.model_validate({**SIZES, **keys}), arrays, word_id=word_id))


@torch.no_grad()
def test_forward_equals_pytorch(subtests: pytest.Subtests) -> None:
    for switch in SWITCHES:
        model = make_model(**SWITCHES[switch])
        numpy_model = make_numpy_model(model, **SWITCHES[switch])
        for rows in ([0, 1, 2], [1]):
            with subtests.test(switch=switch, rows=rows):
                source, inputs, targets = (array[rows][:, (array[rows] != 0).any(0)] for array in (SOURCES, INPUTS, TARGETS))
                with record_attention([layer.cross_attention for layer in model.decoder.layers]) as recorded:  # type: ignore[misc]
                    logits = model(torch.from_numpy(source), torch.from_numpy(inputs))
                real = targets != 0
                outputs = numpy_model.decode(inputs, numpy_model.encode(source), source)
                close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
                np.testing.assert_allclose(numpy_model.compute_logits(outputs)[real], logits.numpy()[real], **close)
                log_probs = logits.log_softmax(-1).gather(2, torch.from_numpy(targets)[:, :, None])[:, :, 0].numpy()
                np.testing.assert_allclose(
                    numpy_model.compute_log_probs(source, inputs, targets), np.where(real, log_probs, 0), **close
                )
                weights = numpy_model.compute_cross_attentions(source, inputs)
                expected = torch.stack(recorded, dim=1).numpy().swapaxes(2, 3)
                np.testing.assert_allclose(weights.swapaxes(2, 3).swapaxes(1, 2)[real], expected.swapaxes(1, 2)[real], **close)


@torch.no_grad()
@pytest.mark.parametrize("switch", ["paper", "window", "window of one", "rotary"])
def test_long_sentences_are_computed_in_blocks(switch: str) -> None:
    rng = np.random.default_rng(2)
    source, inputs = rng.integers(4, VOCABULARY, (2, 170)), rng.integers(4, VOCABULARY, (2, 190))
    source[1, 100:] = 0
    model = make_model(**SWITCHES[switch])
    numpy_model = make_numpy_model(model, **SWITCHES[switch])
    expected = model.decoder(torch.from_numpy(inputs), model.start(torch.from_numpy(source)))[0].numpy()
    whole = numpy_model.decode(inputs, numpy_model.encode(source), source)
    assert MAX_SCORES > 2 * 190 * 190
    numpy_model = replace(numpy_model, max_scores=2 * 190 * 7)  # blocks of seven queries
    blocks = numpy_model.decode(inputs, numpy_model.encode(source), source)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(blocks, expected, rtol=1e-5, atol=2e-5)


@torch.no_grad()
def test_tags_equal_pytorch() -> None:
    model = make_model(pointer=True)
    assert model.words is not None
    assert model.tagger is not None
    source = torch.from_numpy(SOURCES)
    expected = model.tagger(model.words.gather_word_outputs(model.encoder(source), source)).log_softmax(-1)
    log_probs = make_numpy_model(model, pointer=True).compute_tag_log_probs(SOURCES)
    np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_position_beyond_the_learned_ones_is_refused() -> None:
    keys = SWITCHES["learned positions"]
    numpy_model = make_numpy_model(make_model(**keys), **keys)
    with pytest.raises(IndexError, match="8 learned positions"):
        numpy_model.encode(np.full((1, 9), 5))


def test_erf_equals_math() -> None:
    numbers = np.concatenate([np.linspace(-6, 6, 10_007), [0.0, np.inf, -np.inf, 1e-30]]).astype(np.float32)
    expected = np.array([math.erf(number) for number in numbers])
    np.testing.assert_allclose(erf(numbers), expected, rtol=0, atol=1e-7)


def test_softmax_of_large_scores_has_no_overflow() -> None:
    np.testing.assert_array_equal(softmax(np.array([[1e30, 1e30], [-1e30, 0]], dtype=np.float32)), [[0.5, 0.5], [0, 1]])
