"""Who takes part, in which settings, and how they are compared: first all settings once, then the best of each in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from common.allowance import UNBOUNDED, Allowance
from common.usage import CommandError, kill, last_line

Setting = Mapping[str, Any]
Ask = Callable[["Entry", float], list[float]]
"""(who, seconds to take) → seconds of each turn. Raises CommandError."""
SCOUTING = 0.6
"""At most so much of a cell's time is for trying all settings once."""


class Worker:
    """A contestant's process, which holds its models from one question to the next."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), **environment},
            process_group=0,  # not a session, of which the kernel would give each its own share of the processors
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Raises CommandError where it could not do what was asked."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            self.process.wait()
            raise CommandError(f"it ended with {self.process.returncode}: {last_line(self.complaints)}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise CommandError(answer["failed"])
        return answer

    def close(self) -> None:
        if self.process.poll() is None:
            kill([self.process])
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.complaints):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Entry:
    """A system in one of its settings."""

    system: str
    label: str
    worker: Worker
    setting: Setting


@dataclass
class Outcome:
    """What a system reached in one cell: rates by label, a figure a round; and what it could not do."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    untried: int = 0
    rounds_short: int = 0

    @property
    def best(self) -> tuple[str, float] | None:
        """Label and rate of the setting with the best median."""
        found = {label: statistics.median(rates) for label, rates in self.rates.items() if rates}
        return max(found.items(), key=lambda item: item[1], default=None)


def compete(
    entries: Sequence[Entry],
    rate: Callable[[Entry, float], float],
    *,
    scout: float,
    seconds: float,
    rounds: int,
    keep: Mapping[str, int],
    whole: Sequence[str] = (),
    allowance: Allowance = UNBOUNDED,
) -> dict[str, Outcome]:
    """Outcomes by system. All settings are tried once for `scout` seconds; as many of each system as `keep` says, its best,
    then take part in rounds.

    rate: (who, seconds to take) → something per second. Raises CommandError
    whole: systems of which every setting is tried, however long that takes: those that we are to be measured by
    allowance: once most of it is spent no more settings of the others are tried, of none fewer than one; and no round is begun
        after it. What was tried stands for what was never measured in a round
    """
    outcomes: dict[str, Outcome] = {entry.system: Outcome() for entry in entries}
    scouted: dict[str, list[tuple[float, Entry]]] = {}
    scouting = allowance.share(SCOUTING)
    for entry in _by_turns(entries):
        outcome = outcomes[entry.system]
        if scouting.spent and entry.system in scouted and entry.system not in whole:
            outcome.untried += 1
            continue
        try:
            scouted.setdefault(entry.system, []).append((rate(entry, scout), entry))
        except CommandError as error:
            outcome.failed.append(f"{entry.system}, {entry.label}: {error}")
    best = {system: sorted(found, key=lambda pair: -pair[0])[: keep[system]] for system, found in scouted.items()}
    kept = [entry for found in best.values() for _, entry in found]
    for turn in range(rounds):
        if allowance.spent:
            for outcome in outcomes.values():
                outcome.rounds_short = rounds - turn
            break
        for entry in kept if turn % 2 == 0 else reversed(kept):
            try:
                outcomes[entry.system].rates.setdefault(entry.label, []).append(rate(entry, seconds))
            except CommandError as error:
                outcomes[entry.system].failed.append(f"{entry.system}, {entry.label}: {error}")
    for system, found in best.items():
        if not outcomes[system].rates:
            outcomes[system].rates = {entry.label: [tried] for tried, entry in found}
    return outcomes


def _by_turns(entries: Sequence[Entry]) -> list[Entry]:
    """The first of each system, then the second of each, …"""
    system = attrgetter("system")
    each = [list(some) for _, some in groupby(sorted(entries, key=system), key=system)]
    return [entry for turn in zip_longest(*each) for entry in turn if entry is not None]


def remarks_of(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What could not be measured, and what there was no time for."""
    told = list(chain.from_iterable(outcome.failed for outcome in outcomes.values()))
    for system, outcome in outcomes.items():
        if outcome.untried:
            told.append(f"{system}: {outcome.untried} settings were not tried, for want of time")
    short = max((outcome.rounds_short for outcome in outcomes.values()), default=0)
    return [*told, f"{short} rounds were not run, for want of time"] if short else told
