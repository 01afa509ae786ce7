"""Places for codes in a translation, by attention.

The translation is divided into units: words, marks, and single characters of scripts without spaces; a run of katakana is a
word. In Japanese, a run of kanji or of hiragana keeps together, because an element seldom ends inside one. Each element takes
the run of target units that gains most attention from its source units (a maximum subarray), inside its parent and beside its
siblings. A run loses if it begins or ends with another kind of mark than the source, and gains at white space in a text without
spaces between words. A run always exists, so no code is lost, doubled or crossed with any weights.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from dragoman.languages import UNSPACED
from dragoman.text.inline_codes import MAX_CACHED_CHARACTERS, CodedText, Element, Point, Slot, escape

Span = tuple[int, int]
Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
"""Gains in steps of 1e-9, so that equal sums are equal"""

# A word in katakana is one unit, because nothing inside it has a meaning of its own.
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff"
_UNIT = re.compile(rf"([{_KATAKANA}]+|[{UNSPACED}]|[^\W{UNSPACED}]+(?:['’\-][^\W{UNSPACED}]+)*|[^\w\s])")
_ASCII_UNIT = re.compile(r"(\w++(?:['\-]\w++)*+|[^\w\s\x1c-\x1f])", re.ASCII)
"""The same for a text of ASCII alone, in a third of the time"""
_HIRAGANA, _KANJI = "\u3041-\u309f", "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HIRAGANA_CHARACTER = re.compile(f"[{_HIRAGANA}]")
_JAPANESE_RUN = re.compile(rf"[{_HIRAGANA}]+|[{_KANJI}]+")
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uffef]")
_NO_SPACE_BEFORE = frozenset(".,;:!?…)]}%»”’。，、；：！？")
_NO_SPACE_AFTER = frozenset("([{«„“‘¿¡（「『")
# Kinds of marks at the edge of an element: the end of a sentence, a comma, opening, closing, and any other.
_EDGE_MARKS = (".!?:…。！？：", ",;、；，", "([{«„“‘¿¡（「『<", ")]}»”’）」』>")
_KINDS = {mark: kind for kind, marks in enumerate(_EDGE_MARKS, start=1) for mark in marks}

SMOOTHING = 0.05
BIAS = 0.7
"""Constants of the gain log((p + SMOOTHING) / (1 - p + SMOOTHING)) + BIAS of a target unit with attention p to an element."""
OTHER_MARK_LOSS = 2.0
"""Loss of a run for each of its two edges whose unit is another kind of mark than in the source, or a word for a mark."""
SPACE_GAIN = 2.0
"""Gain of a run for each of its two edges at white space beside a character of a script without spaces."""
_SUM_STEPS = 10**9
"""Steps in 1 to which gains are rounded."""
_OTHER_MARK_STEPS, _SPACE_STEPS = int(OTHER_MARK_LOSS * _SUM_STEPS), int(SPACE_GAIN * _SUM_STEPS)
MAX_CELLS = 2**16
"""Most weights, or gains, that are computed at once, if one sentence has no more: half a megabyte."""


@dataclass(slots=True)
class UnitText:
    """Text with its units, in order. words: the units. starts, ends: their characters"""

    text: str
    words: list[str]
    starts: list[int]
    ends: list[int]

    @classmethod
    def divide(cls, text: str) -> UnitText:
        """Return a text with its units."""
        pieces = (_ASCII_UNIT if text.isascii() else _UNIT).split(text)  # what is between units, and the units, in turn
        edges = list(accumulate(map(len, pieces)))
        return cls(text, pieces[1::2], edges[:-1:2], edges[1::2])


UnitPair = tuple[UnitText, UnitText]
"""Text without codes, and its translation."""


def split_units(text: str) -> list[Span]:
    """Return the spans of the units of a text, in order."""
    units = UnitText.divide(text)
    return list(zip(units.starts, units.ends, strict=True))


def divide_translation(text: str) -> UnitText:
    """Return a translation with its units, which are kept if it is short: its codes and its checks need them."""
    return UnitText.divide(text) if len(text) > MAX_CACHED_CHARACTERS else _divide_once(text)


_divide_once = lru_cache(maxsize=512)(UnitText.divide)


def project(sources: Iterable[CodedText], pairs: Iterable[UnitPair], weights: Iterable[Floats]) -> Iterator[str]:
    """Yield each translation of a clean text with the codes of its source in it.

    Each code occurs once, and elements nest as in the source.

    pairs: the clean text of each source, and its translation
    weights: for some of them (N) at a time, attention of each unit of the translation to each unit of the text, which is
        changed. Rows need not sum to 1, and are 0 behind the units of a text with fewer than others. (N, T, S)
    """
    items = zip(sources, pairs, strict=True)
    for weights_NTS in weights:
        sentences = [
            _Sentence(source, clean, target, weights_TS)
            for weights_TS, (source, (clean, target)) in zip(weights_NTS, items, strict=False)
        ]
        yield from _SentenceBatch(sentences, weights_NTS).write()


def _join_units(units: UnitText, weights_TS: Floats) -> UnitText:
    """Return a translation with each run of kanji or hiragana as one unit, whose attention becomes the mean of these.

    A text without hiragana is not Japanese. In Chinese, a run can be a whole clause.
    """
    text = units.text
    if text.isascii() or _HIRAGANA_CHARACTER.search(text) is None:
        return units
    run_ends = {match.start(): match.end() for match in _JAPANESE_RUN.finditer(text)}
    numbers: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for number, (start, end) in enumerate(zip(units.starts, units.ends, strict=True)):
        if ends and end <= ends[-1]:
            continue
        numbers.append(number)
        starts.append(start)
        ends.append(run_ends.get(start, end))
    words = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    runs = pairwise([*numbers, len(units.words)])
    means = [np.add.reduce(weights_TS[first:last]) / (last - first) for first, last in runs]
    weights_TS[:] = 0.0
    weights_TS[: len(means)] = means
    return UnitText(text, words, starts, ends)


@dataclass(slots=True)
class _Node:
    """Code with its place.

    slot: None for the whole text
    start, end: target units; equal for a point
    letters: characters of an element inside a word; None for all others
    """

    slot: Slot | None
    start: int
    end: int
    children: Sequence[_Node]
    letters: Span | None = None


class _Sentence:
    """Clean text and its translation, with the codes of the text."""

    def __init__(self, coded: CodedText, source: UnitText, target: UnitText, weights_TS: Floats) -> None:
        self.slots, self.is_escaped, self.source = coded.clean.slots, coded.is_escaped, source
        self.target = _join_units(target, weights_TS)
        self.target_kinds = bytes([0 if word.isalnum() else _get_kind(word) for word in self.target.words])

    def list_elements(self, slots: Sequence[Slot]) -> dict[int, range]:
        """Return the source units of each slot that has some: of no point, and of no element without text."""
        starts, ends = self.source.starts, self.source.ends
        places = [range(bisect_left(starts, slot.start), bisect_right(ends, slot.end)) for slot in slots]
        return {index: units for index, units in enumerate(places) if units}

    def find_words(self, units: range, start: int, end: int, is_free: bytearray | None, middle: float) -> int | None:
        """Return where the source units occur among free target units, nearest to a place; None if they do not.

        Units without a letter or digit are not looked for. The search begins at the place, because equal words may be many.
        """
        words, target_words = self.source.words[units.start : units.stop], self.target.words
        if words[0] not in target_words or not any(map(str.isalnum, "".join(words))):
            return None
        stop = max(end - len(units) + 1, start)
        places = [start + place for place, word in enumerate(target_words[start:stop]) if word == words[0]]
        right = bisect_right(places, middle)
        left = right - 1
        while left >= 0 or right < len(places):
            if right == len(places) or (left >= 0 and middle - places[left] <= places[right] - middle):
                place, left = places[left], left - 1
            else:
                place, right = places[right], right + 1
            last = place + len(units)
            if target_words[place:last] == words and (is_free is None or 0 not in is_free[place - start : last - start]):
                return place
        return None


class _SentenceBatch:
    """Sentences (N) with the arrays of all, in which those with fewer units than others have zeros behind them.

    size: most target units of a sentence
    """

    def __init__(self, sentences: Sequence[_Sentence], weights_NTS: Floats) -> None:
        self.sentences, self._weights_NTS, self.size = sentences, weights_NTS, weights_NTS.shape[1]
        lengths = np.array([len(sentence.target.words) for sentence in sentences])
        self._space_gains = np.zeros((len(sentences), self.size + 1), np.int64)
        for number, sentence in enumerate(sentences):
            target = sentence.target
            if not target.text.isascii() and _UNSPACED_CHARACTER.search(target.text):
                borders = _find_borders(target)
                self._space_gains[number, : len(borders)] = np.array(borders) * _SPACE_STEPS
        self._is_unit = np.arange(self.size) < lengths[:, None]
        # A unit with less attention to the text than most attends elsewhere, for example to the end of the sentence, and
        # belongs to no code. The median, unlike 1, is also right for a model whose units all attend elsewhere in part.
        self._sums_NTS = np.zeros((*weights_NTS.shape[:2], weights_NTS.shape[2] + 1))
        weights_NTS.cumsum(axis=2, out=self._sums_NTS[:, :, 1:])
        totals_NT = np.where(self._is_unit, self._sums_NTS[:, :, -1], np.inf)
        ordered, rows = np.sort(totals_NT, axis=1), np.arange(len(sentences))
        medians = (ordered[rows, np.maximum(lengths - 1, 0) // 2] + ordered[rows, lengths // 2]) / 2
        self._divisors_NT = np.maximum(totals_NT, medians[:, None])
        self._divisors_NT[self._divisors_NT == 0] = 1
        kinds = b"".join([sentence.target_kinds.ljust(self.size, b"\0") for sentence in sentences])
        self._kinds = np.frombuffer(kinds, np.uint8).reshape(len(sentences), self.size)

    def get_shares(self, number: int, start: int, end: int, unit: int) -> Floats:
        """Return the share of attention that the target units from `start` to `end` of a sentence have to a source unit."""
        shares: Floats = self._weights_NTS[number, start:end, unit] / self._divisors_NT[number, start:end]
        return shares

    def write(self) -> Iterator[str]:
        """Yield the translations with their codes. Elements that are in no other are searched together."""
        elements = [sentence.list_elements(sentence.slots) if sentence.target.words else {} for sentence in self.sentences]
        places = [(number, units) for number, own in enumerate(elements) for units in own.values()]
        runs = self.find_runs(places, 0, self.size)
        for number, (sentence, own) in enumerate(zip(self.sentences, elements, strict=True)):
            end = len(sentence.target.words)
            nodes = _Projection(self, number).arrange(sentence.slots, 0, end, dict(zip(own, runs, strict=False)))
            yield _Writer(sentence).write(_Node(None, 0, end, nodes))

    def find_runs(
        self, elements: Sequence[tuple[int, range]], start: int, end: int, is_free: bytearray | None = None
    ) -> Iterator[tuple[int, Span]]:
        """Yield the gain and the units of the best place of each element among the target units from `start` to `end`.

        If the text of the element occurs among them, its place is the occurrence nearest to the run with the largest gain.

        elements: number of the sentence of each, and its source units
        is_free: 1 for each of these target units that is free, and 0 for the others; None if all are free
        """
        num_together = max(MAX_CELLS // (end - start), 1)
        for first in range(0, len(elements), num_together):
            part = elements[first : first + num_together]
            runs = find_maximum_subarrays(*self._compute_gains(part, start, end, is_free))
            for (number, units), (gain, first_unit, last_unit) in zip(part, runs, strict=True):
                middle = start + (first_unit + last_unit - len(units)) / 2
                place = self.sentences[number].find_words(units, start, end, is_free, middle)
                if place is None:
                    yield gain, (start + first_unit, start + last_unit)
                else:
                    yield max(gain, 0) + len(units) * _SUM_STEPS, (place, place + len(units))

    def _compute_gains(
        self, elements: Sequence[tuple[int, range]], start: int, end: int, is_free: bytearray | None
    ) -> tuple[Steps, Steps, Steps]:
        """Return what each target unit adds to a run of each element, and to a run that begins, or ends, with the unit."""
        numbers = np.array([number for number, _ in elements])
        firsts, stops = ([edge(units) for _, units in elements] for edge in (attrgetter("start"), attrgetter("stop")))
        divisors = self._divisors_NT[numbers, start:end]
        shares = self._sums_NTS[numbers, start:end, stops] / divisors - self._sums_NTS[numbers, start:end, firsts] / divisors
        gains = np.log((shares + SMOOTHING) / (1 - shares + SMOOTHING)) + BIAS
        gains = np.rint(gains * _SUM_STEPS).astype(np.int64)
        is_place = self._is_unit[numbers, start:end]
        if is_free is not None:
            is_place &= np.frombuffer(is_free, np.bool_)
        # No run with the largest sum crosses a unit that costs more than any two runs differ.
        losses = np.abs(gains).sum(axis=1, keepdims=True) + _OTHER_MARK_STEPS + _SPACE_STEPS
        gains = np.where(is_place, gains, -_SUM_STEPS - 2 * losses)
        words = [self.sentences[number].source.words for number, _ in elements]
        kinds = np.array(
            [[_get_kind(own[units[edge]]) for own, (_, units) in zip(words, elements, strict=True)] for edge in (0, -1)]
        )
        mark_gains = (self._kinds[numbers, start:end] != kinds[:, :, None]) * -_OTHER_MARK_STEPS
        space_gains = self._space_gains[numbers, start : end + 1]
        return gains, mark_gains[0] + space_gains[:, :-1], mark_gains[1] + space_gains[:, 1:]


class _Projection:
    """Places of codes in the units of a target. Work for an element grows with the units of its parent, as its weights do."""

    def __init__(self, batch: _SentenceBatch, number: int) -> None:
        self._batch, self._number, self._sentence = batch, number, batch.sentences[number]
        self._source = self._sentence.source

    def place(self, slots: Sequence[Slot], start: int, end: int) -> list[_Node]:
        """Return the nodes of sibling codes inside the target units from `start` to `end`, from left to right."""
        elements = self._sentence.list_elements(slots) if start < end else {}
        runs = self._batch.find_runs([(self._number, units) for units in elements.values()], start, end) if elements else ()
        return self.arrange(slots, start, end, dict(zip(elements, runs, strict=True)))

    def arrange(self, slots: Sequence[Slot], start: int, end: int, runs: Mapping[int, tuple[int, Span]]) -> list[_Node]:
        """Return the nodes as `place` does. The element with the largest gain is placed first.

        runs: gain and best place of each element, by its number
        """
        if not slots:
            return []
        nodes: dict[int, _Node] = {}
        is_free, num_free = bytearray(b"") * (end - start), end - start
        for index in sorted(runs, key=lambda index: (-runs[index][0], index)):
            if not num_free:
                break
            run = runs[index][1]
            if 0 in is_free[run[0] - start : run[1] - start]:
                element = self._number, self._sentence.list_elements(slots[index : index + 1])[0]
                ((_, run),) = self._batch.find_runs([element], start, end, is_free)
            is_free[run[0] - start : run[1] - start] = bytes(run[1] - run[0])
            num_free -= run[1] - run[0]
            nodes[index] = self._build_node(slots[index], *run)
        placed = sorted(nodes.values(), key=attrgetter("start"))
        if len(placed) == len(slots):
            return placed
        gaps: dict[tuple[int, bool], int] = {}
        for index, slot in enumerate(slots):
            if index not in nodes and (word := self._find_word(slot, placed, start, end)) is not None:
                nodes[index] = self._build_word_node(slot, word, self._find_letters(slot, word, nodes.values()))
            elif index not in nodes:
                # The gap is behind its left neighbor, unless the code is glued to a word on its right only.
                key = bisect_right(self._source.ends, slot.start), not _is_word(slot.after) or _is_word(slot.before)
                if key not in gaps:
                    gaps[key] = self._find_gap(*key, placed, start, end)
                nodes[index] = self._build_node(slot, gaps[key], gaps[key])

        def get_place(index: int) -> tuple[int, int, int, int]:
            node = nodes[index]
            return node.start, node.end, node.letters[0] if node.letters else -1, index

        return [nodes[index] for index in sorted(nodes, key=get_place)]

    def _build_node(self, slot: Slot, start: int, end: int) -> _Node:
        return _Node(slot, start, end, self.place(slot.children, start, end) if slot.children else ())

    def _find_word(self, slot: Slot, elements: Sequence[_Node], start: int, end: int) -> int | None:
        """Return the target unit for an element inside a source unit; None for other codes, and if it is in another element."""
        if not isinstance(slot.part, Element) or slot.start == slot.end or start == end:
            return None
        unit = bisect_right(self._source.starts, slot.start) - 1
        if unit < 0 or slot.end > self._source.ends[unit]:
            return None
        shares = self._batch.get_shares(self._number, start, end, unit)
        if (unit == 0 and slot.start == self._source.starts[0]) or not shares.any():
            word = start + (end - start - 1) * unit // len(self._source.words)
        else:
            word = start + int(shares.argmax())
        return None if any(node.start <= word < node.end for node in elements) else word

    def _find_letters(self, slot: Slot, word: int, others: Iterable[_Node]) -> Span:
        """Return the characters of a target unit for an element inside a word: as many as in the source, at the same edge.

        An element inside equal words keeps its letters.
        """
        unit = bisect_right(self._source.starts, slot.start) - 1
        source_start, source_end = self._source.starts[unit], self._source.ends[unit]
        target = self._sentence.target
        first, last = target.starts[word], target.ends[word]
        length = min(slot.end - slot.start, last - first)
        if self._source.words[unit] == target.words[word]:
            letters = first + slot.start - source_start, first + slot.end - source_start
        elif slot.start == source_start:
            letters = first, first + length
        elif slot.end == source_end:
            letters = last - length, last
        else:
            letters = last, last
        taken = max((node.letters[1] for node in others if node.letters and node.start == word), default=first)
        return max(letters[0], taken), max(letters[1], taken)

    def _build_word_node(self, slot: Slot, word: int, letters: Span) -> _Node:
        children = [self._build_word_node(child, word, letters) for child in slot.children]
        return _Node(slot, word, word, children, letters)

    def _find_gap(self, num_before: int, behind: bool, elements: Sequence[_Node], start: int, end: int) -> int:
        """Return the gap for a code without units, as the number of units before it; elements are in order.

        num_before: units of the source before the code
        behind: the gap is behind the unit that attends most to the left neighbor; otherwise, it is before the unit that attends
            most to the right one
        """
        if not num_before or start == end:
            return start
        if num_before == len(self._source.words):
            return end
        unit = num_before - 1 if behind else num_before
        shares = self._batch.get_shares(self._number, start, end, unit)
        if not shares.any():
            gap = start + round((end - start) * num_before / len(self._source.words))
        else:  # of equal units, the last for a gap behind it, and the first for a gap before it
            gap = end - int(shares[::-1].argmax()) if behind else start + int(shares.argmax())
        number = bisect_left(elements, gap, key=lambda node: node.start) - 1
        if number >= 0 and gap < elements[number].end:
            return elements[number].end if behind else elements[number].start
        return gap


class _Writer:
    """Writer of a translation with its codes. White space between two units is outside the elements that begin or end there."""

    def __init__(self, sentence: _Sentence) -> None:
        self.target, self.units = sentence.target.text, sentence.target
        self.is_escaped = sentence.is_escaped and escape(self.target) != self.target
        self.output: list[str] = []
        self.position = 0

    def write(self, root: _Node) -> str:
        self._write_children(root)
        self._write_text(len(self.target))
        return "".join(self.output)

    def _write_text(self, end: int) -> None:
        if text := self.target[self.position : end]:
            self.output.append(escape(text) if self.is_escaped else text)
        self.position = max(self.position, end)

    def _write_children(self, node: _Node) -> None:
        for number, child in enumerate(node.children):
            assert child.slot is not None
            part = child.slot.part
            if child.letters is not None and isinstance(part, Element):
                self._write_text(child.letters[0])
                self.output.append(part.start_tag)
                self._write_children(child)
                self._write_text(child.letters[1])
                self.output.append(part.end_tag)
            elif child.letters is not None and isinstance(part, Point):
                self.output.append(part.markup)
            elif isinstance(part, Element) and child.end > child.start:
                self._write_text(self._get_start(child.start))
                self.output.append(part.start_tag)
                self._write_children(child)
                self.output.append(part.end_tag)
            else:
                neighbors = node.children[max(number - 1, 0) : number + 2]
                self._write_point(child, node, neighbors[0], neighbors[-1])
        if node.slot is not None and node.end > node.start:
            self._write_text(self.units.ends[node.end - 1])

    def _get_start(self, gap: int) -> int:
        """Return the position before the unit behind a gap."""
        return self.units.starts[gap] if gap < len(self.units.starts) else len(self.target)

    def _write_point(self, point: _Node, parent: _Node, previous: _Node, following: _Node) -> None:
        """Write a point, or an element without text.

        It has a space where the source or the translation has one, and the script beside it uses spaces.

        previous, following: the siblings beside it, or the point itself. Points that the source joins stay joined.
        """
        slot, gap = point.slot, point.start
        assert slot is not None
        left_end, right_start = self.units.ends[gap - 1] if gap else 0, self._get_start(gap)
        self._write_text(left_end)
        left, right = self.target[max(left_end - 1, 0) : left_end], self.target[right_start : right_start + 1]
        has_space = right_start > left_end
        is_first = parent.slot is not None and gap == parent.start
        is_last = parent.slot is not None and gap == parent.end
        if isinstance(slot.part, Point) and (slot.part.is_space or slot.part.is_invisible):
            if slot.part.is_space or slot.before.isspace() or slot.after.isspace():
                self.position = max(self.position, right_start)
            self._write_space(slot.before.isspace() and not is_first)
            self.output.append(slot.part.markup)
            self._write_space(slot.after.isspace() and not is_last)
            return
        is_glued = bool(slot.before.strip()) and slot.after.isspace()
        is_joined = slot.before == "" and _is_point_at(previous, gap) and previous is not point
        if (
            not is_first
            and not is_glued
            and not is_joined
            and _takes_space(left, _NO_SPACE_AFTER)
            and not _is_word(slot.before)
        ):
            self._write_space(slot.before.isspace() or has_space or (slot.before != "" and _is_word(left)))
        if isinstance(slot.part, Element):
            self.output.append(slot.part.start_tag)
            self._write_children(point)
            self.output.append(slot.part.end_tag)
        else:
            self.output.append(slot.part.markup)
        if is_last:
            return
        self.position = max(self.position, right_start)
        if slot.after == "" and _is_point_at(following, gap) and following is not point:
            return
        is_same = right == slot.after and not right.isspace()  # a sign that the source has there, too, as in `{name}'s`
        if _takes_space(right, _NO_SPACE_BEFORE) and not _is_word(slot.after) and not is_same:
            self._write_space(slot.after.isspace() or has_space or (slot.after != "" and _is_word(right)))

    def _write_space(self, is_needed: bool) -> None:
        if is_needed and self.output and not self.output[-1][-1:].isspace():
            self.output.append(" ")


def _is_point_at(node: _Node, gap: int) -> bool:
    return node.slot is not None and node.letters is None and node.start == node.end == gap


def _is_word(character: str) -> bool:
    """Return whether this is a letter or digit of a script with spaces between words."""
    return character.isalnum() and not _UNSPACED_CHARACTER.match(character)


def _takes_space(neighbor: str, exceptions: frozenset[str]) -> bool:
    """Return whether a space can stand between a code and this character of the translation."""
    return bool(neighbor) and neighbor not in exceptions and not _UNSPACED_CHARACTER.match(neighbor)


def _get_kind(unit: str) -> int:
    """Return 0 for a word, and a number above for each kind of mark."""
    if unit[0].isalnum():
        return 0
    return _KINDS.get(unit, len(_EDGE_MARKS) + 1)


def _find_borders(units: UnitText) -> list[bool]:
    """Return whether each gap, from that before the first unit to that behind the last, can end a phrase of an unspaced script.

    It has white space or an end of the text on one side, and a character of the script on another.
    """
    is_unspaced = [False, *(_UNSPACED_CHARACTER.match(word) is not None for word in units.words), False]
    ends, starts = [-1, *units.ends], [*units.starts, len(units.text) + 1]
    return [
        start > end and (is_unspaced[number] or is_unspaced[number + 1])
        for number, (end, start) in enumerate(zip(ends, starts, strict=True))
    ]


def find_maximum_subarrays(gains_EN: Steps, start_gains_EN: Steps, end_gains_EN: Steps) -> Iterator[tuple[int, int, int]]:
    """Yield the largest sum of a non-empty run of each row, its start, and the position after its end (Kadane 1984).

    Of runs with equal sums, the one that ends first is returned, and of these the shortest.

    start_gains_EN, end_gains_EN: added to the sum of a run that begins, or ends, with the number at this place
    """
    sums_EN = gains_EN.cumsum(axis=1)
    before_EN = sums_EN - gains_EN - start_gains_EN  # sum before a run that begins here, less the gain of its start
    least_EN = np.minimum.accumulate(before_EN, axis=1)
    best_EN = sums_EN + end_gains_EN - least_EN
    rows, columns = np.arange(len(gains_EN)), np.arange(gains_EN.shape[1])
    lasts = best_EN.argmax(axis=1)
    is_start_EN = (before_EN == least_EN[rows, lasts, None]) & (columns <= lasts[:, None])
    starts = len(columns) - 1 - is_start_EN[:, ::-1].argmax(axis=1)
    return zip(best_EN[rows, lasts].tolist(), starts.tolist(), (lasts + 1).tolist(), strict=True)
