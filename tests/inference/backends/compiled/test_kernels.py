"""Tests that kernels equal the formulas, and that the other sentences of a batch never change a result."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import kernel_compiler
from dragoman.config import ModelConfig
from dragoman.decoding.topk import BlockTopK
from dragoman.inference.backends.compiled.compiled_topk import CompiledTopK
from dragoman.inference.backends.compiled.kernels import gemm
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL_U8,
    STORE,
    HeadLayout,
    LinearWeights,
)
from dragoman.inference.backends.compiled.model import (
    ENCODE_BLOCK_TOKENS,
    INITIAL_POSITIONS,
    MIN_RELEASED_TOKENS,
    CompiledTransformer,
)
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.compiled.state import WorkspaceMemory
from dragoman.inference.backends.compiled.threads import run_with_each
from dragoman.inference.backends.compiled.weights import (
    CompiledPrecision,
    Int8Rows,
    WeightLoader,
    WeightPacker,
    pack_int8_weights,
)
from dragoman.inference.backends.select import supports_compiled
from dragoman.io.int8_tensors import MIN_STEP, dequantize_matrices, quantize_matrices
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.torch_engine.arrays import TorchArrays
from int8_products import D_FF, compute_weight_steps, quantize, sum_lanes
from torch_models import wrap_model

njit = kernel_compiler.njit

VOCABULARY = 90
NO_HEADS = HeadLayout(1, 1, 0, 0, has_float32_kv=False, rotation_width=0, num_used_heads=1)
# Steps of a search that outgrows the first room for keys and values.
STEPS = INITIAL_POSITIONS + 4
# Rounding of float32 sums in another order over the layers, in units of the last of 24 bits.
ROUNDING = 2e-5
PADDING = 0
T5_KEYS: dict[str, Any] = {
    "norm_type": "rms",
    "feed_forward_bias": False,
    "position_encoding": "relative",
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "scale_embeddings": False,
}
ROTARY: dict[str, Any] = {"position_encoding": "rotary"}
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre", "attention_bias": True},
    "post-norm with final norm": {"final_norm": True, "tie_embeddings": "decoder"},
    "learned positions": {"position_encoding": "learned", "tie_embeddings": "none", "scale_embeddings": False},
    "wide heads, target space": {"d_k": 16, "d_v": 32, "target_space_embedding": True, "position_encoding": "concatenated"},
    "one head": {"num_heads": 1, "d_k": 24, "d_v": 40},
    "two heads": {"num_heads": 2},
    "eight narrow heads": {"num_heads": 8, "d_k": 3, "d_v": 5},
    "sixteen heads": {"num_heads": 16, "d_k": 16, "d_v": 16},
    "grouped keys and values": {"num_heads": 6, "num_key_value_heads": 2, "d_k": 3, "d_v": 5, "attention_bias": True},
    "two groups of heads": {"num_heads": 20, "d_k": 3, "d_v": 5, "norm": "pre"},
    "no width in whole vectors": {"d_model": 42, "d_ff": 77, "final_norm": True, "embedding_norm": True},
    "attention window": {"attention_window": 3},
    "pointer": {"pointer": True, "tie_embeddings": "none", "d_model": 42},
    "SiLU, output bias": {"activation": "silu", "output_bias": True},
    "GELU": {"activation": "gelu"},
    "SSRU": {"decoder_autoregression": "ssru"},
    "SSRU, pre-norm": {"decoder_autoregression": "ssru", "norm": "pre", "d_model": 42},
    "T5": {**T5_KEYS, "norm": "pre", "num_heads": 20, "d_k": 3, "d_v": 5, "d_model": 42},
    "T5 v1.1": {**T5_KEYS, "norm": "pre", "activation": "geglu", "tie_embeddings": "inputs"},
    "SwiGLU with biases": {**T5_KEYS, "activation": "swiglu", "feed_forward_bias": True, "attention_window": 3},
    "rotary": ROTARY,
    "rotary, halves of half a vector": {**ROTARY, "num_heads": 8, "d_k": 2, "attention_window": 3, "attention_bias": True},
    "rotary, two groups of heads": {**ROTARY, "num_heads": 20, "num_key_value_heads": 10, "d_k": 6, "d_v": 5, "d_model": 42},
    "rotary, other vectors": {**ROTARY, "norm": "pre", "embedding_norm": True, "target_space_embedding": True},
}


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def make_config(**keys: Any) -> ModelConfig:
    """Return the configuration of a model of two layers; no width is a multiple of 64."""
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 48, "d_ff": D_FF[0], "num_heads": 3} | keys
    return ModelConfig(**shape)


def make_model(**keys: Any) -> Transformer:
    """Return a model with random weights, norms and biases."""
    torch.manual_seed(1)
    config = make_config(**keys)
    parser_options: dict[str, Any] = {"word_id": 4, "tagging": False} if config.pointer else {}
    model = build_model(
        config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING, **parser_options
    ).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    if model.words is not None:
        model.words.fill(begins=range(1, VOCABULARY, 2), shifts=range(1, VOCABULARY, 3), hidden=[])
    return model


def compile_transformer(
    model: Transformer, precision: CompiledPrecision = "int8", keys: Mapping[str, Any] = MappingProxyType({})
) -> CompiledTransformer:
    """Return the compiled model of `make_model` with these keys."""
    return compile_model(wrap_model(model, make_config(**keys)).get_weights(), precision)


def make_sources(sentences: int, longest: int) -> Tensor:
    """Return sentences of random lengths, one of them of the greatest length, padded on the right."""
    rng = random.Random(1)
    source_BS = torch.full((sentences, longest), PADDING)
    for row in range(sentences):
        length = longest if row == 0 else rng.randint(1, longest)
        source_BS[row, :length] = torch.tensor(rng.choices(range(1, VOCABULARY), k=length))
    return source_BS


def run_steps(
    model: Transformer | CompiledTransformer, source_BS: Tensor, width: int, leave: Mapping[int, Sequence[int]], steps: int
) -> list[dict[int, Tensor]]:
    """Return each step's logits by sentence, in a search that reorders rows at random.

    leave: sentences that leave, by step
    """
    is_compiled = isinstance(model, CompiledTransformer)
    to_array: Any = np.array if is_compiled else torch.tensor
    state: Any = model.start(cast(Any, source_BS.numpy() if is_compiled else source_BS))
    sentences = list(range(len(source_BS)))
    steps_logits = []
    for step in range(steps):
        rngs = {sentence: random.Random(f"{sentence} {step}") for sentence in sentences}
        tokens_N = to_array([rngs[sentence].randrange(VOCABULARY) for sentence in sentences for _ in range(width)])
        logits_NV, state = model.step(tokens_N, state)
        steps_logits.append(
            dict(zip(sentences, torch.as_tensor(logits_NV).clone().view(len(sentences), width, -1), strict=True))
        )
        rows_N = [row * width + rngs[sentence].randrange(width) for row, sentence in enumerate(sentences) for _ in range(width)]
        state = state.reorder(to_array(rows_N))
        if leaving := leave.get(step):
            kept = [row for row, sentence in enumerate(sentences) if sentence not in leaving]
            sentences = [sentences[row] for row in kept]
            state = state.select_sentences(to_array(kept))
    return steps_logits


def test_logits_equal_those_of_the_model(subtests: pytest.Subtests) -> None:
    """Compare up to float32's rounding. With int8, it sometimes moves an input to the next step. Then the difference is as
    large as that between the quantized model and the trained one."""
    for number, (width, keys) in enumerate([(1, {}), *product([3], MODEL_KEYS.values())]):
        with subtests.test(width=width, keys=keys):
            steps = STEPS if number % 4 == 0 else 13  # some outgrow the first room, all have sentences that leave
            model = make_model(**keys)
            assert supports_compiled(make_config(**keys))
            source_BS, leave = make_sources(6, 21), {3: [1], 11: [0, 4]}
            exact = run_steps(model, source_BS, width, leave, steps)
            in_float32 = run_steps(compile_transformer(model, "float32", keys), source_BS, width, leave, steps)
            assert float(max_differences(in_float32, exact).max()) < ROUNDING
            compiled = run_steps(compile_transformer(model, keys=keys), source_BS, width, leave, steps)
            quantized = run_steps(quantize(model, make_config(**keys)), source_BS, width, leave, steps)
            assert [list(step) for step in compiled] == [list(step) for step in quantized]
            differences = max_differences(compiled, quantized)
            assert float((differences < ROUNDING).float().mean()) > 0.5
            assert float(differences.max()) < 2 * float(max_differences(compiled, exact).max())


def max_differences(left: list[dict[int, Tensor]], right: list[dict[int, Tensor]]) -> Tensor:
    """Return the greatest difference of each sentence at each step."""
    pairs = zip(left, right, strict=True)
    return torch.stack([(step[number] - other_step[number]).abs().max() for step, other_step in pairs for number in step])


@pytest.mark.parametrize(
    ("width", "precision", "keys"),
    [(1, "int8", {}), (4, "int8", {}), (1, "float32", {}), (4, "float32", {}), (4, "int8", ROTARY), (4, "float32", ROTARY)],
)
def test_batch_does_not_change_sentences(width: int, precision: CompiledPrecision, keys: dict[str, Any]) -> None:
    """Compare to the last bit: vectors or tiles, encoded together or alone, with leaving sentences, beyond the capacity."""
    model = compile_transformer(make_model(**keys), precision, keys)
    source_BS = make_sources(40, 30)
    assert int((source_BS != PADDING).sum()) > ENCODE_BLOCK_TOKENS
    batched = run_steps(model, source_BS, width, {2: [1, 2], 5: [39]}, 2 * INITIAL_POSITIONS + 16)
    for number in (0, 1, 17, 39):
        length = int((source_BS[number] != PADDING).sum())
        alone = run_steps(model, source_BS[number : number + 1, :length], width, {}, 2 * INITIAL_POSITIONS + 16)
        # The random tokens depend on the sentence's index, which is 0 if it is alone.
        assert number or all(torch.equal(step[0], other_step[0]) for step, other_step in zip(batched, alone, strict=True))
    repeated_BS = source_BS[17:18].repeat(40, 1)
    many, few = model.start(repeated_BS.numpy()), model.start(repeated_BS[:1].numpy())
    tokens_N = np.arange(width)
    for _ in range(2 * INITIAL_POSITIONS + 16):
        many_NV, many = model.step(np.tile(tokens_N, 40), many)
        few_NV, few = model.step(tokens_N, few)
        assert np.array_equal(many_NV, np.tile(few_NV, (40, 1)))


def test_sentences_leave_before_the_first_step() -> None:
    model = compile_transformer(make_model())
    source_BS, tokens_N = make_sources(5, 12).numpy(), np.array([7, 8, 9, 10])
    kept = model.start(source_BS).reorder(np.arange(5)).select_sentences(np.array([1, 4]))
    logits_NV, _ = model.step(tokens_N, kept)
    expected_NV, _ = model.step(tokens_N, model.start(source_BS[[1, 4]]))
    assert np.array_equal(logits_NV, expected_NV)


@pytest.mark.parametrize("keys", [{}, ROTARY])
def test_padding_within_a_source_is_skipped(keys: dict[str, Any]) -> None:
    model = make_model(**keys)
    source_BS = torch.tensor([[5, PADDING, 7, 9], [PADDING, 8, 3, PADDING]])
    compiled = run_steps(compile_transformer(model, keys=keys), source_BS, 2, {}, 5)
    quantized = run_steps(quantize(model, make_config(**keys)), source_BS, 2, {}, 5)
    assert float(max_differences(compiled, quantized).median()) < ROUNDING


def test_packed_weights_follow_the_definition(subtests: pytest.Subtests) -> None:
    """Four inputs of 16 outputs are side by side, and padding is zero."""
    for outputs, inputs in [(1, 16), (16, 64), (33, 80), (600, 48), (70, 512)]:
        for epilogue in [STORE, ADD_RESIDUAL_U8]:
            with subtests.test(epilogue=epilogue, outputs=outputs, inputs=inputs):
                weight = torch.randn(
                    inputs, outputs, generator=torch.Generator().manual_seed(inputs)
                ).t()  # rows are not contiguous
                weight[0] = 0.0
                # Half steps, which round to even; the greatest magnitude is -127 steps.
                weight[-1] = torch.arange(inputs) % 20 / 2
                weight[-1, -1] = -127.0
                bias = torch.randn(outputs)
                packed = pack_int8_weights([WeightLoader.from_matrix(weight.numpy())] * 2, [bias.numpy(), None], epilogue)
                int8_LPQ, scale_LO, bias_LO, compensation_LO = (torch.from_numpy(array) for array in packed)
                step_O = compute_weight_steps(weight)
                padded_OI = torch.zeros(scale_LO.shape[1], int8_LPQ.shape[2] * 4, dtype=torch.int8)
                padded_OI[:outputs, :inputs] = (weight / step_O[:, None]).round()
                expected_PQ = padded_OI.view(-1, 16, padded_OI.shape[1] // 4, 4).transpose(1, 2)
                assert all(torch.equal(layer_PQ, expected_PQ) for layer_PQ in int8_LPQ)
                assert all(torch.equal(layer_O[:outputs], step_O) and not layer_O[outputs:].any() for layer_O in scale_LO)
                assert torch.equal(bias_LO[0, :outputs], bias)
                assert not bias_LO[1].any()
                # Unsigned bytes hold signed inputs plus 128. Signed bytes hold inputs that are never negative less 128.
                offset = {("unsigned", STORE): 128, ("signed", ADD_RESIDUAL_U8): -128}.get(
                    (kernel_compiler.instruction_set.dot_inputs, epilogue), 0
                )
                assert torch.equal(compensation_LO, (padded_OI.sum(1, dtype=torch.int32) * offset).expand(2, -1))


def test_integers_are_packed_as_the_floats_that_they_stand_for() -> None:
    random = np.random.default_rng(0)
    int8_OI = random.integers(-127, 128, (70, 80), np.int8)
    int8_OI[:, 0] = 127  # as `quantize_matrices` writes them, so that the floats have the same step
    int8_OI[3] = 0
    steps_O, factors_O = random.random((2, 70), np.float32) + np.float32(0.1)
    steps_O[3] = MIN_STEP
    floats_OI = int8_OI * steps_O[:, None] * factors_O[:, None]
    for epilogue in (STORE, ADD_RESIDUAL_U8):
        matrices = Int8Rows(int8_OI, steps_O, factors_O), floats_OI
        packed = [pack_int8_weights([WeightLoader.from_matrix(matrix)], [None], epilogue) for matrix in matrices]
        assert all(np.array_equal(integers, floats) for integers, floats in zip(*packed, strict=True))


def test_error_of_an_item_is_raised() -> None:
    done: list[int] = []

    def refuse_three(item: int) -> None:
        if item == 3:
            raise ValueError("three")
        done.append(item)

    with pytest.raises(ValueError, match="three"):
        run_with_each(refuse_three, range(9), 2)
    assert {0, 1, 2} <= set(done)


# Numba compiles the products for ten seconds. The logits above are those of the products that the build has compiled.
@njit
def run_product(x: Any, weights: Any, y: Any, rows: Any, inputs: Any, workspace: Any) -> None:
    gemm.configure_amx(workspace)
    gemm.multiply(x, weights, np.int64(0), y, rows, inputs, workspace)
    gemm.release_amx(workspace)


def pack_linear(packer: WeightPacker, weight: Tensor, bias: Tensor | None, epilogue: int) -> LinearWeights:
    """Return the weights of one product, whose outputs have no padding. The packer keeps the memory alive."""
    biases = [None if bias is None else bias.numpy()]
    return packer.pack([WeightLoader.from_matrix(weight.numpy())], biases, epilogue)._replace(num_outputs=len(weight))


@pytest.mark.slow
def test_products_of_the_largest_bytes_are_exact(subtests: pytest.Subtests) -> None:
    """Sums in 16 bits would overflow without a limit of the weights: all are equally large, and so are many inputs.

    Quantized, inputs are 0, -127 or 127, or else 0 or 255, with a step of 1. The first outputs have weights of one sign.
    """
    for rows, large_fraction, epilogue in product([1, 2, 37], [0.1, 0.5, 1.0], [STORE, ADD_RESIDUAL_U8]):
        with subtests.test(rows=rows, large_fraction=large_fraction, epilogue=epilogue):
            numbers, inputs, outputs = torch.Generator().manual_seed(rows), 128, 64
            is_large_NI = torch.rand(rows, inputs, generator=numbers) < large_fraction
            sign_NI = torch.randint(0, 2, (rows, inputs), generator=numbers) * 2 - 1
            x_NI = is_large_NI * (255.0 if epilogue == ADD_RESIDUAL_U8 else 127.0 * sign_NI)
            weight = 127.0 * (torch.randint(0, 2, (outputs, inputs), generator=numbers) * 2 - 1)
            weight[0], weight[1] = 127.0, -127.0
            packer = WeightPacker("int8")
            int8_weights = pack_linear(packer, weight, None, epilogue)
            memory_block = WorkspaceMemory(rows, 0, NO_HEADS, width=inputs, max_outputs=0)
            residual_NO, result_NO = torch.zeros(rows, outputs), torch.empty(rows, outputs)
            workspace = memory_block.workspaces[0]._replace(x=residual_NO.data_ptr())
            run_product(x_NI.data_ptr(), int8_weights, result_NO.data_ptr(), rows, inputs, workspace)
            step_O = compute_weight_steps(weight)
            integer_OI = (weight / step_O[:, None]).round()
            if kernel_compiler.instruction_set.max_lane_weights is not None:
                assert float(sum_lanes(integer_OI.relu()).max()) == 128 == float(sum_lanes((-integer_OI).relu()).max())
            assert torch.equal(result_NO, (x_NI @ integer_OI.t()) * step_O)


@pytest.mark.parametrize("vocabulary", [16, 37, 1000, 10_001])
def test_logsumexp_and_topk_equal_pytorch(vocabulary: int) -> None:
    numbers = torch.Generator().manual_seed(vocabulary)
    logits_NV = 4 * torch.randn(12, vocabulary, generator=numbers)
    logits_NV[3, 5:] = -torch.inf
    logits_NV[4] = -torch.inf
    logits_NV[4, 7] = 1.0
    logits_NV[5] = 0.25
    compiled, plain = CompiledTopK(), BlockTopK(TorchArrays(torch.device("cpu")))
    sums_N = torch.from_numpy(compiled.logsumexp(logits_NV.numpy()))
    assert torch.allclose(sums_N, logits_NV.double().logsumexp(-1), rtol=0, atol=2e-6)
    for rows, count in ((1, 1), (1, 16), (3, 6), (4, 8), (12, 24)):
        shift_BR = torch.randn(12 // rows, rows, generator=numbers)
        shift_BR[0, 1:] = -torch.inf  # like all hypotheses but the first, before the first step
        logits_BRV = logits_NV.view(-1, rows, vocabulary)
        shifted_BX = (logits_BRV + shift_BR[:, :, None]).flatten(1)
        compiled_BX = torch.from_numpy(compiled.topk(logits_BRV.numpy(), shift_BR.numpy(), count))
        plain_BX = plain.topk(logits_BRV, shift_BR, count)
        assert torch.equal(shifted_BX.gather(1, compiled_BX), shifted_BX.gather(1, plain_BX))
        assert all(len(set(row)) == count for row in compiled_BX.tolist())
    assert compiled.topk(logits_NV[5:6, None].numpy(), None, 4).tolist() == [[0, 1, 2, 3]]  # the first of equal tokens


def test_memory_of_embeddings_is_released_after_many_tokens() -> None:
    releases: list[int] = []
    weights = wrap_model(make_model(), make_config(), release=lambda: releases.append(1)).get_weights()
    compiled_model = compile_model(weights)
    sources_BS = np.full((2, MIN_RELEASED_TOKENS // 2), PADDING + 1)
    for source_BS, num_releases in ((sources_BS[:1], 0), (sources_BS, 1)):
        releases.clear()  # packing releases, too
        compiled_model.start(source_BS)
        assert len(releases) == num_releases


@pytest.mark.parametrize(
    ("precision", "name"), [*product(["int8"], MODEL_KEYS), *product(["float32"], ["paper", "pointer", "T5", "rotary"])]
)
def test_int8_weights_compute_as_their_float32(precision: CompiledPrecision, name: str) -> None:
    """The logits, with the whole vocabulary and with a few words, are those of the float32 weights to the last bit."""
    config, words_W = make_config(**MODEL_KEYS[name]), np.array([0, 1, 2, 3, 17, 40, 41, 89])
    weights = wrap_model(make_model(**MODEL_KEYS[name]), config).get_weights()
    stored = dequantize_matrices(quantize_matrices(weights.arrays))
    source_BS, tokens_N = make_sources(3, 7).numpy(), np.array([2, 17, 40])
    expected, *results = (
        model.step(tokens_N, model.start(source_BS))[0]
        for arrays in ({name: np.array(stored[name]) for name in stored}, stored)
        for full in [compile_model(replace(weights, arrays=arrays), precision)]
        for model in (full, full.restrict_output(words_W))
    )
    assert np.array_equal(results[1], expected)
    assert np.array_equal(results[0], results[2])
    assert np.array_equal(results[0], expected[:, words_W])
