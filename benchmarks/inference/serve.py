"""Loop of every system's process: it reads requests as lines of JSON and answers each with one line.

The file uses the standard library alone, because it also runs in the peers' environment. A request holds `do`, the name of the
work, and its arguments. A failed answer holds `error`, the reason.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Handler = Callable[..., dict[str, Any]]

SOURCE_TOKENS, TARGET_TOKENS = 27, 30
"""Of fixed-length work; the end token counts in the source."""
LEAST_SECONDS = 0.5
"""Text is translated again and again until so much time has gone by, after one turn that does not count."""


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests until input ends. Output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("do")](**request)
        except Exception as error:  # whatever it is, the others go on
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


_WARM: set[str] = set()


def warm_up(what: Mapping[str, Any], work: Callable[[], object]) -> None:
    """Run the work once without timing, if it has not run with these settings before."""
    if (key := json.dumps(what, sort_keys=True)) not in _WARM:
        work()
        _WARM.add(key)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""The second counts what this process computed, all its threads, and not what it waited for."""


def time_turns(work: Callable[[], object], seconds: float, clock: str = "wall") -> list[float]:
    """Return the seconds of each turn by the clock, until `seconds` have passed; at least one turn."""
    seconds_per_turn: list[float] = []
    began = time.perf_counter()
    while not seconds_per_turn or time.perf_counter() - began < seconds:
        turn = CLOCKS[clock]()
        work()
        seconds_per_turn.append(CLOCKS[clock]() - turn)
    return seconds_per_turn


def time_each(work: Callable[[str], str], lines: Sequence[str]) -> tuple[list[float], list[str]]:
    """Run the lines one after the other; return the seconds of each and the outputs."""
    seconds_per_turn, outputs = [], []
    for line in lines:
        turn = time.perf_counter()
        outputs.append(work(line))
        seconds_per_turn.append(time.perf_counter() - turn)
    return seconds_per_turn, outputs


def batch_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield indices of sentences, longest first, `size` at a time."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for first in range(0, len(order), size):
        yield order[first : first + size]
