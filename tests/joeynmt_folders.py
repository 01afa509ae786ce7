"""Small model folders of JoeyNMT, written without it.

Names and shapes follow the `state_dict` of JoeyNMT 2.3, whose layers have the same names as those of version 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reference_transformer import StackNames, make_stack, run_stack, sinusoids

D_MODEL, D_FF, NUM_HEADS, NUM_POSITIONS = 32, 48, 4, 64
LAYERS = {"encoder": 2, "decoder": 3}
SPECIAL_TOKENS = ["<unk>", "<pad>", "<s>", "</s>"]
PROJECTIONS = ("q_layer", "k_layer", "v_layer", "output_layer")
LINEARS = ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3")
STACKS = {
    "encoder": StackNames(
        "encoder.layers.{}",
        PROJECTIONS,
        ("src_src_att",),
        ("layer_norm", "feed_forward.layer_norm"),
        LINEARS,
        "encoder.layer_norm",
    ),
    "decoder": StackNames(
        "decoder.layers.{}",
        PROJECTIONS,
        ("trg_trg_att", "src_trg_att"),
        ("x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm"),
        LINEARS,
        "decoder.layer_norm",
    ),
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}


def make_config(
    *, norm: str = "pre", activation: str = "relu", scale: bool = True, tied_embeddings: bool = False, tied_softmax: bool = True
) -> dict[str, Any]:
    """Return the options of an experiment of version 2."""

    def make_stack(num_layers: int) -> dict[str, Any]:
        return {
            "type": "transformer",
            "num_layers": num_layers,
            "num_heads": NUM_HEADS,
            "hidden_size": D_MODEL,
            "ff_size": D_FF,
            "dropout": 0.1,
            "layer_norm": norm,
            "activation": activation,
            "embeddings": {"embedding_dim": D_MODEL, "scale": scale, "dropout": 0.0},
        }

    return {
        "name": "toy",
        "joeynmt_version": "2.3.0",
        "data": {side: {"lang": lang, "level": "word"} for side, lang in (("src", "en"), ("trg", "de"))},
        "testing": {"beam_size": 5, "beam_alpha": 1.5, "max_output_length": 30, "generate_unk": False},
        "training": {"optimizer": "adam", "adam_betas": [0.9, 0.98]},
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": tied_embeddings,
            "tied_softmax": tied_softmax,
            "encoder": make_stack(LAYERS["encoder"]),
            "decoder": make_stack(LAYERS["decoder"]),
        },
    }


def make_state(config: Mapping[str, Any], source_size: int, target_size: int) -> dict[str, Tensor]:
    """Return random tensors."""
    generator = torch.Generator().manual_seed(1)
    model = config["model"]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    state = {"src_embed.lut.weight": noise(source_size, D_MODEL), "trg_embed.lut.weight": noise(target_size, D_MODEL)}
    if model["tied_embeddings"]:
        state["trg_embed.lut.weight"] = state["src_embed.lut.weight"]
    for stack, names in STACKS.items():
        has_final_norm = model["encoder"]["layer_norm"] == "pre"
        state |= make_stack(names, noise, num_layers=LAYERS[stack], d_model=D_MODEL, d_ff=D_FF, has_final_norm=has_final_norm)
        state[f"{stack}.pe.pe"] = sinusoids(NUM_POSITIONS, D_MODEL, is_interleaved=True)[None]
    state["decoder.output_layer.weight"] = (
        state["trg_embed.lut.weight"] if model["tied_softmax"] else noise(target_size, D_MODEL)
    )
    return state


def write_folder(
    folder: Path, *, config: Mapping[str, Any], state: Mapping[str, Tensor], tokens: tuple[Sequence[str], Sequence[str]]
) -> Path:
    """Write a model folder, and return it."""
    import yaml  # type: ignore[import-untyped]

    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(copy.deepcopy(dict(config)), sort_keys=False)
    (folder / "config.yaml").write_text(f"# an experiment\n{text}", encoding="utf-8")
    checkpoint = {
        "model_state": dict(state),
        "optimizer_state": {"state": {0: {"step": torch.tensor(10.0)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "scheduler_state": {"best": float("inf"), "num_bad_epochs": 0},
        "scaler_state": None,
        "train_iter_state": torch.Generator().get_state(),
        "stats_state": {"steps": 10, "best_ckpt_score": np.float64(1.5), "minimize_metric": True},
    }
    torch.save(checkpoint, folder / "10.ckpt")
    for name, side in zip(("src_vocab.txt", "trg_vocab.txt"), tokens, strict=True):
        (folder / name).write_text("".join(f"{token}\n" for token in side), encoding="utf-8")
    return folder


def compute_logits(state: Mapping[str, Tensor], config: Mapping[str, Any], source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
    """Return the logits from nn.functional alone. The source has no padding. → (B, T, V)"""
    options = config["model"]["encoder"]
    scale = math.sqrt(D_MODEL) if options["embeddings"]["scale"] else 1.0
    memory = None
    for (stack, names), side, ids in zip(STACKS.items(), ("src", "trg"), (source_BS, inputs_BT), strict=True):
        memory = run_stack(
            state,
            names,
            scale * F.embedding(ids, state[f"{side}_embed.lut.weight"]) + state[f"{stack}.pe.pe"][0, : ids.shape[1]],
            memory,
            num_layers=LAYERS[stack],
            num_heads=NUM_HEADS,
            is_pre_norm=options["layer_norm"] == "pre",
            activation=ACTIVATIONS[options["activation"]],
            epsilon=1e-6,
        )
    assert memory is not None
    return memory @ state["decoder.output_layer.weight"].T
