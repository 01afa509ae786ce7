"""Commands `merge-adapter` and `quantize`, which write the weights of a bundle anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    bundle_argument,
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


@dataclass(frozen=True)
class QuantizeOutput:
    """Output of `dragoman model quantize --json`: folders of the new bundle and of its base, and the bytes of their weights."""

    bundle: str
    base: str
    bytes: int
    base_bytes: int


@click.command()
@bundle_argument
@output_path_option("Bundle to write.", required=True)
@overwrite_option("Replace a bundle that exists.")
@json_option()
def quantize(bundle: Path, output: Path, overwrite: bool, as_json: bool) -> None:
    """Write BUNDLE with int8 weights, a quarter of its size.

    All commands take the new bundle, training too. The rounded values of its matrices are those that --precision int8 computes
    with. Few outputs change, because embeddings are rounded as well. Keep the first bundle to train it further.

    \b
    Example:  dragoman model quantize runs/general-ende/bundle -o general-ende-int8
    """
    from dragoman.bundle import WEIGHTS_FILE
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.quantization import quantize_bundle

    check_output_paths(output, overwrite=True, input_paths=[bundle])
    quantize_bundle(bundle, output, overwrite=overwrite, notify=print_note)
    sizes = [(path / WEIGHTS_FILE).stat().st_size for path in (output, bundle)]
    if as_json:
        print_json(QuantizeOutput(str(output), str(bundle), *sizes))
    else:
        new_size, size = (f"{number / 1e6:.1f} MB" for number in sizes)
        print_facts("quantize", {"bundle": output, "base": bundle, "weights": f"{new_size}, before {size}"})
