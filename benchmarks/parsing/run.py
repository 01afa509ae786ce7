"""Parsing benchmark: `make bench-parsing`, with QUICK=1 in under four minutes, with BUNDLE=… for a trained parser.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
from common.benchmark import Benchmark, with_options
from common.results import Section

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
@with_options("cores", "shared", "work", "json")
def main(
    quick: bool,
    only: tuple[str, ...],
    bundle: Path | None,
    sentences: int | None,
    rounds: int | None,
    max_cores: int,
    shared: Path,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure parsing speed, the cost of the constraint, and F1 beside baselines."""
    bench = Benchmark(
        __file__, quick=quick, cores=max_cores, libraries=("dragoman", "torch", "numpy"), work=work, report=report
    )
    treebank = find_treebank(shared)
    try:
        folder = bundle or random_bundle(treebank, bench.work / "random")
        parser = load(folder, task="parsing", intra_threads=bench.cores, inter_threads=1)
    except DragomanError as error:
        bench.console.print(str(error), markup=False)
        sys.exit(error.exit_code)
    speed_sentences = pick_sentences(treebank, sentences or (32 if quick else 192))
    turn_options = {"rounds": rounds or (3 if quick else 5), "part": 4}
    measures: dict[str, Callable[[], Section]] = {
        "speed": lambda: measure_speed(parser, speed_sentences, trained=bundle is not None, **turn_options),
        "quality": lambda: measure_quality(treebank, bundle, quick=quick),
    }
    if bundle is not None:
        measures["confidence"] = lambda: measure_confidence(parser, treebank, quick=quick)
    for name, measure in measures.items():
        if not only or name in only:
            bench.add(name, measure())
    bench.finish()


if __name__ == "__main__":
    main()
