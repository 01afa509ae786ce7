"""How fast this machine multiplies matrices of given shapes: a program of its own, so that nothing else is in its way.

`products.py ROWS SHAPES REPEATS` with SHAPES a JSON list of [out, in]. Prints for each precision, shape and use (forwards, for
the input, for the weight) the seconds of the fastest of REPEATS by the better of two routes: torch's product, and oneDNN's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LEAST_SECONDS = 0.01


def fastest(multiply: Callable[[], object], repeats: int) -> float:
    multiply()
    began = time.perf_counter()
    multiply()
    turns = max(1, round(LEAST_SECONDS / (time.perf_counter() - began)))
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(turns):
            multiply()
        found.append((time.perf_counter() - began) / turns)
    return min(found)


def routes(left: Tensor, right: Tensor) -> list[Callable[[], object]]:
    """left @ right in torch's own way and, where this build has it, through oneDNN."""
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype)
    found: list[Callable[[], object]] = [lambda: torch.mm(left, right, out=out)]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        linear: Any = torch.ops.mkldnn._linear_pointwise
        found.append(lambda: linear(left, right.t(), None, "none", [], ""))
    return found


def products(rows: int, width_out: int, width_in: int, precision: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """The three products of a layer y = x Wᵀ: y, the gradient of x, the gradient of W."""
    inputs, weight, gradient = (
        torch.randn(shape).to(precision) for shape in ((rows, width_in), (width_out, width_in), (rows, width_out))
    )
    return {"forwards": (inputs, weight.t()), "input": (gradient, weight), "weight": (gradient.t(), inputs)}


def main() -> None:
    rows, shapes, repeats = int(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    told = []
    with torch.no_grad():
        for precision in (torch.float32, torch.bfloat16):
            for width_out, width_in in shapes:
                for use, (left, right) in products(rows, width_out, width_in, precision).items():
                    seconds = min(fastest(route, repeats) for route in routes(left, right))
                    name = str(precision).removeprefix("torch.")
                    told.append({"precision": name, "shape": [width_out, width_in], "use": use, "seconds": seconds})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
