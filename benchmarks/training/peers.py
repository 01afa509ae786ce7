"""Other toolkits that train: how each is installed, and the command that trains the same model on the same text.

Each toolkit has its own environment in the work folder, made from a pinned list beside this file. All use the same pieces,
tied embeddings, label smoothing and Adam. README.md lists the remaining differences.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.environments import MissingPeerError, describe_versions, make_environment
from common.usage import CommandError

from .sizes import BenchmarkSize
from .text import SIDES, VOCABULARY, TrainingText
from .timed_run import TimedRun

HERE = Path(__file__).parent
INSTALL_SECONDS = 900.0
SMOOTHING = 0.1
MAX_STEPS = 1_000_000  # the benchmark stops the peers earlier
BETAS = (0.9, 0.98)

# Commands that run once in a new environment, to check that it works.
PROBES = {
    "transformers": ["python", "-c", "from transformers import MarianMTModel"],
    "joeynmt": ["python", "-c", "import joeynmt.training"],
    "eole": ["eole", "train", "--help"],
    "opennmt": ["onmt_train", "-h"],
}


@dataclass(frozen=True)
class TrainingPeer:
    """Toolkit in its environment; `make_run` returns its run for a size and a folder."""

    name: str
    key: str
    make_run: Callable[[BenchmarkSize, Path], TimedRun]


def make_bare_loop(
    corpus: TrainingText, programs: Path, model: str, name: str, key: str, precision: str = "float32"
) -> TrainingPeer:
    def build_run(size: BenchmarkSize, folder: Path) -> TimedRun:
        settings = {
            "model": model,
            "precision": precision,
            "vocabulary": VOCABULARY,
            "label_smoothing": SMOOTHING,
            "source": str(corpus.folder / f"train.ids.{SIDES[0]}"),
            "target": str(corpus.folder / f"train.ids.{SIDES[1]}"),
            **{field: value for field, value in vars(size).items() if field != "name"},
        }
        return TimedRun(
            name=name,
            key=key,
            command=[programs / "python", HERE / "bare_loop.py", json.dumps(settings)],
            log_path=folder / "output.txt",
            read_rates=_read_bare_rates,
            outputs=folder,
        )

    return TrainingPeer(name, key, build_run)


def _read_bare_rates(output: str) -> list[float]:
    reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [report["tokens"] / report["seconds"] for report in reports]


def joeynmt(corpus: TrainingText, programs: Path) -> TrainingPeer:
    name = describe_versions(programs, "joeynmt")

    def build_run(size: BenchmarkSize, folder: Path) -> TimedRun:
        config = folder / "config.yaml"
        return TimedRun(
            name=name,
            key="joeynmt",
            command=[programs / "python", "-m", "joeynmt", "train", config],
            log_path=folder / "output.txt",
            read_rates=_rate_reader(r"Tokens per Sec:\s*([\d.]+)"),
            outputs=folder,
            prepare=lambda: _write(config, _joeynmt_config(corpus, size, folder)),
        )

    return TrainingPeer(name, "joeynmt", build_run)


def _joeynmt_config(corpus: TrainingText, size: BenchmarkSize, folder: Path) -> dict[str, Any]:
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
            "epochs": MAX_STEPS,
            "max_updates": MAX_STEPS,
            "validation_freq": MAX_STEPS,
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


def eole(corpus: TrainingText, programs: Path) -> TrainingPeer:
    name = describe_versions(programs, "eole")

    def config(size: BenchmarkSize, folder: Path) -> dict[str, Any]:
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

    return _make_config_peer(name, "eole", [programs / "eole", "train", "-config"], config)


def opennmt(corpus: TrainingText, programs: Path) -> TrainingPeer:
    name = describe_versions(programs, "OpenNMT-py", "torch")

    def config(size: BenchmarkSize, folder: Path) -> dict[str, Any]:
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

    return _make_config_peer(name, "opennmt", [programs / "onmt_train", "-config"], config)


def _shared_config(corpus: TrainingText, size: BenchmarkSize, folder: Path) -> dict[str, Any]:
    """Return the settings that Eole and OpenNMT-py spell alike."""
    sides = {f"path_{key}": str(corpus.folder / f"train.bpe.{side}") for key, side in zip(("src", "tgt"), SIDES, strict=True)}
    return {
        "save_data": str(folder / "data"),
        "src_vocab": str(corpus.counted_vocabulary),
        "tgt_vocab": str(corpus.counted_vocabulary),
        "share_vocab": True,
        "overwrite": True,
        "report_every": size.report_steps,
        "data": {"corpus": {**sides, "transforms": []}},
    }


def _shared_training(size: BenchmarkSize) -> dict[str, Any]:
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
        "train_steps": MAX_STEPS,
        "valid_steps": MAX_STEPS,
        "save_checkpoint_steps": MAX_STEPS,
        "dropout": [size.dropout],
        "attention_dropout": [0.0],
    }


def _shared_model(size: BenchmarkSize) -> dict[str, Any]:
    return {
        "heads": size.num_heads,
        "hidden_size": size.d_model,
        "word_vec_size": size.d_model,
        "transformer_ff": size.d_ff,
        "share_decoder_embeddings": True,
        "share_embeddings": True,
    }


def _make_config_peer(
    name: str, key: str, command: list[str | Path], config: Callable[[BenchmarkSize, Path], dict[str, Any]]
) -> TrainingPeer:
    def build_run(size: BenchmarkSize, folder: Path) -> TimedRun:
        path = folder / "config.yaml"
        return TimedRun(
            name=name,
            key=key,
            command=[*command, path],
            log_path=folder / "output.txt",
            read_rates=_rate_reader(r"\d+/ *(\d+) tok/s"),
            outputs=folder,
            prepare=lambda: _write(path, config(size, folder)),
            environment={"PYTHONWARNINGS": "ignore"},
        )

    return TrainingPeer(name, key, build_run)


def _write(path: Path, config: dict[str, Any]) -> None:
    """Write a configuration as JSON, which is valid YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _rate_reader(pattern: str) -> Callable[[str], list[float]]:
    return lambda output: [float(rate) for rate in re.findall(pattern, output)]


