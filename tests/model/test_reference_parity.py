"""Parity with other implementations with the same weights: `torch.nn.Transformer` and Hugging Face's Marian."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.interface import SearchSettings, SearchState
from dragoman.model.attention import Attention, AttentionImpl, explicit_attention, fused_attention, set_attention_impl
from dragoman.model.factory import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.masks import causal_mask, padding_mask
from dragoman.model.positional_encoding import SinusoidalPositionalEmbedding
from dragoman.model.transformer import DecoderState, Transformer
from dragoman.torch_engine.arrays import TorchArrays

PAD = 0
pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0}


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def padded(lengths: list[int], rows: int, *, padding: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.full((len(lengths), max(lengths)), padding)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = torch.randint(1, rows, (length,), generator=generator)
    return ids_BT


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


@pytest.mark.parametrize("attend", [explicit_attention, fused_attention])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_stacks_equal_torch_transformer(norm: str, attend: AttentionImpl) -> None:
    ours, theirs = torch_pair(norm)
    set_attention_impl(ours, attend)
    generator = torch.Generator().manual_seed(1)
    source_BSD = torch.randn(3, 7, 32, generator=generator)
    target_BTD = torch.randn(3, 5, 32, generator=generator)
    keep_BS = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    keep_BT = torch.arange(5) < torch.tensor([5, 3, 2])[:, None]
    forbidden_TT = torch.ones(5, 5, dtype=torch.bool).triu(diagonal=1)

    memory_BSD = source_BSD
    for layer in ours.encoder.layers:
        memory_BSD = layer(memory_BSD, padding_mask(keep_BS))
    memory_BSD = ours.encoder.norm(memory_BSD)
    their_memory = theirs.encoder(source_BSD, src_key_padding_mask=~keep_BS)
    assert_equal(memory_BSD[keep_BS], their_memory[keep_BS])

    x_BTD = target_BTD
    for layer in ours.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        memory = layer.cross_attention.project_kv(memory_BSD)
        x_BTD, _ = layer(x_BTD, None, memory, causal_mask(5, 5, device=CPU), padding_mask(keep_BS))
    x_BTD = ours.decoder.norm(x_BTD)
    their_x = theirs(
        source_BSD,
        target_BTD,
        tgt_mask=forbidden_TT,
        src_key_padding_mask=~keep_BS,
        tgt_key_padding_mask=~keep_BT,
        memory_key_padding_mask=~keep_BS,
    )
    assert_equal(x_BTD[keep_BT], their_x[keep_BT])


def embed(table_VD: Tensor, ids_BT: Tensor) -> Tensor:
    """Return embeddings plus sinusoids (sections 3.4 and 3.5), one number at a time."""
    width = table_VD.shape[1]
    angles = [[t / 10000 ** (2 * (i // 2) / width) for i in range(width)] for t in range(ids_BT.shape[1])]
    waves = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles]
    return table_VD[ids_BT] * math.sqrt(width) + torch.tensor(waves)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_gradients_equal_torch_transformer(norm: str) -> None:
    ours, theirs = torch_pair(norm)
    source = padded([7, 4, 1], 20, padding=PAD, seed=2)
    inputs = padded([5, 3, 2], 20, padding=PAD, seed=3)
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


# Hugging Face's Marian

MARIAN_PAD, MARIAN_EOS, MARIAN_ROWS = 23, 22, 24
DIVERSE_STDS = {"shared": 0.3, "q_proj": 2.0, "k_proj": 2.0, "v_proj": 0.1, "out_proj": 0.1, "fc1": 1.0, "fc2": 1.0}
"""Standard deviations of random weights with which a model predicts more than one token repeatedly."""


def copy_marian_layer(ours: nn.Module, theirs: Any) -> None:
    assert isinstance(ours, EncoderLayer | DecoderLayer)
    pairs = [(ours.attention, theirs.self_attn)]
    copy_layer(ours.attention_residual.norm, theirs.self_attn_layer_norm)
    if isinstance(ours, DecoderLayer):
        pairs.append((ours.cross_attention, theirs.encoder_attn))
        copy_layer(ours.cross_attention_residual.norm, theirs.encoder_attn_layer_norm)
    for attention, their_attention in pairs:
        copy_layer(attention.query, their_attention.q_proj)
        copy_layer(attention.key, their_attention.k_proj)
        copy_layer(attention.value, their_attention.v_proj)
        copy_layer(attention.output, their_attention.out_proj)
    copy_layer(ours.feed_forward.inner, theirs.fc1)
    copy_layer(ours.feed_forward.outer, theirs.fc2)
    copy_layer(ours.feed_forward_residual.norm, theirs.final_layer_norm)


def marian_pair(seed: int, stds: Mapping[str, float]) -> tuple[Transformer, Any]:
    """Return our model and Marian with the same random weights. stds: standard deviations by the name of the layer"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other library warns while it loads
        transformers: Any = pytest.importorskip("transformers", reason="parity with Marian needs transformers: dragoman[test]")
    torch.manual_seed(seed)
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=MARIAN_ROWS,
            d_model=32,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            activation_function="relu",
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            max_position_embeddings=64,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            pad_token_id=MARIAN_PAD,
            eos_token_id=MARIAN_EOS,
            decoder_start_token_id=MARIAN_PAD,
            forced_eos_token_id=None,
        )
    ).eval()
    table = theirs.get_input_embeddings().weight
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            layer_name, kind = name.split(".")[-2:]
            if layer_name != "embed_positions":
                std = stds.get(layer_name, 0.2) if kind == "weight" else 0.1
                nn.init.normal_(parameter, mean=1.0 if "norm" in layer_name and kind == "weight" else 0.0, std=std)
        # The decoder starts with the padding token. Its row is zero in Marian's checkpoints and new models, and our model reads
        # a zero vector for it; with any other row the two models would differ.
        table[MARIAN_PAD] = 0.0
    assert not theirs.final_logits_bias.any()
    config = ModelConfig.model_validate(
        {
            **NO_DROPOUT,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "d_model": 32,
            "d_ff": 48,
            "num_heads": 4,
            "norm": "post",
            "norm_epsilon": 1e-5,
            "attention_bias": True,
            "position_encoding": "concatenated",
            "decoder_start_token": "zero",
        }
    )
    ours = build_model(config, source_vocab_size=MARIAN_ROWS, target_vocab_size=MARIAN_ROWS, padding_id=MARIAN_PAD).eval()
    ours.output.data.copy_(table)
    for stack, their_stack in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        for layer, their_layer in zip(stack.layers, their_stack.layers, strict=True):
            copy_marian_layer(layer, their_layer)
        # Marian has the layout [sin …, cos …] of tensor2tensor with the paper's exponent 2i/d instead of i/(d/2 − 1). Neither
        # of our two encodings equals it, so the table is copied.
        assert isinstance(stack.embedding.positions, SinusoidalPositionalEmbedding)
        assert not torch.allclose(stack.embedding.positions.table[:64], their_stack.embed_positions.weight, atol=1e-2)
        stack.embedding.positions.table = their_stack.embed_positions.weight.detach().clone()
    return ours, theirs


