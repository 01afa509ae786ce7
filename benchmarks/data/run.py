"""Data pipeline benchmark beside other toolkits: `make bench-data`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import click
from common.benchmark import Benchmark, with_options

from .corpora import TextCorpus, make_base, make_large, read_text, write_text
from .dragoman_runner import write_recipe
from .speed import measure_speed

CORES = 2


@click.command()
@click.option("--quick", is_flag=True, help="Use half of the real pairs once, in under four minutes.")
@click.option("--rounds", type=click.IntRange(min=1), help="Measured rounds.  [default: 3]")
@with_options("shared", "work", "json")
def main(quick: bool, rounds: int | None, shared: Path, work: Path | None, report: Path | None) -> None:
    """Measure the data pipeline of dragoman and of other toolkits."""
    os.environ.pop("PYTHONPATH", None)  # only this program needs it, not its child processes
    libraries = ("dragoman", "sentencepiece", "pyarrow", "numpy", "torch")
    bench = Benchmark(__file__, quick=quick, cores=CORES, libraries=libraries, work=work, report=report)
    work = bench.work
    base = make_base(shared, work / "text")
    bench.console.print(f"text: {base.description}; {base.text.pairs:,} pairs, {base.vocab_size:,} pieces")
    recipe = write_recipe(work)

    text = _part(base.text, work / "text", base.text.pairs // 2) if quick else make_large(base, work / "text", 1_000_000)
    bench.add("speed", measure_speed(base, text, recipe, work, rounds=rounds or 3, quick=quick))
    bench.finish()


def _part(text: TextCorpus, folder: Path, pairs: int) -> TextCorpus:
    """Write the first pairs of a text."""
    return write_text(folder, f"{text.source.stem}-first-{pairs}", islice(read_text(text), pairs))


if __name__ == "__main__":
    main()
