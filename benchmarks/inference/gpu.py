"""Fixed work on a GPU in bfloat16, base model with random weights: `make bench-inference-gpu`, QUICK=1 in a minute.

27 tokens in, exactly 30 out, from ids to ids. Three figures stand beside each rate. They are the rate of the plain model's
step in the same search, the fraction of time in which the GPU was idle, and the speed limit. The limit is the time to read
the weights or to multiply by them, both measured here. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import click
import numpy as np
import torch
from common.benchmark import Benchmark, print_progress, with_options
from common.results import Ratio, Section, Table
from numpy.typing import NDArray
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dragoman.config import make_recipe
from dragoman.data.tokenization.special_tokens import END_ID, SPECIAL_IDS
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.hypothesis import LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.model.factory import build_model
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id
from dragoman.torch_engine.graphs import CudaGraphRecorder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.torch_engine.static_model import build_static_inference_model

from .ceiling import Shape, products_per_sentence, products_per_token
from .models import VOCABULARY
from .serve import SOURCE_TOKENS, TARGET_TOKENS, time_turns

BATCHES = (1, 8, 32, 128, 512, 1024)
BEAMS = (1, 4)
PRECISION = torch.bfloat16
# Targets: tokens per second of the best hypotheses at beam 4, and the idle fraction of the time within steps.
TARGET_RATE = 100_000
MAX_IDLE_FRACTION = 0.1
# Products in one CUDA graph, so that the launch takes a negligible share of the time.
PRODUCTS_PER_GRAPH = 20
COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class GpuCell:
    batch: int
    beam: int

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.beam}"


@dataclass(frozen=True)
class GpuCellResult:
    """Result of one cell.

    rate, plain: target tokens per second of the steps as CUDA graphs and of the plain model
    idle_step, idle_search: fraction of time without a running kernel, in steps alone and in a whole search
    limit: target tokens per second
    """

    rate: float
    plain: float
    idle_step: float
    idle_search: float
    limit: float


class GpuBenchmark:
    """Base model on the GPU in two back ends, and measurements of the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.config = make_recipe({"preset": "t2t-2017", "size": "base"}, ()).model
        torch.manual_seed(1)
        model_on_cpu = build_model(self.config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
        model = model_on_cpu.to(device, PRECISION).eval()
        self.graph_model, self.plain_model = build_static_inference_model(model), as_inference_model([model])
        self.graphs = CudaGraphRecorder(device)
        self.products: dict[tuple[int, Shape], float] = {}

    def sources(self, batch: int) -> NDArray[np.int64]:
        rng = random.Random(1)
        rows = [[rng.randrange(len(SPECIAL_IDS), VOCABULARY) for _ in range(SOURCE_TOKENS - 1)] for _ in range(batch)]
        return np.array([[*row, END_ID] for row in rows])

    def search(self, inference_model: InferenceModel, cell: GpuCell, source_BS: NDArray[np.int64]) -> None:
        state, arrays = inference_model.start(source_BS), inference_model.arrays
        settings = SearchSettings(
            start_id=get_decoder_start_id(self.config),
            end_id=END_ID,
            forbidden_ids=FORBIDDEN_IDS,
            length_penalty=LengthPenalty("gnmt", 0.6),
            decoding_constraints=DecodingConstraints(min_length=TARGET_TOKENS),
        )
        step, lengths = inference_model.step, [TARGET_TOKENS] * cell.batch
        if cell.beam == 1:
            decode_tokens(step, state, max_lengths=lengths, settings=settings, arrays=arrays)
        else:
            options = BeamSearchOptions(beam_size=cell.beam)
            beam_search(step, state, max_lengths=lengths, settings=settings, options=options, arrays=arrays)
        torch.cuda.synchronize(self.device)

    def measure(self, cell: GpuCell, *, rounds: int, seconds: float) -> GpuCellResult:
        """Measure both back ends, alternating; return medians."""
        source_BS = self.sources(cell.batch)
        rates: dict[str, list[float]] = {"fixed": [], "plain": []}
        inference_models = {"fixed": self.graph_model, "plain": self.plain_model}
        for inference_model in inference_models.values():
            for _ in range(2):  # the first records the graphs, the second runs with all memory allocated
                self.search(inference_model, cell, source_BS)
        for _ in range(rounds):
            for name, inference_model in inference_models.items():
                turn_seconds = time_turns(partial(self.search, inference_model, cell, source_BS), seconds)
                rates[name] += [cell.batch * TARGET_TOKENS / seconds_of_turn for seconds_of_turn in turn_seconds]
        return GpuCellResult(
            rate=statistics.median(rates["fixed"]),
            plain=statistics.median(rates["plain"]),
            idle_step=idle_share(self._steps(cell, source_BS)),
            idle_search=idle_share(lambda: self.search(self.graph_model, cell, source_BS)),
            limit=self.limit(cell),
        )

    def _steps(self, cell: GpuCell, source_BS: NDArray[np.int64]) -> Callable[[], None]:
        """Return a function that runs the decoder steps of one search, without the first."""
        tokens_N = torch.full((cell.batch * cell.beam,), len(SPECIAL_IDS), device=self.device)
        _, state = self.graph_model.step(tokens_N, self.graph_model.start(source_BS))
        torch.cuda.synchronize(self.device)

        def steps() -> None:
            for _ in range(TARGET_TOKENS - 1):
                self.graph_model.step(tokens_N, state)
            torch.cuda.synchronize(self.device)

        return steps

    def limit(self, cell: GpuCell) -> float:
        once = self._min_seconds(products_per_sentence(self.config), cell.batch * SOURCE_TOKENS)
        step = self._min_seconds(products_per_token(self.config, VOCABULARY), cell.batch * cell.beam)
        return cell.batch * TARGET_TOKENS / (once + TARGET_TOKENS * step)

    def _min_seconds(self, shapes: Counter[Shape], rows: int) -> float:
        read = sum(count * wide * narrow for (wide, narrow), count in shapes.items()) * PRECISION.itemsize
        multiplied = sum(count * self._product_seconds(rows, shape) for shape, count in shapes.items())
        return max(read / self.bandwidth, multiplied)

    def _product_seconds(self, rows: int, shape: Shape) -> float:
        if (rows, shape) not in self.products:
            left, right = (torch.randn(size, device=self.device, dtype=PRECISION) for size in ((rows, shape[1]), shape))
            into = torch.empty(rows, shape[0], device=self.device, dtype=PRECISION)

            def multiply() -> None:
                for _ in range(PRODUCTS_PER_GRAPH):
                    torch.mm(left, right.t(), out=into)

            self.products[rows, shape] = fastest(self.graphs(multiply)) / PRODUCTS_PER_GRAPH
        return self.products[rows, shape]

    @cached_property
    def bandwidth(self) -> float:
        """Return the bytes per second of a device copy, read and written."""
        source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=self.device)
        into = torch.empty_like(source)
        return 2 * COPIED_BYTES / fastest(lambda: into.copy_(source))


