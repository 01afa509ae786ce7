"""Property files of Java, and string files of Apple: the value of each key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode
from dragoman.documents.reading import check_lines, check_texts
from dragoman.errors import DataError
from dragoman.text.unicode_forms import join_surrogates

# The key ends at the first separator without a backslash before it.
_KEY = re.compile(r"[ \t\f]*((?:\\.|[^\\\s=:]++)++)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ARGUMENT = re.compile(r"\{\d+\s*[,}]")
_DOUBLED = re.compile(r"''|'[{}#][^']*+'")
_ODD_BACKSLASHES = re.compile(r"(?<!\\)(?:\\\\)*+\\$")
_CONTINUATION = re.compile(r"(?<!\\)((?:\\\\)*+)\\(?:\r\n|[\r\n])[ \t\f]*")
# Java ends a line at each of them, also in a file of mixed line ends.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{4}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_APPLE_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<key>"(?:[^"\\]++|\\.)*+"|[\w.$/:-]+)\s*=\s*(?P<value>"(?:[^"\\]++|\\.)*+")\s*;""", re.DOTALL
)


def parse_properties(content: bytes) -> Document:
    """Return the document of a .properties file, in UTF-8 or else in Latin-1.

    A file in ASCII is written in ASCII, with escapes. Raises DataError for a file with a key that is not one.
    """
    text = _decode(content)
    units: list[Unit] = []
    spans: dict[str, tuple[int, int]] = {}
    blanks: dict[str, tuple[int, int]] = {}
    for number, (key, start, end) in enumerate(_read_properties(text.text)):
        value = _unescape(_CONTINUATION.sub(r"\1", text.text[start:end]))
        if value.strip():
            unit = Unit(str(number), value, context=key, key=key)
            units.append(unit)
            check_texts(len(units), len(content))
            spans[unit.id] = start, end
        else:
            blanks[key] = start, end
    is_ascii = text.text.isascii()

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        written = _escape_property(translation.text)
        if is_ascii:
            written = "".join(c if c.isascii() else _escape_character(c) for c in written)
        return [text.make_edit(*spans[unit.id], written, escape=_escape_character)]

    if _has_message_format(units):
        units = [replace(unit, rules=unit.rules.enable("apostrophes")) for unit in units]
    texts, others = divide_units(units)
    find_values = partial(_find_blanks, text, blanks)
    return Document(content, texts, "properties", make_edits, other_units=others, find_values=find_values)


def _has_message_format(units: Sequence[Unit]) -> bool:
    """Return whether texts with arguments are those of Java's MessageFormat: none has an apostrophe that is not doubled."""
    arguments = [unit.source for unit in units if _ARGUMENT.search(unit.source)]
    return bool(arguments) and not any("'" in _DOUBLED.sub("", text) for text in arguments)


def parse_strings(content: bytes) -> Document:
    """Return the document of a .strings file. Raises DataError for other content than keys with values."""
    text = decode(content)
    units: list[Unit] = []
    spans: dict[str, tuple[int, int]] = {}
    blanks: dict[str, tuple[int, int]] = {}
    position = number = 0
    while position < len(text.text):
        match = _APPLE_TOKEN.match(text.text, position)
        if match is None:
            line = text.text.count("\n", 0, position) + 1
            raise DataError(f"line {line}: is not a line of a .strings file", code="invalid-format")
        position = match.end()
        if match["value"]:
            value = _unescape(match["value"][1:-1])
            if value.strip():
                key = match["key"].strip('"')
                unit = Unit(str(number), value, context=key, key=key)
                units.append(unit)
                check_texts(len(units), len(content))
                spans[unit.id] = match.start("value") + 1, match.end("value") - 1
            else:
                blanks[match["key"].strip('"')] = match.start("value") + 1, match.end("value") - 1
            number += 1
    if not number:
        raise DataError("the file has no key with a value, so it is no .strings file", code="invalid-format")

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        written = re.sub(r'["\\]', r"\\\g<0>", translation.text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        return [text.make_edit(*spans[unit.id], written)]

    texts, others = divide_units(units)
    find_values = partial(_find_blanks, text, blanks)
    return Document(content, texts, "strings", make_edits, other_units=others, find_values=find_values)


def _find_blanks(text: EncodedText, spans: Mapping[str, tuple[int, int]]) -> dict[str, Edit]:
    return {key: text.make_edit(start, end, text.text[start:end]) for key, (start, end) in spans.items()}


def _decode(content: bytes) -> EncodedText:
    try:
        return decode(content)
    except DataError as error:
        if error.code != "invalid-encoding":
            raise
        return decode(content, "latin-1")


def _read_properties(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each key with the span of its value, which may go on over lines that end with a backslash."""
    check_lines(text.count("\n") + text.count("\r"), len(text))
    lines = _LINE.findall(text)
    position = number = 0
    while number < len(lines):
        start, line = position, lines[number]
        position += len(line)
        number += 1
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        while number < len(lines) and _ODD_BACKSLASHES.search(line.rstrip("\r\n")):
            line = lines[number]
            position += len(line)
            number += 1
        end = start + len(text[start:position].rstrip("\r\n"))
        match = _KEY.match(text, start, end)
        if match is None:
            raise DataError(f"line {number}: has no key", code="invalid-format")
        yield _unescape(match[1]), min(match.end(), end), end


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPED.get(code, code)

    return join_surrogates(_ESCAPE.sub(replace, text))


def _escape_character(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[index : index + 2].hex()}" for index in range(0, len(data), 2))


def _escape_property(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    for letter, character in _ESCAPED.items():
        escaped = escaped.replace(character, f"\\{letter}")
    escaped = re.sub(r"[\x00-\x1f]", lambda match: _escape_character(match[0]), escaped)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
