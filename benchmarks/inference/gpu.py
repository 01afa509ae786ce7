"""Fixed work on a GPU in bfloat16, the base model with random weights: `make bench-inference-gpu`, with QUICK=1 in a minute.

27 tokens in, exactly 30 out, whatever they are; searches alone, from ids to ids. Three things stand beside each rate: that of
the plain model's step in the same search; for how much of the time the GPU had nothing to do; and the limit, which is the time
to read the weights at the speed of memory or to multiply by them, whichever is longer, both measured here and nothing else
counted. The last line holds `name=ratio` pairs; larger is better in each.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import torch
from common.report import open_console, show, tell_end, tell_machine
from common.results import Ratio, Section, Table
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dragoman.config import make_recipe
from dragoman.data.tokenization.special_tokens import END_ID, SPECIAL_IDS
from dragoman.decoding.beam_search import beam_search
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.penalty import LengthPenalty
from dragoman.inference.backends.cuda.graphs import CudaGraphRecorder
from dragoman.inference.backends.cuda.model import build_cuda_inference_model
from dragoman.model.factory import build_model
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import InferenceModel, as_inference_model, get_decoder_start_id

from .ceiling import Shape, once_a_sentence, once_a_token
from .models import VOCABULARY
from .serve import SOURCE_TOKENS, TARGET_TOKENS, timed

BATCHES = (1, 8, 32, 128, 512, 1024)
BEAMS = (1, 4)
PRECISION = torch.bfloat16
# Of the best hypotheses at beam 4, and of the time within a step in which nothing runs.
ASKED_RATE = 100_000
ASKED_IDLE = 0.1
# Products that are timed in one go, so that asking for them takes no part of the time.
AT_ONCE = 20
COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class Cell:
    batch: int
    beam: int

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.beam}"


@dataclass(frozen=True)
class Measured:
    """rate, plain: target tokens a second, by steps of fixed shapes and by the plain model's

    idle_step, idle_search: the share of the time in which nothing ran, within steps alone and over a whole search
    limit: target tokens a second
    """

    rate: float
    plain: float
    idle_step: float
    idle_search: float
    limit: float


class Contest:
    """The base model on the GPU, its two speakers, and what the GPU can do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.config = make_recipe({"preset": "t2t-2017", "size": "base"}, ()).model
        torch.manual_seed(1)
        made = build_model(self.config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
        model = made.to(device, PRECISION).eval()
        self.fixed, self.plain = build_cuda_inference_model(model), as_inference_model([model])
        self.graphs = CudaGraphRecorder(device)
        self.products: dict[tuple[int, Shape], float] = {}

    def sources(self, batch: int) -> Tensor:
        chance = random.Random(1)
        rows = [[chance.randrange(len(SPECIAL_IDS), VOCABULARY) for _ in range(SOURCE_TOKENS - 1)] for _ in range(batch)]
        return torch.tensor([[*row, END_ID] for row in rows], device=self.device)

    def search(self, speaker: InferenceModel, cell: Cell, source_BS: Tensor) -> None:
        state = speaker.start(source_BS)
        how: dict[str, Any] = {
            "limits": [TARGET_TOKENS] * cell.batch,
            "start_id": get_decoder_start_id(self.config),
            "end_id": END_ID,
            "forbidden": FORBIDDEN_IDS,
            "penalty": LengthPenalty("gnmt", 0.6),
            "rules": DecodingConstraints(min_length=TARGET_TOKENS),
            "device": self.device,
        }
        if cell.beam == 1:
            decode_tokens(speaker.step, state, **how)
        else:
            beam_search(speaker.step, state, beam_size=cell.beam, **how)
        torch.cuda.synchronize(self.device)

    def measure(self, cell: Cell, *, rounds: int, seconds: float) -> Measured:
        """Both in turns; medians of all turns."""
        source_BS = self.sources(cell.batch)
        rates: dict[str, list[float]] = {"fixed": [], "plain": []}
        speakers = {"fixed": self.fixed, "plain": self.plain}
        for speaker in speakers.values():
            for _ in range(2):  # graphs are recorded by the first, and the second finds memory as it will be
                self.search(speaker, cell, source_BS)
        for _ in range(rounds):
            for name, speaker in speakers.items():
                turns = timed(lambda speaker=speaker: self.search(speaker, cell, source_BS), seconds)  # type: ignore[misc]
                rates[name] += [cell.batch * TARGET_TOKENS / turn for turn in turns]
        return Measured(
            rate=statistics.median(rates["fixed"]),
            plain=statistics.median(rates["plain"]),
            idle_step=idle_share(self._steps(cell, source_BS)),
            idle_search=idle_share(lambda: self.search(self.fixed, cell, source_BS)),
            limit=self.limit(cell),
        )

    def _steps(self, cell: Cell, source_BS: Tensor) -> Callable[[], None]:
        """Nothing but steps, as many as there are in a search, less the first."""
        tokens_N = torch.full((cell.batch * cell.beam,), len(SPECIAL_IDS), device=self.device)
        _, state = self.fixed.step(tokens_N, self.fixed.start(source_BS))
        torch.cuda.synchronize(self.device)

        def steps() -> None:
            for _ in range(TARGET_TOKENS - 1):
                self.fixed.step(tokens_N, state)
            torch.cuda.synchronize(self.device)

        return steps

    def limit(self, cell: Cell) -> float:
        once = self._least_seconds(once_a_sentence(self.config), cell.batch * SOURCE_TOKENS)
        step = self._least_seconds(once_a_token(self.config, VOCABULARY), cell.batch * cell.beam)
        return cell.batch * TARGET_TOKENS / (once + TARGET_TOKENS * step)

    def _least_seconds(self, shapes: Counter[Shape], rows: int) -> float:
        read = sum(count * wide * narrow for (wide, narrow), count in shapes.items()) * PRECISION.itemsize
        multiplied = sum(count * self._product_seconds(rows, shape) for shape, count in shapes.items())
        return max(read / self.bandwidth, multiplied)

    def _product_seconds(self, rows: int, shape: Shape) -> float:
        if (rows, shape) not in self.products:
            left, right = (torch.randn(size, device=self.device, dtype=PRECISION) for size in ((rows, shape[1]), shape))
            into = torch.empty(rows, shape[0], device=self.device, dtype=PRECISION)

            def multiply() -> None:
                for _ in range(AT_ONCE):
                    torch.mm(left, right.t(), out=into)

            self.products[rows, shape] = fastest(self.graphs(multiply)) / AT_ONCE
        return self.products[rows, shape]

    @cached_property
    def bandwidth(self) -> float:
        """Bytes a second, as a copy reads and writes them."""
        given = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=self.device)
        into = torch.empty_like(given)
        return 2 * COPIED_BYTES / fastest(lambda: into.copy_(given))


