"""Which word came from which: `align`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import OUTPUT, refuse_old, text_sink

PATH = click.Path(path_type=Path)
WINDOW = 2048


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--bundle", type=PATH, help="Align by this model's attention; else lexically, by the pairs themselves.")
@OUTPUT
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@click.option(
    "--gold", type=PATH, help="Compare with these links, and print error rate, precision and recall instead of links."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the words that are linked.")
def align(
    source: Path, target: Path, bundle: Path | None, output: Path | None, overwrite: bool, gold: Path | None, as_json: bool
) -> None:
    """Align the words of SOURCE with those of TARGET, line by line, as `i-j` counted from 0.

    Words are what spaces part. With --bundle, by where its model looks when it is given both sides: good for a few lines.
    Without, by a lexical aligner that learns from all of these pairs: good for thousands.

    \b
    Example:  dragoman align test.en test.de --bundle runs/multi30k-ende/bundle -o test.links
              dragoman align train.en train.de -o train.links
              dragoman align test.en test.de --bundle runs/multi30k-ende/bundle --gold test.links
    """
    from dragoman.formats.pharaoh import pharaoh
    from dragoman.formats.text import read_beside

    refuse_old(output, overwrite=overwrite, read=[source, target, gold, bundle])
    sources, targets = read_beside(source, target)
    right = None if gold is None else _right(gold, sources, targets)
    found = _lexically(sources, targets) if bundle is None else _by(bundle, sources, targets)
    if right is not None:
        _compare(found, right, as_json=as_json)
        if output is None:
            return
    with text_sink(output, overwrite=overwrite) as stream:
        for number, (one, other, links) in enumerate(zip(sources, targets, found, strict=True), start=1):
            stream.write((_json(number, one.split(), other.split(), links) if as_json else pharaoh(links)) + "\n")


def _right(gold: Path, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    """The links of a gold file. Raises DataError where it has other lines or links than belong to these texts."""
    from dragoman.errors import DataError
    from dragoman.formats.pharaoh import read_pharaoh, refuse_outside

    right = list(read_pharaoh(gold))
    if len(right) != len(sources):
        raise DataError(f"{gold} has {len(right)} lines of links for {len(sources)} pairs: line n belongs to pair n")
    for number, (links, one, other) in enumerate(zip(right, sources, targets, strict=True), start=1):
        refuse_outside(links, len(one.split()), len(other.split()), where=f"{gold}, line {number}")
    return right


def _compare(found: list[list[tuple[int, int]]], right: list[list[tuple[int, int]]], *, as_json: bool) -> None:
    from dragoman.cli.console import print_json
    from dragoman.evaluation.aer import agreement

    told = agreement(found, right)
    if as_json:
        numbers = {"alignment_error_rate": told.error_rate, "precision": told.precision, "recall": told.recall}
        print_json({"pairs": len(right), "found": told.found, "right": told.right, "both": told.both, **numbers})
        return
    click.echo(f"alignment error rate {told.error_rate:.4f}, precision {told.precision:.4f}, recall {told.recall:.4f}")
    click.echo(f"{told.both} of {told.found} links are among the {told.right} of {len(right)} pairs")


def _lexically(sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    from dragoman.cli.console import counting_bar, people
    from dragoman.word_aligner import ROUNDS, align_pairs

    with counting_bar(people(), "learning", 2 * ROUNDS * len(sources)) as bar:
        return align_pairs(
            [text.split() for text in sources],
            [text.split() for text in targets],
            advance=lambda count: bar.advance(bar.task_ids[0], count),
        )


def _by(bundle: Path, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    from dragoman.cli.console import counting_bar, people
    from dragoman.inference.translator import load

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
