"""Commands that translate, parse and serve run in a process without the libraries of the extra `train`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dragoman
from conftest import TRAINING_MODULES, MakeRecipe, PassedTests, pytest_collection_modifyitems
from dragoman.bundle import save_bundle
from dragoman.data.tokenization.pair_tokenizer import train_tokenizer
from dragoman.errors import TRAINING_LIBRARIES
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights
from python_imports import TESTS, find_imports
from tiny_runs import WORDS
from toy_treebank import save_toy_parser

BLOCKED = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in {(*TRAINING_LIBRARIES, "numba", "llvmlite")!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
sys.argv[0] = "dragoman"
"""
COMMAND = BLOCKED + "from dragoman.cli.main import main\nmain()\n"
WITH_PYTORCH = "import torch\nfrom dragoman.cli.main import main\nmain()\n"


def run(program: str, *arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a process in which the libraries of training cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], input=text, capture_output=True, text=True, check=False
    )


def test_command_translates_as_with_pytorch(bundle: Path) -> None:
    text = "one two three\nfour\n"
    done = run(COMMAND, "translate", bundle, text=text)
    assert (done.returncode, done.stderr) == (0, "")
    translations = dragoman.load(bundle, task="translation").translate(text.splitlines())
    assert done.stdout.splitlines() == [translation.text for translation in translations]
    assert all(done.stdout.splitlines())


def test_init_reads_tsv(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"one {n}\teins {n}\n" for n in range(300)), encoding="utf-8")
    done = run(COMMAND, "init", tmp_path / "pairs.tsv", "--from", "en", "--to", "de", "-o", tmp_path / "own.toml")
    assert (done.returncode, (tmp_path / "own.toml").exists()) == (0, True), done.stderr


@pytest.mark.parametrize(("setting", "expected"), [({}, "16"), ({"OPENBLAS_THREAD_TIMEOUT": "20"}, "20")])
def test_threads_of_numpy_sleep_when_they_have_no_work(setting: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"} | setting
    program = "import os, sys\nimport dragoman\nprint('numpy' in sys.modules, os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {expected}\n"  # OpenBLAS reads the setting when NumPy is imported


@pytest.mark.slow
@pytest.mark.parametrize("target_format", ["ctranslate2", "onnx", "argos"])
def test_command_exports(target_format: str, bundle: Path, tmp_path: Path) -> None:
    done = run(COMMAND, "export", bundle, tmp_path / "out.argosmodel", "--to", target_format)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.argosmodel").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["evaluate", "{bundle}", "--src", "{text}", "--ref", "{text}"], "evaluate"),
        (["score", "{text}", "--ref", "{text}"], "evaluate"),
        (["explain", "{bundle}", "one", "-o", "{text}.html"], "train"),
        (["train", "{text}.toml"], "train"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_command_names_the_extra(arguments: list[str], extra: str, bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one\n", encoding="utf-8")
    Path(f"{text}.toml").write_text('preset = "modern"\n', encoding="utf-8")
    done = run(COMMAND, *(argument.format(bundle=bundle, text=text) for argument in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f", which is not installed: pip install 'dragoman[{extra}]'\n"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_parser_parses_as_with_pytorch(tmp_path: Path) -> None:
    bundle, text = save_toy_parser(tmp_path / "parser"), "the cat sees a dog\n"
    results = [run(program, "parse", bundle, text=text) for program in (COMMAND, WITH_PYTORCH)]
    assert results[0].returncode in (0, 3), results[0].stderr
    assert (results[0].returncode, results[0].stdout) == (results[1].returncode, results[1].stdout)


@pytest.mark.slow
def test_doctor_and_info_need_no_pytorch(bundle: Path) -> None:
    done = run(COMMAND, "doctor")
    assert done.returncode == 0, done.stderr
    assert "PyTorch is missing. It is needed for training: pip install 'dragoman[train]'" in done.stdout
    done, with_pytorch = (run(program, "info", bundle, "--all") for program in (COMMAND, WITH_PYTORCH))
    assert (done.stderr, done.stdout) == ("", with_pytorch.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "purpose"),
    [
        (
            "from dragoman.inference.backends.compiled import backend\n"
            "    backend.has_kernels = lambda: False\n"
            "    dragoman.load(sys.argv[1], device='cpu').translate(['one'])",
            "precision 'float32' on this processor",
        ),
        ("dragoman.bundle.load_bundle(Path(sys.argv[1])).model", "the model of PyTorch"),
    ],
)
def test_library_names_the_extra(bundle: Path, code: str, purpose: str) -> None:
    program = BLOCKED + (
        "from pathlib import Path\nimport dragoman, dragoman.bundle\nfrom dragoman.errors import MissingDependencyError\n"
        f"try:\n    {code}\nexcept MissingDependencyError as error:\n    print(error)\n"
    )
    done = run(program, bundle)
    assert done.stdout.endswith(f": {purpose} needs PyTorch, which is not installed: pip install 'dragoman[train]'\n"), done


@pytest.mark.slow
def test_other_architecture_names_the_extra(tiny: MakeRecipe, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    recipe = tiny(tmp_path, "model.normalization='batch'")
    tokenizer = train_tokenizer(WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=True, seed=1)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target))
    save_bundle(folder, recipe=recipe, tokenizer=tokenizer, weights=collect_weights(model), metadata={})
    done = run(COMMAND, "translate", folder, text="one\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"dragoman: {folder / 'config.json'}: a model with model.normalization = 'batch' needs PyTorch, "
        "which is not installed: pip install 'dragoman[train]'\n"
    )


def test_only_passed_tests_are_left_out(tmp_path: Path) -> None:
    """A test that is skipped without PyTorch, or whose fixtures alone have passed, runs with it."""
    passed = PassedTests(tmp_path / "passed")
    for name, when, outcome in (("a", "setup", "passed"), ("b[é]", "call", "passed"), ("c", "call", "skipped")):
        report: Any = SimpleNamespace(nodeid=name, when=when, passed=outcome == "passed")
        passed.pytest_runtest_logreport(report)
    passed.pytest_sessionfinish()
    left_out: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(item.nodeid for item in items))
    config: Any = SimpleNamespace(getoption=lambda _: tmp_path / "passed", hook=hook)
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in ("a", "b[é]", "c", "d")]
    pytest_collection_modifyitems(config, items)
    assert (left_out, [item.nodeid for item in items]) == (["b[é]"], ["a", "c", "d"])


def test_folders_that_run_once_need_no_training() -> None:
    """`make test` runs them in the environment without PyTorch only."""
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    folders = re.findall(r"^RUNTIME_ONLY := \$\(addprefix tests/,(.*)\)$", makefile, re.MULTILINE)[0].split()
    modules = [path for folder in folders for path in (TESTS / folder).rglob("test_*.py")]
    assert modules
    assert [path for path in modules if any(name.startswith(TRAINING_MODULES) for name in find_imports(path))] == []
