"""Fixed work by one thread, in seconds of the processor: what a machine that others use as well tells least wrong.

A thread that is waited for costs nothing here, so that only what is computed counts, and whoever takes the processor away for a
while changes little. Caches and memory are still shared with whoever is there.
"""

from __future__ import annotations

from collections.abc import Callable

from common.results import Ratio, Section, Table

from .contest import compete, remarks_of
from .fixed import Cell, rate_of
from .models import Forms
from .systems import CT2, OURS, Systems

CELLS = [Cell(f"{batch}x{beam}", batch, beam) for batch, beam in ((1, 1), (8, 1), (32, 1), (64, 1), (128, 1), (8, 4), (32, 4))]
QUICK_CELLS = ("32x1", "128x1", "32x4")
PRECISIONS = ("int8", "bfloat16")


def measure_alone(
    systems: Systems, forms: Forms, *, say: Callable[[str], None], quick: bool, rounds: int, seconds: float
) -> Section:
    """Target tokens for each second of the processor, dragoman's and CTranslate2's."""
    section = Section()
    table = Table(
        "Base, random weights, one thread: target tokens for each second of the processor",
        ["batch x beam", OURS, "numbers", CT2, "best setting", f"over {CT2}"],
    )
    for cell in CELLS:
        if quick and cell.name not in QUICK_CELLS:
            continue
        ours = systems.ours("1 x 1 thread", [{"precision": precision} for precision in PRECISIONS])
        theirs = systems.ctranslate2("1 x 1 thread", [{}], quick=quick, types=("int8_float32",))
        rate = rate_of(forms, cell, {}, clock="processor")
        outcomes = compete([*ours, *theirs], rate, scout=0.0, seconds=seconds, rounds=rounds, keep={OURS: 2, CT2: 2})
        section.remarks += [f"{cell.name}: {reason}" for reason in remarks_of(outcomes)]
        mine, peer = (outcomes[name].best if name in outcomes else None for name in (OURS, CT2))
        if mine is None:
            continue
        row = [cell.name, f"{mine[1]:,.0f}", mine[0].split(",")[0]]
        table.rows.append([*row, *([f"{peer[1]:,.0f}", peer[0], f"{mine[1] / peer[1]:.2f}"] if peer else ["-", "-", "-"])])
        if peer:
            section.ratios.append(Ratio(f"alone_{cell.name}", mine[1] / peer[1]))
        section.figures[cell.name] = {"rates": {name: outcome.rates for name, outcome in outcomes.items()}}
        say(f"alone {cell.name}: " + ", ".join(f"{name} {one.best}" for name, one in outcomes.items() if one.best))
    section.tables.append(table)
    return section
