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
from functools import lru_cache
from importlib import import_module
from typing import Any

Handler = Callable[..., dict[str, Any]]

SOURCE_TOKENS, TARGET_TOKENS = 27, 30
"""Lengths of the fixed work; the end token counts in the source."""
MIN_SECONDS = 0.5
"""Seconds for which a text is translated repeatedly, after one warm-up."""


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests until input ends. Output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("do")](**request)
        except Exception as error:  # an error ends one request, not the process
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


_WARM: set[str] = set()


def warm_up(request: Mapping[str, Any], work: Callable[[], object]) -> None:
    """Run the work once without timing, if it has not run with these settings before."""
    if (key := json.dumps(request, sort_keys=True)) not in _WARM:
        work()
        _WARM.add(key)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""Clocks by name: wall time, and CPU time of all threads of this process."""


def time_turns(work: Callable[[], object], seconds: float, clock: str = "wall") -> list[float]:
    """Return the seconds of each turn by the clock, until `seconds` have passed; at least one turn."""
    seconds_per_turn: list[float] = []
    began = time.perf_counter()
    while not seconds_per_turn or time.perf_counter() - began < seconds:
        start = CLOCKS[clock]()
        work()
        seconds_per_turn.append(CLOCKS[clock]() - start)
    return seconds_per_turn


def time_each(work: Callable[[str], str], lines: Sequence[str]) -> tuple[list[float], list[str]]:
    """Run the lines one after the other; return the seconds of each and the outputs."""
    seconds_per_line, outputs = [], []
    for line in lines:
        start = time.perf_counter()
        outputs.append(work(line))
        seconds_per_line.append(time.perf_counter() - start)
    return seconds_per_line, outputs


def measure_fixed(
    work: Callable[[], list[Any]], request: Mapping[str, Any], *, length: int, seconds: float, clock: str = "wall"
) -> tuple[list[float], list[Any]]:
    """Return the seconds of each turn, and the outputs, which have exactly `length` tokens. request: see `warm_up`"""
    outputs: list[Any] = []

    def turn() -> None:
        outputs[:] = work()

    warm_up({**request, "length": length}, turn)
    turns = time_turns(turn, seconds, clock)
    if any(len(output) != length for output in outputs):
        raise ValueError(f"outputs of other lengths: {sorted({len(output) for output in outputs})}")
    return turns, outputs


def measure_text(
    translate: Callable[[list[str]], list[str]],
    translate_all: Callable[[], list[str]],
    lines: list[str],
    request: Mapping[str, Any],
    *,
    line_by_line: bool,
) -> dict[str, Any]:
    """Return the seconds and the outputs of all lines at once, or one after the other. request: see `warm_up`"""
    warm_up({**request, "line_by_line": line_by_line}, lambda: translate(lines[:4]) if line_by_line else translate_all())
    if line_by_line:
        seconds, outputs = time_each(lambda line: translate([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    outputs_by_turn: list[list[str]] = []
    seconds = time_turns(lambda: outputs_by_turn.append(translate_all()), MIN_SECONDS)
    return {"seconds": seconds, "outputs": outputs_by_turn[0]}


@lru_cache
def load_sentencepiece(path: str, shared_path: str) -> Any:
    """Return a SentencePiece model, or the one of both sides."""
    sentencepiece = import_module("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_file=path if os.path.exists(path) else shared_path)


def batch_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield indices of sentences, longest first, `size` at a time."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for first in range(0, len(order), size):
        yield order[first : first + size]
