"""Commands `draw-lines`, `read-arrays` and `read`."""

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
class ReadFile:
    """One line of `dragoman read --json`. score: normalized log-probability, in nats"""

    file: str
    text: str
    score: float | None


@dataclass(frozen=True)
class ReadArraysOutput:
    """Output of `dragoman read-arrays --json`. lines: one for each file and speed"""

    output: str
    files: int
    lines: int


@dataclass(frozen=True)
class DrawLinesOutput:
    """Output of `dragoman draw-lines --json`. lines: number of pictures"""

    output: str
    lines: int


@click.command("draw-lines")
@click.argument("texts", metavar="TEXTS", type=PATH_TYPE)
@click.argument("fonts", metavar="FONTS", type=PATH_TYPE)
@output_path_option("Folder to write, with the pictures and their list, all.list.", required=True)
@click.option(
    "--distortion",
    type=click.FloatRange(0.0, 1.0),
    default=0.0,
    show_default=True,
    help="Strength of rotation, slant, blur, noise and faded ink; 0 draws black on white.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of fonts, sizes and distortions.")
@overwrite_option("Replace files that exist.")
@json_option()
def draw_lines(texts: Path, fonts: Path, output: Path, distortion: float, seed: int, overwrite: bool, as_json: bool) -> None:
    """Draw each line of the file TEXTS as a picture, in a font by lot.

    FONTS lists font files, one a line. The list names each picture and its text, as read-arrays reads it.

    \b
    Example:  fc-list : file | sed -n 's/^\\(.*Serif.*ttf\\): *$/\\1/p' > fonts.txt
              dragoman draw-lines sentences.txt fonts.txt -o lines --distortion 1
    """
    import numpy as np

    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.experiments.frontends.draw import LineDrawer
    from dragoman.formats.text import read_lines
    from dragoman.io.storage import make_output_dir

    lines = list(read_lines(texts))
    drawer = LineDrawer([Path(line) for line in read_lines(fonts) if line], distortion=distortion)
    check_output_paths(output / "all.list", overwrite=overwrite, input_paths=[texts, fonts])
    make_output_dir(output)
    with (
        open_text_output(output / "all.list", overwrite=overwrite) as stream,
        progress_bar(stderr_console(), "drawing", len(lines), unit="lines") as bar,
    ):
        for number, line in enumerate(lines, 1):
            drawer.draw(line, np.random.default_rng([seed, number])).save(output / f"{number}.png")
            stream.write(f"{number}.png\t{line}\n")
            bar.advance(1)
    if as_json:
        print_json(DrawLinesOutput(str(output), len(lines)))


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
    from dragoman.experiments.frontends.options import FrontendOptions
    from dragoman.formats.tsv import read_tsv

    options = read_recipe(recipe, overrides).model.get_extension(FrontendOptions)
    check_output_paths(output, overwrite=overwrite, input_paths=[list_file])
    pairs = list(read_tsv(list_file))
    with (
        open_text_output(output, overwrite=overwrite) as stream,
        progress_bar(stderr_console(), "reading", len(pairs), unit="files") as bar,
    ):
        for pair in pairs:
            for speed in speeds:
                stream.write(f"{options.read_file(list_file.parent / pair.source, speed=speed)}\t{pair.target}\n")
            bar.advance(1)
    if as_json:
        print_json(ReadArraysOutput(str(output), len(pairs), len(pairs) * len(speeds)))


@click.command()
@bundle_argument
@click.argument("files", nargs=-1, required=True, type=PATH_TYPE)
@device_option
@json_option("Print one JSON object a line, with the file, its text and its score.")
def read(bundle: Path, files: tuple[Path, ...], device: str, as_json: bool) -> None:
    """Write the text of each of FILES, in order. BUNDLE says whether they are sounds or pictures.

    \b
    Example:  dragoman read runs/text-lines/bundle line.png
    """
    from dragoman.errors import DataError
    from dragoman.experiments.frontends.options import FrontendOptions
    from dragoman.inference.load import load
    from dragoman.io.json_fields import to_json_line

    translator = load(bundle, task="translation", device=device)
    options = translator.recipe.model.get_extension(FrontendOptions)
    lines, limit = [options.read_file(file) for file in files], translator.recipe.decoding.max_source_tokens
    for file, line in zip(files, lines, strict=True):
        if len(line) > limit:
            raise DataError(
                f"{file}: has {len(line)} numbers, and decoding.max_source_tokens of the recipe is {limit}; "
                "cut it into shorter files",
                code="input-too-long",
            )
    for file, result in zip(files, translator.stream(lines), strict=True):
        click.echo(to_json_line(ReadFile(str(file), result.text, result.score)) if as_json else result.text)
