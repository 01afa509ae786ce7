"""Switches of the models of other toolkits: activation, output bias, position offset, and a decoder prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.config.section_validation import FieldError
from dragoman.data.collate import collate
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.forced_decoding import compute_cross_attentions
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.losses.label_smoothing import batch_loss

VOCABULARY, START, END = 23, 2, 3
SOURCES = [[7, 8, 9, 4, 5, 6, 11, 3], [5, 3], [11, 6, 4, 10, 3]]
PROMPT = (15, 9)


def make_model(**keys: Any) -> Transformer:
    """Return a small random model with large weights, so that its predictions differ clearly."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "tie_embeddings": "none"}
    torch.manual_seed(1)
    config = ModelConfig.model_validate({**sizes, **keys})
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        model.output.mul_(4.0)
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(3.0)
        if model.output_bias is not None:
            model.output_bias.normal_()
    return model


def test_position_offset_of_learned_positions_is_refused() -> None:
    with pytest.raises(FieldError, match="position_offset"):
        ModelConfig(position_encoding="learned", position_offset=2)


# Training


def test_output_bias_has_the_gradient_of_autograd() -> None:
    """Compare with PyTorch's own label smoothing, which spreads ε over all classes."""
    model, epsilon = make_model(output_bias=True), 0.1
    batch = collate([[5, 6, END], [7, END]], [[8, 9], [10]], start_id=START)
    loss, nll = batch_loss(model, batch, epsilon=epsilon, smoothing_mode="uniform")
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(batch.source_BS, batch.inputs_BT).flatten(0, 1)
    options: dict[str, Any] = {"ignore_index": 0, "reduction": "sum"}
    expected = torch.nn.functional.cross_entropy(logits, batch.targets_BT.flatten(), label_smoothing=epsilon, **options)
    expected.backward()  # type: ignore[no-untyped-call]
    exact_nll = torch.nn.functional.cross_entropy(logits, batch.targets_BT.flatten(), **options)
    torch.testing.assert_close(nll, exact_nll.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4)
    assert model.output_bias is not None
    assert float(gradients["output_bias"].abs().max()) > 0.1  # type: ignore[union-attr]


# Decoder prompt


@torch.no_grad()
def greedy_after_prompt(model: Transformer, source: list[int], max_length: int) -> tuple[list[int], float]:
    """Return the greedy output after the prompt and the sum of its log-probabilities, from whole forward passes."""
    inputs, total = [START, *PROMPT], 0.0
    for _ in range(max_length):
        log_probs = model(torch.tensor([source]), torch.tensor([inputs]))[0, -1].log_softmax(-1)
        allowed: Tensor = log_probs.clone()
        allowed[[0, START]] = float("-inf")
        token = int(allowed.argmax())
        total += float(log_probs[token])
        inputs.append(token)
        if token == END:
            break
    return inputs[1 + len(PROMPT) :], total


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_decoder_reads_the_prompt_before_the_output(method: str) -> None:
    model = make_model()
    config = DecodingConfig.model_validate(
        {"method": method, "beam_size": 1, "max_extra_tokens": 6, "length_penalty": "power", "alpha": 1.0}
    )
    results = generate(BatchSearch(as_inference_model([model]), config, start_id=START, prompt=PROMPT), SOURCES)
    without = generate(BatchSearch(as_inference_model([model]), config, start_id=START), SOURCES)
    assert [result[0].tokens for result in results] != [result[0].tokens for result in without]
    for source, (hypothesis, *_) in zip(SOURCES, results, strict=True):
        expected, total = greedy_after_prompt(model, source, len(source) + 6)
        assert [*hypothesis.tokens, *([END] if hypothesis.finished else [])] == expected
        # |Y| counts the prompt, as it does in fairseq and in Hugging Face.
        assert hypothesis.score == pytest.approx(total / (len(expected) + len(PROMPT)), abs=1e-4)


def test_prompt_has_no_rows_of_attention() -> None:
    decoder, target = TorchForcedDecoder(make_model()), [8, 9, 10]
    (weights,) = compute_cross_attentions(decoder, [SOURCES[0]], [target], start_id=START, prompt=PROMPT, finished=[True])
    (whole,) = compute_cross_attentions(decoder, [SOURCES[0]], [[*PROMPT, *target]], start_id=START, finished=[True])
    np.testing.assert_allclose(weights, whole[:, :, len(PROMPT) :], rtol=1e-5, atol=1e-6)
