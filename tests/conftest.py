"""Shared fixtures: a tiny corpus of number and color words, a tiny recipe, and a run that has been trained on them."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

import dragoman
from dragoman.bundle import Bundle, load_bundle
from dragoman.config import Recipe
from dragoman.errors import TRAINING_LIBRARIES
from dragoman.inference.backends.compiled.kernel_files import KernelFileError, read_list
from dragoman.inference.translator import Translator
from dragoman.io.storage import MANIFEST_FILE
from dragoman.runtime.progress import LINE_INTERVAL_SECONDS, LineTimer
from dragoman.text import glossary
from python_imports import find_imports
from tiny_runs import make_tiny_recipe, on_one_core, short_runs, train_tiny_run, write_corpus

RUN_VARIABLE = "DRAGOMAN_TEST_RUN"
"""Environment variable with the folder that `tests/tiny_runs.py` wrote: its run is `trained`, its texts are `corpus`."""
settings.register_profile(
    "dragoman",
    deadline=None,
    max_examples=15,  # each run draws others
    suppress_health_check=[HealthCheck.too_slow],  # of a busy machine
)
settings.load_profile("dragoman")

TRAINING_MODULES = (
    *("torch", "numba", "llvmlite", "pyarrow", "sacrebleu", "safetensors.torch", "transformers", "ctranslate2", "playwright"),
    *("dragoman.model.", "dragoman.training", "dragoman.experiments", "dragoman.tasks.torch_"),
    *("dragoman.inference.explain", "dragoman.parsing.explain_parse"),
)
"""Beginnings of the names of modules that an environment with the runtime's dependencies cannot import."""

MakeRecipe = Callable[..., Recipe]
"""Function of (run folder, "section.key=value" …) that returns a tiny recipe for the tiny corpus."""


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines() -> Iterator[None]:
    """Switch off the lines about progress and load, which a slow or busy machine would write between those of a command."""
    with (
        mock.patch.dict(LineTimer.__init__.__kwdefaults__ or {}, interval_seconds=math.inf),
        mock.patch.object(os, "getloadavg", return_value=(0.0, 0.0, 0.0), create=True),
    ):
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_runs() -> Iterator[None]:
    """Let the runs of tests be short. Tests of syncs and of the measurement replace both."""
    with short_runs():
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_dictionaries() -> Iterator[None]:
    """Make glossaries without dictionaries of simplemma. The German one takes more than a second."""
    with mock.patch.object(glossary, "get_lemmatizer", return_value=None):
        yield


@pytest.fixture
def progress_lines() -> Iterator[None]:
    """Switch the progress lines on, for tests of these lines."""
    with mock.patch.dict(LineTimer.__init__.__kwdefaults__ or {}, interval_seconds=LINE_INTERVAL_SECONDS):
        yield


@pytest.fixture
def quiet() -> Iterator[None]:
    """Ignore what transformers deprecates of its own, and switch its messages off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if transformers := sys.modules.get("transformers"):
            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
        yield


@pytest.fixture
def charts() -> None:
    """Let the runs of a test draw their charts."""


@pytest.fixture(autouse=True)
def _no_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no charts of the runs of a test, without the fixture `charts`: they take more than half of a tiny run's time."""
    if "tiny" in request.fixturenames and "charts" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no charts of the runs of a fixture that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        if fixturedef.scope != "function":
            patch.setitem(sys.modules, "matplotlib", None)
        return (yield)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with train, valid and test in .en and .de, one to five words a line."""
    if folder := os.environ.get(RUN_VARIABLE):
        return Path(folder) / "corpus"
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def tiny(corpus: Path) -> MakeRecipe:
    return partial(make_tiny_recipe, corpus)


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run whose model has learned the corpus. No test writes into it.

    An environment without PyTorch has it from `tests/tiny_runs.py`.
    """
    if folder := os.environ.get(RUN_VARIABLE):
        return Path(folder) / "run"
    return train_tiny_run(corpus, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def bundle(trained: Path) -> Path:
    return trained / "bundle"


@pytest.fixture(scope="module")
def trained_bundle(bundle: Path) -> Bundle:
    return load_bundle(bundle)


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    """Return the translator of the bundle in float32 on the CPU."""
    return dragoman.load(bundle, task="translation", device="cpu", precision="float32")


@pytest.fixture
def bundle_copy(bundle: Path, tmp_path: Path) -> Path:
    """Copy of the bundle that a test may damage."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


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


class TrainingModule(pytest.Module):
    """Module of tests that imports PyTorch or another library of training, which this environment lacks."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("needs the libraries of training", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip modules of tests that import libraries of training, in an environment without PyTorch.

    Modules of the runtime are not asked: if one of them imports PyTorch, its tests fail.
    """
    if find_spec("torch") is None and any(name.startswith(TRAINING_MODULES) for name in find_imports(module_path)):
        return TrainingModule.from_parent(parent, path=module_path)
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dragoman")
    group.addoption("--without-pytorch", metavar="FILE", help="write the names of the tests that pass without PyTorch")
    group.addoption("--leave-out", metavar="FILE", help="leave out the tests whose names are in the file")


class PassedTests:
    """Names of the tests that pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and not isinstance(report, pytest.SubtestReport):
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text("".join(f"{json.dumps(name)}\n" for name in self.names), encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that have passed without PyTorch, which would do the same with it."""
    if path := config.getoption("--leave-out"):
        names = set(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in names])
        items[:] = [item for item in items if item.nodeid not in names]


def pytest_collection_finish() -> None:
    """Leave the modules and the tests out of later garbage collections, a twentieth of the processor time."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a cache folder of their own, without earlier measurements, and refuse to run without kernels."""
    if (path := config.getoption("--without-pytorch")) and not hasattr(config, "workerinput"):
        if libraries := [name for name in (*TRAINING_LIBRARIES, "numba", "llvmlite") if find_spec(name)]:
            raise pytest.UsageError(f"--without-pytorch: this environment has {', '.join(libraries)}")
        config.pluginmanager.register(PassedTests(Path(path)))
    try:
        read_list()
    except KernelFileError as error:
        raise pytest.UsageError(f"the tests run the kernels, but {error}") from None
    folder = TemporaryDirectory(prefix="dragoman-cache-")
    config.add_cleanup(folder.cleanup)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("XDG_CACHE_HOME", folder.name)
