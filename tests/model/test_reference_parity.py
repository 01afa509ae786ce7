"""Parity with `torch.nn.Transformer` with the same weights."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.attention import Attention
from dragoman.model.factory import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.transformer import Transformer
from random_tensors import sentences

PAD = 0
pytestmark = pytest.mark.usefixtures("one_core")

NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0}


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def copy_weights(ours: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copy weights into a linear layer or a layer normalization."""
    assert isinstance(ours, nn.Linear | nn.LayerNorm)
    ours.weight.data.copy_(weight)
    ours.bias.data.copy_(bias)


def copy_layer(ours: nn.Module, theirs: Any) -> None:
    copy_weights(ours, theirs.weight, theirs.bias)


# torch.nn.Transformer


def copy_torch_attention(ours: Attention, theirs: Any) -> None:
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for part, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        copy_weights(part, weight, bias)
    copy_layer(ours.output, theirs.out_proj)


def copy_torch_layer(ours: nn.Module, theirs: Any) -> None:
    assert isinstance(ours, EncoderLayer | DecoderLayer)
    copy_torch_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_residual.norm, ours.feed_forward_residual.norm]
    if isinstance(ours, DecoderLayer):
        copy_torch_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_attention_residual.norm)
    for index, norm in enumerate(norms, start=1):
        copy_layer(norm, getattr(theirs, f"norm{index}"))
    copy_layer(ours.feed_forward.inner, theirs.linear1)
    copy_layer(ours.feed_forward.outer, theirs.linear2)


def torch_pair(norm: str) -> tuple[Transformer, nn.Transformer]:
    """Return our model and PyTorch's with the same random weights. PyTorch has a final norm in both variants."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "nhead": 4, "dim_feedforward": 48, "dropout": 0.0, "batch_first": True}
    sizes["norm_first"] = norm == "pre"
    # The default encoder would warn that its fast path is unavailable.
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**sizes), num_layers=3, norm=nn.LayerNorm(32), enable_nested_tensor=False
    )
    theirs = nn.Transformer(**sizes, num_decoder_layers=2, custom_encoder=encoder)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():  # no bias or norm may be left at 0 or 1
            nn.init.normal_(parameter, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.2)
    config = ModelConfig.model_validate(
        {
            **NO_DROPOUT,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "d_model": 32,
            "d_ff": 48,
            "num_heads": 4,
            "norm": norm,
            "final_norm": True,
            "norm_epsilon": 1e-5,
            "attention_bias": True,
        }
    )
    ours = build_model(config, source_vocab_size=20, target_vocab_size=20, padding_id=PAD)
    for stack, their_stack in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layer, their_layer in zip(stack.layers, their_stack.layers, strict=True):
            copy_torch_layer(layer, their_layer)
        copy_layer(stack.norm, their_stack.norm)
    return ours, theirs


def embed(table_VD: Tensor, ids_BT: Tensor) -> Tensor:
    """Return embeddings plus sinusoids (sections 3.4 and 3.5), one number at a time."""
    width = table_VD.shape[1]
    angles = [[t / 10000 ** (2 * (i // 2) / width) for i in range(width)] for t in range(ids_BT.shape[1])]
    waves = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles]
    return table_VD[ids_BT] * math.sqrt(width) + torch.tensor(waves)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_gradients_equal_torch_transformer(norm: str) -> None:
    ours, theirs = torch_pair(norm)
    source = sentences(7, 4, 1, high=20, seed=2)
    inputs = sentences(5, 3, 2, high=20, seed=3)
    real = inputs != PAD
    logits = ours(source, inputs)
    outputs = theirs(
        embed(ours.output, source),
        embed(ours.output, inputs),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(diagonal=1),
        src_key_padding_mask=source == PAD,
        memory_key_padding_mask=source == PAD,
    )
    their_logits = outputs @ ours.output.T
    assert_equal(logits[real], their_logits[real])

    layer, their_layer = cast(EncoderLayer, ours.encoder.layers[0]), cast(Any, theirs.encoder.layers[0])
    our_weights = [layer.attention.query.weight, layer.feed_forward.outer.bias, ours.output]
    their_weights = [their_layer.self_attn.in_proj_weight, their_layer.linear2.bias, ours.output]
    ours_grads = torch.autograd.grad(logits[real].log_softmax(-1)[:, 1].mean(), our_weights)
    their_grads = torch.autograd.grad(their_logits[real].log_softmax(-1)[:, 1].mean(), their_weights)
    assert_equal(ours_grads[0], their_grads[0][:32])
    assert_equal(ours_grads[1], their_grads[1])
    assert_equal(ours_grads[2], their_grads[2])
    assert all(gradient.abs().max().item() > 1e-3 for gradient in ours_grads)
