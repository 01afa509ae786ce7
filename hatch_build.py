"""Build hook: compiles the kernels for each instruction set of this platform into shared libraries, which the wheel contains.

Numba compiles them in some 40 seconds on two cores, and only if their sources have changed. The linker is that of the system,
or of the package ziglang. A platform without packages of Numba gets no kernels; PyTorch then computes the models. Each wheel is
for one platform. The kernels hold nothing of Python's ABI.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "src"))

from dragoman.inference.backends.compiled import kernel_files  # noqa: E402
from dragoman.inference.backends.compiled.kernels.instruction_sets import INSTRUCTION_SETS, TARGET_VARIABLE  # noqa: E402

EMITTER = "dragoman.inference.backends.compiled.kernels.emit"


class Platform(NamedTuple):
    """Platform for which kernels are built. triple: its name in LLVM. tag: its name in a wheel's tag"""

    triple: str
    architecture: str
    tag: str
    suffix: str
    linker_options: tuple[str, ...]


ELF_OPTIONS = ("-shared", "-s", "--hash-style=gnu", "--build-id=none", "-z", "noexecstack", "-z", "text", "-z", "defs")
PLATFORMS = {
    "linux-x86_64": Platform("x86_64-unknown-linux-gnu", "x86_64", "manylinux_2_17_x86_64", ".so", ELF_OPTIONS),
    "linux-aarch64": Platform("aarch64-unknown-linux-gnu", "aarch64", "manylinux_2_17_aarch64", ".so", ELF_OPTIONS),
    "macosx-arm64": Platform(
        "arm64-apple-macosx11.0.0", "aarch64", "macosx_11_0_arm64", ".dylib", ("-shared", "-target", "aarch64-macos.11.0")
    ),
    "win-amd64": Platform("x86_64-pc-windows-gnu", "x86_64", "win_amd64", ".dll", ("-shared", "-target", "x86_64-windows-gnu")),
}
# Functions of the system that the kernels call, by the library that holds them on Linux.
SYSTEM_FUNCTIONS = {"libm.so.6": ("exp", "log"), "libc.so.6": ("memcpy", "memmove", "memset")}
# Functions that ask a processor for its features. Every processor of 64 bits runs them.
CPUID_IR = """
define void @cpuid(i32 %leaf, i32 %subleaf, ptr %registers) {
  %all = call {i32, i32, i32, i32} asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 %leaf, i32 %subleaf)
  store {i32, i32, i32, i32} %all, ptr %registers, align 4
  ret void
}

define i64 @xgetbv() {
  %halves = call {i32, i32} asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue {i32, i32} %halves, 0
  %high = extractvalue {i32, i32} %halves, 1
  %low64 = zext i32 %low to i64
  %high64 = zext i32 %high to i64
  %shifted = shl i64 %high64, 32
  %all = or i64 %shifted, %low64
  ret i64 %all
}
"""


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hook of hatchling for wheels, also for editable ones, whose kernels stand beside their sources."""

    def dependencies(self) -> list[str]:
        name = kernel_files.get_platform()
        if name not in PLATFORMS or is_built():
            return []
        requirements: list[str] = [self.config["compiler"]]
        return requirements if find_system_linker(name) else [*requirements, self.config["linker"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = kernel_files.get_platform()
        if not is_built():
            build(name)
        folder = kernel_files.FOLDER.relative_to(ROOT).as_posix()
        build_data["artifacts"] += [f"/{folder}/{file}" for file in (kernel_files.LIST_FILE, *kernel_files.read_list().digests)]
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{get_platform_tag(name)}"


def get_platform_tag(name: str) -> str:
    """Return the platform in the tag of a wheel.

    The kernels name no version of glibc's symbols, so they run with every version. 2.17 is the first with both architectures.
    """
    if name.startswith("linux") and platform.libc_ver()[0] != "glibc":
        return name.replace("-", "_")
    if name in PLATFORMS:
        return PLATFORMS[name].tag
    if name.startswith("macosx"):
        return f"macosx_11_0_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def is_built() -> bool:
    """Return whether the kernels of this platform are there, whole, and of the present sources."""
    try:
        return all(
            kernel_files.compute_digest(kernel_files.FOLDER / file) == digest
            for file, digest in kernel_files.read_list().digests.items()
        )
    except (kernel_files.KernelFileError, OSError):
        return False


def find_system_linker(name: str) -> str | None:
    """Return the linker of a Linux system, which links for its own platform only."""
    if name != kernel_files.get_platform() or not name.startswith("linux"):
        return None
    return shutil.which("ld.lld") or shutil.which("ld")


def build(name: str) -> None:
    """Build the kernels of this platform, and write their list. The list is empty for a platform without compiler."""
    sources, files = kernel_files.compute_source_digest(), list[Path]()
    kernel_files.FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if name in PLATFORMS:
            files = build_libraries(name, Path(folder))
        digests = {file.name: kernel_files.compute_digest(file) for file in files}
        for file in files:
            copy = kernel_files.FOLDER / f"{file.name}.new"
            shutil.copyfile(file, copy)
            copy.replace(kernel_files.FOLDER / file.name)  # programs that run keep the libraries that they have loaded
    kernel_files.KernelFiles(name, sources, digests).write()


def build_libraries(name: str, folder: Path) -> list[Path]:
    """Return the libraries of a platform, in this folder."""
    target = PLATFORMS[name]
    sets = [instruction_set.name for instruction_set in INSTRUCTION_SETS if instruction_set.architecture == target.architecture]
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        list(executor.map(partial(emit_kernels, target.triple, folder), sets))
    if target.architecture == "x86_64":
        emit_ir(CPUID_IR, target.triple, folder / "cpuid.o")
        sets.append("cpuid")
    linker = find_system_linker(name)
    command = [linker] if linker else [sys.executable, "-m", "ziglang", "ld.lld" if name.startswith("linux") else "cc"]
    stubs = ["--as-needed", *make_stubs(target, command, folder)] if name.startswith("linux") else []
    for set_name in sets:
        output = folder / f"{set_name}{target.suffix}"
        run([*command, *target.linker_options, "-o", str(output), str(folder / f"{set_name}.o"), *stubs])
    return [folder / f"{set_name}{target.suffix}" for set_name in sets]


def emit_kernels(triple: str, folder: Path, set_name: str) -> None:
    """Write the object file of one instruction set, by a process of its own."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), TARGET_VARIABLE: set_name}
    run([sys.executable, "-m", EMITTER, triple, str(folder / f"{set_name}.o")], environment)


def make_stubs(target: Platform, command: Sequence[str], folder: Path) -> list[str]:
    """Return libraries with the names of the system's functions, so that the linker needs none of the system's files."""
    stubs = []
    for library, functions in SYSTEM_FUNCTIONS.items():
        source, stub = folder / f"{library}.o", folder / library
        emit_ir("\n".join(f"define void @{function}() {{ ret void }}" for function in functions), target.triple, source)
        run([*command, "-shared", "-soname", library, "-o", str(stub), str(source)])
        stubs.append(str(stub))
    return stubs


def emit_ir(source: str, triple: str, output: Path) -> None:
    """Compile LLVM's assembly for any processor of the platform."""
    import llvmlite.binding as llvm  # only a build that compiles has it

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="default")
    module = llvm.parse_assembly(source)
    module.triple, module.data_layout = triple, str(machine.target_data)
    output.write_bytes(machine.emit_object(module))


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a program. Raises RuntimeError with its messages if it fails."""
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with status {process.returncode}:\n{process.stdout}{process.stderr}")
