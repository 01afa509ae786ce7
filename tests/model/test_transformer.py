"""The model against closed forms: its size, its equations, its masks, its dropout and its first weights."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dragoman.config import ModelConfig, make_recipe
from dragoman.config.presets import SIZES
from dragoman.model.attention import (
    Attention,
    AttentionImpl,
    KeyValue,
    attention_weights,
    cpu_attention,
    explicit_attention,
    fused_attention,
    record_attention,
    set_attention_impl,
)
from dragoman.model.dropout import Dropout, dropout
from dragoman.model.factory import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.linear import (
    Linear,
    MatMul,
    contiguous_rows,
    fused_linear,
    onednn_matmul,
    padded_matmul,
    round_up_rows,
    torch_matmul,
)
from dragoman.model.local_attention import Mask
from dragoman.model.masks import causal_mask, padding_mask, window_mask, windowed_padding_mask
from dragoman.model.positional_encoding import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from dragoman.model.transformer import Embedding, Transformer, set_matmul_impl

pytestmark = pytest.mark.usefixtures("one_core")

PAD, SOURCE_ROWS, TARGET_ROWS = 0, 11, 13
CPU = torch.device("cpu")
ATTENTIONS = [explicit_attention, fused_attention, cpu_attention]
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def small_config(**knobs: Any) -> ModelConfig:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
    return ModelConfig.model_validate({**sizes, **NO_DROPOUT, **knobs})


def small_model(**knobs: Any) -> Transformer:
    config = small_config(**knobs)
    torch.manual_seed(0)
    rows = (SOURCE_ROWS, SOURCE_ROWS) if config.tie_embeddings == "all" else (SOURCE_ROWS, TARGET_ROWS)
    return build_model(config, source_vocab_size=rows[0], target_vocab_size=rows[1], padding_id=PAD).eval()


def meta_model(config: ModelConfig, rows: int) -> Transformer:
    with torch.device("meta"):
        return build_model(config, source_vocab_size=rows, target_vocab_size=rows)


def sentences(*lengths: int, rows: int = SOURCE_ROWS, seed: int = 1) -> Tensor:
    """Random ids, none of them padding, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = torch.randint(1, rows, (length,), generator=generator)
    return ids_BT


