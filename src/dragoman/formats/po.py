"""PO files of gettext, which hold the translations of programs: their entries, and the pairs of a corpus."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import MAX_LINE_BYTES, READ_ERRORS, describe_path, open_bytes, read_lines, to_data_error
from dragoman.text.encodings import find_codec

Span = tuple[int, int]

HEAD_BYTES = 65536
"""Bytes at the start of a file that name its encoding."""
_BLANKS = " \t\r\n\f\v"
_STRINGS = re.compile(r'(?:"(?:[^"\\]++|\\.)*+"[ \t]*+)++')
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"')
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[[0-9]{1,2}\])?)[ \t]*(?=\")")
_KEYWORD_ORDER = ("msgctxt", "msgid", "msgid_plural", "msgstr")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.))")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "b": "\b", "f": "\f", "a": "\a", "\\": "\\", '"': '"'}
"""Characters by the letter behind the backslash."""
_CHARSET = re.compile(rb"charset=([\w:.-]+)")


@dataclass
class PoComments:
    """Comments of an entry.

    flags: span of the line of flags without its end, or None
    previous: span of the lines `#|`, which hold the source that a fuzzy translation belongs to, or None
    declared: flags but for `fuzzy`, such as `qt-format`
    start: position of the first one; -1 without any
    notes: spans of the lines with comments of translators
    """

    flags: Span | None = None
    previous: Span | None = None
    is_fuzzy: bool = False
    declared: frozenset[str] = frozenset()
    start: int = -1
    notes: list[Span] = field(default_factory=list)

    def add(self, body: str, line_span: Span, start: int) -> None:
        """Add a comment. Of several lines of flags, the one with `fuzzy` counts.

        line_span: span of the line with its end. start: position of the comment in it
        """
        self.start = line_span[0] if self.start < 0 else self.start
        if body[:2] in ("#", "# "):
            self.notes.append(line_span)
        elif body.startswith("#,"):
            declared = {flag.strip() for flag in body[2:].split(",")}
            has_fuzzy = "fuzzy" in declared
            self.declared |= declared - {"fuzzy"}
            if has_fuzzy or not self.is_fuzzy:
                self.flags = (line_span[0], start + len(body))
            self.is_fuzzy = self.is_fuzzy or has_fuzzy
        elif body.startswith("#|"):
            goes_on = self.previous is not None and self.previous[1] == line_span[0]
            self.previous = (self.previous[0] if self.previous and goes_on else line_span[0], line_span[1])
        elif body.startswith("#~"):
            self.flags, self.previous, self.is_fuzzy, self.declared = None, None, False, frozenset()
            self.start, self.notes = -1, []


@dataclass
class PoEntry:
    """Entry of a catalog.

    start: position of the first line that is no comment
    line: number of the line of `msgid`
    pieces: texts of the lines by keyword, such as `msgid` and `msgstr[1]`
    spans: positions of the quoted strings, by keyword
    """

    start: int
    line: int
    comments: PoComments
    size: int = 0
    pieces: dict[str, list[str]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)

    @cached_property
    def strings(self) -> dict[str, str]:
        """Texts by keyword, when the entry is read."""
        return {keyword: "".join(pieces) for keyword, pieces in self.pieces.items()}

    @property
    def forms(self) -> list[str]:
        """Keywords of the translations."""
        return [keyword for keyword in self.pieces if keyword.startswith("msgstr")]

    @property
    def is_header(self) -> bool:
        """Return whether the entry describes the catalog."""
        return self.strings["msgid"] == "" and "msgctxt" not in self.strings


def find_charset(head: bytes) -> str:
    """Return the encoding that the first bytes of a catalog state. ASCII, the mark of templates and no statement are UTF-8."""
    charset = _CHARSET.search(head)
    if charset is None or head.startswith(codecs.BOM_UTF8) or charset[1] == b"CHARSET":
        return "utf-8"
    name = charset[1].decode("ascii")
    return "utf-8" if find_codec(name) == "ascii" else name


def read_po(path: Path | None) -> Iterator[Pair]:
    """Yield each message with its translation.

    A message with plural forms gives two pairs: the singular with the first form, and the plural with the last. The target of a
    fuzzy or missing translation is empty. Contexts are ignored, and obsolete entries are skipped.

    Raises DataError, which names the line, for syntax that gettext refuses and for an unknown encoding.
    """
    name = describe_path(path)
    hint = "convert it: msgconv --to-code=UTF-8" + (f" {shlex.quote(name)} -o NEW.po" if path is not None else "")
    is_seekable = path is not None and path.is_file()  # a pipe is read once, so it is taken for UTF-8
    encoding = _get_codec(_read_charset(path)) if path is not None and is_seekable else "utf-8"
    lines = read_lines(path, hint=hint, encoding=encoding or "utf-8")
    for entry in read_entries((f"{line}\n" for line in lines), f"{name}, "):
        strings = entry.strings
        if not entry.is_header:
            keywords = ["msgid", "msgid_plural"] if "msgid_plural" in strings else ["msgid"]
            for keyword, form in zip(keywords, (entry.forms[0], entry.forms[-1]), strict=False):
                target = "" if entry.comments.is_fuzzy else to_single_line(strings[form])
                yield Pair(to_single_line(strings[keyword]), target, f"{name}:{entry.line}")
            continue
        charset = find_charset(strings[entry.forms[0]].encode())
        if encoding is None or (not is_seekable and _get_codec(charset) != "utf-8"):
            raise DataError(
                f"{name}, line {entry.line}: its charset is {charset[:40]!r}, not UTF-8; {hint}", code="invalid-encoding"
            )


def _read_charset(path: Path) -> str:
    try:
        with open_bytes(path) as stream:
            return find_charset(stream.read(HEAD_BYTES))
    except READ_ERRORS as error:
        raise to_data_error(path, error) from None


def _get_codec(charset: str) -> str | None:
    """Return Python's name of an encoding whose line breaks are those of ASCII; None for any other."""
    codec = find_codec(charset)
    return None if codec in ("utf-16-le", "utf-16-be") else codec


