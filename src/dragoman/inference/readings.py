"""Readings: the texts that a model reads for a segment, and the way back to the segment's placeholders and tags.

A code without content is a placeholder or a tag such as `<br>`. The model reads it as a mark, `⟦0⟧`, which the search keeps. Or
it reads a placeholder as text, and may change it. Or it does not read codes at all, and attention places them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from dragoman.inference.translation_result import Translation
from dragoman.inference.unit_weights import Floats, weigh_units
from dragoman.text.inline_codes import (
    CodedText,
    Element,
    Part,
    Point,
    escape,
    list_leaves,
    list_markup,
    read_inline,
    write_parts,
)
from dragoman.text.inline_rules import COMMON_RULES, InlineRules
from dragoman.text.inline_tokens import tokenize_codes
from dragoman.text.marks import MARK_CHARACTERS, can_hold_marks, ends_in_marks, restore_spaces, to_characters, to_marks
from dragoman.text.other_scripts import MAX_WORD
from dragoman.text.projection import UnitText, divide_translation, project
from dragoman.text.references import count_sign, read_reference

_SIGNS = re.compile(r"[^\w\s]{1,3}|x")
_BRACKETS = frozenset(("()", "[]", "<>", '""', "''", "“”", "\u2018\u2019", "„“", "«»"))
_CHARACTER = re.compile(f"[{''.join(MARK_CHARACTERS)}]")


@dataclass(frozen=True)
class Reading:
    """Text that a model reads for a segment.

    text: the text, with the codes that attention places; it has a character of a mark for each code of `marked`
    marked: codes that the model reads as marks, by the number of the mark
    references: character references that the model reads as their characters
    is_clean: attention places all codes
    """

    text: CodedText
    marked: tuple[Point, ...] = ()
    references: tuple[Point, ...] = ()
    is_clean: bool = False

    @property
    def line(self) -> str:
        """Line for the model."""
        return to_marks(self.text.clean.text) if self.marked else self.text.clean.text

    @property
    def plain_source(self) -> str:
        """Source as text without tags."""
        return self._write_marked(self.text.clean.text, lambda point: point.text)

    def write_placeholders(self, translation: Translation) -> Translation:
        """Return a translation with placeholders for its marks; a tag becomes an empty text."""
        if not self.marked:
            return translation
        translation = self.read_translation(translation)
        sides = (translation.tokens, translation.source_tokens)
        tokens, source_tokens = (tuple(self._write_marked(token, lambda point: point.text) for token in side) for side in sides)
        text = self._write_marked(translation.text, lambda point: point.text)
        return replace(translation, text=text, tokens=tokens, source_tokens=source_tokens)

    def write_text(self, text: str) -> str:
        """Return a text with its pairs of tags in place as the text with all codes."""
        for point in dict.fromkeys(self.references):
            text = text.replace(point.text, point.markup)
        return self._write_marked(text, lambda point: point.markup)

    def is_kept_by(
        self,
        translation: Translation,
        segment: CodedText,
        rules: InlineRules = COMMON_RULES,
        mark_kept: Callable[[CodedText], CodedText] | None = None,
    ) -> bool:
        """Return whether a translation has each placeholder that the model read as often as the segment, and no other.

        A translation with marks must also end by itself, and not pile up marks at its end, where the search puts those that
        the model has left out.

        rules: rules by which the segment was read
        mark_kept: function that marks the words that are not translated, which are placeholders
        """
        if self.is_clean or self.text == segment:
            return True
        if not self.marked:
            names = {point.text for point in self.references}
            if any(count_sign(self.line, name) != count_sign(translation.text, name) for name in names):
                return False
            coded = _read_codes(translation.text, rules) if segment.is_escaped else read_inline(translation.text, "none", rules)
            translated = Counter(_list_placeholders((mark_kept(coded) if mark_kept else coded).parts))
            return Counter(_list_placeholders(segment.parts)) - Counter(point.text for point in self.references) == translated
        text = to_characters(translation.text)
        return (
            translation.status in ("ok", "short", "copied")
            and sorted(_CHARACTER.findall(text)) == list(MARK_CHARACTERS[: len(self.marked)])
            and (not ends_in_marks(text) or ends_in_marks(self.text.clean.text))
        )

    def read_translation(self, translation: Translation) -> Translation:
        """Return a translation with characters for its marks, and with the spaces of the source beside them."""
        if not self.marked:
            return translation
        sides = (translation.tokens, translation.source_tokens)
        tokens, source_tokens = (tuple(map(to_characters, side)) for side in sides)
        text = restore_spaces(self.text.clean.text, to_characters(translation.text))
        return replace(translation, text=text, tokens=tokens, source_tokens=source_tokens)

    def _write_marked(self, text: str, write: Callable[[Point], str]) -> str:
        """Return a text with what `write` returns for the code of each mark."""
        if not self.marked:
            return text
        return _CHARACTER.sub(lambda match: write(self.marked[MARK_CHARACTERS.index(match[0])]), text)


def place_codes(readings: Sequence[Reading], translations: Iterable[Translation]) -> Iterator[str]:
    """Yield the text of the translation of each reading, with all codes in their places. Attention places them together."""
    items = [reading.read_translation(item) for reading, item in zip(readings, translations, strict=True)]
    placed = iter(
        _place_pairs([(reading, item) for reading, item in zip(readings, items, strict=True) if reading.text.has_codes])
    )
    for reading, item in zip(readings, items, strict=True):
        plain = escape(item.text) if reading.text.is_escaped else item.text
        yield reading.write_text(next(placed) if reading.text.has_codes else plain)


def _place_pairs(coded: Sequence[tuple[Reading, Translation]]) -> list[str]:
    """Return the text of each translation with characters for its marks and the other codes of its reading."""
    # Arrays of texts of similar lengths have few zeros behind the shorter ones.
    order = sorted(range(len(coded)), key=lambda number: len(coded[number][1].text))
    coded = [coded[number] for number in order]
    pairs = [(UnitText.divide(reading.text.clean.text), divide_translation(item.text)) for reading, item in coded]

    def compute_weights() -> Iterator[Floats]:
        items = zip(coded, pairs, strict=True)
        for weights_NTS in weigh_units([item for _, item in coded], pairs):
            for weights_TS, ((reading, _), pair) in zip(weights_NTS, items, strict=False):
                if reading.marked:
                    _anchor_marks(weights_TS, *pair)
            yield weights_NTS

    placed = dict(zip(order, project([reading.text for reading, _ in coded], pairs, compute_weights()), strict=True))
    return [placed[number] for number in range(len(order))]


def read_placeholders(segment: CodedText) -> Reading:
    """Return the reading with the placeholders of a segment as text.

    A character reference is text if the segment, also its other codes, has the character in no other way. A segment with a very
    long placeholder, such as an address with the data of a picture, is read without codes.
    """
    if not segment.has_codes:
        return Reading(segment)
    points = _list_points(segment.parts)
    if not points:
        return Reading(segment)
    if any(len(point.text) > MAX_WORD for point in points):
        return read_without_codes(segment)
    references = tuple(point for point in points if point.text and read_reference(point.markup))
    merged = replace(segment, parts=tuple(_merge_points(segment.parts, lambda point: point.text or None)))
    if not references:
        return Reading(merged)
    markups = {point.text: point.markup for point in references}
    line, codes = merged.clean.text, "".join(list_markup(merged.parts))
    counts = Counter(point.text for point in references)
    has_one_markup = all(markups[point.text] == point.markup for point in references)
    if has_one_markup and all(line.count(name) == count and name not in codes for name, count in counts.items()):
        return Reading(merged, references=references)
    hidden = _merge_points(segment.parts, lambda point: None if point.plain else point.text or None)
    return Reading(replace(segment, parts=tuple(hidden)))


def read_without_codes(segment: CodedText) -> Reading:
    """Return the reading without codes. Placeholders with only signs between them stay together, as in `%d%%` and `[%s]`."""
    parts = _enclose_placeholders(list(_join_placeholders(segment.parts, segment.is_escaped)))
    return Reading(replace(segment, parts=tuple(part for part in parts if part != "")), is_clean=True)


def _join_placeholders(parts: Sequence[Part], is_escaped: bool) -> Iterator[Part]:
    """Yield the parts with one point for each run of placeholders and the signs between them."""
    run: list[Part] = []
    for part in (*parts, None):
        if _is_placeholder(part) or (isinstance(part, str) and run and _is_placeholder(run[-1]) and _SIGNS.fullmatch(part)):
            run.append(part)
            continue
        behind = [run.pop()] if run and isinstance(run[-1], str) else []
        if run:
            yield Point(write_parts(run, is_escaped=is_escaped))
        yield from behind
        run = []
        if isinstance(part, Element):
            inner = _enclose_placeholders(list(_join_placeholders(part.parts, is_escaped)))
            yield replace(part, parts=tuple(item for item in inner if item != ""))
        elif part is not None:
            yield part


def _enclose_placeholders(parts: list[Part]) -> list[Part]:
    """Return the parts with the brackets or quotation marks around a placeholder as a part of it."""
    for number in range(1, len(parts) - 1):
        before, part, after = parts[number - 1 : number + 2]
        if (
            _is_placeholder(part)
            and isinstance(before, str)
            and isinstance(after, str)
            and before[-1:] + after[:1] in _BRACKETS
        ):
            parts[number - 1 : number + 2] = before[:-1], Point(before[-1:] + part.markup + after[:1]), after[1:]
    return parts


def _is_placeholder(part: Part | None) -> TypeGuard[Point]:
    return isinstance(part, Point) and bool(part.text)


def _read_codes(text: str, rules: InlineRules) -> CodedText:
    """Return a text with its placeholders alone."""
    return CodedText(tuple(token.markup if token.is_text else Point(token.markup) for token in tokenize_codes(text, rules)))


def read_marks(segment: CodedText) -> Reading | None:
    """Return the reading with all codes without content as marks, but white space and codes without width.

    None for a segment without such codes, with more than there are marks, or whose text holds marks.
    """
    points = [point for point in _list_points(segment.parts) if not _is_unread(point)]
    if not 0 < len(points) <= len(MARK_CHARACTERS) or not can_hold_marks(segment.clean.text):
        return None
    characters = iter(MARK_CHARACTERS)
    parts = _merge_points(segment.parts, lambda point: None if _is_unread(point) else next(characters))
    return Reading(replace(segment, parts=tuple(parts)), tuple(points))


def _is_unread(point: Point) -> bool:
    return point.is_space or point.is_invisible


def _merge_points(parts: Sequence[Part], write: Callable[[Point], str | None]) -> Iterator[Part]:
    """Yield the parts with points as text. write: returns the text of a point, or None for a point that stays"""
    text = ""
    for part in parts:
        written = part if isinstance(part, str) else write(part) if isinstance(part, Point) else None
        if written is not None:
            text += written
            continue
        if text:
            yield text
        text = ""
        yield replace(part, parts=tuple(_merge_points(part.parts, write))) if isinstance(part, Element) else part
    if text:
        yield text


def _list_points(parts: Sequence[Part]) -> list[Point]:
    return [part for part in list_leaves(parts) if isinstance(part, Point)]


def _list_placeholders(parts: Sequence[Part]) -> Iterator[str]:
    return (point.text for point in _list_points(parts) if point.text)


def _anchor_marks(weights_TS: Floats, source: UnitText, target: UnitText) -> None:
    """Let each mark of a target attend to the same mark of its source alone, in place."""
    columns = {mark: column for column, mark in enumerate(source.words)}
    for number, mark in enumerate(target.words):
        if mark in MARK_CHARACTERS and mark in columns:
            weights_TS[number] = 0.0
            weights_TS[number, columns[mark]] = 1.0
