"""Table 1, measured: what a layer of each kind costs, how many steps wait for one another, and how far a signal has to go.

Time is this thread's processor time for one layer forwards and backwards, the best of several turns, so that whoever else is at
work changes little. Exponents are the slopes of log cost over log size, by least squares over the three largest sizes.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from dragoman.errors import RecipeError
from dragoman.paper.flop_counter import Count, count, learn, path_length, sequential_products
from dragoman.paper.table1_layers import KINDS, Kind, mixer
from dragoman.runtime.malloc import keep_freed_memory
from dragoman.viz import Panel, Series, learning_curve

Axis = Literal["n", "d", "reach"]

# What all kinds share where n grows: the width, r and k.
D, R, K = 64, 32, 3
# A path is counted on small layers: k = 3 and r = 2, at powers of 3, so that log_k n is a whole number.
PATH_LENGTHS, PATH_WIDTH, PATH_RADIUS = (9, 27, 81, 243), 4, 2
FITTED = 3
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Printed:
    """A row of Table 1 as printed, and the exponents in it. A path of None is logarithmic."""

    complexity: str
    sequential: str
    path: str
    n: float
    d: float
    reach: float | None
    sequential_n: float
    path_n: float | None


PRINTED: dict[Kind, Printed] = {
    "self-attention": Printed("n²·d", "1", "1", 2, 1, None, 0, 0),
    "restricted self-attention": Printed("r·n·d", "1", "n/r", 1, 1, 1, 0, 1),
    "recurrent (LSTM)": Printed("n·d²", "n", "n", 1, 2, None, 1, 1),
    # Section 4 has n/k for contiguous kernels, and log_k n for dilated ones alone.
    "convolution": Printed("k·n·d²", "1", "n/k", 1, 2, 1, 0, 1),
    "dilated convolution": Printed("k·n·d²", "1", "log_k n", 1, 2, 1, 0, None),
    "separable convolution": Printed("k·n·d + n·d²", "1", "n/k", 1, 2, None, 0, 1),
}


@dataclass(frozen=True)
class Point:
    """One layer at one size."""

    n: int
    d: int
    reach: int
    sentences: int = 1


@dataclass(frozen=True)
class Sweep:
    """A layer of one kind while one of its sizes grows."""

    kind: Kind
    axis: Axis
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Measured:
    """A sweep with what was found at each point."""

    sweep: Sweep
    seconds: tuple[float, ...]
    counts: tuple[Count, ...]

    @property
    def sizes(self) -> list[int]:
        return [getattr(point, self.sweep.axis) for point in self.sweep.points]

    def exponents(self) -> dict[str, float]:
        """Of time, of bytes and of operations."""
        costs = {
            "time": self.seconds,
            "memory": [one.peak_bytes for one in self.counts],
            "operations": [one.operations for one in self.counts],
        }
        return {name: exponent(self.sizes, cost) for name, cost in costs.items()}


@dataclass(frozen=True)
class Row:
    """A kind of layer, measured beside what is printed."""

    kind: Kind
    printed: Printed
    sweeps: dict[Axis, Measured]
    sequential: tuple[int, ...]
    """Products that wait for one another, at each of `PATH_LENGTHS`."""
    path: tuple[int, ...]
    """Layers (of a recurrence: steps) that a signal has to cross, at each of them."""

    def time_exponents(self) -> dict[Axis, tuple[float, float]]:
        """Fitted and printed, for each size that is printed."""
        wanted: dict[Axis, float | None] = {"n": self.printed.n, "d": self.printed.d, "reach": self.printed.reach}
        return {
            axis: (self.sweeps[axis].exponents()["time"], printed) for axis, printed in wanted.items() if printed is not None
        }

    @property
    def sequential_exponent(self) -> float:
        return exponent(PATH_LENGTHS, self.sequential)

    @property
    def path_exponent(self) -> float:
        """Of n; where a logarithm is printed, layers for each time that n grows by k."""
        if self.printed.path_n is not None:
            return exponent(PATH_LENGTHS, self.path)
        return slope([math.log(n, K) for n in PATH_LENGTHS], self.path)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "printed": asdict(self.printed),
            "sweeps": {
                axis: {
                    "sizes": one.sizes,
                    "points": [asdict(point) for point in one.sweep.points],
                    "seconds": one.seconds,
                    "peak_bytes": [each.peak_bytes for each in one.counts],
                    "operations": [each.operations for each in one.counts],
                    "exponents": one.exponents(),
                }
                for axis, one in self.sweeps.items()
            },
            "lengths": PATH_LENGTHS,
            "sequential_products": self.sequential,
            "sequential_exponent": self.sequential_exponent,
            "path": self.path,
            "path_exponent": self.path_exponent,
        }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through these points, by least squares."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """e of cost = c · size^e, by the largest `FITTED` sizes."""
    return slope([math.log(one) for one in sizes[-FITTED:]], [math.log(one) for one in costs[-FITTED:]])


def sweeps() -> list[Sweep]:
    """What is measured: sizes at which one term of the cost outgrows all others, and which the caches still hold."""
    found: list[Sweep] = []
    for kind in KINDS:
        reach = R if kind == "restricted self-attention" else K
        lengths, widths, reaches = (1024, 2048, 4096, 8192), [Point(256, d, reach) for d in (128, 256, 512, 1024)], []
        match kind:
            case "self-attention":
                lengths, widths = (256, 512, 1024, 2048), [Point(1024, d, reach) for d in (64, 128, 256, 512)]
            case "restricted self-attention":
                widths = [Point(1024, d, reach) for d in (64, 128, 256, 512)]
                reaches = [Point(4096, D, r) for r in (64, 128, 256, 512)]
            case "recurrent (LSTM)":  # of one sentence, a step is no product of matrices: it reads the weights
                lengths, widths = (256, 512, 1024, 2048), [Point(8, d, reach, sentences=64) for d in (128, 256, 512, 1024)]
            case "convolution" | "dilated convolution":
                reaches = [Point(512, 256, k) for k in (3, 5, 9, 17)]
            case "separable convolution":
                widths = [Point(256, d, reach) for d in (256, 512, 1024, 2048)]
        found += [Sweep(kind, "n", tuple(Point(n, D, reach) for n in lengths)), Sweep(kind, "d", tuple(widths))]
        found += [Sweep(kind, "reach", tuple(reaches))] if reaches else []
    return found


def table1(budget_seconds: float, advance: Advance = lambda _: None) -> list[Row]:
    """Measure all rows within about this much processor time. Raises RecipeError where it is too little for one round.

    advance: is told the share of the budget that is spent
    """
    begun = time.process_time()

    def spent() -> float:
        return time.process_time() - begun

    with _one_thread():
        wanted = sweeps()
        timed = _Timed([(sweep.kind, point) for sweep in wanted for point in sweep.points])
        paths = {kind: _path(kind) for kind in KINDS}
        timed.round()
        if spent() > budget_seconds:
            raise RecipeError(
                f"--budget {budget_seconds:g}: one round of all measurements takes {spent():.0f} seconds here; give more"
            )
        longest = 0.0
        while spent() + longest <= budget_seconds:
            advance(spent() / budget_seconds)
            before = spent()
            timed.round()
            longest = max(longest, spent() - before)
    measured = [
        Measured(
            sweep,
            tuple(timed.seconds[sweep.kind, point] for point in sweep.points),
            tuple(timed.counts[sweep.kind, point] for point in sweep.points),
        )
        for sweep in wanted
    ]
    return [
        Row(kind, PRINTED[kind], {one.sweep.axis: one for one in measured if one.sweep.kind == kind}, *paths[kind])
        for kind in KINDS
    ]


class _Timed:
    """The best time of each point so far, over rounds in which every point has its turn."""

    def __init__(self, points: Sequence[tuple[Kind, Point]]) -> None:
        torch.manual_seed(0)
        self._ready = {
            (kind, point): (
                mixer(kind, point.d, point.reach),
                torch.randn(point.sentences, point.n, point.d, requires_grad=True),
            )
            for kind, point in points
        }
        self.counts = {key: count(*ready) for key, ready in self._ready.items()}  # which warms it up as well
        self.seconds = dict.fromkeys(self._ready, math.inf)

    def round(self) -> None:
        for key, (layer, x_BND) in self._ready.items():
            learn(layer, x_BND)
            begun = time.thread_time()
            learn(layer, x_BND)
            self.seconds[key] = min(self.seconds[key], time.thread_time() - begun)


def _path(kind: Kind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    reach = PATH_RADIUS if kind == "restricted self-attention" else K
    waits = tuple(sequential_products(mixer(kind, PATH_WIDTH, reach), n, PATH_WIDTH) for n in PATH_LENGTHS)
    return waits, tuple(path_length(kind, n, PATH_WIDTH, reach) for n in PATH_LENGTHS)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Whose processor time is the whole of the work, and in which no garbage is collected meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def picture(rows: Sequence[Row]) -> str:
    """Time and memory of each kind while n grows, as an SVG: over logarithms, so that an exponent is a slope."""

    def series(cost: Callable[[Measured], Sequence[float]]) -> list[Series]:
        grown = [(row.kind, row.sweeps["n"]) for row in rows]
        return [Series(kind, [(math.log2(n), y) for n, y in zip(one.sizes, cost(one), strict=True)]) for kind, one in grown]

    return learning_curve(
        [
            Panel("milliseconds", series(lambda one: [1e3 * seconds for seconds in one.seconds]), logarithmic=True),
            Panel("MiB at most", series(lambda one: [each.peak_bytes / 2**20 for each in one.counts]), logarithmic=True),
        ],
        title="Table 1: one layer, forwards and backwards",
        x_label=f"log₂ n, at d = {D}, r = {R}, k = {K}",
        panel_height=260,
    )
