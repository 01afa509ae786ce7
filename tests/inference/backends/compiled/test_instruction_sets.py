"""Tests of the kernels for other processors than this one: their machine code, and their results in an emulator.

QEMU's user mode emulates processors with AVX2 and without AVX-512, on which any instruction of AVX-512 ends the process. It
emulates neither AVX-512 nor AVX-VNNI: those kernels run only where the processor has them. It emulates ARM, so a
program without Python runs kernels for NEON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.inference.backends.compiled import cpu_features
from dragoman.inference.backends.compiled.cpu_features import ISA_VARIABLE, get_cpu_features
from dragoman.inference.backends.compiled.kernels.instruction_sets import (
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    NEON,
    TARGET_VARIABLE,
    InstructionSet,
)

RUN_KERNELS, EMIT_KERNELS, CALL_KERNEL = (
    Path(__file__).with_name(name) for name in ("run_kernels.py", "emit_kernels.py", "call_kernel.c")
)
KERNELS = {"pack_weights", "encode", "step", "predict_frames", "greedy_search", "beam_search", "logsumexp", "topk"}
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
# QEMU emulates AVX2 since 7.2, which calls a processor of 2013 by Intel's name.
HASWELL = [str(QEMU), "-cpu", "Haswell"]

needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed (Debian's package qemu-user)")
QEMU_ARM = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
needs_arm = pytest.mark.skipif(
    QEMU_ARM is None or find_spec("ziglang") is None,
    reason="qemu-aarch64 (Debian's package qemu-user) or ziglang is not installed",
)
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="Numba is not installed")
needs_avx2 = pytest.mark.skipif(
    sys.platform != "linux" or not AVX2.features <= get_cpu_features(), reason="Linux on a processor with AVX2 is needed"
)


def run_program(
    program: Sequence[str], isa: InstructionSet | None, folder: Path, *, emulator: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a folder, with the kernels for this instruction set, or for the best that the processor has."""
    # PyTorch uses AVX2 on both processors.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    helpers = str(Path(__file__).parents[3])  # where the programs find modules of the tests
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (helpers, environment.get("PYTHONPATH"))))
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
    """Results of the emulated processor equal those of this one, to the last bit."""
    _, expected = run_kernels(tmp_path / "native.npz", AVX2)
    description, results = run_kernels(tmp_path / "emulated.npz", AVX2, emulator=HASWELL)
    assert description == {"instruction_set": AVX2.name}
    assert results.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(results[name], expected[name])] == []


@needs_avx2
@pytest.mark.slow
@pytest.mark.parametrize("isa", [AVX512_VNNI, AVX_VNNI], ids=lambda isa: isa.name)
def test_instruction_sets_agree(isa: InstructionSet, tmp_path: Path) -> None:
    """Results in float32 are equal to the last bit, because x86 processors add floats in one order.

    In int8, AVX2 has larger steps of weights, at most 127 / 31.5 times as large. The steps of the inputs are equal.
    """
    if not isa.features <= get_cpu_features():
        pytest.skip(f"the processor lacks {isa.name}, and QEMU emulates no processor with it")
    description, expected = run_kernels(tmp_path / "best.npz", isa)
    assert description == {"instruction_set": isa.name}
    _, results = run_kernels(tmp_path / "avx2.npz", AVX2)
    assert results.keys() == expected.keys()
    exact = [name for name in expected if "float32" in name or name in ("logsumexp", "topk")]
    assert [name for name in exact if not np.array_equal(results[name], expected[name])] == []
    int8_logits = [name for name in expected if " int8 logits " in name]
    assert (len(exact), len(int8_logits)) == (82, 80)
    for name in int8_logits:
        exact_logits = expected[name.replace("int8", "float32")]
        error, best_error = (np.std(logits[name] - exact_logits) for logits in (results, expected))
        assert 0 < best_error < error < 127 / 31.5 * best_error, name


TRANSLATE_SCRIPT = """
import sys
sys.modules["torch"] = None  # an import raises ModuleNotFoundError
from dragoman.cli.main import main
main()
"""


@needs_avx2
@needs_qemu
@pytest.mark.slow
def test_processor_below_avx2_needs_pytorch(bundle: Path, tmp_path: Path) -> None:
    command = ["-c", TRANSLATE_SCRIPT, "translate", str(bundle), os.devnull]
    result = run_program(command, None, tmp_path, emulator=[str(QEMU), "-cpu", "SandyBridge"])
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("qemu-x86_64: warning: "))
    message = "tiny: precision 'float32' on this processor needs PyTorch, which is not installed: pip install 'dragoman[train]'"
    assert line.endswith(message)


def emit_assembly(triple: str, isa: InstructionSet, folder: Path) -> str:
    """Return the assembly of all kernels for an instruction set."""
    environment = os.environ | {TARGET_VARIABLE: isa.name}
    command = [sys.executable, str(EMIT_KERNELS), triple]
    process = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert set(re.findall(r"^_?(\w+):", process.stdout, re.MULTILINE)) >= KERNELS
    return process.stdout


def count(pattern: str, assembly: str) -> int:
    return len(re.findall(pattern, assembly))


