"""Operations of other layers: a token multiplies each weight of its layer once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.config import ModelConfig
from dragoman.model.factory import build_model
from dragoman.training.monitoring.flops import Size, count_forward_macs

SYSTEMS: dict[str, dict[str, Any]] = {
    "self-attention": {"d_k": 6, "d_v": 4},
    "grouped heads": {"d_k": 6, "d_v": 4, "num_key_value_heads": 1},
    "gnmt": {"encoder_mixer": "recurrent", "decoder_mixer": "recurrent", "cross_attention": "first", "feed_forward": "none"},
    "interleaved": {"encoder_mixer": "recurrent", "recurrent_directions": "interleaved", "decoder_mixer": "convolution"},
    "convs2s": {"encoder_mixer": "convolution", "decoder_mixer": "convolution", "cross_attention": "multi_step"},
    "bytenet": {"encoder_mixer": "dilated", "decoder_mixer": "dilated", "cross_attention": "unfold"},
    "multiplicative": {"attention_score": "multiplicative", "encoder_mixer": "dilated"},
}


def make_config(**changes: Any) -> ModelConfig:
    return ModelConfig(encoder_layers=3, decoder_layers=2, d_model=16, d_ff=20, num_heads=2, **changes)


def count_weights(config: ModelConfig) -> tuple[int, int]:
    """Return the weights that a source token and a target token multiply, without the matrix before the softmax."""
    model = build_model(config, source_vocab_size=10, target_vocab_size=10)
    counts = [0, 0]
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embedding" not in name and name != "output":
            reads_source = name.startswith("encoder") or "cross_attention.key" in name or "cross_attention.value" in name
            counts[0 if reads_source else 1] += parameter.numel()
    return counts[0], counts[1]


def test_each_weight_counts_once_for_a_token(subtests: pytest.Subtests) -> None:
    for system in SYSTEMS:
        with subtests.test(system=system):
            config = make_config(**SYSTEMS[system])
            macs = count_forward_macs(config, target_vocab_size=10)
            assert (macs[Size.SOURCE_TOKENS], macs[Size.TARGET_TOKENS] - 16 * 10) == count_weights(config)


def test_experts_count_for_their_tokens_only() -> None:
    dense, moe = make_config(), make_config(feed_forward="moe", num_experts=8, experts_per_token=2)
    difference = count_forward_macs(moe, 10) - count_forward_macs(dense, 10)
    per_layer = 2 * 16 * 20 + 2 * 16 * 8  # one more network, and both gates
    np.testing.assert_array_equal(difference[[Size.SOURCE_TOKENS, Size.TARGET_TOKENS]], [3 * per_layer, 2 * per_layer])


def test_fast_forward_connection_computes_half_of_the_gates_twice() -> None:
    keys = {"encoder_mixer": "recurrent", "recurrent_directions": "forward"}
    config = make_config(**keys, fast_forward=True)
    weights = count_weights(config)[0]
    half_gates = 2 * 16 * 16 + 2 * (2 * 16 * 48)  # one layer reads x, and two read the connection below as well
    assert count_forward_macs(config, 10)[Size.SOURCE_TOKENS] == weights + half_gates
