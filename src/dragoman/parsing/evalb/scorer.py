"""Bracketing scores of parse trees, equal for each sentence to those of the C program EVALB (Sekine and Collins 1997).

EVALB drops a sentence that it cannot score from all sums: a sentence whose words differ from those of the gold tree, and one
without words. A parser with failures therefore scores higher. The sums here have two policies: failures count as zero, or
they are dropped as EVALB drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from dragoman.errors import DataError
from dragoman.formats.text import read_lines
from dragoman.parsing.evalb.params import COLLINS, EvalbParams
from dragoman.parsing.trees import ptb
from dragoman.parsing.trees.simplify import copy_tags
from dragoman.parsing.trees.tree import Span, Tree, get_leaves, iter_events
from dragoman.runtime.counts import format_count

Status = Literal[0, 1, 2]
"""EVALB's status: 0 scored; 1 error, the words differ; 2 skipped, no words."""
FailurePolicy = Literal["zero", "dropped"]

_QUOTE_WORDS = ("'", '"', "/")


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """Counts of one pair of trees.

    line: line in both files, from 1
    length: words of the gold tree that count towards its length
    matched, gold, test: brackets in both trees, in the gold tree and in the test tree
    crossing: brackets of the test tree that cross a bracket of the gold tree
    words, tags: words of the gold tree that count, and those of them with the right tag
    reason: the reason of a failure, else empty. After a failure, matched, crossing and tags are 0
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
    def is_failed(self) -> bool:
        """Return whether the sentence has no score although the gold tree has words."""
        return self.status != 0 and (self.words > 0 or self.status == 1)


@dataclass(frozen=True, slots=True)
class EvalbTotals:
    """Sums over sentences; rates are in percent. With `failures="dropped"` they equal EVALB's."""

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
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging_accuracy: float


def percent(part: float, whole: float) -> float:
    """Return part / whole in percent, or 0 if `whole` is 0."""
    return 100.0 * part / whole if whole else 0.0


def sum_scores(
    scores: Iterable[SentenceScore], failures: FailurePolicy = "zero", *, max_length: int | None = None
) -> EvalbTotals:
    """Return the sums over the sentences.

    failures: "zero" adds the brackets and words of a failed sentence to the denominators, and nothing to the numerators.
        "dropped" ignores failed sentences. The average number of crossing brackets is always over scored sentences
    max_length: ignores sentences with more words than this
    """
    selected = [score for score in scores if max_length is None or score.length <= max_length]
    scored = [score for score in selected if score.status == 0]
    counted = [score for score in selected if score.status == 0 or (failures == "zero" and score.is_failed)]
    matched, gold, test = (sum(getattr(score, name) for score in counted) for name in ("matched", "gold", "test"))
    words, tags, crossing = (sum(getattr(score, name) for score in counted) for name in ("words", "tags", "crossing"))
    recall, precision = percent(matched, gold), percent(matched, test)
    return EvalbTotals(
        sentences=len(selected),
        errors=sum(score.status == 1 for score in selected),
        skipped=sum(score.status == 2 for score in selected),
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
        complete_match=percent(sum(score.matched == score.gold == score.test for score in scored), len(counted)),
        average_crossing=crossing / len(scored) if scored else 0.0,
        no_crossing=percent(sum(score.crossing == 0 for score in scored), len(counted)),
        two_or_less_crossing=percent(sum(score.crossing <= 2 for score in scored), len(counted)),
        tagging_accuracy=percent(tags, words),
    )


