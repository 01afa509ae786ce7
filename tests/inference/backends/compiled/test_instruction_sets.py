"""Tests of the kernels for other processors than this one: their machine code, and their results in an emulator.

QEMU's user mode emulates processors with AVX2 and without AVX-512, on which any instruction of AVX-512 ends the process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")

from dragoman.inference.backends.compiled.kernels import cpu_features
from dragoman.inference.backends.compiled.kernels.cpu_features import (
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    ISA_VARIABLE,
    NEON,
    InstructionSet,
    get_cpu_features,
)

RUN_KERNELS, EMIT_KERNELS = (Path(__file__).with_name(name) for name in ("run_kernels.py", "emit_kernels.py"))
# Kernels that multiply bytes.
PRODUCT_KERNELS = {"encode", "step", "greedy_search", "beam_search"}
OTHER_KERNELS = {"pack_weights", "logsumexp", "topk"}
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
# QEMU emulates AVX2 since 7.2, which calls a processor of 2013 by Intel's name.
HASWELL = [str(QEMU), "-cpu", "Haswell"]

needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed (Debian's package qemu-user)")
needs_avx2 = pytest.mark.skipif(
    sys.platform != "linux" or not AVX2.features <= get_cpu_features(), reason="Linux on a processor with AVX2 is needed"
)


def run_program(
    program: Sequence[str], isa: InstructionSet | None, folder: Path, *, emulator: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a folder, with the kernels for this instruction set, or for the best that the processor has."""
    # PyTorch uses AVX2 on both processors.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    environment.pop(ISA_VARIABLE, None)
    if isa is not None:
        environment[ISA_VARIABLE] = isa.name
    command = [*emulator, sys.executable, *program]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def run_kernels(
    output: Path, isa: InstructionSet | None, *, emulator: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the process, and the kernels' results by name."""
    process = run_program([str(RUN_KERNELS), str(output)], isa, output.parent, emulator=emulator)
    assert process.returncode == 0, process.stderr
    with np.load(output) as results:
        return json.loads(process.stdout), dict(results)


@needs_avx2
@needs_qemu
@pytest.mark.slow
def test_haswell_runs_all_kernels(tmp_path: Path) -> None:
    """Results of the emulated processor equal those of this one, to the last bit. The first run compiles the kernels."""
    _, expected = run_kernels(tmp_path / "native.npz", AVX2)
    description, results = run_kernels(tmp_path / "emulated.npz", AVX2, emulator=HASWELL)
    assert description == {"instruction_set": AVX2.name, "imports_numba": False}
    assert results.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(results[name], expected[name])] == []


@needs_avx2
@pytest.mark.slow
def test_instruction_sets_agree(tmp_path: Path) -> None:
    """Results in float32 are equal to the last bit, because x86 processors add floats in one order.

    In int8, AVX2 has larger steps of weights, at most 127 / 31.5 times as large. The steps of the inputs are equal.
    """
    description, expected = run_kernels(tmp_path / "best.npz", None)
    if description["instruction_set"] == AVX2.name:
        pytest.skip("this processor has only AVX2")
    _, results = run_kernels(tmp_path / "avx2.npz", AVX2)
    assert results.keys() == expected.keys()
    exact = [name for name in expected if "float32" in name or name in ("logsumexp", "topk")]
    assert [name for name in exact if not np.array_equal(results[name], expected[name])] == []
    int8_logits = [name for name in expected if " int8 logits " in name]
    assert (len(exact), len(int8_logits)) == (62, 60)
    for name in int8_logits:
        exact_logits = expected[name.replace("int8", "float32")]
        error, best_error = (np.std(logits[name] - exact_logits) for logits in (results, expected))
        assert 0 < best_error < error < 127 / 31.5 * best_error, name


PACK_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from dragoman.inference.backends.compiled import jit_cache

if sys.argv[1:]:
    jit_cache._get_cache_dir = lambda: Path(sys.argv[1])