def fastest(work: Callable[[], object], turns: int = 10) -> float:
    """Return the seconds of the fastest turn by CUDA events, after three warm-up turns."""
    results: list[float] = []
    for turn in range(3 + turns):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        work()
        ended.record()
        ended.synchronize()
        if turn >= 3:
            results.append(began.elapsed_time(ended) / 1e3)
    return min(results)


def idle_share(work: Callable[[], None]) -> float:
    """Return the fraction of time without a running kernel, from the first kernel to the last."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
    return 1.0 - covered(spans) if spans else float("nan")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the fraction of the time between first start and last end that at least one span covers."""
    ordered = sorted(spans)
    busy, reached = 0.0, ordered[0][0]
    for began, ended in ordered:
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return busy / (reached - ordered[0][0])


def build_section(results: dict[GpuCell, GpuCellResult], bandwidth: float) -> Section:
    section = Section()
    table = Table(
        f"Base in bfloat16, random weights, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens per second",
        ["batch x beam", "fixed shapes", "plain step", "ratio", "idle in steps", "idle in search", "limit", "share of limit"],
    )
    for cell, cell_result in results.items():
        table.rows.append(
            [
                cell.name,
                f"{cell_result.rate:,.0f}",
                f"{cell_result.plain:,.0f}",
                f"{cell_result.rate / cell_result.plain:.2f}",
                f"{cell_result.idle_step:.1%}",
                f"{cell_result.idle_search:.1%}",
                f"{cell_result.limit:,.0f}",
                f"{cell_result.rate / cell_result.limit:.1%}",
            ]
        )
        section.ratios.append(Ratio(f"over_plain_{cell.name}", cell_result.rate / cell_result.plain))
        section.ratios.append(Ratio(f"busy_in_steps_{cell.name}", 1.0 - cell_result.idle_step, 1.0 - MAX_IDLE_FRACTION))
        section.figures[cell.name] = vars(cell_result)
    section.tables.append(table)
    section.notes.append(f"memory: {bandwidth / 1e9:,.0f} GB/s, by a copy of {COPIED_BYTES >> 20:,} MiB")
    rates = [cell_result.rate for cell, cell_result in results.items() if cell.beam == 4]
    if rates:
        section.ratios.append(Ratio("beam4_over_target", max(rates) / TARGET_RATE, 1.0))
    return section


@click.command()
@click.option("--quick", is_flag=True, help="Measure three batch sizes in one short round.")
@click.option(
    "--batch", "batches", type=click.IntRange(min=1), multiple=True, help="Measure only these batch sizes, in sentences."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each cell.  [default: 3; quick 1]")
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Seconds of each turn.  [default: 2; quick 0.3]")
@with_options("json")
def main(quick: bool, batches: tuple[int, ...], rounds: int | None, seconds: float | None, report: Path | None) -> None:
    """Measure translation speed on a GPU, beside the plain model and the speed limit."""
    if not torch.cuda.is_available():
        raise click.ClickException(
            "no CUDA device: this benchmark measures a GPU; run `make bench-inference` to measure the processor"
        )
    bench = Benchmark(__file__, quick=quick, cores=None, libraries=("dragoman", "torch"), report=report)
    device = torch.device("cuda", torch.cuda.current_device())
    bench.machine["gpu"] = torch.cuda.get_device_name(device)
    bench.console.print(f"{bench.machine['gpu']}, CUDA {torch.version.cuda}", markup=False)
    benchmark, results = GpuBenchmark(device), {}
    for batch in batches or (BATCHES[::2] if quick else BATCHES):
        for beam in BEAMS:
            cell = GpuCell(batch, beam)
            results[cell] = benchmark.measure(
                cell, rounds=rounds or (1 if quick else 3), seconds=seconds if seconds is not None else (0.3 if quick else 2.0)
            )
            print_progress(f"{cell.name}: {results[cell].rate:,.0f}")
    bench.add("gpu", build_section(results, benchmark.bandwidth))
    bench.finish()


if __name__ == "__main__":
    main()
