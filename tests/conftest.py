"""A language pair small enough to be learnt in a second: number and colour words, one for one in the same order."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
import torch

from dragoman.config import Recipe, make_recipe
from dragoman.io.storage import MANIFEST_FILE
from dragoman.training.run import train

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun", "ten": "zehn", "red": "rot", "blue": "blau", "green": "grün", "big": "groß",
    "small": "klein",
}  # fmt: skip
SPLITS = {"train": 60, "valid": 10, "test": 8}

MakeRecipe = Callable[..., Recipe]
"""(run folder, "section.knob=value" …) → a tiny recipe over the tiny corpus."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, valid and test in .en and .de, one to five words a line."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    for name, size in SPLITS.items():
        lines = [chance.choices(list(WORDS), k=chance.randint(1, 5)) for _ in range(size)]
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        translated = "".join(" ".join(WORDS[word] for word in line) + "\n" for line in lines)
        (folder / f"{name}.de").write_text(translated, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny(corpus: Path) -> MakeRecipe:
    def make(run: Path, *settings: str) -> Recipe:
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
            "tokenizer": {"vocab_size": 80, "byte_fallback": False},
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

    return make


NO_DROPOUT = [f"model.{place}_dropout=0" for place in ("residual", "embedding", "attention", "activation")]


@pytest.fixture(scope="session")
def trained(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has learnt something and come to its end. Nobody writes into it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with on_one_core():
        train(
            tiny(
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


@pytest.fixture(scope="session")
def bundle(trained: Path) -> Path:
    return trained / "bundle"


@pytest.fixture
def bundle_copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Tensors this small lose time to every further thread; and equal bits need equal sums, which a GPU does not promise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    with on_one_core():
        yield


def reseal(folder: Path) -> None:
    """Make the manifest anew after an edit, as someone who means harm would."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_FILE
    }
    (folder / MANIFEST_FILE).write_text(json.dumps({"format": 1, "files": files}, indent=1))


def as_version_0_1(recipe: dict[str, Any]) -> None:
    """Turn a recipe, as bundles and checkpoints hold it, into what version 0.1 wrote."""
    data, subword = recipe["data"], recipe["tokenizer"]
    for name in ("corpora", "temperature", "curriculum", "cleaning", "noise", "preprocessing_workers", "num_workers"):
        del data[name]
    for name in ("model_file", "target_model_file", "train_sentences", "sampling_alpha"):
        del subword[name]
    for split in SPLITS:
        if data[split] is not None:
            data[split] = {"source": data[split]["source"], "target": data[split]["target"], "tsv": data[split]["file"]}


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's config.json in place and seal it again."""
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(document)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    reseal(folder)


def pytest_configure(config: pytest.Config) -> None:
    """Nothing that was measured before the tests, and nothing of theirs left behind.

    Before any of them is read, since what is compiled looks for its place when it is imported. It is kept with pytest's own
    cache, lest every process that the tests start take its seconds anew.
    """
    folder = TemporaryDirectory(prefix="dragoman-cache-")
    config.add_cleanup(folder.cleanup)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("XDG_CACHE_HOME", folder.name)
    if (cache := getattr(config, "cache", None)) is not None:
        (Path(folder.name) / "dragoman").mkdir()
        (Path(folder.name) / "dragoman" / "kernels").symlink_to(cache.mkdir("kernels"), target_is_directory=True)
