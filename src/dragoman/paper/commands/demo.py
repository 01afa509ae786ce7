"""Commands `paper demo NAME`: small demonstrations of the paper's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from dragoman.console.options import (
    PATH_TYPE,
    SuggestingGroup,
    bundle_argument,
    json_option,
    output_path_option,
    overwrite_option,
)

if TYPE_CHECKING:
    from dragoman.paper.demonstrations.demonstration import Demonstration


class DemoCommand(NamedTuple):
    """Command of a demonstration: the function in a module of `paper.demonstrations` that runs it, and its help."""

    module: str
    function: str
    help: str


DEMO_COMMANDS = {
    "figure-1": DemoCommand("architecture_figures", "show_figure_1", "Draw Figure 1, and count the parameters of each block."),
    "figure-2": DemoCommand("architecture_figures", "show_figure_2", "Draw Figure 2, attention, with the sizes of each box."),
    "words": DemoCommand("words_to_z", "show_words", 'Walk from the words "Thinking Machines" to z in matrices (3.2 to 3.5).'),
    "encoding": DemoCommand("encoding_heatmap", "show_encoding", "Draw the positional encoding as a heat map (3.5)."),
    "additive": DemoCommand(
        "layer_costs", "show_additive", "Compare dot-product with additive attention in time and memory (3.2.1)."
    ),
    "recurrent": DemoCommand("layer_costs", "show_recurrent", "Compare self-attention with an LSTM as n crosses d (4)."),
    "separable": DemoCommand(
        "layer_costs", "show_separable", "Compare a separable convolution of k = n with self-attention (4)."
    ),
    "extrapolation": DemoCommand(
        "extrapolation",
        "show_extrapolation",
        "Copy longer sequences than in training, with sinusoids and learned positions (3.5).",
    ),
    "long-range": DemoCommand(
        "long_range", "show_recall", "Remember a symbol over growing distances, by attention, an LSTM and convolutions (4)."
    ),
}


@click.group(cls=SuggestingGroup)
def demo() -> None:
    """Show a sentence of the paper in a table and a picture, in less than two minutes on one core.

    \b
    Example:  dragoman paper demo words -o words.svg
              dragoman paper demo recurrent --json
    """


def show_demonstration(
    run: Callable[[], Demonstration], output: Path | None, *, overwrite: bool, as_json: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """Run a demonstration, print its table or JSON, and draw its picture. inputs: paths that `run` reads"""
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, print_table

    check_chart(output, overwrite=overwrite, input_paths=inputs)
    demonstration = run()
    write_chart(output, demonstration.draw, overwrite=overwrite)
    if as_json:
        print_json(demonstration.describe())
        return
    rows = [[_format_cell(cell) for cell in row] for row in demonstration.rows]
    print_table(demonstration.title, demonstration.header, rows)
    for sentence in (*demonstration.notes, demonstration.lesson):
        click.echo(sentence)


def _format_cell(cell: str | int | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if isinstance(cell, int) or abs(cell) >= 100 else f"{cell:.3g}"


def _add_command(name: str, entry: DemoCommand) -> None:
    @demo.command(name, help=f"{entry.help}\n\n\b\nExample:  dragoman paper demo {name} -o {name}.svg")
    @output_path_option("Draw the picture as an SVG to this file.")
    @overwrite_option()
    @json_option()
    def command(output: Path | None, overwrite: bool, as_json: bool) -> None:
        module = import_module(f"dragoman.paper.demonstrations.{entry.module}")
        show_demonstration(getattr(module, entry.function), output, overwrite=overwrite, as_json=as_json)


for _name, _entry in DEMO_COMMANDS.items():
    _add_command(_name, _entry)


@demo.command()
@bundle_argument
@click.option(
    "--trees", type=PATH_TYPE, required=True, help="Trees in brackets of English sentences, for the syntactic parents."
)
@click.option("--pairs", type=PATH_TYPE, help="Sentence pairs, such as a .tsv file, for the loss without each head.")
@output_path_option("Draw the picture as an SVG to this file.")
@overwrite_option()
@json_option()
def heads(bundle: Path, trees: Path, pairs: Path | None, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Show what each head of the encoder of BUNDLE does, and what the model loses without it (4).

    A head is scored by where its largest weight goes: to the previous word, the next word, or the syntactic parent. The best
    head for the parents of a class of words competes with the best fixed distance, on sentences that did not choose them.

    \b
    Example:  dragoman paper demo heads en-de --trees dev.tsv.gz --pairs test.tsv.gz -o heads.svg
    """
    from dragoman.inference.load import load
    from dragoman.paper.demonstrations.attention_heads import show_heads

    def run() -> Demonstration:
        return show_heads(load(bundle, task="translation"), trees, pairs)

    show_demonstration(run, output, overwrite=overwrite, as_json=as_json, inputs=[bundle, trees, pairs])
