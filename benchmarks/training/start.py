"""The time from the command to the end of the first step, in a fresh process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from common.results import Ratio, Section, Table
from common.usage import CommandError, kill

from . import ours
from .bench import Bench
from .sizes import Size
from .timed import begin

ASKED_SECONDS = 10.0
LIMIT_SECONDS = 120.0


def measure_start(bench: Bench, sizes: Sequence[Size], *, rounds: int) -> Section:
    """With the corpus prepared, and with nothing but the text: then pieces are learnt and the corpus is encoded, too."""
    section = Section()
    table = Table("From the command to the end of the first step, seconds", ["size", "corpus", "median", "slowest", "asked"])
    for size in sizes:
        for what in ("prepared", "as text"):
            found = [_first_step(bench, size, prepared=what == "prepared") for _ in range(rounds)]
            median = statistics.median(found)
            table.rows.append([size.name, what, f"{median:.1f}", f"{max(found):.1f}", f"{ASKED_SECONDS:.0f}"])
            name = f"start_{size.name}_{what.replace(' ', '_')}"
            section.ratios.append(Ratio(name, ASKED_SECONDS / median, 1.0))
            section.figures[name] = found
    section.tables.append(table)
    section.figures["load"] = os.getloadavg()[0]
    return section


def _first_step(bench: Bench, size: Size, *, prepared: bool) -> float:
    folder = bench.out / "start"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = ours.changes(bench.corpus, size, folder / "run", "training.precision=bfloat16", "training.log_every_steps=1")
    if prepared:
        ours.begin(bench.prepared, folder / "run")
    else:
        settings = [change for change in settings if not change.startswith("tokenizer.model_file=")]
    command = ours.train(bench.recipe, settings)
    said = folder / "said.txt"
    with said.open("wb") as stream:
        started = time.monotonic()
        process = begin(command, stream.fileno(), folder=folder)
        try:
            _wait(process, folder / "run" / "metrics.jsonl", started, said)
            return time.monotonic() - started
        finally:
            if process.poll() is None:
                kill([process])
            process.wait()
            shutil.rmtree(folder / "run", ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], journal: Path, started: float, said: Path) -> None:
    while not (journal.exists() and ours.trained(journal.read_text(encoding="utf-8"))):
        if process.poll() is not None or time.monotonic() - started > LIMIT_SECONDS:
            lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            raise CommandError(f"dragoman train took no step, exit code {process.poll()}: {last}")
        time.sleep(0.01)
