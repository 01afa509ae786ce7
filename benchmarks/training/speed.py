"""Training speed in target tokens per second: `dragoman train` and its peers, alternating."""

from __future__ import annotations

import os
from collections.abc import Sequence

from common.benchmark import print_progress
from common.results import Ratio, Section, Table
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from .benchmark import PRECISIONS, MeasuredRates, TrainingBenchmark, list_precisions
from .peers import TrainingPeers
from .sizes import BenchmarkSize
from .timed_run import LIMIT_SECONDS, TimedRun, measure

# Least ratios over the fastest peer in float32.
TARGET_RATIOS = {"float32": 2.0, "bfloat16": 3.0}


def measure_speed(
    bench: TrainingBenchmark,
    measured: MeasuredRates,
    sizes: Sequence[tuple[BenchmarkSize, float]],
    *,
    rounds: int,
    peers: TrainingPeers,
    budget: TimeBudget = UNBOUNDED,
) -> Section:
    """Run each system once a round, alternating, for each size; store the rates.

    budget: divided among the runs. A run that is stopped has its last complete reports as its rate, or the reason as a note
    """
    section = Section()
    precisions, reasons = list_precisions()
    section.notes += reasons
    section.notes += [f"{name}: {reason}" for name, reason in peers.absent.items()]
    for size, seconds in sizes:
        runs = [bench.dragoman_run(size, precision) for precision in precisions]
        runs += [peer.make_run(size, bench.out / peer.key) for peer in peers.peers]
        loads = _run_rounds(section, measured, size, runs, rounds=rounds, seconds=seconds, budget=budget)
        _report_size(section, measured, size, runs, loads)
    return section


def _run_rounds(
    section: Section,
    measured: MeasuredRates,
    size: BenchmarkSize,
    runs: list[TimedRun],
    *,
    rounds: int,
    seconds: float,
    budget: TimeBudget,
) -> list[float]:
    """Run the rounds; drop a system that fails and note why. Return the machine's load before each run."""
    loads = []
    for _ in range(rounds):
        num_runs = len(runs)
        for number, run in enumerate(list(runs)):
            loads.append(os.getloadavg()[0])
            share = budget.take_share(1 / (num_runs - number))
            try:
                rate = measure(run, seconds=seconds, limit_seconds=min(LIMIT_SECONDS, share.seconds_left))
            except CommandError as error:
                section.notes.append(f"{size.name}: {error}")
                runs.remove(run)
                continue
            measured.rates.setdefault((size.name, run.key), []).append(rate)
            print_progress(f"{size.name}: {run.name}: {rate:,.0f} tokens/s")
    return loads


def _report_size(
    section: Section, measured: MeasuredRates, size: BenchmarkSize, runs: list[TimedRun], loads: list[float]
) -> None:
    medians = {run.key: median for run in runs if (median := measured.median(size, run.key)) is not None}
    own_rates = {precision: medians[f"dragoman_{precision}"] for precision in PRECISIONS if f"dragoman_{precision}" in medians}
    table = Table(
        f"{size.name}, batches of {size.batch_tokens:,}, target tokens per second (load {min(loads):.1f}–{max(loads):.1f})",
        ["system", "tokens/s", "spread", "rounds", *(f"ratio of dragoman in {precision}" for precision in own_rates)],
    )
    for run in runs:
        if run.key not in medians:
            continue
        rates = measured.rates[size.name, run.key]
        ratios = ["" if run.key.startswith("dragoman") else f"{rate / medians[run.key]:.2f}" for rate in own_rates.values()]
        rate_range = f"{min(rates):,.0f}–{max(rates):,.0f}"
        table.rows.append([run.name, f"{medians[run.key]:,.0f}", rate_range, f"{len(rates)}", *ratios])
    section.tables.append(table)
    section.figures[size.name] = {
        "tokens_per_second": {run.name: measured.rates.get((size.name, run.key), []) for run in runs},
        "load": loads,
    }
    peer_rates = {key: rate for key, rate in medians.items() if not key.startswith("dragoman")}
    float32_rates = [rate for key, rate in peer_rates.items() if not key.endswith("bfloat16")]
    for precision, rate in own_rates.items():
        if float32_rates:
            section.ratios.append(
                Ratio(f"{size.name}_{precision}_over_best_peer", rate / max(float32_rates), TARGET_RATIOS[precision])
            )
        section.ratios += [
            Ratio(f"{size.name}_{precision}_over_{key}", rate / peer_rate) for key, peer_rate in peer_rates.items()
        ]
