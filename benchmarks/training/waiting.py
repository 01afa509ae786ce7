"""The share of a step that training waits for its data."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence

from common.results import Ratio, Section, Table

from . import ours
from .bench import Bench
from .sizes import Size
from .timed import measure

# Of a step: less is not told from the noise of the clock.
ASKED_SHARE = 0.02


def measure_waiting(bench: Bench, sizes: Sequence[tuple[Size, float]], *, ahead: bool) -> Section:
    """With batches made in the training process between two steps and, where asked, made `ahead` by another process."""
    section = Section()
    table = Table("Waiting for data, share of a step", ["size", "made", "mean", "largest interval", "tokens/s"])
    for size, seconds in sizes:
        for loaders, made in enumerate(("in between", "ahead, by one process") if ahead else ("in between",)):
            contestant = bench.ours(size, "bfloat16", f"data.num_workers={loaders}")
            rate = measure(contestant, seconds=seconds, keep=True)
            entries = ours.trained(contestant.journal.read_text(encoding="utf-8"))[1:]
            shutil.rmtree(contestant.outputs)
            shares = [float(entry["waiting"]) for entry in entries if "waiting" in entry]
            if not shares:
                section.remarks.append(f"{size.name}: the journal does not tell of waiting")
                continue
            mean = statistics.fmean(shares)
            table.rows.append([size.name, made, f"{mean:.2%}", f"{max(shares):.2%}", f"{rate:,.0f}"])
            section.figures[f"{size.name}_{loaders}"] = shares
            if loaders == 0:
                name = f"waiting_{size.name}"
                section.ratios.append(Ratio(name, ASKED_SHARE / max(mean, 1e-6), 1.0))
    section.tables.append(table)
    return section
