"""What people are told of lines that were translated: which are not what was wanted, or not in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dragoman.cli.options import format_line_numbers

if TYPE_CHECKING:
    from dragoman.inference.translation import Translation

WARNINGS = {
    "refused": "left untranslated, since they have more than {longest} tokens (decoding.long_input=split cuts them)",
    "truncated": "cut, since their translation did not end within the input's length + {extra} tokens",
    "looped": "stopped, since their translation went round in circles",
    "empty": "that hold text came out empty (decoding.min_length=1 asks for a token at least)",
    "copied": "came out as they went in",
    "missing": "do not hold all that their wording was to include",
    "parts": "were longer than {longest} tokens and translated in parts",
}
# A translation that is the source, or that was put together from parts, may be what was wanted; the others are not.
INFORMATIONAL_WARNINGS = {"copied", "parts"}


class LineWarnings:
    """The numbers of the lines of which one of `SENTENCES` is true, in the order that they came in."""

    def __init__(self) -> None:
        self.line_numbers: dict[str, list[int]] = {}
        self.line_count = 0

    def add(self, line: str, result: Translation) -> None:
        """What became of the next line; of one without text there is nothing to say."""
        self.line_count += 1
        for warning in _find_warnings(line, result):
            self.line_numbers.setdefault(warning, []).append(self.line_count)

    @property
    def has_errors(self) -> bool:
        """Whether a line is not what was wanted."""
        return bool(self.line_numbers.keys() - INFORMATIONAL_WARNINGS)

    def format_messages(self, max_source_tokens: int, max_extra_tokens: int) -> Iterator[str]:
        """A line for each, by the most tokens that are read, and those that a translation may have beyond its source."""
        for warning, line_numbers in self.line_numbers.items():
            yield f"lines {WARNINGS[warning].format(longest=max_source_tokens, extra=max_extra_tokens)}: {format_line_numbers(line_numbers)}"


def _find_warnings(line: str, result: Translation) -> Iterator[str]:
    if result.num_segments > 1:
        yield "parts"
    if result.unmet_constraints:
        yield "missing"
    if result.status in WARNINGS and (result.status != "empty" or line.strip()):
        yield result.status
