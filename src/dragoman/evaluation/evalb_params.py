"""EVALB's parameter files: which labels and words count, and which count as the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.text import read_lines


@dataclass(frozen=True, slots=True)
class Rules:
    """What a parameter file says.

    deleted: labels that do not count: as a tag with its word, as a bracket alone
    not_in_length: tags of words that do not count in a sentence's length
    quotes: tags that a quotation mark or an apostrophe may bear instead of another of them
    same_labels, same_words: pairs that count as the same, each in both orders
    cutoff: the length up to which sentences are summed up once more
    labelled: whether brackets must agree in their labels
    """

    deleted: frozenset[str] = frozenset()
    not_in_length: frozenset[str] = frozenset()
    quotes: frozenset[str] = frozenset()
    same_labels: frozenset[tuple[str, str]] = frozenset()
    same_words: frozenset[tuple[str, str]] = frozenset()
    cutoff: int = 40
    labelled: bool = True


def both_orders(pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """The pairs, and the pairs turned round."""
    return frozenset(one for a, b in pairs for one in ((a, b), (b, a)))


COLLINS = Rules(
    deleted=frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."}),
    not_in_length=frozenset({"-NONE-"}),
    same_labels=both_orders([("ADVP", "PRT")]),
)
"""What COLLINS.prm says, by which figures on the Penn treebank are published."""

_LISTS = ("DELETE_LABEL", "DELETE_LABEL_FOR_LENGTH", "QUOTE_LABEL")
_PAIRS = ("EQ_LABEL", "EQ_WORD")
_NUMBERS = ("CUTOFF_LEN", "LABELED", "DISC_ONLY", "MAX_ERROR", "DEBUG")
KEYWORDS = (*_LISTS, *_PAIRS, *_NUMBERS)


def read_rules(path: Path) -> Rules:
    """What a parameter file says. MAX_ERROR and DEBUG are read and change nothing: no error ends the scoring.

    Raises DataError naming file and line for a keyword that is unknown and a value that does not suit it.
    """
    lists: dict[str, list[str]] = {keyword: [] for keyword in _LISTS}
    pairs: dict[str, list[tuple[str, str]]] = {keyword: [] for keyword in _PAIRS}
    cutoff, labelled = 40, True
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("#") or not line.strip():
            continue
        keyword, *values = line.split()
        where = f"{path}, line {number}"
        if keyword not in KEYWORDS:
            raise DataError(f"{where}: {keyword[:40]!r} is no parameter of EVALB; known are {', '.join(KEYWORDS)}")
        wanted = 2 if keyword in _PAIRS else 1
        if len(values) != wanted:
            raise DataError(f"{where}: {keyword} takes {wanted} {'values' if wanted > 1 else 'value'}, not {len(values)}")
        if keyword in _LISTS:
            lists[keyword].append(values[0])
        elif keyword in _PAIRS:
            pairs[keyword].append((values[0], values[1]))
        else:
            value = _number(values[0], keyword, where)
            cutoff = value if keyword == "CUTOFF_LEN" else cutoff
            labelled = bool(value) if keyword == "LABELED" else labelled
    return Rules(
        deleted=frozenset(lists["DELETE_LABEL"]),
        not_in_length=frozenset(lists["DELETE_LABEL_FOR_LENGTH"]),
        quotes=frozenset(lists["QUOTE_LABEL"]),
        same_labels=both_orders(pairs["EQ_LABEL"]),
        same_words=both_orders(pairs["EQ_WORD"]),
        cutoff=cutoff,
        labelled=labelled,
    )


def _number(value: str, keyword: str, where: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise DataError(f"{where}: {keyword} takes a whole number, not {value[:40]!r}")
    if keyword in ("LABELED", "DISC_ONLY") and value not in ("0", "1"):
        raise DataError(f"{where}: {keyword} takes 0 or 1, not {value[:40]!r}")
    if keyword == "DISC_ONLY" and value == "1":
        raise DataError(
            f"{where}: DISC_ONLY 1 counts discontinuous brackets alone, and trees in brackets have none; set it to 0"
        )
    return int(value[:9])
