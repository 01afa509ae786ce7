"""Names and shapes of weights against those of the trained model, and positions against its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import ModelConfig
from dragoman.model.factory import assemble_model, build_model
from dragoman.model.weights import collect_weights
from dragoman.model_weights import ModelWeights, list_shapes

SIZES: Any = {"source_vocab_size": 11, "target_vocab_size": 11}
SMALL: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_ff": 12, "encoder_layers": 2, "decoder_layers": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "all switches": {
        "norm": "pre",
        "attention_bias": True,
        "output_bias": True,
        "target_space_embedding": True,
        "position_encoding": "learned",
        "max_positions": 9,
        "d_k": 3,
        "d_v": 5,
    },
    "final norm of its own": {"norm": "pre", "final_norm": False},
    "grouped heads": {"num_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "d_k": 3, "d_v": 5},
    "decoder tied": {"tie_embeddings": "decoder"},
    "not tied": {"tie_embeddings": "none", "final_norm": True},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_shapes_are_those_of_the_model(changes: dict[str, Any]) -> None:
    config = ModelConfig(**SMALL | changes)
    with torch.device("meta"):
        weights = collect_weights(assemble_model(config, **SIZES))
    assert list_shapes(config, **SIZES) == {name: tuple(weight.shape) for name, weight in weights.items()}


@pytest.mark.parametrize("pointer", [True, False])
@pytest.mark.parametrize("tagging", [True, False])
def test_shapes_of_a_parser(pointer: bool, tagging: bool) -> None:
    config = ModelConfig(**SMALL, pointer=pointer)
    with torch.device("meta"):
        weights = collect_weights(assemble_model(config, **SIZES, word_id=5, tagging=tagging))
    shapes = list_shapes(config, **SIZES, has_words=True, tagging=tagging)
    assert shapes == {name: tuple(weight.shape) for name, weight in weights.items()}


@pytest.mark.parametrize(
    "changes", [{}, {"position_encoding": "halves", "position_offset": 2}, {"position_encoding": "learned", "max_positions": 9}]
)
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_embeddings_and_positions_are_those_of_the_model(changes: dict[str, Any], tie: Any) -> None:
    config = ModelConfig(**SMALL | changes, tie_embeddings=tie)
    model = build_model(config, **SIZES)
    weights = ModelWeights(config, {name: weight.numpy() for name, weight in collect_weights(model).items()})
    ids = torch.tensor([[3, 7, 1]])
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        assert np.shares_memory(weights.get_embedding(name), stack.embedding.weight.detach().numpy())  # type: ignore[arg-type]
        vectors_TD = weights.get_embedding(name)[[3, 7, 1]] * np.float32(weights.embedding_scale)  # type: ignore[arg-type]
        expected_TD = stack.embedding.eval()(ids, start=4)[0].detach().numpy()
        np.testing.assert_allclose(vectors_TD + weights.compute_positions(name, 4, 3), expected_TD, atol=1e-6)  # type: ignore[arg-type]


def test_positions_beyond_the_learned_ones_are_refused() -> None:
    config = ModelConfig(**SMALL, position_encoding="learned", max_positions=9)
    weights = ModelWeights(config, {"encoder.embedding.positions.weight": np.zeros((9, 8), np.float32)})
    assert weights.max_positions == 9
    with pytest.raises(IndexError, match="position 10: the model has 9 learned positions; shorten the sentence"):
        weights.compute_positions("encoder", 8, 2)
