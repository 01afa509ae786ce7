"""Places for codes in a translation, by attention.

The translation is divided into units: words, marks, and single characters of scripts without spaces; a run of katakana is a
word. Each element takes the run of target units that gains most attention from its source units (a maximum subarray), inside
its parent and beside its siblings. A run always exists, so no code is lost, doubled or crossed with any weights.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dragoman.text.inline_codes import CodedText, Element, Point, Slot, escape

Span = tuple[int, int]
Weights = npt.NDArray[np.float64]

# Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# A word in katakana is one unit, because nothing inside it has a meaning of its own.
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff"
_UNIT = re.compile(rf"[{_KATAKANA}]+|[{UNSPACED}]|[^\W{UNSPACED}]+(?:['’\-][^\W{UNSPACED}]+)*|[^\w\s]")
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uffef]")
_NO_SPACE_BEFORE = frozenset(".,;:!?…)]}%»”’。，、；：！？")
_NO_SPACE_AFTER = frozenset("([{«„“‘¿¡（「『")

SMOOTHING = 0.05
BIAS = 0.7
"""Constants of the gain log((p + SMOOTHING) / (1 - p + SMOOTHING)) + BIAS of a target unit with attention p to an element."""


def split_units(text: str) -> list[Span]:
    """Return the spans of the units of a text, in order."""
    return [match.span() for match in _UNIT.finditer(text)]


def project(source: CodedText, translation: str, weights: Weights) -> str:
    """Return the translation of the clean text with the source's codes in it.

    Each code occurs once, and elements nest as in the source.

    weights: attention of each unit of the translation to each unit of the clean text; rows need not sum to 1 (T, S)
    """
    clean = source.clean
    projection = _Projection(clean.text, translation, weights)
    end = len(projection.target_units)
    root = _Node(None, 0, end, projection.place(clean.slots, 0, end))
    return _Writer(projection, is_escaped=source.is_escaped).write(root)


@dataclass(frozen=True)
class _Node:
    """Code with its place.

    slot: None for the whole text
    start, end: target units; equal for a point
    """

    slot: Slot | None
    start: int
    end: int
    children: Sequence[_Node]


class _Projection:
    def __init__(self, source: str, target: str, weights: Weights) -> None:
        self.source, self.target = source, target
        self.source_units, self.target_units = split_units(source), split_units(target)
        self._unit_starts, self._unit_ends = [start for start, _ in self.source_units], [end for _, end in self.source_units]
        shape = (len(self.target_units), len(self.source_units))
        if weights.shape != shape:
            raise ValueError(f"weights: the shape is {weights.shape}, and the texts have {shape} units")
        totals = weights.sum(axis=1, keepdims=True)
        self.weights = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)

    def place(self, slots: Sequence[Slot], start: int, end: int) -> list[_Node]:
        """Return the nodes of sibling codes inside the target units from `start` to `end`, from left to right.

        The element with the largest gain is placed first.
        """
        elements: list[tuple[float, int, Slot]] = []
        if start < end:
            elements = [
                (-self._find_run(slot, (start, end))[0], i, slot) for i, slot in enumerate(slots) if self._units_of(slot)
            ]
        free, nodes = [(start, end)], {}
        for _, index, slot in sorted(elements, key=lambda item: item[:2]):
            if free:
                run, (_, first, last) = max(((run, self._find_run(slot, run)) for run in free), key=lambda item: item[1][0])
                nodes[index] = self._build_node(slot, first, last)
                position = free.index(run)
                free[position : position + 1] = [part for part in ((run[0], first), (last, run[1])) if part[0] < part[1]]
        placed = list(nodes.values())
        for index, slot in enumerate(slots):
            if index not in nodes:
                gap = self._find_gap(slot, placed, start, end)
                nodes[index] = self._build_node(slot, gap, gap)
        return [nodes[index] for index in sorted(nodes, key=lambda index: (nodes[index].start, nodes[index].end, index))]

    def _build_node(self, slot: Slot, start: int, end: int) -> _Node:
        return _Node(slot, start, end, self.place(slot.children, start, end))

    def _units_of(self, slot: Slot) -> range:
        """Return the source units of an element; none for a point and for an element without text."""
        return range(bisect_left(self._unit_starts, slot.start), bisect_right(self._unit_ends, slot.end))

    def _find_run(self, slot: Slot, run: Span) -> tuple[float, int, int]:
        """Return the gain and the units of the best place of an element inside a run of free units."""
        units = self._units_of(slot)
        p = self.weights[run[0] : run[1], units.start : units.stop].sum(axis=1)
        gains = np.log((p + SMOOTHING) / (1 - p + SMOOTHING)) + BIAS
        gain, first, last = find_maximum_subarray(gains.tolist())
        verbatim = self._find_verbatim(slot, run, (run[0] + first + run[0] + last) / 2)
        if verbatim is not None:
            first, last = verbatim[0] - run[0], verbatim[1] - run[0]
            gain = max(gain, 0.0) + last - first
        return gain, run[0] + first, run[0] + last

    def _find_verbatim(self, slot: Slot, run: Span, middle: float) -> Span | None:
        """Return the units nearest to the middle that have the source text of the element, or None."""
        units = self._units_of(slot)
        content = [self.source[start:end] for start, end in self.source_units[units.start : units.stop]]
        words = [self.target[start:end] for start, end in self.target_units[run[0] : run[1]]]
        size = len(content)
        if not any(character.isalnum() for word in content for character in word):
            return None
        starts = [run[0] + index for index in range(len(words) - size + 1) if words[index : index + size] == content]
        best = min(starts, key=lambda start: abs(start + size / 2 - middle), default=None)
        return None if best is None else (best, best + size)

    def _find_gap(self, slot: Slot, elements: Sequence[_Node], start: int, end: int) -> int:
        """Return the gap for a code without units, as the number of units before it.

        The gap is behind the unit that attends most to the left neighbor. If the code is glued to a word on its right only,
        the gap is before the unit that attends most to that word.
        """
        num_before = bisect_right(self._unit_ends, slot.start)
        if not num_before or start == end:
            return start
        if num_before == len(self.source_units):
            return end
        behind = not _is_word(slot.after) or _is_word(slot.before)
        column = self.weights[start:end, num_before - 1 if behind else num_before]
        if not column.any():
            gap = start + round((end - start) * num_before / len(self.source_units))
        else:  # of equal units, the last for a gap behind it, and the first for a gap before it
            gap = end - int(column[::-1].argmax()) if behind else start + int(column.argmax())
        for node in elements:
            if node.start < gap < node.end:
                return node.end if behind else node.start
        return gap


class _Writer:
    """Writer of a translation with its codes. White space between two units is outside the elements that begin or end there."""

    def __init__(self, projection: _Projection, *, is_escaped: bool) -> None:
        self.target, self.units = projection.target, projection.target_units
        self.is_escaped = is_escaped
        self.output: list[str] = []
        self.position = 0

    def write(self, root: _Node) -> str:
        self._write_children(root)
        self._write_text(len(self.target))
        return "".join(self.output)

    def _write_text(self, end: int) -> None:
        text = self.target[self.position : end]
        self.output.append(escape(text) if self.is_escaped else text)
        self.position = max(self.position, end)

    def _write_children(self, node: _Node) -> None:
        for child in node.children:
            assert child.slot is not None
            part = child.slot.part
            if isinstance(part, Element):
                self._write_text(self._get_start(child.start))
                self.output.append(part.start_tag)
                self._write_children(child)
                if child.end > child.start:
                    self._write_text(self.units[child.end - 1][1])
                self.output.append(part.end_tag)
            else:
                self._write_point(child, node)
        if node.slot is not None and node.end > node.start:
            self._write_text(self.units[node.end - 1][1])

    def _get_start(self, gap: int) -> int:
        """Return the position before the unit behind a gap."""
        return self.units[gap][0] if gap < len(self.units) else len(self.target)

    def _write_point(self, point: _Node, parent: _Node) -> None:
        """Write a point. It has a space where the source or the translation has one, and the script beside it uses spaces."""
        slot, gap = point.slot, point.start
        assert slot is not None
        left_end, right_start = self.units[gap - 1][1] if gap else 0, self._get_start(gap)
        self._write_text(left_end)
        left, right = self.target[:left_end][-1:], self.target[right_start : right_start + 1]
        has_space = right_start > left_end
        is_first = parent.slot is not None and gap == parent.start
        is_last = parent.slot is not None and gap == parent.end
        if not is_first and _takes_space(left, _NO_SPACE_AFTER) and not _is_word(slot.before):
            self._write_space(slot.before.isspace() or has_space)
        self.output.append(slot.part.markup if isinstance(slot.part, Point) else "")
        if is_last:
            return
        self.position = max(self.position, right_start)
        if _takes_space(right, _NO_SPACE_BEFORE) and not _is_word(slot.after):
            self._write_space(slot.after.isspace() or has_space)

    def _write_space(self, is_needed: bool) -> None:
        if is_needed and self.output and not self.output[-1][-1:].isspace():
            self.output.append(" ")


def _is_word(character: str) -> bool:
    """Return whether this is a letter or digit of a script with spaces between words."""
    return character.isalnum() and not _UNSPACED_CHARACTER.match(character)


def _takes_space(neighbor: str, exceptions: frozenset[str]) -> bool:
    """Return whether a space can stand between a code and this character of the translation."""
    return bool(neighbor) and neighbor not in exceptions and not _UNSPACED_CHARACTER.match(neighbor)


def find_maximum_subarray(gains: Sequence[float]) -> tuple[float, int, int]:
    """Return the largest sum of a non-empty run of numbers, its start, and the position after its end (Kadane 1984).

    Raises ValueError for an empty sequence.
    """
    if not gains:
        raise ValueError("find_maximum_subarray: there are no numbers")
    best, total, start = (gains[0], 0, 1), 0.0, 0
    for index, gain in enumerate(gains):
        if total <= 0:
            total, start = 0.0, index
        total += gain
        if total > best[0]:
            best = (total, start, index + 1)
    return best
