"""Translation benchmark beside other engines: `make bench-inference`, with QUICK=1 in under four minutes.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import click
from common.benchmark import Benchmark, print_progress, with_options
from common.instruction_set import describe_instruction_set
from common.results import Section
from common.time_budget import UNBOUNDED, TimeBudget
from common.usage import CommandError

from .captions import Captions, MissingCaptionsError, find_captions, measure_captions
from .decoders import measure_decoders
from .fixed import CELLS, QUICK_CELLS, measure_fixed
from .memory import measure_memory
from .models import BASE, ModelFormats, RandomModel, build_imported_model, build_random_model
from .systems import ALL, CORES, open_systems

SECTIONS = ("fixed", "decoders", "captions", "memory")
# Seconds of a quick run, and the share of the time left that a section gets. A stopped request may take some seconds more.
QUICK_SECONDS = 200.0
QUICK_SHARES = {"fixed": 0.6, "decoders": 0.3, "captions": 0.6, "memory": 1.0}


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure fewer cells and settings, in under four minutes once environment and model exist."
)
@with_options("isa")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Measure only these sections.")
@click.option(
    "--cell",
    "chosen",
    type=click.Choice([cell.name for cell in CELLS]),
    multiple=True,
    help="Measure only these cells of `fixed`.",
)
@click.option(
    "--system", "named", type=click.Choice(ALL), multiple=True, help="Measure only these systems, except in `memory`."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds after the trials of all settings.  [default: 5]")
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Seconds of each turn of `fixed`.  [default: 3; quick 1]")
@click.option(
    "--bundle", type=click.Path(path_type=Path), help="Trained bundle for `captions`; without it, the benchmark trains one."
)
@with_options("shared", "work", "json")
def main(
    quick: bool,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    named: tuple[str, ...],
    rounds: int | None,
    seconds: float | None,
    bundle: Path | None,
    shared: Path,
    work: Path | None,
    report: Path | None,
) -> None:
    """Measure the translation speed of dragoman and of other engines, beside the speed limit."""
    os.environ.pop("PYTHONPATH", None)  # only this program needs it, not its child processes
    bench = Benchmark(__file__, quick=quick, cores=CORES, libraries=("dragoman", "torch", "numpy"), work=work, report=report)
    num_rounds, turn_seconds = rounds or 5, seconds if seconds is not None else (1.0 if quick else 3.0)
    names = chosen or (QUICK_CELLS if quick else [cell.name for cell in CELLS])
    cells = [cell for cell in CELLS if cell.name in names]
    selected = [name for name in SECTIONS if name in (only or (SECTIONS[:-1] if quick else SECTIONS))]

    @cache
    def build_forms(model: RandomModel) -> ModelFormats:
        folder = bench.work / model.name
        if not folder.exists():
            print_progress(f"making the model {model.name}, once")
        if model.is_imported:
            assert systems.programs is not None, "cells of imported models need the peers"
            return build_imported_model(model, folder, systems.programs)
        return build_random_model(model, folder)

    @cache
    def captions() -> Captions:
        return find_captions(shared, bench.work, bundle, quick=quick)

    def build_models() -> None:
        """Make the models, which a machine keeps."""
        for model in dict.fromkeys([BASE, *(cell.model for cell in cells if "fixed" in selected)]):
            build_forms(model)
        if "captions" in selected:
            with suppress(MissingCaptionsError):
                captions()

    with open_systems(bench.work, named or ALL) as systems:
        bench.console.print(systems.description, markup=False)
        if systems.programs is None:
            cells = [cell for cell in cells if not cell.model.is_imported]
        bench.console.print(describe_instruction_set(), markup=False)
        build_models()
        has_budget = quick and rounds is None and seconds is None
        run_budget = TimeBudget.from_seconds(QUICK_SECONDS) if has_budget else UNBOUNDED
        measures: dict[str, Callable[[], Section]] = {
            "fixed": lambda: measure_fixed(
                systems,
                build_forms,
                cells,
                quick=quick,
                rounds=num_rounds,
                seconds=turn_seconds,
                budget=section_budgets["fixed"],
            ),
            "decoders": lambda: measure_decoders(rounds=num_rounds, budget=section_budgets["decoders"]),
            "captions": lambda: measure_captions(
                systems,
                captions(),
                quick=quick,
                rounds=num_rounds,
                budget=section_budgets["captions"],
            ),
            "memory": lambda: measure_memory(captions(), quick=quick),
        }
        section_budgets: dict[str, TimeBudget] = {}
        for name in selected:
            section_budgets[name] = run_budget.take_share(1.0 if name == selected[-1] else QUICK_SHARES[name])
            try:
                section = measures[name]()
            except (CommandError, MissingCaptionsError) as error:
                section = Section(notes=[f"{name}: {error}"])
            bench.add(name, section)
    bench.finish()


if __name__ == "__main__":
    main()
