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
from common.usage import CommandError, kill

from . import dragoman_runner
from .benchmark import TrainingBenchmark
from .sizes import BenchmarkSize
from .timed_run import start_process

TARGET_SECONDS = 10.0
LIMIT_SECONDS = 120.0


def measure_start(bench: TrainingBenchmark, sizes: Sequence[BenchmarkSize], *, rounds: int) -> Section:
    """Measure the start with a prepared corpus, and with text only, which includes tokenizer training and encoding."""
    section = Section()
    table = Table("From the command to the end of the first step, seconds", ["size", "corpus", "median", "slowest", "target"])
    for size in sizes:
        for corpus_state in ("prepared", "as text"):
            seconds = [_first_step(bench, size, prepared=corpus_state == "prepared") for _ in range(rounds)]
            median = statistics.median(seconds)
            table.rows.append([size.name, corpus_state, f"{median:.1f}", f"{max(seconds):.1f}", f"{TARGET_SECONDS:.0f}"])
            name = f"start_{size.name}_{corpus_state.replace(' ', '_')}"
            section.ratios.append(Ratio(name, TARGET_SECONDS / median, 1.0))
            section.figures[name] = seconds
    section.tables.append(table)
    section.figures["load"] = os.getloadavg()[0]
    return section


def _first_step(bench: TrainingBenchmark, size: BenchmarkSize, *, prepared: bool) -> float:
    folder = bench.out / "start"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = dragoman_runner.build_settings(
        bench.corpus, size, folder / "run", "training.precision=bfloat16", "training.log_every_steps=1"
    )
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
            _wait(process, folder / "run" / "metrics.jsonl", started, output_path)
            return time.monotonic() - started
        finally:
            if process.poll() is None:
                kill([process])
            process.wait()
            shutil.rmtree(folder / "run", ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], log_path: Path, started: float, output_path: Path) -> None:
    while not (log_path.exists() and dragoman_runner.train_entries(log_path.read_text(encoding="utf-8"))):
        if process.poll() is not None or time.monotonic() - started > LIMIT_SECONDS:
            lines = output_path.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            raise CommandError(f"dragoman train: wrote no step, exit code {process.poll()}: {last}")
        time.sleep(0.01)
