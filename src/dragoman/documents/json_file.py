"""JSON and JSON5 files with texts: values of i18next and others, Chrome's messages.json, and ARB. Comments are allowed.

Keys stay as they are, and so do notes for translators and notes for programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, make_line_error
from dragoman.documents.known_layouts import find_layout
from dragoman.documents.plural_forms import (
    CATEGORIES,
    KeyTree,
    find_plural_form,
    list_i18next_ends,
    list_missing_categories,
)
from dragoman.documents.reading import check_goes_on, check_texts, join_keys
from dragoman.errors import DataError

Path = tuple[str, ...]

MAX_DEPTH = 200
"""Most objects in objects."""

_DECODER = json.JSONDecoder(strict=False)
_TOKEN = re.compile(
    r'(?P<space>[ \t\r\n]+|//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\\n]++|\\.)*+")|(?P<mark>[{}\[\]:,])|(?P<word>[-+.\w]+)',
    re.DOTALL,
)
_TOKEN_JSON5 = re.compile(
    r"(?P<space>[\s\ufeff]+|//[^\n]*|/\*.*?\*/)|(?P<string>\"(?:[^\"\\\n]++|\\(?:\r\n|.))*+\"|'(?:[^'\\\n]++|\\(?:\r\n|.))*+')"
    r"|(?P<mark>[{}\[\]:,])|(?P<word>(?:[-+.\w$]++|\\u[0-9a-fA-F]{4})++)",
    re.DOTALL,
)
"""Token of JSON5, whose strings and keys have more forms; source: https://spec.json5.org"""
_ESCAPE_JSON5 = re.compile(r'\\(?:x([0-9a-fA-F]{2})|\r\n|.)|"', re.DOTALL)
_BLANK = r"[ \t\r\n]*+"
# Items of a list, and members of an object, that are numbers, true, false and null. A slice is short.
_ITEMS = re.compile(rf"(?:{_BLANK},{_BLANK}[-+.\w]++){{1,4096}}+")
_MEMBERS = re.compile(rf'(?:{_BLANK},{_BLANK}"[^"\\\n]*+"{_BLANK}:{_BLANK}[-+.\w]++){{1,4096}}+')
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_HALF_PAIR = re.compile(r"\\(\\u[dD][89a-fA-F][0-9a-fA-F]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def parse(content: bytes) -> Document:
    """Return the document of a JSON file. Raises DataError for a file that is not JSON or whose root is a single value."""
    return _parse(content, is_json5=False)


def parse_json5(content: bytes) -> Document:
    """Return the document of a JSON5 file. Raises DataError as `parse` does."""
    return _parse(content, is_json5=True)


def _parse(content: bytes, *, is_json5: bool) -> Document:
    text = decode(content)
    strings = list(read_strings(text.text, is_json5=is_json5))
    is_chrome = any(string.path[1:] == ("message",) for string in strings) and all(len(string.path) >= 2 for string in strings)
    # A file in ASCII with escaped letters is written in ASCII again.
    is_ascii = text.text.isascii() and re.search(r"\\u(?!00[01])[0-9a-fA-F]{4}", text.text) is not None
    keys = KeyTree(string.path for string in strings)
    holds_language = find_layout([string.path for string in strings])
    units: list[Unit] = []
    spans: dict[str, tuple[int, int]] = {}
    broken_pairs: set[str] = set()  # units with half of a surrogate pair
    language: JsonString | None = None
    for number, string in enumerate(strings):
        path = string.path
        if path == ("@@locale",):
            language = string
        literal = text.text[string.start : string.end]
        value = decode_string(_to_json(literal) if is_json5 else literal)
        is_note = any(part.startswith("@") for part in path) or (is_chrome and path[1:] != ("message",))
        if not is_note and value.strip() and (holds_language is None or holds_language(path)):
            key = join_keys(path)
            unit = Unit(str(number), value, context=key, plural_form=find_plural_form(path, keys), key=key)
            units.append(unit)
            spans[unit.id] = string.start, string.end
            if "\\u" in value and _SURROGATE.search(_DECODER.decode(_to_json(literal))):
                broken_pairs.add(unit.id)

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        written = json.dumps(translation.text, ensure_ascii=is_ascii)
        if unit.id in broken_pairs:
            written = _HALF_PAIR.sub(r"\1", written)
        if not is_ascii:
            written = _CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], written)
        start, end = spans[unit.id]
        if text.text[start] == "'":
            written = "'" + written[1:-1].replace('\\"', '"').replace("'", r"\'") + "'"
        return [text.make_edit(start, end, written, escape=lambda character: json.dumps(character)[1:-1])]

    def make_language_edits(translations: Mapping[str, UnitTranslation], code: str) -> Sequence[Edit]:
        if language is None or not code:
            return []
        return [text.make_edit(language.start, language.end, json.dumps(code.replace("-", "_")))]

    def find_values() -> dict[str, Edit]:
        values: dict[str, Edit] = {}

        def add(path: Path, start: int, end: int) -> None:
            if text.text[start] not in "{[":
                values[join_keys(path)] = text.make_edit(start, end, text.text[start:end])

        with suppress(DataError):  # that there are too many
            for string in read_strings(text.text, is_json5=is_json5, on_other=add):
                if not text.text[string.start + 1 : string.end - 1].strip():
                    add(string.path, string.start, string.end)
        return values

    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "json5" if is_json5 else "json",
        make_edits,
        source_language=decode_string(text.text[language.start : language.end]) if language else "",
        make_document_edits=make_language_edits,
        make_plural_edits=partial(_make_plural_edits, text, strings, keys),
        other_units=others,
        find_values=dict if holds_language else find_values,
    )


