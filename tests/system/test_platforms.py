"""Platforms without functions of Linux: dragoman is imported, and its commands run, after all of them are removed.

A `sitecustomize` module removes them when Python starts, in the commands and in the processes that these start.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import dragoman
from conftest import MakeRecipe
from dragoman.runtime.processes import block_signals, unblock_signals
from dragoman.training.monitoring import flops
from tiny_runs import write_recipe

SOURCES = Path(dragoman.__file__).parent
FEATURES_MODULE = SOURCES / "platform_features.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="removes functions of Linux")

ALL_FEATURES = (
    *("signal.SIGUSR1", "signal.SIGHUP", "resource", "fcntl", "os.sched_setaffinity", "os.sched_getaffinity"),
    *("signal.SIGUSR2", "signal.SIGQUIT", "signal.SIGALRM", "signal.alarm", "signal.pthread_sigmask"),
    *("os.O_DIRECTORY", "os.fork", "os.setpgid", "os.setsid", "os.killpg", "os.sysconf", "os.geteuid"),
    *("os.posix_fadvise", "mmap.MADV_DONTNEED", "termios", "pwd", "grp"),
    *("CDLL(None)", "/proc", "select on pipes"),
)

# Modules of the standard library and of other projects choose by the name of the platform, so that they keep all modules.
PRELUDE = """
import builtins, ctypes, importlib, io, os, select, sys

MISSING = set(os.environ["MISSING_FEATURES"].split(","))
real_import, real_open, real_cdll = builtins.__import__, io.open, ctypes.CDLL

def is_dragoman(frame):
    return frame.f_globals.get("__name__", "").startswith("dragoman")

def import_existing(name, *arguments, **options):
    if name in MISSING and is_dragoman(sys._getframe(1)):
        raise ImportError(f"No module named {name!r}")
    return real_import(name, *arguments, **options)

real_import_module = importlib.import_module

def import_existing_module(name, package=None):
    if name in MISSING and is_dragoman(sys._getframe(1)):
        raise ImportError(f"No module named {name!r}")
    return real_import_module(name, package)

def open_existing(path, *arguments, **options):
    if str(path).startswith(("/proc/", "/sys/", "/dev/fd/")):
        raise FileNotFoundError(path)
    return real_open(path, *arguments, **options)

class ExistingLibrary(real_cdll):
    def __init__(self, name, *arguments, **options):
        if name is None and is_dragoman(sys._getframe(1)):
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *arguments, **options)

def select_sockets(*arguments):
    raise OSError(10038, "not a socket")

builtins.__import__, importlib.import_module = import_existing, import_existing_module
builtins.open = io.open = open_existing
ctypes.CDLL, select.select = ExistingLibrary, select_sockets
for name in MISSING:
    module, dot, attribute = name.partition(".")
    if dot:
        delattr(real_import(module), attribute)
"""

IMPORT_ALL = """
import importlib, pkgutil

def import_all():
    import dragoman
    names = [module.name for module in pkgutil.walk_packages(dragoman.__path__, "dragoman.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return len(names)
"""


RUN_COMMANDS = f"""
import json, os, signal, sys
{IMPORT_ALL}
assert import_all() > 100
assert not hasattr(signal, "SIGHUP") and not hasattr(os, "O_DIRECTORY")

from dragoman.cli.main import cli
from dragoman import platform_features
assert (platform_features.fcntl, platform_features.resource, platform_features.get_c_function("abort")) == (None,) * 3

for words in json.loads(sys.argv[1]):
    cli.main(words, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def prelude_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the module that removes the features."""
    folder = tmp_path_factory.mktemp("prelude")
    (folder / "sitecustomize.py").write_text(PRELUDE, encoding="utf-8")
    return folder


def run_python(
    prelude_dir: Path,
    *words: str,
    stdin: str = "",
    cwd: Path | None = None,
) -> str:
    """Run Python without the features and return its standard output. It must succeed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(prelude_dir),
        "MISSING_FEATURES": ",".join(ALL_FEATURES),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *words]
    done = subprocess.run(
        command, env=environment, input=stdin, capture_output=True, text=True, check=False, cwd=cwd, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_is_shown_without_features(prelude_dir: Path) -> None:
    assert "Exit status" in run_python(prelude_dir, "-m", "dragoman", "--help")


@pytest.mark.parametrize(
    ("train_options", "translate_options"),
    [
        pytest.param([], ["--precision", "float32"], id="one process"),
        pytest.param(
            ["data.num_workers=1"], ["--precision", "int8", "--inter-threads", "2"], id="processes", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.slow
def test_commands_run_without_all_features(
    train_options: list[str], translate_options: list[str], prelude_dir: Path, tiny: MakeRecipe, tmp_path: Path
) -> None:
    settings = ("training.max_steps=2", "training.num_validation_translations=2", "decoding.max_extra_tokens=2")
    write_recipe(tmp_path / "recipe.toml", tiny(Path("run"), *settings))
    commands = [
        ["clean", "recipe.toml", "data.cleaning.max_words=40", "-o", "cleaned", "--format", "lines"],
        ["prepare", "recipe.toml"],
        ["train", "recipe.toml", *train_options],
        ["translate", "run/bundle", "--window", "2", *translate_options],
    ]
    output = run_python(prelude_dir, "-c", RUN_COMMANDS, json.dumps(commands), stdin="one\n\ntwo three\n", cwd=tmp_path)
    assert (tmp_path / "cleaned" / "cleaning.json").is_file()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "memory_mib" in line]
    assert [(line["step"], line["memory_mib"]) for line in steps] == [(1, None), (2, None)]
    assert output.splitlines()[-2] == ""  # the second of three lines has no text


def test_signals_are_not_blocked_without_signal_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    get_mask = partial(signal.pthread_sigmask, signal.SIG_BLOCK, [])
    mask = get_mask()
    monkeypatch.delattr(signal, "pthread_sigmask")
    with block_signals(signal.SIGTERM):
        assert get_mask() == mask
        unblock_signals(signal.SIGTERM)
    assert get_mask() == mask


def test_memory_is_unknown_without_proc_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "resource", None)
    monkeypatch.setattr(flops, "STATM_FILE", Path("/no/such/file"))
    assert flops.read_resident_mib() is None


def test_features_are_detected_in_one_module(subtests: pytest.Subtests) -> None:
    for pattern in [
        r"signal\.SIG(?!INT|TERM|_|nals)",
        r"(?m)^\s*(import|from) (resource|fcntl|termios|pwd|grp)\b",
        r"os\.(sched_|setpgid|setsid|killpg|fork|sysconf|uname|posix_)",
        r"CDLL\(None\)",
        r"O_DIRECTORY",
        r"[^_]process_group=",
    ]:
        with subtests.test(pattern=pattern):
            exceptions = {FEATURES_MODULE, SOURCES / "inference" / "backends" / "compiled" / "cpu_features.py"}
            users = [path for path in SOURCES.rglob("*.py") if re.search(pattern, path.read_text(encoding="utf-8"))]
            assert [path for path in users if path not in exceptions] == []
