"""Learning: two tasks with exact answers, each learned in 1,200 steps, in less than a minute on two free cores."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import dragoman
from dragoman.config import make_recipe

LETTERS = "abcdefghijklmnopqrst"
TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda letters: letters[::-1],
    "sort": sorted,
}


def write_split(folder: Path, name: str, lines: list[list[str]], task: Callable[[list[str]], list[str]]) -> None:
    (folder / f"{name}.src").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    (folder / f"{name}.tgt").write_text("".join(" ".join(task(line)) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TASKS))
def test_toy_task_reaches_99_percent_exact_match(name: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    lines = list({tuple(rng.choices(LETTERS, k=rng.randint(4, 12))) for _ in range(8_500)})
    lines.sort()
    rng.shuffle(lines)
    write_split(tmp_path, "train", [list(line) for line in lines[500:]], TASKS[name])
    write_split(tmp_path, "test", [list(line) for line in lines[:500]], TASKS[name])
    recipe = make_recipe(
        {
            "name": name,
            "run": str(tmp_path / "run"),
            "preset": "modern",
            "size": "tiny",
            "data": {
                "root": str(tmp_path),
                "train": {"source": "train.src", "target": "train.tgt"},
                "test": {"source": "test.src", "target": "test.tgt"},
                "max_length": 64,
            },
            "tokenizer": {"vocab_size": 45, "byte_fallback": False},
            "model": {
                "encoder_layers": 2,
                "decoder_layers": 2,
                "residual_dropout": 0.0,
                "embedding_dropout": 0.0,
                "attention_dropout": 0.0,
                "activation_dropout": 0.0,
            },
            "training": {
                "batch_tokens": 1500,
                "schedule": "inverse_sqrt",
                "peak_lr": 2e-3,
                "warmup_steps": 150,
                "lr_decay_ratio": 0.4,
                "adam_beta2": 0.98,
                "label_smoothing": 0.0,
                "clip_norm": 1.0,
                "max_steps": 1_200,
                "checkpoint_averaging": "none",
            },
            "decoding": {"method": "greedy"},
        }
    )
    report = dragoman.train(recipe)
    assert report["exact_match"] >= 99.0, report["samples"]
