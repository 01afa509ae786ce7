"""Scores and attention of given targets: closed forms, batches, and the same results from NumPy and PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights, to_arrays
from dragoman.model_forward import NumpyTransformer
from dragoman.model_weights import ModelWeights
from dragoman.tasks.forced_decoding import ForcedDecoder, compute_cross_attentions, score_pairs
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder

START = 2
SOURCES = [[7, 8, 9, 4, 3], [5, 3], [11, 6, 4, 10, 8, 9, 3], [4, 3]]
TARGETS = [[8, 9], [], [5, 6, 7, 8, 9, 10], [4, 4, 4]]


@dataclass(frozen=True)
class ConstantDecoder:
    """Model with the same probabilities at each position."""

    is_autoregressive = True

    def compute_log_probs(
        self, source_BS: NDArray[np.int64], inputs_BT: NDArray[np.int64], targets_BT: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        probs_V = np.array([1.0, 0.2, 0.3, 0.4, 0.1])
        result: NDArray[np.float32] = np.log(probs_V[targets_BT]).astype(np.float32)
        return result

    def compute_cross_attentions(self, source_BS: NDArray[np.int64], inputs_BT: NDArray[np.int64]) -> NDArray[np.float32]:
        raise NotImplementedError


def make_decoders() -> dict[str, ForcedDecoder]:
    """Return one random model in NumPy and in PyTorch."""
    torch.manual_seed(3)
    config = ModelConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=2)
    model = build_model(config, source_vocab_size=13, target_vocab_size=13).eval()
    weights = ModelWeights(config, to_arrays(collect_weights(model)))
    return {"numpy": NumpyTransformer(weights), "torch": TorchForcedDecoder(model)}


def test_scores_match_closed_form() -> None:
    config = DecodingConfig(length_penalty="power", alpha=1.0)
    long, empty = score_pairs(ConstantDecoder(), [[4, 3], [4, 3]], [[2, 4], []], config, start_id=START)
    assert long.tokens == (2, 4)
    assert long.token_log_probs == pytest.approx([math.log(0.3), math.log(0.1), math.log(0.4)], abs=1e-6)
    assert long.score == pytest.approx(math.log(0.3 * 0.1 * 0.4) / 3, abs=1e-6)
    assert empty.tokens == ()
    assert empty.score == pytest.approx(math.log(0.4), abs=1e-6)
    assert long.finished
    assert empty.finished


def test_prompt_has_no_score_but_counts_as_length() -> None:
    config = DecodingConfig(length_penalty="power", alpha=1.0)
    [scored] = score_pairs(ConstantDecoder(), [[4, 3]], [[2]], config, start_id=START, prompt=[1, 1])
    assert scored.token_log_probs == pytest.approx([math.log(0.3), math.log(0.4)], abs=1e-6)
    assert scored.score == pytest.approx(math.log(0.3 * 0.4) / 4, abs=1e-6)


def test_numpy_and_pytorch_agree_in_any_batch(subtests: pytest.Subtests) -> None:
    for prompt in [(), (6, 5)]:
        for batch_tokens in [1, 14, 4096]:
            with subtests.test(prompt=prompt, batch_tokens=batch_tokens):
                decoders, finished = make_decoders(), [True, True, False, False]
                config, keys = DecodingConfig(batch_tokens=batch_tokens), {"start_id": START, "prompt": prompt}
                expected = score_pairs(decoders["torch"], SOURCES, TARGETS, DecodingConfig(), start_id=START, prompt=prompt)
                scored = score_pairs(decoders["numpy"], SOURCES, TARGETS, config, start_id=START, prompt=prompt)
                assert [hypothesis.tokens for hypothesis in scored] == [tuple(target) for target in TARGETS]
                for ours, theirs in zip(scored, expected, strict=True):
                    assert ours.score == pytest.approx(theirs.score, abs=1e-5)
                    assert ours.token_log_probs == pytest.approx(theirs.token_log_probs, abs=1e-5)
                options: dict[str, Any] = {**keys, "finished": finished, "batch_tokens": batch_tokens}
                weights = compute_cross_attentions(decoders["numpy"], SOURCES, TARGETS, **options)
                assert [array.shape for array in weights] == [
                    (2, 2, rows, len(source)) for rows, source in zip([3, 1, 6, 3], SOURCES, strict=True)
                ]
                for ours_LHTS, theirs_LHTS in zip(
                    weights, compute_cross_attentions(decoders["torch"], SOURCES, TARGETS, **options), strict=True
                ):
                    np.testing.assert_allclose(ours_LHTS, theirs_LHTS, rtol=1e-5, atol=1e-6)
