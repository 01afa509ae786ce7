"""Gettext's PO, which translations of programs come in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.text import LONGEST, name_of, read_lines

_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"[ \t]*')
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[[0-9]{1,2}\])?)[ \t]*(?=\")")
_ORDER = ("msgctxt", "msgid", "msgid_plural", "msgstr")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "b": "\b", "f": "\f", "a": "\a", "\\": "\\", '"': '"'}
# Codes of which the characters are the same in UTF-8, or the word that stands in a template until someone fills it in.
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "charset"})


@dataclass
class _Entry:
    """What stands between one msgid's comments and the next's; `line` is the msgid's."""

    line: int = 0
    fuzzy: bool = False
    obsolete: bool = False
    size: int = 0
    strings: dict[str, list[str]] = field(default_factory=dict)
    """Keyword to its string, in pieces of a line each."""


def read_po(path: Path | None) -> Iterator[Pair]:
    """Each message with its translation; of one with plural forms, the singular with the first and the plural with the last.

    The text of a fuzzy translation is left empty like that of a missing one. Contexts are ignored, obsolete entries skipped.
    Raises DataError naming the line for whatever gettext would not read, and for another charset than UTF-8.
    """
    name = name_of(path)
    convert = "convert it: msgconv --to-code=UTF-8" + (f" {shlex.quote(name)} -o NEW.po" if path is not None else "")
    for entry in _entries(path, hint=convert):
        strings = {keyword: "".join(pieces) for keyword, pieces in entry.strings.items()}
        where = f"{name}, line {entry.line}"
        if entry.obsolete:
            continue
        if not strings["msgid"] and "msgctxt" not in strings:
            named = re.search(r"charset=([^\s;]*)", strings.get("msgstr", ""))
            if named is not None and named[1].lower() not in _CHARSETS:
                raise DataError(f"{where}: its charset is {named[1][:40]!r}, not UTF-8; {convert}")
            continue
        yield from _pairs(entry, strings, f"{name}:{entry.line}", where)


def _pairs(entry: _Entry, strings: dict[str, str], origin: str, where: str) -> Iterator[Pair]:
    forms = [keyword for keyword in strings if keyword.startswith("msgstr")]
    plural = "msgid_plural" in strings
    expected = [f"msgstr[{number}]" for number in range(len(forms))] if plural else ["msgstr"]
    if forms != expected:
        raise DataError(f"{where}: has {', '.join(forms)} for a message {'with' if plural else 'without'} msgid_plural")
    sides = [("msgid", forms[0]), ("msgid_plural", forms[-1])]
    for message, form in sides if plural else sides[:1]:
        yield Pair(one_line(strings[message]), "" if entry.fuzzy else one_line(strings[form]), origin)


def _entries(path: Path | None, *, hint: str) -> Iterator[_Entry]:
    name = name_of(path)
    entry = _Entry()
    current: list[str] | None = None
    for number, line in enumerate(read_lines(path, hint=hint), start=1):
        where = f"{name}, line {number}"
        text = line.strip(" \t\r")
        obsolete = text.startswith("#~") and not text.startswith("#~|")
        if obsolete:
            text = text[2:].lstrip(" \t")
        if not text:
            continue
        complete = any(keyword.startswith("msgstr") for keyword in entry.strings)
        if text.startswith("#"):
            if complete:
                yield entry
                entry = _Entry()
            if text.startswith("#,"):
                entry.fuzzy |= "fuzzy" in (flag.strip() for flag in text[2:].split(","))
            current = None
            continue
        if (keyword := _KEYWORD.match(text)) is not None:
            if complete and not keyword[1].startswith("msgstr"):
                yield entry
                entry = _Entry()
            if not entry.strings:
                entry.obsolete = obsolete
            _check_place(entry, keyword[1], where)
            entry.line = number if keyword[1] == "msgid" else entry.line
            entry.strings[keyword[1]] = []
            current = entry.strings[keyword[1]]
            text = text[keyword.end() :]
        if current is None or obsolete != entry.obsolete or not text.startswith('"'):
            raise DataError(f"{where}: {text[:40]!r} is nothing that PO knows here")
        entry.size += len(text)
        if entry.size > LONGEST:
            raise DataError(f"{where}: the message of line {entry.line} is longer than {LONGEST >> 20} MiB")
        current.append(_unquoted(text, where))
    if entry.strings:
        _check_complete(entry, name)
        yield entry


def _check_place(entry: _Entry, keyword: str, where: str) -> None:
    """Refuse a keyword that stands twice in its entry, or out of order."""
    place = _ORDER.index(keyword.partition("[")[0])
    before = [_ORDER.index(held.partition("[")[0]) for held in entry.strings]
    if keyword in entry.strings or place < max(before, default=0) or (place > 1 and 1 not in before):
        raise DataError(f"{where}: {keyword} does not belong here; an entry is {', '.join(_ORDER[1:])}, each once")


def _check_complete(entry: _Entry, name: str) -> None:
    """Refuse what the end of the file cut short."""
    if not any(keyword.startswith("msgstr") for keyword in entry.strings):
        raise DataError(f"{name}, line {entry.line}: the message has no msgstr")


def _unquoted(text: str, where: str) -> str:
    """The strings on a line, one after the other, without quotes and escapes."""
    place, pieces = 0, []
    while place < len(text):
        if (string := _STRING.match(text, place)) is None:
            raise DataError(f"{where}: a quotation mark is missing or too many")
        pieces.append(string[1])
        place = string.end()
    text = "".join(pieces)
    return _ESCAPE.sub(lambda escape: _escaped(escape, where), text) if "\\" in text else text


def _escaped(escape: re.Match[str], where: str) -> str:
    """The character of an escape sequence; those of single bytes beyond ASCII are of no charset that is read here."""
    octal, hexadecimal, letter = escape.groups()
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else ord(_ESCAPES.get(letter, "\x80"))
    if code > 127:
        raise DataError(f"{where}: {escape.group()} is no escape sequence of a character")
    return chr(code)


def po_of(pairs: Iterable[Pair], target_language: str) -> Iterator[str]:
    """A PO file, piece by piece. Each message has its number for a context, since gettext allows no two alike."""
    yield (
        'msgid ""\nmsgstr ""\n' + (f'"Language: {_quoted(target_language)}\\n"\n' if target_language else "")
        + '"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Content-Transfer-Encoding: 8bit\\n"\n'
    )  # fmt: skip
    for number, pair in enumerate(pairs, start=1):
        yield f'\nmsgctxt "{number}"\nmsgid "{_quoted(pair.source)}"\nmsgstr "{_quoted(pair.target)}"\n'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
