"""Fluent files (.ftl): the patterns of messages, terms and attributes of messages, and each variant of a selector.

A placeable such as `{ $name }` stays in its text. In a pattern with a selector, the variants are texts, each for itself.
Source: the grammar of Fluent 1.0, https://github.com/projectfluent/fluent/blob/main/spec/fluent.ebnf
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import decode
from dragoman.documents.plural_forms import CATEGORIES, list_missing_categories
from dragoman.documents.reading import check_goes_on, check_texts
from dragoman.errors import DataError

_ENTRY = re.compile(r"(-?[a-zA-Z][\w-]*+)[ ]*+=[ ]*+")
_ATTRIBUTE = re.compile(r"[ ]++\.([a-zA-Z][\w-]*+)[ ]*+=[ ]*+")
_VARIANT = re.compile(r"[ \t\r\n]*+(\*?)\[[ \t\r\n]*+([\w.-]++)[ \t\r\n]*+\][ ]*+")
_STRING = r'"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+"'
_SELECTOR = re.compile(rf"\{{[ \t\r\n]*+(?:[^{{}}\"\r\n-]++|-(?!>[ ]*+\r?\n)|{_STRING}|\{{[^{{}}\r\n]*+\}})*+->[ ]*+\r?\n")
_LITERAL = rf"\{{[ \t\r\n]*+{_STRING}[ \t\r\n]*+\}}"
_PIECE = re.compile(rf"{_LITERAL}|\n[ \t\r\n]*+|[{{}}]|[^{{}}\n]++")
_ARROW_OR_BRACE = re.compile(rf"{_LITERAL}|->|[{{}}]")
_CONTINUATION = re.compile(r"(?:\n[ ]*+\r?(?=\n))*+\n[ ]++(?![.\[*}\s])")
MAX_DEPTH = 20
"""Most selectors in selectors."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Text of a message or a variant. start, end: its characters. key: with the attribute. form: key of the variant"""

    key: str
    start: int
    end: int
    form: str = ""


def parse_ftl(content: bytes) -> Document:
    """Return the document of a Fluent file. Raises DataError for a line that is no part of an entry."""
    text = decode(content)
    patterns = list(_read_patterns(text.text))
    num_mixed = 0
    units: list[Unit] = []
    places: dict[str, _Pattern] = {}
    for number, pattern in enumerate(patterns):
        source = _read_text(text.text[pattern.start : pattern.end])
        if _has_selector(source):
            num_mixed += 1
        elif source.strip():
            form = pattern.form.rpartition(".")[2]
            key = f"{pattern.key}[{pattern.form}]" if pattern.form else pattern.key
            unit = Unit(str(number), source, context=key, key=key, plural_form=form if form in CATEGORIES else "")
            units.append(unit)
            check_texts(len(units), len(content))
            places[unit.id] = pattern
    if not patterns:
        raise DataError("the file has no message, so it is no Fluent file", code="invalid-format")

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        pattern = places[unit.id]
        line_start = text.text.rfind("\n", 0, pattern.start) + 1
        own_indent = len(text.text[line_start : pattern.start]) - len(text.text[line_start : pattern.start].lstrip(" "))
        written = _write_text(translation.text, f"{text.newline}{' ' * (own_indent + 4)}")
        return [text.make_edit(pattern.start, pattern.end, written)]

    def make_plural_edits(language: str) -> Sequence[Edit]:
        """Return the edits that add variants of missing categories before the one of `other`."""
        edits = []
        forms = {(pattern.key, pattern.form) for pattern in patterns}
        for pattern in patterns:
            stem, dot, form = pattern.form.rpartition(".")
            present = {name for name in CATEGORIES if (pattern.key, f"{stem}{dot}{name}") in forms}
            if form != "other" or "one" not in present:
                continue
            bracket = text.text.rfind("[", 0, pattern.start)
            start = bracket - (text.text[bracket - 1] == "*")
            indent = text.text[text.text.rfind("\n", 0, start) : start]
            value = text.text[pattern.start : pattern.end]
            if not indent.strip():
                added = "".join(f"[{name}] {value}{indent}" for name in list_missing_categories(language, present))
                edits += [text.make_edit(start, start, added)] if added else []
        return edits

    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "ftl",
        make_edits,
        make_plural_edits=make_plural_edits,
        other_units=others,
        skipped={"messages with a selector inside a text": num_mixed} if num_mixed else {},
    )


