"""The paper's parsing table: `paper table4`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import refuse_old
from dragoman.cli.train import CHANGES, JSON

if TYPE_CHECKING:
    from dragoman.paper.table4 import Table4

PATH = click.Path(path_type=Path)


@click.command()
@CHANGES
@click.option("--bundle", "bundles", type=PATH, multiple=True, help="A parser's bundle; give several for several rows.")
@click.option("--gold", type=PATH, help="The trees to score on, in brackets.")
@click.option("--train", type=PATH, multiple=True, help="Trees in brackets that the PCFG is counted over.")
@click.option("--run", type=PATH, help="Instead of all three: a run of a parser, with its bundle and its recipe's files.")
@click.option("--unconstrained", is_flag=True, help="A further row a bundle: free to say anything, which is mended.")
@click.option("--no-baselines", is_flag=True, help="Leave out right-branching trees and the PCFG.")
@click.option("-o", "--output", type=PATH, help="Draw the table as an SVG here.")
@click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")
@JSON
def table4(
    changes: tuple[str, ...],
    bundles: tuple[Path, ...],
    gold: Path | None,
    train: tuple[Path, ...],
    run: Path | None,
    unconstrained: bool,
    no_baselines: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Table 4, parsing: the printed rows, and beside them parsers and baselines on trees of your own.

    KEY=VALUE changes a knob of the search, such as beam_size=21. F1 is by EVALB's COLLINS.prm, all lengths, a sentence without
    a tree as zero, with the gold tags put in. The baselines are right-branching trees and, with --train or --run, a PCFG.

    \b
    Example:  dragoman paper table4
              dragoman paper table4 --run runs/parsing-craft beam_size=8 -o table4.svg
              dragoman paper table4 --bundle runs/parsing-craft/bundle --gold dev.mrg --train train.mrg
    """
    from dragoman.cli.console import counting_bar, people, print_json
    from dragoman.config import parse_setting
    from dragoman.io.storage import write_lines
    from dragoman.paper.table4 import Table4, baselines, files_of_run, open_parsers, parsed, picture, read_treebank

    _check_use(changes, bundles, gold, train, run, unconstrained=unconstrained, baselines=not no_baselines)
    held, counted = [gold] if gold is not None else [], list(train)
    if run is not None:
        bundle, held, counted = files_of_run(run)
        bundles = (bundle,)
    refuse_old(output, overwrite=overwrite, read=[*held, *counted, *bundles])
    decoding = {key.removeprefix("decoding."): value for key, value in map(parse_setting, changes)}
    table = Table4("", 0, ())
    if held:
        parsers = open_parsers(bundles, decoding)
        trees = read_treebank(held)
        learnt = read_treebank(counted) if counted and not no_baselines else None
        ways = (True, False) if unconstrained else (True,)
        turns = len(bundles) * len(ways) + (2 if learnt is not None else 0)
        with counting_bar(people(), "parsing", len(trees.trees) * turns) as bar:

            def advance(count: int) -> None:
                bar.advance(bar.task_ids[0], count)

            results = [] if no_baselines else baselines(trees, learnt, advance)
            for one, parser in zip(bundles, parsers, strict=True):
                for constrained in ways:
                    name = str(one) if constrained else f"{one}, unconstrained"
                    results.append(parsed(name, parser, trees, decoding=decoding, constrained=constrained, advance=advance))
        table = Table4(trees.name, len(learnt.trees) if learnt is not None else 0, results)
    if as_json:
        print_json(table.as_json())
    else:
        _print_table4(table)
    if output is not None:  # last: where it cannot be written, the table has been seen
        write_lines(output, [picture(table)], overwrite=overwrite)


def _check_use(
    changes: tuple[str, ...],
    bundles: tuple[Path, ...],
    gold: Path | None,
    train: tuple[Path, ...],
    run: Path | None,
    *,
    unconstrained: bool,
    baselines: bool,
) -> None:
    """Raise UsageError where options do not go together, or where one would have no effect."""
    told = None
    if run is not None and (bundles or gold is not None or train):
        told = "--run names bundle, gold and training trees by itself; drop it or the others"
    elif run is None and gold is None and (bundles or train):
        told = "give the trees to score on: --gold FILE"
    elif changes and run is None and not bundles:
        told = f"{changes[0]!r} changes how a bundle searches; give --bundle or --run"
    elif unconstrained and run is None and not bundles:
        told = "--unconstrained is a bundle's; give --bundle or --run"
    elif train and not baselines:
        told = "--train is for the baselines, which --no-baselines leaves out; drop one"
    elif gold is not None and not bundles and not baselines:
        told = "--no-baselines leaves nothing to score; give --bundle, too, or drop it"
    if told:
        raise click.UsageError(told, ctx=click.get_current_context())


def _print_table4(table: Table4) -> None:
    from dragoman.cli.console import print_table
    from dragoman.paper.table4 import PRINTED, QUOTED

    def points(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    printed = [(row.parser, row.training, f"{row.f1:g}") for row in (*PRINTED, *QUOTED)]
    print_table("Table 4 as printed (WSJ, section 23), and benepar since", ["parser", "training", "F1"], printed)
    if not table.results:
        click.echo("give --gold FILE for baselines, --bundle for a parser, or --run for both")
        return
    rows = [
        (
            one.parser,
            one.tags,
            *map(points, (one.f1, one.f1_short, one.f1_own_tags, one.tagging)),
            str(one.failures),
            _rate(one.sentences / max(one.seconds, 1e-9)),
        )
        for one in table.results
    ]
    header = ["parser", "tags", "F1", "to 40", "own", "tagging", "failed", "per s"]
    print_table(f"On {table.gold} ({table.results[0].sentences:,} trees), not comparable with the above", header, rows)
    counted = f"; the PCFG is of {table.train:,} trees" if table.train else ""
    click.echo(f"COLLINS.prm, a sentence without a tree as zero, gold tags put in but for 'own'{counted}")
    for one in table.results:
        if one.mended:
            click.echo(f"{one.parser}: {one.mended:,} of {one.sentences:,} trees were malformed, and mended")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
