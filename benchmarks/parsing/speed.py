"""Sentences per second of constrained and free search, alternating; the ratio compares tokens per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.benchmark import print_progress
from common.results import Ratio, Section, Table

from dragoman.parsing.parser import Parser

BEAMS = (1, 21)
TARGET_RATIO = round(1 / 1.15, 2)
"""The automaton may cost at most 15 %."""
EXTRA_TOKENS = 45
"""Tokens of a random model's trees beyond the input's; a tree of CRAFT has 2.7 times as many tokens as words."""


@dataclass
class SearchMode:
    """Search mode and the seconds of each turn."""

    name: str
    constrained: bool
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    malformed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.median


def measure_speed(
    parser: Parser,
    sentences: Sequence[Sequence[str]],
    *,
    trained: bool,
    rounds: int,
    part: int,
) -> Section:
    """Measure both modes; at the widest beam, `part` times fewer sentences are parsed than greedily."""
    title = f"{len(sentences)} sentences (1/{part} of them at beam {BEAMS[-1]}), medians of {rounds} turns"
    section = Section(tables=[Table(title, ["beam", "search", "sentences/s", "tokens/s", "tokens", "malformed"])])
    for beam in BEAMS:
        subset = sentences if beam == BEAMS[0] else sentences[::part]
        constrained, free = modes = [SearchMode("constrained", True), SearchMode("free", False)]
        for turn in range(-1, rounds):  # turn −1 is a warm-up
            for mode in modes if turn % 2 else reversed(modes):
                print_progress(f"beam {beam}, {mode.name}, turn {turn + 1} of {rounds}")
                _take_turn(parser, subset, mode, beam, trained=trained, counted=turn >= 0)
        for mode in modes:
            rate, tokens = len(subset) / mode.median, mode.tokens / len(subset)
            share = f"{mode.malformed / len(subset):.1%}" if trained else ""
            section.tables[0].rows.append(
                [str(beam), mode.name, f"{rate:.1f}", f"{mode.tokens_per_second:,.0f}", f"{tokens:.1f}", share]
            )
        section.ratios.append(
            Ratio(f"beam{beam}_constrained_over_free", constrained.tokens_per_second / free.tokens_per_second, TARGET_RATIO)
        )
        section.figures[f"beam{beam}"] = {mode.name: vars(mode) for mode in modes}
    section.notes.append(
        f"{parser.precision} on {parser.device}; ratios compare tokens per second, because trees differ in length"
        + ("" if trained else ". With random weights, all outputs reach the length limit")
    )
    return section


def _take_turn(
    parser: Parser, sentences: Sequence[Sequence[str]], mode: SearchMode, beam: int, *, trained: bool, counted: bool
) -> None:
    decoding: dict[str, Any] = {"method": "beam", "beam_size": beam, "nbest": 1}
    if not trained:  # random weights hardly end an output, so both modes decode as many tokens
        decoding["max_extra_tokens"] = EXTRA_TOKENS
    begun = time.perf_counter()
    parses = parser.parse(sentences, constrained=mode.constrained, **decoding)
    if counted:
        mode.seconds.append(time.perf_counter() - begun)
    mode.tokens = sum(len(parse.token_log_probs) for parse in parses)
    mode.malformed = sum(parse.status in ("repaired", "truncated") for parse in parses)