@pytest.mark.slow  # the import of transformers takes 15 seconds
@pytest.mark.parametrize("attend", [explicit_attention, fused_attention])
def test_logits_equal_marian(attend: AttentionImpl) -> None:
    ours, theirs = marian_pair(0, {})
    set_attention_impl(ours, attend)
    source = padded([9, 5, 1], MARIAN_PAD, padding=MARIAN_PAD, seed=4)
    start = torch.full((3, 1), MARIAN_PAD)
    inputs = torch.cat([start, padded([6, 6, 6], MARIAN_PAD, padding=MARIAN_PAD, seed=5)], dim=1)
    with torch.no_grad():
        expected = theirs(
            input_ids=source, attention_mask=(source != MARIAN_PAD).long(), decoder_input_ids=inputs, use_cache=False
        ).logits
        logits = ours(source, inputs)
    assert_equal(logits, expected)
    assert expected.std().item() > 0.5


@pytest.mark.slow
def test_greedy_output_equals_marian_generate() -> None:
    limit = 20
    ended = changes = 0
    for seed in range(6):
        ours, theirs = marian_pair(seed, DIVERSE_STDS)
        source = padded([9, 5, 1, 7, 3, 8], MARIAN_PAD, padding=MARIAN_PAD, seed=seed)
        generated = theirs.generate(
            input_ids=source,
            attention_mask=(source != MARIAN_PAD).long(),
            num_beams=1,
            do_sample=False,
            max_new_tokens=limit,
        )

        def step(tokens_N: Tensor, state: SearchState, model: Transformer = ours) -> tuple[Tensor, DecoderState]:
            assert isinstance(state, DecoderState)
            with torch.no_grad():
                return model.step(tokens_N, state)

        hypotheses = decode_tokens(
            step,
            ours.start(source),
            max_lengths=[limit] * len(source),
            settings=SearchSettings(start_id=MARIAN_PAD, end_id=MARIAN_EOS),
            arrays=TorchArrays(CPU),
        )
        for row, hypothesis in zip(generated.tolist(), hypotheses, strict=True):
            assert row[0] == MARIAN_PAD
            expected = row[1 : 1 + len(hypothesis.token_log_probs)]
            assert [*hypothesis.tokens, *([MARIAN_EOS] if hypothesis.finished else [])] == expected
            assert set(row[1 + len(expected) :]) <= {MARIAN_PAD}
            assert hypothesis.finished or len(expected) == limit
            ended += hypothesis.finished
            changes += sum(
                token != following for token, following in zip(hypothesis.tokens, hypothesis.tokens[1:], strict=False)
            )
    assert 4 <= ended <= 20, "the comparison needs both finished and unfinished outputs"
    assert changes > 100
