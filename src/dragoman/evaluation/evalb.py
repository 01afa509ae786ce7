"""Bracketing scores of parse trees, sentence by sentence those of the C program EVALB (Sekine and Collins 1997).

That program drops a sentence that it cannot score from every sum: one whose words, without the deleted ones, differ from the
gold tree's, and one without words. A parser is the better for failing. So sums come in two ways here: with such failures
counted as zero, and as EVALB has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from dragoman.errors import DataError
from dragoman.evaluation.evalb_params import COLLINS, Rules
from dragoman.formats.text import read_lines
from dragoman.trees import ptb as penn
from dragoman.trees.simplify import with_tags_of
from dragoman.trees.tree import Span, Tree, events

Status = Literal[0, 1, 2]
"""EVALB's: 0 scored; 1 error, the words differ; 2 skipped, no words."""
Failures = Literal["zero", "dropped"]

_QUOTES = ("'", '"', "/")


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """What became of one pair of trees.

    line: of both files, from 1
    length: the gold tree's, by the rules for length
    matched, gold, test: brackets in both, in the gold tree, in the other
    crossing: brackets of the other tree that cross one of the gold tree's
    words, tags: words that count in the gold tree, and those with the right tag
    reason: why there is no score; empty where there is one. Then matched, crossing and tags are 0.
    """

    line: int
    length: int
    status: Status
    matched: int
    gold: int
    test: int
    crossing: int
    words: int
    tags: int
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether it has no score although there was something to find."""
        return self.status != 0 and (self.words > 0 or self.status == 1)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over sentences, shares in percent. In `failures="dropped"` they are EVALB's own."""

    sentences: int
    errors: int
    skipped: int
    scored: int
    matched: int
    gold: int
    test: int
    crossing: int
    words: int
    tags: int
    recall: float
    precision: float
    f1: float
    complete: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging: float


