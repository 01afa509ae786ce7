"""A system that trains until it is told to stop, and how fast it says it was."""

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
_LOOKS_PER_SECOND = 20


@dataclass(frozen=True)
class Contestant:
    """A command that trains, and where and how it tells of its rate."""

    name: str
    key: str
    """Names it in ratios."""
    command: list[str | Path]
    journal: Path
    """Where its reports come: a file that it writes itself, or the file that takes what it says."""
    rates: Callable[[str], list[float]]
    """From the journal: target tokens a second of each interval, padding not counted; intervals are of equally many steps."""
    outputs: Path
    """Its folder, removed afterwards; it runs in it."""
    ready: Callable[[], None] | None = None
    """Called before each run, when the folder is gone."""
    environment: Mapping[str, str] = field(default_factory=dict)


def measure(contestant: Contestant, *, seconds: float, keep: bool = False) -> float:
    """Target tokens a second over the intervals after the first, which warms up. Raises CommandError."""
    shutil.rmtree(contestant.outputs, ignore_errors=True)
    if contestant.ready is not None:
        contestant.ready()
    contestant.outputs.mkdir(parents=True, exist_ok=True)
    try:
        found = _train(contestant, seconds)
        return statistics.harmonic_mean(found[1:])  # intervals of as many steps: all tokens over all seconds
    finally:
        if not keep:
            shutil.rmtree(contestant.outputs, ignore_errors=True)


def _train(contestant: Contestant, seconds: float) -> list[float]:
    """Rates until `seconds` have gone by since the first report, and another one came."""
    said = contestant.outputs / "said.txt"
    started = time.monotonic()
    first = None
    found: list[float] = []
    with said.open("w+b") as stream:
        process = begin(contestant.command, stream.fileno(), folder=contestant.outputs, environment=contestant.environment)
        try:
            while process.poll() is None:
                time.sleep(1.0 / _LOOKS_PER_SECOND)
                now = time.monotonic()
                found = _read(contestant)
                first = now if found and first is None else first
                if first is not None and now - first >= seconds and len(found) >= 2:
                    return found
                if now - started > LIMIT_SECONDS + seconds:
                    raise CommandError(f"{contestant.name}: {len(found)} reports in {now - started:.0f} s")
        finally:
            if process.poll() is None:
                kill([process])
            process.wait()
        found = _read(contestant)
        if process.returncode == 0 and len(found) >= 2:
            return found
        raise CommandError(f"{contestant.name}: exit code {process.returncode}: {last_line(stream)}")


def begin(
    command: list[str | Path], output: int, *, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with two threads where nothing else is said."""
    own = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **own, **(environment or {})},
        cwd=folder,
        start_new_session=True,
    )


def _read(contestant: Contestant) -> list[float]:
    if not contestant.journal.exists():
        return []
    text = contestant.journal.read_text(encoding="utf-8", errors="replace")
    whole, _, _ = text.rpartition("\n")  # a line may be half written
    return contestant.rates(whole)
