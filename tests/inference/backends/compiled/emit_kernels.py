"""Main program that writes the assembly of all kernels for an instruction set, without running them.

DRAGOMAN_KERNEL_TARGET=neon python emit_kernels.py TRIPLE
"""

from __future__ import annotations

import sys

from dragoman.inference.backends.compiled.kernels.emit import compile_kernels

if __name__ == "__main__":
    kernels, target_machine = compile_kernels(sys.argv[1])
    print(target_machine.emit_assembly(kernels))
