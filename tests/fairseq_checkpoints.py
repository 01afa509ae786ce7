"""Small checkpoints of fairseq's `transformer`, and subwords, written without fairseq.

Names and shapes follow fairseq's documentation and its `state_dict`: TransformerModel, MultiheadAttention and Dictionary.
"""

from __future__ import annotations

import math
from argparse import Namespace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_transformer import StackNames, make_stack, run_stack, sinusoids

D_MODEL, D_FF, NUM_HEADS = 32, 48, 4
LAYERS = {"encoder": 2, "decoder": 3}
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
PADDING = 1
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
STACKS = {
    "encoder": StackNames(
        "encoder.layers.{}", PROJECTIONS, ("self_attn",), (NORMS[0], NORMS[2]), ("fc1", "fc2"), "encoder.layer_norm"
    ),
    "decoder": StackNames(
        "decoder.layers.{}", PROJECTIONS, ("self_attn", "encoder_attn"), NORMS, ("fc1", "fc2"), "decoder.layer_norm"
    ),
}


@lru_cache
def list_merges(letters: str) -> list[tuple[str, str]]:
    """Return merges of frequent pairs: each letter with the next one, inside of a word and at its end."""
    pairs = list(zip(letters, letters[1:] + letters[0], strict=True))
    return [*pairs, *((left, f"{right}</w>") for left, right in pairs)]


@lru_cache
def list_subwords(letters: str) -> list[str]:
    """Return all subwords that the merges make of an alphabet, those inside of a word with `@@`, and two unused ones."""
    pairs = [left + right for left, right in zip(letters, letters[1:] + letters[0], strict=True)]
    return [f"{token}@@" for token in [*letters, *pairs]] + [*letters, *pairs, ",", "madeupword0000@@"]


def make_args(**changes: Any) -> dict[str, Any]:
    """Return the options of a training, as fairseq stores them."""
    args: dict[str, Any] = {"arch": "transformer_iwslt_de_en", "task": "translation", "source_lang": "en", "target_lang": "de"}
    for stack, num_layers in LAYERS.items():
        args |= {
            f"{stack}_embed_dim": D_MODEL,
            f"{stack}_ffn_embed_dim": D_FF,
            f"{stack}_layers": num_layers,
            f"{stack}_attention_heads": NUM_HEADS,
            f"{stack}_normalize_before": False,
            f"{stack}_learned_pos": False,
        }
    args |= {"decoder_input_dim": D_MODEL, "decoder_output_dim": D_MODEL, "activation_fn": "relu", "dropout": 0.3}
    args |= {"share_all_embeddings": False, "share_decoder_input_output_embed": False, "adaptive_softmax_cutoff": None}
    args |= {"max_source_positions": 64, "max_target_positions": 64, "no_scale_embedding": False, "layernorm_embedding": False}
    return args | changes


