"""PO files of gettext, which hold the translations of programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import MAX_LINE_BYTES, READ_ERRORS, describe_path, open_bytes, read_lines, to_data_error
from dragoman.text.encodings import find_codec

_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"[ \t]*')
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[[0-9]{1,2}\])?)[ \t]*(?=\")")
_KEYWORD_ORDER = ("msgctxt", "msgid", "msgid_plural", "msgstr")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "b": "\b", "f": "\f", "a": "\a", "\\": "\\", '"': '"'}
_CHARSET = re.compile(rb"charset=([\w:.-]+)")
_HEAD_BYTES = 65536
"""Bytes at the start of a file that name its encoding."""


@dataclass
class _PoMessage:
    """One message.

    line: line of its msgid
    strings: by keyword, in pieces of one line each
    """

    line: int = 0
    fuzzy: bool = False
    obsolete: bool = False
    size: int = 0
    strings: dict[str, list[str]] = field(default_factory=dict)


def read_po(path: Path | None) -> Iterator[Pair]:
    """Yield each message with its translation.

    A message with plural forms gives two pairs: the singular with the first form, and the plural with the last. The target of a
    fuzzy or missing translation is empty. Contexts are ignored, and obsolete entries are skipped.

    Raises DataError, which names the line, for syntax that gettext refuses and for an unknown encoding.
    """
    name = describe_path(path)
    has_known_encoding = path is not None and path.is_file()  # a pipe is read once, so it is taken for UTF-8
    encoding = _find_encoding(path) if path is not None and has_known_encoding else "utf-8"
    conversion_hint = "convert it: msgconv --to-code=UTF-8" + (f" {shlex.quote(name)} -o NEW.po" if path is not None else "")
    for entry in _read_messages(path, encoding or "utf-8", hint=conversion_hint):
        strings = {keyword: "".join(pieces) for keyword, pieces in entry.strings.items()}
        location = f"{name}, line {entry.line}"
        if entry.obsolete:
            continue
        if not strings["msgid"] and "msgctxt" not in strings:
            charset = _CHARSET.search(strings.get("msgstr", "").encode())
            if encoding is None or (not has_known_encoding and charset and _get_codec(charset[1]) != "utf-8"):
                stated = charset[1][:40].decode() if charset else ""
                raise DataError(f"{location}: its charset is {stated!r}, not UTF-8; {conversion_hint}", code="invalid-encoding")
            continue
        yield from _to_pairs(entry, strings, f"{name}:{entry.line}", location)


def _find_encoding(path: Path) -> str | None:
    """Return Python's name of the encoding that the head of a file states; None for one that cannot be read."""
    try:
        with open_bytes(path) as stream:
            charset = _CHARSET.search(stream.read(_HEAD_BYTES))
    except READ_ERRORS as error:
        raise to_data_error(path, error) from None
    return _get_codec(charset[1]) if charset else "utf-8"


def _get_codec(charset: bytes) -> str | None:
    """Return Python's name of an encoding, None for an unknown one. ASCII and the mark of templates are UTF-8."""
    codec = "utf-8" if charset == b"CHARSET" else find_codec(charset.decode())
    return {"ascii": "utf-8", "utf-16-le": None, "utf-16-be": None}.get(codec or "", codec)


def _to_pairs(entry: _PoMessage, strings: dict[str, str], origin: str, location: str) -> Iterator[Pair]:
    forms = [keyword for keyword in strings if keyword.startswith("msgstr")]
    has_plural = "msgid_plural" in strings
    expected = [f"msgstr[{number}]" for number in range(len(forms))] if has_plural else ["msgstr"]
    if forms != expected:
        raise DataError(
            f"{location}: has {', '.join(forms)} for a message {'with' if has_plural else 'without'} msgid_plural",
            code="invalid-format",
        )
    keyword_pairs = [("msgid", forms[0]), ("msgid_plural", forms[-1])]
    for id_keyword, translation_keyword in keyword_pairs if has_plural else keyword_pairs[:1]:
        yield Pair(
            to_single_line(strings[id_keyword]), "" if entry.fuzzy else to_single_line(strings[translation_keyword]), origin
        )