# Registers that only AVX-512 has: of 512 bits, those from 16 on, and masks.
AVX512_REGISTERS = r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b"
# Conversions of 16-bit floats, one number at a time, for processors without instructions for them.
SOFT_FLOATS = r"__(?:extend|trunc)\w+"


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize("isa", [AVX_VNNI, AVX2], ids=lambda isa: isa.name)
def test_kernels_for_avx2_have_no_avx512(isa: InstructionSet, tmp_path: Path) -> None:
    assembly = emit_assembly("x86_64-unknown-linux-gnu", isa, tmp_path)
    assert count(AVX512_REGISTERS, assembly) == count(SOFT_FLOATS, assembly) == 0
    assert count(r"%ymm\d", assembly) > 0
    num_vnni, num_avx2 = count(r"\bvpdpbusd\b", assembly), count(r"\bvpmaddubsw\b", assembly)
    assert (num_vnni > 0, num_avx2 > 0) == (isa is AVX_VNNI, isa is AVX2)
    # AVX-512 has an instruction of the same name, in another encoding.
    assert count(r"\{vex\}\s+vpdpbusd\b", assembly) == num_vnni


@needs_numba
@pytest.mark.slow
def test_kernels_for_avx512_use_its_registers(tmp_path: Path) -> None:
    """Otherwise the test above would not find them."""
    assembly = emit_assembly("x86_64-unknown-linux-gnu", AVX512_VNNI, tmp_path)
    assert all(count(pattern, assembly) for pattern in (AVX512_REGISTERS, r"\bvpdpbusd\b", r"\btdpbusd\b"))


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-macosx11.0.0"])
def test_kernels_for_arm_use_dot_products(triple: str, tmp_path: Path) -> None:
    """The kernels are compiled for a processor of 64 bits with the dot products of ARMv8.2."""
    assembly = emit_assembly(triple, NEON, tmp_path)
    assert count(SOFT_FLOATS, assembly) == 0
    for pattern in (r"\bsdot(?:\.4s)?\s+v\d+", r"\bfmla(?:\.4s)?\s+v\d+"):
        assert count(pattern, assembly) > 0


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Program for ARM with the kernels of NEON, which calls one of them."""
    folder = tmp_path_factory.mktemp("arm")
    environment = os.environ | {TARGET_VARIABLE: NEON.name}
    emitter = [sys.executable, "-m", "dragoman.inference.backends.compiled.kernels.emit"]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static", "-O1", "-lm"]
    for command in (
        [*emitter, "aarch64-unknown-linux-gnu", "neon.o"],
        [*compiler, "-o", "call_kernel", str(CALL_KERNEL), "neon.o"],
    ):
        process = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    return folder / "call_kernel"


def call_on_arm(program: Path, kernel: str, arrays: Sequence[NDArray[Any]], words: Sequence[int]) -> list[NDArray[Any]]:
    """Call a kernel on an emulated processor, and return the arrays after the call.

    words: arguments of the kernel; -1 is the address of the first array, -2 that of the second
    """
    parts = [struct.pack("<q", len(arrays)), *(struct.pack("<q", array.nbytes) + array.tobytes() for array in arrays)]
    content = b"".join([*parts, struct.pack(f"<{len(words) + 1}q", len(words), *words)])
    command = [str(QEMU_ARM), "-cpu", "max", str(program), kernel]
    process = subprocess.run(command, input=content, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr
    output = memoryview(process.stdout)
    results = []
    for array in arrays:
        results.append(np.frombuffer(output[: array.nbytes], array.dtype).reshape(array.shape))
        output = output[array.nbytes :]
    return results


@needs_arm
@needs_numba
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_arm_runs_kernels_of_neon(arm_program: Path) -> None:
    numbers = np.random.default_rng(1)
    logits_NV = numbers.standard_normal((3, 90), np.float32)
    _, logsumexp_N = call_on_arm(arm_program, "logsumexp", [logits_NV, np.zeros(3)], [-1, 3, 90, -2])
    np.testing.assert_allclose(logsumexp_N, np.log(np.exp(logits_NV.astype(np.float64)).sum(1)), rtol=0, atol=1e-6)
    outputs = np.zeros((1, 3), np.float32), np.zeros((1, 5), np.int64), np.zeros((1, 5), np.float32)
    _, _, index_BX, _ = call_on_arm(arm_program, "topk", [logits_NV, *outputs], [-1, 1, 3, 90, -2, -3, -4, 5])
    assert index_BX[0].tolist() == np.argsort(-logits_NV.ravel())[:5].tolist()


@needs_arm
@needs_numba
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_arm_packs_weights_as_bytes(arm_program: Path) -> None:
    """Each output has a scale of max |w| / 127, and the panel holds the rounded weights in another order."""
    weights = np.random.default_rng(1).standard_normal((16, 64), np.float32)
    outputs = np.zeros(16 * 64, np.int8), np.zeros(16, np.float32), np.zeros(16, np.int32)
    arguments = [-1, 0, 0, 16, 64, -2, -3, -4, 1]  # floats have neither steps nor factors
    _, panel, scale, compensation = call_on_arm(arm_program, "pack_weights", [weights, *outputs], arguments)
    expected = np.round(weights / scale[:, None])
    np.testing.assert_allclose(scale, np.abs(weights).max(1) / 127, rtol=1e-6)
    np.testing.assert_array_equal(compensation, expected.sum(1))
    np.testing.assert_array_equal(np.sort(panel), np.sort(expected.ravel()))


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
