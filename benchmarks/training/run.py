"""Training benchmark beside other toolkits: `make bench-training`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from common.benchmark import Benchmark, with_options
from common.instruction_set import describe_instruction_set
from common.results import Section
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from .benchmark import MeasuredRates, TrainingBenchmark
from .peers import find_peers
from .sizes import SIZES
from .speed import measure_speed
from .start import measure_start
from .text import make_training_text
from .timed_run import THREADS

SECTIONS = ("speed", "start")
QUICK_SECONDS = 200.0
"""Seconds of a quick run, once the environments of the peers exist. A stopped run may take some seconds more."""
SPEED_SHARE = 0.75
"""Share of a quick run's time for the speed."""


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Run one round of the tiny model, in under four minutes once the peers are installed. --size base adds the other.",
)
@with_options("isa")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option("--size", "chosen", type=click.Choice(list(SIZES)), multiple=True, help="Measure only these sizes.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Rounds of each section.  [default: 3; quick 1]",
)
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Seconds of each run after its first report.")
@click.option("--install", is_flag=True, help="Install missing peers also in a quick run.")
@with_options("shared", "work", "json")
def main(
    quick: bool,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    rounds: int | None,
    seconds: float | None,
    install: bool,
    shared: Path,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the training speed of dragoman and of other toolkits."""
    os.environ.pop("PYTHONPATH", None)  # only this program needs it, not its child processes
    libraries = ("dragoman", "sentencepiece", "numpy", "torch")
    frame = Benchmark(__file__, quick=quick, cores=THREADS, libraries=libraries, work=work, report=report)
    corpus = make_training_text(shared, frame.work / "text")
    frame.console.print(f"text: {corpus.description}; {corpus.lengths.pairs:,} pairs, {corpus.lengths.t:,} target tokens")
    bench = TrainingBenchmark(corpus, frame.work)
    sizes = [SIZES[name] for name in SIZES if not chosen or name in chosen]
    default_seconds = {"tiny": 3.0, "base": 2.5} if quick else {"tiny": 15.0, "base": 60.0}
    measured = MeasuredRates()
    timed = [(size, default_seconds[size.name] if seconds is None else seconds) for size in sizes]
    num_rounds = rounds or (1 if quick else 3)
    start_sizes = sizes[:1] if quick else sizes
    if quick:  # a slow machine takes many seconds for a step
        timed = [(replace(size, report_steps=1), run_seconds) for size, run_seconds in (timed if chosen else timed[:1])]
    frame.console.print(describe_instruction_set(), markup=False)
    peers = find_peers(corpus, frame.work, install=install or not quick, include_slow=not quick)
    run_budget = TimeBudget.from_seconds(QUICK_SECONDS) if quick and rounds is None and seconds is None else UNBOUNDED
    measures: dict[str, Callable[[], Section]] = {
        "speed": lambda: measure_speed(
            bench, measured, timed, rounds=num_rounds, peers=peers, budget=run_budget.take_share(SPEED_SHARE)
        ),
        "start": lambda: measure_start(bench, start_sizes, rounds=num_rounds, budget=run_budget),
    }
    for name in SECTIONS:
        if name in (only or SECTIONS):
            try:
                section = measures[name]()
            except CommandError as error:
                section = Section(notes=[f"{name}: {error}"])
            frame.add(name, section)
    frame.finish()


if __name__ == "__main__":
    main()