def _read_messages(path: Path | None, encoding: str, *, hint: str) -> Iterator[_PoMessage]:
    name = describe_path(path)
    entry = _PoMessage()
    current_pieces: list[str] | None = None
    for number, line in enumerate(read_lines(path, hint=hint, encoding=encoding), start=1):
        location = f"{name}, line {number}"
        text = line.strip(" \t\r")
        is_obsolete = text.startswith("#~") and not text.startswith("#~|")
        if is_obsolete:
            text = text[2:].lstrip(" \t")
        if not text:
            continue
        has_translation = any(keyword.startswith("msgstr") for keyword in entry.strings)
        if text.startswith("#"):
            if has_translation:
                yield entry
                entry = _PoMessage()
            if text.startswith("#,"):
                entry.fuzzy |= "fuzzy" in (flag.strip() for flag in text[2:].split(","))
            current_pieces = None
            continue
        if (keyword := _KEYWORD.match(text)) is not None:
            if has_translation and not keyword[1].startswith("msgstr"):
                yield entry
                entry = _PoMessage()
            if not entry.strings:
                entry.obsolete = is_obsolete
            _check_keyword_order(entry, keyword[1], location)
            entry.line = number if keyword[1] == "msgid" else entry.line
            entry.strings[keyword[1]] = []
            current_pieces = entry.strings[keyword[1]]
            text = text[keyword.end() :]
        if current_pieces is None or is_obsolete != entry.obsolete or not text.startswith('"'):
            raise DataError(f"{location}: {text[:40]!r} is not valid in a PO file here", code="invalid-format")
        entry.size += len(text)
        if entry.size > MAX_LINE_BYTES:
            raise DataError(
                f"{location}: the message of line {entry.line} is longer than {MAX_LINE_BYTES >> 20} MiB", code="input-too-long"
            )
        current_pieces.append(_unquote(text, location))
    if entry.strings:
        _check_complete(entry, name)
        yield entry


def _check_keyword_order(entry: _PoMessage, keyword: str, location: str) -> None:
    """Raise DataError for a keyword that is repeated in its entry or out of order."""
    rank = _KEYWORD_ORDER.index(keyword.partition("[")[0])
    earlier_ranks = [_KEYWORD_ORDER.index(earlier_keyword.partition("[")[0]) for earlier_keyword in entry.strings]
    if keyword in entry.strings or rank < max(earlier_ranks, default=0) or (rank > 1 and 1 not in earlier_ranks):
        raise DataError(
            f"{location}: {keyword} does not belong here; an entry is {', '.join(_KEYWORD_ORDER[1:])}, each once",
            code="invalid-format",
        )


def _check_complete(entry: _PoMessage, name: str) -> None:
    """Raise DataError for an entry that the end of the file cut off."""
    if not any(keyword.startswith("msgstr") for keyword in entry.strings):
        raise DataError(f"{name}, line {entry.line}: the message has no msgstr", code="invalid-format")


def _unquote(text: str, location: str) -> str:
    """Return the joined strings of a line without quotes and escapes."""
    position, pieces = 0, []
    while position < len(text):
        if (string := _STRING.match(text, position)) is None:
            raise DataError(f"{location}: the quotation marks are not balanced", code="invalid-format")
        pieces.append(string[1])
        position = string.end()
    text = "".join(pieces)
    return _ESCAPE.sub(lambda escape: _unescape(escape, location), text) if "\\" in text else text


def _unescape(escape: re.Match[str], location: str) -> str:
    """Return the character of an escape sequence. Raises DataError for a byte beyond ASCII, which is not UTF-8 by itself."""
    octal, hexadecimal, letter = escape.groups()
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else ord(_ESCAPES.get(letter, "\x80"))
    if code > 127:
        raise DataError(f"{location}: {escape.group()} is not an escape sequence of a character", code="invalid-format")
    return chr(code)
