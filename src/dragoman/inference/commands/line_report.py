"""Warnings about translated lines: those that are incomplete, and those that may surprise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman.console.options import format_line_numbers
from dragoman.inference.faulty_lines import loses_sign
from dragoman.languages import UNSPACED

if TYPE_CHECKING:
    from dragoman.config import DecodingConfig
    from dragoman.inference.translation_result import Translation

SIMILAR = "similar"
WARNINGS = {
    "too_long": "left untranslated: they have more than {max_source_tokens} tokens (decoding.long_input=split cuts them)",
    "truncated": "cut, because their translation did not end within the input's length + {max_extra_tokens} tokens",
    "short": "far shorter than the input: a part of it may be missing (decoding.min_length_ratio)",
    "repetition": "stopped, because their translation is a degenerate repetition",
    "empty": "that hold text came out empty (decoding.min_length=1 asks for at least one token)",
    "copied": "came out as they went in",
    "unmet_constraints": "do not meet all their constraints",
    "terminology": "do not use all their terms of the glossary",
    "signs": "lost a sign, such as that of a currency, which --split-sentences keeps",
    SIMILAR: "came out nearly as they went in, and may be in the target language already",
    "segments": "were longer than {max_source_tokens} tokens and translated in segments",
}
# A copy of the source, a translation in segments and one without a sign can be correct. The other lines are incomplete.
INFORMATIONAL_WARNINGS = {"copied", "segments", "signs", SIMILAR}

MIN_WORDS = 3
"""Fewest different words of a line that may be in the target language already."""
MIN_COMMON_WORDS = 0.5
"""Smallest share of its words and those of its translation that both have. Of 366 English lines, 6 have as many: those of codes
and addresses. Of 258 German lines that an English-German model changed, 164 have as many."""
MIN_SIMILAR_LINES = 0.1
"""Smallest share of such lines that is worth a message."""
_WORD = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+")


MAX_LINE_NUMBERS = 5


@dataclass
class LineWarnings:
    """Warnings in the order of their first lines.

    counts: number of lines with each warning
    first_lines: first line numbers of each warning, at most `MAX_LINE_NUMBERS`
    """

    line_count: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, line: str, result: Translation, *, lacks_term: bool = False) -> None:
        """Record the next line. A line without text has no warning. lacks_term: a term of a glossary is not used"""
        self.line_count += 1
        similar = [SIMILAR] if result.status != "copied" and _are_similar(line, result.text) else []
        for warning in [*_find_warnings(line, result), *(["terminology"] if lacks_term else []), *similar]:
            self._add_lines(warning, 1, [self.line_count])

    def merge(self, later: LineWarnings) -> None:
        """Add the warnings of the lines that follow."""
        self.line_count = later.line_count
        for warning, count in later.counts.items():
            self._add_lines(warning, count, later.first_lines[warning])

    def _add_lines(self, warning: str, count: int, first_lines: list[int]) -> None:
        self.counts[warning] = self.counts.get(warning, 0) + count
        self.first_lines[warning] = (self.first_lines.get(warning, []) + first_lines)[:MAX_LINE_NUMBERS]

    @property
    def has_errors(self) -> bool:
        """Return whether a line is incomplete."""
        return bool(self.counts.keys() - INFORMATIONAL_WARNINGS)

    def format_messages(
        self, max_positions: int | None, config: DecodingConfig, *, name_similar: bool = False
    ) -> Iterator[str]:
        """Yield one message for each warning, with the limits of the model's positions and of the search.

        name_similar: also name lines that are nearly their translations, if they are more than a tenth of all lines
        """
        from dragoman.tasks.translation import get_source_limit

        max_source_tokens = get_source_limit(max_positions, config)
        for warning, count in self.counts.items():
            if warning == SIMILAR and not (name_similar and count > MIN_SIMILAR_LINES * self.line_count):
                continue
            text = WARNINGS[warning].format(max_source_tokens=max_source_tokens, max_extra_tokens=config.max_extra_tokens)
            yield f"lines {text}: {format_line_numbers(self.first_lines[warning], count)}"


def _are_similar(line: str, translation: str) -> bool:
    """Return whether a line and its translation have many words in common, but for names and others with capitals."""
    words, translated_words = ({word for word in _WORD.findall(text) if word == word.lower()} for text in (line, translation))
    num_all = len(words | translated_words)
    return len(words) >= MIN_WORDS and len(words & translated_words) >= MIN_COMMON_WORDS * num_all


def _find_warnings(line: str, result: Translation) -> Iterator[str]:
    if loses_sign(line, result.text):
        yield "signs"
    if result.num_segments > 1:
        yield "segments"
    if result.unmet_constraints:
        yield "unmet_constraints"
    if result.status in WARNINGS and (result.status != "empty" or line.strip()):
        yield result.status
