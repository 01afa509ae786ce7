"""Small models of Marian, written without Marian, and the equations of its Transformer.

Names and shapes follow Marian's documentation and sources: transformer.h, generic.h and node_initializers.cpp.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from torch import Tensor

from marian_folders import (
    D_FF,
    D_MODEL,
    NUM_HEADS,
    NUM_LAYERS,
    SOURCE_LETTERS,
    TARGET_LETTERS,
    list_pieces,
    make_lines,
    train_model,
)

MODEL, VOCABULARY = "opus.npz", "opus.vocab.yml"
LAYER_NAMES = {
    "self_attn.q_proj": "self_{}q", "self_attn.k_proj": "self_{}k", "self_attn.v_proj": "self_{}v",
    "self_attn.out_proj": "self_{}o", "encoder_attn.q_proj": "context_{}q", "encoder_attn.k_proj": "context_{}k",
    "encoder_attn.v_proj": "context_{}v", "encoder_attn.out_proj": "context_{}o", "fc1": "ffn_{}1", "fc2": "ffn_{}2",
}  # fmt: skip
NORM_NAMES = {
    "self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn",
}  # fmt: skip


def list_vocabulary() -> list[str]:
    """Return the tokens of the model: those of the MarianMT folders without padding, which Marian does not have."""
    return list_pieces()[:-1]


def train_vocabulary(seed: int = 1) -> bytes:
    """Return a SentencePiece model with </s> and <unk> as the pieces 0 and 1, as Marian trains it."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_lines(SOURCE_LETTERS, 1200, seed)),
        model_writer=writer,
        vocab_size=100,
        minloglevel=2,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
    )
    return writer.getvalue()


def to_marian(tensors: dict[str, Tensor], *, is_pre_norm: bool = False) -> dict[str, Any]:
    """Return tensors under the names of MarianMT as arrays under the names of Marian."""
    size = len(list_vocabulary())
    arrays: dict[str, Any] = {
        "Wemb": tensors["model.shared.weight"][:size].numpy(),
        "decoder_ff_logit_out_b": tensors["final_logits_bias"][:, :size].numpy(),
    }
    for name, tensor in tensors.items():
        if ".layers." not in name:
            continue
        _, stack, _, layer, part = name.split(".", 4)
        part, kind = part.rsplit(".", 1)
        prefix = f"{stack}_l{int(layer) + 1}_"
        if part in NORM_NAMES:
            end = f"ln_{'scale' if kind == 'weight' else 'bias'}{'_pre' if is_pre_norm else ''}"
            arrays[f"{prefix}{NORM_NAMES[part]}_{end}"] = tensor[None].numpy()
        elif kind == "weight":
            arrays[prefix + LAYER_NAMES[part].format("W")] = np.ascontiguousarray(tensor.numpy().T)
        else:
            arrays[prefix + LAYER_NAMES[part].format("b")] = tensor[None].numpy()
    return arrays


def use_ssru(arrays: dict[str, Any]) -> None:
    """Replace the decoder's self-attention by an SSRU, with the values of its matrices."""
    for layer in range(1, NUM_LAYERS + 1):
        old, new = f"decoder_l{layer}_self_", f"decoder_l{layer}_rnn_"
        removed = {name: arrays.pop(name) for name in list(arrays) if name.startswith(old)}
        arrays |= {new + "W": removed[old + "Wq"], new + "Wf": removed[old + "Wk"], new + "bf": removed[old + "bk"]}
        norm = old + "Wo_ln"
        arrays |= {name.replace(norm, new + "ffn_ln"): removed[name] for name in removed if name.startswith(norm)}


SSRU_SETTINGS = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}


def make_settings(**changes: Any) -> dict[str, Any]:
    """Return the settings of the architecture as Marian writes them; None removes one."""
    size = len(list_vocabulary())
    settings = {
        "type": "transformer", "dim-vocabs": [size, size], "dim-emb": D_MODEL, "enc-depth": NUM_LAYERS, "dec-depth": NUM_LAYERS,
        "transformer-heads": NUM_HEADS, "transformer-dim-ffn": D_FF, "transformer-ffn-depth": 2,
        "transformer-decoder-dim-ffn": 0, "transformer-ffn-activation": "swish", "transformer-preprocess": "",
        "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-postprocess-top": "",
        "transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False, "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False, "tied-embeddings": False, "tied-embeddings-src": False,
        "tied-embeddings-all": True, "output-omit-bias": False, "right-left": False, "layer-normalization": False,
        "ulr": False, "lemma-dim-emb": 0, "input-types": [], "skip": False, "version": "v1.12.0 65bf82f 2023-02-21",
    }  # fmt: skip
    return {name: value for name, value in (settings | changes).items() if value is not None}


def format_yaml(settings: dict[str, Any]) -> str:
    """Return settings in the form of yaml-cpp."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, list):
            lines += [f"{name}:", *([f"  - {json.dumps(item)}" for item in value] or ["  []"])]
        else:
            text = json.dumps(value) if isinstance(value, bool | int | float) or not value else str(value)
            lines.append(f"{name}: {text}")
    return "\n".join(lines)


def write_npz(path: Path, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a model, whose settings are an array of characters that ends with a zero."""
    text = np.frombuffer(format_yaml(settings).encode() + b"\0", np.int8)
    entries: dict[str, Any] = {**arrays, "special:model.yml": text}
    np.savez(path, **entries)