class EvalbScorer:
    """Scorer of pairs of trees by the rules of a parameter file."""

    def __init__(self, params: EvalbParams = COLLINS) -> None:
        self.params = params
        self._counted_labels = _CountedLabels(params)

    def score(self, gold: Sequence[Tree], test: Sequence[Tree], *, line: int = 1) -> SentenceScore:
        """Score the trees of one line, usually one, against the gold trees. Raises DataError for a gold word without a tag."""
        gold_side = self._extract_side(gold)
        try:
            test_side = self._extract_side(test)
        except DataError as error:
            return self._build_failure(gold_side, _TreeSide(), 1, str(error), line)
        if not test_side.words:
            return self._build_failure(gold_side, test_side, 2, "no words count" if test else "no tree", line)
        if len(gold_side.words) != len(test_side.words):
            _align_quotes(gold_side, test_side, self.params.deleted_labels)
        if reason := self._describe_difference(gold_side, test_side):
            # New sides, because _align_quotes has changed these.
            return self._build_failure(self._extract_side(gold), self._extract_side(test), 1, reason, line)
        gold_brackets, test_brackets = self._counted_brackets(gold_side), self._counted_brackets(test_side)
        return SentenceScore(
            line,
            gold_side.length,
            0,
            matched=self._count_matched(gold_brackets, test_brackets),
            gold=len(gold_brackets),
            test=len(test_brackets),
            crossing=_count_crossing(gold_brackets, test_brackets),
            words=len(gold_side.words),
            tags=sum(map(self._is_same_label, gold_side.tags, test_side.tags)),
        )

    def score_failure(self, gold: Sequence[Tree], reason: str, *, line: int = 1) -> SentenceScore:
        """Return the score of a line whose test tree cannot be read."""
        return self._build_failure(self._extract_side(gold), _TreeSide(), 1, reason, line)

    def _build_failure(self, gold: _TreeSide, test: _TreeSide, status: Status, reason: str, line: int) -> SentenceScore:
        num_gold, num_test = len(self._counted_brackets(gold)), len(self._counted_brackets(test))
        return SentenceScore(line, gold.length, status, 0, num_gold, num_test, 0, len(gold.words), 0, reason)

    def _extract_side(self, trees: Sequence[Tree]) -> _TreeSide:
        """Return the words and brackets of the trees of one line, without deleted words."""
        side, params = _TreeSide(), self.params
        path: list[int] = []
        for tree in trees:
            for kind, label, word in iter_events(tree):
                if kind == "open":
                    path.append(len(side.spans))
                    side.spans.append(Span(label or "", len(side.words), -1))
                elif kind == "close":
                    index = path.pop()
                    side.spans[index] = Span(label or "", side.spans[index].start, len(side.words))
                else:
                    if label is None:
                        raise DataError(f"word {word[:40]!r}: has no tag; write it as (TAG word)", code="invalid-tree")
                    side.length += label not in params.length_deleted_labels
                    if label in params.quote_labels and word in _QUOTE_WORDS:
                        side.quotes.append(_Quote(word, label, len(side.words), len(side.spans), tuple(path)))
                    if label not in params.deleted_labels:
                        side.words.append(word)
                        side.tags.append(label)
        return side

    def _counted_brackets(self, side: _TreeSide) -> list[Span]:
        """Return the brackets that count, with labels without function tags: those that are neither empty nor deleted."""
        return [
            Span(label, *span)
            for name, *span in side.spans
            if span[0] < span[1] and (label := self._counted_labels[name]) is not None
        ]

    def _describe_difference(self, gold: _TreeSide, test: _TreeSide) -> str:
        """Return the difference between the words of both sides, or an empty text if there is none."""
        if gold.words == test.words:
            return ""
        if len(gold.words) != len(test.words):
            return f"{len(test.words)} words count, but {len(gold.words)} in the gold tree"
        for position, (gold_word, word) in enumerate(zip(gold.words, test.words, strict=True), start=1):
            if gold_word != word and (gold_word, word) not in self.params.equal_words:
                return f"word {position} of those that count is {word[:40]!r}, but {gold_word[:40]!r} in the gold tree"
        return ""

    def _is_same_label(self, gold_label: str, test_label: str) -> bool:
        return gold_label == test_label or (gold_label, test_label) in self.params.equal_labels

    def _count_matched(self, gold: Sequence[Span], test: Sequence[Span]) -> int:
        """Match each gold bracket with the first unmatched test bracket of the same span and label. Return the matches."""
        unmatched: dict[tuple[int, int], list[str]] = {}
        for label, start, end in test:
            unmatched.setdefault((start, end), []).append(label)
        matched = 0
        for label, start, end in gold:
            candidates = unmatched.get((start, end), ())
            for index, test_label in enumerate(candidates):
                if not self.params.labeled or self._is_same_label(label, test_label):
                    del unmatched[start, end][index]
                    matched += 1
                    break
        return matched


class _CountedLabels(dict[str, str | None]):
    """Label of each bracket for scoring: the part before the first - or =, or None if that is deleted."""

    def __init__(self, params: EvalbParams) -> None:
        self.deleted = params.deleted_labels.union(a for a, b in params.equal_labels if b in params.deleted_labels)

    def __missing__(self, label: str) -> str | None:
        base_label = label.partition("-")[0].partition("=")[0]
        self[label] = None if base_label in self.deleted else base_label
        return self[label]


@dataclass(slots=True)
class _Quote:
    """Quotation mark or apostrophe of a line.

    position: index of the next word that counts
    bracket: index of the next bracket
    path: indices of the brackets around it
    """

    word: str
    tag: str
    position: int
    bracket: int
    path: tuple[int, ...]