def share(part: float, whole: float) -> float:
    """In percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


def total(scores: Iterable[SentenceScore], failures: Failures = "zero", *, longest: int | None = None) -> Totals:
    """Sum up the sentences, those up to a length if one is given.

    With `failures="zero"`, a failed sentence has its brackets in both denominators, its words in that of tags, no match and no
    claim to be without crossing; the average of crossing brackets is over what was scored in any case.
    """
    told = [one for one in scores if longest is None or one.length <= longest]
    scored = [one for one in told if one.status == 0]
    counted = [one for one in told if one.status == 0 or (failures == "zero" and one.failed)]
    matched, gold, test = (sum(getattr(one, name) for one in counted) for name in ("matched", "gold", "test"))
    words, tags, crossing = (sum(getattr(one, name) for one in counted) for name in ("words", "tags", "crossing"))
    recall, precision = share(matched, gold), share(matched, test)
    return Totals(
        sentences=len(told),
        errors=sum(one.status == 1 for one in told),
        skipped=sum(one.status == 2 for one in told),
        scored=len(scored),
        matched=matched,
        gold=gold,
        test=test,
        crossing=crossing,
        words=words,
        tags=tags,
        recall=recall,
        precision=precision,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete=share(sum(one.matched == one.gold == one.test for one in scored), len(counted)),
        average_crossing=crossing / len(scored) if scored else 0.0,
        no_crossing=share(sum(one.crossing == 0 for one in scored), len(counted)),
        two_or_less_crossing=share(sum(one.crossing <= 2 for one in scored), len(counted)),
        tagging=share(tags, words),
    )


class Scorer:
    """Scores pairs of trees by the rules of a parameter file."""

    def __init__(self, rules: Rules = COLLINS) -> None:
        self.rules = rules
        self._cut = _Cut(rules)

    def score(self, gold: Sequence[Tree], test: Sequence[Tree], *, line: int = 1) -> SentenceScore:
        """Score the trees of one line, mostly one, against the gold ones. Raises DataError for a gold word without a tag."""
        gold_side = self._side(gold)
        try:
            test_side = self._side(test)
        except DataError as error:
            return self._failure(gold_side, _Side(), 1, str(error), line)
        if not test_side.words:
            return self._failure(gold_side, test_side, 2, "no words that count" if test else "no tree", line)
        if len(gold_side.words) != len(test_side.words):
            _align_quotes(gold_side, test_side, self.rules.deleted)
        if reason := self._difference(gold_side, test_side):
            return self._failure(self._side(gold), self._side(test), 1, reason, line)  # with no quote taken back
        in_gold, in_test = self._counted(gold_side), self._counted(test_side)
        return SentenceScore(
            line,
            gold_side.length,
            0,
            matched=self._matched(in_gold, in_test),
            gold=len(in_gold),
            test=len(in_test),
            crossing=_crossing(in_gold, in_test),
            words=len(gold_side.words),
            tags=sum(map(self._same_label, gold_side.tags, test_side.tags)),
        )

    def failure(self, gold: Sequence[Tree], reason: str, *, line: int = 1) -> SentenceScore:
        """Of a line that holds no trees that can be read."""
        return self._failure(self._side(gold), _Side(), 1, reason, line)

    def _failure(self, gold: _Side, test: _Side, status: Status, reason: str, line: int) -> SentenceScore:
        in_gold, in_test = len(self._counted(gold)), len(self._counted(test))
        return SentenceScore(line, gold.length, status, 0, in_gold, in_test, 0, len(gold.words), 0, reason)

    def _side(self, trees: Sequence[Tree]) -> _Side:
        """The words and brackets of trees that share a line, without the words that are deleted."""
        side, rules = _Side(), self.rules
        path: list[int] = []
        for tree in trees:
            for kind, label, word in events(tree):
                if kind == "open":
                    path.append(len(side.spans))
                    side.spans.append(Span(label or "", len(side.words), -1))
                elif kind == "close":
                    index = path.pop()
                    side.spans[index] = Span(label or "", side.spans[index].start, len(side.words))
                else:
                    if label is None:
                        raise DataError(f"the word {word[:40]!r} stands in its bracket without a tag")
                    side.length += label not in rules.not_in_length
                    if label in rules.quotes and word in _QUOTES:
                        side.quotes.append(_Quote(word, label, len(side.words), len(side.spans), tuple(path)))
                    if label not in rules.deleted:
                        side.words.append(word)
                        side.tags.append(label)
        return side

    def _counted(self, side: _Side) -> list[Span]:
        """The brackets that count: neither empty nor deleted, their labels without function tags."""
        return [
            Span(label, *place) for name, *place in side.spans if place[0] < place[1] and (label := self._cut[name]) is not None
        ]

    def _difference(self, gold: _Side, test: _Side) -> str:
        """How the words differ; empty where they do not."""
        if gold.words == test.words:
            return ""
        if len(gold.words) != len(test.words):
            return f"{len(test.words)} words count, but {len(gold.words)} in the gold tree"
        for place, (wanted, word) in enumerate(zip(gold.words, test.words, strict=True), start=1):
            if wanted != word and (wanted, word) not in self.rules.same_words:
                return f"word {place} of those that count is {word[:40]!r}, but {wanted[:40]!r} in the gold tree"
        return ""

    def _same_label(self, one: str, other: str) -> bool:
        return one == other or (one, other) in self.rules.same_labels

    def _matched(self, gold: Sequence[Span], test: Sequence[Span]) -> int:
        """Each bracket of the gold tree takes the first that matches of those that are left."""
        left: dict[tuple[int, int], list[str]] = {}
        for label, start, end in test:
            left.setdefault((start, end), []).append(label)
        matched = 0
        for label, start, end in gold:
            others = left.get((start, end), ())
            for place, other in enumerate(others):
                if not self.rules.labelled or self._same_label(label, other):
                    del left[start, end][place]
                    matched += 1
                    break
        return matched


class _Cut(dict[str, str | None]):
    """A bracket's label as it counts: up to the first - or =; None where it is deleted then, or counts as one that is."""

    def __init__(self, rules: Rules) -> None:
        self.deleted = rules.deleted.union(a for a, b in rules.same_labels if b in rules.deleted)

    def __missing__(self, label: str) -> str | None:
        cut = label.partition("-")[0].partition("=")[0]
        self[label] = None if cut in self.deleted else cut
        return self[label]


@dataclass(slots=True)
class _Quote:
    """A quotation mark or apostrophe: before which word that counts and which bracket it stands, and in which brackets."""

    word: str
    tag: str
    place: int
    bracket: int
    path: tuple[int, ...]