def _has_selector(text: str) -> bool:
    """Return whether a text has an arrow inside braces."""
    depth = 0
    for match in _ARROW_OR_BRACE.finditer(text):
        if match[0] == "->" and depth:
            return True
        depth = max(depth + (match[0] == "{") - (match[0] == "}"), 0)
    return False


def _read_text(pattern: str) -> str:
    """Return a pattern as a reader sees it: the indentation of its lines is none of the text."""
    first, *rest = pattern.split("\n")
    indents = [len(line) - len(line.lstrip(" ")) for line in rest if line.strip()]
    common = min(indents, default=0)
    return "\n".join([first.rstrip("\r"), *(line[common:].rstrip("\r") for line in rest)]).strip("\n")


def _write_text(text: str, newline: str) -> str:
    """Return a text as a pattern. A line that begins with a sign of the syntax gets a placeable."""
    lines = [re.sub(r"^( *)([\[*.])", r'\1{"\2"}', line) if number else line for number, line in enumerate(text.split("\n"))]
    return newline.join(lines)


def _read_patterns(text: str) -> Iterator[_Pattern]:
    """Yield the patterns of a file, and those of variants in the place of a pattern with a selector."""
    position = 0
    entry = ""
    while position < len(text):
        check_goes_on()
        end = text.find("\n", position) + 1 or len(text)
        line = text[position:end]
        if not line.strip() or line.startswith("#"):
            position = end
            continue
        attribute = _ATTRIBUTE.match(text, position) if entry else None
        match = attribute or _ENTRY.match(text, position)
        if match is None:
            number = text.count("\n", 0, position) + 1
            raise DataError(f"line {number}: is no entry of Fluent", code="invalid-format")
        entry = entry if attribute else match[1]
        key = f"{entry}.{match[1]}" if attribute else entry
        last = _find_pattern_end(text, match.end())
        if not (attribute and entry[0] == "-"):  # the attribute of a term is a selector of messages, which nobody reads
            yield from _divide(text, key, match.end(), last, "", 0)
        position = text.find("\n", last) + 1 or len(text)


def _find_pattern_end(text: str, position: int) -> int:
    """Return the end of a pattern, which goes on in indented lines and inside braces."""
    depth = 0
    end = position
    while piece := _PIECE.match(text, position):
        check_goes_on()
        if not depth and piece[0][0] == "\n":
            piece = _CONTINUATION.match(text, position)
            if piece is None:
                break
        depth = max(depth + (piece[0] == "{") - (piece[0] == "}"), 0)
        position = piece.end()
        end = _find_visible_end(piece, end)
    return end


def _find_visible_end(piece: re.Match[str], end: int) -> int:
    """Return the end of a piece without the white space behind it, or `end` if it is nothing else."""
    length = len(piece[0].rstrip())
    return piece.start() + length if length else end


def _divide(text: str, key: str, start: int, end: int, form: str, depth: int) -> Iterator[_Pattern]:
    """Yield a pattern, or the variants of its selector if it is nothing else."""
    start += len(text[start:end]) - len(text[start:end].lstrip())
    selector = _SELECTOR.match(text, start, end)
    if selector is None or depth == MAX_DEPTH or text[end - 1] != "}":
        yield _Pattern(key, start, end, form)
        return
    position = selector.end()
    while match := _VARIANT.match(text, position, end):
        last = _find_variant_end(text, match.end(), end)
        yield from _divide(text, key, match.end(), last, f"{form}.{match[2]}" if form else match[2], depth + 1)
        position = last


def _find_variant_end(text: str, position: int, limit: int) -> int:
    """Return the end of the text of a variant: before the next one, or before the brace that ends the selector."""
    depth = 0
    end = position
    while piece := _PIECE.match(text, position, limit):
        check_goes_on()
        if not depth and (piece[0] == "}" or (piece[0][0] == "\n" and _VARIANT.match(text, piece.end(), limit))):
            break
        depth += (piece[0] == "{") - (piece[0] == "}")
        position = piece.end()
        end = _find_visible_end(piece, end)
    return end
