"""What a new number of rows costs a product in bfloat16, and what padding saves: `python -m training.rows`.

Products with their gradients as a step computes them, of PyTorch and of `padded_product`, in turn, in one thread, over numbers
of rows that differ as those of batches do. Processor time, medians over the numbers: the first turn with each, and the best of
those after.
"""

from __future__ import annotations

import time
from statistics import median

import click
import torch
from common.report import open_console, show
from common.results import Section, Table
from common.usage import keep_to_cores

from dragoman.model.linear import MatMul, padded_matmul, torch_matmul
from dragoman.runtime.malloc import tune_malloc

# Inputs and outputs of base's and tiny's products.
SHAPES = [(512, 1536), (512, 512), (512, 2048), (2048, 512), (128, 384), (128, 256), (256, 128)]
ROWS = [2034, 2041, 1727, 1808, 2000, 1950, 2048, 1900, 1999, 2010]
TURNS = 4
WAYS: dict[str, MatMul] = {"PyTorch": torch_matmul, "padded": padded_matmul}


@click.command()
def main() -> None:
    """Tell milliseconds of both ways, of rows that are new and of rows that are known."""
    keep_to_cores(1)
    torch.set_num_threads(1)
    tune_malloc()
    columns = ["inputs x outputs", *(f"{name}, {kind}" for kind in ("new rows", "known rows") for name in WAYS)]
    table = Table("A product and its gradients, ms", columns)
    for inner, outer in SHAPES:
        found = _measured(inner, outer)
        medians = [median(times[turn] for times in found[name]) for turn in (0, 1) for name in WAYS]
        table.rows.append([f"{inner} x {outer}", *(f"{1e3 * seconds:.1f}" for seconds in medians)])
    show(open_console(), Section(tables=[table]))


def _measured(inner: int, outer: int) -> dict[str, list[tuple[float, float]]]:
    """For each number of rows: seconds of the first turn, and of the best after it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outer, inner, generator=generator).requires_grad_()
    bias = torch.randn(outer, generator=generator).requires_grad_()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for rows in ROWS:
        x = torch.randn(rows, inner, generator=generator).requires_grad_()
        to_result = torch.randn(rows, outer, generator=generator).bfloat16()
        for name, product in WAYS.items():
            times = []
            for _ in range(TURNS):
                begun = time.thread_time()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    result = product(x, weight, bias)
                torch.autograd.grad(result, (x, weight, bias), to_result)
                times.append(time.thread_time() - begun)
            found[name].append((times[0], min(times[1:])))
    return found


if __name__ == "__main__":
    main()
