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
@click.option("--quick", is_flag=True, help="Train two rows with few steps, in under four minutes.")
@click.option(
    "--only",
    type=click.Choice([row.name for row in ROWS if row.baseline]),
    multiple=True,
    help="Train these rows and those that they depend on.",
)
@click.option(
    "--steps", type=click.IntRange(min=2), help="Training steps of each row.  [default: 5600, as in the recipe; quick 60]"
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Number of seeds to train each row with."
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Models that train at once, with one thread each.  [default: one for each core]",
)
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="Train on every n-th pair only.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the runs; the same command resumes them.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
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
    """Train the Multi30k recipe with each option, and measure the gain on the validation set.

    KEY=VALUE applies to every row, such as tokenizer.vocab_size=4000.
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
        experiment = Experiment(
            corpus, work / f"{budget}-steps{f'-every-{every}' if every > 1 else ''}", budget, print_progress, settings
        )
        experiment.train(rows, seeds, num_processes)
        section = evaluate_rows(experiment, rows, seeds, on_progress=print_progress)
    except CommandError as error:
        console.print(str(error), markup=False)
        sys.exit(1)
    except MissingMulti30kError as error:
        section = Section(notes=[str(error)])
    print_section(console, section)
    print_end(console, {"quality": section}, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
