"""Claims of the paper's text, each with the command that tests it, the effect, and a verdict.

The claims with published results are in `claims.toml`. Those that take seconds are measured anew by `run_claims`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

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
