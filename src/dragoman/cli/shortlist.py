"""The words that a batch is likely to need: `shortlist`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import check_output_paths

PATH_TYPE = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=PATH_TYPE)
@click.argument("source", type=PATH_TYPE)
@click.argument("target", type=PATH_TYPE)
@click.option("-o", "--output", type=PATH_TYPE, required=True, help="The folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace a shortlist that exists.")
@click.option("--each", default=48, show_default=True, help="Tokens kept for each token of the source, at most.")
@click.option("--usual", default=512, show_default=True, help="Tokens in every list: the most frequent.")
@click.option("--json", "as_json", is_flag=True, help="Print what was learnt as JSON.")
def shortlist(
    bundle: Path, source: Path, target: Path, output: Path, overwrite: bool, per_token: int, frequent: int, as_json: bool
) -> None:
    """Learn from the pairs of SOURCE and TARGET which words BUNDLE is likely to need for which.

    Translation with the shortlist computes only these, which is faster, and may cost some quality: evaluate both ways.

    \b
    Example:  dragoman shortlist runs/general-ende/bundle train.en train.de -o shortlist
              dragoman translate runs/general-ende/bundle news.en --shortlist shortlist
    """
    from dragoman.bundle import load_bundle
    from dragoman.cli.console import print_json, progress_bar, stderr_console
    from dragoman.errors import BundleError
    from dragoman.formats.text import read_parallel_lines
    from dragoman.inference.shortlist import build_shortlist

    for name, value in (("--each", per_token), ("--usual", frequent)):
        if not 1 <= value <= 100_000:
            raise click.UsageError(f"{name} = {value}: 1 to 100000 are allowed", ctx=click.get_current_context())
    check_output_paths(output, overwrite=overwrite, input_paths=[source, target, bundle])
    sources, targets = read_parallel_lines(source, target)
    loaded_bundle = load_bundle(bundle)
    if loaded_bundle.recipe.task.kind != "translation":
        raise BundleError(f"{bundle}: is a parser, whose labels are too few for a shortlist; use dragoman parse")
    with progress_bar(stderr_console(), "looking", len(sources)) as bar:
        learned_shortlist, skipped_pairs = build_shortlist(
            loaded_bundle,
            sources,
            targets,
            per_token=per_token,
            num_frequent=frequent,
            on_progress=lambda count: bar.advance(bar.task_ids[0], count),
        )
    learned_shortlist.save(output, overwrite=overwrite)
    covered_tokens = int((learned_shortlist.candidates_VK[:, 0] > 0).sum())
    if as_json:
        fields = {
            "pairs": len(sources),
            "left_out": skipped_pairs,
            "source_tokens": covered_tokens,
            "usual": len(learned_shortlist.frequent_F),
        }
        print_json({"shortlist": str(output), **fields})
    else:
        click.echo(f"{output}: what {covered_tokens:,} tokens of the source become, by {len(sources) - skipped_pairs:,} pairs")
        if skipped_pairs:
            click.echo(
                f"left out, since they are longer than all that the model learnt from: {skipped_pairs:,} pairs", err=True
            )
