"""Which word came from which: `align`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

import click

PATH = click.Path(path_type=Path)
WINDOW = 2048


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--bundle", type=PATH, help="Align by this model's attention; else lexically, by the pairs themselves.")
@click.option("-o", "--output", type=PATH, help="Write here instead of standard output.")
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the words that are linked.")
def align(source: Path, target: Path, bundle: Path | None, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Align the words of SOURCE with those of TARGET, line by line, as `i-j` counted from 0.

    Words are what spaces part. With --bundle, by where its model looks when it is given both sides: good for a few lines.
    Without, by a lexical aligner that learns from all of these pairs: good for thousands.

    \b
    Example:  dragoman align test.en test.de --bundle runs/multi30k-ende/bundle -o test.links
              dragoman align train.en train.de -o train.links
    """
    from dragoman.formats.lines import read_beside
    from dragoman.storage import new_file, refuse_existing
    from dragoman.tasks.alignment import pharaoh

    if output is not None and not overwrite:
        refuse_existing(output)
    sources, targets = read_beside(source, target)
    found = _lexically(sources, targets) if bundle is None else _by(bundle, sources, targets)
    sink: AbstractContextManager[IO[str]] = nullcontext(sys.stdout) if output is None else new_file(output, overwrite=overwrite)
    with sink as stream:
        for number, (one, other, links) in enumerate(zip(sources, targets, found, strict=True), start=1):
            stream.write((_json(number, one.split(), other.split(), links) if as_json else pharaoh(links)) + "\n")


def _lexically(sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    from dragoman.cli.screen import counting_bar, people
    from dragoman.evaluation.aligner import ROUNDS, align_pairs

    with counting_bar(people(), "learning", 2 * ROUNDS) as bar:
        return align_pairs(
            [text.split() for text in sources],
            [text.split() for text in targets],
            advance=lambda count: bar.advance(bar.task_ids[0], count),
        )


def _by(bundle: Path, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    from dragoman.cli.screen import counting_bar, people
    from dragoman.engine import load

    translator = load(bundle, precision="float32")
    found: list[list[tuple[int, int]]] = []
    with counting_bar(people(), "aligning", len(sources)) as bar:
        for first in range(0, len(sources), WINDOW):
            chunk = slice(first, first + WINDOW)
            found += translator.align(sources[chunk], targets[chunk])
            bar.advance(bar.task_ids[0], len(sources[chunk]))
    return found


def _json(number: int, source: list[str], target: list[str], links: list[tuple[int, int]]) -> str:
    import json

    words = [[source[i], target[j]] for i, j in links if i < len(source) and j < len(target)]
    return json.dumps({"line": number, "links": links, "words": words}, ensure_ascii=False)
