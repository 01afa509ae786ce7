"""Sentences a second, the search bound to trees and free, by turns; what the bond costs is read off the tokens a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.results import Ratio, Section, Table

from dragoman.inference.parser import Parser

BEAMS = (1, 21)
LEAST = round(1 / 1.15, 2)
"""The automaton may cost at most 15 %."""
ROOM = 45
"""Tokens of a random model's trees beyond the input's; a tree of CRAFT has 2.7 times as many tokens as words."""


@dataclass
class Way:
    """How it is searched, and what each turn came to."""

    name: str
    constrained: bool
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    malformed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_a_second(self) -> float:
        return self.tokens / self.median


def measure_speed(
    parser: Parser, sentences: Sequence[Sequence[str]], *, trained: bool, say: Callable[[str], None], rounds: int, part: int
) -> Section:
    """part: at the widest beam, so many times fewer sentences are parsed than greedily."""
    title = f"{len(sentences)} sentences (1/{part} of them at beam {BEAMS[-1]}), medians of {rounds} turns"
    section = Section(tables=[Table(title, ["beam", "search", "sentences/s", "tokens/s", "tokens", "malformed"])])
    for beam in BEAMS:
        some = sentences if beam == BEAMS[0] else sentences[::part]
        bound, free = ways = [Way("constrained", True), Way("free", False)]
        for turn in range(-1, rounds):  # the first is not counted
            for way in ways if turn % 2 else reversed(ways):
                say(f"beam {beam}, {way.name}, turn {turn + 1} of {rounds}")
                _take_turn(parser, some, way, beam, trained=trained, counted=turn >= 0)
        for way in ways:
            rate, tokens = len(some) / way.median, way.tokens / len(some)
            share = f"{way.malformed / len(some):.1%}" if trained else ""
            section.tables[0].rows.append(
                [str(beam), way.name, f"{rate:.1f}", f"{way.tokens_a_second:,.0f}", f"{tokens:.1f}", share]
            )
        section.ratios.append(Ratio(f"beam{beam}_constrained_over_free", bound.tokens_a_second / free.tokens_a_second, LEAST))
        section.figures[f"beam{beam}"] = {way.name: vars(way) for way in ways}
    section.remarks.append(
        f"{parser.precision} on {parser.device}; the ratios are of tokens a second, since trees differ in length"
        + ("" if trained else ". Random weights: all outputs go on to the limit, which is as long as trees are")
    )
    return section


def _take_turn(
    parser: Parser, sentences: Sequence[Sequence[str]], way: Way, beam: int, *, trained: bool, counted: bool
) -> None:
    decoding: dict[str, Any] = {"method": "beam", "beam_size": beam, "nbest": 1}
    if not trained:  # neither way is to end by chance before the other
        decoding |= {"max_extra_tokens": ROOM, "min_length": 0 if way.constrained else 100_000}
    begun = time.perf_counter()
    parses = parser.parse(sentences, constrained=way.constrained, **decoding)
    if counted:
        way.seconds.append(time.perf_counter() - begun)
    way.tokens = sum(len(one.token_log_probs) for one in parses)
    way.malformed = sum(one.status in ("mended", "truncated") for one in parses)