def noise(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# The size of it


@pytest.mark.parametrize(
    ("size", "printed_millions", "parameters"),
    [
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
    ],
)
def test_parameter_counts_of_table_3(size: str, printed_millions: int, parameters: int) -> None:
    """Table 3's last column, at the 40,960 rows of tensor2tensor's `wmt_ende_bpe32k`; the A rows print none, being as base."""
    model = meta_model(make_recipe({"preset": "t2t-2017", "size": size}).model, 40_960)
    assert model.num_parameters() == parameters
    assert round(parameters / 1e6) == printed_millions


@pytest.mark.parametrize(("rows", "parameters"), [(40_960, 218_300_416), (36_546, 213_780_480)])
def test_big_has_the_printed_213_million_parameters_at_the_published_36_546_rows(rows: int, parameters: int) -> None:
    model = meta_model(make_recipe({"preset": "t2t-2017", "size": "big"}).model, rows)
    assert model.num_parameters() == parameters


@pytest.mark.parametrize(
    ("preset", "size"), [("t2t-2017", "tiny"), ("t2t-2017", "B-dk32"), ("paper", "base"), *(("modern", size) for size in SIZES)]
)
def test_parameter_counts_in_closed_form(preset: str, size: str) -> None:
    config = make_recipe({"preset": preset, "size": size}).model
    d, ff, bias = config.d_model, config.d_ff, int(config.attention_bias)
    keys, values = config.num_heads * config.key_width, config.num_heads * config.value_width
    attention = 2 * d * keys + 2 * d * values + bias * (2 * keys + values + d)
    feed_forward = 2 * d * ff + ff + d
    norm = 2 * d
    encoder = config.encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final = 2 * norm if config.norm == "pre" else 0
    positions = 2 * config.max_positions * d if config.position_encoding == "learned" else 0
    assert meta_model(config, 1000).num_parameters() == 1000 * d + encoder + decoder + final + positions


@pytest.mark.parametrize(
    ("tie_embeddings", "tables"),
    [
        ("all", SOURCE_ROWS),
        ("decoder", SOURCE_ROWS + TARGET_ROWS),
        ("none", SOURCE_ROWS + 2 * TARGET_ROWS),
    ],
)
def test_tying(tie_embeddings: str, tables: int) -> None:
    model = small_model(tie_embeddings=tie_embeddings)
    source, target, output = model.encoder.embedding.weight, model.decoder.embedding.weight, model.output
    assert (source is target) == (tie_embeddings == "all")
    assert (target is output) == (tie_embeddings != "none")
    rest = sum(
        parameter.numel()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name not in {"encoder.embedding.weight", "decoder.embedding.weight", "output"}
    )
    assert model.num_parameters() - rest == 16 * tables


# Attention


def masks(target_length: int, source_length: int) -> dict[str, Tensor | None]:
    keep_BS = torch.arange(source_length) < torch.tensor([source_length, 2])[:, None]
    return {
        "none": None,
        "padding": padding_mask(keep_BS),
        "causal": causal_mask(target_length, source_length, device=CPU),
        "window": window_mask(target_length, source_length, 1, device=CPU),
    }


def queries_keys_values() -> tuple[Tensor, Tensor, Tensor]:
    return noise(2, 3, 4, 8, seed=3), noise(2, 3, 6, 8, seed=4), noise(2, 3, 6, 5, seed=5)


def equation_1(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """softmax(Q·Kᵀ/√d_k)·V, one number at a time in double precision."""
    result = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, t in itertools.product(*map(range, query.shape[:3])):
        allowed = [s for s in range(key.shape[2]) if mask[b, h, t, s]]
        scores = [sum(query[b, h, t] * key[b, h, s]) / math.sqrt(query.shape[3]) for s in allowed]
        total = sum(math.exp(score) for score in scores)
        for s, score in zip(allowed, scores, strict=True):
            result[b, h, t] += math.exp(score) / total * value[b, h, s]
    return result


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("mask_name", ["none", "padding", "causal", "window"])
def test_attention_is_equation_1(attend: AttentionImpl, mask_name: str) -> None:
    query, key, value = queries_keys_values()
    mask = masks(4, 6)[mask_name]
    everywhere = np.broadcast_to(True if mask is None else mask.numpy(), (2, 3, 4, 6))
    expected = equation_1(query.double().numpy(), key.double().numpy(), value.double().numpy(), everywhere)
    np.testing.assert_allclose(attend(query, key, value, mask, 0.0).numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mask_name", ["none", "padding", "causal", "window"])
def test_fused_attention_is_explicit_attention(mask_name: str) -> None:
    query, key, value = queries_keys_values()
    mask = masks(4, 6)[mask_name]
    explicit, fused = (attend(query, key, value, mask, 0.0) for attend in (explicit_attention, fused_attention))
    assert explicit.shape == (2, 3, 4, 5)
    torch.testing.assert_close(fused, explicit, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mask_name", ["none", "padding", "causal"])
def test_the_way_of_attention_changes_no_draw(mask_name: str) -> None:
    """Which one is faster is measured, so it may differ from run to run; what dropout drops must not."""
    query, key, value = queries_keys_values()
    found = []
    for attend in (cpu_attention, fused_attention):
        torch.manual_seed(1)
        found.append(attend(query, key, value, masks(4, 6)[mask_name], 0.3))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
    assert not torch.allclose(found[0], cpu_attention(query, key, value, masks(4, 6)[mask_name], 0.0), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [5, 16, 17, 40])
@pytest.mark.parametrize("mask_name", ["none", "padding", "causal"])
def test_lean_attention_has_the_gradients_of_the_explicit_one(mask_name: str, length: int, dtype: torch.dtype) -> None:
    """Fewer and more keys than a vector holds; in bfloat16, eight bits of what double precision finds."""
    mask = masks(4, length)[mask_name]
    given = [noise(2, 3, rows, width, seed=rows + width).to(dtype) for rows, width in ((4, 8), (length, 8), (length, 5))]
    weight = noise(2, 3, 4, 5, seed=9)
    found = []
    for attend, kind in ((cpu_attention, dtype), (explicit_attention, torch.float64)):
        query, key, value = (one.to(kind).requires_grad_() for one in given)
        result = attend(query, key, value, mask, 0.0)
        found.append([result, *torch.autograd.grad((result * weight.to(kind)).sum(), (query, key, value))])
    for lean, explicit in zip(*found, strict=True):
        assert lean.dtype == dtype
        bound = (2e-6 if dtype == torch.float32 else 2e-2) * explicit.abs().max().item()
        torch.testing.assert_close(lean.double(), explicit, rtol=0, atol=bound)


def test_lean_attention_drops_the_same_weights_on_the_way_back() -> None:
    """With one-hot gradients at value u = s, the gradient of the values are the dropped weights themselves."""
    torch.manual_seed(0)
    query, key = noise(2, 3, 6, 8), noise(2, 3, 20, 8, seed=3)
    value = torch.eye(20).expand(2, 3, 20, 20).clone().requires_grad_()
    dropped = cpu_attention(query, key, value, None, 0.5)
    (to_value,) = torch.autograd.grad(dropped[:, :, 4].sum(), value)
    torch.testing.assert_close(to_value[..., 0], dropped[:, :, 4])
    torch.manual_seed(0)
    assert torch.equal(cpu_attention(query, key, value, None, 0.5), dropped)


def test_lean_attention_gives_the_gradients_of_what_it_dropped() -> None:
    """Against double precision with the same weights dropped, as read off the forward pass."""
    query, key, value = (one.requires_grad_() for one in queries_keys_values())
    identity = torch.eye(6).expand(2, 3, 6, 6)
    torch.manual_seed(1)
    keep = (cpu_attention(query, key, identity, None, 0.4) != 0).double() / 0.6
    torch.manual_seed(1)
    found = torch.autograd.grad(cpu_attention(query, key, value, None, 0.4).square().sum(), (query, key, value))
    exact = [one.detach().double().requires_grad_() for one in (query, key, value)]
    result = (attention_weights(exact[0], exact[1], None) * keep) @ exact[2]
    expected = torch.autograd.grad(result.square().sum(), exact)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)  # p holds to 1.5e-5


def test_causal_and_window_masks_by_their_definition() -> None:
    """The queries are the last of the keys, so query t stands at place t + S − T."""
    for target_length, source_length, radius in itertools.product((1, 3, 5), (5, 6), (1, 2)):
        places = range(source_length - target_length, source_length)
        causal = [[s <= place for s in range(source_length)] for place in places]
        window = [[abs(s - place) <= radius for s in range(source_length)] for place in places]
        assert causal_mask(target_length, source_length, device=CPU).tolist() == causal
        assert window_mask(target_length, source_length, radius, device=CPU).tolist() == window


def test_multi_head_attention_is_the_heads_side_by_side() -> None:
    """MultiHead = Concat(head₁ … head_h)·W^O, each head computed alone from its own slice of the matrices."""
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


def test_use_attention_reaches_every_attention() -> None:
    model = small_model()
    calls: list[float] = []

    def counting(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        calls.append(dropout_p)
        return fused_attention(query, key, value, mask, dropout_p)

    set_attention_impl(model, counting)
    model(sentences(4), sentences(3))
    assert len(calls) == 2 + 2 * 2  # encoder layers, and two in each decoder layer


@pytest.mark.parametrize("training", [False, True])
def test_watching_changes_nothing_and_sees_distributions(training: bool) -> None:
    model = small_model(residual_dropout=0.3, attention_dropout=0.3).train(training)
    source, inputs = sentences(5, 3), sentences(4, 4)
    torch.manual_seed(7)
    unseen = model(source, inputs)
    torch.manual_seed(7)
    with record_attention(attentions(model)) as seen:
        assert torch.equal(model(source, inputs), unseen)
    shapes = [tuple(weights.shape) for weights in seen]
    assert shapes == [(2, 2, 5, 5)] * 2 + [(2, 2, 4, 4), (2, 2, 4, 5)] * 2
    for weights in seen:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), rtol=0, atol=1e-6)
    assert torch.equal(seen[0][1, :, :, 3:], torch.zeros(2, 5, 2))  # the second sentence's padding
    model(source, inputs)
    assert len(seen) == 6, "still watching after the end"


def test_watching_ends_with_an_error() -> None:
    model = small_model()
    with pytest.raises(RuntimeError, match="stop"), record_attention(attentions(model)):
        raise RuntimeError("stop")
    assert all(module.attention_impl is fused_attention for module in attentions(model))


# Products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (1, 5), (40, 5)])
def test_onednn_product_is_linear_with_its_gradients(shape: tuple[int, ...], bias: bool) -> None:
    """Against double precision, to the rounding of float32."""
    given = [noise(*shape), noise(6, 5, seed=3), *([noise(6, seed=4)] if bias else [])]
    ours, exact = ([one.to(kind).requires_grad_() for one in given] for kind in (torch.float32, torch.float64))
    weight = noise(*shape[:-1], 6, seed=5)
    found, expected = (
        [result, *torch.autograd.grad((result * weight.to(result.dtype)).sum(), leaves)]
        for leaves, result in (
            (ours, onednn_matmul(ours[0], ours[1], ours[2] if bias else None)),
            (exact, nn.functional.linear(exact[0], exact[1], exact[2] if bias else None)),
        )
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-6 * max(other.abs().max().item(), 1.0))


@pytest.mark.parametrize("rows", [4, 500])
def test_onednn_product_of_transposed_matrices(rows: int) -> None:
    """What the gradient of a weight is: both sides stand on end."""
    x, y = noise(30, rows).t(), noise(30, 20, seed=3).t()
    torch.testing.assert_close(onednn_matmul(x, y, None), x @ y.t(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("product", [torch_matmul, onednn_matmul])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_rectified_product_is_relu_of_the_product(product: MatMul, kind: torch.dtype) -> None:
    """With its gradients, against PyTorch's own in double precision."""
    linear, exact = Linear(5, 6).to(kind), nn.Linear(5, 6).double()
    exact.load_state_dict(linear.state_dict())
    linear.matmul = product
    x, weight = noise(2, 7, 5), noise(2, 7, 6, seed=5)
    found, expected = (
        [result, *torch.autograd.grad((result * weight.to(result.dtype)).sum(), [leaf, *module.parameters()])]
        for module, leaf in ((linear, x.to(kind).requires_grad_()), (exact, x.double().requires_grad_()))
        for result in (linear(leaf, rectified=True) if module is linear else exact(leaf).relu(),)
    )
    assert (found[0] == 0).any()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * max(other.abs().max().item(), 1.0))


@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 17, 5, 6), (40, 5, 6), (37, 520, 530), (37, 530, 520)])
def test_padded_product_is_linear_with_its_gradients(shape: tuple[int, ...], bias: bool, rectified: bool) -> None:
    """Against double precision of the very numbers that bfloat16 keeps of what is given, to its rounding."""
    *rows, inner, outer = shape
    given = [noise(*rows, inner), noise(outer, inner, seed=3) / inner**0.5, *([noise(outer, seed=4)] if bias else [])]
    given = [one.bfloat16() for one in given]
    to_result = noise(*rows, outer, seed=5).bfloat16()
    ours, exact = ([one.to(kind).requires_grad_() for one in given] for kind in (torch.float32, torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = padded_matmul(ours[0], ours[1], ours[2] if bias else None, relu=rectified)
    expected = nn.functional.linear(exact[0], exact[1], exact[2] if bias else None)
    assert result.dtype == torch.bfloat16
    if rectified:  # where rounding took a number below zero, or above, no gradient can be compared
        expected = expected * (result > 0)
    found = [result, *torch.autograd.grad(result, ours, to_result)]
    wanted = [expected, *torch.autograd.grad(expected, exact, to_result.double())]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() <= 2**-7 * other.norm()


def test_padded_product_meets_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    met, linear = set(), nn.functional.linear

    def meeting(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        met.add(len(x))
        return linear(x, *rest)

    monkeypatch.setattr(nn.functional, "linear", meeting)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for rows in range(1, 130):
            assert padded_matmul(noise(rows, 5), noise(6, 5), None).shape == (rows, 6)
    assert met == {round_up_rows(rows) for rows in range(1, 130)}
    assert {64, 72, 80, 88, 96, 104, 112, 120, 128, 144} == {rows for rows in met if rows >= 64}


def test_padded_product_leaves_all_but_autocast_to_pytorch() -> None:
    x, weight = noise(3, 5), noise(6, 5, seed=3)
    assert torch.equal(padded_matmul(x, weight, None), nn.functional.linear(x, weight))
    assert torch.equal(padded_matmul(x, weight, None, relu=True), nn.functional.linear(x, weight).relu())


def test_padded_product_of_transposed_matrices() -> None:
    """What the gradient of the vocabulary's vectors is: both sides stand on end."""
    for outer, inner in ((600, 520), (520, 600), (30, 20)):
        x, y = noise(50, outer).bfloat16(), noise(50, inner, seed=3).bfloat16()
        found, wanted = padded_matmul(x.t(), y.t(), None), x.double().t() @ y.double()
        assert (found.double() - wanted).norm() <= 2**-7 * wanted.norm()


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (33, 70), (70, 33)])
def test_putting_a_matrix_in_order_changes_no_number(shape: tuple[int, int]) -> None:
    turned = noise(*shape).t()
    ordered = contiguous_rows(turned)
    assert ordered.is_contiguous()
    assert torch.equal(ordered, turned)


def test_onednn_product_leaves_other_types_to_pytorch() -> None:
    x, weight = noise(3, 5), noise(6, 5, seed=3)
    assert onednn_matmul(x.double(), weight.double(), None).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert onednn_matmul(x, weight, None).dtype == torch.bfloat16


@pytest.mark.parametrize("bias", [True, False])
def test_products_side_by_side_are_each_alone(bias: bool) -> None:
    torch.manual_seed(0)
    linears, x = [Linear(5, width, bias=bias) for width in (4, 4, 7)], noise(3, 2, 5)
    together = fused_linear(linears, x)
    with torch.no_grad():
        alone = fused_linear(linears, x)
    for one, other, linear in zip(together, alone, linears, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert torch.equal(other, linear(x))


def test_use_product_reaches_every_product_with_weights() -> None:
    model = small_model()
    seen: list[tuple[int, ...]] = []

    def counting(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool = False) -> Tensor:
        seen.append(tuple(weight.shape))
        return torch_matmul(x, weight, bias, relu=rectified)

    source, inputs = sentences(4), sentences(3)
    expected = model(source, inputs)
    set_matmul_impl(model, counting)
    torch.testing.assert_close(model(source, inputs), expected, rtol=0, atol=1e-5)
    # A layer of the encoder: query, key and value in one, output, inner, outer; of the decoder: query, key and value in one,
    # output, query, output, inner, outer, and key and value of the source; and the logits.
    assert len(seen) == 2 * 4 + 2 * 7 + 1
    assert seen[0] == (48, 16)
    seen.clear()
    with torch.no_grad():
        model(source, inputs)
    assert len(seen) == 2 * 6 + 2 * 10 + 1


# Positions and embeddings


def sinusoid(position: int, column: int, width: int, kind: str) -> float:
    """Section 3.5 as printed; tensor2tensor 1.0.3 has all sines first and the exponent i/(d/2 − 1)."""
    if kind == "interleaved":
        wave, angle = column % 2, position / 10000 ** (2 * (column // 2) / width)
    else:
        half = width // 2
        wave, angle = column // half, position / 10000 ** ((column % half) / (half - 1))
    return math.cos(angle) if wave else math.sin(angle)


@pytest.mark.parametrize("kind", ["interleaved", "concatenated"])
def test_sinusoids_in_closed_form_also_beyond_the_table(kind: str) -> None:
    positions = SinusoidalPositionalEmbedding(d_model=6, concatenated=kind == "concatenated", num_positions=4)
    for start, length in [(0, 4), (1, 2), (3, 9), (700, 2), (0, 1)]:
        expected = [[sinusoid(start + t, column, 6, kind) for column in range(6)] for t in range(length)]
        torch.testing.assert_close(positions(start, length), torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["interleaved", "concatenated"])
def test_sinusoids_are_real_in_a_model_without_weights(kind: str) -> None:
    """No file holds them, so a model that is built on the meta device to be filled later must have them already."""
    model = meta_model(small_config(positions=kind), 9)
    assert model.output.is_meta
    expected = torch.tensor([[sinusoid(t, column, 16, kind) for column in range(16)] for t in range(3)])
    for stack in (model.encoder, model.decoder):
        torch.testing.assert_close(stack.embedding.positions(0, 3), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["interleaved", "concatenated"])
def test_embeddings_are_scaled_vectors_plus_positions(scaled: bool, kind: str) -> None:
    model = small_model(scale_embeddings=scaled, positions=kind)
    ids = sentences(4, 3)
    x_BTD = model.encoder.embedding(ids)
    for b, t in itertools.product(range(2), range(4)):
        position = torch.tensor([sinusoid(t, column, 16, kind) for column in range(16)])
        token = model.encoder.embedding.weight[ids[b, t]] * (4.0 if scaled else 1.0)
        expected = position if ids[b, t] == PAD else token + position
        torch.testing.assert_close(x_BTD[b, t], expected, rtol=0, atol=1e-6)


def test_padding_vector_is_zero_whatever_its_row_holds() -> None:
    """What lets the padding id stand for tensor2tensor's zero vector at the decoder's start."""
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


def test_target_space_is_one_vector_on_the_encoder_alone() -> None:
    model, without = small_model(target_space_embedding=True), small_model()
    assert model.num_parameters() == without.num_parameters() + 16
    extra = model.encoder.embedding.target_space_embedding
    assert extra is not None
    assert model.decoder.embedding.target_space_embedding is None
    ids = sentences(4)
    torch.testing.assert_close(model.encoder.embedding(ids), model.decoder.embedding(ids) + extra, rtol=0, atol=1e-6)


def test_learned_positions_end_where_their_table_ends() -> None:
    model = small_model(position_encoding="learned", max_positions=5)
    assert torch.isfinite(model(sentences(5), sentences(5))).all()
    with pytest.raises(IndexError, match="of 5 learned"):
        model(sentences(6), sentences(5))
    with pytest.raises(IndexError, match="of 5 learned"):
        model(sentences(5), sentences(6))


def test_learned_positions_are_scaled_rows() -> None:
    torch.manual_seed(0)
    positions = LearnedPositionalEmbedding(d_model=9, max_positions=7)
    torch.testing.assert_close(positions(2, 3), positions.weight[2:5] * 3.0)
    model = small_model(position_encoding="learned", max_positions=5)
    ours = (model.encoder.embedding.positions.weight, model.decoder.embedding.positions.weight)
    assert ours[0] is not ours[1]


# Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_keeps_the_mean_and_drops_its_share(p: float) -> None:
    """Bounds: five standard deviations of n Bernoulli draws, and of a correlation of n independent ones."""
    torch.manual_seed(0)
    n = 1 << 20
    dropped = dropout(torch.ones(n), p)
    share = (dropped == 0).float().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(dropped.mean().item() - 1) < 5 * math.sqrt(p / (1 - p) / n)
    assert len(set(dropped.tolist())) == 2
    assert dropped.max().item() == pytest.approx(1 / (1 - p), abs=3e-5)  # p is rounded to 1/65536
    kept = (dropped != 0).float() - (1 - share)
    for lag in (1, 2, 3, 4, 8):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(n), f"neighbours at distance {lag} are not independent"


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (3, 1, 7), (0, 4)])
def test_dropout_backward_uses_the_mask_of_forward(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, requires_grad=True)
    dropped = dropout(x, 0.4)
    (gradient,) = torch.autograd.grad((2 * dropped).sum(), x)
    assert torch.equal(gradient, 2 * dropped.detach())


def test_dropout_of_a_transposed_half_precision_tensor() -> None:
    torch.manual_seed(0)
    x = noise(6, 50).bfloat16().T
    dropped = dropout(x, 0.5)
    assert dropped.dtype == torch.bfloat16
    assert torch.equal(dropped, torch.where(dropped == 0, 0.0, 2 * x))
    assert 0 < int((dropped == 0).sum()) < x.numel()


def test_dropout_is_drawn_from_the_seed() -> None:
    x = torch.ones(1000)
    torch.manual_seed(5)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


def test_dropout_is_the_identity_at_zero_and_in_evaluation() -> None:
    x = noise(4, 5)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert not torch.equal(Dropout(0.9).train()(x), x)


def assert_dropped(result: Tensor, whole: Tensor, p: float) -> None:
    """Each element is zero or divided by 1 − p, and both happen."""
    zero = result == 0
    torch.testing.assert_close(result, torch.where(zero, 0.0, whole / (1 - p)))
    assert 0.5 * p < zero.float().mean().item() < 1.5 * p


def test_each_dropout_stands_where_the_paper_puts_it() -> None:
    """Halves are dropped of small whole numbers, so that what stands beside them can be subtracted exactly."""
    torch.manual_seed(0)
    beside, x = (5 * noise(4, 8, 16, seed=3)).round(), (5 * noise(4, 8, 16)).round().abs() + 1
    for kind in (PostNorm, PreNorm):
        residual = kind(d_model=16, epsilon=1e-6, dropout=0.5)
        residual.norm = nn.Identity()  # type: ignore[assignment]
        assert_dropped(residual(beside, lambda _: x) - beside, x, 0.5)
    feed_forward = FeedForward(d_model=16, d_ff=16, dropout=0.5)
    for linear, bias in ((feed_forward.inner, 0.0), (feed_forward.outer, 7.0)):
        nn.init.eye_(linear.weight)
        nn.init.constant_(linear.bias, bias)
    assert_dropped(feed_forward(x) - 7.0, x, 0.5)
    embedding = Embedding(
        weight=nn.Parameter(noise(9, 16)),
        positions=SinusoidalPositionalEmbedding(d_model=16, concatenated=False),
        scale_embeddings=True,
        dropout=0.25,
        padding_id=PAD,
    )
    ids = sentences(8, 8, 8, rows=9)
    assert_dropped(embedding(ids), embedding.eval()(ids), 0.25)
    for attend in ATTENTIONS:
        query, key = noise(2, 3, 8, 4), noise(2, 3, 16, 4, seed=3)
        identity = torch.eye(16).expand(2, 3, 16, 16)  # with the identity for values, the result is the weights
        assert_dropped(attend(query, key, identity, None, 0.25), attention_weights(query, key, None), 0.25)


@pytest.mark.parametrize("knob", NO_DROPOUT)
def test_each_dropout_knob_acts_in_both_stacks_and_in_training_alone(knob: str) -> None:
    plain, model = small_model(), small_model(**{knob: 0.4})
    source, inputs = sentences(6, 4), sentences(5, 5)
    expected = plain(source, inputs)
    assert torch.equal(model(source, inputs), expected)
    memory = model.encoder(source)
    state = model.decoder.start(memory, source)
    outputs, _ = model.decoder(inputs, state)
    model.train()
    torch.manual_seed(3)
    assert not torch.allclose(model.encoder(source), memory, atol=1e-3)
    assert not torch.allclose(model.decoder(inputs, state)[0], outputs, atol=1e-3)
    torch.testing.assert_close(plain.train()(source, inputs), expected)


def test_attention_dropout_reaches_every_attention_in_training_alone() -> None:
    model = small_model(attention_dropout=0.3)
    given_p: list[float] = []

    def recording(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        given_p.append(dropout_p)
        return explicit_attention(query, key, value, mask, dropout_p)

    set_attention_impl(model, recording)
    model(sentences(4), sentences(3))
    model.train()(sentences(4), sentences(3))
    assert given_p == [0.0] * 6 + [0.3] * 6


# Residuals


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
def test_residual_is_its_equation(kind: type[PostNorm]) -> None:
    residual = kind(d_model=16, epsilon=0.01, dropout=0.0)
    nn.init.normal_(residual.norm.weight)
    nn.init.normal_(residual.norm.bias)

    def layer_norm(y: Tensor) -> Tensor:
        centred = y - y.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt() * residual.norm.weight + residual.norm.bias

    x = noise(2, 3, 16)
    expected = layer_norm(x + x.sin()) if kind is PostNorm else x + layer_norm(x).sin()
    torch.testing.assert_close(residual(x, torch.sin), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("norm", "final_norm", "expected"), [("post", None, 0), ("pre", None, 2), ("post", True, 2), ("pre", False, 0)]
)
def test_final_norm_follows_the_norm_unless_given(norm: str, final_norm: bool | None, expected: int) -> None:
    model = small_model(norm=norm, final_norm=final_norm)
    found = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert found == 2 * 2 + 2 * 3 + expected


# Masks in the model


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize(
    "knobs", [{}, {"norm": "pre"}, {"attention_window": 2}, {"position_encoding": "learned", "max_positions": 8}]
)
def test_a_later_target_token_never_changes_an_earlier_logit(knobs: dict[str, Any], attend: AttentionImpl) -> None:
    model = small_model(**knobs)
    set_attention_impl(model, attend)
    source, inputs = sentences(5, 3), sentences(7, 7, seed=3)
    before = model(source, inputs)
    for place in range(7):
        changed = inputs.clone()
        changed[:, place] = changed[:, place] % (SOURCE_ROWS - 1) + 1
        after = model(source, changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place], before[:, place])


def real_places(ids_BT: Tensor) -> Tensor:
    return ids_BT != PAD


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("window", [None, 1])
def test_what_stands_at_padding_never_counts(window: int | None, attend: AttentionImpl) -> None:
    model = small_model(attention_window=window)
    set_attention_impl(model, attend)
    source, inputs = sentences(7, 3, 1), sentences(4, 4, 4)
    keep = real_places(source)
    mask = padding_mask(keep) if window is None else windowed_padding_mask(keep, window)
    rubbish = torch.where(keep[:, :, None], 0.0, 100 * noise(3, 7, 16))

    def encode(x_BSD: Tensor) -> Tensor:
        for layer in model.encoder.layers:
            x_BSD = layer(x_BSD, mask)
        return x_BSD

    memory = encode(model.encoder.embedding(source))
    assert torch.equal(memory, model.encoder(source))
    assert torch.equal(encode(model.encoder.embedding(source) + rubbish)[keep], memory[keep])

    def decode(memory_BSD: Tensor) -> Tensor:
        return model.compute_logits(model.decoder(inputs, model.decoder.start(memory_BSD, source))[0])

    assert torch.equal(decode(memory + rubbish), decode(memory))


@pytest.mark.parametrize(
    "knobs", [{}, {"norm": "pre"}, {"attention_window": 1}, {"position_encoding": "learned", "max_positions": 30}]
)
def test_the_amount_of_padding_never_counts(knobs: dict[str, Any]) -> None:
    model = small_model(**knobs)
    source, inputs = sentences(4), sentences(5)
    alone = model(source, inputs)
    for source_padding, target_padding in [(1, 0), (0, 1), (20, 13)]:
        wide_source = torch.cat([source, torch.full((1, source_padding), PAD)], dim=1)
        wide_inputs = torch.cat([inputs, torch.full((1, target_padding), PAD)], dim=1)
        mate_source, mate_inputs = sentences(4 + source_padding, seed=8), sentences(5 + target_padding, seed=9)
        both = model(torch.cat([wide_source, mate_source]), torch.cat([wide_inputs, mate_inputs]))
        torch.testing.assert_close(both[:1, :5], alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("radius", [1, 2, 3])
def test_one_layer_sees_its_window_and_no_further(radius: int, attend: AttentionImpl) -> None:
    """The gradient of place t by place s is exactly zero where |t − s| > r, or s > t in the decoder, and not elsewhere."""
    model = small_model(encoder_layers=1, decoder_layers=1, attention_window=radius)
    set_attention_impl(model, attend)
    embedded: list[Tensor] = []

    def keep_it(module: nn.Module, arguments: Any, result: Tensor) -> None:
        result.retain_grad()
        embedded.append(result)

    for embedding in (model.encoder.embedding, model.decoder.embedding):
        embedding.register_forward_hook(keep_it)
    length = 9
    for place in range(length):
        for part, reach in (("encoder", range(-radius, radius + 1)), ("decoder", range(-radius, 1))):
            embedded.clear()
            if part == "encoder":
                outputs = model.encoder(sentences(length))
            else:
                outputs = model.decoder(sentences(length), model.start(sentences(3)))[0]
            (outputs[0, place] * noise(16)).sum().backward()
            grad = embedded[-1].grad
            assert grad is not None
            reached = {s - place for s in range(length) if grad[0, s].any()}
            assert reached == {step for step in reach if 0 <= place + step < length}


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_window_with_padding_has_no_nan(norm: str, attend: AttentionImpl) -> None:
    """Beyond the window of every real token stand padding queries that could look at nothing but themselves."""
    model = small_model(attention_window=1, norm=norm)
    set_attention_impl(model, attend)
    source, inputs = sentences(12, 1, 5), sentences(9, 9, 9)
    memory = model.encoder(source)
    logits = model(source, inputs)
    assert torch.isfinite(memory).all()
    assert torch.isfinite(logits).all()
    logits.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


# First weights


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def assert_uniform(weights: Tensor, bound: float) -> None:
    """Within the bound, nearly reaching it, and with a uniform's variance, bound²/3."""
    assert weights.abs().max().item() <= bound * (1 + 1e-6)
    assert weights.abs().max().item() > 0.98 * bound
    assert weights.mean().item() == pytest.approx(0.0, abs=5 * bound / math.sqrt(3 * weights.numel()))
    assert weights.var().item() == pytest.approx(bound**2 / 3, rel=0.05)


def assert_normal(weights: Tensor, spread: float) -> None:
    assert weights.mean().item() == pytest.approx(0.0, abs=5 * spread / math.sqrt(weights.numel()))
    assert weights.std().item() == pytest.approx(spread, rel=0.05)
    assert weights.abs().max().item() > 3 * spread


@pytest.mark.parametrize("initialization", ["glorot", "torch", "normal"])
def test_first_weights(initialization: str) -> None:
    """Glorot and Bengio 2010: U(±√(6 / (fan_in + fan_out))); torch.nn.Linear: U(±1/√fan_in), biases too."""
    knobs: dict[str, Any] = {
        "d_model": 64,
        "d_ff": 256,
        "num_heads": 4,
        "d_k": 24,
        "attention_bias": True,
        "tie_embeddings": "none",
    }
    config = small_config(**knobs, initialization=initialization, target_space_embedding=True)
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
    extra = model.encoder.embedding.target_space_embedding
    assert extra is not None
    assert extra.any()
    for table in (model.encoder.embedding.weight, model.decoder.embedding.weight, model.output):
        assert_normal(table, 0.02 if initialization == "normal" else 1 / 8)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all()
            assert not module.bias.any()


def test_first_learned_positions() -> None:
    model = small_model(position_encoding="learned", max_positions=500)
    for stack in (model.encoder, model.decoder):
        assert_normal(cast(LearnedPositionalEmbedding, stack.embedding.positions).weight, 1 / 4)


def test_first_weights_are_drawn_from_the_seed() -> None:
    first, again = small_model().state_dict(), small_model().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


# The whole


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.fixed_dictionaries(
        {
            "norm": st.sampled_from(["post", "pre"]),
            "final_norm": st.sampled_from([None, True, False]),
            "encoder_layers": st.integers(1, 2),
            "decoder_layers": st.integers(1, 2),
            "num_heads": st.sampled_from([1, 4]),
            "d_k": st.sampled_from([None, 3]),
            "d_v": st.sampled_from([None, 5]),
            "attention_bias": st.booleans(),
            "positions": st.sampled_from(["interleaved", "concatenated", "learned"]),
            "tie_embeddings": st.sampled_from(["all", "decoder", "none"]),
            "scale_embeddings": st.booleans(),
            "initialization": st.sampled_from(["glorot", "torch", "normal"]),
            "residual_dropout": st.sampled_from([0.0, 0.2]),
            "embedding_dropout": st.sampled_from([0.0, 0.2]),
            "attention_dropout": st.sampled_from([0.0, 0.2]),
            "activation_dropout": st.sampled_from([0.0, 0.2]),
            "target_space_embedding": st.booleans(),
            "attention_window": st.sampled_from([None, 1, 3]),
        }
    )
)
def test_every_combination_of_knobs_builds_runs_and_learns(knobs: dict[str, Any]) -> None:
    model = small_model(**knobs)
    source, inputs = sentences(6, 2), sentences(5, 3)
    logits = model.train()(source, inputs)
    assert logits.shape == (2, 5, SOURCE_ROWS if knobs["tie_embeddings"] == "all" else TARGET_ROWS)
    assert torch.isfinite(logits).all()
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no part in the output"
        assert torch.isfinite(parameter.grad).all()
    model.eval()
    fused = model(source, inputs)
    set_attention_impl(model, explicit_attention)
    torch.testing.assert_close(model(source, inputs), fused, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_bfloat16_autocast_stays_near_float32(norm: str, attend: AttentionImpl) -> None:
    """bfloat16 keeps 8 bits, so each product is right to 2⁻⁹ of itself; some dozen of them add up here."""
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
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_key_values_follow_one_another_and_are_picked_by_row() -> None:
    first, second = KeyValue(noise(3, 2, 4, 5), noise(3, 2, 4, 6)), KeyValue(noise(3, 2, 1, 5), noise(3, 2, 1, 6))
    both = first.append(second)
    assert both.key.shape == (3, 2, 5, 5)
    assert torch.equal(both.value[:, :, 4:], second.value)
    picked = both.select(torch.tensor([2, 2, 0]))
    assert torch.equal(picked.key[1], both.key[2])
    assert torch.equal(picked.value[2], both.value[0])


def figure_1(x: Tensor, layer: nn.Module, memory: Tensor | None) -> Tensor:
    """One layer of Figure 1 with post-norm, for one sentence, from its sub-layers."""

    def look(attention: Attention, y: Tensor, at: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, attention(y, attention.project_kv(at), mask))

    if memory is None:
        assert isinstance(layer, EncoderLayer)
        x = layer.attention_residual.norm(x + look(layer.attention, x, x, None))
    else:
        assert isinstance(layer, DecoderLayer)
        triangle = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        x = layer.attention_residual.norm(x + look(layer.attention, x, x, triangle))
        x = layer.cross_attention_residual.norm(x + look(layer.cross_attention, x, memory, None))
    feed_forward = layer.feed_forward
    inner = (x @ feed_forward.inner.weight.T + feed_forward.inner.bias).clamp(min=0)
    outer = inner @ feed_forward.outer.weight.T + feed_forward.outer.bias
    return cast(Tensor, layer.feed_forward_residual.norm(x + outer))


def test_the_whole_is_figure_1() -> None:
    model = small_model()
    source, inputs = sentences(6), sentences(5, seed=3)
    memory = model.encoder.embedding(source)
    for layer in model.encoder.layers:
        memory = figure_1(memory, layer, None)
    x = model.decoder.embedding(inputs)
    for layer in model.decoder.layers:
        x = figure_1(x, layer, memory)
    torch.testing.assert_close(model(source, inputs), x @ model.output.T, rtol=0, atol=1e-5)
