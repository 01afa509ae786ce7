"""Quality benchmark of each option, alone and combined: `make bench-quality`, with QUICK=1 in under four minutes.

README.md beside this file describes the rows. The last line holds `name=ratio` pairs: BLEU over the BLEU of the baseline.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section
from common.usage import CommandError

from dragoman.runtime.processes import count_cores

from .corpus import MissingMulti30kError, find_corpus
from .evaluate import evaluate_rows
from .experiment import Experiment, terminate_all
from .rows import QUICK, ROWS, select_rows

COMPARED = [row.name for row in ROWS if row.baseline]


@click.command()
@click.option("--quick", is_flag=True, help="Two rows and few steps, to see that it works: under four minutes.")
@click.option(
    "--only",
    type=click.Choice([row.name for row in ROWS if row.baseline]),
    multiple=True,
    help="These rows, and what they need.",
)
@click.option("--steps", type=click.IntRange(min=2), help="To train each.  [default: 5600, as the recipe; quick 60]")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="How often to train each.")
@click.option("--processes", type=click.IntRange(min=1), help="Trained at a time, by a thread each.  [default: one a core]")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="4: learn from every 4th pair alone.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for the runs, which the same command goes on with.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write everything measured to this file.")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
def main(
    quick: bool,
    only: tuple[str, ...],
    steps: int | None,
    seeds: int,
    processes: int | None,
    every: int,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Train the recipe of Multi30k with each switch, and see what it is worth on the validation set.

    KEY=VALUE is set in every row, such as tokenizer.vocab_size=4000.
    """
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: terminate_all())
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    console = open_console()
    num_processes = processes or count_cores()
    machine = print_machine(console, cores=num_processes, quick=quick, libraries=("dragoman", "torch", "numpy"))

    def print_progress(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    budget = steps or (60 if quick else 5600)
    rows = select_rows(only or (QUICK if quick else ()))
    try:
        corpus = find_corpus((shared or package_path.parents[1].parent / "shared" / "data").resolve(), work, every)
        school = Experiment(
            corpus, work / f"{budget}-steps{f'-every-{every}' if every > 1 else ''}", budget, print_progress, settings
        )
        school.train(rows, seeds, num_processes)
        section = evaluate_rows(school, rows, seeds, on_progress=print_progress)
    except CommandError as error:
        console.print(str(error), markup=False)
        sys.exit(1)
    except MissingMulti30kError as error:
        section = Section(notes=[str(error)])
    print_section(console, section)
    print_end(console, {"quality": section}, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
