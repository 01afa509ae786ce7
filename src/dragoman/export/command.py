"""Command `export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dragoman.console.options import PATH_TYPE, bundle_argument, json_option, overwrite_option

TARGET_FORMATS = ("ctranslate2", "huggingface", "onnx", "argos")


@dataclass(frozen=True)
class ExportOutput:
    """Output of `dragoman export --json`.

    folder: folder or file of the export
    max_positions: most tokens of a source and of an output, end token included
    decoding_options: arguments of the engine that are nearest to the recipe's [decoding] section
    notes: differences to dragoman, one sentence each
    """

    folder: str
    format: str
    num_bytes: int
    max_positions: int
    decoding_options: Mapping[str, Any]
    notes: Sequence[str]


@click.command()
@bundle_argument
@click.argument("output", type=PATH_TYPE)
@click.option("--to", "target_format", type=click.Choice(TARGET_FORMATS), required=True, help="Engine that reads the export.")
@click.option("--int8", "is_int8", is_flag=True, help="Write the matrices of an ONNX export as int8, a quarter of the size.")
@click.option("--page", "has_page", is_flag=True, help="Write a page beside an ONNX export that translates in a browser.")
@overwrite_option("Replace an earlier export.")
@json_option()
def export(
    bundle: Path, output: Path, target_format: str, is_int8: bool, has_page: bool, overwrite: bool, as_json: bool
) -> None:
    """Write BUNDLE to OUTPUT in the format of another engine. OUTPUT is a new folder, or a new file for argos.

    \b
    ctranslate2  Weights in float32, vocabularies and tokenizers.
    huggingface  A MarianMT or T5 folder for transformers, with a model card.
    onnx         An encoder and a decoder step for onnxruntime.
    argos        A package for Argos Translate and LibreTranslate.

    The guide to exports lists what each format can hold, and shows a translation in Python.

    \b
    Example:  dragoman export runs/quickstart-de/bundle --to ctranslate2 exported
    Others:   dragoman export runs/quickstart-de/bundle --to huggingface opus-style
              dragoman export runs/quickstart-de/bundle --to onnx onnx-model
              dragoman export runs/quickstart-de/bundle --to argos en_de.argosmodel
    """
    from dragoman.bundle import load_bundle
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.export.argos import export_argos
    from dragoman.export.card_writer import read_scores
    from dragoman.export.ctranslate2 import export_ctranslate2
    from dragoman.export.huggingface import export_huggingface
    from dragoman.export.onnx import export_onnx
    from dragoman.io.json_fields import copy_fields
    from dragoman.io.storage import check_path_is_free

    for option, is_given in (("--int8", is_int8), ("--page", has_page)):
        if is_given and target_format != "onnx":
            raise click.UsageError(f"{option}: is for --to onnx, and --to is {target_format}; leave it out")
    if not overwrite:
        check_path_is_free(output)
    model = load_bundle(bundle)
    match target_format:
        case "ctranslate2":
            exported = export_ctranslate2(model, output, overwrite=overwrite)
        case "huggingface":
            scores = read_scores(bundle, model.metadata)
            exported = export_huggingface(model, output, scores=scores, overwrite=overwrite)
        case "onnx":
            exported = export_onnx(model, output, is_int8=is_int8, has_page=has_page, overwrite=overwrite)
        case _:
            exported = export_argos(model, output, scores=read_scores(bundle, model.metadata), overwrite=overwrite)
    if as_json:
        print_json(copy_fields(ExportOutput, exported, folder=str(exported.path), format=target_format))
        return
    search_text = ", ".join(f"{name}={value}" for name, value in exported.decoding_options.items())
    print_facts(
        str(output),
        {
            "format": target_format,
            "size on disk": f"{exported.num_bytes / 2**20:.1f} MiB",
            "positions": exported.max_positions,
            "decoding": search_text,
        },
    )
    for note in exported.notes:
        click.echo(f"  {note}")
