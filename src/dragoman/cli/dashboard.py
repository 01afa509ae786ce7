"""A run as it goes: `watch`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import check_output_paths


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page to write; RUN/watch.html if not given.")
@click.option("--every", type=click.IntRange(min=1, max=3600), default=5, show_default=True, help="Seconds between pages.")
@click.option("--once", is_flag=True, help="Write the page as things stand, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print how things stand as JSON, and write no page.")
def watch(run: Path, output: Path | None, interval: int, once: bool, as_json: bool) -> None:
    """Write a page that shows the run folder RUN as it goes, until the run ends.

    The page is one file that needs no server and asks for nothing: open it in a browser, which loads it anew by itself.

    \b
    Example:  dragoman watch runs/multi30k-ende
    """
    from dragoman.cli.console import print_json, stderr_console
    from dragoman.training.monitoring.dashboard import update_dashboard
    from dragoman.training.monitoring.run_status import read_run_status, summarize_run

    check_output_paths(output, overwrite=True, input_paths=[run / "bundle"])
    if as_json:
        print_json(summarize_run(read_run_status(run)))
        return
    page_path = output or run / "watch.html"
    console = stderr_console()
    is_first_page = True
    for state in update_dashboard(run, page_path, interval_seconds=None if once else interval):
        if is_first_page:
            console.print(f"{page_path}: open it in a browser", markup=False)
            is_first_page = False
        if state != "running":
            hint = "" if once or state == "finished" else "; watch it again when it goes on"
            console.print(f"{run}: {state}{hint}", markup=False)
