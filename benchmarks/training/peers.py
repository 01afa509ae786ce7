"""The peers: how each is installed, and the command that trains the same model on the same text with it.

Each has an environment of its own in the work folder, made from a pinned list beside this file. All learn from the same
pieces, with all tied embeddings, label smoothing and Adam; where one cannot have the very same model, README.md says what
differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.environments import Absent, make_environment, versions
from common.usage import CommandError

from .sizes import Size
from .text import SIDES, VOCABULARY, Corpus
from .timed import Contestant

HERE = Path(__file__).parent
INSTALL_SECONDS = 900.0
SMOOTHING = 0.1
MANY = 1_000_000  # steps: they are told when to stop
BETAS = (0.9, 0.98)

# What is run once in a new environment, to see that it starts.
PROBES = {
    "transformers": ["python", "-c", "from transformers import MarianMTModel"],
    "joeynmt": ["python", "-c", "import joeynmt.training"],
    "eole": ["eole", "train", "--help"],
    "opennmt": ["onmt_train", "-h"],
}


@dataclass(frozen=True)
class Peer:
    """A program in its environment; `contest` says what it runs for a size, in a folder."""

    name: str
    key: str
    contest: Callable[[Size, Path], Contestant]


def bare(corpus: Corpus, programs: Path, model: str, name: str, key: str, precision: str = "float32") -> Peer:
    def contest(size: Size, folder: Path) -> Contestant:
        settings = {
            "model": model,
            "precision": precision,
            "vocabulary": VOCABULARY,
            "label_smoothing": SMOOTHING,
            "source": str(corpus.folder / f"train.ids.{SIDES[0]}"),
            "target": str(corpus.folder / f"train.ids.{SIDES[1]}"),
            **{field: value for field, value in vars(size).items() if field != "name"},
        }
        return Contestant(
            name=name,
            key=key,
            command=[programs / "python", HERE / "bare_loop.py", json.dumps(settings)],
            journal=folder / "said.txt",
            rates=_bare_rates,
            outputs=folder,
        )

    return Peer(name, key, contest)


def _bare_rates(said: str) -> list[float]:
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [one["tokens"] / one["seconds"] for one in told]


def joeynmt(corpus: Corpus, programs: Path) -> Peer:
    name = versions(programs, "joeynmt")

    def contest(size: Size, folder: Path) -> Contestant:
        config = folder / "config.yaml"
        return Contestant(
            name=name,
            key="joeynmt",
            command=[programs / "python", "-m", "joeynmt", "train", config],
            journal=folder / "said.txt",
            rates=_logged(r"Tokens per Sec:\s*([\d.]+)"),
            outputs=folder,
            ready=lambda: _write(config, _joeynmt_config(corpus, size, folder)),
        )

    return Peer(name, "joeynmt", contest)


def _joeynmt_config(corpus: Corpus, size: Size, folder: Path) -> dict[str, Any]:
    side = {"max_length": 128, "lowercase": False, "normalize": False, "level": "word", "voc_file": str(corpus.vocabulary)}
    stack = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.num_heads,
        "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": 0.0},
        "hidden_size": size.d_model,
        "ff_size": size.d_ff,
        "dropout": size.dropout,
        "layer_norm": "post",
    }
    return {
        "name": "bench-training",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,
        "num_workers": 0,
        "random_seed": 1,
        "data": {
            "train": str(corpus.folder / "train.bpe"),
            "dev": str(corpus.folder / "valid.bpe"),
            "dataset_type": "plain",
            "src": {"lang": SIDES[0], **side},
            "trg": {"lang": SIDES[1], **side},
        },
        "testing": {"beam_size": 1, "batch_size": 64, "batch_type": "sentence", "eval_metrics": ["bleu"]},
        "training": {
            "loss": "crossentropy",
            "label_smoothing": SMOOTHING,
            "optimizer": "adam",
            "adam_betas": list(BETAS),
            "normalization": "tokens",
            "learning_rate": 0.0007,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 100,
            "batch_size": size.batch_tokens,
            "batch_type": "token",
            "epochs": MANY,
            "max_updates": MANY,
            "validation_freq": MANY,
            "logging_freq": size.report_steps,
            "early_stopping_metric": "ppl",
            "overwrite": True,
            "shuffle": True,
            "print_valid_sents": [0],
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def eole(corpus: Corpus, programs: Path) -> Peer:
    name = versions(programs, "eole")

    def config(size: Size, folder: Path) -> dict[str, Any]:
        return {
            **_shared_config(corpus, size, folder),
            "training": {
                "model_path": str(folder / "model"),
                "compute_dtype": "fp32",
                "param_init_method": "xavier_uniform",
                "world_size": 0,
                "gpu_ranks": [],
                **_shared_training(size),
            },
            "model": {
                "architecture": "transformer",
                "layers": size.layers,
                "position_encoding_type": "SinusoidalInterleaved",
                "add_qkvbias": True,
                "add_final_linear_bias": True,
                "add_ffnbias": True,
                **_shared_model(size),
            },
        }

    return _by_file(name, "eole", [programs / "eole", "train", "-config"], config)


def opennmt(corpus: Corpus, programs: Path) -> Peer:
    name = versions(programs, "OpenNMT-py", "torch")

    def config(size: Size, folder: Path) -> dict[str, Any]:
        return {
            **_shared_config(corpus, size, folder),
            "save_model": str(folder / "model"),
            "param_init": 0,
            "param_init_glorot": True,
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "enc_layers": size.layers,
            "dec_layers": size.layers,
            "position_encoding": True,
            **_shared_training(size),
            **_shared_model(size),
        }

    return _by_file(name, "opennmt", [programs / "onmt_train", "-config"], config)


def _shared_config(corpus: Corpus, size: Size, folder: Path) -> dict[str, Any]:
    """What Eole and OpenNMT-py, its parent, spell alike."""
    sides = {f"path_{key}": str(corpus.folder / f"train.bpe.{side}") for key, side in zip(("src", "tgt"), SIDES, strict=True)}
    return {
        "save_data": str(folder / "data"),
        "src_vocab": str(corpus.counted),
        "tgt_vocab": str(corpus.counted),
        "share_vocab": True,
        "overwrite": True,
        "report_every": size.report_steps,
        "data": {"corpus": {**sides, "transforms": []}},
    }


def _shared_training(size: Size) -> dict[str, Any]:
    return {
        "batch_type": "tokens",
        "batch_size": size.batch_tokens,
        "normalization": "tokens",
        "label_smoothing": SMOOTHING,
        "optim": "adam",
        "adam_beta2": BETAS[1],
        "decay_method": "noam",
        "warmup_steps": 4000,
        "learning_rate": 1.0,
        "max_grad_norm": 0.0,
        "num_workers": 0,
        "train_steps": MANY,
        "valid_steps": MANY,
        "save_checkpoint_steps": MANY,
        "dropout": [size.dropout],
        "attention_dropout": [0.0],
    }


def _shared_model(size: Size) -> dict[str, Any]:
    return {
        "heads": size.num_heads,
        "hidden_size": size.d_model,
        "word_vec_size": size.d_model,
        "transformer_ff": size.d_ff,
        "share_decoder_embeddings": True,
        "share_embeddings": True,
    }


def _by_file(name: str, key: str, command: list[str | Path], config: Callable[[Size, Path], dict[str, Any]]) -> Peer:
    def contest(size: Size, folder: Path) -> Contestant:
        path = folder / "config.yaml"
        return Contestant(
            name=name,
            key=key,
            command=[*command, path],
            journal=folder / "said.txt",
            rates=_logged(r"\d+/ *(\d+) tok/s"),
            outputs=folder,
            ready=lambda: _write(path, config(size, folder)),
            environment={"PYTHONWARNINGS": "ignore"},
        )

    return Peer(name, key, contest)


def _write(path: Path, config: dict[str, Any]) -> None:
    """As JSON, which is YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _logged(pattern: str) -> Callable[[str], list[float]]:
    return lambda said: [float(rate) for rate in re.findall(pattern, said)]


