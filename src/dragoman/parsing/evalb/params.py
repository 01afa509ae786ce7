"""EVALB parameter files: the labels and words that count, and those that count as equal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.text import read_lines


@dataclass(frozen=True, slots=True)
class EvalbParams:
    """Contents of a parameter file.

    deleted_labels: tags whose words do not count, and labels whose brackets do not count
    length_deleted_labels: tags whose words do not count towards the length of a sentence
    quote_labels: interchangeable tags of quotation marks and apostrophes
    equal_labels, equal_words: pairs that count as equal, each in both orders
    cutoff_length: maximum length of the sentences in the second summary
    labeled: whether matching brackets must have equal labels
    """

    deleted_labels: frozenset[str] = frozenset()
    length_deleted_labels: frozenset[str] = frozenset()
    quote_labels: frozenset[str] = frozenset()
    equal_labels: frozenset[tuple[str, str]] = frozenset()
    equal_words: frozenset[tuple[str, str]] = frozenset()
    cutoff_length: int = 40
    labeled: bool = True


def symmetric_pairs(pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for a, b in pairs for pair in ((a, b), (b, a)))


COLLINS = EvalbParams(
    deleted_labels=frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."}),
    length_deleted_labels=frozenset({"-NONE-"}),
    equal_labels=symmetric_pairs([("ADVP", "PRT")]),
)
"""Parameters of COLLINS.prm, with which results on the Penn Treebank are published."""

_LABEL_KEYWORDS = ("DELETE_LABEL", "DELETE_LABEL_FOR_LENGTH", "QUOTE_LABEL")
_PAIR_KEYWORDS = ("EQ_LABEL", "EQ_WORD")
_NUMBER_KEYWORDS = ("CUTOFF_LEN", "LABELED", "DISC_ONLY", "MAX_ERROR", "DEBUG")
KEYWORDS = (*_LABEL_KEYWORDS, *_PAIR_KEYWORDS, *_NUMBER_KEYWORDS)


def read_params(path: Path) -> EvalbParams:
    """Read a parameter file. MAX_ERROR and DEBUG have no effect, because errors do not end the scoring.

    Raises DataError with file and line for an unknown keyword or an invalid value.
    """
    lists: dict[str, list[str]] = {keyword: [] for keyword in _LABEL_KEYWORDS}
    pairs: dict[str, list[tuple[str, str]]] = {keyword: [] for keyword in _PAIR_KEYWORDS}
    cutoff, labeled = 40, True
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("#") or not line.strip():
            continue
        keyword, *values = line.split()
        location = f"{path}, line {number}"
        if keyword not in KEYWORDS:
            raise DataError(
                f"{location}: {keyword[:40]!r} is not a parameter of EVALB; use one of {', '.join(KEYWORDS)}",
                code="invalid-format",
            )
        num_values = 2 if keyword in _PAIR_KEYWORDS else 1
        if len(values) != num_values:
            raise DataError(
                f"{location}: {keyword} takes {num_values} {'values' if num_values > 1 else 'value'}, not {len(values)}",
                code="invalid-format",
            )
        if keyword in _LABEL_KEYWORDS:
            lists[keyword].append(values[0])
        elif keyword in _PAIR_KEYWORDS:
            pairs[keyword].append((values[0], values[1]))
        else:
            value = _parse_number(values[0], keyword, location)
            cutoff = value if keyword == "CUTOFF_LEN" else cutoff
            labeled = bool(value) if keyword == "LABELED" else labeled
    return EvalbParams(
        deleted_labels=frozenset(lists["DELETE_LABEL"]),
        length_deleted_labels=frozenset(lists["DELETE_LABEL_FOR_LENGTH"]),
        quote_labels=frozenset(lists["QUOTE_LABEL"]),
        equal_labels=symmetric_pairs(pairs["EQ_LABEL"]),
        equal_words=symmetric_pairs(pairs["EQ_WORD"]),
        cutoff_length=cutoff,
        labeled=labeled,
    )


def _parse_number(value: str, keyword: str, location: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise DataError(f"{location}: {keyword} takes a whole number, not {value[:40]!r}", code="invalid-format")
    if keyword in ("LABELED", "DISC_ONLY") and value not in ("0", "1"):
        raise DataError(f"{location}: {keyword} takes 0 or 1, not {value[:40]!r}", code="invalid-format")
    if keyword == "DISC_ONLY" and value == "1":
        raise DataError(
            f"{location}: DISC_ONLY 1 counts discontinuous brackets only, but bracketed trees have none; set it to 0",
            code="invalid-format",
        )
    return int(value[:9])
