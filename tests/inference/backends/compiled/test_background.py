"""Tests of the compilation in a child process: packed models stand in, kernels arrive once, and no process is left behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import load
from dragoman.inference.backends import select
from dragoman.inference.backends.compiled import background
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.packed.backend import PackedBackend
from dragoman.inference.backends.protocol import fall_back
from expected_errors import raises_code

if not CompiledBackend().check_machine("int8").is_supported:
    pytest.skip("the compiled back end does not run here", allow_module_level=True)

from dragoman.inference.backends.compiled import compile_main, jit_cache

LINES = ["one two three", "red big ten", "small"]
KERNEL_NAMES = ("pack_weights", "encode", "greedy_search", "beam_search", "step", "logsumexp", "topk")
# Child process that waits for a file and then answers with the bytes of another file.
FAKE_CHILD = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.stdout.buffer.write(open(sys.argv[1], "rb").read())
"""


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a path. When a test writes answers to it, a fake child process sends them. All kernels count as missing."""
    answers_path = tmp_path / "answers"

    def start_child(names: Any, niceness: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", FAKE_CHILD, str(answers_path)], stdout=subprocess.PIPE)

    for entry in jit_cache.ENTRY_POINTS:
        monkeypatch.setattr(entry, "_received", None)
    monkeypatch.setattr(background, "_start_child", start_child)
    monkeypatch.setattr(background, "_compilation", None)
    monkeypatch.setattr(jit_cache, "list_missing", lambda: list(KERNEL_NAMES))
    monkeypatch.delenv("DRAGOMAN_COMPILE")
    yield answers_path
    if (compilation := background._compilation) is not None:
        compilation._process.kill()
        assert compilation.wait(60)
        assert compilation._process.returncode is not None


def write_whole(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


def build_answers() -> bytes:
    """Return what a child process sends about all kernels."""
    output = io.BytesIO()
    for entry in jit_cache.ENTRY_POINTS:
        assert compile_main.send_answer(output, *compile_main.compile_kernel(entry))
    return output.getvalue()


def wait_for_compilation() -> background.BackgroundCompilation:
    compilation = background._compilation
    assert compilation is not None
    assert compilation.wait(60)
    return compilation


@pytest.mark.slow
def test_packed_model_answers_until_kernels_arrive(bundle: Path, answers: Path) -> None:
    expected = [
        translation.text for translation in load(bundle, task="translation", device="cpu", precision="int8").translate(LINES)
    ]
    translator = load(bundle, task="translation", device="cpu", precision="int8", compile_in_background=True)
    stand_in = translator.inference_model
    assert stand_in.native_search is None
    assert [translation.text for translation in translator.translate(LINES)] == expected  # a trained model is not near a tie
    assert translator.inference_model is stand_in
    write_whole(answers, build_answers())
    assert wait_for_compilation().error is None
    assert {entry.name for entry in jit_cache.ENTRY_POINTS if entry._received is not None} == set(KERNEL_NAMES)
    assert [translation.text for translation in translator.translate(LINES)] == expected
    assert translator.inference_model.native_search is not None
    assert not translator.scheduler.has_stand_in


def test_failed_compilation_keeps_packed_model(bundle: Path, answers: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = load(bundle, task="translation", device="cpu", precision="int8", compile_in_background=True)
    stand_in = translator.inference_model
    write_whole(answers, json.dumps({"kernel": "pack_weights", "error": "LoweringError: no such type"}).encode() + b"\n")
    assert wait_for_compilation().error == "pack_weights: LoweringError: no such type"
    assert translator.inference_model is stand_in
    assert len(translator.translate(LINES)) == len(LINES)
    assert "pack_weights: LoweringError: no such type" in caplog.text
    # A second session neither waits nor tries again.
    second = load(bundle, task="translation", device="cpu", precision="int8", compile_in_background=True)
    assert second.inference_model.native_search is None


def test_child_that_ends_early_is_an_error(answers: Path) -> None:
    write_whole(answers, b"")
    with pytest.raises(background.CompilationError, match="encode: the process that compiles it has ended"):
        list(background.compile_in_child(["encode"]))
    write_whole(answers, build_answers()[:-1])
    with pytest.raises(background.CompilationError, match="topk: the process that compiles it has ended"):
        list(background.compile_in_child(KERNEL_NAMES))


def test_killed_child_leaves_no_zombie(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start_child = background._start_child

    def start_and_keep(names: Any, niceness: int) -> subprocess.Popen[bytes]:
        started.append(start_child(names, niceness))
        return started[-1]

    monkeypatch.setattr(background, "_start_child", start_and_keep)
    kernels = background.compile_in_child(KERNEL_NAMES)
    timer = threading.Timer(0.2, lambda: started[0].kill())
    timer.start()
    with pytest.raises(background.CompilationError):
        next(kernels)
    timer.join()
    assert started[0].returncode is not None
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0].pid, os.WNOHANG)


def test_library_waits_for_kernels_by_default(bundle: Path, answers: Path) -> None:
    assert load(bundle, task="translation", device="cpu", precision="int8").inference_model.native_search is not None
    assert background._compilation is None


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [("", False, False), ("", True, True), ("wait", True, False), ("background", False, True)],
)
def test_variable_takes_precedence_over_default(
    value: str, default: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_COMPILE", value)
    assert background.compiles_in_background(default) is expected


def test_unknown_compile_mode_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_COMPILE", "never")
    with raises_code("invalid-compile-mode", "DRAGOMAN_COMPILE=never", "wait or background"):
        load(bundle, task="translation", device="cpu", precision="int8")


def test_stand_in_without_int8_is_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedBackend, "check_machine", lambda self, precision: fall_back("no products"))
    assert select.get_stand_in_precision("int8") == "float32"


def test_kernel_is_compiled_once_for_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of two threads have no common lock but that of the folder, as those of two processes."""
    calls: list[str] = []

    def compile_object(module: str, name: str) -> tuple[str, bytes]:
        calls.append(name)
        time.sleep(0.1)
        return "symbol", b"code"

    monkeypatch.setattr(jit_cache, "_get_cache_dir", lambda: tmp_path)
    monkeypatch.setattr("dragoman.inference.backends.compiled.jit.compile_object", compile_object)
    results: list[tuple[str, bytes]] = []
    threads = [
        threading.Thread(target=lambda: results.append(jit_cache.EntryPoint("logits", "topk").compile())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["topk"]
    assert results == [("symbol", b"code")] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["topk"]  # the lock leaves no file


def test_received_kernel_runs_without_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol, code = jit_cache.logsumexp.compile()
    monkeypatch.setattr(jit_cache, "_get_cache_dir", lambda: None)
    monkeypatch.setitem(sys.modules, "dragoman.inference.backends.compiled.jit", None)
    entry = jit_cache.EntryPoint("logits", "logsumexp")
    assert not entry.is_cached()
    entry.receive(symbol, code)
    assert entry.is_cached()
    assert not entry.is_on_disk()
    logits_NV = torch.arange(20.0).view(2, 10)
    logsumexp_N = torch.empty(2, dtype=torch.float64)
    entry(logits_NV.data_ptr(), 2, 10, logsumexp_N.data_ptr())
    assert torch.allclose(logsumexp_N, logits_NV.double().logsumexp(-1), rtol=0, atol=2e-6)


def test_child_without_client_ends_only_if_nothing_keeps_the_kernel() -> None:
    class ClosedPipe(io.BytesIO):
        def write(self, content: Any) -> int:
            raise BrokenPipeError

    assert not compile_main.send_answer(ClosedPipe(), {"kernel": "encode"})


@pytest.mark.slow
def test_compilation_outlives_a_short_command(bundle: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    del environment["DRAGOMAN_COMPILE"]

    def translate() -> tuple[str, str]:
        command = [sys.executable, "-m", "dragoman", "translate", str(bundle), "--precision", "int8"]
        result = subprocess.run(command, input="one two\n", env=environment, capture_output=True, text=True, check=True)
        return result.stdout, result.stderr

    first_output, first_messages = translate()
    assert f"compiling {len(KERNEL_NAMES)} kernels in the background" in first_messages
    deadline = time.monotonic() + 240
    while len([path for path in tmp_path.rglob("*") if path.name in KERNEL_NAMES]) < len(KERNEL_NAMES):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    second_output, second_messages = translate()
    assert second_messages == ""
    assert second_output == first_output != "\n"
