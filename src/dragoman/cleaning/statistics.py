"""Statistics of a cleaned corpus: pairs read and kept, and pairs that each filter dropped, with examples."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from typing import Any, Self

from dragoman.cleaning.enabled_filters import DUPLICATE_FILTERS, PairFilter
from dragoman.errors import DataError
from dragoman.formats.pair import Pair

MAX_EXAMPLES = 10
MAX_EXAMPLE_CHARACTERS = 300


@dataclass
class FilterStats:
    """Number of pairs that a filter dropped, and at most ten examples, cut after 300 characters.

    The examples are the pairs whose origins have the smallest digests. This is as good as a random draw, and it does not depend
    on the order in which chunks are merged.
    """

    description: str = ""
    num_dropped: int = 0
    examples: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        self.num_dropped += 1
        self._add_example(Pair(_truncate(pair.source), _truncate(pair.target), _truncate(pair.origin)))

    def merge(self, other: FilterStats) -> FilterStats:
        combined = FilterStats(self.description or other.description, self.num_dropped + other.num_dropped, list(self.examples))
        for pair in other.examples:
            combined._add_example(pair)
        return combined

    def _add_example(self, pair: Pair) -> None:
        if len(self.examples) < MAX_EXAMPLES or _example_sort_key(pair) < _example_sort_key(self.examples[-1]):
            insort(self.examples, pair, key=_example_sort_key)
            del self.examples[MAX_EXAMPLES:]


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_EXAMPLE_CHARACTERS else text[: MAX_EXAMPLE_CHARACTERS - 1] + "…"


def _example_sort_key(pair: Pair) -> tuple[bytes, str, str, str]:
    """Return the sort key of an example: the digest of its origin, then origin and texts."""
    digest = blake2b(pair.origin.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest, pair.origin, pair.source, pair.target


@dataclass
class CleaningStats:
    """Counts of pairs. The statistics of a corpus's chunks can be merged in any order.

    filter_stats: by filter name; filters that were applied and dropped nothing are included
    """

    num_read: int = 0
    filter_stats: dict[str, FilterStats] = field(default_factory=dict)

    @property
    def num_kept(self) -> int:
        """Return the number of pairs that no filter dropped."""
        return self.num_read - sum(stats.num_dropped for stats in self.filter_stats.values())

    def count_drop(self, filter_name: str, pair: Pair) -> None:
        """Count a pair that a filter drops. The pair must have been kept until now."""
        self.add_filter(filter_name).add(pair)

    def add_filter(self, filter_name: str) -> FilterStats:
        """Return the statistics of a filter, and add it if it is new."""
        return self.filter_stats.setdefault(filter_name, FilterStats(DUPLICATE_FILTERS.get(filter_name, "")))

    def merge(self, other: CleaningStats) -> CleaningStats:
        names = dict.fromkeys([*self.filter_stats, *other.filter_stats])
        empty = FilterStats()
        combined = {name: self.filter_stats.get(name, empty).merge(other.filter_stats.get(name, empty)) for name in names}
        return CleaningStats(self.num_read + other.num_read, combined)

    @classmethod
    def merge_all(cls, parts: Iterable[CleaningStats]) -> CleaningStats:
        return reduce(CleaningStats.merge, parts, cls())

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values. Each example is a list of source, target and origin."""
        documents = {
            name: {
                "description": stats.description,
                "num_dropped": stats.num_dropped,
                "examples": [[pair.source, pair.target, pair.origin] for pair in stats.examples],
            }
            for name, stats in sorted(self.filter_stats.items())
        }
        return {"num_read": self.num_read, "num_kept": self.num_kept, "filters": documents}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the statistics of a document that `to_dict` made. Raises DataError for any other document."""
        try:
            filter_stats = {
                str(name): FilterStats(
                    str(fields["description"]),
                    int(fields["num_dropped"]),
                    [Pair(*map(str, example)) for example in fields["examples"]],
                )
                for name, fields in document["filters"].items()
            }
            result = cls(int(document["num_read"]), filter_stats)
            is_valid = result.num_kept == document["num_kept"] and all(
                len(stats.examples) <= MAX_EXAMPLES for stats in filter_stats.values()
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise DataError("cleaning statistics: the document is invalid; clean the corpus again", code="invalid-format")
        return result


def apply_filters(pairs: Sequence[Pair], filters: Sequence[PairFilter]) -> tuple[list[Pair], CleaningStats]:
    """Return the pairs that no filter drops, and the statistics. A pair counts under the first filter that drops it."""
    kept_pairs = list[Pair]()
    stats = CleaningStats(len(pairs), {pair_filter.name: FilterStats(pair_filter.description) for pair_filter in filters})
    checks = [(pair_filter.name, pair_filter.is_faulty) for pair_filter in filters]
    for pair in pairs:
        for name, is_faulty in checks:
            if is_faulty(pair.source, pair.target):
                stats.count_drop(name, pair)
                break
        else:
            kept_pairs.append(pair)
    return kept_pairs, stats
