"""Command `dashboard`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import check_output_paths, json_option, output_path_option, run_argument
from dragoman.training.monitoring.run_status import RunSummary


@dataclass(frozen=True)
class DashboardOutput(RunSummary):
    """Output of `dragoman dashboard --json`: the newest values of a run. A value that is not logged is null."""


@click.command()
@run_argument
@output_path_option("Page to write.  [default: RUN/dashboard.html]")
@click.option(
    "--interval",
    type=click.IntRange(min=1, max=3600),
    default=5,
    show_default=True,
    help="Seconds between updates of the page.",
)
@click.option("--once", is_flag=True, help="Write the page once and exit.")
@json_option("Print the status as JSON, and write no page.")
def dashboard(run: Path, output: Path | None, interval: int, once: bool, as_json: bool) -> None:
    """Write a page that shows the progress of the run folder RUN, until the run ends.

    The page is one file and loads nothing else. Open it in a browser; it reloads itself.

    \b
    Example:  dragoman dashboard runs/multi30k-ende
    """
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.training.monitoring.run_page import update_dashboard
    from dragoman.training.monitoring.run_status import read_run_status, summarize_run

    check_output_paths(output, overwrite=True, input_paths=[run / "bundle"])
    if as_json:
        print_json(DashboardOutput(**vars(summarize_run(read_run_status(run)))))
        return
    page_path = output or run / "dashboard.html"
    console = stderr_console()
    is_first_page = True
    for state in update_dashboard(run, page_path, interval_seconds=None if once else interval):
        if is_first_page:
            console.print(f"{page_path}: open it in a browser", markup=False)
            is_first_page = False
        if state != "running":
            hint = "" if once or state == "finished" else "; start the dashboard again when the run resumes"
            console.print(f"{run}: {state}{hint}", markup=False)
