"""Plain text files: paragraphs between blank lines, and items of lists.

A paragraph that is wrapped at a column is read as one line, and its translation is wrapped there again. In any other one, each
line is translated by itself. Indents, bullets and numbers at the start of a line stay as they are. A long paragraph is several
texts, which end at the ends of sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
from dragoman.documents.reading import check_texts
from dragoman.text.sentences import Span, cut_long_spans, split_sentences

WRAP_WIDTHS = (50, 120)
"""Fewest and most columns of the longest line of a wrapped paragraph."""
MAX_CHARACTERS = 100_000
"""Most characters of a part of a line. A text of several lines ends with the first sentence behind them."""

_SENTENCE_ENDS = tuple(".!?…:”。！？")
_BULLET = r"(?:[-*+•–—>#|]+|\(?\d{1,3}[.)]|[a-zA-Z][.)])(?:[ \t]+|$)"
_LINE_START = re.compile(rf"[ \t]*(?P<bullet>{_BULLET})?")
_BREAK = re.compile(rf"(?<![ \t]) (?![ \t]|{_BULLET})")


@dataclass(frozen=True, slots=True)
class _Line:
    """Line of a file, or part of a long one.

    start, end: characters of its text
    column: column of the first one
    begins_text: whether it is the item of a list, or no first part
    """

    start: int
    end: int
    column: int
    begins_text: bool
    text: str

    @property
    def width(self) -> int:
        """Columns of the line."""
        return self.column + len(self.text)


def parse(content: bytes) -> Document:
    """Return the document of a text file. Raises DataError for bytes that are no text."""
    text = decode(content)
    units: list[Unit] = []
    blocks: dict[str, Sequence[_Line]] = {}
    for block in _read_blocks(text.text):
        is_wrapped = _is_wrapped(block)
        source = (" " if is_wrapped else "\n").join(line.text for line in block)
        unit = Unit(str(len(units)), source, keep_line_breaks=not is_wrapped)
        units.append(unit)
        check_texts(len(units), len(content))
        blocks[unit.id] = block

    def is_written(written: bytes, translations: Mapping[str, UnitTranslation]) -> bool:
        """Return whether the words of the file are as they should be. A translation may read as the item of a list."""
        pieces, position = [], 0
        for name, block in blocks.items():
            if name in translations:
                pieces += [text.text[position : block[0].start], translations[name].text]
                position = block[-1].end
        return decode(written).text.split() == "".join([*pieces, text.text[position:]]).split()

    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "text",
        lambda unit, translation: _make_edits(text, blocks[unit.id], unit, translation),
        is_written=is_written,
        other_units=others,
    )


def _read_blocks(text: str) -> Iterator[list[_Line]]:
    """Yield the lines of each paragraph and of each item of a list. A long one ends where a sentence and its line do."""
    for is_text, paragraph in groupby(_read_lines(text), key=lambda line: bool(line.text)):
        if is_text:
            block: list[_Line] = []
            for line in paragraph:
                size = line.end - block[0].start if block else 0
                is_full = size > MAX_CHARACTERS and (size > 2 * MAX_CHARACTERS or block[-1].text.endswith(_SENTENCE_ENDS))
                if block and (line.begins_text or is_full):
                    yield block
                    block = []
                block.append(line)
            yield block


def _read_lines(text: str) -> Iterator[_Line]:
    """Yield the lines, and parts of long ones."""
    position = 0
    for content in split_lines(text):
        match = _LINE_START.match(content)
        assert match is not None
        stripped = content[match.end() :].rstrip()
        for first, last in _divide(stripped):
            column = match.end() + first
            is_start = match["bullet"] is not None or first > 0
            yield _Line(position + column, position + match.end() + last, column, is_start, stripped[first:last])
        position += len(content)


def _divide(line: str) -> list[Span]:
    """Return the parts of a line, which have whole sentences if these are not too long."""
    if len(line) <= MAX_CHARACTERS:
        return [(0, len(line))]
    parts: list[Span] = []
    for start, end in cut_long_spans(line, split_sentences(line, ""), (), MAX_CHARACTERS):
        if parts and end - parts[-1][0] <= MAX_CHARACTERS:
            start = parts.pop()[0]
        parts.append((start, end))
    return parts


def _is_wrapped(block: Sequence[_Line]) -> bool:
    """Return whether no line has room for the first word of the next one. Lines that all have tabs are those of a table."""
    if all("\t" in line.text for line in block):
        return False
    width = max(line.width for line in block)
    is_full = all(line.width + 1 + len(following.text.split()[0]) > width for line, following in pairwise(block))
    return is_full and (len(block) == 1 or WRAP_WIDTHS[0] <= width <= WRAP_WIDTHS[1])


def _make_edits(text: EncodedText, block: Sequence[_Line], unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
    """Return the edit of a block. Its second line shows what stands between two lines."""
    if len(block) == 1:
        return [text.make_edit(block[0].start, block[0].end, translation.text)]
    parts = translation.text.split("\n")
    indent = text.text[block[1].start - block[1].column : block[1].start]
    if not unit.keep_line_breaks:
        parts = _wrap(" ".join(parts), max(line.width for line in block), block[0].column, block[1].column)
    return [text.make_edit(block[0].start, block[-1].end, f"{text.newline}{indent}".join(parts))]


def _wrap(text: str, width: int, first_column: int, column: int) -> list[str]:
    """Return a text in lines. No line begins with what reads as a bullet."""
    first, *words = _BREAK.split(text)
    lines = [first]
    for word in words:
        start = first_column if len(lines) == 1 else column
        if start + len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
