"""Shared fixtures: a tiny corpus of number and color words, a tiny recipe, and a run that has been trained on them."""

from __future__ import annotations

import hashlib
import json
import math
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
from hypothesis import HealthCheck, settings

from dragoman.config import Recipe, make_recipe
from dragoman.inference.backends.compiled.kernel_files import KernelFileError, read_list
from dragoman.io.storage import MANIFEST_FILE
from dragoman.runtime.progress import LINE_INTERVAL_SECONDS, LineTimer
from dragoman.runtime.thread_count import set_num_threads
from dragoman.training.run import train

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun", "ten": "zehn", "red": "rot", "blue": "blau", "green": "grün", "big": "groß",
    "small": "klein",
}  # fmt: skip
SPLITS = {"train": 60, "valid": 10, "test": 8}

settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
settings.load_profile("dragoman")

MakeRecipe = Callable[..., Recipe]
"""Function of (run folder, "section.key=value" …) that returns a tiny recipe for the tiny corpus."""


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines() -> Iterator[None]:
    """Switch off the progress lines, which a slow machine would write between the messages of a command."""
    with mock.patch.dict(LineTimer.__init__.__kwdefaults__ or {}, interval_seconds=math.inf):
        yield


@pytest.fixture
def progress_lines() -> Iterator[None]:
    """Switch the progress lines on, for tests of these lines."""
    with mock.patch.dict(LineTimer.__init__.__kwdefaults__ or {}, interval_seconds=LINE_INTERVAL_SECONDS):
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with train, valid and test in .en and .de, one to five words a line."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    for name, size in SPLITS.items():
        lines = [rng.choices(list(WORDS), k=rng.randint(1, 5)) for _ in range(size)]
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

    return make


NO_DROPOUT = [f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention", "activation")]


@pytest.fixture(scope="session")
def trained(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run whose model has learned the corpus. No test writes into it."""
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
    """Copy of the bundle that a test may damage."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Compute in one thread on the CPU: small tensors are slower in several threads, and sums must be equal to the last bit."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    set_num_threads(1)
    try:
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            yield
    finally:
        torch.set_num_threads(num_threads)
        set_num_threads(None)


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    with on_one_core():
        yield


def reseal(folder: Path) -> None:
    """Write a new manifest after an edit, so that the checksums hold."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_FILE
    }
    (folder / MANIFEST_FILE).write_text(json.dumps({"format": 1, "files": files}, indent=1))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's config.json in place and write a new manifest."""
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(document)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    reseal(folder)


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a cache folder of their own, without earlier measurements, and refuse to run without kernels."""
    try:
        read_list()
    except KernelFileError as error:
        raise pytest.UsageError(f"the tests run the kernels, but {error}") from None
    folder = TemporaryDirectory(prefix="dragoman-cache-")
    config.add_cleanup(folder.cleanup)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("XDG_CACHE_HOME", folder.name)
