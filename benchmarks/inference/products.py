"""Speed of memory reads and of matrix products on this machine, measured in a process of its own.

`products.py THREADS REQUEST` takes a JSON object: `read` lists byte counts, `multiply` lists [rows, out, in], and `seconds`
is the time for each product and route. It prints bytes per second and, for each product, the seconds of the fastest PyTorch
route in each precision that the processor does not emulate.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dragoman.runtime.cpu_support import has_bf16_matmul, has_onednn

GROUP = 3
"""Calls whose median counts as one measurement."""


def fastest(work: Callable[[], object], seconds: float) -> float:
    """Return the seconds of one call: the smallest median of groups of calls, until the time is over; one group at least."""
    work()
    end = time.perf_counter() + seconds
    medians: list[float] = []
    while not medians or time.perf_counter() < end:
        turns = []
        for _ in range(GROUP):
            began = time.perf_counter()
            work()
            turns.append(time.perf_counter() - began)
        medians.append(statistics.median(turns))
    return min(medians)


def bytes_per_second(count: int, seconds: float) -> float:
    numbers = torch.ones(count // 4)
    return count / fastest(numbers.sum, seconds)


def linear(left: Tensor, weight: Tensor) -> list[Callable[[], object]]:
    """Return the routes of left · weightᵀ: PyTorch's own, and oneDNN's with packed weights."""
    routes: list[Callable[[], object]] = [lambda: torch.nn.functional.linear(left, weight)]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, left.shape[0])
        pointwise: Any = torch.ops.mkldnn._linear_pointwise
        routes.append(lambda: pointwise(left, packed, None, "none", [], ""))
    return routes


def int8_linear(rows: int, width_out: int, width_in: int) -> list[Callable[[], object]]:
    left = torch.randint(0, 255, (rows, width_in), dtype=torch.uint8)
    weight = torch.randint(-127, 127, (width_out, width_in), dtype=torch.int8)
    scale, zero = torch.full((width_out,), 0.01), torch.zeros(width_out, dtype=torch.int32)
    onednn = torch.ops.onednn
    packed = onednn.qlinear_prepack(weight, [rows, width_in])
    routes: list[Callable[[], object]] = [
        lambda: onednn.qlinear_pointwise(left, 0.02, 128, packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")
    ]
    quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zero.long(), 0)
    packed_dynamic, numbers = torch.ops.quantized.linear_prepack(quantized, None), torch.randn(rows, width_in)
    routes.append(lambda: torch.ops.quantized.linear_dynamic(numbers, packed_dynamic, False))
    return routes


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    request = json.loads(sys.argv[2])
    seconds = request["seconds"]
    reads = [bytes_per_second(count, seconds) for count in request["read"]]
    answers = []
    dtypes = (torch.float32, torch.bfloat16) if has_bf16_matmul() else (torch.float32,)
    with torch.inference_mode():
        for rows, width_out, width_in in request["multiply"]:
            routes_by_precision = {
                str(dtype).removeprefix("torch."): linear(
                    torch.randn(rows, width_in).to(dtype), torch.randn(width_out, width_in).to(dtype)
                )
                for dtype in dtypes
            }
            if has_onednn() and "x86" in torch.backends.quantized.supported_engines:
                routes_by_precision["int8"] = int8_linear(rows, width_out, width_in)
            answers.append(
                {name: min(fastest(route, seconds) for route in routes) for name, routes in routes_by_precision.items()}
            )
    precisions = [str(dtype).removeprefix("torch.") for dtype in dtypes] + ["int8"]
    print(json.dumps({"read": reads, "multiply": answers, "precisions": precisions}))


if __name__ == "__main__":
    main()