@dataclass(slots=True)
class _Side:
    """What a line's trees come to: words that count, their tags, all brackets over them, the length, and the quotes met."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    length: int = 0
    quotes: list[_Quote] = field(default_factory=list)

    def take_back(self, number: int) -> None:
        """Let a quote that was deleted count after all."""
        quote = self.quotes[number]
        self.words.insert(quote.place, quote.word)
        self.tags.insert(quote.place, quote.tag)
        for index, (label, start, end) in enumerate(self.spans):
            later = index >= quote.bracket
            self.spans[index] = Span(label, start + later, end + later + (index in quote.path))
        for other in self.quotes[number:]:
            other.place += 1


def _align_quotes(gold: _Side, test: _Side, deleted: frozenset[str]) -> None:
    """Where one side deletes a quote as punctuation and the other does not, let it count on both.

    In EVALB's order: a quote's place is looked up once, though taking one back may move it.
    """
    for number, quote in enumerate(test.quotes):
        place = quote.place
        for other_number, other in enumerate(gold.quotes):
            if other.place != place or other.tag == quote.tag:
                continue
            if other.tag in deleted and quote.tag not in deleted:
                gold.take_back(other_number)
            elif quote.tag in deleted and other.tag not in deleted:
                test.take_back(number)


def _crossing(gold: Sequence[Span], test: Sequence[Span]) -> int:
    """How many brackets of the test tree cross one of the gold tree; one with the place of a gold one never does."""
    places = {(start, end) for _, start, end in gold}
    others = [(start, end) for _, start, end in test if (start, end) not in places]
    return sum(any(a < start < b < end or start < a < end < b for a, b in places) for start, end in others)


def score_trees(gold: Sequence[Tree], test: Sequence[Tree | None], rules: Rules = COLLINS) -> list[SentenceScore]:
    """Score trees against gold ones, one a sentence; None where there is none. Raises DataError for unequal numbers."""
    if len(gold) != len(test):
        raise DataError(f"{len(gold)} gold trees, but {len(test)} to score")
    scorer = Scorer(rules)
    return [
        scorer.score([wanted], [] if tree is None else [tree], line=line)
        for line, (wanted, tree) in enumerate(zip(gold, test, strict=True), start=1)
    ]


def score_files(
    gold: Path,
    test: Path,
    rules: Rules = COLLINS,
    *,
    gold_tags: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> list[SentenceScore]:
    """Score a file of trees, a line a sentence, against one of gold trees. `gold_tags` gives each word the gold tree's tag.

    A line of `test` that cannot be read is a failure, with the reason. One of `gold` raises DataError, as do one without words
    and files of unequal length.
    """
    golds, tests = list(read_lines(gold)), list(read_lines(test))
    for lines, least in ((golds, 0), (tests, len(golds))):
        while len(lines) > least and not lines[-1].strip():
            lines.pop()  # empty lines at the end, but a sentence that failed may be the last
        if not lines:
            raise DataError(f"{gold if lines is golds else test}: is empty")
    scorer = Scorer(rules)
    scores: list[SentenceScore] = []
    for number, (wanted, line) in enumerate(zip_longest(golds, tests), start=1):
        if wanted is None or line is None:
            raise DataError(
                f"{gold} has {len(golds)} lines but {test} has {len(tests)}: a line of one stands for that of the other"
            )
        trees = [placed.tree for placed in penn.read([wanted], str(gold), first=number)]
        if not any(step.kind == "leaf" for tree in trees for step in events(tree)):
            raise DataError(
                f"{gold}, line {number}: {'a tree without words' if trees else 'no tree'}; take it out of both files"
            )
        scores.append(_score_line(scorer, trees, line, str(test), number, gold_tags=gold_tags, gold_name=str(gold)))
        advance(1)
    return scores


def _score_line(
    scorer: Scorer, gold: Sequence[Tree], line: str, name: str, number: int, *, gold_tags: bool, gold_name: str
) -> SentenceScore:
    try:
        test = [placed.tree for placed in penn.read([line], name, first=number)]
    except DataError as error:
        return scorer.failure(gold, str(error).removeprefix(f"{name}, line {number}: "), line=number)
    if gold_tags:
        test = with_tags_of(gold, test)
    try:
        return scorer.score(gold, test, line=number)
    except DataError as error:
        raise DataError(f"{gold_name}, line {number}: {error}") from None
