"""Word alignments in Pharaoh format: `i-j i-j …` on each line, source before target, counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.text import quote_names, read_lines
from dragoman.word_aligner import Link

_LINK = re.compile("([0-9]{1,6})-([0-9]{1,6})")


def format_pharaoh(links: Sequence[Link]) -> str:
    """Return the links of one pair as a line."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def read_pharaoh(path: Path) -> Iterator[list[Link]]:
    """Yield the links of each line. Raises DataError, which names file and line, for an invalid link."""
    for number, line in enumerate(read_lines(path), start=1):
        links = []
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None:
                raise DataError(
                    f"{path}, line {number}: {quote_names([word])} is not a link; write i-j, counted from 0, such as 0-1",
                    code="invalid-alignment",
                )
            links.append((int(match[1]), int(match[2])))
        yield links


def check_links(links: Sequence[Link], num_source_words: int, num_target_words: int, *, location: str) -> None:
    """Raise DataError if a link is beyond the words of its pair. `location` names the pair in the message."""
    for source_index, target_index in links:
        if source_index >= num_source_words or target_index >= num_target_words:
            raise DataError(
                f"{location}: {source_index}-{target_index} links a word that is not there: the source has {num_source_words} "
                f"words, the target {num_target_words}, counted from 0",
                code="invalid-alignment",
            )
