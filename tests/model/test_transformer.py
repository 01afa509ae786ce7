"""The model against closed forms: size, equations, masks, dropout and initial weights; and the example of the package."""

from __future__ import annotations

import itertools
import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dragoman.model
import random_tensors
from dragoman.config import ModelConfig, make_recipe
from dragoman.model.attention import (
    Attention,
    AttentionImpl,
    attention_weights,
    cpu_attention,
    explicit_attention,
    fused_attention,
    record_attention,
    set_attention_impl,
)
from dragoman.model.dropout import dropout
from dragoman.model.factory import assemble_model, build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.linear import (
    MatMul,
    onednn_matmul,
    padded_matmul,
    torch_matmul,
)
from dragoman.model.masks import causal_mask, padding_mask, window_mask, windowed_padding_mask
from dragoman.model.positional_encoding import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from dragoman.model.rotary_positions import build_rotary_positions, rotate
from dragoman.model.transformer import Embedding, Transformer, set_matmul_impl
from dragoman.model.weights import collect_weights, load_weights
from random_tensors import noise

pytestmark = pytest.mark.usefixtures("one_core")

PAD, SOURCE_ROWS, TARGET_ROWS = 0, 11, 13
CPU = torch.device("cpu")
ATTENTIONS = [explicit_attention, fused_attention, cpu_attention]
sentences = partial(random_tensors.sentences, high=SOURCE_ROWS)
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def small_config(**changes: Any) -> ModelConfig:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
    return ModelConfig.model_validate({**sizes, **NO_DROPOUT, **changes})


def small_model(**changes: Any) -> Transformer:
    config = small_config(**changes)
    torch.manual_seed(0)
    rows = (SOURCE_ROWS, SOURCE_ROWS) if config.tie_embeddings == "all" else (SOURCE_ROWS, TARGET_ROWS)
    return build_model(config, source_vocab_size=rows[0], target_vocab_size=rows[1], padding_id=PAD).eval()


def meta_model(config: ModelConfig, rows: int) -> Transformer:
    with torch.device("meta"):
        return assemble_model(config, source_vocab_size=rows, target_vocab_size=rows)


# The package's example


def test_package_example_runs() -> None:
    """Run the example in the docstring of `dragoman.model` and check its results."""
    docstring = dragoman.model.__doc__
    assert docstring is not None
    code = [line.removeprefix("    ") for line in docstring.split("::\n", 1)[1].split("\nSources", 1)[0].split("\n")]
    statements = [line for line in code if line and not line.startswith(("import", "from"))]
    assert len(statements) == 10
    namespace: dict[str, Any] = {}
    torch.manual_seed(0)
    exec("\n".join(code), namespace)
    assert namespace["logits"].shape == (2, 9, 100)
    assert math.isfinite(namespace["loss"].item())
    assert all(parameter.grad is not None for parameter in namespace["model"].parameters())
    assert [len(hypothesis.token_log_probs) <= 20 for hypothesis in namespace["outputs"]] == [True, True]


# Size


def test_parameter_counts_equal_table_3(subtests: pytest.Subtests) -> None:
    """Compare with the last column of Table 3 at the 40,960 rows of tensor2tensor's `wmt_ende_bpe32k`; A rows equal base."""
    for size, printed_millions, parameters in [
        ("base", 65, 65_110_016),
        ("A-h1", 65, 65_110_016),
        ("A-h4", 65, 65_110_016),
        ("A-h16", 65, 65_110_016),
        ("A-h32", 65, 65_110_016),
        ("B-dk16", 58, 58_018_304),
        ("B-dk32", 60, 60_382_208),
        ("C-n2", 36, 35_684_352),
        ("C-n4", 50, 50_397_184),
        ("C-n8", 80, 79_822_848),
        ("C-d256", 28, 27_848_704),
        ("C-d1024", 168, 167_944_192),
        ("C-ff1024", 53, 52_514_816),
        ("C-ff4096", 90, 90_300_416),
        ("big", 218, 218_300_416),  # printed: 213 million, at 36,546 rows
    ]:
        with subtests.test(size=size, printed_millions=printed_millions, parameters=parameters):
            model = meta_model(make_recipe({"preset": "t2t-2017", "size": size}).model, 40_960)
            assert model.num_parameters() == parameters
            assert round(parameters / 1e6) == printed_millions


