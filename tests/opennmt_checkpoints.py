"""Small models of OpenNMT-py 2 and 3 and of Eole, written without these libraries.

Names and shapes follow their `state_dict`, and the pickled classes those of OpenNMT-py 2 with torchtext 0.5.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from reference_transformer import StackNames, make_stack, run_stack, sinusoids

D_MODEL, D_FF, NUM_HEADS, NUM_POSITIONS = 32, 48, 4, 64
LAYERS = {"encoder": 2, "decoder": 3}
SPECIAL_TOKENS = ["<unk>", "<blank>", "<s>", "</s>"]
PROJECTIONS = ("linear_query", "linear_keys", "linear_values", "final_linear")
LINEARS = ("mlp.gate_up_proj", "mlp.down_proj")
STACKS = {
    "encoder": StackNames(
        "encoder.transformer_layers.{}",
        PROJECTIONS,
        ("self_attn",),
        ("input_layernorm", "post_attention_layernorm"),
        LINEARS,
        "encoder.layer_norm",
    ),
    "decoder": StackNames(
        "decoder.transformer_layers.{}",
        PROJECTIONS,
        ("self_attn", "context_attn"),
        ("input_layernorm", "precontext_layernorm", "post_attention_layernorm"),
        LINEARS,
        "decoder.layer_norm",
    ),
}
OLD_PARTS = {
    "encoder": {"input_layernorm": "layer_norm"},
    "decoder": {"input_layernorm": "layer_norm_1", "precontext_layernorm": "layer_norm_2"},
}
OLD_FEED_FORWARD = {
    "post_attention_layernorm": "feed_forward.layer_norm",
    "mlp.gate_up_proj": "feed_forward.w_1",
    "mlp.down_proj": "feed_forward.w_2",
}
"""Names in OpenNMT-py, whose `state_dict` has other parts of a layer."""


def make_model(**changes: Any) -> dict[str, Any]:
    """Return the traits of a model, with changes."""
    traits: dict[str, Any] = {
        "activation": "relu", "attention_bias": True, "ffn_bias": True, "output_bias": True, "final_bias": True,
        "layout": "SinusoidalInterleaved", "share_embeddings": False, "share_decoder_embeddings": True, "norm_eps": 1e-6,
    }  # fmt: skip
    return traits | changes


def make_state(model: Mapping[str, Any], source_size: int, target_size: int) -> dict[str, Tensor]:
    """Return random tensors under the names of Eole."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    def has_bias(name: str) -> bool:
        if name in LINEARS:
            return bool(model["ffn_bias"])
        return bool(model["attention_bias"] and (model["final_bias"] or not name.endswith("final_linear")))

    state: dict[str, Tensor] = {}
    for (stack, names), side, size in zip(STACKS.items(), ("src", "tgt"), (source_size, target_size), strict=True):
        state[f"{side}_emb.embeddings.weight"] = noise(size, D_MODEL)
        if model["layout"] == "Learned":
            state[f"{side}_emb.pe.weight"] = noise(NUM_POSITIONS, D_MODEL)
        else:
            is_interleaved = model["layout"] == "SinusoidalInterleaved"
            state[f"{side}_emb.pe.pe"] = sinusoids(NUM_POSITIONS, D_MODEL, is_interleaved=is_interleaved)[:, None]
        state |= make_stack(names, noise, num_layers=LAYERS[stack], d_model=D_MODEL, d_ff=D_FF, has_bias=has_bias)
    if model["share_embeddings"]:
        state["tgt_emb.embeddings.weight"] = state["src_emb.embeddings.weight"]
    state["generator.weight"] = noise(target_size, D_MODEL)
    if model["output_bias"]:
        state["generator.bias"] = noise(target_size)
    if model["share_decoder_embeddings"]:
        state["generator.weight"] = state["tgt_emb.embeddings.weight"]
    return state


