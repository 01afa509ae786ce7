"""A tiny corpus of number and color words, a tiny recipe for it, and a run that learns it.

`python tests/tiny_runs.py FOLDER` writes the corpus, the run, and a model of each format that dragoman converts. Tests in an
environment without PyTorch need them, and the other tests need not train it again.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

from dragoman.config import Recipe, make_recipe
from dragoman.runtime.thread_count import set_num_threads

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun", "ten": "zehn", "red": "rot", "blue": "blau", "green": "grün", "big": "groß",
    "small": "klein",
}  # fmt: skip
SPLITS = {"train": 60, "valid": 10, "test": 8}
NO_DROPOUT = [f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention", "activation")]


def write_corpus(folder: Path) -> Path:
    """Write train, valid and test in .en and .de, one to five words a line, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for name, size in SPLITS.items():
        lines = [rng.choices(list(WORDS), k=rng.randint(1, 5)) for _ in range(size)]
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        translated = "".join(" ".join(WORDS[word] for word in line) + "\n" for line in lines)
        (folder / f"{name}.de").write_text(translated, encoding="utf-8")
    return folder


def make_tiny_recipe(corpus: Path, run: Path, *settings: str) -> Recipe:
    """Return a tiny recipe for the corpus, with settings `section.key=value`."""
    document: dict[str, Any] = {
        "name": "tiny",
        "run": str(run),
        "preset": "modern",
        "size": "tiny",
        "task": {"source_language": "en", "target_language": "de"},
        "data": {
            "root": str(corpus),
            **{name: {"source": f"{name}.en", "target": f"{name}.de"} for name in SPLITS},
            "max_length": 40,
        },
        "tokenizer": {"vocab_size": 80, "reserved_tokens": 0, "byte_fallback": False},
        "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2},
        "training": {
            "precision": "float32",
            "batch_tokens": 130,
            "max_steps": 6,
            "schedule": "inverse_sqrt",
            "peak_lr": 1e-2,
            "warmup_steps": 20,
            "adam_beta2": 0.98,
            "log_every_steps": 1,
            "validate_every_steps": 1000,
            "num_validation_translations": 4,
            "checkpoint_every_steps": 1000,
        },
        "decoding": {"max_extra_tokens": 10},
    }
    return make_recipe(document, settings)


def write_recipe(path: Path, recipe: Recipe) -> Path:
    """Write a recipe as TOML, and return its path."""
    document = recipe.model_dump()
    sections = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if key not in sections]
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {_in_toml(value)}" for key, value in values.items() if value is not None)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_in_toml(item)}" for key, item in value.items() if item is not None) + "}"
    return json.dumps(value, ensure_ascii=False)


def train_tiny_run(corpus: Path, run: Path) -> Path:
    """Train a model that learns the corpus, and return the folder of the run."""
    from dragoman.training.run import train  # the tests of the runtime have no PyTorch

    with on_one_core():
        train(
            make_tiny_recipe(
                corpus,
                run,
                *NO_DROPOUT,
                "training.max_steps=200",
                "training.batch_tokens=400",
                "training.log_every_steps=20",
                "training.validate_every_steps=100",
                "training.checkpoint_every_steps=50",
            )
        )
    return run


@contextmanager
def short_runs() -> Iterator[None]:
    """Sync no disk, since no test cuts the power, and measure the processor's FLOP/s for a moment: half of a tiny run."""

    def skip_sync(_: int) -> None:
        """Return at once."""

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(os, "fsync", skip_sync))
        if find_spec("torch"):
            from dragoman.training import compute_plan

            patches.enter_context(mock.patch.object(compute_plan, "PEAK_FLOPS_SECONDS", 0.005))
        yield


@contextmanager
def on_one_core() -> Iterator[None]:
    """Compute in one thread on the CPU: small tensors are slower in several threads, and sums must be equal to the last bit."""
    try:
        import torch
    except ImportError:
        set_num_threads(1)
        try:
            yield
        finally:
            set_num_threads(None)
        return
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    set_num_threads(1)
    try:
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            yield
    finally:
        torch.set_num_threads(num_threads)
        set_num_threads(None)


def train_in_process(corpus: Path, run: Path) -> Path:
    """Train the run in a process of its own, without charts, which take more than half of its time."""
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    with short_runs():
        return train_tiny_run(corpus, run)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        run = pool.submit(train_in_process, write_corpus(folder / "corpus"), folder / "run")

        from conversion_sources import write_sources

        write_sources(folder / "sources", lambda: run.result() / "bundle")