def read_entries(lines: Iterable[str], prefix: str = "") -> Iterator[PoEntry]:
    """Yield the entries that are in use. Obsolete ones are comments.

    lines: lines with their ends
    prefix: start of error messages

    Raises DataError, which names the line, for syntax that gettext refuses and for an entry over MAX_LINE_BYTES.
    """
    entry: PoEntry | None = None
    comments = PoComments()
    pieces: list[str] | None = None
    keyword = ""
    position = 0
    for number, line in enumerate(lines, start=1):
        location = f"{prefix}line {number}"
        line_start, position = position, position + len(line)
        if not (body := line.strip(_BLANKS)):
            continue
        start = line_start + len(line) - len(line.lstrip(_BLANKS))
        match = _KEYWORD.match(body)
        if entry is not None and entry.forms and (body[0] == "#" or (match and not match[1].startswith("msgstr"))):
            yield _check(entry, prefix)
            entry, comments = None, PoComments()
        if body[0] == "#":
            if entry is not None and body.startswith("#~") and not body.startswith("#~|"):  # a part of an obsolete entry
                rest = _KEYWORD.sub("", body[2:].lstrip(_BLANKS), 1)
                raise DataError(f"{location}: {rest[:40]!r} is not valid in a PO file here", code="invalid-format")
            comments.add(body, (line_start, position), start)
            pieces = None
            continue
        if match is not None:
            keyword = match[1]
            entry = entry or PoEntry(start, number, comments)
            _check_keyword_order(entry, keyword, location)
            entry.line = number if keyword == "msgid" else entry.line
            pieces = entry.pieces[keyword] = []
        strings_start = match.end() if match else 0
        if entry is None or pieces is None or not body.startswith('"', strings_start):
            raise DataError(f"{location}: {body[:40]!r} is not valid in a PO file here", code="invalid-format")
        entry.size += len(body)
        if entry.size > MAX_LINE_BYTES:
            raise DataError(
                f"{location}: the message of line {entry.line} is longer than {MAX_LINE_BYTES >> 20} MiB", code="input-too-long"
            )
        pieces.append(_unquote(body, strings_start, location))
        first = entry.spans[keyword][0] if keyword in entry.spans else start + strings_start
        entry.spans[keyword] = (first, start + len(body))
    if entry is not None:
        yield _check(entry, prefix)


def _check_keyword_order(entry: PoEntry, keyword: str, location: str) -> None:
    """Raise DataError for a keyword that is repeated in its entry or out of order."""
    rank = _KEYWORD_ORDER.index(keyword.partition("[")[0])
    earlier_ranks = [_KEYWORD_ORDER.index(earlier_keyword.partition("[")[0]) for earlier_keyword in entry.pieces]
    if keyword in entry.pieces or rank < max(earlier_ranks, default=0) or (rank > 1 and 1 not in earlier_ranks):
        raise DataError(
            f"{location}: {keyword} does not belong here; an entry is {', '.join(_KEYWORD_ORDER[1:])}, each once",
            code="invalid-format",
        )


def _check(entry: PoEntry, prefix: str) -> PoEntry:
    """Return the entry. Raises DataError if it has no translation, or forms that do not suit its sources."""
    location, forms = f"{prefix}line {entry.line}", entry.forms
    if not forms:
        raise DataError(f"{location}: the message has no msgstr", code="invalid-format")
    has_plural = "msgid_plural" in entry.pieces
    if forms != ([f"msgstr[{number}]" for number in range(len(forms))] if has_plural else ["msgstr"]):
        raise DataError(
            f"{location}: has {', '.join(forms)} for a message {'with' if has_plural else 'without'} msgid_plural",
            code="invalid-format",
        )
    return entry


def _unquote(body: str, start: int, location: str) -> str:
    """Return the joined strings of a line from a position on, without quotes and escapes."""
    if _STRINGS.fullmatch(body, start) is None:
        raise DataError(f"{location}: the quotation marks are not balanced", code="invalid-format")
    text = "".join(_STRING.findall(body, start))
    return _ESCAPE.sub(lambda escape: _unescape(escape, location), text) if "\\" in text else text


def _unescape(escape: re.Match[str], location: str) -> str:
    """Return the character of an escape sequence. Raises DataError for a byte beyond ASCII, which is not UTF-8 by itself."""
    octal, hexadecimal, letter = escape.groups()
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else ord(ESCAPES.get(letter, "\x80"))
    if code > 127:
        raise DataError(f"{location}: {escape.group()} is not an escape sequence of a character", code="invalid-format")
    return chr(code)