def compute_logits(state: Mapping[str, Tensor], model: Mapping[str, Any], source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
    """Return the logits from nn.functional alone. The source has no padding. → (B, T, V)"""
    memory = None
    for (stack, names), side, ids in zip(STACKS.items(), ("src", "tgt"), (source_BS, inputs_BT), strict=True):
        x = F.embedding(ids, state[f"{side}_emb.embeddings.weight"])
        if model["layout"] == "Learned":
            x = x + state[f"{side}_emb.pe.weight"][: ids.shape[1]]
        else:
            x = x * math.sqrt(D_MODEL) + state[f"{side}_emb.pe.pe"][: ids.shape[1], 0]
        memory = run_stack(
            state,
            names,
            x,
            memory,
            num_layers=LAYERS[stack],
            num_heads=NUM_HEADS,
            is_pre_norm=True,
            activation=model["activation"],
            epsilon=model["norm_eps"],
        )
    assert memory is not None
    return F.linear(memory, state["generator.weight"], state.get("generator.bias"))


# OpenNMT-py


def make_opt(model: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the options of a training, as `opt` stores them."""
    opt: dict[str, Any] = {
        "model_type": "text", "model_task": "seq2seq", "encoder_type": "transformer", "decoder_type": "transformer",
        "enc_layers": LAYERS["encoder"], "dec_layers": LAYERS["decoder"], "heads": NUM_HEADS, "transformer_ff": D_FF,
        "self_attn_type": "scaled-dot", "copy_attn": False, "max_relative_positions": 0, "position_encoding": True,
        "position_encoding_type": model["layout"], "pos_ffn_activation_fn": model["activation"], "dropout": [0.1],
        "attention_dropout": [0.1], "share_vocab": False, "share_embeddings": model["share_embeddings"],
        "share_decoder_embeddings": model["share_decoder_embeddings"], "generator_function": "softmax",
        "transforms": ["filtertoolong"], "_all_transform": {"filtertoolong"}, "norm_eps": model["norm_eps"],
        "lora_layers": [], "quant_layers": [], "num_kv": 0, "src_subword_model": None, "tgt_subword_model": None,
    }  # fmt: skip
    return opt | changes


def rename_to_old(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of OpenNMT-py, without those of the generator."""
    renamed = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] in ("src_emb", "tgt_emb"):
            stack = "encoder" if parts[0] == "src_emb" else "decoder"
            part = "emb_luts.0" if parts[1] == "embeddings" else "pe"
            renamed[f"{stack}.embeddings.make_embedding.{part}.{parts[2]}"] = tensor
        elif parts[1] == "transformer_layers":
            part = ".".join(parts[3:-1])
            part = OLD_FEED_FORWARD.get(part, OLD_PARTS[parts[0]].get(part, part))
            layers = "transformer" if parts[0] == "encoder" else "transformer_layers"
            renamed[f"{parts[0]}.{layers}.{parts[2]}.{part}.{parts[-1]}"] = tensor
        elif parts[0] != "generator":
            renamed[name] = tensor
    return renamed


@contextmanager
def torchtext_classes() -> Iterator[dict[str, Any]]:
    """Define the classes of torchtext and OpenNMT-py 2 that a checkpoint names, so that pickle can write them."""
    names = ["torchtext", "torchtext.vocab", "torchtext.data", "torchtext.data.field"]
    names += ["onmt", "onmt.inputters", "onmt.inputters.text_dataset"]
    modules = {name: ModuleType(name) for name in names}
    classes: dict[str, Any] = {}
    for path in ("torchtext.vocab.Vocab", "torchtext.data.field.Field", "onmt.inputters.text_dataset.TextMultiField"):
        module, _, name = path.rpartition(".")
        classes[name] = type(name, (), {"__module__": module})
        setattr(modules[module], name, classes[name])

    def _feature_tokenize(string: str) -> list[str]:
        return string.split()

    _feature_tokenize.__module__, _feature_tokenize.__qualname__ = "onmt.inputters.text_dataset", "_feature_tokenize"
    modules["onmt.inputters.text_dataset"].__dict__["_feature_tokenize"] = _feature_tokenize
    classes["_feature_tokenize"] = _feature_tokenize
    with mock.patch.dict(sys.modules, modules):
        yield classes


def make_field(classes: Mapping[str, Any], name: str, tokens: Sequence[str]) -> Any:
    """Return a field of text of OpenNMT-py 2 with its vocabulary."""
    vocabulary = classes["Vocab"]()
    vocabulary.freqs, vocabulary.itos, vocabulary.vectors = Counter(tokens), list(tokens), None
    vocabulary.stoi = {token: index for index, token in enumerate(tokens)}
    field = classes["Field"]()
    field.dtype, field.vocab, field.pad_token = torch.int64, vocabulary, "<blank>"
    field.tokenize = functools.partial(classes["_feature_tokenize"], layer=0, truncate=None)
    multi_field = classes["TextMultiField"]()
    multi_field.fields = [(name, field)]
    return multi_field


def write_checkpoint(
    folder: Path,
    *,
    version: int,
    opt: Mapping[str, Any],
    state: Mapping[str, Tensor],
    tokens: tuple[Sequence[str], Sequence[str]],
    has_safetensors: bool = False,
) -> Path:
    """Write a folder with a checkpoint of OpenNMT-py 2 or 3, and return the folder.

    has_safetensors: store the tensors in a file of their own, as version 3 does with `save_format: safetensors`
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "0." if version == 2 else ""
    generator = {f"{prefix}{name.removeprefix('generator.')}": x for name, x in state.items() if name.startswith("generator.")}
    checkpoint: dict[str, Any] = {"opt": Namespace(**opt), "optim": {"training_step": 10, "optimizer": {"state": {}}}}
    if has_safetensors:
        tensors = rename_to_old(state) | {f"generator.{name}": tensor for name, tensor in generator.items()}
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model_step_10.safetensors")
    else:
        checkpoint |= {"model": rename_to_old(state), "generator": generator}
    with torchtext_classes() as classes:
        if version == 2:
            checkpoint["vocab"] = {
                name: make_field(classes, name, side) for name, side in zip(("src", "tgt"), tokens, strict=True)
            }
        else:
            checkpoint["vocab"] = {"src": list(tokens[0]), "tgt": list(tokens[1]), "data_task": "seq2seq"}
            checkpoint["vocab"]["decoder_start_token"] = "<s>"
        torch.save(checkpoint, folder / "model_step_10.pt")
    return folder


# Eole


def make_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `config.json`, in which defaults are missing."""
    stack = {"hidden_size": D_MODEL, "heads": NUM_HEADS, "transformer_ff": D_FF, "norm_eps": model["norm_eps"]}
    activation = {} if model["activation"] == "relu" else {"mlp_activation_fn": model["activation"]}
    positions = {"n_positions": NUM_POSITIONS} if model["layout"] == "Learned" else {}
    return {
        "share_vocab": False,
        "transforms": ["filtertoolong"],
        "training": {"dropout": [0.1], "attention_dropout": [0.1], "compute_dtype": "torch.float32"},
        "model": {
            "architecture": "transformer",
            "share_embeddings": model["share_embeddings"],
            "share_decoder_embeddings": model["share_decoder_embeddings"],
            **activation,
            "embeddings": {"word_vec_size": D_MODEL, "position_encoding_type": model["layout"], **positions},
            "encoder": {"encoder_type": "transformer", "layers": LAYERS["encoder"], **stack},
            "decoder": {"decoder_type": "transformer", "layers": LAYERS["decoder"], "with_cross_attn": True, **stack},
        },
    }


def write_eole_folder(
    folder: Path, *, config: Mapping[str, Any], state: Mapping[str, Tensor], tokens: tuple[Sequence[str], Sequence[str]]
) -> Path:
    """Write a model folder of Eole in two parts, and return the folder. Shared matrices are stored once."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = dict(state)
    if config["model"]["share_embeddings"]:
        del stored["tgt_emb.embeddings.weight"]
    if config["model"]["share_decoder_embeddings"]:
        del stored["generator.weight"]
    for number in range(LAYERS["decoder"]):
        stored[f"decoder.transformer_layers.{number}.layer_scalar"] = torch.ones(1)
    names = sorted(stored)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: stored[name].clone() for name in part}, folder / f"model.{number:02}.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    special = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    vocabulary = {"src": list(tokens[0]), "tgt": list(tokens[1]), "decoder_start_token": "<s>", "specials": special}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    return folder