weights, panel = np.zeros((16, 64), np.float32), np.zeros(16 * 64, np.int8)
weights[:, 0] = 1.0
scale, compensation = np.zeros(16, np.float32), np.zeros(16, np.int32)
jit_cache.pack_weights(weights.ctypes.data, 16, 64, panel.ctypes.data, scale.ctypes.data, compensation.ctypes.data, 1)
print(compensation.sum())
print(jit_cache.get_cache_dir())
"""


@needs_avx2
@needs_qemu
@pytest.mark.slow
@pytest.mark.skipif(not AVX512_VNNI.features <= get_cpu_features(), reason="the processor lacks AVX-512")
def test_avx512_ends_the_emulated_process(tmp_path: Path) -> None:
    """Otherwise a run of the emulator would not show that kernels lack AVX-512."""
    # One weight of each output is not 0. AVX2 leaves room for the rounding of the other weights of its lane.
    for isa, returncode, sums in ((AVX2, 0, 16 * 126), (AVX512_VNNI, -signal.SIGILL, 16 * 127)):
        native = run_program(["-c", PACK_SCRIPT], isa, tmp_path)
        assert native.returncode == 0, native.stderr
        native_output, kernel_dir = native.stdout.splitlines()
        assert native_output == str(sums)
        emulated = run_program(["-c", PACK_SCRIPT, kernel_dir], AVX2, tmp_path, emulator=HASWELL)
        assert emulated.returncode == returncode, emulated.stderr
        assert emulated.stdout.splitlines()[:1] == ([native_output] if returncode == 0 else [])


def emit_assembly(folder: Path, triple: str, processor: str, features: frozenset[str], isa: InstructionSet) -> dict[str, str]:
    """Return the assembly of each kernel for a processor that has these features."""
    folder.mkdir()
    process = run_program([str(EMIT_KERNELS), triple, processor, ",".join(sorted(features)), str(folder)], isa, folder)
    assert (process.returncode, process.stderr) == (0, "")
    assembly = {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert assembly.keys() == PRODUCT_KERNELS | OTHER_KERNELS
    return assembly


def count(pattern: str, assembly: str) -> int:
    return len(re.findall(pattern, assembly))


# Registers that only AVX-512 has: of 512 bits, those from 16 on, and masks.
AVX512_REGISTERS = r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b"
# Conversions of 16-bit floats, one number at a time, for processors without instructions for them.
SOFT_FLOATS = r"__(?:extend|trunc)\w+"


@pytest.mark.slow
@pytest.mark.parametrize("isa", [AVX_VNNI, AVX2], ids=lambda isa: isa.name)
def test_kernels_for_avx2_have_no_avx512(isa: InstructionSet, tmp_path: Path) -> None:
    """`DRAGOMAN_CPU_ISA` restricts the kernels on a processor that has everything."""
    features = AVX512_VNNI.features | AVX_VNNI.features | {"avx512f", "avx512vl", "avx512dq"}
    for name, assembly in emit_assembly(tmp_path / "avx2", "x86_64-unknown-linux-gnu", "sapphirerapids", features, isa).items():
        assert count(AVX512_REGISTERS, assembly) == count(SOFT_FLOATS, assembly) == 0, name
        assert count(r"%ymm\d", assembly) > 0, name
        num_vnni, num_avx2 = count(r"\bvpdpbusd\b", assembly), count(r"\bvpmaddubsw\b", assembly)
        assert (num_vnni > 0) == (isa is AVX_VNNI and name in PRODUCT_KERNELS), name
        assert (num_avx2 > 0) == (isa is AVX2 and name in PRODUCT_KERNELS), name
        # AVX-512 has an instruction of the same name, in another encoding.
        assert count(r"\{vex\}\s+vpdpbusd\b", assembly) == num_vnni, name


@pytest.mark.slow
def test_kernels_for_avx512_use_its_registers(tmp_path: Path) -> None:
    """Otherwise the test above would not find them."""
    features = AVX512_VNNI.features | {"avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq"}
    assembly = emit_assembly(tmp_path / "avx512", "x86_64-unknown-linux-gnu", "cascadelake", features, AVX512_VNNI)
    assert all(count(AVX512_REGISTERS, kernel) for kernel in assembly.values())
    assert {name for name, kernel in assembly.items() if count(r"\bvpdpbusd\b", kernel)} == PRODUCT_KERNELS


@pytest.mark.slow
def test_kernels_for_arm_use_dot_products(tmp_path: Path) -> None:
    """The kernels are compiled for a processor of 64 bits with the dot products of ARMv8.2."""
    for name, assembly in emit_assembly(tmp_path / "arm", "aarch64-unknown-linux-gnu", "generic", NEON.features, NEON).items():
        assert count(SOFT_FLOATS, assembly) == 0, name
        assert (count(r"\bsdot\s+v\d+\.4s", assembly) > 0) == (name in PRODUCT_KERNELS), name
        assert count(r"\bfmla\s+v\d+\.4s", assembly) > 0 or name in OTHER_KERNELS, name


@pytest.mark.parametrize(
    ("capabilities", "features"),
    [
        (0x8FB, {"neon"}),  # Cortex-A72, as QEMU describes it
        (0x119FFB, {"neon", "dotprod"}),  # Cortex-A76
    ],
)
def test_features_of_arm_are_detected(capabilities: int, features: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(getauxval=lambda key: {16: capabilities}[key])
    monkeypatch.setattr(cpu_features, "ctypes", SimpleNamespace(CDLL=lambda name: library, c_ulong=None))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cpu_features._detect_arm_features() == features
