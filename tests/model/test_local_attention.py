"""Restricted self-attention (section 4) in the model: blocks for long sentences, masks for short ones, and decoder steps."""

from __future__ import annotations

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
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.local_attention import MIN_LENGTH, MIN_WINDOWS, LocalMask, Mask
from dragoman.model.transformer import Transformer
from dragoman.paper.flop_counter import count_operations
from dragoman.torch_engine.static_model import StaticTransformer

pytestmark = pytest.mark.usefixtures("one_core")

ROWS, RADIUS = 30, 5


def make_model(radius: int | None = RADIUS, **changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2}
    config = ModelConfig(**{**sizes, "residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_window": radius, **changes})
    return build_model(config, source_vocab_size=ROWS, target_vocab_size=ROWS)


def sentences(*lengths: int) -> Tensor:
    ids_BT = torch.randint(1, ROWS, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    return ids_BT * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def record_masks(model: Transformer) -> list[Mask | None]:
    """Return a list that receives the mask of each later call of an attention."""
    masks: list[Mask | None] = []

    def recording_attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        masks.append(mask)
        return fused_attention(query, key, value, mask, dropout_p)

    set_attention_impl(model, recording_attention)
    return masks


def test_blocks_are_used_for_long_sentences() -> None:
    for length in (MIN_LENGTH - 1, MIN_LENGTH):
        model = make_model()
        masks = record_masks(model)
        model(sentences(length), sentences(length))
        windows = [mask for mask in masks if isinstance(mask, LocalMask)]
        assert [window.causal for window in windows] == ([] if length < MIN_LENGTH else [False] * 2 + [True] * 2)
    wide = LocalMask(MIN_LENGTH)
    device = torch.device("cpu")
    assert isinstance(wide.choose(MIN_WINDOWS * MIN_LENGTH - 1, device=device), Tensor)
    assert wide.choose(MIN_WINDOWS * MIN_LENGTH, device=device) is wide


@pytest.mark.parametrize("attend", [fused_attention, cpu_attention])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_local_attention_equals_masked_attention(norm: str, attend: AttentionImpl) -> None:
    """Compare with equation 1 over all pairs; only the order of sums in float32 differs."""
    source, inputs = sentences(MIN_LENGTH + 13, 3, MIN_LENGTH - 20), sentences(MIN_LENGTH + 1, MIN_LENGTH, 7)
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
def test_decoder_steps_cache_only_the_window() -> None:
    source, inputs = sentences(MIN_LENGTH + 5, 30), sentences(MIN_LENGTH + 3, MIN_LENGTH + 3)
    model = make_model().eval()
    expected = model(source, inputs)
    state, stepped = model.start(source), []
    for position in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, position], state)
        stepped.append(logits)
        assert state.length == position + 1
        assert state.self_kv is not None
        assert {tensor.shape[2] for layer_kv in state.self_kv for tensor in layer_kv} == {min(position + 1, RADIUS)}
    torch.testing.assert_close(torch.stack(stepped, dim=1), expected, rtol=0, atol=2e-5)
    # Read several tokens a call, as for a forced prefix: with blocks, then with a mask, then one token.
    outputs, state = model.decoder(inputs[:, :MIN_LENGTH], model.start(source))
    more, state = model.decoder(inputs[:, MIN_LENGTH : MIN_LENGTH + 2], state)
    last, _ = model.decoder(inputs[:, MIN_LENGTH + 2 :], state)
    together = model.compute_logits(torch.cat([outputs, more, last], dim=1))
    torch.testing.assert_close(together, expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_reordered_hypotheses_keep_their_window() -> None:
    """Continue row 1 in both rows: the result equals that of row 1 alone."""
    source, inputs = sentences(4), sentences(12, 12)
    model = make_model().eval()
    _, state = model.decoder(inputs, model.start(source))
    swapped, _ = model.step(torch.tensor([3, 3]), state.reorder(torch.tensor([1, 1])))
    _, alone = model.decoder(inputs[1:], model.start(source))
    expected, _ = model.step(torch.tensor([3]), alone)
    torch.testing.assert_close(swapped, expected.expand(2, -1), rtol=0, atol=1e-6)


@torch.no_grad()
def test_static_steps_support_windows() -> None:
    source, inputs = sentences(MIN_LENGTH + 5, 30), sentences(24, 24)
    model = make_model().eval()
    expected = model(source, inputs)
    static_model = StaticTransformer(model)
    state: Any = static_model.start(source)
    for position in range(inputs.shape[1]):
        logits, state = static_model.step(inputs[:, position], state)
        torch.testing.assert_close(logits, expected[:, position], rtol=0, atol=5e-5)


def test_window_cost_grows_linearly() -> None:
    """Count operations and bytes of a layer of each stack: four times the positions take four times as many (section 4)."""

    def growth(radius: int | None) -> tuple[float, float]:
        model = make_model(radius, encoder_layers=1, decoder_layers=1, d_model=4, d_ff=4)
        encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
        assert isinstance(encoder, EncoderLayer)
        assert isinstance(decoder, DecoderLayer)
        with torch.no_grad():
            memory = decoder.cross_attention.project_kv(torch.randn(1, 2, 4))
        sizes = []
        for length in (MIN_LENGTH, 4 * MIN_LENGTH):
            token_mask_BT = torch.ones(1, length, dtype=torch.bool)
            local_masks = (LocalMask(radius or length, token_mask_BT), LocalMask(radius or length, causal=True))
            masks = [mask.choose(length, device=token_mask_BT.device) for mask in local_masks]

            def both(x_BTD: Tensor, masks: list[Mask] = masks) -> Tensor:
                result: Tensor = encoder(x_BTD, masks[0]) + decoder(x_BTD, None, memory, masks[1], None)[0]
                return result

            sizes.append(count_operations(both, torch.randn(1, length, 4, requires_grad=True)))
        small, large = sizes
        return large.operations / small.operations, large.peak_bytes / small.peak_bytes

    assert growth(RADIUS) == pytest.approx((4, 4), rel=0.02)
    assert growth(None)[1] > 8  # bytes; operations of the fused kernel are not counted


def test_recorded_attention_respects_the_window() -> None:
    model = make_model().eval()
    layer = model.encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    with torch.no_grad(), record_attention([layer.attention]) as recorded:
        model.encoder(sentences(MIN_LENGTH + 9, 20))
    (weights_BHTS,) = recorded
    positions = torch.arange(MIN_LENGTH + 9)
    far_TS = (positions[:, None] - positions).abs() > RADIUS
    assert not weights_BHTS[..., far_TS].any()
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(weights_BHTS.shape[:3]), rtol=0, atol=1e-6)
