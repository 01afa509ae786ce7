"""Command `export`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import PATH_TYPE, bundle_argument, json_option, overwrite_option

TARGET_FORMATS = ("ctranslate2",)


@click.command()
@bundle_argument
@click.argument("folder", type=PATH_TYPE)
@click.option("--to", "target_format", type=click.Choice(TARGET_FORMATS), required=True, help="Engine that reads the export.")
@overwrite_option("Replace the folder of an earlier export.")
@json_option()
def export(bundle: Path, folder: Path, target_format: str, overwrite: bool, as_json: bool) -> None:
    """Write BUNDLE into FOLDER in the format of CTranslate2: float32 weights, vocabularies and tokenizers.

    FOLDER/dragoman.json holds the decoding options that are nearest to the recipe, and notes on the differences. The guide
    to exports shows a translation in Python.

    \b
    Example:  dragoman export runs/quickstart-de/bundle --to ctranslate2 exported
    """
    from dragoman.bundle import load_bundle
    from dragoman.cli.console import print_facts, print_json
    from dragoman.cli.json_outputs import ExportOutput, copy_fields
    from dragoman.export.ctranslate2 import export_ctranslate2
    from dragoman.io.storage import check_path_is_free

    if not overwrite:
        check_path_is_free(folder)
    exported = export_ctranslate2(load_bundle(bundle), folder, overwrite=overwrite)
    if as_json:
        print_json(copy_fields(ExportOutput, exported, folder=str(exported.path), format=target_format))
        return
    search_text = ", ".join(f"{name}={value}" for name, value in exported.decoding_options.items())
    print_facts(
        str(folder),
        {
            "format": target_format,
            "size on disk": f"{exported.num_bytes / 2**20:.1f} MiB",
            "positions": exported.max_positions,
            "decoding": search_text,
        },
    )
    for note in exported.notes:
        click.echo(f"  {note}")
