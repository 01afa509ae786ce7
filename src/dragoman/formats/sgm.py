"""WMT's SGM: a file of segments for each side, which is not always well-formed and so is read line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.text import LONGEST, read_lines

_TAG = re.compile(r"<(/?)(doc|seg)(?=[\s>]|$)([^>]*)(>?)", re.IGNORECASE)
_ID = {
    kind: re.compile(rf"""(?<![\w-]){name}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
    for kind, name in (("doc", "docid"), ("seg", "id"))
}
_REFERENCE = re.compile(r"&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|(amp|lt|gt|quot|apos));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


@dataclass(frozen=True, slots=True)
class _Segment:
    document: str
    identifier: str
    text: str
    line: int


def read_sgm(source: Path, target: Path) -> Iterator[Pair]:
    """The segments of one file with those of the other, which must be in the same documents and of the same names.

    A bare & or < is taken as it stands. Raises DataError naming the line where the two part, or where a segment is left open.
    """
    for one, other in zip_longest(_segments(source), _segments(target)):
        if one is None or other is None:
            shorter, longer, extra = (source, target, other) if one is None else (target, source, one)
            raise DataError(f"{shorter} ends before the segment {_told(extra)} of {longer}, line {extra.line}")
        if (one.document, one.identifier) != (other.document, other.identifier):
            there = f"where {source}, line {one.line}, has {_told(one)}"
            raise DataError(f"{target}, line {other.line}: the segment {_told(other)} stands {there}")
        yield Pair(one.text, other.text, f"{source}:{one.line}")


def _told(segment: _Segment) -> str:
    return f"{segment.identifier[:40]!r} of document {segment.document[:40]!r}"


def _segments(path: Path) -> Iterator[_Segment]:
    document = identifier = ""
    begun: list[str] | None = None
    line = size = 0
    for number, written in enumerate(read_lines(path), start=1):
        place = 0
        for tag in _TAG.finditer(written):
            closing, kind, attributes, end = tag.groups()
            kind = kind.lower()
            if not end:
                raise DataError(f"{path}, line {number}: the tag {tag.group()[:40]!r} does not end on its line")
            if begun is not None and (kind, closing) == ("seg", "/"):
                begun.append(written[place : tag.start()])
                yield _Segment(document, identifier, _text("\n".join(begun)), line)
                begun = None
            elif begun is not None:
                raise DataError(
                    f"{path}, line {number}: {tag.group()[:40]!r} stands before the </seg> of line {line}'s segment"
                )
            elif (kind, closing) == ("seg", "/"):
                raise DataError(f"{path}, line {number}: </seg> stands where no segment was begun")
            elif kind == "seg":
                identifier, begun, line, size = _attribute(kind, attributes), [], number, 0
            elif not closing:
                document = _attribute(kind, attributes)
            place = tag.end()
        if begun is not None:
            begun.append(written[place:])
            size += len(begun[-1]) + 1
            if size > LONGEST:
                raise DataError(f"{path}, line {line}: the segment is longer than {LONGEST >> 20} MiB")
    if begun is not None:
        raise DataError(f"{path}, line {line}: the segment has no </seg>")


def _attribute(kind: str, attributes: str) -> str:
    """The name that a tag gives its document or segment; empty where it gives none."""
    named = _ID[kind].search(attributes)
    return "" if named is None else next(group for group in named.groups() if group is not None)


def _text(written: str) -> str:
    return one_line(_REFERENCE.sub(_character, one_line(written).strip(" \t")))


def _character(reference: re.Match[str]) -> str:
    """What a reference stands for; one to nothing stands for itself."""
    decimal, hexadecimal, name = reference.groups()
    if name:
        return _NAMED[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else reference.group()


def sgm_of(pairs: Iterable[Pair], source_language: str, target_language: str) -> Iterator[tuple[str, str]]:
    """What the two files hold, piece by piece."""
    yield (
        f'<srcset setid="dragoman" srclang="{_escaped(source_language)}">\n<doc docid="dragoman">\n',
        f'<refset setid="dragoman" srclang="{_escaped(source_language)}" trglang="{_escaped(target_language)}">\n'
        '<doc docid="dragoman" sysid="ref">\n',
    )
    for number, pair in enumerate(pairs, start=1):
        yield _segment(number, pair.source), _segment(number, pair.target)
    yield "</doc>\n</srcset>\n", "</doc>\n</refset>\n"


def _segment(number: int, text: str) -> str:
    return f'<seg id="{number}">{_escaped(text)}</seg>\n'


def _escaped(text: str) -> str:
    """A text with its markup spelt out, and so the white space at its ends, which would be taken for the file's own."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    inner = text.strip(" \t")
    start = len(text) - len(text.lstrip(" \t"))
    ends = text[:start], text[start + len(inner) :]
    before, after = (end.replace(" ", "&#32;").replace("\t", "&#9;") for end in ends)
    return f"{before}{inner}{after}"
