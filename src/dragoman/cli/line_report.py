"""What people are told of lines that were translated: which are not what was wanted, or not in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dragoman.cli.options import named

if TYPE_CHECKING:
    from dragoman.inference.translation import Translation

SENTENCES = {
    "refused": "left untranslated, since they have more than {longest} tokens (decoding.long_input=split cuts them)",
    "truncated": "cut, since their translation did not end within the input's length + {extra} tokens",
    "looped": "stopped, since their translation went round in circles",
    "empty": "that hold text came out empty (decoding.min_length=1 asks for a token at least)",
    "copied": "came out as they went in",
    "missing": "do not hold all that their wording was to include",
    "parts": "were longer than {longest} tokens and translated in parts",
}
# A translation that is the source, or that was put together from parts, may be what was wanted; the others are not.
HARMLESS = {"copied", "parts"}


class Remarks:
    """The numbers of the lines of which one of `SENTENCES` is true, in the order that they came in."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.lines = 0

    def add(self, line: str, result: Translation) -> None:
        """What became of the next line; of one without text there is nothing to say."""
        self.lines += 1
        for remark in _of(line, result):
            self.numbers.setdefault(remark, []).append(self.lines)

    @property
    def grave(self) -> bool:
        """Whether a line is not what was wanted."""
        return bool(self.numbers.keys() - HARMLESS)

    def sentences(self, longest: int, extra: int) -> Iterator[str]:
        """A line for each, by the most tokens that are read, and those that a translation may have beyond its source."""
        for remark, numbers in self.numbers.items():
            yield f"lines {SENTENCES[remark].format(longest=longest, extra=extra)}: {named(numbers)}"


def _of(line: str, result: Translation) -> Iterator[str]:
    if result.parts > 1:
        yield "parts"
    if result.missing:
        yield "missing"
    if result.status in SENTENCES and (result.status != "empty" or line.strip()):
        yield result.status
