"""Seconds from the command to the end of the first step, in a fresh process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError, kill

from . import dragoman_runner
from .benchmark import TrainingBenchmark
from .sizes import BenchmarkSize
from .timed_run import start_process

TARGET_SECONDS = {"prepared": 6.0, "as text": 10.0}
LIMIT_SECONDS = 120.0
GRACE_SECONDS = 5.0
"""Seconds that a run may take after the budget's end."""


def measure_start(
    bench: TrainingBenchmark, sizes: Sequence[BenchmarkSize], *, rounds: int, budget: TimeBudget = UNBOUNDED
) -> Section:
    """Measure the start with a prepared corpus, and with text only, which includes tokenizer training and encoding.

    The precision is the one that the recipe's `auto` takes. budget: a run that takes longer is stopped, and the reason is noted
    """
    section = Section()
    table = Table("From the command to the end of the first step, seconds", ["size", "corpus", "median", "slowest", "target"])
    for size in sizes:
        for corpus_state in ("prepared", "as text"):
            try:
                seconds = [_first_step(bench, size, prepared=corpus_state == "prepared", budget=budget) for _ in range(rounds)]
            except CommandError as error:
                section.notes.append(f"{size.name}, {corpus_state}: {error}")
                continue
            median, target = statistics.median(seconds), TARGET_SECONDS[corpus_state]
            table.rows.append([size.name, corpus_state, f"{median:.1f}", f"{max(seconds):.1f}", f"{target:.0f}"])
            name = f"start_{size.name}_{corpus_state.replace(' ', '_')}"
            section.ratios.append(Ratio(name, target / median, 1.0))
            section.figures[name] = seconds
    section.tables.append(table)
    section.figures["load"] = os.getloadavg()[0]
    return section


def _build_settings(bench: TrainingBenchmark, size: BenchmarkSize, folder: Path) -> list[str]:
    more = ("training.precision=auto", "training.log_every_steps=1")
    return dragoman_runner.build_settings(bench.corpus, size, folder / "run", *more)


def _first_step(bench: TrainingBenchmark, size: BenchmarkSize, *, prepared: bool, budget: TimeBudget) -> float:
    folder = bench.out / "start"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = _build_settings(bench, size, folder)
    limit_seconds = min(LIMIT_SECONDS, budget.seconds_left + GRACE_SECONDS)
    if prepared:
        dragoman_runner.reset_run(bench.prepared, folder / "run")
    else:
        settings = [change for change in settings if not change.startswith("tokenizer.model_file=")]
    command = dragoman_runner.build_train_command(bench.recipe, settings)
    output_path = folder / "output.txt"
    with output_path.open("wb") as stream:
        started = time.monotonic()
        process = start_process(command, stream.fileno(), folder=folder)
        try:
            _wait(process, folder / "run" / "metrics.jsonl", started, output_path, limit_seconds)
            return time.monotonic() - started
        finally:
            if process.poll() is None:
                kill([process])
            process.wait()
            shutil.rmtree(folder / "run", ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], log_path: Path, started: float, output_path: Path, limit_seconds: float) -> None:
    while not (log_path.exists() and dragoman_runner.train_entries(log_path.read_text(encoding="utf-8"))):
        if process.poll() is not None or time.monotonic() - started > limit_seconds:
            lines = output_path.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            raise CommandError(f"dragoman train: wrote no step, exit code {process.poll()}: {last}")
        time.sleep(0.01)
