"""Command `dashboard`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import check_output_paths, json_option, output_path_option, overwrite_option, run_argument
from dragoman.training.monitoring.run_status import RunSummary


@dataclass(frozen=True)
class DashboardOutput(RunSummary):
    """Output of `dragoman dashboard --json`: the newest values of a run. A value that is not logged is null."""


@click.command()
@run_argument
@output_path_option("Page to write.  [default: RUN/report.html]")
@overwrite_option("Replace a page named with -o that exists.")
@json_option("Print the status as JSON, and write no page.")
def dashboard(run: Path, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write a page that shows the progress of the run folder RUN, from the newest lines of its log.

    The page is one file and loads nothing else. The run writes it at its validations too. Open it in a browser; it reloads
    itself while the run goes on.

    \b
    Example:  dragoman dashboard runs/multi30k-ende
    """
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.training.monitoring.run_page import PAGE_FILE, write_run_page
    from dragoman.training.monitoring.run_status import read_run_status, summarize_run

    page = output or run / PAGE_FILE
    check_output_paths(output, overwrite=overwrite, input_paths=[run / "bundle"])
    if as_json:
        print_json(DashboardOutput(**vars(summarize_run(read_run_status(run)))))
        return
    write_run_page(run, page)
    stderr_console().print(f"{page}: open it in a browser", markup=False)
