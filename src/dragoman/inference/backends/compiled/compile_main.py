"""Main program of a process that compiles kernels. Its client is `background`.

    python -m dragoman.inference.backends.compiled.compile_main NICENESS KERNEL …

For each kernel, standard output gets one line of JSON, and then as many bytes of its object file as the line says. The process
does not import torch. It goes on if its client ends, so that the next command finds the kernels in the cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import IO, Any

from dragoman.inference.backends.compiled.jit_cache import ENTRY_POINTS, EntryPoint
from dragoman.platform_features import lower_priority


def main() -> None:
    """Compile the kernels that the arguments name. Exit with 1 at the first error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the prints of libraries out of the answers
    lower_priority(int(sys.argv[1]))
    entries = {entry.name: entry for entry in ENTRY_POINTS}
    for name in sys.argv[2:]:
        try:
            answer, code = compile_kernel(entries[name])
        except Exception as error:  # any error of Numba or LLVM: the client shows it
            send_answer(output, {"kernel": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"})
            sys.exit(1)
        if not send_answer(output, answer, code) and not entries[name].is_on_disk():
            sys.exit(1)  # the client has ended, and nothing keeps the kernels


def compile_kernel(entry: EntryPoint) -> tuple[dict[str, Any], bytes]:
    """Return the answer about a kernel, and its object file."""
    is_cached, start = entry.is_on_disk(), time.perf_counter()
    symbol, code = entry.compile()
    seconds = 0.0 if is_cached else round(time.perf_counter() - start, 2)
    return {"kernel": entry.name, "symbol": symbol, "seconds": seconds, "bytes": len(code)}, code


def send_answer(output: IO[bytes], answer: dict[str, Any], code: bytes = b"") -> bool:
    """Write an answer, and return whether the client has received it."""
    try:
        output.write(json.dumps(answer).encode() + b"\n" + code)
        output.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
