r"""Subtitles of SubStation Alpha (.ass, .ssa): the texts of dialogue events.

Overrides such as `{\i1}` are codes of a text. Drawings, comments in braces, comment events, styles and fonts stay as they are.
Source: the format of libass, https://github.com/libass/libass/wiki/ASS-File-Format-Guide
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.documents.cue_text import split_cue
from dragoman.documents.document import Document
from dragoman.documents.encoded_text import make_line_error, split_lines
from dragoman.documents.reading import check_codes, check_text
from dragoman.documents.subtitles import Cue, decode_subtitles, parse_cues, to_seconds
from dragoman.errors import DataError

_TIME = re.compile(r"\s*(\d{1,4}):(\d{1,2}):(\d{1,2})[.:](\d{1,3})\s*")
_BRACES = re.compile(r"\{[^{}\n]*+\}")
_DRAWING_MODE = re.compile(r"\\p(\d+)")


def parse_ass(content: bytes) -> Document:
    """Return the document of an ASS or SSA file. Raises DataError for a file that is not one."""
    text = decode_subtitles(content)
    if "[events]" not in text.text.lower():
        raise DataError("the file has no section [Events], so it is no file of SubStation", code="invalid-format")
    return parse_cues(text, "ass", _read_events(text.text))


def _read_events(text: str) -> Iterator[Cue]:
    """Yield the texts of the dialogue events with their place."""
    section, columns = "", dict[str, int]()
    position = 0
    for line in split_lines(text):
        body = line.rstrip("\r\n")
        start, position = position, position + len(line)
        kind, _, rest = body.partition(":")
        if body.startswith("["):
            section = body.strip().lower()
        elif section == "[events]" and kind == "Format":
            columns = {name.strip().lower(): number for number, name in enumerate(rest.split(","))}
            if list(columns)[-1] != "text" or not {"start", "end"} <= columns.keys():
                raise DataError(
                    "the format of [Events] has no start, no end, or no text as the last column", code="invalid-format"
                )
        elif section == "[events]" and kind == "Dialogue":
            fields = rest.split(",", len(columns) - 1)
            times = [_TIME.fullmatch(fields[columns[name]]) for name in ("start", "end") if len(fields) == len(columns)]
            if len(times) != 2 or times[0] is None or times[1] is None:
                raise make_line_error(text, start, "is no event with the columns of the format")
            begins_at, ends_at = to_seconds(times[0].groups()), to_seconds(times[1].groups())
            track = fields[columns["style"]] if "style" in columns else ""
            end = start + len(body)
            first_column, num_columns = columns["start"], columns["end"] + 1 - columns["start"]
            times_start = end - len(rest) + sum(len(field) + 1 for field in fields[:first_column])
            times_end = times_start + len(",".join(fields[first_column : columns["end"] + 1]))
            time_span = (times_start, times_end) if num_columns == 2 else (0, 0)
            check_text(len(fields[-1]))
            check_codes(sum(fields[-1].count(mark) for mark in "<{"))
            for shown_start, shown_end in _find_shown(text, end - len(fields[-1]), end):
                for first, last, is_dialogue in split_cue(text, shown_start, shown_end):
                    yield Cue(first, last, begins_at, ends_at, is_dialogue, is_timed=False, track=track, time_span=time_span)


def _find_shown(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of an event's text that viewers read, without drawings and comments in braces."""
    is_drawing = False
    for match in _BRACES.finditer(text, start, end):
        modes = _DRAWING_MODE.findall(match[0])
        if modes or is_drawing or not match[0].startswith("{\\"):
            if not is_drawing:
                yield start, match.start()
            start = match.end()
        is_drawing = modes[-1].strip("0") != "" if modes else is_drawing
    if not is_drawing:
        yield start, end
