"""Training run that ends after a time limit, and its reported speed."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.usage import CommandError, kill, last_line

THREADS = 2
LIMIT_SECONDS = 240.0
_POLLS_PER_SECOND = 20


@dataclass(frozen=True)
class TimedRun:
    """Training command and the log that holds its speed."""

    name: str
    key: str
    """Name of the run in ratios."""
    command: list[str | Path]
    log_path: Path
    """File of its reports: its own log, or the file that its output goes to."""
    read_rates: Callable[[str], list[float]]
    """Function that reads target tokens per second of each interval from the log. Padding does not count."""
    outputs: Path
    """Working folder of the command, removed afterwards."""
    prepare: Callable[[], None] | None = None
    """Function that runs before each run, after the folder is removed."""
    environment: Mapping[str, str] = field(default_factory=dict)


def measure(run: TimedRun, *, seconds: float, keep: bool = False, limit_seconds: float = LIMIT_SECONDS) -> float:
    """Return target tokens per second over the intervals after the first. Raises CommandError.

    limit_seconds: the run is stopped after this time and `seconds`. Two reports by then are enough for a rate
    """
    shutil.rmtree(run.outputs, ignore_errors=True)
    if run.prepare is not None:
        run.prepare()
    run.outputs.mkdir(parents=True, exist_ok=True)
    try:
        rates = _train(run, seconds, limit_seconds)
        return statistics.harmonic_mean(rates[1:])  # intervals have equal steps, so this is all tokens over all seconds
    finally:
        if not keep:
            shutil.rmtree(run.outputs, ignore_errors=True)


def _train(run: TimedRun, seconds: float, limit_seconds: float) -> list[float]:
    """Return the rates until `seconds` have passed since the first report and another report came, or until the limit."""
    output_path = run.outputs / "output.txt"
    started = time.monotonic()
    first = None
    rates: list[float] = []
    with output_path.open("w+b") as stream:
        process = start_process(run.command, stream.fileno(), folder=run.outputs, environment=run.environment)
        try:
            while process.poll() is None:
                time.sleep(1.0 / _POLLS_PER_SECOND)
                now = time.monotonic()
                rates = _read(run)
                first = now if rates and first is None else first
                if first is not None and now - first >= seconds and len(rates) >= 2:
                    return rates
                if now - started > limit_seconds + seconds:
                    if len(rates) >= 2:
                        return rates
                    raise CommandError(f"{run.name}: {len(rates)} reports in {now - started:.0f} s")
        finally:
            if process.poll() is None:
                kill([process])
            process.wait()
        rates = _read(run)
        if process.returncode == 0 and len(rates) >= 2:
            return rates
        raise CommandError(f"{run.name}: exit code {process.returncode}: {last_line(stream)}")


def start_process(
    command: list[str | Path], output: int, *, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in its own session, with two threads by default."""
    defaults = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **defaults, **(environment or {})},
        cwd=folder,
        start_new_session=True,
    )


def _read(run: TimedRun) -> list[float]:
    if not run.log_path.exists():
        return []
    text = run.log_path.read_text(encoding="utf-8", errors="replace")
    whole, _, _ = text.rpartition("\n")  # a line may be half written
    return run.read_rates(whole)
