"""What every contestant does: it reads requests as lines of JSON, and answers each with one line. The standard library alone,
since it runs in the peers' environment as well.

A request holds `do`, the name of what is wanted, and its arguments. An answer that failed holds `failed`, the reason.
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
    """Answer until there are no more requests. What libraries print goes where complaints go."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("do")](**request)
        except Exception as error:  # whatever it is, the others go on
            answer = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


_WARM: set[str] = set()


def warmed(what: Mapping[str, Any], work: Callable[[], object]) -> None:
    """Do the work once without counting it, where it was not done in this way before."""
    if (key := json.dumps(what, sort_keys=True)) not in _WARM:
        work()
        _WARM.add(key)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""The second counts what this process computed, all its threads, and not what it waited for."""


def timed(work: Callable[[], object], seconds: float, clock: str = "wall") -> list[float]:
    """Seconds of each turn by that clock, until so many have gone by; at least one turn."""
    found: list[float] = []
    began = time.perf_counter()
    while not found or time.perf_counter() - began < seconds:
        turn = CLOCKS[clock]()
        work()
        found.append(CLOCKS[clock]() - turn)
    return found


def each_timed(work: Callable[[str], str], lines: Sequence[str]) -> tuple[list[float], list[str]]:
    """One line after the other: the seconds of each, and what came out."""
    found, said = [], []
    for line in lines:
        turn = time.perf_counter()
        said.append(work(line))
        found.append(time.perf_counter() - turn)
    return found, said


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Numbers of the sentences, longest first, so many at once."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for first in range(0, len(order), size):
        yield order[first : first + size]
