"""Table 1, measured: cost, sequential steps and path length of each kind of layer.

Time is the processor time of this thread for the forward and backward pass of one layer: the best of several rounds, so that
other processes change little. Exponents are the slopes of log cost over log size, by least squares over the three largest
sizes.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import Literal

import torch

from dragoman.errors import RecipeError
from dragoman.paper.flop_counter import (
    OperationCount,
    count_operations,
    count_sequential_matmuls,
    find_path_length,
    run_forward_backward,
)
from dragoman.paper.table1_layers import LAYER_KINDS, LayerKind, build_layer
from dragoman.runtime.malloc import tune_malloc
from dragoman.viz.charts import Panel, Series, render_learning_curve

SweepAxis = Literal["n", "d", "reach"]

# Width, r and k of all kinds while n grows.
MODEL_WIDTH, ATTENTION_RADIUS, KERNEL_SIZE = 64, 32, 3
# Paths are counted on small layers with k = 3 and r = 2, at powers of 3, so that log_k n is a whole number.
PATH_LENGTHS, PATH_WIDTH, PATH_RADIUS = (9, 27, 81, 243), 4, 2
NUM_FITTED_POINTS = 3
OnBudgetSpent = Callable[[float], None]


@dataclass(frozen=True)
class PaperComplexity:
    """Printed row of Table 1 with its exponents. `path_n` is None for a logarithmic path."""

    complexity: str
    sequential: str
    path: str
    n: float
    d: float
    reach: float | None
    sequential_n: float
    path_n: float | None


PAPER_COMPLEXITIES: dict[LayerKind, PaperComplexity] = {
    "self-attention": PaperComplexity("n²·d", "1", "1", 2, 1, None, 0, 0),
    "restricted self-attention": PaperComplexity("r·n·d", "1", "n/r", 1, 1, 1, 0, 1),
    "recurrent (LSTM)": PaperComplexity("n·d²", "n", "n", 1, 2, None, 1, 1),
    # Section 4 has n/k for contiguous kernels, and log_k n only for dilated ones.
    "convolution": PaperComplexity("k·n·d²", "1", "n/k", 1, 2, 1, 0, 1),
    "dilated convolution": PaperComplexity("k·n·d²", "1", "log_k n", 1, 2, 1, 0, None),
    "separable convolution": PaperComplexity("k·n·d + n·d²", "1", "n/k", 1, 2, None, 0, 1),
}


@dataclass(frozen=True)
class LayerSize:
    """Size of one layer and of its input."""

    n: int
    d: int
    reach: int
    batch_size: int = 1


@dataclass(frozen=True)
class Sweep:
    """Sizes of one kind of layer, of which one dimension grows, with the time and the counts at each size once measured."""

    kind: LayerKind
    axis: SweepAxis
    points: tuple[LayerSize, ...]
    seconds: tuple[float, ...] = ()
    counts: tuple[OperationCount, ...] = ()

    @property
    def sizes(self) -> list[int]:
        """Return the values of the dimension that grows."""
        return [getattr(point, self.axis) for point in self.points]

    def fit_exponents(self) -> dict[str, float]:
        costs = {
            "time": self.seconds,
            "memory": [count.peak_bytes for count in self.counts],
            "operations": [count.operations for count in self.counts],
        }
        return {name: fit_exponent(self.sizes, cost) for name, cost in costs.items()}


@dataclass(frozen=True)
class Table1Row:
    """Measured and printed values of one kind of layer."""

    kind: LayerKind
    paper_row: PaperComplexity
    sweeps_by_axis: dict[SweepAxis, Sweep]
    sequential_matmuls: tuple[int, ...]
    """Sequential matrix products at each of `PATH_LENGTHS`."""
    path_lengths: tuple[int, ...]
    """Layers (steps of a recurrence) that a signal crosses at each of `PATH_LENGTHS`."""

    def get_time_exponents(self) -> dict[SweepAxis, tuple[float, float]]:
        """Return the fitted and the printed exponent of time for each printed dimension."""
        paper_exponents: dict[SweepAxis, float | None] = {
            "n": self.paper_row.n,
            "d": self.paper_row.d,
            "reach": self.paper_row.reach,
        }
        return {
            axis: (self.sweeps_by_axis[axis].fit_exponents()["time"], paper_exponent)
            for axis, paper_exponent in paper_exponents.items()
            if paper_exponent is not None
        }

    @property
    def sequential_exponent(self) -> float:
        return fit_exponent(PATH_LENGTHS, self.sequential_matmuls)

    @property
    def path_exponent(self) -> float:
        """Return the exponent of n in the path length. For a printed logarithm, return the layers per factor k of n."""
        if self.paper_row.path_n is not None:
            return fit_exponent(PATH_LENGTHS, self.path_lengths)
        return fit_slope([math.log(n, KERNEL_SIZE) for n in PATH_LENGTHS], self.path_lengths)


def fit_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the points."""
    return linear_regression(x, y).slope


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return e of cost = c · size^e, fitted over the largest `NUM_FITTED_POINTS` sizes."""
    return fit_slope(
        [math.log(size) for size in sizes[-NUM_FITTED_POINTS:]], [math.log(cost) for cost in costs[-NUM_FITTED_POINTS:]]
    )


def plan_sweeps() -> list[Sweep]:
    """Return the sizes to measure: one term of the cost dominates, and the data fit into the caches."""
    planned_sweeps: list[Sweep] = []
    for kind in LAYER_KINDS:
        reach = ATTENTION_RADIUS if kind == "restricted self-attention" else KERNEL_SIZE
        lengths, widths, reaches = (1024, 2048, 4096, 8192), [LayerSize(256, d, reach) for d in (128, 256, 512, 1024)], []
        match kind:
            case "self-attention":
                lengths, widths = (256, 512, 1024, 2048), [LayerSize(1024, d, reach) for d in (64, 128, 256, 512)]
            case "restricted self-attention":
                widths = [LayerSize(1024, d, reach) for d in (64, 128, 256, 512)]
                reaches = [LayerSize(4096, MODEL_WIDTH, r) for r in (64, 128, 256, 512)]
            case "recurrent (LSTM)":  # a step of one sentence would only read the weights
                lengths, widths = (256, 512, 1024, 2048), [LayerSize(8, d, reach, batch_size=64) for d in (128, 256, 512, 1024)]
            case "convolution" | "dilated convolution":
                reaches = [LayerSize(512, 256, k) for k in (3, 5, 9, 17)]
            case "separable convolution":
                widths = [LayerSize(256, d, reach) for d in (256, 512, 1024, 2048)]
        planned_sweeps += [
            Sweep(kind, "n", tuple(LayerSize(n, MODEL_WIDTH, reach) for n in lengths)),
            Sweep(kind, "d", tuple(widths)),
        ]
        planned_sweeps += [Sweep(kind, "reach", tuple(reaches))] if reaches else []
    return planned_sweeps


def measure_table1(
    budget_seconds: float, on_progress: OnBudgetSpent = lambda _: None, clock: Callable[[], float] = time.process_time
) -> list[Table1Row]:
    """Measure all rows within about this processor time in seconds.

    on_progress: called with the share of the budget that is spent
    clock: measures the budget

    Raises RecipeError if the budget is too small for one round.
    """
    start_time = clock()

    def elapsed_seconds() -> float:
        return clock() - start_time

    with single_thread():
        planned_sweeps = plan_sweeps()
        timer = _LayerTimer([(sweep.kind, point) for sweep in planned_sweeps for point in sweep.points])
        paths = {kind: _measure_paths(kind) for kind in LAYER_KINDS}
        timer.run_round()
        if elapsed_seconds() > budget_seconds:
            raise RecipeError(
                f"--budget {budget_seconds:g}: one round of all measurements takes {elapsed_seconds():.0f} seconds; give more"
            )
        longest_round = 0.0
        while elapsed_seconds() + longest_round <= budget_seconds:
            on_progress(elapsed_seconds() / budget_seconds)
            round_start = elapsed_seconds()
            timer.run_round()
            longest_round = max(longest_round, elapsed_seconds() - round_start)
    sweeps_by_kind: dict[LayerKind, dict[SweepAxis, Sweep]] = {kind: {} for kind in LAYER_KINDS}
    for sweep in planned_sweeps:
        keys = [(sweep.kind, point) for point in sweep.points]
        sweeps_by_kind[sweep.kind][sweep.axis] = replace(
            sweep, seconds=tuple(timer.seconds[key] for key in keys), counts=tuple(timer.counts[key] for key in keys)
        )
    return [Table1Row(kind, PAPER_COMPLEXITIES[kind], sweeps_by_kind[kind], *paths[kind]) for kind in LAYER_KINDS]


class _LayerTimer:
    """Best time of each layer and size over several rounds."""

    def __init__(self, points: Sequence[tuple[LayerKind, LayerSize]]) -> None:
        torch.manual_seed(0)
        self._layers_and_inputs = {
            (kind, point): (
                build_layer(kind, point.d, point.reach),
                torch.randn(point.batch_size, point.n, point.d, requires_grad=True),
            )
            for kind, point in points
        }
        self.counts = {
            key: count_operations(*layer_and_input) for key, layer_and_input in self._layers_and_inputs.items()
        }  # this is also the warm-up
        self.seconds = dict.fromkeys(self._layers_and_inputs, math.inf)

    def run_round(self) -> None:
        for key, (layer, x_BND) in self._layers_and_inputs.items():
            run_forward_backward(layer, x_BND)
            start_time = time.thread_time()
            run_forward_backward(layer, x_BND)
            self.seconds[key] = min(self.seconds[key], time.thread_time() - start_time)


def _measure_paths(kind: LayerKind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    reach = PATH_RADIUS if kind == "restricted self-attention" else KERNEL_SIZE
    sequential_matmuls = tuple(
        count_sequential_matmuls(build_layer(kind, PATH_WIDTH, reach), n, PATH_WIDTH) for n in PATH_LENGTHS
    )
    return sequential_matmuls, tuple(find_path_length(kind, n, PATH_WIDTH, reach) for n in PATH_LENGTHS)


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute in one thread without garbage collection, so that its processor time is the cost of the layer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tune_malloc()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def draw_table1(rows: Sequence[Table1Row]) -> str:
    """Draw time and memory of each kind over n as an SVG. Both axes are logarithmic, so that an exponent is a slope."""

    def build_series(cost: Callable[[Sweep], Sequence[float]]) -> list[Series]:
        length_sweeps = [(row.kind, row.sweeps_by_axis["n"]) for row in rows]
        return [
            Series(kind, [(math.log2(n), y) for n, y in zip(measured.sizes, cost(measured), strict=True)])
            for kind, measured in length_sweeps
        ]

    return render_learning_curve(
        [
            Panel(
                "milliseconds", build_series(lambda measured: [1e3 * seconds for seconds in measured.seconds]), log_scale=True
            ),
            Panel(
                "peak MiB",
                build_series(lambda measured: [count.peak_bytes / 2**20 for count in measured.counts]),
                log_scale=True,
            ),
        ],
        title="Table 1: forward and backward pass of one layer",
        x_label=f"log₂ n, at d = {MODEL_WIDTH}, r = {ATTENTION_RADIUS}, k = {KERNEL_SIZE}",
        panel_height=260,
    )