@pytest.mark.parametrize(
    ("tie_embeddings", "tables"),
    [
        ("all", SOURCE_ROWS),
        ("decoder", SOURCE_ROWS + TARGET_ROWS),
        ("none", SOURCE_ROWS + 2 * TARGET_ROWS),
    ],
)
def test_tied_embeddings_share_parameters(tie_embeddings: str, tables: int) -> None:
    model = small_model(tie_embeddings=tie_embeddings)
    source, target, output = model.encoder.embedding.weight, model.decoder.embedding.weight, model.output
    assert (source is target) == (tie_embeddings == "all")
    assert (target is output) == (tie_embeddings != "none")
    other_parameters = sum(
        parameter.numel()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name not in {"encoder.embedding.weight", "decoder.embedding.weight", "output"}
    )
    assert model.num_parameters() - other_parameters == 16 * tables


# Attention


def masks(target_length: int, source_length: int) -> dict[str, Tensor | None]:
    token_mask_BS = torch.arange(source_length) < torch.tensor([source_length, 2])[:, None]
    return {
        "none": None,
        "padding": padding_mask(token_mask_BS),
        "causal": causal_mask(target_length, source_length, device=CPU),
        "window": window_mask(target_length, source_length, 1, device=CPU),
    }


def queries_keys_values() -> tuple[Tensor, Tensor, Tensor]:
    return noise(2, 3, 4, 8, seed=3), noise(2, 3, 6, 8, seed=4), noise(2, 3, 6, 5, seed=5)