def fastest(work: Callable[[], object], turns: int = 10) -> float:
    """Seconds of the fastest turn, by the GPU's own clock, after three that do not count."""
    found: list[float] = []
    for turn in range(3 + turns):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        work()
        ended.record()
        ended.synchronize()
        if turn >= 3:
            found.append(began.elapsed_time(ended) / 1e3)
    return min(found)


def idle_share(work: Callable[[], None]) -> float:
    """For how much of the time, from the first kernel to the last, nothing ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
    spans = [
        (event.time_range.start, event.time_range.end) for event in seen.events() or () if event.device_type == DeviceType.CUDA
    ]
    return 1.0 - covered(spans) if spans else float("nan")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The share of the time from the first beginning to the last end that lies within at least one span."""
    ordered = sorted(spans)
    busy, reached = 0.0, ordered[0][0]
    for began, ended in ordered:
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return busy / (reached - ordered[0][0])


def section_of(found: dict[Cell, Measured], bandwidth: float) -> Section:
    section = Section()
    table = Table(
        f"Base in bfloat16, random weights, {SOURCE_TOKENS} tokens in, {TARGET_TOKENS} out: target tokens a second",
        ["batch x beam", "fixed shapes", "plain step", "ratio", "idle in steps", "idle in all", "limit", "share of it"],
    )
    for cell, one in found.items():
        table.rows.append(
            [
                cell.name,
                f"{one.rate:,.0f}",
                f"{one.plain:,.0f}",
                f"{one.rate / one.plain:.2f}",
                f"{one.idle_step:.1%}",
                f"{one.idle_search:.1%}",
                f"{one.limit:,.0f}",
                f"{one.rate / one.limit:.1%}",
            ]
        )
        section.ratios.append(Ratio(f"over_plain_{cell.name}", one.rate / one.plain))
        section.ratios.append(Ratio(f"busy_in_steps_{cell.name}", 1.0 - one.idle_step, 1.0 - ASKED_IDLE))
        section.figures[cell.name] = vars(one)
    section.tables.append(table)
    section.remarks.append(f"memory: {bandwidth / 1e9:,.0f} GB/s, by a copy of {COPIED_BYTES >> 20:,} MiB")
    rates = [one.rate for cell, one in found.items() if cell.beam == 4]
    if rates:
        section.ratios.append(Ratio("beam4_over_asked", max(rates) / ASKED_RATE, 1.0))
    return section


@click.command()
@click.option("--quick", is_flag=True, help="Three batch sizes, one short round.")
@click.option("--batch", "batches", type=click.IntRange(min=1), multiple=True, help="Sentences at once; these alone.")
@click.option("--rounds", type=click.IntRange(min=1), help="Turns of each.  [default: 3; quick 1]")
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Of each turn.  [default: 2; quick 0.3]")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write everything measured to this file.")
def main(quick: bool, batches: tuple[int, ...], rounds: int | None, seconds: float | None, report: Path | None) -> None:
    """Measure how fast dragoman translates on a GPU, beside its own plain step and the GPU's limits."""
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device here: this measures a GPU; `make bench-inference` measures the processor")
    started, console = time.monotonic(), open_console()
    told = tell_machine(console, cores=torch.get_num_threads(), quick=quick, libraries=("dragoman", "torch"))
    device = torch.device("cuda", torch.cuda.current_device())
    told["gpu"] = torch.cuda.get_device_name(device)
    console.print(f"{told['gpu']}, CUDA {torch.version.cuda}", markup=False)
    contest, found = Contest(device), {}
    for batch in batches or (BATCHES[::2] if quick else BATCHES):
        for beam in BEAMS:
            cell = Cell(batch, beam)
            found[cell] = contest.measure(
                cell, rounds=rounds or (1 if quick else 3), seconds=seconds if seconds is not None else (0.3 if quick else 2.0)
            )
            console.print(f"  {cell.name}: {found[cell].rate:,.0f}", markup=False)
    section = section_of(found, contest.bandwidth)
    show(console, section)
    tell_end(console, {"gpu": section}, told, seconds=time.monotonic() - started, report=report)


if __name__ == "__main__":
    main()
