"""SGM files of WMT: one file of segments for each side. They are not always well-formed, so they are read line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import MAX_LINE_BYTES, read_lines

_TAG = re.compile(r"<(/?)(doc|seg)(?=[\s>]|$)([^>]*)(>?)", re.IGNORECASE)
_NAME_ATTRIBUTES = {
    kind: re.compile(rf"""(?<![\w-]){name}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
    for kind, name in (("doc", "docid"), ("seg", "id"))
}
_CHARACTER_REFERENCE = re.compile(r"&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|(amp|lt|gt|quot|apos));")
_NAMED_REFERENCES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


@dataclass(frozen=True, slots=True)
class _Segment:
    document: str
    identifier: str
    text: str
    line: int


def read_sgm(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the segments of two files as pairs. Both files must have the same documents and segment names in the same order.

    A bare & or < is ordinary text. Raises DataError, which names the line, if the files differ or a segment is not closed.
    """
    for source_segment, target_segment in zip_longest(_read_segments(source), _read_segments(target)):
        if source_segment is None or target_segment is None:
            shorter_path, longer_path, extra_segment = (
                (source, target, target_segment) if source_segment is None else (target, source, source_segment)
            )
            raise DataError(
                f"{shorter_path} ends before segment {_describe(extra_segment)} of {longer_path}, line {extra_segment.line}",
                code="length-mismatch",
            )
        if (source_segment.document, source_segment.identifier) != (target_segment.document, target_segment.identifier):
            expectation = f"{source}, line {source_segment.line}, has {_describe(source_segment)}"
            raise DataError(
                f"{target}, line {target_segment.line}: has segment {_describe(target_segment)}, but {expectation}",
                code="invalid-format",
            )
        yield Pair(source_segment.text, target_segment.text, f"{source}:{source_segment.line}")


def _describe(segment: _Segment) -> str:
    return f"{segment.identifier[:40]!r} of document {segment.document[:40]!r}"


def _read_segments(path: Path) -> Iterator[_Segment]:
    document = identifier = ""
    pieces: list[str] | None = None
    start_line = size = 0
    for number, line_text in enumerate(read_lines(path), start=1):
        position = 0
        for tag in _TAG.finditer(line_text):
            closing, tag_name, attributes, end = tag.groups()
            tag_name = tag_name.lower()
            if not end:
                raise DataError(
                    f"{path}, line {number}: the tag {tag.group()[:40]!r} does not end on its line", code="invalid-format"
                )
            if pieces is not None and (tag_name, closing) == ("seg", "/"):
                pieces.append(line_text[position : tag.start()])
                yield _Segment(document, identifier, _decode_text("\n".join(pieces)), start_line)
                pieces = None
            elif pieces is not None:
                raise DataError(
                    f"{path}, line {number}: {tag.group()[:40]!r} is in the segment of line {start_line}, which has no </seg>",
                    code="invalid-format",
                )
            elif (tag_name, closing) == ("seg", "/"):
                raise DataError(f"{path}, line {number}: </seg> has no open <seg>", code="invalid-format")
            elif tag_name == "seg":
                identifier, pieces, start_line, size = _find_name(tag_name, attributes), [], number, 0
            elif not closing:
                document = _find_name(tag_name, attributes)
            position = tag.end()
        if pieces is not None:
            pieces.append(line_text[position:])
            size += len(pieces[-1]) + 1
            if size > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}, line {start_line}: the segment is longer than {MAX_LINE_BYTES >> 20} MiB", code="input-too-long"
                )
    if pieces is not None:
        raise DataError(f"{path}, line {start_line}: the segment has no </seg>", code="invalid-format")


def _find_name(kind: str, attributes: str) -> str:
    """Return the name in the attributes of a document or segment tag; empty if it has none."""
    name_match = _NAME_ATTRIBUTES[kind].search(attributes)
    return "" if name_match is None else next(group for group in name_match.groups() if group is not None)


def _decode_text(raw_text: str) -> str:
    return to_single_line(_CHARACTER_REFERENCE.sub(_decode_reference, to_single_line(raw_text).strip(" \t")))


def _decode_reference(reference: re.Match[str]) -> str:
    """Return the character of a reference. A reference to no valid character stays unchanged."""
    decimal, hexadecimal, name = reference.groups()
    if name:
        return _NAMED_REFERENCES[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else reference.group()
