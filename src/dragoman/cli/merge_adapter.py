"""Command `merge-adapter`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    check_output_paths,
    json_option,
    output_path_option,
    overwrite_option,
    print_note,
)


@dataclass(frozen=True)
class MergeAdapterOutput:
    """Output of `dragoman model merge-adapter --json`: the folders of the new bundle, of its base and of the adapter."""

    bundle: str
    base: str
    adapter: str


@click.command()
@click.argument("bundle", type=BUNDLE_TYPE)
@click.argument("adapter", type=PATH_TYPE)
@output_path_option("Bundle to write.", required=True)
@overwrite_option("Replace a bundle that exists.")
@json_option()
def merge_adapter(bundle: Path, adapter: Path, output: Path, overwrite: bool, as_json: bool) -> None:
    """Merge the low-rank ADAPTER of a run with training.lora into its base BUNDLE, and write the result as a bundle.

    The new bundle translates as the base does with the adapter. It needs neither of the two.

    \b
    Example:  dragoman model merge-adapter runs/general-ende/bundle own/adapter -o own-merged
    """
    from dragoman.adapter import merge_adapter as merge
    from dragoman.console.terminal import print_facts, print_json

    check_output_paths(output, overwrite=True, input_paths=[bundle, adapter])
    merge(bundle, adapter, output, overwrite=overwrite, notify=print_note)
    if as_json:
        print_json(MergeAdapterOutput(str(output), str(bundle), str(adapter)))
    else:
        print_facts("merge-adapter", {"bundle": output, "base": bundle, "adapter": adapter})
