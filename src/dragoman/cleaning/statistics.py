"""What became of the pairs of a corpus: how many were read and kept, what each rule dropped, and examples of it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from typing import Any, Self

from dragoman.cleaning.rules import DUPLICATES, Rule
from dragoman.errors import DataError
from dragoman.formats.pair import Pair

EXAMPLES = 10
EXAMPLE_CHARACTERS = 300


@dataclass
class Dropped:
    """How many pairs a rule dropped, and ten of them: those whose origins have the smallest digests, as good as drawn by lot.

    Texts of examples end after 300 characters, with an ellipsis.
    """

    sentence: str = ""
    count: int = 0
    examples: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        self.count += 1
        self._draw(Pair(_clipped(pair.source), _clipped(pair.target), _clipped(pair.origin)))

    def merged(self, other: Dropped) -> Dropped:
        merged = Dropped(self.sentence or other.sentence, self.count + other.count, list(self.examples))
        for pair in other.examples:
            merged._draw(pair)
        return merged

    def _draw(self, pair: Pair) -> None:
        if len(self.examples) < EXAMPLES or _lot(pair) < _lot(self.examples[-1]):
            insort(self.examples, pair, key=_lot)
            del self.examples[EXAMPLES:]


def _clipped(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARACTERS else text[: EXAMPLE_CHARACTERS - 1] + "…"


def _lot(pair: Pair) -> tuple[bytes, str, str, str]:
    """Where the pair stands in the draw; two of one origin are told apart by their texts."""
    digest = blake2b(pair.origin.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest, pair.origin, pair.source, pair.target


@dataclass
class Tally:
    """Counts of pairs. The tallies of a corpus's chunks, merged in any order, are the tally of the corpus."""

    read: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)
    """By the rules' names, those among them that were applied and dropped nothing."""

    @property
    def kept(self) -> int:
        return self.read - sum(dropped.count for dropped in self.dropped.values())

    def drop(self, rule: str, pair: Pair) -> None:
        """Of the pairs read, one that was kept until now."""
        self.apply(rule).add(pair)

    def apply(self, rule: str) -> Dropped:
        """A rule that is applied later than the others, and may drop nothing."""
        return self.dropped.setdefault(rule, Dropped(DUPLICATES.get(rule, "")))

    def merged(self, other: Tally) -> Tally:
        """The tally of both."""
        rules = dict.fromkeys([*self.dropped, *other.dropped])
        nothing = Dropped()
        dropped = {rule: self.dropped.get(rule, nothing).merged(other.dropped.get(rule, nothing)) for rule in rules}
        return Tally(self.read + other.read, dropped)

    @classmethod
    def merged_all(cls, tallies: Iterable[Tally]) -> Tally:
        return reduce(Tally.merged, tallies, cls())

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: `examples` are lists of source, target and origin."""
        dropped = {
            rule: {
                "sentence": part.sentence,
                "count": part.count,
                "examples": [[pair.source, pair.target, pair.origin] for pair in part.examples],
            }
            for rule, part in sorted(self.dropped.items())
        }
        return {"read": self.read, "kept": self.kept, "dropped": dropped}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Raises DataError where the document is not a tally's."""
        try:
            dropped = {
                str(rule): Dropped(
                    str(part["sentence"]), int(part["count"]), [Pair(*map(str, example)) for example in part["examples"]]
                )
                for rule, part in document["dropped"].items()
            }
            tally = cls(int(document["read"]), dropped)
            whole = tally.kept == document["kept"] and all(len(part.examples) <= EXAMPLES for part in dropped.values())
        except (AttributeError, KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise DataError("not a tally of cleaned pairs as dragoman writes it: clean the corpus again")
        return tally


def sift(pairs: Sequence[Pair], rules: Sequence[Rule]) -> tuple[list[Pair], Tally]:
    """The pairs that no rule drops, and the tally of all; a pair counts under the first rule that drops it."""
    kept = list[Pair]()
    tally = Tally(len(pairs), {rule.name: Dropped(rule.sentence) for rule in rules})
    checks = [(rule.name, rule.drops) for rule in rules]
    for pair in pairs:
        for name, drops in checks:
            if drops(pair.source, pair.target):
                tally.drop(name, pair)
                break
        else:
            kept.append(pair)
    return kept, tally