def equation_1(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Return softmax(Q·Kᵀ/√d_k)·V, computed one number at a time in double precision."""
    result = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, t in itertools.product(*map(range, query.shape[:3])):
        allowed = [s for s in range(key.shape[2]) if mask[b, h, t, s]]
        scores = [sum(query[b, h, t] * key[b, h, s]) / math.sqrt(query.shape[3]) for s in allowed]
        total = sum(math.exp(score) for score in scores)
        for s, score in zip(allowed, scores, strict=True):
            result[b, h, t] += math.exp(score) / total * value[b, h, s]
    return result


def test_attention_is_equation_1(subtests: pytest.Subtests) -> None:
    for attend in ATTENTIONS:
        for mask_name in ["none", "padding", "causal", "window"]:
            with subtests.test(attend=attend, mask_name=mask_name):
                query, key, value = queries_keys_values()
                mask = masks(4, 6)[mask_name]
                everywhere = np.broadcast_to(True if mask is None else mask.numpy(), (2, 3, 4, 6))
                expected = equation_1(query.double().numpy(), key.double().numpy(), value.double().numpy(), everywhere)
                np.testing.assert_allclose(attend(query, key, value, mask, 0.0).numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mask_name", ["none", "padding", "causal"])
def test_attention_impl_does_not_change_dropout_masks(mask_name: str) -> None:
    """Compare dropout masks: a benchmark selects the implementation, so it may differ between runs of one recipe."""
    query, key, value = queries_keys_values()
    results = []
    for attend in (cpu_attention, fused_attention):
        torch.manual_seed(1)
        results.append(attend(query, key, value, masks(4, 6)[mask_name], 0.3))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-6)
    assert not torch.allclose(results[0], cpu_attention(query, key, value, masks(4, 6)[mask_name], 0.0), atol=1e-3)


def test_cpu_attention_gradients_equal_explicit_attention(subtests: pytest.Subtests) -> None:
    """Compare with double precision, for fewer and more keys than SIMD lanes; bfloat16 has eight significant bits."""
    for mask_name, length, dtype in product(["none", "padding", "causal"], [5, 16, 17, 40], [torch.float32, torch.bfloat16]):
        with subtests.test(mask_name=mask_name, length=length, dtype=dtype):
            mask = masks(4, length)[mask_name]
            inputs = [
                noise(2, 3, rows, width, seed=rows + width).to(dtype) for rows, width in ((4, 8), (length, 8), (length, 5))
            ]
            weight = noise(2, 3, 4, 5, seed=9)
            results = []
            for attend, result_dtype in ((cpu_attention, dtype), (explicit_attention, torch.float64)):
                query, key, value = (tensor.to(result_dtype).requires_grad_() for tensor in inputs)
                result = attend(query, key, value, mask, 0.0)
                results.append([result, *torch.autograd.grad((result * weight.to(result_dtype)).sum(), (query, key, value))])
            for ours, expected in zip(*results, strict=True):
                assert ours.dtype == dtype
                bound = (2e-6 if dtype == torch.float32 else 2e-2) * expected.abs().max().item()
                torch.testing.assert_close(ours.double(), expected, rtol=0, atol=bound)


def test_cpu_attention_gradients_use_the_dropout_mask() -> None:
    """Compare with double precision and the dropout mask of the forward pass."""
    query, key, value = (tensor.requires_grad_() for tensor in queries_keys_values())
    identity = torch.eye(6).expand(2, 3, 6, 6)
    torch.manual_seed(1)
    keep_mask = (cpu_attention(query, key, identity, None, 0.4) != 0).double() / 0.6
    torch.manual_seed(1)
    gradients = torch.autograd.grad(cpu_attention(query, key, value, None, 0.4).square().sum(), (query, key, value))
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    result = (attention_weights(exact[0], exact[1], None) * keep_mask) @ exact[2]
    expected_gradients = torch.autograd.grad(result.square().sum(), exact)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-4)  # the error of p is at most 1.5e-5


def test_causal_and_window_masks_match_definition() -> None:
    """Query t has position t + S − T, because the queries are the last T positions."""
    for target_length, source_length, radius in itertools.product((1, 3, 5), (5, 6), (1, 2)):
        positions = range(source_length - target_length, source_length)
        causal = [[s <= position for s in range(source_length)] for position in positions]
        window = [[abs(s - position) <= radius for s in range(source_length)] for position in positions]
        assert causal_mask(target_length, source_length, device=CPU).tolist() == causal
        assert window_mask(target_length, source_length, radius, device=CPU).tolist() == window


def test_multi_head_attention_concatenates_heads() -> None:
    """Compare with Concat(head₁, …, head_h)·W^O, each head computed from its own slice of the matrices."""
    torch.manual_seed(0)
    attention = Attention(d_model=12, num_heads=3, d_k=5, d_v=2, bias=True, dropout=0.0).eval()
    x_BTD, memory_BSD = noise(2, 4, 12), noise(2, 6, 12, seed=6)
    heads = []
    for head in range(3):
        keys, values = slice(5 * head, 5 * head + 5), slice(2 * head, 2 * head + 2)
        query = x_BTD @ attention.query.weight[keys].T + attention.query.bias[keys]
        key = memory_BSD @ attention.key.weight[keys].T + attention.key.bias[keys]
        value = memory_BSD @ attention.value.weight[values].T + attention.value.bias[values]
        heads.append((query @ key.transpose(1, 2) / math.sqrt(5)).softmax(-1) @ value)
    expected = torch.cat(heads, dim=-1) @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(attention(x_BTD, attention.project_kv(memory_BSD), None), expected, rtol=0, atol=1e-6)


def attentions(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


@pytest.mark.parametrize("training", [False, True])
def test_record_attention_records_distributions(training: bool) -> None:
    model = small_model(residual_dropout=0.3, attention_dropout=0.3).train(training)
    source, inputs = sentences(5, 3), sentences(4, 4)
    torch.manual_seed(7)
    expected = model(source, inputs)
    torch.manual_seed(7)
    with record_attention(attentions(model)) as recorded:
        assert torch.equal(model(source, inputs), expected)
    shapes = [tuple(weights.shape) for weights in recorded]
    assert shapes == [(2, 2, 5, 5)] * 2 + [(2, 2, 4, 4), (2, 2, 4, 5)] * 2
    for weights in recorded:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), rtol=0, atol=1e-6)
    assert torch.equal(recorded[0][1, :, :, 3:], torch.zeros(2, 5, 2))  # the second sentence's padding
    model(source, inputs)
    assert len(recorded) == 6, "recording continued after the end"


# Matrix products


@pytest.mark.parametrize("matmul", [torch_matmul, onednn_matmul, padded_matmul])
def test_matmul_equals_double_precision(matmul: MatMul, subtests: pytest.Subtests) -> None:
    """Compare result and gradients of the same numbers up to the rounding of float32, or of bfloat16 for `padded_matmul`."""
    is_padded = matmul is padded_matmul
    dtype, bound = (torch.bfloat16, 2**-7) if is_padded else (torch.float32, 2**-20)
    shapes = [(7, 5, 6), (1, 5, 6), (2, 17, 5, 6), (40, 5, 6), (37, 520, 530), (37, 530, 520)]
    for (*rows, inner, outer), bias, relu in product(shapes, [True, False], [True, False]):
        with subtests.test(rows=rows, inner=inner, outer=outer, bias=bias, relu=relu):
            inputs = [noise(*rows, inner), noise(outer, inner, seed=3) / inner**0.5, *([noise(outer, seed=4)] if bias else [])]
            inputs = [tensor.to(dtype) for tensor in inputs]
            grad_result = noise(*rows, outer, seed=5).to(dtype)
            ours, exact = ([tensor.to(of).requires_grad_() for tensor in inputs] for of in (torch.float32, torch.float64))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_padded):
                result = matmul(ours[0], ours[1], ours[2] if bias else None, relu=relu)
            assert result.dtype == dtype
            expected = nn.functional.linear(exact[0], exact[1], exact[2] if bias else None)
            # Rounding may change the sign of a number, and then the gradients of ReLU differ.
            passed, expected = (expected * (result > 0), expected.relu()) if relu else (expected, expected)
            results = [result, *torch.autograd.grad(result, ours, grad_result)]
            expected_results = [expected, *torch.autograd.grad(passed, exact, grad_result.double())]
            for tensor, expected_tensor in zip(results, expected_results, strict=True):
                assert tensor.shape == expected_tensor.shape
                assert (tensor.double() - expected_tensor).norm() <= bound * expected_tensor.norm()


@pytest.mark.parametrize(("matmul", "dtype"), [(onednn_matmul, torch.float32), (padded_matmul, torch.bfloat16)])
def test_matmul_multiplies_transposed_matrices(matmul: MatMul, dtype: torch.dtype) -> None:
    """Both operands are transposed, as for the gradient of a weight."""
    for outer, inner in ((600, 520), (520, 600), (30, 20)):
        x, y = noise(50, outer).to(dtype), noise(50, inner, seed=3).to(dtype)
        result, expected = matmul(x.t(), y.t(), None), x.double().t() @ y.double()
        assert (result.double() - expected).norm() <= 2**-7 * expected.norm()


def test_padded_matmul_uses_few_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    row_counts, linear = set(), nn.functional.linear

    def counting_linear(x: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        row_counts.add(len(x))
        return linear(x, *arguments)

    monkeypatch.setattr(nn.functional, "linear", counting_linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for rows in range(1, 130):
            assert padded_matmul(noise(rows, 5), noise(6, 5), None).shape == (rows, 6)
    assert {64, 72, 80, 88, 96, 104, 112, 120, 128, 144} == {rows for rows in row_counts if rows >= 64}


def test_padded_matmul_only_changes_autocast() -> None:
    x, weight = noise(3, 5), noise(6, 5, seed=3)
    assert torch.equal(padded_matmul(x, weight, None), nn.functional.linear(x, weight))
    assert torch.equal(padded_matmul(x, weight, None, relu=True), nn.functional.linear(x, weight).relu())


@pytest.mark.parametrize("matmul", [onednn_matmul, padded_matmul])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul_without_rows(matmul: MatMul, dtype: torch.dtype) -> None:
    """An expert without tokens has no rows."""
    x, weight, bias = (tensor.requires_grad_() for tensor in (noise(0, 5), noise(6, 5, seed=3), noise(6, seed=4)))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = matmul(x, weight, bias, relu=True)
    assert result.shape == (0, 6)
    grads = torch.autograd.grad(result.sum(), [x, weight, bias])
    assert [(grad.shape, grad.any().item()) for grad in grads] == [((0, 5), False), ((6, 5), False), ((6,), False)]


def test_onednn_matmul_keeps_other_types() -> None:
    x, weight = noise(3, 5), noise(6, 5, seed=3)
    assert onednn_matmul(x.double(), weight.double(), None).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert onednn_matmul(x, weight, None).dtype == torch.bfloat16


def test_set_matmul_impl_reaches_every_weight() -> None:
    model = small_model()
    shapes: list[tuple[int, ...]] = []

    def recording_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
        shapes.append(tuple(weight.shape))
        return torch_matmul(x, weight, bias, relu=relu)

    source, inputs = sentences(4), sentences(3)
    expected = model(source, inputs)
    set_matmul_impl(model, recording_matmul)
    torch.testing.assert_close(model(source, inputs), expected, rtol=0, atol=1e-5)
    # Encoder layer: fused query, key and value; output; inner; outer. Decoder layer: also query, output and fused key and value
    # of cross-attention. Then the logits.
    assert len(shapes) == 2 * 4 + 2 * 7 + 1
    assert shapes[0] == (48, 16)
    shapes.clear()
    with torch.no_grad():
        model(source, inputs)
    assert len(shapes) == 2 * 6 + 2 * 10 + 1


# Positions and embeddings


def sinusoid(position: int, column: int, width: int, kind: str) -> float:
    """Return the encoding of section 3.5, or that of tensor2tensor 1.0.3: all sines first, with exponent i/(d/2 − 1)."""
    if kind == "interleaved":
        wave, angle = column % 2, position / 10000 ** (2 * (column // 2) / width)
    elif kind == "halves":
        half = width // 2
        wave, angle = column // half, position / 10000 ** (2 * (column % half) / width)
    else:
        half = width // 2
        wave, angle = column // half, position / 10000 ** ((column % half) / (half - 1))
    return math.cos(angle) if wave else math.sin(angle)


def test_sinusoids_match_closed_form(subtests: pytest.Subtests) -> None:
    for offset in [0, 2]:
        for kind in ["interleaved", "concatenated", "halves"]:
            with subtests.test(offset=offset, kind=kind):
                positions = SinusoidalPositionalEmbedding(d_model=6, layout=kind, offset=offset, num_positions=4)
                for start, length in [(0, 4), (1, 2), (3, 9), (700, 2), (0, 1)]:
                    expected = [[sinusoid(offset + start + t, column, 6, kind) for column in range(6)] for t in range(length)]
                    torch.testing.assert_close(positions(start, length), torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["interleaved", "concatenated"])
def test_embeddings_are_scaled_vectors_plus_positions(scaled: bool, kind: str) -> None:
    model = small_model(scale_embeddings=scaled, position_encoding=kind)
    ids = sentences(4, 3)
    x_BTD = model.encoder.embedding(ids)
    for b, t in itertools.product(range(2), range(4)):
        position = torch.tensor([sinusoid(t, column, 16, kind) for column in range(16)])
        token = model.encoder.embedding.weight[ids[b, t]] * (4.0 if scaled else 1.0)
        expected = position if ids[b, t] == PAD else token + position
        torch.testing.assert_close(x_BTD[b, t], expected, rtol=0, atol=1e-6)


def test_padding_embedding_is_zero() -> None:
    """The padding id can therefore stand for tensor2tensor's zero vector at the start of the decoder."""
    model = small_model(tie_embeddings="none", decoder_start_token="zero")
    source, inputs = sentences(5, 3), torch.cat([torch.full((2, 1), PAD), sentences(3, 3)], dim=1)
    before = model(source, inputs)
    with torch.no_grad():
        model.encoder.embedding.weight[PAD] = 1e3
        model.decoder.embedding.weight[PAD] = 1e3
    assert torch.equal(model(source, inputs), before)
    model(source, inputs).sum().backward()
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        assert embedding.weight.grad is not None
        assert not embedding.weight.grad[PAD].any()
        assert embedding.weight.grad[1:].any()


def test_learned_positions_limit_the_length() -> None:
    model = small_model(position_encoding="learned", max_positions=5)
    assert torch.isfinite(model(sentences(5), sentences(5))).all()
    with pytest.raises(IndexError, match="position 6: the model has 5 learned positions"):
        model(sentences(6), sentences(5))
    with pytest.raises(IndexError, match="position 6: the model has 5 learned positions"):
        model(sentences(5), sentences(6))


def rotation(start: int, length: int, width: int) -> Tensor:
    """Return the sines and cosines of a model with heads of this width."""
    positions = build_rotary_positions(small_config(position_encoding="rotary", d_k=width))
    assert positions is not None
    return cast(Tensor, positions(start, length))


def test_rotation_multiplies_pairs_by_complex_numbers() -> None:
    """Pair j becomes (x + i·y)·exp(i·p·θ) for position p, with θ = 10000^(−2j/d_k) (Su et al. 2021, section 3.2)."""
    x_BHTK = noise(2, 3, 5, 6)
    first, second = x_BHTK.double().chunk(2, dim=-1)
    angle_TX = torch.arange(7, 12, dtype=torch.float64)[:, None] * 10000 ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle_TX), angle_TX)
    expected = torch.cat([turned.real, turned.imag], dim=-1).float()
    torch.testing.assert_close(rotate(x_BHTK, rotation(7, 5, 6)), expected, rtol=0, atol=2e-6)
    assert torch.equal(rotate(x_BHTK[:, :, :1], rotation(0, 1, 6)), x_BHTK[:, :, :1])


# Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_drops_independently_with_probability_p(p: float) -> None:
    """Use bounds of five standard deviations for n Bernoulli draws, and for a correlation of n independent draws."""
    torch.manual_seed(0)
    n = 1 << 20
    dropped = dropout(torch.ones(n), p)
    fraction = (dropped == 0).float().mean().item()
    assert abs(fraction - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(dropped.mean().item() - 1) < 5 * math.sqrt(p / (1 - p) / n)
    assert len(set(dropped.tolist())) == 2
    assert dropped.max().item() == pytest.approx(1 / (1 - p), abs=3e-5)  # p is rounded to 1/65536
    kept = (dropped != 0).float() - (1 - fraction)
    for lag in (1, 2, 3, 4, 8):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(n), f"elements at distance {lag} are not independent"


def test_dropout_backward_uses_the_mask_of_forward(subtests: pytest.Subtests) -> None:
    for shape in [(1,), (3,), (2, 5), (3, 1, 7), (0, 4)]:
        with subtests.test(shape=shape):
            torch.manual_seed(0)
            x = torch.ones(shape, requires_grad=True)
            dropped = dropout(x, 0.4)
            (gradient,) = torch.autograd.grad((2 * dropped).sum(), x)
            assert torch.equal(gradient, 2 * dropped.detach())


def test_dropout_accepts_transposed_half_precision_tensors() -> None:
    torch.manual_seed(0)
    x = noise(6, 50).bfloat16().T
    dropped = dropout(x, 0.5)
    assert dropped.dtype == torch.bfloat16
    assert torch.equal(dropped, torch.where(dropped == 0, 0.0, 2 * x))
    assert 0 < int((dropped == 0).sum()) < x.numel()


def assert_dropped(result: Tensor, whole: Tensor, p: float) -> None:
    """Check that each element is zero or divided by 1 − p, and that both occur."""
    zero = result == 0
    torch.testing.assert_close(result, torch.where(zero, 0.0, whole / (1 - p)))
    assert 0.5 * p < zero.float().mean().item() < 1.5 * p


def test_dropout_positions_follow_the_paper() -> None:
    """Use small integers and p = 0.5, so that the residual input can be subtracted exactly."""
    torch.manual_seed(0)
    residual_input, x = (5 * noise(4, 8, 16, seed=3)).round(), (5 * noise(4, 8, 16)).round().abs() + 1
    for residual_class in (PostNorm, PreNorm):
        residual = residual_class(norm=nn.Identity(), dropout=0.5)
        assert_dropped(residual(residual_input, x) - residual_input, x, 0.5)
    feed_forward = FeedForward(d_model=16, d_ff=16, dropout=0.5)
    for linear, bias in ((feed_forward.inner, 0.0), (feed_forward.outer, 7.0)):
        nn.init.eye_(linear.weight)
        nn.init.constant_(linear.bias, bias)
    assert_dropped(feed_forward(x) - 7.0, x, 0.5)
    embedding = Embedding(
        weight=nn.Parameter(noise(9, 16)),
        positions=SinusoidalPositionalEmbedding(d_model=16, layout="interleaved"),
        scale_embeddings=True,
        dropout=0.25,
        padding_id=PAD,
        norm=nn.Identity(),
    )
    ids = sentences(8, 8, 8, high=9)
    assert_dropped(embedding(ids), embedding.eval()(ids), 0.25)
    for attend in ATTENTIONS:
        query, key = noise(2, 3, 8, 4), noise(2, 3, 16, 4, seed=3)
        identity = torch.eye(16).expand(2, 3, 16, 16)  # the result for identity values is the weights
        assert_dropped(attend(query, key, identity, None, 0.25), attention_weights(query, key, None), 0.25)


@pytest.mark.parametrize("key", NO_DROPOUT)
def test_each_dropout_key_acts_in_training(key: str) -> None:
    plain, model = small_model(), small_model(**{key: 0.4})
    source, inputs = sentences(6, 4), sentences(5, 5)
    expected = plain(source, inputs)
    assert torch.equal(model(source, inputs), expected)
    memory = model.encoder(source)
    state = model.start_decoder(memory, source)
    outputs, _ = model.decoder(inputs, state)
    model.train()
    torch.manual_seed(3)
    assert not torch.allclose(model.encoder(source), memory, atol=1e-3)
    assert not torch.allclose(model.decoder(inputs, state)[0], outputs, atol=1e-3)
    torch.testing.assert_close(plain.train()(source, inputs), expected)


# Residuals


@pytest.mark.parametrize("residual_class", [PostNorm, PreNorm])
def test_residuals_match_their_equations(residual_class: type[PostNorm]) -> None:
    norm = nn.LayerNorm(16, eps=0.01)
    residual = residual_class(norm=norm, dropout=0.0)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)

    def layer_norm(y: Tensor) -> Tensor:
        centered = y - y.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True) + 0.01).sqrt() * norm.weight + norm.bias

    x = noise(2, 3, 16)
    expected = layer_norm(x + x.sin()) if residual_class is PostNorm else x + layer_norm(x).sin()
    torch.testing.assert_close(residual(x, residual.sublayer_input(x).sin()), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("norm", "final_norm", "expected"), [("post", None, 0), ("pre", None, 2), ("post", True, 2), ("pre", False, 0)]
)
def test_final_norm_defaults_to_pre_norm(norm: str, final_norm: bool | None, expected: int) -> None:
    model = small_model(norm=norm, final_norm=final_norm)
    num_norms = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert num_norms == 2 * 2 + 2 * 3 + expected


