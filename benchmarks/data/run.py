"""Data pipeline benchmark beside other toolkits: `make bench-data`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section
from common.usage import adopt_orphans, limit_cores

from .corpora import TextCorpus, make_base, make_large, make_sentences, read_multi30k, read_text, read_tsv, write_text
from .dragoman_runner import write_recipe
from .padding import measure_padding
from .scale import measure_scale
from .speed import measure_speed

CORES = 2
SECTIONS = ("speed", "scale", "padding")


@click.command()
@click.option("--quick", is_flag=True, help="Use at most half a million pairs, in under four minutes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option("--pairs", type=click.IntRange(min=1000), help="Pairs of the large corpus.  [default: 10,000,000; quick 500,000]")
@click.option("--rounds", type=click.IntRange(min=1), help="Measured rounds of `speed`.  [default: 3]")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for text, environments and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(
    quick: bool,
    only: tuple[str, ...],
    pairs: int | None,
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

    def speed() -> Section:
        text = _part(base.text, work / "text", base.text.pairs // 2) if quick else make_large(base, work / "text", 1_000_000)
        return measure_speed(base, text, recipe, work, rounds=rounds or 3, quick=quick)

    def scale() -> Section:
        large = make_large(base, work / "text", pairs or (500_000 if quick else 10_000_000))
        small = _part(base.text, work / "text", 10_000)
        steps, seconds = (9, 3.0) if quick else (60, 20.0)
        return measure_scale(base, large, small, recipe, work, steps=steps, loader_seconds=seconds)

    def padding() -> Section:
        texts = {}
        if (shared / "tatoeba").is_dir():
            texts["multi30k"] = write_text(work / "text", "multi30k", read_multi30k(shared / "multi30k" / "raw"))
            tatoeba = read_tsv(shared / "tatoeba" / "en-de" / "train.tsv.gz")
            texts["tatoeba"] = write_text(work / "text", "tatoeba", tatoeba)
        texts["lognormal"] = make_sentences(base, work / "text", 150_000 if quick else 1_000_000)
        return measure_padding(base, texts, recipe, work)

    measures: dict[str, Callable[[], Section]] = {"speed": speed, "scale": scale, "padding": padding}
    sections: dict[str, Section] = {}
    for name in only or SECTIONS:
        sections[name] = measures[name]()
        print_section(console, sections[name])
    print_end(console, sections, machine, seconds=time.monotonic() - started, json_path=report)


def _part(text: TextCorpus, folder: Path, pairs: int) -> TextCorpus:
    """Write the first pairs of a text."""
    return write_text(folder, f"{text.source.stem}-first-{pairs}", islice(read_text(text), pairs))


if __name__ == "__main__":
    main()
