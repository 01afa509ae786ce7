"""What became of the pairs of a corpus: how many were read and kept, what each rule dropped, and examples of it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from typing import Any, Self

from dragoman.cleaning.rules import DUPLICATE_RULES, Rule
from dragoman.errors import DataError
from dragoman.formats.pair import Pair

MAX_EXAMPLES = 10
MAX_EXAMPLE_CHARACTERS = 300


@dataclass
class RuleStats:
    """How many pairs a rule dropped, and ten of them: those whose origins have the smallest digests, as good as drawn by lot.

    Texts of examples end after 300 characters, with an ellipsis.
    """

    description: str = ""
    count: int = 0
    examples: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        self.count += 1
        self._add_example(Pair(_truncate(pair.source), _truncate(pair.target), _truncate(pair.origin)))

    def merge(self, other: RuleStats) -> RuleStats:
        combined = RuleStats(self.description or other.description, self.count + other.count, list(self.examples))
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
    """Where the pair stands in the draw; two of one origin are told apart by their texts."""
    digest = blake2b(pair.origin.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest, pair.origin, pair.source, pair.target


@dataclass
class CleaningStats:
    """Counts of pairs. The tallies of a corpus's chunks, merged in any order, are the tally of the corpus."""

    num_read: int = 0
    rule_stats: dict[str, RuleStats] = field(default_factory=dict)
    """By the rules' names, those among them that were applied and dropped nothing."""

    @property
    def num_kept(self) -> int:
        return self.num_read - sum(stats.count for stats in self.rule_stats.values())

    def count_drop(self, rule: str, pair: Pair) -> None:
        """Of the pairs read, one that was kept until now."""
        self.add_rule(rule).add(pair)

    def add_rule(self, rule: str) -> RuleStats:
        """A rule that is applied later than the others, and may drop nothing."""
        return self.rule_stats.setdefault(rule, RuleStats(DUPLICATE_RULES.get(rule, "")))

    def merge(self, other: CleaningStats) -> CleaningStats:
        """The tally of both."""
        rules = dict.fromkeys([*self.rule_stats, *other.rule_stats])
        empty = RuleStats()
        combined = {rule: self.rule_stats.get(rule, empty).merge(other.rule_stats.get(rule, empty)) for rule in rules}
        return CleaningStats(self.num_read + other.num_read, combined)

    @classmethod
    def merge_all(cls, parts: Iterable[CleaningStats]) -> CleaningStats:
        return reduce(CleaningStats.merge, parts, cls())

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: `examples` are lists of source, target and origin."""
        documents = {
            rule: {
                "sentence": stats.description,
                "count": stats.count,
                "examples": [[pair.source, pair.target, pair.origin] for pair in stats.examples],
            }
            for rule, stats in sorted(self.rule_stats.items())
        }
        return {"read": self.num_read, "kept": self.num_kept, "dropped": documents}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Raises DataError where the document is not a tally's."""
        try:
            loaded_stats = {
                str(rule): RuleStats(
                    str(fields["sentence"]), int(fields["count"]), [Pair(*map(str, example)) for example in fields["examples"]]
                )
                for rule, fields in document["dropped"].items()
            }
            result = cls(int(document["read"]), loaded_stats)
            is_valid = result.num_kept == document["kept"] and all(
                len(part.examples) <= MAX_EXAMPLES for part in loaded_stats.values()
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise DataError("not a tally of cleaned pairs as dragoman writes it: clean the corpus again")
        return result


def apply_filters(pairs: Sequence[Pair], rules: Sequence[Rule]) -> tuple[list[Pair], CleaningStats]:
    """The pairs that no rule drops, and the tally of all; a pair counts under the first rule that drops it."""
    kept_pairs = list[Pair]()
    stats = CleaningStats(len(pairs), {rule.name: RuleStats(rule.description) for rule in rules})
    checks = [(rule.name, rule.is_faulty) for rule in rules]
    for pair in pairs:
        for name, is_faulty in checks:
            if is_faulty(pair.source, pair.target):
                stats.count_drop(name, pair)
                break
        else:
            kept_pairs.append(pair)
    return kept_pairs, stats
