"""Command `convert`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import json_option, output_path_option

if TYPE_CHECKING:
    from dragoman.conversion.converter import ConversionResult


@dataclass(frozen=True)
class ConvertOutput:
    """Output of `dragoman convert --json`.

    format: format of the source
    source: name of the source: its folder, or its name and revision on the hub
    license: license of the model, or null if the source states none
    source_languages, target_languages: language codes; empty if the source states none
    parameters: number of weights
    num_bytes: size of the bundle in bytes
    notes: differences to the source, one sentence each
    """

    bundle: str
    format: str
    source: str
    license: str | None
    source_languages: Sequence[str]
    target_languages: Sequence[str]
    parameters: int
    num_bytes: int
    notes: Sequence[str]


@click.command()
@click.argument("source")
@output_path_option("Folder of the new bundle.", required=True)
@click.option("--source-language", help="Language code of the source, if the model does not state it.")
@click.option("--target-language", help="Language code of the target; for a model of many languages, the default one.")
@click.option("--revision", help="Branch, tag or commit of a model of the hub.")
@json_option()
def convert(
    source: str,
    output: Path,
    source_language: str | None,
    target_language: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """Convert the model of another toolkit in SOURCE into a bundle. Nothing of the source is executed.

    SOURCE is a folder, a checkpoint `*.pt` inside of one, or a name on the Hugging Face hub (extra `hub`). The format is
    detected from the files.
    Hugging Face: MarianMT (such as the OPUS-MT models), M2M-100, NLLB, BART, mBART-50, T5 (also FLAN-T5, mT5, ByT5 and
    MADLAD-400) and FSMT. Marian: `.npz`, and the `.bin` of Firefox's models. Others: checkpoints of fairseq's transformer and
    of OpenNMT-py, folders of Eole, JoeyNMT (extra `joeynmt`) and CTranslate2, and packages of Argos Translate (.argosmodel).

    \b
    Example:  dragoman convert Helsinki-NLP/opus-mt-en-de -o opus-en-de
    Offline:  dragoman convert downloads/opus-mt-en-de -o opus-en-de
    """
    from dragoman.console.options import treat_termination_as_interrupt
    from dragoman.console.terminal import print_facts, print_json, progress_bar, stderr_console
    from dragoman.conversion.converter import convert as convert_model
    from dragoman.io.json_fields import copy_fields

    treat_termination_as_interrupt()
    with progress_bar(stderr_console(), "converting", None, unit="bytes") as bar:
        result = convert_model(
            source,
            output,
            source_language=source_language,
            target_language=target_language,
            revision=revision,
            on_progress=bar.set_done,
        )
    origin = result.origin
    if as_json:
        print_json(
            copy_fields(
                ConvertOutput,
                result,
                bundle=str(result.path),
                format=origin.format,
                source=origin.name,
                license=origin.license,
                source_languages=origin.source_languages or (),
                target_languages=origin.target_languages or (),
            )
        )
        return
    print_facts(str(output), _describe(result))
    for note in result.notes:
        click.echo(f"  {note}")


def _describe(result: ConversionResult) -> dict[str, str]:
    """Return the facts about a new bundle that the terminal shows."""
    origin = result.origin
    return {
        "source": f"{origin.name} ({origin.format})",
        "license": origin.license or "not stated",
        "languages": f"{_join(origin.source_languages)} → {_join(origin.target_languages)}",
        "parameters": f"{result.parameters:,}",
        "size on disk": f"{result.num_bytes / 2**20:.1f} MiB",
    }


def _join(languages: list[str] | None, max_shown: int = 10) -> str:
    codes = languages or ["?"]
    return ", ".join(codes[:max_shown]) + (f", … ({len(codes)} languages)" if len(codes) > max_shown else "")
