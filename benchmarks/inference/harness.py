"""Comparison of systems: all settings are tried once, then the best of each system alternate in rounds."""

from __future__ import annotations

import json
import math
import os
import select
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError, kill, last_line

Setting = Mapping[str, Any]
TRIAL_SHARE = 0.6
"""Largest share of a cell's time for the trials of all settings."""


GRACE_SECONDS = 5.0
"""Seconds that the first requests of a system may take after the budget's end, so that it has a figure."""


class SystemProcess:
    """Process of one system, which keeps its models between requests.

    budget: a request that takes longer is stopped. The next request starts the process again
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.command = [str(word) for word in command]
        self.environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), **environment}
        self.budget = UNBOUNDED
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=self.environment,
            process_group=0,  # a session of its own would get its own share of the processors from the kernel
        )

    def request(self, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises CommandError if the system reports an error or takes too long."""
        if self.process.returncode is not None:
            self.process = self._start()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        seconds = self.budget.seconds_left + GRACE_SECONDS
        try:
            self.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self.process.stdin.flush()
            if seconds < math.inf and not select.select([self.process.stdout], [], [], seconds)[0]:
                self._stop()
                raise CommandError(f"was stopped after {seconds:.0f} s, for lack of time")
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            self._stop()
            raise CommandError(f"the process ended with exit code {self.process.returncode}: {last_line(self.errors)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CommandError(answer["error"])
        return answer

    def _stop(self) -> None:
        if self.process.poll() is None:
            kill([self.process])
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def close(self) -> None:
        self._stop()
        self.errors.close()


@dataclass(frozen=True)
class Candidate:
    """System in one setting."""

    system: str
    label: str
    process: SystemProcess
    setting: Setting


@dataclass
class CellResult:
    """Result of one system in one cell: rates by setting, one value for each round, and errors."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    num_untried: int = 0
    missing_rounds: int = 0

    @property
    def best(self) -> tuple[str, float] | None:
        """Return the label and the rate of the setting with the best median."""
        medians = {label: statistics.median(rates) for label, rates in self.rates.items() if rates}
        return max(medians.items(), key=lambda item: item[1], default=None)


def compare_systems(
    candidates: Sequence[Candidate],
    rate: Callable[[Candidate, float], float],
    *,
    trial_seconds: float,
    seconds: float,
    rounds: int,
    keep: Mapping[str, int],
    first: Sequence[str] = (),
    budget: TimeBudget = UNBOUNDED,
) -> dict[str, CellResult]:
    """Return results by system. Each setting is tried once for `trial_seconds`; the best `keep` of each system then alternate.

    rate: function of candidate and seconds that returns a rate. It may raise CommandError
    first: systems whose settings are tried before those of the others, so that lack of time never favors the others
    budget: once most of it is spent, each system has one setting at least, and no more settings are tried. No round begins
        after it ends. The trial counts as the figure if no round was run
    """
    outcomes: dict[str, CellResult] = {entry.system: CellResult() for entry in candidates}
    trials: dict[str, list[tuple[float, Candidate]]] = {}
    trial_budget = budget.take_share(TRIAL_SHARE)
    for entry in _interleave_systems(candidates, first):
        outcome = outcomes[entry.system]
        if trial_budget.is_spent and entry.system in trials:
            outcome.num_untried += 1
            continue
        entry.process.budget = budget
        try:
            trials.setdefault(entry.system, []).append((rate(entry, trial_seconds), entry))
        except CommandError as error:
            outcome.errors.append(f"{entry.system}, {entry.label}: {error}")
    best = {
        system: sorted(trials_of_system, key=lambda pair: -pair[0])[: keep[system]]
        for system, trials_of_system in trials.items()
    }
    selected = [entry for trials_of_system in best.values() for _, entry in trials_of_system]
    for round_number in range(rounds):
        if budget.is_spent:
            for outcome in outcomes.values():
                outcome.missing_rounds = rounds - round_number
            break
        for entry in selected if round_number % 2 == 0 else reversed(selected):
            entry.process.budget = budget
            try:
                outcomes[entry.system].rates.setdefault(entry.label, []).append(rate(entry, seconds))
            except CommandError as error:
                outcomes[entry.system].errors.append(f"{entry.system}, {entry.label}: {error}")
    for system, trials_of_system in best.items():
        if not outcomes[system].rates:
            outcomes[system].rates = {entry.label: [trial_rate] for trial_rate, entry in trials_of_system}
    return outcomes


def _interleave_systems(entries: Sequence[Candidate], first: Sequence[str]) -> list[Candidate]:
    """Return the first candidate of each system, then the second of each, and so on.

    All candidates of the systems in `first` follow the first candidates of all systems.
    """
    system = attrgetter("system")
    entries_by_system = [list(group) for _, group in groupby(sorted(entries, key=system), key=system)]
    ranked = [entry for entries_of_rank in zip_longest(*entries_by_system) for entry in entries_of_rank if entry is not None]
    num_systems = len(entries_by_system)
    return ranked[:num_systems] + sorted(ranked[num_systems:], key=lambda entry: entry.system not in first)


def format_spread(own: CellResult, peer: CellResult) -> str:
    """Return the least and the largest ratio of one round between the best settings of two systems that have a figure."""
    assert own.best, "the first system has a figure"
    assert peer.best, "the second system has a figure"
    ratios = [rate / peer_rate for rate, peer_rate in zip(own.rates[own.best[0]], peer.rates[peer.best[0]], strict=False)]
    return f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds"


def list_notes(outcomes: Mapping[str, CellResult]) -> list[str]:
    """Return notes on errors and on settings that were skipped for lack of time."""
    notes = list(chain.from_iterable(outcome.errors for outcome in outcomes.values()))
    for system, outcome in outcomes.items():
        if outcome.num_untried:
            notes.append(f"{system}: {outcome.num_untried} settings were not tried, for lack of time")
    missing_rounds = max((outcome.missing_rounds for outcome in outcomes.values()), default=0)
    return [*notes, f"{missing_rounds} rounds were not run, for lack of time"] if missing_rounds else notes
