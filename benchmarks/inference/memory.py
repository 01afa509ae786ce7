"""Start-up and memory: seconds to the first sentence of a fresh process, memory then, and growth over many sentences."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from .captions import Captions
from .harness import GRACE_SECONDS
from .models import ModelFormats

TARGET_SECONDS, TARGET_MEBIBYTES, TARGET_GROWTH = 2.0, 400.0, 1.1
"""Targets: seconds to the first sentence, peak MiB after loading, and final memory over memory after warm-up."""

EXTRA_TOKENS = 10
"""Most tokens by which an output of random weights is longer than its source of about 20 tokens."""


def measure_memory(
    base: ModelFormats,
    captions: Captions | None,
    *,
    quick: bool,
    rounds: int,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    """Measure fresh processes in each precision, first int8. A quick run stops those for which no time is left."""
    section = Section()
    table = Table(
        "A fresh process, the base model: seconds to the first sentence, MiB then",
        ["numbers", "seconds", "resident", "anonymous", "peak", "target"],
    )
    sentence = " ".join(["word"] * 10)
    with suppress(CommandError):  # reads the files once
        _probe(base.bundle, "int8", [sentence], 0, extra=EXTRA_TOKENS, limit_seconds=budget.seconds_left + GRACE_SECONDS)
    for precision in ("int8", "auto", "float32"):
        try:
            probes = [
                _probe(
                    base.bundle,
                    precision,
                    [sentence],
                    0,
                    extra=EXTRA_TOKENS,
                    limit_seconds=budget.seconds_left + GRACE_SECONDS,
                )[0]
                for _ in range(rounds)
            ]
        except CommandError as error:
            section.notes.append(f"{precision}: {error}")
            continue
        seconds = statistics.median(probe["wall"] for probe in probes)
        peak = max(probe["peak"] for probe in probes)
        first = probes[0]
        cells = [f"{seconds:.2f}", f"{first['resident']:.0f}", f"{first['anonymous']:.0f}", f"{peak:.0f}"]
        table.rows.append([precision, *cells, f"{TARGET_SECONDS:g} s, {TARGET_MEBIBYTES:g} MiB" if precision == "int8" else ""])
        section.figures[precision] = probes
        if precision == "int8":
            section.ratios.append(Ratio("first_sentence", TARGET_SECONDS / seconds, 1.0))
            section.ratios.append(
                Ratio("memory_after_load", TARGET_MEBIBYTES / max(probe["loaded"]["peak"] for probe in probes), 1.0)
            )
        print_progress(f"memory {precision}: {seconds:.2f} s, {peak:.0f} MiB")
    section.tables.append(table)
    if captions is not None:
        try:
            _measure_growth(section, captions, 3_000 if quick else 100_000)
        except CommandError as error:
            section.notes.append(f"many sentences: {error}")
    return section


def _measure_growth(section: Section, captions: Captions, count: int) -> None:
    probes = _probe(captions.forms.bundle, "auto", captions.lines, count)
    table = Table(f"{count:,} sentences through one process, the trained model", ["sentences", "resident, MiB", "peak, MiB"])
    table.rows += [[f"{probe['done']:,}", f"{probe['resident']:.0f}", f"{probe['peak']:.0f}"] for probe in probes]
    section.tables.append(table)
    warm = probes[len(probes) // 4]["resident"]
    section.ratios.append(Ratio("memory_flat", warm / probes[-1]["resident"], 1 / TARGET_GROWTH))
    section.figures["many"] = probes
    print_progress(f"memory over {count:,}: {warm:.0f} to {probes[-1]['resident']:.0f} MiB")


def _probe(
    bundle: Path, precision: str, lines: list[str], count: int, *, extra: int | None = None, limit_seconds: float = math.inf
) -> list[dict[str, Any]]:
    """Run `memory_probe.py` and return its lines; the first holds the seconds since the command started.

    Raises CommandError for a failed process, and for one that takes longer than the limit.
    """
    program = str(Path(__file__).with_name("memory_probe.py"))
    command = [sys.executable, program, str(bundle), precision, str(count), *([] if extra is None else [str(extra)])]
    # Python caches compiled modules, as in an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    began = time.perf_counter()
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process, _kill_after(process, limit_seconds):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.close()
        first = process.stdout.readline()
        wall_seconds = time.perf_counter() - began
        later_lines = process.stdout.readlines()
        error_lines = process.stderr.read().strip().splitlines()
    if process.returncode == -signal.SIGKILL:
        raise CommandError(f"was stopped after {limit_seconds:.0f} s, for lack of time")
    if process.returncode or not first:
        raise CommandError(error_lines[-1] if error_lines else f"exit code {process.returncode}")
    return [{**json.loads(first), "wall": wall_seconds}, *map(json.loads, later_lines)]


@contextmanager
def _kill_after(process: subprocess.Popen[str], limit_seconds: float) -> Iterator[None]:
    """Kill the process if it runs longer than the limit."""
    if limit_seconds == math.inf:
        yield
        return
    timer = threading.Timer(limit_seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
