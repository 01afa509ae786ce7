"""Translation benchmark beside other engines: `make bench-inference`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError, adopt_orphans, limit_cores

from .captions import Captions, MissingCaptionsError, find_captions, measure_captions
from .fixed import CELLS, measure_fixed
from .memory import measure_memory
from .models import ModelFormats, random_base
from .systems import ALL, CORES, open_systems

SECTIONS = ("fixed", "captions", "memory")
# Seconds of these two sections in a quick run; `memory` takes about 30 s more.
QUICK_SECONDS = {"fixed": 120.0, "captions": 45.0}


@click.command()
@click.option(
    "--quick", is_flag=True, help="Try fewer settings in fewer rounds, in under four minutes once environment and model exist."
)
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option(
    "--cell",
    "chosen",
    type=click.Choice([cell.name for cell in CELLS]),
    multiple=True,
    help="Measure only these cells of `fixed`.",
)
@click.option(
    "--system", "named", type=click.Choice(ALL), multiple=True, help="Measure only these systems, except in `memory`."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds after the trials of all settings.  [default: 5; quick 2]")
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Seconds of each turn of `fixed`.  [default: 3; quick 0.3]")
@click.option(
    "--bundle", type=click.Path(path_type=Path), help="Trained bundle for `captions`; without it, the benchmark trains one."
)
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for environment, models and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(
    quick: bool,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    named: tuple[str, ...],
    rounds: int | None,
    seconds: float | None,
    bundle: Path | None,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the translation speed of dragoman and of other engines, beside the speed limit."""
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
    machine = print_machine(console, cores=limit_cores(CORES), quick=quick, libraries=("dragoman", "torch", "numpy"))
    num_rounds, turn_seconds = rounds or (2 if quick else 5), seconds if seconds is not None else (0.3 if quick else 3.0)
    cells = [cell for cell in CELLS if not chosen or cell.name in chosen]

    def time_for(section: str) -> TimeBudget:
        return TimeBudget.from_seconds(QUICK_SECONDS[section]) if quick and rounds is None and seconds is None else UNBOUNDED

    def print_progress(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    @cache
    def base() -> ModelFormats:
        return random_base(work / "base")

    @cache
    def captions() -> Captions:
        return find_captions(shared, work, bundle, quick=quick, on_progress=print_progress)

    def find_captions_or_none() -> Captions | None:
        try:
            return captions()
        except MissingCaptionsError:
            return None

    sections: dict[str, Section] = {}
    with open_systems(work, named or ALL) as systems:
        console.print(systems.description, markup=False)
        measures: dict[str, Callable[[], Section]] = {
            "fixed": lambda: measure_fixed(
                systems,
                base(),
                cells,
                on_progress=print_progress,
                quick=quick,
                rounds=num_rounds,
                seconds=turn_seconds,
                budget=time_for("fixed"),
            ),
            "captions": lambda: measure_captions(
                systems, captions(), on_progress=print_progress, quick=quick, rounds=num_rounds, budget=time_for("captions")
            ),
            "memory": lambda: measure_memory(
                base(),
                None if quick and not only else find_captions_or_none(),
                on_progress=print_progress,
                quick=quick,
                rounds=1 if quick else num_rounds,
            ),
        }
        for name in SECTIONS:
            if name in (only or SECTIONS):
                try:
                    sections[name] = measures[name]()
                except (CommandError, MissingCaptionsError) as error:
                    sections[name] = Section(notes=[f"{name}: {error}"])
                print_section(console, sections[name])
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