@dataclass(frozen=True)
class TrainingPeers:
    """Available toolkits in the order of the table, and the reasons why others are missing."""

    peers: list[TrainingPeer]
    absent: dict[str, str]


def find_peers(corpus: TrainingText, work: Path, *, install: bool, include_slow: bool) -> TrainingPeers:
    """Return the toolkits that are quick to measure, or all; install missing ones if `install` is true."""
    peers: list[TrainingPeer] = []
    absent: dict[str, str] = {}

    def environment(name: str) -> Path:
        return make_environment(
            HERE / f"peers-{name}.txt",
            work / "environments" / name,
            install=install,
            probe=PROBES[name],
            limit_seconds=INSTALL_SECONDS,
        )

    def try_peer(name: str, make: Callable[[], TrainingPeer]) -> None:
        try:
            peers.append(make())
        except (MissingPeerError, CommandError) as reason:
            absent[name] = str(reason)

    def marian() -> TrainingPeer:
        programs = environment("transformers")
        return make_bare_loop(
            corpus, programs, "marian", f"{describe_versions(programs, 'transformers')} Marian, bare loop", "marian"
        )

    own_programs = Path(sys.executable).parent
    peers.append(make_bare_loop(corpus, own_programs, "nn", "torch.nn.Transformer, bare loop", "nn_transformer"))
    try_peer("transformers", marian)
    try_peer("eole", lambda: eole(corpus, environment("eole")))
    try_peer("OpenNMT-py", lambda: opennmt(corpus, environment("opennmt")))
    if include_slow:
        try_peer("joeynmt", lambda: joeynmt(corpus, environment("joeynmt")))
        peers.append(
            make_bare_loop(
                corpus,
                own_programs,
                "nn",
                "torch.nn.Transformer, bare loop, bfloat16 autocast",
                "nn_transformer_bfloat16",
                "bfloat16",
            )
        )
    return TrainingPeers(peers, absent)
