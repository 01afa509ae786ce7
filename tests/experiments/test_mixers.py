"""Recurrent, convolutional and dilated layers against PyTorch, and the laws of decoding for models of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import random_tensors
from dragoman.config import ModelConfig
from dragoman.experiments.mixers.convolution import Convolution, DilatedConvolution, GatedConvolution
from dragoman.experiments.mixers.recurrent import Lstm, OneWayLayer, TwoWayLayer, reverse_tokens
from dragoman.experiments.mixers.state import MixerInput
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from random_tensors import noise
from table2_models import NO_DROPOUT, SYSTEM_NAMES, make_system_config

pytestmark = pytest.mark.usefixtures("one_core")

PAD, START, END, ROWS = 0, 2, 1, 14
sentences = partial(random_tensors.sentences, low=3, high=ROWS)
MODELS: dict[str, dict[str, Any]] = {
    "recurrent with attention in each layer": {"encoder_mixer": "recurrent", "decoder_mixer": "recurrent",
                                               "recurrent_directions": "bidirectional"},
    "self-attention and convolutions": {"decoder_mixer": "convolution", "kernel_size": 4},
    "dilated and self-attention": {"encoder_mixer": "dilated", "attention_score": "multiplicative", "normalization": "batch"},
    "experts": {"feed_forward": "moe", "num_experts": 4, "experts_per_token": 2},
    "additive score": {"attention_score": "additive", "feed_forward": "none"},
}  # fmt: skip
SIZES: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 16, "d_ff": 24, "num_heads": 2}


def make_config(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({**SIZES, **NO_DROPOUT, **changes})


def make_any_model(name: str) -> Transformer:
    """Return the model of a system of Table 2, whose layers and initial weights are those of its recipe, or one of `MODELS`."""
    config = make_system_config(name, **SIZES) if name in SYSTEM_NAMES else make_config(**MODELS[name])
    torch.manual_seed(0)
    return build_model(config, source_vocab_size=ROWS, target_vocab_size=ROWS, padding_id=PAD).eval()


def make_model(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return build_model(make_config(**changes), source_vocab_size=ROWS, target_vocab_size=ROWS, padding_id=PAD).eval()


# Layers against PyTorch


def copy_lstm(lstm: Lstm, reference: torch.nn.LSTM, suffix: str = "") -> None:
    with torch.no_grad():
        for name, value in (
            ("weight_ih", lstm.input.weight),
            ("weight_hh", lstm.recurrent.weight),
            ("bias_ih", lstm.input.bias),
        ):
            getattr(reference, f"{name}_l0{suffix}").copy_(value)
        getattr(reference, f"bias_hh_l0{suffix}").zero_()


def test_lstm_equals_torch() -> None:
    torch.manual_seed(0)
    layer, reference = Lstm(6, 8), torch.nn.LSTM(6, 8, batch_first=True)
    copy_lstm(layer, reference)
    x_BTX = noise(3, 7, 6)
    expected, (h, c) = reference(x_BTX)
    result, state = layer(x_BTX)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.stack(state), torch.cat([h, c]), rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(result.square().sum(), layer.recurrent.weight)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), reference.get_parameter("weight_hh_l0"))
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-5)


def test_two_way_lstm_equals_torch_on_packed_sequences() -> None:
    torch.manual_seed(0)
    layer, reference = TwoWayLayer(d_model=8, dropout=0.0), torch.nn.LSTM(8, 4, batch_first=True, bidirectional=True)
    copy_lstm(layer.first, reference)
    copy_lstm(layer.second, reference, "_reverse")
    x_BTX, lengths = noise(3, 6, 8), torch.tensor([6, 3, 1])
    token_mask_BT = torch.arange(6) < lengths[:, None]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x_BTX, lengths, batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    result = layer(MixerInput(x_BTX, token_mask_NT=token_mask_BT)).y_NTD
    torch.testing.assert_close(result * token_mask_BT[:, :, None], expected, rtol=0, atol=1e-5)


def test_reversal_leaves_padding_in_place() -> None:
    x_BT1 = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])[:, :, None]
    assert reverse_tokens(x_BT1, x_BT1[:, :, 0] > 0)[:, :, 0].tolist() == [[4, 3, 2, 1], [6, 5, 0, 0]]
    assert reverse_tokens(x_BT1, None)[:, :, 0].tolist() == [[4, 3, 2, 1], [0, 0, 6, 5]]


def test_fast_forward_connection_is_half_of_the_gates() -> None:
    """Compare with Zhou et al. 2016, equations 7 and 8: f = W·[half f below, h below] + b goes into the gates of an LSTM."""
    torch.manual_seed(0)
    below = OneWayLayer(in_features=4, d_model=4, dropout=0.0, fast_forward=True, is_first=True)
    layer = OneWayLayer(in_features=4, d_model=4, dropout=0.0, fast_forward=True, is_first=False)
    first = below(MixerInput(noise(2, 5, 4)))
    assert first.fast_forward is not None
    result = layer(MixerInput(first.y_NTD, fast_forward=first.fast_forward))
    f_BTG = noise(2, 5, 4) @ below.lstm.input.weight.T + below.lstm.input.bias
    torch.testing.assert_close(first.fast_forward, f_BTG[:, :, :8], rtol=0, atol=1e-5)
    gates_BTG = torch.cat([f_BTG[:, :, :8], first.y_NTD], dim=-1) @ layer.lstm.input.weight.T + layer.lstm.input.bias
    h_BH = c_BH = torch.zeros(2, 4)
    for position in range(5):
        i, f, g, o = (gates_BTG[:, position] + h_BH @ layer.lstm.recurrent.weight.T).chunk(4, dim=1)
        c_BH = f.sigmoid() * c_BH + i.sigmoid() * g.tanh()
        h_BH = o.sigmoid() * c_BH.tanh()
        torch.testing.assert_close(result.y_NTD[:, position], h_BH, rtol=0, atol=1e-5)


def test_interleaved_columns_alternate_directions() -> None:
    """Layer 0 reads left to right in the first column, and layer 1 right to left; see which outputs one input changes."""
    torch.manual_seed(0)
    for layer, changed in ((0, [False, False, True, True]), (1, [True, True, True, False])):
        module = TwoWayLayer(d_model=8, dropout=0.0, interleaved=True, layer=layer)
        x_BTX = noise(1, 4, 8)
        other_BTX = x_BTX.clone()
        other_BTX[:, 2] += 1.0
        difference_T = (module(MixerInput(other_BTX)).y_NTD - module(MixerInput(x_BTX)).y_NTD)[0, :, :4].abs().sum(dim=1)
        assert (difference_T > 0).tolist() == changed


def test_convolution_equals_torch(subtests: pytest.Subtests) -> None:
    cases_1: list[tuple[int, int]] = [(1, 1), (3, 1), (5, 1), (3, 2), (3, 4)]
    for causal in [False, True]:
        for kernel_size, dilation in cases_1:
            with subtests.test(causal=causal, kernel_size=kernel_size, dilation=dilation):
                torch.manual_seed(0)
                module = Convolution(4, 6, kernel_size=kernel_size, causal=causal, dilation=dilation)
                x_BTX, reach = noise(2, 7, 4), (kernel_size - 1) * dilation
                weight = module.linear.weight.view(6, kernel_size, 4).transpose(1, 2)
                padded = F.pad(x_BTX.mT, (reach, 0) if causal else (reach // 2, reach // 2))
                expected = F.conv1d(padded, weight, module.linear.bias, dilation=dilation).mT
                torch.testing.assert_close(module(x_BTX, None, None)[0], expected, rtol=0, atol=1e-5)


def test_gated_convolution_equals_torch() -> None:
    torch.manual_seed(0)
    module = GatedConvolution(in_features=4, d_model=4, kernel_size=3, causal=True, dropout=0.0)
    x_BTX = noise(2, 7, 4)
    linear = module.convolution.linear
    convolved = F.conv1d(F.pad(x_BTX.mT, (2, 0)), linear.weight.view(8, 3, 4).transpose(1, 2), linear.bias)
    torch.testing.assert_close(module(MixerInput(x_BTX)).y_NTD, F.glu(convolved, dim=1).mT, rtol=0, atol=1e-5)


def test_dilated_block_equals_torch() -> None:
    torch.manual_seed(0)
    module = DilatedConvolution(
        in_features=4, d_model=4, kernel_size=3, dilation=2, causal=False, dropout=0.0, normalization="layer", epsilon=1e-6
    )
    x_BTX = noise(2, 7, 4)
    y = F.relu(F.layer_norm(F.linear(F.relu(x_BTX), module.inner.weight, module.inner.bias), (2,), eps=1e-6))
    linear = module.convolution.linear
    y = F.conv1d(y.mT, linear.weight.view(2, 3, 2).transpose(1, 2), linear.bias, padding=2, dilation=2).mT
    expected = F.linear(F.relu(F.layer_norm(y, (2,), eps=1e-6)), module.outer.weight, module.outer.bias)
    torch.testing.assert_close(module(MixerInput(x_BTX)).y_NTD, expected, rtol=0, atol=1e-5)


def test_dilations_double_and_begin_again() -> None:
    model = make_model(encoder_mixer="dilated", encoder_layers=7, max_dilation=4)
    dilations = [module.dilation for module in model.encoder.modules() if isinstance(module, Convolution)]
    assert dilations == [1, 2, 4, 1, 2, 4, 1]


# Every model


def test_gradient_reaches_every_parameter(subtests: pytest.Subtests) -> None:
    for name in [*SYSTEM_NAMES, *MODELS]:
        with subtests.test(name=name):
            model = make_any_model(name).train()
            source_BS, inputs_BT = sentences(6, 4, 2), sentences(5, 5, 3)
            model(source_BS, inputs_BT).logsumexp(-1).sum().backward()
            for key, parameter in model.named_parameters():
                assert parameter.grad is not None, key
                assert parameter.grad.isfinite().all(), key


@torch.no_grad()
def test_later_inputs_change_no_earlier_output(subtests: pytest.Subtests) -> None:
    for name in [*SYSTEM_NAMES, *MODELS]:
        with subtests.test(name=name):
            model = make_any_model(name)
            source_BS, inputs_BT = sentences(6, 4), sentences(7, 7)
            other_BT = inputs_BT.clone()
            other_BT[:, 4] = 3 + (inputs_BT[:, 4] - 2) % (ROWS - 3)
            before, after = model(source_BS, inputs_BT), model(source_BS, other_BT)
            torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=1e-6)
            assert (after[:, 4] - before[:, 4]).abs().amax() > 1e-5


@torch.no_grad()
def test_padding_changes_no_output(subtests: pytest.Subtests) -> None:
    for name in [*SYSTEM_NAMES, *MODELS]:
        with subtests.test(name=name):
            model = make_any_model(name)
            source_BS, inputs_BT = sentences(4, 4), sentences(5, 5)
            padded = F.pad(source_BS, (0, 3), value=PAD)
            torch.testing.assert_close(model(padded, inputs_BT), model(source_BS, inputs_BT), rtol=0, atol=1e-5)


@torch.no_grad()
def test_cached_decoding_equals_full_decoding(subtests: pytest.Subtests) -> None:
    """Decode in parts of one, two and three tokens, beyond the source's length, with two rows for each source."""
    for name in [*SYSTEM_NAMES, *MODELS]:
        with subtests.test(name=name):
            model = make_any_model(name).double()
            source_BS, inputs_NT = sentences(5, 3), sentences(*[9] * 4)
            full = model(source_BS.repeat_interleave(2, dim=0), inputs_NT)
            state, parts = model.start(source_BS), []
            for start, end in ((0, 1), (1, 3), (3, 6), (6, 7), (7, 9)):
                outputs, state = model.decoder(inputs_NT[:, start:end], state)
                parts.append(model.compute_logits(outputs))
            torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=1e-5)


