"""Property files of Java, and string files of Apple: the value of each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, make_line_error
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
    is_ascii = text.text.isascii()

    def read(written: str) -> str:
        return _unescape(_CONTINUATION.sub(r"\1", written))

    def write(value: str) -> str:
        written = _escape_property(value)
        return "".join(c if c.isascii() else _escape_character(c) for c in written) if is_ascii else written

    return _make_document(text, "properties", _read_properties(text.text), read, write, _escape_character)


def _has_message_format(units: Sequence[Unit]) -> bool:
    """Return whether texts with arguments are those of Java's MessageFormat: none has an apostrophe that is not doubled."""
    arguments = [unit.source for unit in units if _ARGUMENT.search(unit.source)]
    return bool(arguments) and not any("'" in _DOUBLED.sub("", text) for text in arguments)


def parse_strings(content: bytes) -> Document:
    """Return the document of a .strings file. Raises DataError for other content than keys with values."""
    text = decode(content)

    def write(value: str) -> str:
        return re.sub(r'["\\]', r"\\\g<0>", value).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")

    return _make_document(text, "strings", _read_strings(text.text), _unescape, write)


def _make_document(
    text: EncodedText,
    format_name: str,
    values: Iterable[tuple[str, int, int]],
    read: Callable[[str], str],
    write: Callable[[str], str],
    escape: Callable[[str], str] | None = None,
) -> Document:
    """Return the document of a file.

    values: keys with the characters of their values
    read, write: functions from what the file has for a value to the value, and back
    escape: as in `EncodedText.make_edit`
    """
    units: list[Unit] = []
    spans: dict[str, tuple[int, int]] = {}
    blanks: dict[str, tuple[int, int]] = {}
    for number, (key, start, end) in enumerate(values):
        value = read(text.text[start:end])
        if value.strip():
            unit = Unit(str(number), value, context=key, key=key)
            units.append(unit)
            check_texts(len(units), len(text.content))
            spans[unit.id] = start, end
        else:
            blanks[key] = start, end

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        return [text.make_edit(*spans[unit.id], write(translation.text), escape=escape)]

    def find_blanks() -> dict[str, Edit]:
        return {key: text.make_edit(start, end, text.text[start:end]) for key, (start, end) in blanks.items()}

    if format_name == "properties" and _has_message_format(units):
        units = [replace(unit, rules=unit.rules.enable("apostrophes")) for unit in units]
    texts, others = divide_units(units)
    return Document(text.content, texts, format_name, make_edits, other_units=others, find_values=find_blanks)


def _read_strings(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each key of a .strings file with the characters of its value."""
    position = num_values = 0
    while position < len(text):
        match = _APPLE_TOKEN.match(text, position)
        if match is None:
            raise make_line_error(text, position, "is not a line of a .strings file")
        position = match.end()
        if match["value"]:
            yield match["key"].strip('"'), match.start("value") + 1, match.end("value") - 1
            num_values += 1
    if not num_values:
        raise DataError("the file has no key with a value, so it is no .strings file", code="invalid-format")


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
