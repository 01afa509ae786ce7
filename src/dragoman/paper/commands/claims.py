"""Command `paper claims`: the claims of the paper with their verdicts."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path

import click

from dragoman.console.options import check_output_paths, json_option, output_path_option, overwrite_option
from dragoman.paper.claims import Claim, count_verdicts, draw_claims, load_claims, run_claims

COLORS = {"holds": "green", "reversed": "red", "undecided": "yellow", "not run": "bright_black"}


@click.command()
@click.option("--run", is_flag=True, help="Measure the claims again that take up to a minute, and leave out the others.")
@output_path_option("Draw the claims as an SVG to this file.")
@overwrite_option()
@json_option()
def claims(run: bool, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """List the claims of sections 3 to 7, each with its measured effect, its scale and a verdict.

    The results are those of the commands that each claim names. --run needs the extra train, and takes some three minutes.

    \b
    Example:  dragoman paper claims
              dragoman paper claims --run -o claims.svg
    """
    from dragoman.console.terminal import print_json
    from dragoman.io.storage import write_lines

    check_output_paths(output, overwrite=overwrite)

    published: Iterable[Claim] = load_claims()
    if run:
        from dragoman.paper.claim_measures import MEASURES

        published = run_claims(published, MEASURES)
    shown = []
    for claim in published:  # a measured claim is printed as soon as it is measured
        shown.append(claim)
        if not as_json:
            _print_claim(claim)
    if output is not None:
        write_lines(output, [draw_claims(shown)], overwrite=overwrite)
    if as_json:
        print_json({"claims": shown})
    else:
        click.echo(f"\n{len(shown)} claims: {count_verdicts(shown)}")


def _print_claim(claim: Claim) -> None:
    """Print the claim and its verdict, and below them the effect, its reason and the command."""
    width = min(shutil.get_terminal_size().columns, 120)
    verdict = click.style(f"{claim.verdict:<10}", fg=COLORS[claim.verdict], bold=True)
    first, *rest = textwrap.wrap(claim.text, width - 17)
    click.echo(f"{claim.section:<6} {verdict}{first}")
    how = f"{claim.scale}: {claim.command}" if claim.command else ""
    details = [line for text in (claim.effect, claim.why, how) if text for line in textwrap.wrap(text, width - 19)]
    for line in rest:
        click.echo(" " * 17 + line)
    for line in details:
        click.echo(" " * 19 + click.style(line, dim=True))
