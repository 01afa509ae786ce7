"""A run as it goes: `watch`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.cli.options import refuse_old


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page to write; RUN/watch.html if not given.")
@click.option("--every", type=click.IntRange(min=1, max=3600), default=5, show_default=True, help="Seconds between pages.")
@click.option("--once", is_flag=True, help="Write the page as things stand, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print how things stand as JSON, and write no page.")
def watch(run: Path, output: Path | None, every: int, once: bool, as_json: bool) -> None:
    """Write a page that shows the run folder RUN as it goes, until the run ends.

    The page is one file that needs no server and asks for nothing: open it in a browser, which loads it anew by itself.

    \b
    Example:  dragoman watch runs/multi30k-ende
    """
    from dragoman.cli.console import people, print_json
    from dragoman.training.monitoring.dashboard import keep_page
    from dragoman.training.monitoring.run_status import read_record, standing

    refuse_old(output, overwrite=True, read=[run / "bundle"])
    if as_json:
        print_json(standing(read_record(run)))
        return
    page = output or run / "watch.html"
    console = people()
    first = True
    for state in keep_page(run, page, every=None if once else every):
        if first:
            console.print(f"{page}: open it in a browser", markup=False)
            first = False
        if state != "running":
            later = "" if once or state == "finished" else "; watch it again when it goes on"
            console.print(f"{run}: {state}{later}", markup=False)
