"""One translation, taken apart: `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.options import refuse_old
from dragoman.errors import DataError, RecipeError

if TYPE_CHECKING:
    from dragoman.viz.attention_page import HeadName
    from dragoman.viz.explanation import Explanation


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("text")
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page to write.  [default: explanation.html]")
@click.option("--target", help="Explain this translation instead of the model's own.")
@click.option("--layer", type=int, help="The layer to show first, counted from 1; the encoder's last where it has fewer.")
@click.option("--head", "heads", type=int, multiple=True, help="A head to show first, counted from 1; may be repeated.")
@click.option("--inside", multiple=True, metavar="KIND.LAYER.HEAD", help="A head whose vectors the page must hold: cross.2.1.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write each view as an SVG into this folder, too.")
@click.option("--png", type=click.Path(path_type=Path), help="Write each view as a PNG into this folder, too.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON; write a page only where -o names one.")
def explain(
    bundle: Path,
    text: str,
    changes: tuple[str, ...],
    output: Path | None,
    target: str | None,
    layer: int | None,
    heads: tuple[int, ...],
    inside: tuple[str, ...],
    svg: Path | None,
    png: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Translate TEXT with BUNDLE, or parse it, and write a page that shows why it came out so.

    The page is one file that asks for nothing: the attention of every layer and head, the likeliest tokens at each place, the
    beam, and the numbers inside one head. KEY=VALUE changes a knob of the recipe's [decoding] section.

    \b
    Example:  dragoman explain runs/quickstart-de/bundle "May 17, 2031" -o page.html
              dragoman explain runs/quickstart-de/bundle "May 17, 2031" --target "17. Juni 2031" --svg figures
              dragoman explain runs/parsing-craft/bundle "The cat sat on the mat ."
    """
    from dragoman.cli.console import people, print_json
    from dragoman.cli.figure_files import picture_folder, write_png, write_svg
    from dragoman.io.storage import refuse_existing, write_lines
    from dragoman.viz.attention_page import attention_page
    from dragoman.viz.figures import figure_names, figures, png_of

    refuse_old(output, svg, png, overwrite=True, read=[bundle])
    page = output or (None if as_json else Path("explanation.html"))
    wanted = [page] if page else []
    for folder, suffix in ((svg, "svg"), (png, "png")):
        wanted += [folder / f"{name}.{suffix}" for name in figure_names(tree=True)] if folder else []
    if not overwrite:
        for path in wanted:
            refuse_existing(path)
    names = [_head_name(name) for name in inside]
    explanation = _explained(bundle, text, target, layer=layer, heads=heads, **_decoding(changes))
    _check_heads(names, explanation)
    drawn = figures(explanation) if svg or png else {}
    pixels = {name: png_of(picture) for name, picture in drawn.items()} if png else {}
    for folder in (svg, png):
        if folder:
            picture_folder(folder)
    if page:
        write_lines(page, [attention_page(explanation, inside=tuple(names)).rstrip("\n")], overwrite=overwrite)
    if svg:
        write_svg(svg, drawn, overwrite=overwrite)
    if png:
        write_png(png, pixels, overwrite=overwrite)
    if as_json:
        print_json(_document(explanation))
        return
    console = people()
    click.echo(explanation.target)
    console.print(f"{page}: open it in a browser", markup=False)
    for folder in (svg, png):
        if folder:
            console.print(f"{folder}: {len(drawn)} pictures", markup=False)
    for note in explanation.notes:
        console.print(note, style="dim", markup=False)


def _explained(bundle: Path, text: str, target: str | None, **rest: Any) -> Explanation:
    from dragoman.inference.explain.translation import explain
    from dragoman.inference.load import load
    from dragoman.inference.translator import Translator

    opened = load(bundle)
    if isinstance(opened, Translator):
        return explain(opened, text, target=target, **rest)
    from dragoman.inference.explain.parse import explain_parse  # only here, since who translates need not wait for it

    if target is not None:
        raise click.UsageError(f"--target: {bundle} is a parser, whose own parse is explained", ctx=click.get_current_context())
    return explain_parse(opened, text, **rest)


def _decoding(changes: Sequence[str]) -> dict[str, Any]:
    from dragoman.config import parse_setting

    decoding = {key.removeprefix("decoding."): value for key, value in map(parse_setting, changes)}
    if decoding.get("nbest", 1) != 1:
        raise RecipeError(f"nbest = {decoding['nbest']!r}: one output is explained, the best; drop it")
    return decoding


def _head_name(name: str) -> HeadName:
    from dragoman.viz.explanation import KINDS

    kind, *numbers = name.split(".")
    for one in KINDS:
        if one == kind and len(numbers) == 2 and all(number.isascii() and number.isdigit() for number in numbers):
            return one, int(numbers[0]) - 1, int(numbers[1]) - 1
    raise RecipeError(f"--inside {name}: write {', '.join(KINDS)}, then layer and head, such as cross.2.1")


def _check_heads(names: Sequence[HeadName], explanation: Explanation) -> None:
    for kind, layer, head in names:
        layers, heads, _, _ = explanation.heads(kind).shape
        if not (0 <= layer < layers and 0 <= head < heads):
            raise DataError(
                f"--inside {kind}.{layer + 1}.{head + 1}: there are {layers} layers of {heads} heads, counted from 1"
            )


def _document(explanation: Explanation) -> dict[str, Any]:
    """Everything but the vectors, weights in four decimals."""
    from dataclasses import asdict

    from dragoman.viz.explanation import KINDS

    return {
        "model": explanation.model,
        "source": explanation.source,
        "target": explanation.target,
        "forced": explanation.forced,
        "source_tokens": explanation.source_tokens,
        "said": explanation.said,
        "read": explanation.read,
        "attention": {kind: explanation.heads(kind).weights_LHTS.round(4).tolist() for kind in KINDS},
        "choices": [asdict(choice) for choice in explanation.choices],
        "beam": [asdict(branch) for branch in explanation.beam],
        "notes": explanation.notes,
        **({} if explanation.tree is None else {"tree": asdict(explanation.tree)}),
    }
