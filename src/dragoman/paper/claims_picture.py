"""Picture of the claims: a row for each, with its section, its verdict in color, and its text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dragoman.paper.claims import Claim, count_verdicts
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


def draw_claims(claims: Sequence[Claim]) -> str:
    """Draw the claims as an SVG."""
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
