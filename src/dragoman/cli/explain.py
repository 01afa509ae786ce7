"""Command `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dragoman.console.options import (
    PATH_TYPE,
    argument,
    bundle_argument,
    check_output_paths,
    json_option,
    option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    shared,
    usage_error,
    with_options,
)
from dragoman.errors import DataError, RecipeError
from dragoman.io.json_fields import OPTIONAL
from dragoman.runtime.counts import format_count
from dragoman.viz.explanation import BeamNode, ExplanationTree, TokenPrediction

if TYPE_CHECKING:
    from dragoman.viz.attention_page import HeadId
    from dragoman.viz.explanation import Explanation


@dataclass(frozen=True)
class ExplainOutput:
    """Output of `dragoman explain --json`.

    teacher_forced: whether the caller gave the output
    source_tokens: encoder input, with the end token
    output_tokens: decoder output, with the end token if the output has it
    decoder_input: decoder input: the start token, the language token of some models, then the output tokens without the last
    attention: weights by kind (encoder, decoder, cross), as layer × head × query × key, with four decimals
    predictions: one for each output token
    beam: all hypotheses that the search considered; if it is empty, `notes` has the reason
    tree: tree of a parse
    """

    model: str
    source: str
    target: str
    teacher_forced: bool
    source_tokens: Sequence[str]
    output_tokens: Sequence[str]
    decoder_input: Sequence[str]
    attention: Mapping[str, Sequence[Sequence[Sequence[Sequence[float]]]]]
    predictions: Sequence[TokenPrediction]
    beam: Sequence[BeamNode]
    notes: Sequence[str]
    tree: Annotated[ExplanationTree | None, OPTIONAL] = None


@dataclass(frozen=True)
class ExplainOptions:
    """Options of `dragoman explain`."""

    bundle: Path = shared(bundle_argument)
    text: str = argument("text")
    overrides: tuple[str, ...] = shared(overrides_argument)
    output: Path | None = shared(output_path_option("Page to write.  [default: explanation.html]"))
    target: str | None = option("--target", help="Explain this translation instead of the model's own.")
    layer: int | None = option(
        "--layer", type=int, help="Layer to show first, counted from 1. A smaller encoder shows its last layer."
    )
    heads: tuple[int, ...] = option(
        "--head", "heads", type=int, multiple=True, help="Head to show first, counted from 1. Repeat it for several heads."
    )
    include_heads: tuple[str, ...] = option(
        "--include-head",
        "include_heads",
        multiple=True,
        metavar="KIND.LAYER.HEAD",
        help="Head whose vectors the page must include, such as cross.2.1.",
    )
    svg: Path | None = option("--svg", type=PATH_TYPE, help="Also write each view as an SVG into this folder.")
    png: Path | None = option("--png", type=PATH_TYPE, help="Also write each view as a PNG into this folder.")
    overwrite: bool = shared(overwrite_option("Replace files that exist."))
    as_json: bool = shared(json_option("Print the numbers as JSON. Write a page only if -o names one."))


@click.command()
@with_options(ExplainOptions)
def explain(args: ExplainOptions) -> None:
    """Translate or parse TEXT with BUNDLE, and write a page that shows the attention and the search.

    The page is one file and loads nothing else. It shows the attention of every layer and head, the most probable tokens at
    each position, the beam, and the vectors of single heads. KEY=VALUE changes a key of the recipe's [decoding] section.
    For a BUNDLE that reads sounds or pictures, TEXT is the path of a file, and the page shows the attention over it.

    \b
    Example:  dragoman explain runs/quickstart-de/bundle "May 17, 2031" -o page.html
              dragoman explain runs/quickstart-de/bundle "May 17, 2031" --target "17. Juni 2031" --svg figures
              dragoman explain runs/parsing-craft/bundle "The cat sat on the mat ."
              dragoman explain runs/text-lines/bundle line.png
    """
    from dragoman.console.figure_files import write_png, write_svg
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.io.storage import make_output_dir, write_lines
    from dragoman.viz.attention_page import render_attention_page
    from dragoman.viz.explanation_figures import render_figures, svg_to_png

    check_output_paths(args.output, args.svg, args.png, overwrite=True, input_paths=[args.bundle])
    page_path = args.output or (None if args.as_json else Path("explanation.html"))
    if not args.overwrite:
        _check_free(page_path, args.svg, args.png)
    head_names = [_parse_head_name(name) for name in args.include_heads]
    explanation = _explain_text(
        args.bundle, args.text, args.target, layer=args.layer, heads=args.heads, **_parse_decoding(args.overrides)
    )
    _check_heads(head_names, explanation)
    svgs = render_figures(explanation) if args.svg or args.png else {}
    pngs = {name: svg_to_png(svg_text) for name, svg_text in svgs.items()} if args.png else {}
    for folder in (args.svg, args.png):
        if folder:
            make_output_dir(folder)
    if page_path:
        page = render_attention_page(explanation, include_heads=tuple(head_names))
        write_lines(page_path, [page.rstrip("\n")], overwrite=args.overwrite)
    if args.svg:
        write_svg(args.svg, svgs, overwrite=args.overwrite)
    if args.png:
        write_png(args.png, pngs, overwrite=args.overwrite)
    if args.as_json:
        print_json(_make_output(explanation))
        return
    console = stderr_console()
    click.echo(explanation.target)
    console.print(f"{page_path}: open it in a browser", markup=False)
    for folder in (args.svg, args.png):
        if folder:
            console.print(f"{folder}: {format_count(len(svgs), 'picture')}", markup=False)
    for note in explanation.notes:
        console.print(note, style="dim", markup=False)


def _check_free(page_path: Path | None, svg: Path | None, png: Path | None) -> None:
    """Raise OutputError if a file of the output exists."""
    from dragoman.io.storage import check_path_is_free
    from dragoman.viz.explanation_figures import list_figure_names

    if page_path:
        check_path_is_free(page_path)
    for folder, suffix in ((svg, "svg"), (png, "png")):
        if folder:
            for name in list_figure_names(include_tree=True):
                check_path_is_free(folder / f"{name}.{suffix}")


def _explain_text(bundle: Path, text: str, target: str | None, **options: Any) -> Explanation:
    from dragoman.bundle import read_config
    from dragoman.inference.bundle_store import locate_bundle
    from dragoman.inference.explain.explain_translation import explain
    from dragoman.inference.load import load
    from dragoman.inference.translator import Translator
    from dragoman.runtime.shared_weights import find_copy

    if read_config(find_copy(bundle) or locate_bundle(bundle))[0].task.has_speech_source:
        from dragoman.transcription.explain_transcript import explain_transcript
        from dragoman.transcription.transcriber import Transcriber

        return explain_transcript(Transcriber.load(bundle), Path(text), target=target, **options)
    model = load(bundle)
    if isinstance(model, Translator):
        source = text
        for extension in model.recipe.model.model_extensions:
            source = extension.read_source(source)
        return replace(explain(model, source, target=target, **options), source=text)
    from dragoman.parsing.explain_parse import explain_parse  # translation does not need the parser

    if target is not None:
        raise usage_error(f"--target: {bundle} is a parser, whose own parse is explained; leave --target out")
    return explain_parse(model, text, **options)


def _parse_decoding(overrides: Sequence[str]) -> dict[str, Any]:
    decoding = parse_decoding_overrides(overrides)
    if decoding.get("nbest", 1) != 1:
        raise RecipeError(f"nbest = {decoding['nbest']!r}: only the best output is explained; leave nbest out")
    return decoding


def _parse_head_name(name: str) -> HeadId:
    from dragoman.viz.explanation import ATTENTION_KINDS

    kind, *numbers = name.split(".")
    for known_kind in ATTENTION_KINDS:
        if known_kind == kind and len(numbers) == 2 and all(number.isascii() and number.isdigit() for number in numbers):
            return known_kind, int(numbers[0]) - 1, int(numbers[1]) - 1
    raise RecipeError(
        f"--include-head {name}: is not a head; write {', '.join(ATTENTION_KINDS)}, then layer and head, such as cross.2.1"
    )


def _check_heads(head_names: Sequence[HeadId], explanation: Explanation) -> None:
    for kind, layer, head in head_names:
        layers, heads, _, _ = explanation.heads(kind).shape
        if not (0 <= layer < layers and 0 <= head < heads):
            raise DataError(
                f"--include-head {kind}.{layer + 1}.{head + 1}: there are {layers} layers of {heads} heads, counted from 1"
            )


def _make_output(explanation: Explanation) -> ExplainOutput:
    """Return the explanation without its vectors. Attention weights have four decimals."""
    from dragoman.io.json_fields import copy_fields
    from dragoman.viz.explanation import ATTENTION_KINDS

    attention = {kind: explanation.heads(kind).weights_LHTS.round(4).tolist() for kind in ATTENTION_KINDS}
    return copy_fields(ExplainOutput, explanation, attention=attention)
