"""Command `paper table2`: the cost of finished runs, or all systems of the table trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import (
    PATH_TYPE,
    FiniteNumber,
    argument,
    json_option,
    option,
    output_path_option,
    overwrite_option,
    shared,
    usage_error,
    with_options,
)
from dragoman.paper.commands.table3 import training_progress_bars

if TYPE_CHECKING:
    from dragoman.paper.budget import Budget
    from dragoman.paper.table2 import RunCost
    from dragoman.paper.table2_results import SystemResult, Table2

DEFAULT_STEPS = 2000
_RUN_OPTIONS = ("corpus", "systems", "steps", "flops", "minutes", "clock", "seeds", "folder", "processes", "output")


@dataclass(frozen=True)
class Table2Options:
    """Options of `dragoman paper table2`."""

    arguments: tuple[str, ...] = argument("arguments", nargs=-1, metavar="RUN... | KEY=VALUE...")
    tflops: float | None = option(
        "--tflops",
        type=FiniteNumber(min=0, min_open=True),
        help="Sustained TFLOP/s of a device, instead of the measured value.",
    )
    score: bool = option("--score", is_flag=True, help="Translate each test set again, for sacreBLEU and the paper's BLEU.")
    is_run: bool = option("--run", "is_run", is_flag=True, help="Train the systems of the table, instead of reading runs.")
    corpus: Path | None = option(
        "--corpus", type=PATH_TYPE, help="With --run: recipe with the corpus.  [default: multi30k-ende]"
    )
    systems: str | None = option(
        "--systems", help="With --run: systems, such as gnmt,moe. The Transformer is always included.  [default: all]"
    )
    steps: int | None = option(
        "--steps", type=click.IntRange(1, 2**31 - 1), help=f"Steps of each run.  [default: {DEFAULT_STEPS}]"
    )
    flops: float | None = option(
        "--flops", type=FiniteNumber(min=0, min_open=True), help="Counted operations of each run, such as 2e13."
    )
    minutes: float | None = option(
        "--minutes", type=FiniteNumber(min=0, min_open=True), help="Minutes of training steps of each run."
    )
    clock: str | None = option(
        "--clock",
        type=click.Choice(["wall", "processor"]),
        help="Clock of minutes and speeds: `processor` if other programs run on the machine.  [default: wall]",
    )
    seeds: int | None = option("--seeds", type=click.IntRange(1, 100), help="With --run: seeds of each system.  [default: 3]")
    folder: Path | None = option(
        "--folder", type=PATH_TYPE, help="With --run: folder for the runs.  [default: runs/table2-NAME]"
    )
    processes: int | None = option(
        "--processes", type=click.IntRange(1, 256), help="With --run: runs that train at a time.  [default: 1]"
    )
    output: Path | None = shared(output_path_option("With --run: draw the learning curves as an SVG to this file."))
    overwrite: bool = shared(overwrite_option())
    as_json: bool = shared(json_option())


@click.command()
@with_options(Table2Options)
def table2(args: Table2Options) -> None:
    """Compute the training cost of runs, or train all systems of Table 2 with --run and compare them.

    The cost of a RUN is as in the paper (time × devices × sustained FLOP/s), and counted exactly. With --run, the Transformer,
    GNMT, Deep-Att, ConvS2S, ByteNet and a mixture of experts train on one corpus. Each run has the same budget of --steps,
    --flops or --minutes. The seeds of a system form its ensemble. KEY=VALUE changes a key of all recipes, and SYSTEM:KEY=VALUE
    that of one system. The same command resumes, and keeps finished runs.

    \b
    Example:  dragoman paper table2 runs/multi30k-ende runs/short --score
              dragoman paper table2 --run data.root=path/to/multi30k/tok --flops 2e13 --seeds 3 -o table2.svg
              dragoman paper table2 --run --systems gnmt --minutes 10 gnmt:training.peak_lr=1e-3
    """
    run_options = {name for name in _RUN_OPTIONS if click.get_current_context().params[name] is not None}
    if not args.is_run:
        if run_options:
            raise usage_error(f"--{sorted(run_options)[0]} is for --run; add --run, or leave it out")
        _report_costs([Path(run) for run in args.arguments], args.tflops, score=args.score, as_json=args.as_json)
        return
    if args.tflops is not None or args.score:
        raise usage_error(f"{'--score' if args.score else '--tflops'} is for finished runs; leave it or --run out")
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json
    from dragoman.paper.commands.outputs import describe_table2
    from dragoman.paper.table2_results import draw_table2
    from dragoman.paper.table2_runs import train_table2
    from dragoman.paper.table2_systems import select_systems

    budget, selected_systems = _make_budget(args.steps, args.flops, args.minutes, args.clock), select_systems(args.systems)
    corpus = args.corpus or Path("multi30k-ende")
    check_chart(args.output, overwrite=args.overwrite)
    with training_progress_bars() as add_progress_bar:
        table = train_table2(
            corpus,
            args.arguments,
            systems=selected_systems,
            budget=budget,
            seeds=args.seeds or 3,
            folder=args.folder or Path("runs") / f"table2-{corpus.stem}",
            make_callback=add_progress_bar,
            processes=args.processes or 1,
        )
    write_chart(args.output, lambda: draw_table2(table), overwrite=args.overwrite)
    if args.as_json:
        print_json(describe_table2(table))
        return
    _print_systems(table)


def _make_budget(steps: int | None, flops: float | None, minutes: float | None, clock: str | None) -> Budget:
    """Return the one budget that is given. Raises UsageError for several of them."""
    from dragoman.paper.budget import Budget

    named = {"--steps": steps, "--flops": flops, "--minutes": minutes}
    chosen = [name for name, value in named.items() if value is not None]
    if len(chosen) > 1:
        raise usage_error(f"{' and '.join(chosen)} are two budgets; give one of them")
    return Budget(steps if chosen else DEFAULT_STEPS, flops, minutes, clock="processor" if clock == "processor" else "wall")


def _print_systems(table: Table2) -> None:
    from dragoman.console.terminal import print_table
    from dragoman.paper.table2_systems import PATH_LENGTH

    rows = [_make_row(table, result, ensemble=False) for result in table.results]
    rows += [_make_row(table, result, ensemble=True) for result in table.results if result.ensemble is not None]
    header = [
        "system", "printed", "BLEU", "against Transformer", "printed", "FLOPs", "steps", "seconds", "train tok/s",
        "transl. tok/s", f"path, n={PATH_LENGTH}", "10⁶ params",
    ]  # fmt: skip
    print_table(table.title, header, rows)
    signatures = sorted({run.signature for result in table.results for run in result.trained})
    click.echo(
        f"BLEU: {', '.join(signatures)}; mean ± standard deviation over the seeds. printed: newstest2014, not comparable"
    )
    click.echo("against Transformer: difference in BLEU and p by paired bootstrap of the sentences, * for p < .05")
    click.echo(
        f"seconds and tokens a second by the {table.budget.clock} clock, without validations; translation by PyTorch. "
        f"Sizes differ by {100 * table.parameter_spread:.1f} %"
    )


def _make_row(table: Table2, result: SystemResult, *, ensemble: bool) -> tuple[str, ...]:
    """Return the cells of a system, or of its ensemble, whose cost is that of all seeds."""
    paper_row = result.find_paper_row(ensemble=ensemble)
    comparison = table.compare_with_transformer(result, ensemble=ensemble)
    runs, speed, std = table.seeds if ensemble else 1, result.ensemble_speed if ensemble else result.speed, result.bleu_std
    if ensemble and result.ensemble is not None:
        bleu_text = f"{result.ensemble.score.value:.2f}"
    else:
        bleu_text = f"{result.bleu:.2f}" + ("" if std is None else f" ± {std:.2f}")
    printed_bleu = printed_flops = ""
    if paper_row is not None:
        is_french = table.languages.endswith("-fr")
        bleu, flops = (
            (paper_row.en_fr_bleu, paper_row.en_fr_flops) if is_french else (paper_row.en_de_bleu, paper_row.en_de_flops)
        )
        printed_bleu, printed_flops = "" if bleu is None else f"{bleu:g}", "" if flops is None else f"{flops:.1e}"
    compared = ""
    if comparison is not None:
        compared = f"{comparison.difference:+.2f} (p {comparison.p_value:.3f}){'*' if comparison.is_significant else ''}"
    return (
        f"{result.system.name} ensemble" if ensemble else result.system.name,
        printed_bleu,
        bleu_text,
        compared,
        printed_flops,
        f"{runs * result.mean('flops'):.2e}",
        f"{runs * result.mean('steps'):,.0f}",
        f"{runs * result.mean('seconds'):,.0f}",
        "" if ensemble else f"{result.training_tokens_per_second:,.0f}",
        "" if speed is None else f"{speed.tokens_per_second:,.0f}",
        f"{result.longest_path}  O({result.system.path})",
        f"{runs * result.parameters / 1e6:.3f}",
    )


def _report_costs(runs: Sequence[Path], tflops: float | None, *, score: bool, as_json: bool) -> None:
    """Print the cost of each run, beside the printed table."""
    from dragoman.console.terminal import print_json
    from dragoman.paper.table2 import PAPER_COSTS, add_bleu_scores, compute_run_cost

    if not runs:
        raise usage_error("give the folders of finished runs, or --run to train the systems")
    costs = [compute_run_cost(run, sustained_flops=None if tflops is None else tflops * 1e12) for run in runs]
    if score:
        costs = [add_bleu_scores(cost) for cost in costs]
    if as_json:
        print_json({"table": 2, "runs": costs, "printed": PAPER_COSTS})
        return
    _print_costs(costs)


def _print_costs(costs: Sequence[RunCost]) -> None:
    from dragoman.console.terminal import print_facts, print_table
    from dragoman.paper.table2 import PAPER_COSTS

    def format_bleu(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    def format_flops(value: float | None) -> str:
        return "" if value is None else f"{value:.1e}"

    rows = [
        (
            paper_row.model,
            format_bleu(paper_row.en_de_bleu),
            format_bleu(paper_row.en_fr_bleu),
            format_flops(paper_row.en_de_flops),
            format_flops(paper_row.en_fr_flops),
        )
        for paper_row in PAPER_COSTS
    ]
    print_table("Table 2 as printed (newstest2014)", ["model", "BLEU EN-DE", "EN-FR", "FLOPs EN-DE", "EN-FR"], rows)
    for cost in costs:
        rate_text = (
            f"{cost.sustained_flops / 1e12:.3g} TFLOP/s ({cost.sustained_source})"
            if cost.sustained_flops is not None
            else cost.sustained_source
        )
        facts: dict[str, str] = {
            "languages": cost.languages,
            "steps": f"{cost.steps:,} ({cost.state})",
            "time × devices × sustained": f"{cost.seconds:,.0f} s × {cost.devices:.3g} × {rate_text}",
            "FLOPs as in the paper": format_flops(cost.paper_flops) or "unknown: give --tflops",
            "FLOPs counted": format_flops(cost.counted_flops),
        }
        if cost.bleu is not None:
            facts["BLEU"] = f"{format_bleu(cost.bleu)} ({cost.bleu_signature})"
        if cost.paper_bleu is not None:
            facts["BLEU as in the paper"] = f"{format_bleu(cost.paper_bleu)} ({cost.paper_bleu_signature})"
        print_facts(f"{cost.run}: {cost.name}", facts)