@dataclass(slots=True)
class _TreeSide:
    """Words that count, their tags, all brackets, the length and the quotes of one line's trees."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    length: int = 0
    quotes: list[_Quote] = field(default_factory=list)

    def restore_quote(self, quote_index: int) -> None:
        """Insert a deleted quote among the words that count."""
        quote = self.quotes[quote_index]
        self.words.insert(quote.position, quote.word)
        self.tags.insert(quote.position, quote.tag)
        for index, (label, start, end) in enumerate(self.spans):
            is_later = index >= quote.bracket
            self.spans[index] = Span(label, start + is_later, end + is_later + (index in quote.path))
        for later_quote in self.quotes[quote_index:]:
            later_quote.position += 1


def _align_quotes(gold: _TreeSide, test: _TreeSide, deleted_labels: frozenset[str]) -> None:
    """Restore each quote that one side deletes as punctuation and the other does not.

    The order is EVALB's: the position of a test quote is read once, although a restored quote may move it.
    """
    for test_index, test_quote in enumerate(test.quotes):
        position = test_quote.position
        for gold_index, gold_quote in enumerate(gold.quotes):
            if gold_quote.position != position or gold_quote.tag == test_quote.tag:
                continue
            if gold_quote.tag in deleted_labels and test_quote.tag not in deleted_labels:
                gold.restore_quote(gold_index)
            elif test_quote.tag in deleted_labels and gold_quote.tag not in deleted_labels:
                test.restore_quote(test_index)


def _count_crossing(gold: Sequence[Span], test: Sequence[Span]) -> int:
    """Return the number of test brackets that cross a gold bracket; one with the span of a gold bracket does not count."""
    gold_spans = {(start, end) for _, start, end in gold}
    test_spans = [(start, end) for _, start, end in test if (start, end) not in gold_spans]
    return sum(any(a < start < b < end or start < a < end < b for a, b in gold_spans) for start, end in test_spans)


def score_trees(gold: Sequence[Tree], test: Sequence[Tree | None]) -> list[SentenceScore]:
    """Score one tree a sentence against gold trees by Collins' rules. None stands for a missing tree.

    Raises DataError for unequal numbers.
    """
    if len(gold) != len(test):
        raise DataError(
            f"trees: {len(gold)} gold trees and {len(test)} test trees; give one test tree for each gold tree",
            code="length-mismatch",
        )
    scorer = EvalbScorer(COLLINS)
    return [
        scorer.score([gold_tree], [] if tree is None else [tree], line=line)
        for line, (gold_tree, tree) in enumerate(zip(gold, test, strict=True), start=1)
    ]


def score_files(
    gold: Path,
    test: Path,
    params: EvalbParams = COLLINS,
    *,
    gold_tags: bool = False,
    on_progress: Callable[[int], None] = lambda count: None,
) -> list[SentenceScore]:
    """Score a file of trees against a file of gold trees, one line a sentence.

    gold_tags: replace the tags of the test trees by those of the gold trees
    on_progress: receives the number of lines scored since the last call

    A test line that cannot be read is a failure with a reason. Raises DataError for a gold line that cannot be read or has no
    words, and for files of unequal length.
    """
    gold_lines, test_lines = list(read_lines(gold)), list(read_lines(test))
    for lines, min_lines in ((gold_lines, 0), (test_lines, len(gold_lines))):
        while len(lines) > min_lines and not lines[-1].strip():
            lines.pop()  # ignore empty lines at the end, except test lines that stand for a failed parse
        if not lines:
            raise DataError(f"{gold if lines is gold_lines else test}: has no trees; write one tree a line", code="empty-data")
    scorer = EvalbScorer(params)
    scores: list[SentenceScore] = []
    for line_number, (gold_line, test_line) in enumerate(zip_longest(gold_lines, test_lines), start=1):
        if gold_line is None or test_line is None:
            raise DataError(
                f"{gold} has {format_count(len(gold_lines), 'line')} but {test} has {len(test_lines):,}; "
                "write one line a sentence in both",
                code="length-mismatch",
            )
        trees = [located.tree for located in ptb.iter_trees([gold_line], str(gold), start_line=line_number)]
        if not any(get_leaves(tree) for tree in trees):
            raise DataError(
                f"{gold}, line {line_number}: {'the tree has no words' if trees else 'no tree'}; remove it from both files",
                code="invalid-tree",
            )
        scores.append(_score_line(scorer, trees, test_line, str(test), line_number, gold_tags=gold_tags, gold_name=str(gold)))
        on_progress(1)
    return scores


def _score_line(
    scorer: EvalbScorer, gold: Sequence[Tree], line: str, name: str, line_number: int, *, gold_tags: bool, gold_name: str
) -> SentenceScore:
    try:
        test = [located.tree for located in ptb.iter_trees([line], name, start_line=line_number)]
    except DataError as error:
        return scorer.score_failure(gold, str(error).removeprefix(f"{name}, line {line_number}: "), line=line_number)
    if gold_tags:
        test = copy_tags(gold, test)
    try:
        return scorer.score(gold, test, line=line_number)
    except DataError as error:
        raise DataError(f"{gold_name}, line {line_number}: {error}", code="invalid-tree") from None
