"""Links between words as Pharaoh's successors write them: `i-j i-j …` on a line, source before target, counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.text import read_lines, shown
from dragoman.word_aligner import Link

_LINK = re.compile("([0-9]{1,6})-([0-9]{1,6})")


def pharaoh(links: Sequence[Link]) -> str:
    """One pair's links as a line."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def read_pharaoh(path: Path) -> Iterator[list[Link]]:
    """The links of each line. Raises DataError naming file and line for what is no link."""
    for number, line in enumerate(read_lines(path), start=1):
        links = []
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None:
                raise DataError(f"{path}, line {number}: {shown([word])} is no link; write i-j, counted from 0, such as 0-1")
            links.append((int(match[1]), int(match[2])))
        yield links


def refuse_outside(links: Sequence[Link], source: int, target: int, *, where: str) -> None:
    """Raise DataError for a link beyond the words of a pair that has so many on each side."""
    for one, other in links:
        if one >= source or other >= target:
            raise DataError(
                f"{where}: {one}-{other} links a word that is not there: the source has {source} words, the target {target}, "
                "counted from 0"
            )