@dataclass(frozen=True)
class Found:
    """The peers that are there, in the order of the table, and why the others are not."""

    peers: list[Peer]
    absent: dict[str, str]


def find_peers(corpus: Corpus, work: Path, *, install: bool, all_of_them: bool) -> Found:
    """Those that are quick to measure, or all of them; what is not there yet is installed where that is asked for."""
    peers: list[Peer] = []
    absent: dict[str, str] = {}

    def environment(name: str) -> Path:
        return make_environment(
            HERE / f"peers-{name}.txt",
            work / "environments" / name,
            install=install,
            probe=PROBES[name],
            limit_seconds=INSTALL_SECONDS,
        )

    def seek(name: str, make: Callable[[], Peer]) -> None:
        try:
            peers.append(make())
        except (Absent, CommandError) as reason:
            absent[name] = str(reason)

    def marian() -> Peer:
        programs = environment("transformers")
        return bare(corpus, programs, "marian", f"{versions(programs, 'transformers')} Marian, bare loop", "marian")

    own = Path(sys.executable).parent
    peers.append(bare(corpus, own, "nn", "torch.nn.Transformer, bare loop", "nn_transformer"))
    seek("transformers", marian)
    seek("eole", lambda: eole(corpus, environment("eole")))
    seek("OpenNMT-py", lambda: opennmt(corpus, environment("opennmt")))
    if all_of_them:
        seek("joeynmt", lambda: joeynmt(corpus, environment("joeynmt")))
        peers.append(
            bare(corpus, own, "nn", "torch.nn.Transformer, bare loop, bfloat16 autocast", "nn_transformer_bfloat16", "bfloat16")
        )
    return Found(peers, absent)