# Masks in the model


def test_later_target_tokens_do_not_affect_earlier_logits(subtests: pytest.Subtests) -> None:
    cases_1: list[dict[str, Any]] = [
        {},
        {"norm": "pre"},
        {"attention_window": 2},
        {"decoder_autoregression": "ssru"},
        {"position_encoding": "learned", "max_positions": 8},
        {"position_encoding": "relative", "norm_type": "rms", "activation": "geglu"},
        {"position_encoding": "rotary"},
    ]
    for attend in ATTENTIONS:
        for changes in cases_1:
            with subtests.test(attend=attend, changes=changes):
                model = small_model(**changes)
                set_attention_impl(model, attend)
                source, inputs = sentences(5, 3), sentences(7, 7, seed=3)
                before = model(source, inputs)
                for position in (0, 3, 6):
                    changed = inputs.clone()
                    changed[:, position] = changed[:, position] % (SOURCE_ROWS - 1) + 1
                    after = model(source, changed)
                    assert torch.equal(after[:, :position], before[:, :position])
                    assert not torch.equal(after[:, position], before[:, position])


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("window", [None, 1])
def test_values_at_padding_do_not_affect_outputs(window: int | None, attend: AttentionImpl) -> None:
    model = small_model(attention_window=window)
    set_attention_impl(model, attend)
    source, inputs = sentences(7, 3, 1), sentences(4, 4, 4)
    is_token = source != PAD
    mask = padding_mask(is_token) if window is None else windowed_padding_mask(is_token, window)
    padding_noise = torch.where(is_token[:, :, None], 0.0, 100 * noise(3, 7, 16))

    def encode(x_BSD: Tensor) -> Tensor:
        for layer in model.encoder.layers:
            x_BSD = layer(x_BSD, mask)
        return x_BSD

    memory = encode(model.encoder.embedding(source))
    assert torch.equal(memory, model.encoder(source))
    assert torch.equal(encode(model.encoder.embedding(source) + padding_noise)[is_token], memory[is_token])

    def decode(memory_BSD: Tensor) -> Tensor:
        return model.compute_logits(model.decoder(inputs, model.start_decoder(memory_BSD, source))[0])

    assert torch.equal(decode(memory + padding_noise), decode(memory))


