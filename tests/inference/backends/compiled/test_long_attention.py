"""Self-attention of long sentences, and cross-attention to them, against the forward pass in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.compiled.threads import WorkerPool
from dragoman.model_forward import NumpyTransformer
from dragoman.model_weights import ModelWeights, list_shapes

pytestmark = pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")
VOCABULARY, TOLERANCE = 50, 2e-5
LENGTHS = 293, 256, 255
"""Lengths of sentences. Those from `kernels.long_attention.MIN_LENGTH`, 256, on are computed in blocks."""


def make_weights(num_heads: int, key_width: int, value_width: int) -> ModelWeights:
    config = ModelConfig(
        d_model=96, d_ff=32, num_heads=num_heads, d_k=key_width, d_v=value_width, encoder_layers=2, decoder_layers=1
    )
    rng = np.random.default_rng(1)
    shapes = list_shapes(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    return ModelWeights(config, {name: rng.normal(0, 0.15, shape).astype(np.float32) for name, shape in shapes.items()})


def make_sources() -> NDArray[np.int64]:
    source_BS = np.zeros((len(LENGTHS), max(LENGTHS)), np.int64)
    for row, length in enumerate(LENGTHS):
        source_BS[row, :length] = np.random.default_rng(row).integers(4, VOCABULARY, length)
    return source_BS


@pytest.mark.parametrize(("num_heads", "key_width", "value_width"), [(6, 16, 16), (3, 20, 9), (18, 8, 11)])
def test_blocks_equal_numpy(num_heads: int, key_width: int, value_width: int) -> None:
    """Some heads pad a vector, or a second group, and the last block and the last group of keys are not full."""
    weights, source_BS = make_weights(num_heads, key_width, value_width), make_sources()
    expected_BSD = NumpyTransformer(weights).encode(source_BS)
    expected_ND = np.concatenate([vectors_SD[:length] for vectors_SD, length in zip(expected_BSD, LENGTHS, strict=True)])
    model = compile_model(weights, "float32")
    _, memory_ND = model.encode(source_BS, (), keeps_memory=True)
    np.testing.assert_allclose(memory_ND, expected_ND, rtol=0, atol=TOLERANCE)
    with WorkerPool(3).borrow(2) as workers:
        _, others_ND = model.encode(source_BS, workers, keeps_memory=True)
    np.testing.assert_array_equal(others_ND, memory_ND)
    _, int8_ND = compile_model(weights, "int8").encode(source_BS, (), keeps_memory=True)
    assert np.abs(int8_ND - expected_ND).max() < 0.2


@pytest.mark.parametrize(("num_heads", "key_width", "value_width"), [(6, 20, 24), (4, 8, 32), (18, 8, 32), (6, 16, 16)])
def test_cross_attention_equals_numpy(num_heads: int, key_width: int, value_width: int) -> None:
    """Five queries are computed at once, then three; one alone gives the same. Heads of 16 values have no room for padding."""
    weights, source_BS, num_queries = make_weights(num_heads, key_width, value_width), make_sources(), 8
    tokens_BR = np.random.default_rng(0).integers(4, VOCABULARY, (len(LENGTHS), num_queries))
    tokens_N, reference = tokens_BR.reshape(-1), NumpyTransformer(weights)
    memory_NSD = reference.encode(source_BS).repeat(num_queries, 0)
    outputs_ND = reference.decode(tokens_N[:, None], memory_NSD, source_BS.repeat(num_queries, 0))[:, 0]
    model = compile_model(weights, "float32")
    with WorkerPool(3).borrow(2) as workers:
        state = model.start(source_BS, workers)._replace(
            workspace=model.start(source_BS).workspace
        )  # one thread takes the step
    logits_NV, _ = model.step(tokens_N, state)
    np.testing.assert_allclose(logits_NV, reference.compute_logits(outputs_ND), rtol=0, atol=TOLERANCE)
    for query in (0, 4, 7):
        alone_NV, _ = model.step(tokens_BR[:, query].copy(), model.start(source_BS))
        np.testing.assert_array_equal(alone_NV, logits_NV[query::num_queries])
    in_int8 = compile_model(weights, "int8")
    int8_NV, _ = in_int8.step(tokens_N, in_int8.start(source_BS))
    assert np.abs(int8_NV - logits_NV).max() < 0.2
