"""Restricted self-attention (section 4) in the model: long sentences by blocks, short ones by a mask, step by step the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.inference.backends.cuda.model import StaticTransformer
from dragoman.inference.backends.packed.pack import pack_model
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

pytestmark = pytest.mark.usefixtures("one_core")

ROWS, RADIUS = 30, 5


def model_of(radius: int | None = RADIUS, **knobs: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2}
    config = ModelConfig(**{**sizes, "residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_window": radius, **knobs})
    return build_model(config, source_vocab_size=ROWS, target_vocab_size=ROWS)


def sentences(*lengths: int) -> Tensor:
    ids_BT = torch.randint(1, ROWS, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    return ids_BT * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def asked_of(model: Transformer) -> list[Mask | None]:
    """The masks that the next calls of the model's attentions are given."""
    masks: list[Mask | None] = []

    def asking(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        masks.append(mask)
        return fused_attention(query, key, value, mask, dropout_p)

    set_attention_impl(model, asking)
    return masks


def test_blocks_are_asked_for_where_they_are_the_faster() -> None:
    for length in (MIN_LENGTH - 1, MIN_LENGTH):
        model = model_of()
        masks = asked_of(model)
        model(sentences(length), sentences(length))
        windows = [mask for mask in masks if isinstance(mask, LocalMask)]
        assert [one.causal for one in windows] == ([] if length < MIN_LENGTH else [False] * 2 + [True] * 2)
    wide = LocalMask(MIN_LENGTH)
    device = torch.device("cpu")
    assert isinstance(wide.choose(MIN_WINDOWS * MIN_LENGTH - 1, device=device), Tensor)
    assert wide.choose(MIN_WINDOWS * MIN_LENGTH, device=device) is wide


@pytest.mark.parametrize("attend", [fused_attention, cpu_attention])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_that_sees_neighbours_is_the_masked_one_in_float32(norm: str, attend: AttentionImpl) -> None:
    """The oracle is equation 1 written out over all pairs; what differs is the order of sums in float32."""
    source, inputs = sentences(MIN_LENGTH + 13, 3, MIN_LENGTH - 20), sentences(MIN_LENGTH + 1, MIN_LENGTH, 7)
    keep_X = torch.nn.functional.one_hot(inputs, ROWS)[..., 1:].sum(-1, keepdim=True)
    found: list[tuple[Tensor, list[Tensor]]] = []
    for way in (attend, explicit_attention):
        model = model_of(norm=norm)
        set_attention_impl(model, way)
        logits = model(source, inputs) * keep_X
        found.append((logits, list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))))
    (ours, our_gradients), (theirs, their_gradients) = found
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())
    for one, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * max(other.abs().max().item(), 1e-3))
    # And it is another model than one that sees all.
    assert not torch.allclose(model_of(None, norm=norm)(source, inputs) * keep_X, theirs, atol=1e-3)


def test_a_wider_window_than_the_sentence_is_no_window() -> None:
    source, inputs = sentences(40, 9), sentences(30, 30)
    torch.testing.assert_close(model_of(40)(source, inputs), model_of(None)(source, inputs), rtol=0, atol=1e-5)


@torch.no_grad()
def test_step_by_step_is_what_was_learnt_and_remembers_the_window_alone() -> None:
    source, inputs = sentences(MIN_LENGTH + 5, 30), sentences(MIN_LENGTH + 3, MIN_LENGTH + 3)
    model = model_of().eval()
    whole = model(source, inputs)
    state, stepped = model.start(source), []
    for place in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, place], state)
        stepped.append(logits)
        assert state.length == place + 1
        assert state.self_kv is not None
        assert {one.shape[2] for layer in state.self_kv for one in layer} == {min(place + 1, RADIUS)}
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole, rtol=0, atol=2e-5)
    # Some at once, as a prefix that is forced: by blocks, then by a mask, then one by one.
    outputs, state = model.decoder(inputs[:, :MIN_LENGTH], model.start(source))
    more, state = model.decoder(inputs[:, MIN_LENGTH : MIN_LENGTH + 2], state)
    last, _ = model.decoder(inputs[:, MIN_LENGTH + 2 :], state)
    together = model.compute_logits(torch.cat([outputs, more, last], dim=1))
    torch.testing.assert_close(together, whole, rtol=0, atol=2e-5)


@torch.no_grad()
def test_hypotheses_of_a_beam_take_their_neighbours_along() -> None:
    """Row 0 goes on from what row 1 said: the same as if it had said that itself."""
    source, said = sentences(4), sentences(12, 12)
    model = model_of().eval()
    _, state = model.decoder(said, model.start(source))
    swapped, _ = model.step(torch.tensor([3, 3]), state.reorder(torch.tensor([1, 1])))
    _, alone = model.decoder(said[1:], model.start(source))
    expected, _ = model.step(torch.tensor([3]), alone)
    torch.testing.assert_close(swapped, expected.expand(2, -1), rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_engine_s_steps_are_the_model_s_at_any_length() -> None:
    """Both of its ways support a window, by a mask of their own, and none refuses it."""
    source, inputs = sentences(MIN_LENGTH + 5, 30), sentences(24, 24)
    model = model_of().eval()
    whole = model(source, inputs)
    for speaker in (pack_model(model, "float32"), StaticTransformer(model)):
        state: Any = speaker.start(source)
        for place in range(inputs.shape[1]):
            logits, state = speaker.step(inputs[:, place], state)
            torch.testing.assert_close(logits, whole[:, place], rtol=0, atol=5e-5)


def test_a_layer_costs_what_its_neighbours_do() -> None:
    """Four times the places take four times the operations and bytes of a layer, of either stack, as section 4 says."""

    def grown(radius: int | None) -> tuple[float, float]:
        model = model_of(radius, encoder_layers=1, decoder_layers=1, d_model=4, d_ff=4)
        encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
        assert isinstance(encoder, EncoderLayer)
        assert isinstance(decoder, DecoderLayer)
        with torch.no_grad():
            memory = decoder.cross_attention.project_kv(torch.randn(1, 2, 4))
        sizes = []
        for length in (MIN_LENGTH, 4 * MIN_LENGTH):
            keep_BT = torch.ones(1, length, dtype=torch.bool)
            look = LocalMask(radius or length, keep_BT)
            back = LocalMask(radius or length, causal=True)
            masks = [one.choose(length, device=keep_BT.device) for one in (look, back)]

            def both(x_BTD: Tensor, masks: list[Mask] = masks) -> Tensor:
                found: Tensor = encoder(x_BTD, masks[0]) + decoder(x_BTD, None, memory, masks[1], None)[0]
                return found

            sizes.append(count_operations(both, torch.randn(1, length, 4, requires_grad=True)))
        small, large = sizes
        return large.operations / small.operations, large.peak_bytes / small.peak_bytes

    assert grown(RADIUS) == pytest.approx((4, 4), rel=0.02)
    assert grown(None)[1] > 8  # bytes; what its kernel computes is not counted


def test_watching_a_long_sentence_sees_the_window() -> None:
    model = model_of().eval()
    layer = model.encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    with torch.no_grad(), record_attention([layer.attention]) as seen:
        model.encoder(sentences(MIN_LENGTH + 9, 20))
    (weights_BHTS,) = seen
    places = torch.arange(MIN_LENGTH + 9)
    far_TS = (places[:, None] - places).abs() > RADIUS
    assert not weights_BHTS[..., far_TS].any()
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(weights_BHTS.shape[:3]), rtol=0, atol=1e-6)
