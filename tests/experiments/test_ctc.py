"""CTC decoder: its loss beside a sum over all paths, its outputs beside those of single sentences, and learning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.data.collate import collate
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.interface import SearchSettings
from dragoman.errors import BundleError
from dragoman.experiments.ctc.decoder import compute_frame_outputs, count_frames, find_fitting, predict_frames
from dragoman.experiments.ctc.loss import ctc_loss
from dragoman.experiments.ctc.search import merge_path
from dragoman.model.attention import explicit_attention, fused_attention, set_attention_impl
from dragoman.model.factory import build_model
from dragoman.model.local_attention import MIN_LENGTH, LocalMask, Mask
from dragoman.model.transformer import Transformer
from dragoman.training.losses.function import count_learned
from dragoman.training.monitoring.flops import count_forward_flops

PAD, UNK, BEGIN, END = range(4)
VOCAB_SIZE = 8


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    keys: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    keys |= {"decoder": "ctc", "residual_dropout": 0.0, "embedding_dropout": 0.0, **changes}
    config = ModelConfig.model_validate(keys)
    return build_model(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)


def sum_over_paths(logits_FV: Tensor, target: Sequence[int]) -> Tensor:
    """Return −log of the summed probability of every path that merges to the target, one path after the other."""
    log_probs_FV = logits_FV.double().log_softmax(dim=-1)
    paths = [
        path
        for path in itertools.product(sorted({PAD, *target}), repeat=len(logits_FV))
        if [token for token, _ in itertools.groupby(path) if token != PAD] == list(target)
    ]
    log_probs_NF = log_probs_FV[torch.arange(len(logits_FV)), torch.tensor(paths)]
    return -torch.logsumexp(log_probs_NF.sum(dim=1), dim=0)


def test_loss_equals_sum_over_all_paths(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[list[int]], list[list[int]]]] = [
        ([[4, 5, END]], [[6, 7, 6]]),
        ([[4, 5, END]], [[6, 6]]),
        ([[5, END]], [[4]]),
        ([[4, END], [5, 6, END], [7, END]], [[6, 6], [4, 7, 4, 5], [5]]),
        ([[4, END], [5, END]], [[4, 5, 4, 5], [7, 7, 6]]),
    ]
    cases_1: list[dict[str, Any]] = [{}, {"output_bias": True}, {"ctc_upsampling": 3, "attention_window": 2}]
    for sources, targets in cases:
        for changes in cases_1:
            with subtests.test(sources=sources, targets=targets, changes=changes):
                model = build(**changes)
                if model.output_bias is not None:
                    torch.nn.init.normal_(model.output_bias)
                batch = collate(sources, targets, start_id=BEGIN)
                loss, nll = ctc_loss(model, batch)
                logits_BFV = model.compute_logits(compute_frame_outputs(model, batch.source_BS))
                upsampling = changes.get("ctc_upsampling", 2)
                rows = zip(logits_BFV, sources, targets, strict=True)
                expected = torch.stack(
                    [sum_over_paths(row[: upsampling * len(source)], target) for row, source, target in rows]
                ).sum()
                assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
                assert nll.item() == loss.item()
                parameters = list(model.parameters())
                gradients = torch.autograd.grad(loss, parameters)
                for gradient, expected_gradient in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
                    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=2e-5)


def test_infeasible_target_is_counted_and_has_no_loss() -> None:
    """A source token gives two positions: enough for two tokens, but not for two equal ones with a blank between them."""
    model = build()
    pairs = [([4], [6, 7]), ([4], [6, 6]), ([4], [5, 6, 7]), ([4, 5], [7, 7, 7])]
    batch = collate(*map(list, zip(*pairs, strict=True)), start_id=BEGIN)
    assert find_fitting(batch.targets_BT, count_frames(model, batch.source_BS)).tolist() == [True, False, False, False]
    assert count_learned(model, batch) == (3, 3)
    loss, _ = ctc_loss(model, batch)
    alone, _ = ctc_loss(model, collate([[4]], [[6, 7]], start_id=BEGIN))
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    torch.autograd.backward(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
    empty, _ = ctc_loss(model, collate([[4]], [[6, 6]], start_id=BEGIN))
    assert empty.item() == 0.0


def test_loss_in_bfloat16_is_near_float32() -> None:
    model, batch = build(), collate([[4, 5, END], [6, END]], [[6, 7, 6], [5]], start_id=BEGIN)
    exact = ctc_loss(model, batch)[0].item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ctc_loss(model, batch)[0].item() == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    "changes", [{}, {"attention_window": 2}, {"encoder_mixer": "recurrent"}, {"position_encoding": "rotary"}]
)
@torch.no_grad()
def test_padding_and_batch_do_not_change_outputs(changes: dict[str, Any]) -> None:
    model = build(**changes).eval()
    sources = [[4, 5, 6, 7, 4, END], [5, END], [6, 7, 5, END]]
    padded_BS = torch.nn.functional.pad(collate(sources, [[4]] * 3, start_id=BEGIN).source_BS, (0, 5))
    predictions = predict_frames(model, padded_BS.numpy(), [BEGIN, END], 3)
    assert [len(prediction.tokens) for prediction in predictions] == [12, 4, 8]
    for prediction, source in zip(predictions, sources, strict=True):
        (alone,) = predict_frames(model, np.array([source]), [BEGIN, END], 3)
        assert prediction.tokens == alone.tokens
        np.testing.assert_allclose(prediction.log_probs, alone.log_probs, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_window_of_a_long_source_has_no_square_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are those of equation 1 with the mask over all pairs, and padding has no effect."""
    changes = {"attention_window": 2, "position_encoding": "rotary"}
    model, source_BS = build(**changes).eval(), torch.randint(4, VOCAB_SIZE, (2, MIN_LENGTH))
    source_BS[1, MIN_LENGTH - 20 :] = PAD
    masks: list[Mask | None] = []

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, p: float) -> Tensor:
        masks.append(mask)
        return fused_attention(query, key, value, mask, p)

    set_attention_impl(model, attend)
    outputs_BFD = compute_frame_outputs(model, source_BS)
    encoder_mask, decoder_mask, cross_mask = masks
    assert isinstance(encoder_mask, LocalMask)
    assert isinstance(decoder_mask, LocalMask)
    assert isinstance(cross_mask, Tensor)
    set_attention_impl(model, explicit_attention)
    is_frame_BF1 = (source_BS != PAD).repeat_interleave(2, dim=1)[..., None]
    expected_BFD = compute_frame_outputs(model, source_BS)
    torch.testing.assert_close(outputs_BFD * is_frame_BF1, expected_BFD * is_frame_BF1, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_cross_attention_of_a_window_does_not_see_a_distant_source() -> None:
    source_BS, other_BS = torch.full((1, 40), 4), torch.full((1, 40), 4)
    other_BS[0, 30] = 5
    for cross_attention, expected in (("all", False), ("window", True)):
        model = build(attention_window=2, ctc_cross_attention=cross_attention).eval()
        first, second = (compute_frame_outputs(model, ids_BS)[0] for ids_BS in (source_BS, other_BS))
        assert torch.allclose(first[:20], second[:20], rtol=0.0, atol=1e-6) == expected
        assert not torch.allclose(first[60], second[60], atol=1e-4)
    # A window over everything is the attention to all, although each vector occurs once for each of its positions.
    wide, full = (build(attention_window=100, ctc_cross_attention=value).eval() for value in ("window", "all"))
    torch.testing.assert_close(compute_frame_outputs(wide, other_BS), compute_frame_outputs(full, other_BS))


def test_rotary_positions_turn_the_decoder() -> None:
    """The order of the other vectors changes the first output, which it does not without positions."""
    model = build(position_encoding="rotary").eval()
    decoder = cast(Any, model.decoder)
    memory_BSD = torch.randn(1, 6, 16)
    first, swapped = (
        decoder.decode(x, torch.ones(1, 6, dtype=torch.bool))[0, 0] for x in (memory_BSD, memory_BSD[:, [0, 2, 1, 3, 4, 5]])
    )
    assert not torch.allclose(first, swapped, atol=1e-4)


@torch.no_grad()
def test_predictions_leave_out_suppressed_tokens() -> None:
    model = build().eval()
    source_BS = torch.tensor([[4, 5, END]])
    logits_FV = model.compute_logits(compute_frame_outputs(model, source_BS))[0]
    suppressed = [token for token in range(VOCAB_SIZE) if token != 5]
    (prediction,) = predict_frames(model, source_BS.numpy(), suppressed, 1)
    assert prediction.tokens == [[5]] * 6
    np.testing.assert_allclose(prediction.log_probs, logits_FV.log_softmax(-1)[:, 5:6], rtol=1e-5)


def merge(tokens: list[int], *, max_length: int = 99, window: int = 0) -> Any:
    log_probs = [-float(2**index) for index in range(len(tokens))]
    settings = SearchSettings(start_id=BEGIN, end_id=END, decoding_constraints=DecodingConstraints(repetition_window=window))
    options: dict[str, Any] = {"blank_id": PAD, "max_length": max_length, "allow_repetition": False, "settings": settings}
    return merge_path(tokens, log_probs, **options)


def test_path_merges_repeats_and_drops_blanks() -> None:
    hypothesis = merge([0, 5, 5, 0, 5, 6])
    assert hypothesis.tokens == (5, 5, 6)
    assert hypothesis.token_log_probs == (-6.0, -16.0, -32.0, -9.0)  # the last one is that of the blanks
    assert hypothesis.score == -63.0  # the whole path
    assert hypothesis.finished
    assert merge([0, 0]).tokens == ()


def test_path_is_cut_at_the_longest_length() -> None:
    assert merge([4, 5, 6], max_length=4).finished
    hypothesis = merge([4, 5, 6], max_length=2)
    assert (hypothesis.tokens, hypothesis.token_log_probs, hypothesis.finished) == ((4, 5), (-1.0, -2.0), False)


def test_path_with_a_degenerate_repetition_is_marked() -> None:
    assert merge([4, 5] * 8, window=8).has_repetition
    assert not merge([4, 5, 6, 7], window=8).has_repetition


def test_forward_flops_count_the_positions_of_the_decoder() -> None:
    """Two sentences of 3 and 5 source tokens: 8 tokens with 34 pairs, 16 positions with 136 pairs, 68 pairs between both."""
    model = build()
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "decoder": "ctc"}
    config = ModelConfig.model_validate(sizes)
    projection, feed_forward, pair = 16 * 16, 2 * 16 * 32, 2 * 16
    source = 4 * projection + feed_forward + 2 * projection + 2 * projection  # encoder, keys and values, upsampling
    position = 4 * projection + feed_forward + 2 * projection + 16 * VOCAB_SIZE
    macs = 8 * source + 16 * position + pair * (34 + 136 + 68)
    lengths, other = torch.tensor([3, 5]).numpy(), torch.tensor([9, 9]).numpy()
    assert count_forward_flops(config, VOCAB_SIZE, lengths, other) == 2 * macs
    windows = [
        ModelConfig.model_validate(sizes | {"attention_window": 1, "ctc_cross_attention": value}) for value in ("all", "window")
    ]
    # With one neighbor on each side, 6 and 10 positions have 3 · 16 - 4 pairs, in place of 68 with the source.
    full, local = (count_forward_flops(window, VOCAB_SIZE, lengths, other) for window in windows)
    assert full - local == 2 * pair * (68 - 44)
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2) - model.output.numel()
    assert weights == 12 * projection + 2 * feed_forward + 2 * projection  # every matrix is in the count above


@pytest.mark.parametrize("call", ["model", "start", "step"])
def test_calls_by_steps_are_refused(call: str) -> None:
    model, source_BS = build(), torch.tensor([[4, END]])
    calls: dict[str, Any] = {
        "model": lambda: model(source_BS, source_BS),
        "start": lambda: model.start(source_BS),
        "step": lambda: model.step(torch.tensor([BEGIN]), None),  # type: ignore[arg-type]
    }
    with pytest.raises(BundleError, match="predicts all tokens at once") as error:
        calls[call]()
    assert error.value.code == "not-autoregressive"
