"""Main program that compiles all kernels for another processor, without running them.

    python emit_kernels.py TRIPLE PROCESSOR FEATURES FOLDER

The folder gets the assembly of each kernel. Numba asks LLVM for the triple, the processor and its features, so LLVM answers as
on that processor. All names are those of LLVM, and commas separate the features.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm


def simulate_processor(triple: str, processor: str, features: str) -> None:
    """Let LLVM describe this processor as the one that the program runs on."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    feature_map = llvm.get_host_cpu_features()
    feature_map.clear()
    feature_map.update(dict.fromkeys(features.split(","), True))
    binding: Any = llvm
    binding.get_host_cpu_features = lambda: feature_map
    binding.get_host_cpu_name = lambda: processor
    binding.get_process_triple = binding.get_default_triple = lambda: triple


def emit_kernels(folder: Path) -> None:
    """Write the assembly of each kernel. The kernels are imported only for the processor that is simulated by then."""
    from dragoman.inference.backends.compiled import jit, jit_cache

    compiler: Any = jit
    compiled_functions: list[Any] = []
    numba_cfunc = compiler.cfunc

    def keep_function(signature: Any) -> Any:
        def decorate(function: Any) -> Any:
            compiled_functions.append(numba_cfunc(signature)(function))
            return compiled_functions[-1]

        return decorate

    compiler.cfunc = keep_function
    for entry in jit_cache.ENTRY_POINTS:
        jit.compile_object(entry.module, entry.name)
        (folder / f"{entry.name}.s").write_text(compiled_functions[-1]._library.get_asm_str(), encoding="utf-8")


if __name__ == "__main__":
    simulate_processor(*sys.argv[1:4])
    emit_kernels(Path(sys.argv[4]))
