"""Claims of the paper's text, each with the command that tests it, the effect, and a verdict.

The claims with published results are in `claims.toml`. Those that take seconds are measured anew by `run_claims`.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from dragoman.viz.svg import box_path, render_label, render_svg

WIDTH, MARGIN, LINE, GAP, SIZE = 860, 16, 18, 8, 13
SECTION_X, VERDICT_X, TEXT_X, VERDICT_WIDTH = 16, 70, 170, 88
CHARACTERS = 92
"""Characters of a line, at some 0.55 em each."""
_LIGHT = {
    ".holds": "fill:#1a7f37",
    ".reversed": "fill:#cf222e",
    ".undecided": "fill:#9a6700",
    ".not-run": "fill:#6e7781",
    ".verdict": "fill:#ffffff;font-weight:600",
}

Verdict = Literal["holds", "reversed", "undecided", "not run"]


class ClaimResult(NamedTuple):
    """Effect that was measured, in words, and whether the claim holds for it."""

    effect: str
    holds: bool


@dataclass(frozen=True)
class Claim:
    """Claim of a section of the paper, in our words.

    scale, command: what was run, with how many seeds, and how
    effect: measured effect, with its interval where there is one
    why: reason of a verdict other than `holds`
    measure: name of the function of `claim_measures` that measures it in seconds
    """

    section: str
    text: str
    verdict: Verdict
    scale: str = ""
    command: str = ""
    effect: str = ""
    why: str = ""
    measure: str = ""


def load_claims() -> list[Claim]:
    """Return the claims with their published results, by section."""
    document = tomllib.loads(files("dragoman.paper").joinpath("claims.toml").read_text(encoding="utf-8"))
    return [Claim(**claim) for claim in document["claim"]]


def run_claims(claims: Iterable[Claim], measures: Mapping[str, Callable[[], ClaimResult]]) -> Iterator[Claim]:
    """Yield each claim that has a measure, with the effect and the verdict of this machine."""
    for claim in claims:
        if claim.measure:
            effect, holds = measures[claim.measure]()
            yield replace(claim, effect=effect, verdict="holds" if holds else "reversed", why="")


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Return the number of claims with each verdict, in words."""
    return ", ".join(f"{verdict} {sum(claim.verdict == verdict for claim in claims)}" for verdict in get_args(Verdict))


def draw_claims(claims: Sequence[Claim]) -> str:
    """Draw the claims as an SVG: a row for each, with its section, its verdict in color, and its text."""
    title = f"Claims of the paper: {count_verdicts(claims)}"
    body = [render_label(title, MARGIN, 30, 16)]
    y = 48.0
    for claim in claims:
        lines = textwrap.wrap(claim.text, CHARACTERS)
        path = box_path(VERDICT_X, y, VERDICT_WIDTH, LINE + 2)
        body.append(f'<path class="{claim.verdict.replace(" ", "-")}" d="{path}"/>')
        body.append(
            render_label(claim.verdict, VERDICT_X + VERDICT_WIDTH / 2, y + 14, 12, css_class="verdict", anchor="middle")
        )
        body.append(render_label(claim.section, SECTION_X, y + 14, SIZE, css_class="muted"))
        body += [render_label(line, TEXT_X, y + 14 + LINE * index, SIZE) for index, line in enumerate(lines)]
        y += LINE * len(lines) + GAP
    description = "; ".join(f"{claim.section}, {claim.verdict}: {claim.text}" for claim in claims)
    return render_svg(
        "claims",
        width=WIDTH,
        height=y + MARGIN - GAP,
        title=title,
        description=description,
        body="\n".join(body),
        light=_LIGHT,
        dark=_LIGHT,
    )


def main() -> None:
    """Print the page of the claims as Markdown."""
    claims = load_claims()
    print("# The paper's claims\n")
    print(f"{len(claims)} claims of sections 3 to 7: {count_verdicts(claims)}.\n")
    print("![Each claim with its verdict](../assets/claims.svg)\n")
    print("| section | claim | verdict | effect | scale, command |\n| --- | --- | --- | --- | --- |")
    for claim in claims:
        effect = " ".join(filter(None, (claim.effect.rstrip(".") + ("." if claim.effect and claim.why else ""), claim.why)))
        how = "; ".join(filter(None, (claim.scale, f"`{claim.command}`" if claim.command else "")))
        print(f"| {claim.section} | {claim.text} | **{claim.verdict}** | {effect} | {how} |".replace("  ", " "))


if __name__ == "__main__":
    main()
