"""Training speed in target tokens per second: `dragoman train` and its peers, alternating."""

from __future__ import annotations

import os
from collections.abc import Sequence

from common.results import Ratio, Section, Table
from common.usage import CommandError

from .benchmark import PRECISIONS, MeasuredRates, TrainingBenchmark
from .peers import find_peers
from .sizes import BenchmarkSize
from .timed_run import TimedRun, measure

# Over the best peer, of those that train in float32.
TARGET_RATIOS = {"float32": 2.0, "bfloat16": 3.0}


def measure_speed(
    bench: TrainingBenchmark,
    measured: MeasuredRates,
    sizes: Sequence[tuple[BenchmarkSize, float]],
    *,
    rounds: int,
    quick: bool,
    install: bool,
) -> Section:
    """Run each system once a round, alternating, for each size; store the rates."""
    section = Section()
    peers = find_peers(bench.corpus, bench.work, install=install, all_of_them=not quick)
    section.notes += [f"{name}: {reason}" for name, reason in peers.absent.items()]
    for size, seconds in sizes:
        contestants = [bench.dragoman_run(size, precision) for precision in PRECISIONS]
        contestants += [peer.make_run(size, bench.out / peer.key) for peer in peers.peers]
        loads = _take_turns(bench, section, measured, size, contestants, rounds=rounds, seconds=seconds)
        _report_size(section, measured, size, contestants, loads)
    return section


def _take_turns(
    bench: TrainingBenchmark,
    section: Section,
    measured: MeasuredRates,
    size: BenchmarkSize,
    contestants: list[TimedRun],
    *,
    rounds: int,
    seconds: float,
) -> list[float]:
    """Run the rounds; drop a system that fails and note why. Return the machine's load before each turn."""
    loads = []
    for _ in range(rounds):
        for contestant in list(contestants):
            loads.append(os.getloadavg()[0])
            try:
                rate = measure(contestant, seconds=seconds)
            except CommandError as error:
                section.notes.append(f"{size.name}: {error}")
                contestants.remove(contestant)
                continue
            measured.rates.setdefault((size.name, contestant.key), []).append(rate)
            bench.on_progress(f"{size.name}: {contestant.name}: {rate:,.0f} tokens/s")
    return loads


def _report_size(
    section: Section, measured: MeasuredRates, size: BenchmarkSize, contestants: list[TimedRun], loads: list[float]
) -> None:
    medians = {run.key: median for run in contestants if (median := measured.median(size, run.key)) is not None}
    own = {precision: medians[f"ours_{precision}"] for precision in PRECISIONS if f"ours_{precision}" in medians}
    table = Table(
        f"{size.name}, batches of {size.batch_tokens:,}, target tokens a second (load {min(loads):.1f}–{max(loads):.1f})",
        ["system", "tokens/s", "spread", "rounds", *(f"ours in {precision} over it" for precision in own)],
    )
    for run in contestants:
        if run.key not in medians:
            continue
        rates = measured.rates[size.name, run.key]
        over = ["" if run.key.startswith("ours") else f"{rate / medians[run.key]:.2f}" for rate in own.values()]
        spread = f"{min(rates):,.0f}–{max(rates):,.0f}"
        table.rows.append([run.name, f"{medians[run.key]:,.0f}", spread, f"{len(rates)}", *over])
    section.tables.append(table)
    section.figures[size.name] = {
        "tokens_per_second": {run.name: measured.rates.get((size.name, run.key), []) for run in contestants},
        "load": loads,
    }
    theirs = {key: rate for key, rate in medians.items() if not key.startswith("ours")}
    plain = [rate for key, rate in theirs.items() if not key.endswith("bfloat16")]
    for precision, rate in own.items():
        if plain:
            section.ratios.append(Ratio(f"{size.name}_{precision}_over_best_peer", rate / max(plain), TARGET_RATIOS[precision]))
        section.ratios += [
            Ratio(f"{size.name}_{precision}_over_{key}", rate / rate_of_peer) for key, rate_of_peer in theirs.items()
        ]
