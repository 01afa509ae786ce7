"""Commands `read-arrays` and `recognize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import (
    PATH_TYPE,
    bundle_argument,
    check_output_paths,
    device_option,
    json_option,
    open_text_output,
    output_path_option,
    overrides_argument,
    overwrite_option,
    recipe_argument,
)


@dataclass(frozen=True)
class RecognizedFile:
    """One line of `dragoman recognize --json`. score: normalized log-probability, in nats"""

    file: str
    text: str
    score: float | None


@dataclass(frozen=True)
class ReadArraysOutput:
    """Output of `dragoman read-arrays --json`. lines: one for each file and speed"""

    output: str
    files: int
    lines: int


@click.command("read-arrays")
@recipe_argument
@click.argument("list_file", metavar="LIST", type=PATH_TYPE)
@overrides_argument
@output_path_option("TSV file to write.", required=True)
@click.option(
    "--speed",
    "speeds",
    type=click.FloatRange(0.5, 2.0),
    multiple=True,
    default=[1.0],
    show_default=True,
    help="Factor of the speed; give it several times to write each file several times.",
)
@overwrite_option()
@json_option()
def read_arrays(
    recipe: Path,
    list_file: Path,
    overrides: tuple[str, ...],
    output: Path,
    speeds: tuple[float, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Read the files of LIST as the front end of RECIPE does, and write a corpus for it.

    Each line of LIST has a sound file or a picture, a tab, and its text. Paths are relative to the folder of LIST.

    \b
    Example:  dragoman read-arrays speech-digits train.list -o train.tsv --speed 0.9 --speed 1 --speed 1.1
    """
    from dragoman.config import read_recipe
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.experiments.frontends.read import read_array_text
    from dragoman.formats.tsv import read_tsv

    config = read_recipe(recipe, overrides).model
    check_output_paths(output, overwrite=overwrite, input_paths=[list_file])
    pairs = list(read_tsv(list_file))
    with (
        open_text_output(output, overwrite=overwrite) as stream,
        progress_bar(stderr_console(), "reading", len(pairs), unit="files") as bar,
    ):
        for pair in pairs:
            for speed in speeds:
                stream.write(f"{read_array_text(list_file.parent / pair.source, config, speed=speed)}\t{pair.target}\n")
            bar.advance(1)
    if as_json:
        print_json(ReadArraysOutput(str(output), len(pairs), len(pairs) * len(speeds)))


@click.command()
@bundle_argument
@click.argument("files", nargs=-1, required=True, type=PATH_TYPE)
@device_option
@json_option("Print one JSON object a line, with the file, its text and its score.")
def recognize(bundle: Path, files: tuple[Path, ...], device: str, as_json: bool) -> None:
    """Write the text of each of FILES, in order. BUNDLE says whether they are sounds or pictures.

    \b
    Example:  dragoman recognize runs/speech-digits/bundle seven.wav
    """
    from dragoman.experiments.frontends.read import read_array_text
    from dragoman.inference.load import load
    from dragoman.io.json_fields import to_json_line

    translator = load(bundle, task="translation", device=device)
    lines = [read_array_text(file, translator.recipe.model) for file in files]
    for file, result in zip(files, translator.stream(lines), strict=True):
        click.echo(to_json_line(RecognizedFile(str(file), result.text, result.score)) if as_json else result.text)