def _make_plural_edits(text: EncodedText, strings: Sequence[JsonString], keys: KeyTree, language: str) -> Sequence[Edit]:
    """Return the edits that add the missing keys of plural forms before each key of `other`."""
    edits: list[Edit] = []
    has_count = re.search(r"\{\{\s*+count\b", text.text) is not None  # else `_plural` is no form of i18next 3
    for string in strings:
        *parents, name = string.path or ("",)
        end = "_plural" if name.endswith("_plural") else "other"
        stem = name.removesuffix(end)
        if end == "_plural" and has_count and (*parents, stem) in keys and string.key_end:
            missing = [form for form in list_i18next_ends(language) if (*parents, stem + form) not in keys]
        elif find_plural_form(string.path, keys) == "other":
            missing = list_missing_categories(language, {form for form in CATEGORIES if (*parents, stem + form) in keys})
        else:
            continue
        before, _, after = text.text[string.key_start : string.key_end].rpartition(end)
        indent_start = string.key_start
        while text.text[indent_start - 1] in " \t\r\n":
            indent_start -= 1
        indent = text.text[indent_start : string.key_start]
        behind_key = text.text[string.key_end : string.end]
        added = [f"{before}{form}{after}{behind_key},{indent}" for form in missing]
        edits += [text.make_edit(string.key_start, string.key_start, "".join(added))] if added else []
    return edits


def _to_json(token: str) -> str:
    """Return a string or a key of JSON5 as a string of JSON, with the escapes of JSON."""

    def convert(match: re.Match[str]) -> str:
        sign = match[0][1:]
        if not sign or match[1]:  # a quotation mark, or an escape of two digits
            return f"\\u00{match[1]}" if match[1] else '\\"'
        if sign[0] in "\r\n\u2028\u2029":
            return ""
        return {"v": "\\u000b", "0": "\\u0000"}.get(sign, match[0] if sign in '"\\/bfnrtu' else sign)

    body = token[1:-1] if token[0] in "\"'" else token
    return f'"{_ESCAPE_JSON5.sub(convert, body)}"'


