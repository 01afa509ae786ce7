"""Parsing benchmark: `make bench-parsing`, with QUICK=1 in under four minutes, with BUNDLE=… for a trained parser.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section
from common.usage import limit_cores

from dragoman.errors import DragomanError
from dragoman.inference.load import load

from .models import find_treebank, pick_sentences, random_bundle
from .quality import measure_confidence, measure_quality
from .speed import measure_speed

SECTIONS = ("speed", "quality", "confidence")


@click.command()
@click.option("--quick", is_flag=True, help="Parse fewer sentences in fewer rounds, in under four minutes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Trained parser, instead of one with random weights.")
@click.option(
    "--sentences", type=click.IntRange(min=8), help="Sentences that `speed` parses greedily.  [default: 192; quick 32]"
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of `speed`.  [default: 5; quick 3]")
@click.option("--cores", "max_cores", type=click.IntRange(min=1), default=2, show_default=True, help="Most cores to use.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for the random model.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(
    quick: bool,
    only: tuple[str, ...],
    bundle: Path | None,
    sentences: int | None,
    rounds: int | None,
    max_cores: int,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure parsing speed, the cost of the constraint, and F1 beside baselines."""
    started = time.monotonic()
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    console = open_console()
    cores = limit_cores(max_cores)
    machine = print_machine(console, cores=cores, quick=quick, libraries=("dragoman", "torch", "numpy"))

    def print_progress(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    treebank = find_treebank((shared or package_path.parents[1].parent / "shared" / "data").resolve())
    try:
        folder = bundle or random_bundle(treebank, work / "random")
        parser = load(folder, task="parsing", intra_threads=cores, inter_threads=1)
    except DragomanError as error:
        console.print(str(error), markup=False)
        sys.exit(error.exit_code)
    speed_sentences = pick_sentences(treebank, sentences or (32 if quick else 192))
    turn_options = {"rounds": rounds or (3 if quick else 5), "part": 4}
    measures: dict[str, Callable[[], Section]] = {
        "speed": lambda: measure_speed(
            parser, speed_sentences, trained=bundle is not None, on_progress=print_progress, **turn_options
        ),
        "quality": lambda: measure_quality(treebank, bundle, on_progress=print_progress, quick=quick),
    }
    if bundle is not None:
        measures["confidence"] = lambda: measure_confidence(parser, treebank, on_progress=print_progress, quick=quick)
    sections: dict[str, Section] = {}
    for name, measure in measures.items():
        if not only or name in only:
            sections[name] = measure()
            print_section(console, sections[name])
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
