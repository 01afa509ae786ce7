"""From text to batches, measured beside the peers: `make bench-data`, with QUICK=1 in a few minutes.

What is measured and how stands in README.md beside this file. The last line holds `name=ratio` pairs; larger is better in each.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Drawn

from .corpora import Text, make_base, make_large, make_sentences, read_multi30k, read_text, read_tsv, write_text
from .ours import write_recipe
from .padding import measure_padding
from .results import Section
from .scale import measure_scale
from .speed import measure_speed
from .usage import adopt_orphans, keep_to_cores

CORES = 2
SECTIONS = ("speed", "scale", "padding")


@click.command()
@click.option("--quick", is_flag=True, help="Half a million pairs and less, in under four minutes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure these alone.")
@click.option("--pairs", type=click.IntRange(min=1000), help="Pairs of the large corpus.  [default: 10,000,000; quick 500,000]")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds that count, in `speed`.  [default: 5; quick 3]")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for text, environments and outputs.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write everything measured to this file.")
def main(
    quick: bool,
    only: tuple[str, ...],
    pairs: int | None,
    rounds: int | None,
    shared: Path | None,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure dragoman's way from text to batches beside its peers."""
    started = time.monotonic()
    here = Path(__file__).resolve().parent
    work = (work or here / ".work").resolve()
    shared = (shared or here.parents[1].parent / "shared" / "data").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    os.environ.pop("PYTHONPATH", None)  # it is for this program, not for those that it starts
    adopt_orphans()
    cores = keep_to_cores(CORES)
    console = Console(width=None if os.isatty(1) else 132)
    versions = {name: version(name) for name in ("dragoman", "sentencepiece", "pyarrow", "numpy", "torch")}
    told = {
        "cores": cores,
        "processor": _processor(),
        "python": platform.python_version(),
        "quick": quick,
        "versions": versions,
        "load": os.getloadavg()[0],
    }
    console.print(f"{cores} cores of {told['processor']}, Python {told['python']}, load {os.getloadavg()[0]:.1f} at the start")
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))
    base = make_base(shared, work / "text")
    console.print(f"text: {base.described}; {base.text.pairs:,} pairs, {base.vocabulary_size:,} pieces")
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
    done: dict[str, Section] = {}
    for name in only or SECTIONS:
        done[name] = measures[name]()
        _show(console, done[name])
    seconds = time.monotonic() - started
    console.print(f"{seconds:.0f} s in all")
    if report is not None:
        whole = {**told, "seconds": seconds, **{name: section.to_dict() for name, section in done.items()}}
        report.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(" ".join(f"{ratio.name}={ratio.value:.2f}" for section in done.values() for ratio in section.ratios))


def _part(text: Text, folder: Path, pairs: int) -> Text:
    """The first so many pairs of a text."""
    return write_text(folder, f"{text.source.stem}-first-{pairs}", islice(read_text(text), pairs))


def _show(console: Console, section: Section) -> None:
    for table in section.tables:
        drawn = Drawn(title=table.title, title_justify="left")
        for number, name in enumerate(table.header):
            drawn.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    for remark in section.remarks:
        console.print(f"  {remark}", markup=False, highlight=False, soft_wrap=True)
    for ratio in section.ratios:
        asked = f"asked {ratio.asked:g}: {ratio.verdict}" if ratio.asked is not None else ""
        console.print(f"  {ratio.name} = {ratio.value:.2f}  {asked}", markup=False, highlight=False)


def _processor() -> str:
    """The kernel's name for it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
