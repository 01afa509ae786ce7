"""The words that a batch is likely to need: `shortlist`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import refuse_old

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace a shortlist that exists.")
@click.option("--each", default=48, show_default=True, help="Tokens kept for each token of the source, at most.")
@click.option("--usual", default=512, show_default=True, help="Tokens in every list: the most frequent.")
@click.option("--json", "as_json", is_flag=True, help="Print what was learnt as JSON.")
def shortlist(
    bundle: Path, source: Path, target: Path, output: Path, overwrite: bool, each: int, usual: int, as_json: bool
) -> None:
    """Learn from the pairs of SOURCE and TARGET which words BUNDLE is likely to need for which.

    Translation with the shortlist computes only these, which is faster, and may cost some quality: evaluate both ways.

    \b
    Example:  dragoman shortlist runs/general-ende/bundle train.en train.de -o shortlist
              dragoman translate runs/general-ende/bundle news.en --shortlist shortlist
    """
    from dragoman.bundle import load_bundle
    from dragoman.cli.console import counting_bar, people, print_json
    from dragoman.errors import BundleError
    from dragoman.formats.text import read_beside
    from dragoman.inference.shortlist import learn_shortlist

    for name, value in (("--each", each), ("--usual", usual)):
        if not 1 <= value <= 100_000:
            raise click.UsageError(f"{name} = {value}: 1 to 100000 are allowed", ctx=click.get_current_context())
    refuse_old(output, overwrite=overwrite, read=[source, target, bundle])
    sources, targets = read_beside(source, target)
    found = load_bundle(bundle)
    if found.recipe.task.kind != "translation":
        raise BundleError(f"{bundle}: is a parser, whose labels are too few for a shortlist; use dragoman parse")
    with counting_bar(people(), "looking", len(sources)) as bar:
        learnt, left_out = learn_shortlist(
            found, sources, targets, each=each, usual=usual, advance=lambda count: bar.advance(bar.task_ids[0], count)
        )
    learnt.save(output, overwrite=overwrite)
    known = int((learnt.near_VK[:, 0] > 0).sum())
    if as_json:
        told = {"pairs": len(sources), "left_out": left_out, "source_tokens": known, "usual": len(learnt.usual_F)}
        print_json({"shortlist": str(output), **told})
    else:
        click.echo(f"{output}: what {known:,} tokens of the source become, by {len(sources) - left_out:,} pairs")
        if left_out:
            click.echo(f"left out, since they are longer than all that the model learnt from: {left_out:,} pairs", err=True)