# Initial weights


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def assert_uniform(weights: Tensor, bound: float) -> None:
    """Check that the weights are within the bound, come near it, and have the variance bound²/3 of a uniform distribution."""
    assert weights.abs().max().item() <= bound * (1 + 1e-6)
    assert weights.abs().max().item() > 0.98 * bound
    assert weights.mean().item() == pytest.approx(0.0, abs=5 * bound / math.sqrt(3 * weights.numel()))
    assert weights.var().item() == pytest.approx(bound**2 / 3, rel=0.05)


def assert_normal(weights: Tensor, std: float) -> None:
    assert weights.mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(weights.numel()))
    assert weights.std().item() == pytest.approx(std, rel=0.05)
    assert weights.abs().max().item() > 3 * std


@pytest.mark.parametrize("initialization", ["glorot", "torch", "normal"])
def test_initial_weights_follow_their_rule(initialization: str) -> None:
    """Glorot and Bengio 2010: U(±√(6 / (fan_in + fan_out))); torch.nn.Linear: U(±1/√fan_in), biases too."""
    changes: dict[str, Any] = {
        "d_model": 64,
        "d_ff": 256,
        "num_heads": 4,
        "d_k": 24,
        "attention_bias": True,
        "tie_embeddings": "none",
    }
    config = small_config(**changes, initialization=initialization, target_space_embedding=True)
    torch.manual_seed(0)
    model = build_model(config, source_vocab_size=500, target_vocab_size=300)
    for linear in linears(model):
        fan_out, fan_in = linear.weight.shape
        if initialization == "glorot":
            assert_uniform(linear.weight, math.sqrt(6 / (fan_in + fan_out)))
        elif initialization == "torch":
            assert_uniform(linear.weight, 1 / math.sqrt(fan_in))
            assert linear.bias.abs().max().item() <= 1 / math.sqrt(fan_in)
        else:
            assert_normal(linear.weight, 0.02)
        assert bool(linear.bias.any()) == (initialization == "torch")
    target_space = model.encoder.embedding.target_space_embedding
    assert target_space is not None
    assert target_space.any()
    for table in (model.encoder.embedding.weight, model.decoder.embedding.weight, model.output):
        assert_normal(table, 0.02 if initialization == "normal" else 1 / 8)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all()
            assert not module.bias.any()


