"""Restricted self-attention (section 4): blocks equal a mask and cost O(n), and decoder steps keep a window."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.model.attention import (
    AttentionImpl,
    cpu_attention,
    explicit_attention,
    fused_attention,
    record_attention,
    set_attention_impl,
)
from dragoman.model.factory import build_model
from dragoman.model.layers import EncoderLayer
from dragoman.model.local_attention import MIN_BLOCK_SIZE, MIN_LENGTH, MIN_RADII, LocalMask, Mask, local_attention
from dragoman.model.transformer import Transformer
from dragoman.paper.flop_counter import count_operations
from dragoman.paper.table1_layers import LayerKind, build_layer
from dragoman.torch_engine.static_model import StaticTransformer

pytestmark = pytest.mark.usefixtures("one_core")

ROWS, RADIUS, LENGTH = 30, 5, MIN_LENGTH  # of blocks
CPU = torch.device("cpu")
ROTARY: dict[str, Any] = {"position_encoding": "rotary", "num_heads": 4, "num_key_value_heads": 2}


def make_model(radius: int | None = RADIUS, **changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2}
    config = ModelConfig(**{**sizes, "residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_window": radius, **changes})
    return build_model(config, source_vocab_size=ROWS, target_vocab_size=ROWS)


def sentences(*lengths: int) -> Tensor:
    ids_BT = torch.randint(1, ROWS, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    return ids_BT * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize("form", ["plain", "padded", "causal"])
def test_blocks_equal_masked_attention(form: str, subtests: pytest.Subtests) -> None:
    for radius, length in product([1, MIN_BLOCK_SIZE, 40], [1, 2 * MIN_BLOCK_SIZE, 90]):
        with subtests.test(radius=radius, length=length):
            torch.manual_seed(length + radius)
            inputs = [torch.randn(2, 3, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
            is_token_BT = torch.arange(length) < torch.tensor([[length], [max(length // 3, 1)]]) if form == "padded" else None
            mask = LocalMask(radius, form == "causal", is_token_BT)
            query, key, value = inputs
            output = local_attention(query, key, value, mask, 0.0)
            expected = explicit_attention(query, key, value, mask.to_tensor(length, CPU), 0.0)
            torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
            gradients, expected_gradients = (torch.autograd.grad(x.square().sum(), inputs) for x in (output, expected))
            torch.testing.assert_close(gradients, expected_gradients, rtol=1e-11, atol=1e-12)


def test_cost_grows_linearly() -> None:
    """Four times the length costs four times the bytes and operations; with a mask it costs sixteen times."""

    def cost_growth(kind: LayerKind) -> tuple[float, float]:
        small, large = (
            count_operations(build_layer(kind, 8, 16), torch.randn(1, n, 8, requires_grad=True)) for n in (256, 1024)
        )
        return large.peak_bytes / small.peak_bytes, large.operations / small.operations

    assert cost_growth("restricted self-attention") == pytest.approx((4, 4), rel=0.02)
    assert cost_growth("self-attention") == pytest.approx((16, 16), rel=0.15)


@pytest.mark.parametrize(("length", "radius"), [(MIN_LENGTH, RADIUS), (2 * MIN_LENGTH, 2 * MIN_LENGTH // MIN_RADII)])
def test_blocks_serve_long_sentences(length: int, radius: int) -> None:
    for changes, num_tokens, num_blocks in (
        ({}, length - 1, 0),
        ({}, length, 4),
        ({"position_encoding": "relative"}, length, 0),
    ):
        model, masks = make_model(radius, **changes), list[Mask | None]()

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, p: float, masks: list[Any] = masks) -> Tensor:
            masks.append(mask)
            return fused_attention(query, key, value, mask, p)

        set_attention_impl(model, attend)
        model(sentences(num_tokens), sentences(num_tokens))
        assert [mask.is_causal for mask in masks if isinstance(mask, LocalMask)] == [False, False, True, True][:num_blocks]


@pytest.mark.parametrize("attend", [fused_attention, cpu_attention])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_window_limits_attention(norm: str, attend: AttentionImpl) -> None:
    """Compare with equation 1 over all pairs; only the order of sums in float32 differs."""
    source, inputs = sentences(LENGTH + 13, 3, LENGTH - 20), sentences(LENGTH + 1, LENGTH, 7)
    is_token_BT1 = torch.nn.functional.one_hot(inputs, ROWS)[..., 1:].sum(-1, keepdim=True)
    results: list[tuple[Tensor, list[Tensor]]] = []
    for attention_impl in (attend, explicit_attention):
        model = make_model(norm=norm)
        set_attention_impl(model, attention_impl)
        logits = model(source, inputs) * is_token_BT1
        results.append((logits, list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))))
    (ours, our_gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())
    for gradient, expected in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4 * max(expected.abs().max().item(), 1e-3))
    # A model without a window gives other logits.
    assert not torch.allclose(make_model(None, norm=norm)(source, inputs) * is_token_BT1, theirs, atol=1e-3)


def test_window_wider_than_sentence_has_no_effect() -> None:
    source, inputs = sentences(40, 9), sentences(30, 30)
    torch.testing.assert_close(make_model(40)(source, inputs), make_model(None)(source, inputs), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, ROTARY])
def test_decoder_steps_cache_only_the_window(changes: dict[str, Any]) -> None:
    source, inputs = sentences(LENGTH + 5, 30), sentences(LENGTH + 3, LENGTH + 3)
    model = make_model(**changes).eval()
    expected = model(source, inputs)
    state, stepped = model.start(source), []
    for position in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, position], state)
        stepped.append(logits)
        assert state.length == position + 1
        assert state.self_kv is not None
        assert {tensor.shape[2] for layer_kv in state.self_kv for tensor in layer_kv} == {min(position + 1, RADIUS)}
    torch.testing.assert_close(torch.stack(stepped, dim=1), expected, rtol=0, atol=2e-5)
    # Read several tokens a call, as for a forced prefix.
    outputs, state = model.decoder(inputs[:, :LENGTH], model.start(source))
    more, state = model.decoder(inputs[:, LENGTH : LENGTH + 2], state)
    last, _ = model.decoder(inputs[:, LENGTH + 2 :], state)
    together = model.compute_logits(torch.cat([outputs, more, last], dim=1))
    torch.testing.assert_close(together, expected, rtol=0, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, ROTARY])
def test_reordered_hypotheses_keep_their_window(changes: dict[str, Any]) -> None:
    """Continue row 1 in both rows: the result equals that of row 1 alone."""
    source, inputs = sentences(4), sentences(12, 12)
    model = make_model(**changes).eval()
    _, state = model.decoder(inputs, model.start(source))
    swapped, _ = model.step(torch.tensor([3, 3]), state.reorder(torch.tensor([1, 1])))
    _, alone = model.decoder(inputs[1:], model.start(source))
    expected, _ = model.step(torch.tensor([3]), alone)
    torch.testing.assert_close(swapped, expected.expand(2, -1), rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, ROTARY])
def test_static_steps_support_windows(changes: dict[str, Any]) -> None:
    source, inputs = sentences(LENGTH + 5, 30), sentences(24, 24)
    model = make_model(**changes).eval()
    expected = model(source, inputs)
    static_model = StaticTransformer(model)
    state: Any = static_model.start(source)
    for position in range(inputs.shape[1]):
        logits, state = static_model.step(inputs[:, position], state)
        torch.testing.assert_close(logits, expected[:, position], rtol=0, atol=5e-5)


def test_recorded_attention_respects_the_window() -> None:
    model = make_model().eval()
    layer = model.encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    with torch.no_grad(), record_attention([layer.attention]) as recorded:
        model.encoder(sentences(LENGTH + 9, 20))
    (weights_BHTS,) = recorded
    positions = torch.arange(LENGTH + 9)
    far_TS = (positions[:, None] - positions).abs() > RADIUS
    assert not weights_BHTS[..., far_TS].any()
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(weights_BHTS.shape[:3]), rtol=0, atol=1e-6)