def write_folder(
    folder: Path,
    tensors: dict[str, Tensor] | None = None,
    *,
    arrays: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
) -> Path:
    """Write the folder of an OPUS-MT model, and return it.

    Args:
        folder: the new folder
        tensors: weights under the names of MarianMT
        arrays: weights under the names of Marian, instead of these
        settings: changes to the settings of the architecture
        decoder: changes to the settings of the decoder
    """
    folder.mkdir(parents=True)
    write_npz(folder / MODEL, to_marian(tensors or {}) if arrays is None else arrays, make_settings(**settings or {}))
    (folder / "source.spm").write_bytes(train_model(SOURCE_LETTERS))
    (folder / "target.spm").write_bytes(train_model(TARGET_LETTERS))
    lines = [f"{json.dumps(token)}: {index}\n" for index, token in enumerate(list_vocabulary())]
    (folder / VOCABULARY).write_text("".join(lines), encoding="utf-8")
    options = {"relative-paths": True, "models": [MODEL], "vocabs": [VOCABULARY] * 2, "beam-size": 6, "normalize": 1}
    (folder / "decoder.yml").write_text(format_yaml(options | {"word-penalty": 0} | (decoder or {})), encoding="utf-8")
    return folder


@torch.no_grad()
def compute_logits(arrays: dict[str, Any], settings: dict[str, Any], source_S: list[int], target_T: list[int]) -> Tensor:
    """Return the logits after each target token, of which the first input is a zero vector. → (T + 1, V)"""
    weights = {name: torch.tensor(array).double() for name, array in arrays.items()}
    width, heads = settings["dim-emb"], settings["transformer-heads"]
    is_pre_norm = settings["transformer-preprocess"] == "n"
    activation = {"swish": F.silu, "relu": F.relu}[settings["transformer-ffn-activation"]]
    source_name, target_name = ("Wemb", "Wemb") if "Wemb" in weights else ("encoder_Wemb", "decoder_Wemb")

    def embed(vectors_TD: Tensor) -> Tensor:
        if "Wpos" in weights:
            return vectors_TD + weights["Wpos"][: len(vectors_TD)]
        half = width // 2
        signal = torch.zeros(len(vectors_TD), width, dtype=torch.float64)
        for position in range(len(vectors_TD)):
            for index in range(half):
                value = position * math.exp(index * -math.log(10000) / (half - 1))
                signal[position, index], signal[position, half + index] = math.sin(value), math.cos(value)
        return vectors_TD * math.sqrt(width) + signal

    def normalize(x: Tensor, name: str, end: str) -> Tensor:
        scale, bias = weights[f"{name}_ln_scale{end}"][0], weights[f"{name}_ln_bias{end}"][0]
        return F.layer_norm(x, (width,), scale, bias, 1e-6)

    def connect(x: Tensor, name: str, layer: Any) -> Tensor:
        return x + layer(normalize(x, name, "_pre")) if is_pre_norm else normalize(x + layer(x), name, "")

    def project(x: Tensor, name: str, letter: str) -> Tensor:
        return x @ weights[f"{name}_W{letter}"] + weights[f"{name}_b{letter}"][0]

    def attend(x: Tensor, memory: Tensor, name: str, mask: Tensor | None) -> Tensor:
        query, key, value = (
            project(tensor, name, letter).view(len(tensor), heads, -1).transpose(0, 1)
            for tensor, letter in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(width // heads)
        weights_HTS = (scores if mask is None else scores + mask).softmax(-1)
        return project((weights_HTS @ value).transpose(0, 1).reshape(len(x), width), name, "o")

    def feed_forward(x: Tensor, name: str) -> Tensor:
        return project(activation(project(x, name, "1")), name, "2")

    def run_ssru(x: Tensor, name: str) -> Tensor:
        cell, outputs = torch.zeros(width, dtype=torch.float64), []
        for x_t in x:
            forget = torch.sigmoid(x_t @ weights[f"{name}_Wf"] + weights[f"{name}_bf"][0])
            cell = forget * cell + (1 - forget) * (x_t @ weights[f"{name}_W"])
            outputs.append(cell.relu())
        return torch.stack(outputs)

    def finish(x: Tensor, stack: str) -> Tensor:
        return normalize(x, f"{stack}_top", "") if settings["transformer-postprocess-top"] else x

    memory = embed(weights[source_name][source_S])
    for layer in range(1, settings["enc-depth"] + 1):
        name = f"encoder_l{layer}"
        memory = connect(memory, f"{name}_self_Wo", lambda x, name=name: attend(x, x, f"{name}_self", None))
        memory = connect(memory, f"{name}_ffn_ffn", lambda x, name=name: feed_forward(x, f"{name}_ffn"))
    memory = finish(memory, "encoder")
    x = embed(torch.cat([torch.zeros(1, width, dtype=torch.float64), weights[target_name][target_T]]))
    mask = torch.full((len(x), len(x)), -torch.inf, dtype=torch.float64).triu(1)
    for layer in range(1, settings["dec-depth"] + 1):
        name = f"decoder_l{layer}"
        if settings["transformer-decoder-autoreg"] == "rnn":
            x = connect(x, f"{name}_rnn_ffn", lambda x, name=name: run_ssru(x, f"{name}_rnn"))
        else:
            x = connect(x, f"{name}_self_Wo", lambda x, name=name: attend(x, x, f"{name}_self", mask))
        x = connect(x, f"{name}_context_Wo", lambda x, name=name: attend(x, memory, f"{name}_context", None))
        x = connect(x, f"{name}_ffn_ffn", lambda x, name=name: feed_forward(x, f"{name}_ffn"))
    output = weights.get("decoder_ff_logit_out_Wt", weights[target_name])
    output = weights["decoder_ff_logit_out_W"].T if "decoder_ff_logit_out_W" in weights else output
    bias = weights.get("decoder_ff_logit_out_b", torch.zeros(1, 1, dtype=torch.float64))
    return (finish(x, "decoder") @ output.T + bias[0]).float()
