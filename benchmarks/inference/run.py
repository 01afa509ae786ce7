"""Translation, measured beside the peers and the machine's limits: `make bench-inference`, with QUICK=1 in a few minutes.

What is measured and how stands in README.md beside this file. The last line holds `name=ratio` pairs; larger is better in each.
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
from common.allowance import UNBOUNDED, Allowance
from common.report import open_console, show, tell_end, tell_machine
from common.results import Section
from common.usage import CommandError, adopt_orphans, keep_to_cores

from .captions import Captions, NoText, find_captions, measure_captions
from .fixed import CELLS, measure_fixed
from .memory import measure_memory
from .models import Forms, random_base
from .systems import ALL, CORES, open_systems

SECTIONS = ("fixed", "captions", "memory")
# Seconds of a quick run in which these two measure, however slow the machine; `memory` takes some half minute more.
QUICK_SECONDS = {"fixed": 120.0, "captions": 45.0}


@click.command()
@click.option(
    "--quick", is_flag=True, help="Fewer settings and turns: under four minutes once environment and model are there."
)
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure these alone.")
@click.option(
    "--cell", "chosen", type=click.Choice([cell.name for cell in CELLS]), multiple=True, help="Of `fixed`, these alone."
)
@click.option("--system", "named", type=click.Choice(ALL), multiple=True, help="Measure these alone, all but in `memory`.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Turns of each, after all settings were tried.  [default: 5; quick 2]"
)
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Of each turn of `fixed`.  [default: 3; quick 0.3]")
@click.option(
    "--bundle", type=click.Path(path_type=Path), help="A trained bundle for `captions`, instead of training one here."
)
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for environment, models and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write everything measured to this file.")
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
    """Measure how fast dragoman translates, beside its peers and beside what the machine can do."""
    started = time.monotonic()
    here = Path(__file__).resolve().parent
    work = (work or here / ".work").resolve()
    shared = (shared or here.parents[1].parent / "shared" / "data").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    os.environ.pop("PYTHONPATH", None)  # it is for this program, not for those that it starts
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started is ended, as on Ctrl-C
    adopt_orphans()
    console = open_console()
    told = tell_machine(console, cores=keep_to_cores(CORES), quick=quick, libraries=("dragoman", "torch", "numpy"))
    times, turn = rounds or (2 if quick else 5), seconds if seconds is not None else (0.3 if quick else 3.0)
    cells = [cell for cell in CELLS if not chosen or cell.name in chosen]

    def time_for(section: str) -> Allowance:
        return Allowance.of(QUICK_SECONDS[section]) if quick and rounds is None and seconds is None else UNBOUNDED

    def say(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    @cache
    def base() -> Forms:
        return random_base(work / "base")

    @cache
    def captions() -> Captions:
        return find_captions(shared, work, bundle, quick=quick, say=say)

    def text_if_any() -> Captions | None:
        try:
            return captions()
        except NoText:
            return None

    done: dict[str, Section] = {}
    with open_systems(work, named or ALL) as systems:
        console.print(systems.described, markup=False)
        measures: dict[str, Callable[[], Section]] = {
            "fixed": lambda: measure_fixed(
                systems, base(), cells, say=say, quick=quick, rounds=times, seconds=turn, allowance=time_for("fixed")
            ),
            "captions": lambda: measure_captions(
                systems, captions(), say=say, quick=quick, rounds=times, allowance=time_for("captions")
            ),
            "memory": lambda: measure_memory(
                base(), None if quick and not only else text_if_any(), say=say, quick=quick, rounds=1 if quick else times
            ),
        }
        for name in SECTIONS:
            if name in (only or SECTIONS):
                try:
                    done[name] = measures[name]()
                except (CommandError, NoText) as error:
                    done[name] = Section(remarks=[f"{name}: {error}"])
                show(console, done[name])
    tell_end(console, done, told, seconds=time.monotonic() - started, report=report)


if __name__ == "__main__":
    main()
