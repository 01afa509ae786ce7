"""The paper's parsing table: `paper table4`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import check_output_paths
from dragoman.cli.train import JSON_OPTION, OVERRIDES_ARGUMENT

if TYPE_CHECKING:
    from dragoman.paper.table4 import Table4

PATH_TYPE = click.Path(path_type=Path)


@click.command()
@OVERRIDES_ARGUMENT
@click.option("--bundle", "bundles", type=PATH_TYPE, multiple=True, help="A parser's bundle; give several for several rows.")
@click.option("--gold", type=PATH_TYPE, help="The trees to score on, in brackets.")
@click.option("--train", type=PATH_TYPE, multiple=True, help="Trees in brackets that the PCFG is counted over.")
@click.option("--run", type=PATH_TYPE, help="Instead of all three: a run of a parser, with its bundle and its recipe's files.")
@click.option("--unconstrained", is_flag=True, help="A further row a bundle: free to say anything, which is mended.")
@click.option("--no-baselines", is_flag=True, help="Leave out right-branching trees and the PCFG.")
@click.option("-o", "--output", type=PATH_TYPE, help="Draw the table as an SVG here.")
@click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")
@JSON_OPTION
def table4(
    overrides: tuple[str, ...],
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
    from dragoman.cli.console import print_json, progress_bar, stderr_console
    from dragoman.config import parse_setting
    from dragoman.io.storage import write_lines
    from dragoman.paper.table4 import (
        Table4,
        draw_table4,
        find_run_files,
        load_parsers,
        read_treebank,
        score_baselines,
        score_parser,
    )

    _check_options(overrides, bundles, gold, train, run, unconstrained=unconstrained, with_baselines=not no_baselines)
    gold_paths, train_paths = [gold] if gold is not None else [], list(train)
    if run is not None:
        bundle, gold_paths, train_paths = find_run_files(run)
        bundles = (bundle,)
    check_output_paths(output, overwrite=overwrite, input_paths=[*gold_paths, *train_paths, *bundles])
    decoding = {key.removeprefix("decoding."): value for key, value in map(parse_setting, overrides)}
    table = Table4("", 0, ())
    if gold_paths:
        parsers = load_parsers(bundles, decoding)
        gold_treebank = read_treebank(gold_paths)
        train_treebank = read_treebank(train_paths) if train_paths and not no_baselines else None
        constraint_modes = (True, False) if unconstrained else (True,)
        num_passes = len(bundles) * len(constraint_modes) + (2 if train_treebank is not None else 0)
        with progress_bar(stderr_console(), "parsing", len(gold_treebank.trees) * num_passes) as bar:

            def advance_bar(count: int) -> None:
                bar.advance(bar.task_ids[0], count)

            results = [] if no_baselines else score_baselines(gold_treebank, train_treebank, advance_bar)
            for bundle_path, parser in zip(bundles, parsers, strict=True):
                for constrained in constraint_modes:
                    row_name = str(bundle_path) if constrained else f"{bundle_path}, unconstrained"
                    results.append(
                        score_parser(
                            row_name, parser, gold_treebank, decoding=decoding, constrained=constrained, on_progress=advance_bar
                        )
                    )
        table = Table4(gold_treebank.name, len(train_treebank.trees) if train_treebank is not None else 0, results)
    if as_json:
        print_json(table.to_dict())
    else:
        _print_table4(table)
    if output is not None:  # last: where it cannot be written, the table has been seen
        write_lines(output, [draw_table4(table)], overwrite=overwrite)


def _check_options(
    overrides: tuple[str, ...],
    bundles: tuple[Path, ...],
    gold: Path | None,
    train: tuple[Path, ...],
    run: Path | None,
    *,
    unconstrained: bool,
    with_baselines: bool,
) -> None:
    """Raise UsageError where options do not go together, or where one would have no effect."""
    problem = None
    if run is not None and (bundles or gold is not None or train):
        problem = "--run names bundle, gold and training trees by itself; drop it or the others"
    elif run is None and gold is None and (bundles or train):
        problem = "give the trees to score on: --gold FILE"
    elif overrides and run is None and not bundles:
        problem = f"{overrides[0]!r} changes how a bundle searches; give --bundle or --run"
    elif unconstrained and run is None and not bundles:
        problem = "--unconstrained is a bundle's; give --bundle or --run"
    elif train and not with_baselines:
        problem = "--train is for the baselines, which --no-baselines leaves out; drop one"
    elif gold is not None and not bundles and not with_baselines:
        problem = "--no-baselines leaves nothing to score; give --bundle, too, or drop it"
    if problem:
        raise click.UsageError(problem, ctx=click.get_current_context())


def _print_table4(table: Table4) -> None:
    from dragoman.cli.console import print_table
    from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS

    def format_score(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    paper_cells = [(row.parser, row.training, f"{row.f1:g}") for row in (*PAPER_PARSERS, *LATER_PARSERS)]
    print_table("Table 4 as printed (WSJ, section 23), and benepar since", ["parser", "training", "F1"], paper_cells)
    if not table.results:
        click.echo("give --gold FILE for baselines, --bundle for a parser, or --run for both")
        return
    rows = [
        (
            result.parser,
            result.tags,
            *map(format_score, (result.f1, result.f1_short, result.f1_predicted_tags, result.tagging)),
            str(result.failures),
            _format_rate(result.sentences / max(result.seconds, 1e-9)),
        )
        for result in table.results
    ]
    header = ["parser", "tags", "F1", "to 40", "own", "tagging", "failed", "per s"]
    print_table(f"On {table.gold_name} ({table.results[0].sentences:,} trees), not comparable with the above", header, rows)
    pcfg_note = f"; the PCFG is of {table.num_train_trees:,} trees" if table.num_train_trees else ""
    click.echo(f"COLLINS.prm, a sentence without a tree as zero, gold tags put in but for 'own'{pcfg_note}")
    for result in table.results:
        if result.repaired:
            click.echo(f"{result.parser}: {result.repaired:,} of {result.sentences:,} trees were malformed, and mended")


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
