"""Costs of two kinds of layers over the length n: the sentences of sections 3.2.1 and 4 on time, memory and operations.

Time is the processor time of one thread for the forward and backward pass, the median over rounds in which the layers take
turns. Memory is the peak of the tensors, without input and weights. Operations are those of the matrix products.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.model.layers import FeedForward
from dragoman.paper.demonstrations.demonstration import Demonstration
from dragoman.paper.flop_counter import count_operations, run_forward_backward
from dragoman.paper.table1 import single_thread
from dragoman.paper.table1_layers import LayerFn, build_layer
from dragoman.viz.charts import Panel, Series, VerticalMarker, render_learning_curve

ROUNDS = 5
_MIN_SECONDS = 0.02
ADDITIVE_LENGTHS, KEY_WIDTH = (32, 64, 128, 256, 512), 64
RECURRENT_LENGTHS, RECURRENT_WIDTH = (16, 64, 256, 512, 1024, 2048), 256
SEPARABLE_LENGTHS, SEPARABLE_WIDTH = (32, 64, 128, 256, 512), 64
_COUNTED_STEPS = 16


@dataclass(frozen=True)
class CostComparison:
    """Costs of two layers at one length.

    seconds, operations, peak_bytes: of the first and of the second layer
    time_ratio: time of the first layer over that of the second one, the median over rounds
    """

    n: int
    seconds: tuple[float, float]
    operations: tuple[float, float]
    peak_bytes: tuple[int, int]
    time_ratio: float

    @property
    def operation_ratio(self) -> float:
        """Return the operations of the first layer over those of the second one."""
        return self.operations[0] / self.operations[1]

    @property
    def memory_ratio(self) -> float:
        """Return the memory of the first layer over that of the second one."""
        return self.peak_bytes[0] / self.peak_bytes[1]


def compare_additive(lengths: Sequence[int] = ADDITIVE_LENGTHS) -> list[CostComparison]:
    """Return the costs of additive attention, v·tanh(q + k), beside those of dot products, for n queries and keys."""
    torch.manual_seed(1)
    weight_K = torch.randn(KEY_WIDTH)

    def attend_additively(x_BNK: Tensor) -> Tensor:
        return (torch.tanh(x_BNK[:, :, None] + x_BNK[:, None]) @ weight_K).softmax(dim=-1) @ x_BNK

    return [_compare_layers(attend_additively, build_layer("self-attention", KEY_WIDTH, 0), n, KEY_WIDTH) for n in lengths]


def compare_recurrent(lengths: Sequence[int] = RECURRENT_LENGTHS, d: int = RECURRENT_WIDTH) -> list[CostComparison]:
    """Return the costs of self-attention beside those of an LSTM.

    The time is that of PyTorch's fused LSTM. Its operations and memory are those of an LSTM of single steps, whose counts are
    proportional to n, because the fused one hides them.
    """
    torch.manual_seed(1)
    lstm = nn.LSTM(d, d, batch_first=True)
    steps = count_operations(build_layer("recurrent (LSTM)", d, 0), torch.randn(1, _COUNTED_STEPS, d, requires_grad=True))
    rows = []
    for n in lengths:
        x_BND = torch.randn(1, n, d, requires_grad=True)
        attention = build_layer("self-attention", d, 0)
        count = count_operations(attention, x_BND)
        seconds, ratio = _compare_times(attention, lambda x_BND: lstm(x_BND)[0], x_BND)
        factor = n / _COUNTED_STEPS
        memory = (count.peak_bytes, round(steps.peak_bytes * factor))
        rows.append(CostComparison(n, seconds, (count.operations, steps.operations * factor), memory, ratio))
    return rows


def compare_separable(lengths: Sequence[int] = SEPARABLE_LENGTHS) -> list[CostComparison]:
    """Return the costs of a separable convolution with k = n beside those of self-attention and a feed-forward layer."""
    torch.manual_seed(1)
    network = FeedForward(d_model=SEPARABLE_WIDTH, d_ff=SEPARABLE_WIDTH, dropout=0.0)
    attention = build_layer("self-attention", SEPARABLE_WIDTH, 0)

    def attend_and_feed(x_BND: Tensor) -> Tensor:
        output_BND: Tensor = network(attention(x_BND))
        return output_BND

    return [
        _compare_layers(build_layer("separable convolution", SEPARABLE_WIDTH, n), attend_and_feed, n, SEPARABLE_WIDTH)
        for n in lengths
    ]


def _compare_layers(first: LayerFn, second: LayerFn, n: int, d: int) -> CostComparison:
    x_BND = torch.randn(1, n, d, requires_grad=True)
    counts = [count_operations(layer, x_BND) for layer in (first, second)]
    seconds, ratio = _compare_times(first, second, x_BND)
    operations = (counts[0].operations, counts[1].operations)
    return CostComparison(n, seconds, operations, (counts[0].peak_bytes, counts[1].peak_bytes), ratio)


def _compare_times(first: LayerFn, second: LayerFn, x_BND: Tensor) -> tuple[tuple[float, float], float]:
    """Return the seconds of both layers and their ratio, as medians over rounds in which the layers take turns."""
    rounds = []
    with single_thread():
        for _ in range(ROUNDS + 1):
            times = []
            for layer in (first, second):
                start, passes = time.process_time(), 0
                while passes < 2 or time.process_time() - start < _MIN_SECONDS:
                    run_forward_backward(layer, x_BND)
                    passes += 1
                times.append((time.process_time() - start) / passes)
            rounds.append((times[0], times[1], times[0] / times[1]))
    first_seconds, second_seconds, ratio = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    return (first_seconds, second_seconds), ratio


def show_additive() -> Demonstration:
    """Compare dot-product attention with additive attention in time and memory (section 3.2.1)."""
    rows = compare_additive()
    lesson = "Both take more as n grows, but additive attention stays above: it keeps d_k numbers for each query and key."
    title = f"Additive and dot-product attention, d_k = {KEY_WIDTH}"
    names = ("additive", "dot product")
    return Demonstration(
        title,
        lesson,
        ["n", "additive ms", "dot product ms", "times", "additive MiB", "dot product MiB", "times as much"],
        [
            (row.n, *_to_milliseconds(row), row.time_ratio, *(size / 2**20 for size in row.peak_bytes), row.memory_ratio)
            for row in rows
        ],
        lambda: render_learning_curve(
            [
                _build_panel("milliseconds", names, rows, _to_milliseconds),
                _build_panel("peak MiB", names, rows, lambda row: [size / 2**20 for size in row.peak_bytes]),
            ],
            title=title,
            x_label="log₂ n: queries, and as many keys",
            caption=lesson,
        ),
    )


def show_recurrent() -> Demonstration:
    """Compare self-attention with an LSTM as n crosses d (section 4)."""
    rows = compare_recurrent()
    d = RECURRENT_WIDTH
    lesson = (
        "Where a line is below 1, self-attention is cheaper. The dotted lines are n = d and n = 4·d. The operations are equal "
        "at the second one, because an LSTM has eight products of d² for each position, and self-attention two of n·d."
    )
    title = f"Self-attention over an LSTM, d = {d}"
    return Demonstration(
        title,
        lesson,
        ["n", "n / d", "self-attention ms", "LSTM ms", "time ratio", "operation ratio"],
        [(row.n, row.n / d, *_to_milliseconds(row), row.time_ratio, row.operation_ratio) for row in rows],
        lambda: render_learning_curve(
            [
                _build_panel(
                    "self-attention / LSTM",
                    ("time", "operations", "equal"),
                    rows,
                    lambda row: (row.time_ratio, row.operation_ratio, 1.0),
                )
            ],
            title=title,
            x_label="log₂ n",
            panel_height=300,
            markers=[VerticalMarker(math.log2(factor * d), f"n = {factor * d}") for factor in (1, 4)],
            caption=lesson,
        ),
    )


def show_separable() -> Demonstration:
    """Compare a separable convolution of k = n with self-attention and a feed-forward layer (section 4)."""
    rows = compare_separable()
    d = SEPARABLE_WIDTH
    lesson = (
        "In operations, the two lines are parallel: both have a term n²·d and a term n·d², with other constants. The time also "
        "depends on how well a kernel is written: a convolution over channels of their own has no matrix product."
    )
    title = f"Separable convolution with k = n beside self-attention, d = {d}"
    names = ("separable convolution, k = n", "self-attention and feed-forward")
    return Demonstration(
        title,
        lesson,
        [
            "n",
            "convolution 10⁶ operations",
            "attention and feed-forward",
            "ratio",
            "convolution ms",
            "attention ms",
            "ratio of time",
        ],
        [
            (row.n, *(count / 1e6 for count in row.operations), row.operation_ratio, *_to_milliseconds(row), row.time_ratio)
            for row in rows
        ],
        lambda: render_learning_curve(
            [
                _build_panel("10⁶ operations", names, rows, lambda row: [count / 1e6 for count in row.operations]),
                _build_panel("milliseconds", names, rows, _to_milliseconds),
            ],
            title=title,
            x_label="log₂ n",
            caption=lesson,
        ),
    )


def _to_milliseconds(row: CostComparison) -> tuple[float, float]:
    return 1e3 * row.seconds[0], 1e3 * row.seconds[1]


def _build_panel(
    y_label: str,
    names: Sequence[str],
    rows: Sequence[CostComparison],
    get_values: Callable[[CostComparison], Sequence[float]],
) -> Panel:
    """Return a panel with a line for each name over log₂ n. get_values: the values of all names for a row"""
    points = [(math.log2(row.n), get_values(row)) for row in rows]
    series = [Series(name, [(x, values[index]) for x, values in points]) for index, name in enumerate(names)]
    return Panel(y_label, series, log_scale=True)
