"""What the machine's matrix products allow at base's shapes, and the share of it that training reaches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common.results import Ratio, Section, Table
from common.usage import CommandError, run

from .bench import PRECISIONS, Bench, Measured
from .sizes import BASE, flops_per_target_token, matrix_shapes
from .timed import THREADS, measure

# Of the ceiling in bfloat16; what is left goes to attention's small products, normalisation, dropout, loss and optimiser.
ASKED = {"bfloat16": 0.6}
# Large blocks stay with the process from one product to the next, so that the kernel's page faults are not measured.
KEEP_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=67108864"


def measure_ceiling(bench: Bench, measured: Measured, *, seconds: float, repeats: int) -> Section:
    """`measured` holds the rates of training, or is filled here."""
    section = Section()
    shapes = matrix_shapes(BASE)
    program = Path(__file__).parent / "products.py"
    command: list[str | Path] = [sys.executable, program, str(BASE.batch_tokens), json.dumps(list(shapes)), str(repeats)]
    environment = {"OMP_NUM_THREADS": str(THREADS), "GLIBC_TUNABLES": KEEP_MEMORY}
    told = json.loads(run(command, environment=environment).output)
    ceilings = {}
    table = Table(
        f"Matrix products of base, {BASE.batch_tokens:,} rows, GFLOP/s: forwards, for the input, for the weight",
        ["weight", "in a step", *PRECISIONS],
    )
    for shape, count in shapes.items():
        cells = []
        for precision in PRECISIONS:
            found = [one for one in told if one["precision"] == precision and tuple(one["shape"]) == shape]
            operations = 2.0 * BASE.batch_tokens * shape[0] * shape[1]
            cells.append(" ".join(f"{operations / one['seconds'] / 1e9:,.0f}" for one in found))
        table.rows.append([f"{shape[1]:,} to {shape[0]:,}", f"{count}", *cells])
    for precision in PRECISIONS:
        seconds_of = sum(shapes[tuple(one["shape"])] * one["seconds"] for one in told if one["precision"] == precision)
        operations = sum(6.0 * BASE.batch_tokens * shape[0] * shape[1] * count for shape, count in shapes.items())
        ceilings[precision] = operations / seconds_of
    section.tables.append(table)
    _tell_share(section, bench, measured, ceilings, seconds)
    section.figures["products"] = told
    return section


def _tell_share(section: Section, bench: Bench, measured: Measured, ceilings: dict[str, float], seconds: float) -> None:
    cost = flops_per_target_token(BASE, bench.corpus.lengths)
    table = Table(
        f"Base: {cost / 1e6:.0f} MFLOP a target token",
        ["precision", "ceiling, GFLOP/s", "ceiling, tokens/s", "training, tokens/s", "share"],
    )
    for precision, ceiling in ceilings.items():
        rate = measured.median(BASE, f"ours_{precision}")
        if rate is None:
            try:
                rate = measure(bench.ours(BASE, precision), seconds=seconds)
            except CommandError as error:
                section.remarks.append(str(error))
                continue
            measured.rates[BASE.name, f"ours_{precision}"] = [rate]
        share = rate * cost / ceiling
        table.rows.append([precision, f"{ceiling / 1e9:,.0f}", f"{ceiling / cost:,.0f}", f"{rate:,.0f}", f"{share:.0%}"])
        section.ratios.append(Ratio(f"share_of_ceiling_{precision}", share, ASKED.get(precision)))
        section.figures[precision] = {"flops_per_second": ceiling, "tokens_per_second": rate, "share": share}
    section.figures["flops_per_target_token"] = cost
    section.tables.append(table)
