"""Links between words as Pharaoh's successors write them: `i-j i-j …` on a line, source before target, counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.text import quote_names, read_lines
from dragoman.word_aligner import Link

_LINK = re.compile("([0-9]{1,6})-([0-9]{1,6})")


def format_pharaoh(links: Sequence[Link]) -> str:
    """One pair's links as a line."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def read_pharaoh(path: Path) -> Iterator[list[Link]]:
    """The links of each line. Raises DataError naming file and line for what is no link."""
    for number, line in enumerate(read_lines(path), start=1):
        links = []
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None:
                raise DataError(
                    f"{path}, line {number}: {quote_names([word])} is no link; write i-j, counted from 0, such as 0-1"
                )
            links.append((int(match[1]), int(match[2])))
        yield links


def check_links(links: Sequence[Link], num_source_words: int, num_target_words: int, *, location: str) -> None:
    """Raise DataError for a link beyond the words of a pair that has so many on each side."""
    for source_index, target_index in links:
        if source_index >= num_source_words or target_index >= num_target_words:
            raise DataError(
                f"{location}: {source_index}-{target_index} links a word that is not there: the source has {num_source_words} words, the target {num_target_words}, "
                "counted from 0"
            )