@torch.no_grad()
def test_reordered_state_equals_fresh_state(subtests: pytest.Subtests) -> None:
    """Exchange the hypotheses of the first sentence, then leave the first sentence out."""
    for name in [*SYSTEM_NAMES, *MODELS]:
        with subtests.test(name=name):
            model = make_any_model(name)
            source_BS, inputs_NT, rows_N = sentences(5, 3), sentences(*[4] * 4), torch.tensor([1, 0, 2, 2])
            _, state = model.decoder(inputs_NT[:, :3], model.start(source_BS))
            _, expected = model.decoder(inputs_NT[rows_N, :3], model.start(source_BS))
            tokens_N = inputs_NT[:, 3]
            reordered = model.step(tokens_N, state.reorder(rows_N))[0]
            torch.testing.assert_close(reordered, model.step(tokens_N, expected)[0], rtol=0, atol=1e-5)
            last = model.step(tokens_N[2:], state.reorder(rows_N).select_sentences(torch.tensor([1])))[0]
            torch.testing.assert_close(last, reordered[2:], rtol=0, atol=1e-5)


def test_wrong_keys_give_one_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"cross_attention": "first"}, "is for a decoder without self-attention"),
        ({"decoder_mixer": "recurrent", "cross_attention": "first", "decoder_layers": 1}, "no layer follows the first one"),
        ({"decoder_mixer": "convolution", "cross_attention": "multi_step"}, "is for an encoder without self-attention"),
        ({"decoder_mixer": "dilated", "cross_attention": "unfold", "pointer": True}, "needs cross-attention"),
        ({"encoder_mixer": "convolution", "kernel_size": 4}, "give an odd number"),
        ({"fast_forward": True}, "is for LSTMs"),
        ({"encoder_mixer": "dilated", "decoder_mixer": "dilated", "attention_window": 2}, "which no layer has"),
        ({"feed_forward": "moe", "num_experts": 4, "experts_per_token": 5}, "is more than num_experts"),
        ({"encoder_mixer": "recurrent", "d_model": 15, "num_heads": 3, "position_encoding": "none"}, "make it even"),
        ({"normalization": "none", "final_norm": True}, "has no effect"),
        ({"encoder_mixer": "transducer"}, "encoder_mixer"),
    ]
    for changes, problem in cases:
        with subtests.test(changes=changes, problem=problem), pytest.raises(ValueError, match=problem):
            make_config(**changes)
