"""Two ranks of one thread each beside one process of two threads: the same global batch, the same losses?"""

from __future__ import annotations

import os
import shutil
import statistics
from typing import Any

from common.results import Ratio, Section, Table
from common.usage import CommandError, run

from . import ours
from .bench import Bench
from .sizes import Size

RANKS = 2
ASKED_LOSS = 1e-6
# Losses that differ by less than this are told as this far apart: float32 holds no more.
LEAST = 1e-9
ONE = "one process"

Journal = list[dict[str, Any]]


def measure_ranks(bench: Bench, size: Size, *, steps: int, rounds: int) -> Section:
    """In float32, `steps` steps of two batches each, in turn; the first step of each run is not in its rate."""
    section = Section()
    if "--devices" not in run([ours.PROGRAM, "train", "--help"]).output:
        section.remarks.append("dragoman train has no --devices: nothing to measure")
        return section
    journals: dict[str, list[Journal]] = {}
    ways = [ONE, "ddp", "fsdp"]
    for _ in range(rounds):
        for way in list(ways):
            try:
                journals.setdefault(way, []).append(_train(bench, size, way, steps=steps))
            except CommandError as error:
                section.remarks.append(f"{way}: {error}")
                ways.remove(way)
    table = Table(
        f"{size.name}, float32, {steps} steps of {RANKS} batches",
        ["what", "tokens/s", "over one process", "largest relative difference of the loss"],
    )
    rates = {way: statistics.median(map(_rate, journals[way])) for way in ways}
    if ONE in rates:
        table.rows.append([f"{ONE}, {RANKS} threads", f"{rates[ONE]:,.0f}", "", ""])
        for way in [way for way in rates if way != ONE]:
            over = rates[way] / rates[ONE]
            # Who failed in a later round has fewer.
            apart = max(_apart(one, other) for one, other in zip(journals[ONE], journals[way], strict=False))
            table.rows.append([f"{way}, {RANKS} ranks of one thread", f"{rates[way]:,.0f}", f"{over:.2f}", f"{apart:.1e}"])
            section.ratios.append(Ratio(f"{way}_over_one_process", over))
            section.ratios.append(Ratio(f"{way}_loss", ASKED_LOSS / max(apart, LEAST), 1.0))
    section.tables.append(table)
    section.figures = {"journals": journals, "load": os.getloadavg()[0]}
    return section


def _train(bench: Bench, size: Size, way: str, *, steps: int) -> Journal:
    """The journal of a run to its end."""
    folder = bench.out / "ranks"
    ours.begin(bench.prepared, folder)
    more = ["training.precision=float32", f"training.batches_per_update={RANKS}", f"training.max_steps={steps}"]
    options: list[str] = []
    if way != ONE:
        more.append(f"training.parallel={way}")
        options = ["--devices", str(RANKS)]
    changes = ours.changes(bench.corpus, size, folder, *more, "training.log_every_steps=1")
    threads = RANKS if way == ONE else 1
    command = ours.train(bench.recipe, changes, *options)
    run(command, environment={"OMP_NUM_THREADS": str(threads)}, limit_seconds=600.0)
    journal = ours.trained((folder / "metrics.jsonl").read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    return journal


def _rate(journal: Journal) -> float:
    return statistics.harmonic_mean([float(entry["tokens_per_second"]) for entry in journal[1:]])


def _apart(one: Journal, other: Journal) -> float:
    """The largest relative difference of losses at the same step. Raises CommandError where the steps are not the same."""
    if [entry["step"] for entry in one] != [entry["step"] for entry in other]:
        raise CommandError(f"{len(other)} steps were told of, {len(one)} expected")
    losses = [(float(first["loss"]), float(second["loss"])) for first, second in zip(one, other, strict=True)]
    return max(abs(first - second) / abs(first) for first, second in losses)
