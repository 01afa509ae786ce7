"""JSON files with texts: values of i18next and others, Chrome's messages.json, and ARB. Comments are allowed.

Keys stay as they are, and so do notes for translators and values without a letter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.encoded_text import decode
from dragoman.errors import DataError

Path = tuple[str, ...]

MAX_DEPTH = 200
"""Most objects in objects."""

_TOKEN = re.compile(
    r'(?P<space>[ \t\r\n]+|//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<mark>[{}\[\]:,])|(?P<word>[-+.\w]+)',
    re.DOTALL,
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def parse(content: bytes) -> Document:
    """Return the document of a JSON file. Raises DataError for a file that is not JSON or whose root is a single value."""
    text = decode(content)
    strings = list(_read_strings(text.text))
    is_chrome = any(path[1:] == ("message",) for path, _, _ in strings) and all(len(path) >= 2 for path, _, _ in strings)
    # A file in ASCII with escaped letters is written in ASCII again.
    is_ascii = text.text.isascii() and re.search(r"\\u(?!00[01])[0-9a-fA-F]{4}", text.text) is not None
    units: list[Unit] = []
    spans: dict[str, tuple[int, int]] = {}
    for number, (path, start, end) in enumerate(strings):
        value = _decode_string(text.text[start:end])
        is_note = any(part.startswith("@") for part in path) or (is_chrome and path[1:] != ("message",))
        if not is_note and any(map(str.isalpha, value)):
            unit = Unit(str(number), value, context=".".join(path))
            units.append(unit)
            spans[unit.id] = start, end

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        written = json.dumps(translation.text, ensure_ascii=is_ascii)
        if not is_ascii:
            written = _CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], written)
        return [text.make_edit(*spans[unit.id], written, escape=lambda character: json.dumps(character)[1:-1])]

    return Document(content, units, "json", make_edits)


def _decode_string(quoted: str) -> str:
    """Return the text of a string. Half of a surrogate pair stays an escape, because no encoding can write it."""
    value: str = json.loads(quoted, strict=False)
    return re.sub(r"[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", value)


def _read_strings(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield the path and the span of each value that is a string. Raises DataError, with the line, for other content than JSON.

    An element of a list has its number as its key.
    """
    stack: list[tuple[str, str]] = []  # closing bracket and present key
    expected = "root"
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _syntax_error(text, position)
        start, position = match.span()
        token = match[0]
        if match["space"]:
            continue
        if match["string"]:
            try:
                string = json.loads(token, strict=False)
            except ValueError:
                raise _syntax_error(text, start) from None
        if expected in ("value", "value or end") and (match["string"] or match["word"]):
            if match["string"]:
                yield tuple(key for _, key in stack), start, position
            expected = "comma or end"
        elif expected in ("root", "value", "value or end") and token in "{[":
            if len(stack) == MAX_DEPTH:
                raise DataError(f"more than {MAX_DEPTH} objects are in each other", code="invalid-format")
            stack.append(("}", "") if token == "{" else ("]", "0"))
            expected = "key or end" if token == "{" else "value or end"
        elif expected in ("key", "key or end") and match["string"]:
            stack[-1] = ("}", string)
            expected = "colon"
        elif expected == "colon" and token == ":":
            expected = "value"
        elif expected == "comma or end" and token == ",":
            closing, key = stack[-1]
            stack[-1] = (closing, str(int(key) + 1)) if closing == "]" else (closing, key)
            expected = "key or end" if closing == "}" else "value or end"  # a comma may stand before the end
        elif expected.endswith("or end") and stack and token == stack[-1][0]:
            stack.pop()
            expected = "comma or end" if stack else "end"
        else:
            raise _syntax_error(text, start)
    if expected != "end":
        raise DataError("the file ends within an object, or has none", code="invalid-format")


def _syntax_error(text: str, position: int) -> DataError:
    line = text.count("\n", 0, position) + 1
    return DataError(f"line {line}: {text[position : position + 20]!r} is not JSON", code="invalid-format")
