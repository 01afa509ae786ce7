"""A bundle in the form of another engine: `export`."""

from __future__ import annotations

from pathlib import Path

import click

TARGET_FORMATS = ("ctranslate2",)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(TARGET_FORMATS), required=True, help="The engine that will read it.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that an export wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(bundle: Path, folder: Path, target_format: str, overwrite: bool, as_json: bool) -> None:
    """Write BUNDLE into FOLDER as CTranslate2 reads it: weights in float32, vocabularies, and the subword models beside them.

    How to search with it as the recipe does, and what differs, stands in FOLDER/dragoman.json. docs/export.md goes from text to
    text in Python.

    \b
    Example:  dragoman export runs/quickstart-de/bundle --to ctranslate2 exported
    """
    from dragoman.bundle import load_bundle
    from dragoman.cli.console import print_facts, print_json
    from dragoman.export.ctranslate2 import export_ctranslate2
    from dragoman.io.storage import check_path_is_free

    if not overwrite:
        check_path_is_free(folder)
    exported = export_ctranslate2(load_bundle(bundle), folder, overwrite=overwrite)
    if as_json:
        print_json({**vars(exported), "folder": str(exported.path), "form": target_format})
        return
    search_text = ", ".join(f"{name}={value}" for name, value in exported.decoding_options.items())
    print_facts(
        str(folder),
        {
            "form": target_format,
            "size on disk": f"{exported.num_bytes / 2**20:.1f} MiB",
            "positions": exported.max_positions,
            "search": search_text,
        },
    )
    for remark in exported.notes:
        click.echo(f"  {remark}")
