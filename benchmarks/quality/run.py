"""What each switch for quality is worth, alone and together: `make bench-quality`, with QUICK=1 in a few minutes.

What is trained and how it is compared stands in README.md beside this file. The last line holds `name=ratio` pairs: BLEU over
the BLEU of what a row is compared with.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click
from common.report import open_console, show, tell_end, tell_machine
from common.results import Section
from common.usage import CommandError

from dragoman.runtime.processes import count_cores

from .corpus import NoText, find_corpus
from .judge import judge
from .learn import School, end_all
from .rows import QUICK, ROWS, needed

COMPARED = [row.name for row in ROWS if row.over]


@click.command()
@click.option("--quick", is_flag=True, help="Two rows and few steps, to see that it works: under four minutes.")
@click.option(
    "--only", type=click.Choice([row.name for row in ROWS if row.over]), multiple=True, help="These rows, and what they need."
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
    signal.signal(signal.SIGTERM, lambda *_: end_all())
    here = Path(__file__).resolve().parent
    work = (work or here / ".work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    console = open_console()
    most = processes or count_cores()
    told = tell_machine(console, cores=most, quick=quick, libraries=("dragoman", "torch", "numpy"))

    def say(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    budget = steps or (60 if quick else 5600)
    rows = needed(only or (QUICK if quick else ()))
    try:
        corpus = find_corpus((shared or here.parents[1].parent / "shared" / "data").resolve(), work, every)
        school = School(corpus, work / f"{budget}-steps{f'-every-{every}' if every > 1 else ''}", budget, say, settings)
        school.train(rows, seeds, most)
        section = judge(school, rows, seeds, say=say)
    except CommandError as error:
        console.print(str(error), markup=False)
        sys.exit(1)
    except NoText as error:
        section = Section(remarks=[str(error)])
    show(console, section)
    tell_end(console, {"quality": section}, told, seconds=time.monotonic() - started, report=report)


if __name__ == "__main__":
    main()