def test_loaded_bfloat16_weights_are_their_values_in_float32() -> None:
    model = small_model()
    weights = {name: weight.bfloat16() for name, weight in collect_weights(model).items()}
    load_weights(model, weights, location=Path("model"))
    loaded = collect_weights(model)
    assert all(torch.equal(loaded[name], weight.float()) for name, weight in weights.items())
    assert {weight.dtype for weight in loaded.values()} == {torch.float32}


def test_initial_learned_positions_are_normal() -> None:
    model = small_model(position_encoding="learned", max_positions=500)
    for stack in (model.encoder, model.decoder):
        assert_normal(cast(LearnedPositionalEmbedding, stack.embedding.positions).weight, 1 / 4)


# The whole model


def test_bfloat16_autocast_stays_near_float32(subtests: pytest.Subtests) -> None:
    """bfloat16 has 8 significant bits: a relative error of 2⁻⁹ for each product, and some dozen products add up."""
    for attend in ATTENTIONS:
        for norm in ["post", "pre"]:
            with subtests.test(attend=attend, norm=norm):
                model = small_model(norm=norm, attention_dropout=0.1)
                set_attention_impl(model, attend)
                source, inputs = sentences(6, 3), sentences(5, 5)
                exact = model(source, inputs)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = model(source, inputs)
                    state = model.start(source)
                    stepped, _ = model.step(inputs[:, 0], state)
                    loss = model.train()(source, inputs).float().square().mean()
                assert not torch.equal(logits.float(), exact)
                bound = 0.05 * exact.abs().max().item()
                torch.testing.assert_close(logits.float(), exact, rtol=0, atol=bound)
                torch.testing.assert_close(stepped.float(), exact[:, 0], rtol=0, atol=bound)
                loss.backward()
                assert all(
                    p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters()
                )