def make_state(args: dict[str, Any], source_size: int, target_size: int) -> dict[str, Tensor]:
    """Return random tensors under the names of fairseq 0.10 and later."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    state: dict[str, Tensor] = {}
    for stack, size in (("encoder", source_size), ("decoder", target_size)):
        state[f"{stack}.version"] = torch.tensor([3.0])
        state[f"{stack}.embed_tokens.weight"] = noise(size, D_MODEL)
        state[f"{stack}.embed_tokens.weight"][PADDING] = 0
        if args["encoder_learned_pos"]:
            state[f"{stack}.embed_positions.weight"] = noise(64 + PADDING + 1, D_MODEL)
        else:
            state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        state |= make_stack(
            STACKS[stack],
            noise,
            num_layers=LAYERS[stack],
            d_model=D_MODEL,
            d_ff=D_FF,
            has_final_norm=args["encoder_normalize_before"],
        )
    if args["share_all_embeddings"]:
        state["encoder.embed_tokens.weight"] = state["decoder.embed_tokens.weight"]
    is_tied = args["share_all_embeddings"] or args["share_decoder_input_output_embed"]
    state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"] if is_tied else noise(target_size, D_MODEL)
    return state


def make_old_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same tensors under the names of fairseq 0.6: one matrix for q, k and v, and numbered normalizations."""
    numbers = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 1}
    old: dict[str, Tensor] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[-2] in ("k_proj", "v_proj"):
            continue
        if parts[-2] == "q_proj":
            prefix, kind = ".".join(parts[:-2]), parts[-1]
            projections = [state[f"{prefix}.{projection}_proj.{kind}"] for projection in "qkv"]
            old[f"{prefix}.in_proj_{kind}"] = torch.cat(projections)
        elif parts[-2] in numbers:
            number = 2 if (parts[0], parts[-2]) == ("decoder", "final_layer_norm") else numbers[parts[-2]]
            old[".".join([*parts[:-2], "layer_norms", str(number), parts[-1]])] = tensor
        elif name == "decoder.output_projection.weight":
            if tensor is not state["decoder.embed_tokens.weight"]:
                old["decoder.embed_out"] = tensor
        elif parts[-1] != "version":
            old[name] = tensor
    return old


def write_folder(
    folder: Path,
    *,
    args: dict[str, Any],
    state: dict[str, Tensor],
    dictionaries: dict[str, list[str]],
    codes: str | None,
    as_config: bool = False,
    file_name: str = "model.pt",
) -> Path:
    """Write a folder with a checkpoint, its dictionaries and its codes.

    as_config: store the options as the dictionary `cfg` of fairseq 1.0, instead of the namespace `args`
    """
    folder.mkdir(parents=True)
    options: dict[str, Any] = {"args": Namespace(**args), "cfg": None}
    if as_config:
        model = {name: value for name, value in args.items() if name not in ("arch", "task", "source_lang", "target_lang")}
        task = {"_name": "translation", "source_lang": args["source_lang"], "target_lang": args["target_lang"]}
        options = {"args": None, "cfg": {"_name": None, "model": {"_name": args["arch"], **model}, "task": task}}
    checkpoint = {
        **options,
        "model": state,
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 10, "best_loss": 4.5}],
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 2, "iterations_in_epoch": 0}, "val_loss": 4.5},
        "last_optimizer_state": {
            "state": {0: {"step": 10, "exp_avg": torch.zeros(3)}},
            "param_groups": [{"betas": (0.9, 0.98)}],
        },
    }
    torch.save(checkpoint, folder / file_name)
    for language, tokens in dictionaries.items():
        lines = "".join(f"{token} {1000 - index}\n" for index, token in enumerate(tokens))
        (folder / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
    if codes is not None:
        (folder / "bpecodes").write_text(codes, encoding="utf-8")
    return folder


def compute_logits(state: dict[str, Tensor], args: dict[str, Any], source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
    """Return the logits of fairseq's transformer, from nn.functional alone. The source has no padding. → (B, T, V)"""
    memory = None
    for (stack, names), ids in zip(STACKS.items(), (source_BS, inputs_BT), strict=True):
        scale = 1.0 if args["no_scale_embedding"] else math.sqrt(D_MODEL)
        rows = slice(PADDING + 1, PADDING + 1 + ids.shape[1])
        positions = state.get(f"{stack}.embed_positions.weight")
        if positions is None:
            positions = sinusoids(rows.stop, D_MODEL, is_interleaved=False)
        memory = run_stack(
            state,
            names,
            scale * F.embedding(ids, state[f"{stack}.embed_tokens.weight"]) + positions[rows],
            memory,
            num_layers=LAYERS[stack],
            num_heads=NUM_HEADS,
            is_pre_norm=args["encoder_normalize_before"],
            activation=args["activation_fn"],
            epsilon=1e-5,
        )
    assert memory is not None
    return memory @ state["decoder.output_projection.weight"].T
