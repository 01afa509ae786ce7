"""Draft decoder: the inner units that its feed-forward network keeps of the model's last layer."""

from __future__ import annotations

import torch

from dragoman.config import ModelConfig
from dragoman.model.draft_decoder import DraftDecoder, keep_largest_units
from dragoman.model.factory import build_model
from dragoman.model.layers import FeedForward


def test_network_without_its_smallest_units_computes_the_same_if_those_do_nothing() -> None:
    torch.manual_seed(1)
    feed_forward = FeedForward(d_model=4, d_ff=10, dropout=0.0).eval()
    with torch.no_grad():
        feed_forward.outer.weight[:, [0, 3, 8]] = 0.0
    x_BTD = torch.randn(2, 3, 4)
    expected = feed_forward(x_BTD)
    keep_largest_units(feed_forward, 7)
    assert (feed_forward.inner.weight.shape, feed_forward.outer.weight.shape) == ((7, 4), (4, 7))
    torch.testing.assert_close(feed_forward(x_BTD), expected)
    keep_largest_units(feed_forward, 8)
    assert feed_forward.inner.out_features == 7


def test_draft_has_as_many_inner_units_as_features_and_leaves_the_model_as_it_is() -> None:
    config = ModelConfig(encoder_layers=1, decoder_layers=2, d_model=8, d_ff=32, num_heads=2)
    model = build_model(config, source_vocab_size=20, target_vocab_size=20, padding_id=0)
    weight = model.get_parameter("decoder.layers.1.feed_forward.inner.weight")
    draft = DraftDecoder.from_model(model, token_ids_W=torch.arange(4, 9), num_proposals=2)
    kept = draft.layer.feed_forward.inner.weight
    assert kept.shape == (8, 8)
    assert all(any(torch.equal(row, original) for original in weight) for row in kept)
    assert weight.shape == (32, 8)
