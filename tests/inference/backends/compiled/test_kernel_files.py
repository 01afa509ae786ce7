"""Tests of the kernels' files: what is missing, damaged or foreign is one clear line."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.config import ModelConfig
from dragoman.inference.backends.compiled import kernel_files
from dragoman.inference.backends.compiled.backend import KernelObstacle, find_kernel_obstacle
from dragoman.inference.backends.compiled.cpu_features import get_cpu_features, get_instruction_set
from dragoman.inference.backends.compiled.kernel_files import LIST_FILE, KernelFiles, get_platform, read_list
from dragoman.inference.backends.select import choose_backend
from expected_errors import raises_code

DAMAGE = "is missing or damaged; install dragoman again by pip install --force-reinstall dragoman"

pytestmark = pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")


def clear_caches() -> None:
    """Let the process read and load the kernels again."""
    for function in (kernel_files._read_list_once, kernel_files.load_library, get_cpu_features, get_instruction_set):
        function.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder with a copy of the kernels, which the process has not loaded yet."""
    copy = tmp_path / "machine_code"
    shutil.copytree(kernel_files.FOLDER, copy)
    monkeypatch.setattr(kernel_files, "FOLDER", copy)
    clear_caches()
    yield copy
    clear_caches()


def get_kernel_file(folder: Path) -> Path:
    """Return the library that this processor uses."""
    instruction_set = get_instruction_set()
    assert instruction_set is not None
    clear_caches()
    (path,) = folder.glob(f"{instruction_set.name}.*")
    return path


def check_refusal(message: str) -> None:
    """Check that a model cannot be prepared, and that one line says why and what to do."""
    with raises_code("kernels-unusable") as caught:
        choose_backend(ModelConfig(), "cpu", "int8")
    assert str(caught.value) == f"cpu, int8: {message}"


@pytest.mark.parametrize("offset", [0, 100, 50_000, -1])
def test_damaged_kernels_are_refused(offset: int, folder: Path) -> None:
    path = get_kernel_file(folder)
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    check_refusal(f"{path}: {DAMAGE}")


@pytest.mark.parametrize("length", [0, 1000, None])
def test_truncated_and_lost_kernels_are_refused(length: int | None, folder: Path) -> None:
    path = get_kernel_file(folder)
    content = path.read_bytes()
    path.unlink()
    if length is not None:
        path.write_bytes(content[:length])
    check_refusal(f"{path}: {DAMAGE}")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"platform": 1}', "\x00"])
def test_damaged_list_is_refused(content: str, folder: Path) -> None:
    (folder / LIST_FILE).write_text(content, encoding="utf-8")
    check_refusal(f"{folder / LIST_FILE}: {DAMAGE}")


def test_checkout_without_kernels_names_the_command(folder: Path) -> None:
    shutil.rmtree(folder)
    check_refusal("the kernels are not built; build them in the checkout by pip install -e .")


def test_kernels_of_older_sources_are_refused(folder: Path) -> None:
    dataclasses.replace(read_list(), sources="0" * 64).write()
    check_refusal("the kernels are older than their sources; build them again by pip install -e .")


def test_kernels_of_another_platform_are_refused(folder: Path) -> None:
    dataclasses.replace(read_list(), platform="linux-riscv64").write()
    check_refusal(
        f"the kernels of this installation are for linux-riscv64, and this is {get_platform()}; "
        "install dragoman's wheel for this platform"
    )


def test_kernels_for_another_processor_are_refused(folder: Path) -> None:
    path = get_kernel_file(folder)
    kernels = read_list()
    dataclasses.replace(kernels, digests={name: kernels.digests[name] for name in kernels.digests if name != path.name}).write()
    check_refusal(f"this installation has no kernels for {path.stem}; install dragoman's wheel for this processor")


def test_platform_without_compiler_falls_back(folder: Path) -> None:
    KernelFiles(get_platform(), read_list().sources, {}).write()
    assert find_kernel_obstacle() == KernelObstacle("dragoman has no kernels for this platform")


def test_no_module_of_a_translation_is_a_compiler(folder: Path) -> None:
    script = """
import sys
import dragoman.inference.translator, dragoman.inference.backends.compiled.entry_points as kernels
kernels.encode.load()
print([name for name in ("numba", "llvmlite") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
