"""What `training.compile` gains: the same training with it and without."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from common.results import Ratio, Section, Table

from .bench import Bench
from .sizes import Size
from .timed import measure

KNOBS = {"as it is": "training.compile=false", "compiled": "training.compile=true"}


def measure_compiled(bench: Bench, sizes: Sequence[tuple[Size, float]], *, rounds: int) -> Section:
    """In turn, in float32. What compiling takes is before the first report, which is dropped."""
    section = Section()
    table = Table("Target tokens a second with training.compile", ["size", *KNOBS, "rounds"])
    for size, seconds in sizes:
        rates: dict[str, list[float]] = {name: [] for name in KNOBS}
        for _ in range(rounds):
            for name, knob in KNOBS.items():
                rates[name].append(measure(bench.ours(size, "float32", knob), seconds=seconds))
                bench.say(f"{size.name}: {name}: {rates[name][-1]:,.0f} tokens/s")
        medians = {name: statistics.median(found) for name, found in rates.items()}
        table.rows.append([size.name, *(f"{median:,.0f}" for median in medians.values()), f"{rounds}"])
        section.figures[size.name] = rates
        section.ratios.append(Ratio(f"compiled_over_plain_{size.name}", medians["compiled"] / medians["as it is"]))
    section.tables.append(table)
    return section
