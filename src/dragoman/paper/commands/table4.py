"""Command `paper table4`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.console.options import (
    PATH_TYPE,
    json_option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    usage_error,
)
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.paper.table4 import Table4


@click.command()
@overrides_argument
@click.option("--bundle", "bundles", type=PATH_TYPE, multiple=True, help="Bundle of a parser. Repeat it for several rows.")
@click.option("--gold", type=PATH_TYPE, help="Gold trees in brackets, to score on.")
@click.option("--train", type=PATH_TYPE, multiple=True, help="Training trees in brackets, for the PCFG.")
@click.option("--run", type=PATH_TYPE, help="Run of a parser, which gives the bundle and both kinds of trees.")
@click.option("--unconstrained", is_flag=True, help="Add a row for each bundle with repaired unconstrained outputs.")
@click.option("--no-baselines", is_flag=True, help="Leave out right-branching trees and the PCFG.")
@output_path_option("Draw the table as an SVG to this file.")
@overwrite_option()
@json_option()
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
    """Print Table 4, parsing, and score parsers and baselines on your own trees.

    KEY=VALUE changes a key of the recipe's [decoding] section, such as beam_size=21. F1 follows EVALB's COLLINS.prm for all
    lengths and with gold tags; a sentence without a tree counts as zero. The baselines are right-branching trees and, with
    --train or --run, a PCFG.

    \b
    Example:  dragoman paper table4
              dragoman paper table4 --run runs/parsing-craft beam_size=8 -o table4.svg
              dragoman paper table4 --bundle runs/parsing-craft/bundle --gold dev.mrg --train train.mrg
    """
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json
    from dragoman.paper.commands.outputs import describe_table4
    from dragoman.paper.table4 import Table4, draw_table4, find_run_files

    _check_options(overrides, bundles, gold, train, run, unconstrained=unconstrained, with_baselines=not no_baselines)
    gold_paths, train_paths = [gold] if gold is not None else [], list(train)
    if run is not None:
        bundle, gold_paths, train_paths = find_run_files(run)
        bundles = (bundle,)
    check_chart(output, overwrite=overwrite, input_paths=[*gold_paths, *train_paths, *bundles])
    decoding = parse_decoding_overrides(overrides)
    table = Table4("", 0, ())
    if gold_paths:
        table = _score_table(
            bundles, gold_paths, train_paths, decoding, unconstrained=unconstrained, with_baselines=not no_baselines
        )
    if as_json:
        print_json(describe_table4(table))
    else:
        _print_table4(table)
    write_chart(output, lambda: draw_table4(table), overwrite=overwrite)  # last, so that a write error comes after the table


def _score_table(
    bundles: Sequence[Path],
    gold_paths: Sequence[Path],
    train_paths: Sequence[Path],
    decoding: Mapping[str, Any],
    *,
    unconstrained: bool,
    with_baselines: bool,
) -> Table4:
    """Score the baselines and the parsers on the gold trees, with a progress bar."""
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.paper.table4 import Table4, load_parsers, read_treebank, score_baselines, score_parser

    parsers = load_parsers(bundles, decoding)
    gold = read_treebank(gold_paths)
    train = read_treebank(train_paths) if train_paths and with_baselines else None
    constraint_modes = (True, False) if unconstrained else (True,)
    num_passes = len(bundles) * len(constraint_modes) + (2 if train is not None else 0)
    with progress_bar(stderr_console(), "parsing", len(gold.trees) * num_passes, unit="sentences") as bar:
        results = score_baselines(gold, train, bar.advance) if with_baselines else []
        for bundle, parser in zip(bundles, parsers, strict=True):
            for constrained in constraint_modes:
                name = str(bundle) if constrained else f"{bundle}, unconstrained"
                results.append(
                    score_parser(name, parser, gold, decoding=decoding, constrained=constrained, on_progress=bar.advance)
                )
    return Table4(gold.name, len(train.trees) if train is not None else 0, results)


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
    """Raise UsageError if options do not go together, or if one has no effect."""
    problem = None
    if run is not None and (bundles or gold is not None or train):
        problem = "--run gives bundle, gold and training trees; leave it or the others out"
    elif run is None and gold is None and (bundles or train):
        problem = "the gold trees are missing; give --gold FILE"
    elif overrides and run is None and not bundles:
        problem = f"{overrides[0]!r} is an option of a bundle's search; give --bundle or --run"
    elif unconstrained and run is None and not bundles:
        problem = "--unconstrained needs a bundle; give --bundle or --run"
    elif train and not with_baselines:
        problem = "--train is for the baselines, which --no-baselines leaves out; leave one option out"
    elif gold is not None and not bundles and not with_baselines:
        problem = "--no-baselines leaves nothing to score; give --bundle, or leave the option out"
    if problem:
        raise usage_error(problem)


def _print_table4(table: Table4) -> None:
    from dragoman.console.terminal import print_table
    from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS

    def format_score(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    paper_cells = [(row.parser, row.training, f"{row.f1:g}") for row in (*PAPER_PARSERS, *LATER_PARSERS)]
    print_table("Table 4 as printed (WSJ, section 23), and the later parser benepar", ["parser", "training", "F1"], paper_cells)
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
    header = ["parser", "tags", "F1", "F1 to 40 words", "F1 own tags", "tagging", "failed", "sentences/s"]
    num_trees = format_count(table.results[0].sentences, "tree")
    print_table(f"On {table.gold_name} ({num_trees}), not comparable with the above", header, rows)
    pcfg_note = f"; the PCFG has {format_count(table.num_train_trees, 'training tree')}" if table.num_train_trees else ""
    click.echo(f"COLLINS.prm; a sentence without a tree counts as zero; gold tags except in 'F1 own tags'{pcfg_note}")
    for result in table.results:
        if result.repaired:
            click.echo(f"{result.parser}: {result.repaired:,} of {result.sentences:,} trees were malformed and are repaired")


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
