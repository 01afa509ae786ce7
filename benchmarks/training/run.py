"""Training benchmark beside other toolkits: `make bench-training`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from common.instruction_set import describe_instruction_set, limit_to
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError, adopt_orphans, limit_cores

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
@click.option("--isa", "instruction_set", type=click.Choice(["avx2"]), help="Limit all systems to this instruction set.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option("--size", "chosen", type=click.Choice(list(SIZES)), multiple=True, help="Measure only these sizes.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Rounds of each section.  [default: 3; quick 1]",
)
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Seconds of each run after its first report.")
@click.option("--install", is_flag=True, help="Install missing peers also in a quick run.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for text, environments and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(
    quick: bool,
    instruction_set: str | None,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    rounds: int | None,
    seconds: float | None,
    install: bool,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the training speed of dragoman and of other toolkits."""
    limit_to(instruction_set)
    started = time.monotonic()
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work").resolve()
    shared = (shared or package_path.parents[1].parent / "shared" / "data").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    os.environ.pop("PYTHONPATH", None)  # only this program needs it, not its child processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the child processes, as Ctrl-C does
    adopt_orphans()
    console = open_console()
    cores = limit_cores(THREADS)
    machine = print_machine(console, cores=cores, quick=quick, libraries=("dragoman", "sentencepiece", "numpy", "torch"))
    corpus = make_training_text(shared, work / "text")
    console.print(f"text: {corpus.description}; {corpus.lengths.pairs:,} pairs, {corpus.lengths.t:,} target tokens")
    bench = TrainingBenchmark(corpus, work, lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    sizes = [SIZES[name] for name in SIZES if not chosen or name in chosen]
    default_seconds = {"tiny": 3.0, "base": 2.5} if quick else {"tiny": 15.0, "base": 60.0}
    measured = MeasuredRates()
    timed = [(size, default_seconds[size.name] if seconds is None else seconds) for size in sizes]
    num_rounds = rounds or (1 if quick else 3)
    start_sizes = sizes[:1] if quick else sizes
    if quick:  # a slow machine takes many seconds for a step
        timed = [(replace(size, report_steps=1), run_seconds) for size, run_seconds in (timed if chosen else timed[:1])]
    console.print(describe_instruction_set(), markup=False)
    peers = find_peers(corpus, work, install=install or not quick, include_slow=not quick)
    run_budget = TimeBudget.from_seconds(QUICK_SECONDS) if quick and rounds is None and seconds is None else UNBOUNDED
    measures: dict[str, Callable[[], Section]] = {
        "speed": lambda: measure_speed(
            bench, measured, timed, rounds=num_rounds, peers=peers, budget=run_budget.take_share(SPEED_SHARE)
        ),
        "start": lambda: measure_start(bench, start_sizes, rounds=num_rounds, budget=run_budget),
    }
    sections: dict[str, Section] = {}
    for name in SECTIONS:
        if name in (only or SECTIONS):
            try:
                sections[name] = measures[name]()
            except CommandError as error:
                sections[name] = Section(notes=[f"{name}: {error}"])
            print_section(console, sections[name])
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