def figure_1(x: Tensor, layer: nn.Module, memory: Tensor | None) -> Tensor:
    """Return the output of one layer of Figure 1 with post-norm for one sentence, from its sublayers."""

    def attend(attention: Attention, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, attention(y, attention.project_kv(memory), mask))

    if memory is None:
        assert isinstance(layer, EncoderLayer)
        x = layer.attention_residual.norm(x + attend(layer.attention, x, x, None))
    else:
        assert isinstance(layer, DecoderLayer)
        causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        x = layer.attention_residual.norm(x + attend(layer.attention, x, x, causal))
        x = layer.cross_attention_residual.norm(x + attend(layer.cross_attention, x, memory, None))
    feed_forward = layer.feed_forward
    inner = (x @ feed_forward.inner.weight.T + feed_forward.inner.bias).clamp(min=0)
    outer = inner @ feed_forward.outer.weight.T + feed_forward.outer.bias
    return cast(Tensor, layer.feed_forward_residual.norm(x + outer))


def test_model_equals_figure_1() -> None:
    model = small_model()
    source, inputs = sentences(6), sentences(5, seed=3)
    memory = model.encoder.embedding(source)
    for layer in model.encoder.layers:
        memory = figure_1(memory, layer, None)
    x = model.decoder.embedding(inputs)
    for layer in model.decoder.layers:
        x = figure_1(x, layer, memory)
    torch.testing.assert_close(model(source, inputs), x @ model.output.T, rtol=0, atol=1e-5)
