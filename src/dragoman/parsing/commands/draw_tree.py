"""Command `tree draw`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import (
    PATH_TYPE,
    check_output_paths,
    json_option,
    output_path_option,
    overwrite_option,
    usage_error,
)
from dragoman.parsing.commands.parse import LabeledSpan


@dataclass(frozen=True)
class TreeOutput:
    """Output of `dragoman tree draw --json`."""

    file: str
    line: int
    words: Sequence[str]
    tags: Sequence[str | None]
    brackets: Sequence[LabeledSpan]


@click.command()
@click.argument("file", type=PATH_TYPE)
@click.option(
    "-n", "--number", type=click.IntRange(min=1), default=1, show_default=True, help="Number of the tree in the file."
)
@output_path_option("SVG to write. Required without --json.")
@click.option("--strip", is_flag=True, help="Leave out function tags, traces and a root without a label.")
@overwrite_option()
@json_option("Print words, tags and brackets as JSON, and draw nothing.")
def draw(file: Path, number: int, output: Path | None, strip: bool, overwrite: bool, as_json: bool) -> None:
    """Draw a tree of FILE, which holds trees in brackets.

    \b
    Example:  dragoman tree draw parsed.mrg -n 3 -o tree.svg
    """
    from itertools import islice

    from dragoman.console.terminal import print_json
    from dragoman.errors import DataError
    from dragoman.io.storage import atomic_write
    from dragoman.parsing.commands.parse import LabeledSpan
    from dragoman.parsing.treebank import read_trees
    from dragoman.parsing.trees.simplify import simplify
    from dragoman.parsing.trees.tree import get_leaves, get_spans
    from dragoman.viz.tree_diagram import render_tree

    if output is None and not as_json:
        raise usage_error("give -o FILE.svg, or --json")
    check_output_paths(output, overwrite=overwrite, input_paths=[file])
    tree_record = next(islice(read_trees(file), number - 1, None), None)
    if tree_record is None:
        raise DataError(f"{file}: holds fewer than {number} trees; give a smaller --number")
    drawn_tree = simplify(tree_record.tree) if strip else tree_record.tree
    tree_leaves, brackets = get_leaves(drawn_tree), get_spans(drawn_tree)
    words, tags = [leaf.word for leaf in tree_leaves], [leaf.tag for leaf in tree_leaves]
    if as_json:
        print_json(TreeOutput(str(file), tree_record.line, words, tags, [LabeledSpan(*bracket) for bracket in brackets]))
        return
    assert output is not None
    svg = render_tree(words, brackets, tags=tags, title=f"{file.name}, line {tree_record.line}")
    with atomic_write(output, overwrite=overwrite) as stream:
        stream.write(svg)
