"""Data pipeline benchmark beside other toolkits: `make bench-data`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.usage import adopt_orphans, limit_cores

from .corpora import TextCorpus, make_base, make_large, read_text, write_text
from .dragoman_runner import write_recipe
from .speed import measure_speed

CORES = 2


@click.command()
@click.option("--quick", is_flag=True, help="Use half of the real pairs once, in under four minutes.")
@click.option("--rounds", type=click.IntRange(min=1), help="Measured rounds.  [default: 3]")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for text, environments and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(
    quick: bool,
    rounds: int | None,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the data pipeline of dragoman and of other toolkits."""
    started = time.monotonic()
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work").resolve()
    shared = (shared or package_path.parents[1].parent / "shared" / "data").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    os.environ.pop("PYTHONPATH", None)  # only this program needs it, not its child processes
    adopt_orphans()
    cores = limit_cores(CORES)
    console = open_console()
    libraries = ("dragoman", "sentencepiece", "pyarrow", "numpy", "torch")
    machine = print_machine(console, cores=cores, quick=quick, libraries=libraries)
    base = make_base(shared, work / "text")
    console.print(f"text: {base.description}; {base.text.pairs:,} pairs, {base.vocab_size:,} pieces")
    recipe = write_recipe(work)

    text = _part(base.text, work / "text", base.text.pairs // 2) if quick else make_large(base, work / "text", 1_000_000)
    sections = {"speed": measure_speed(base, text, recipe, work, rounds=rounds or 3, quick=quick)}
    print_section(console, sections["speed"])
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


def _part(text: TextCorpus, folder: Path, pairs: int) -> TextCorpus:
    """Write the first pairs of a text."""
    return write_text(folder, f"{text.source.stem}-first-{pairs}", islice(read_text(text), pairs))


if __name__ == "__main__":
    main()