def decode_string(quoted: str) -> str:
    """Return the text of a string. Half of a surrogate pair stays an escape, because no encoding can write it."""
    value: str = _DECODER.decode(quoted)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)


@dataclass(frozen=True, slots=True)
class JsonString:
    """Value that is a string.

    path: keys of the objects around it, and its own
    start, end: its place, with the quotation marks
    key_start, key_end: place of its key; in a list, both are 0
    """

    path: Path
    start: int
    end: int
    key_start: int
    key_end: int


def read_strings(
    text: str, *, is_json5: bool = False, on_other: Callable[[Path, int, int], None] | None = None
) -> Iterator[JsonString]:
    """Yield the values that are strings. Raises DataError, with the line, for other content than JSON or JSON5.

    An element of a list has its number as its key.

    on_other: called with the path and the place of each other value, of an object at its end
    """
    pattern = _TOKEN_JSON5 if is_json5 else _TOKEN
    stack: list[tuple[str, str]] = []  # closing bracket and present key
    starts: list[int] = []
    key_start = key_end = 0
    expected = "root"
    position = num_cells = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            raise _syntax_error(text, position)
        start, position = match.span()
        token = match[0]
        if match["space"]:
            continue
        if not position & 0xFF:
            check_goes_on()
        is_key = expected in ("key", "key or end") and bool(match["string"] or (is_json5 and match["word"]))
        if match["string"] or is_key:
            try:
                string = _DECODER.decode(_to_json(token) if is_json5 else token)
            except ValueError:
                raise _syntax_error(text, start) from None
        if expected in ("value", "value or end") and (match["string"] or match["word"]):
            if match["string"]:
                key_span = (key_start, key_end) if stack and stack[-1][0] == "}" else (0, 0)
                num_cells += 1 + len(stack) // 8  # memory holds the keys around each
                check_texts(num_cells, len(text))
                yield JsonString(tuple(key for _, key in stack), start, position, *key_span)
            elif on_other is not None:
                num_cells += 1
                check_texts(num_cells, len(text))
                on_other(tuple(key for _, key in stack), start, position)
            expected = "comma or end"
            while (
                match["word"]
                and stack
                and on_other is None
                and (run := (_ITEMS if stack[-1][0] == "]" else _MEMBERS).match(text, position))
            ):
                check_goes_on()
                closing, key = stack[-1]
                stack[-1] = closing, str(int(key) + run[0].count(",")) if closing == "]" else ""
                position = run.end()
        elif expected in ("root", "value", "value or end") and token in "{[":
            if len(stack) == MAX_DEPTH:
                raise DataError(f"more than {MAX_DEPTH} objects are in each other", code="invalid-format")
            num_cells += 1
            check_texts(num_cells, len(text))
            stack.append(("}", "") if token == "{" else ("]", "0"))
            starts.append(start)
            expected = "key or end" if token == "{" else "value or end"
        elif is_key:
            stack[-1] = ("}", string)
            key_start, key_end = start, position
            expected = "colon"
        elif expected == "colon" and token == ":":
            expected = "value"
        elif expected == "comma or end" and token == ",":
            closing, key = stack[-1]
            stack[-1] = (closing, str(int(key) + 1)) if closing == "]" else (closing, key)
            expected = "key or end" if closing == "}" else "value or end"  # a comma may stand before the end
        elif expected.endswith("or end") and stack and token == stack[-1][0]:
            stack.pop()
            object_start = starts.pop()
            if on_other is not None:
                on_other(tuple(key for _, key in stack), object_start, position)
            expected = "comma or end" if stack else "end"
        else:
            raise _syntax_error(text, start)
    if expected != "end":
        raise DataError("the file ends within an object, or has none", code="invalid-format")


def _syntax_error(text: str, position: int) -> DataError:
    return make_line_error(text, position, f"{text[position : position + 20]!r} is not JSON")
