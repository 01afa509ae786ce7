r"""Subtitle files, SubRip, WebVTT and SubStation Alpha (.ass, .ssa): the text of each cue. All else, such as times, stays.

A sentence often goes on in the next cue. `sentence_groups` of the document lists the cues that belong together.

Overrides of SubStation such as `{\i1}` are codes of a text. Drawings, and comments in braces, stay. Source: the format of
libass, https://github.com/libass/libass/wiki/ASS-File-Format-Guide
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dragoman.documents.cue_text import STAMP, TAG, CueText, read_cue_text, split_cue
from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, make_line_error, split_lines
from dragoman.documents.reading import check_codes, check_text, check_texts
from dragoman.errors import DataError

LINE_LENGTH = 42
"""Most characters of a line, a common limit for subtitles."""
READING_SPEED = 20.0
"""Most characters a second that viewers can read, a common limit for subtitles."""
MAX_LINES = 2
MAX_PAUSE = 3.0
"""Seconds between two cues of one sentence."""
MAX_FOREIGN_SHARE = 0.2
"""Largest share of letters outside ASCII in a file that is read as Windows-1252."""
MAX_GROUP = 6
"""Most cues that are translated together."""

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:[ \t].*)?\s*")
_NUMBER = re.compile(r"\s*\d+\s*")
_HEADER_LANGUAGE = re.compile(r"WEBVTT[^\n]*\n(?:(?![^\n]*-->)[^\s][^\n]*\n)*?Language:[ \t]*([\w-]+)[ \t]*\r?\n")
_VTT_BLOCK = re.compile(r"(?:NOTE|STYLE|REGION)\b")
_SENTENCE_END = re.compile(r"[.!?…。！？؟।:]['\"”’»)\]]*$|[♪♫♬\]]$|^\W*$")
_TEXT_START = re.compile(r"[♪♫♬\[(]")  # of a song, a sound or a speaker
_DIALOGUE = re.compile(r"^[ \t]*[-–—]", re.MULTILINE)
_LINE_BREAK = re.compile(r"(?<![ \t])[ \t]*+\r?\n")
_TAG_OR_SPACE = re.compile(r"<[^<>]*>|(?<!\s) (?!\s)")
_EVENT_TIME = re.compile(r"\s*(\d{1,4}):(\d{1,2}):(\d{1,2})[.:](\d{1,3})\s*")
_BRACES = re.compile(r"\{[^{}\n]*+\}")
_DRAWING_MODE = re.compile(r"\\p(\d+)")


@dataclass(frozen=True)
class SubtitleLimits:
    """Limits of subtitles.

    line_length: most characters of a line; a cue has two lines
    reading_speed: most characters a second, without line breaks
    """

    line_length: int = LINE_LENGTH
    reading_speed: float = READING_SPEED

    def check(self, text: str, seconds: float) -> list[str]:
        """Return the names of the limits that the text of a cue exceeds: `line_length` and `reading_speed`.

        text: the lines of the cue, without tags
        seconds: time for which it is shown
        """
        lines = text.split("\n")
        is_long = len(lines) > MAX_LINES or max(map(len, lines)) > self.line_length
        is_fast = sum(map(len, lines)) > self.reading_speed * seconds
        return ["line_length"] * is_long + ["reading_speed"] * is_fast


@dataclass(frozen=True, slots=True)
class _Cue:
    """Text of a cue of a subtitle file.

    start, end: its characters in the file
    begins_at, ends_at: seconds
    is_dialogue: a dash or a name stands before it
    is_timed: the cue has time stamps, so that each of its lines is a text
    time_span: characters of its line of times; (0, 0) if a line holds more
    track: style of the cue; a sentence does not go on in a cue of another one
    """

    start: int
    end: int
    begins_at: float
    ends_at: float
    is_dialogue: bool
    is_timed: bool
    track: str = ""
    time_span: tuple[int, int] = (0, 0)

    @property
    def seconds(self) -> float:
        """Time for which the cue is shown."""
        return max(self.ends_at - self.begins_at, 0.0)


def parse_srt(content: bytes) -> Document:
    """Return the document of a SubRip file. Raises DataError for a file that is not one."""
    text = _decode_subtitles(content)
    return _parse_cues(text, "srt", _read_cues(text.text, is_vtt=False))


def parse_vtt(content: bytes) -> Document:
    """Return the document of a WebVTT file. Raises DataError for a file that is not one."""
    text = decode(content)
    if not re.match(r"WEBVTT(?:[ \t\n\r]|$)", text.text):
        raise DataError("the file does not begin with WEBVTT, so it is no WebVTT file", code="invalid-format")
    return _parse_cues(text, "vtt", _read_cues(text.text, is_vtt=True))


def _decode_subtitles(content: bytes) -> EncodedText:
    """Return the text of a subtitle file, which is in Windows-1252 if it is not in UTF-8.

    Raises DataError if so many characters are not in ASCII that the encoding must be another one.
    """
    try:
        return decode(content)
    except DataError as error:
        if error.code != "invalid-encoding":
            raise
        text = decode(content, "cp1252")
        letters = [character for character in text.text if character.isalpha() or not character.isascii()]
        if sum(not character.isascii() for character in letters) > MAX_FOREIGN_SHARE * len(letters):
            raise
        return text


def _parse_cues(text: EncodedText, name: str, found_cues: Iterable[_Cue]) -> Document:
    """Return the document of cues.

    name: name of the format: "srt", "vtt", or "ass", in which the text of a cue is one line
    """
    is_escaped, is_one_line = name == "vtt", name == "ass"
    units: list[Unit] = []
    cues: dict[str, _Cue] = {}
    texts: dict[str, CueText] = {}
    for cue in found_cues:
        raw = text.text[cue.start : cue.end]
        cue_text = read_cue_text(raw, is_escaped=is_escaped)
        if cue_text.source.strip():
            unit = Unit(
                str(len(units)),
                cue_text.source,
                markup=cue_text.markup,
                keep_line_breaks=cue.is_timed,
                seconds=cue.seconds,
                lines=cue_text.source if is_one_line else _LINE_BREAK.sub("\n", raw),
            )
            units.append(unit)
            check_texts(len(units), len(text.content))
            cues[unit.id], texts[unit.id] = cue, cue_text
    if not units and not is_one_line and "-->" not in text.text:
        raise DataError(f"the file has no cue, so it is no {name.upper()} file", code="invalid-format")

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        cue, cue_text = cues[unit.id], texts[unit.id]
        in_one_line = replace(translation, text=translation.text.replace("\n", " "))
        if cue.is_timed or is_one_line:
            written = cue_text.write(in_one_line)
        else:
            broken = translation.text if "\n" in translation.text else break_lines(translation.text)
            written = cue_text.write(replace(translation, text=broken))
            if "\n" in written and len(list(split_cue(written, 0, len(written)))) > 1:  # a line looks like one of a dialogue
                written = cue_text.write(in_one_line)
        return [text.make_edit(cue.start, cue.end, written.replace("\n", text.newline))]

    language = _HEADER_LANGUAGE.match(text.text)

    def edit_language(translations: Mapping[str, UnitTranslation], code: str) -> Sequence[Edit]:
        return [text.make_edit(language.start(1), language.end(1), code)] if code and language else []

    def convert() -> Document:
        """Return the document in UTF-8, for characters that Windows-1252 lacks."""
        return _parse_cues(decode(text.content.decode(text.encoding).encode()), name, tuple(cues.values()))

    def find_values() -> dict[str, Edit]:
        spans = dict.fromkeys(cue.time_span for cue in cues.values() if any(cue.time_span))
        return {str(number): text.make_edit(*span, text.text[slice(*span)]) for number, span in enumerate(spans)}

    with_language, others = divide_units(units)
    return Document(
        text.content,
        with_language,
        name,
        make_edits,
        source_language=language[1] if language else "",
        make_document_edits=edit_language,
        convert=None if text.encoding != "cp1252" else convert,
        sentence_groups=tuple(_group_cues(with_language, cues)),
        other_units=others,
        find_values=find_values,
        times={name: (cue.begins_at, cue.ends_at) for name, cue in cues.items()},
    )


def _read_cues(text: str, *, is_vtt: bool) -> Iterator[_Cue]:
    """Yield the texts of the cues with their place, without the tags and positions around them."""
    lines = split_lines(text)
    blanks = "\r\n" if is_vtt else None  # a line with a space is blank in SubRip alone
    number = position = 0
    while number < len(lines):
        line = lines[number]
        if is_vtt and _VTT_BLOCK.match(line):
            while number < len(lines) and lines[number].strip():
                position += len(lines[number])
                number += 1
            continue
        number += 1
        position += len(line)
        if (times := _TIMES.fullmatch(line)) is None:
            continue
        start = position
        time_span = start - len(line), start - len(line) + len(line.rstrip())
        while number < len(lines) and lines[number].strip(blanks) and not _begins_cue(lines, number):
            position += len(lines[number])
            number += 1
        check_text(position - start)
        check_codes(sum(text.count(mark, start, position) for mark in "<{"))
        if is_vtt and _is_metadata(text[start:position].strip()):
            continue
        groups = times.groups()
        is_timed = STAMP.search(text, start, position) is not None
        for first, last, is_dialogue in split_cue(text, start, position):
            yield _Cue(first, last, _to_seconds(groups[:4]), _to_seconds(groups[4:]), is_dialogue, is_timed, "", time_span)


def _is_metadata(text: str) -> bool:
    """Return whether the text of a cue is for programs: an object of JSON, or a part of an image of previews."""
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return isinstance(json.loads(text), dict | list)
    return "#xywh=" in text and not any(map(str.isspace, text))


def _begins_cue(lines: Sequence[str], number: int) -> bool:
    """Return whether a line begins the next cue, because there is no blank line between the two."""
    if _TIMES.fullmatch(lines[number]):
        return True
    following = lines[number + 1] if number + 1 < len(lines) else ""
    return bool(_NUMBER.fullmatch(lines[number]) and _TIMES.fullmatch(following))


def _to_seconds(groups: Sequence[str | None]) -> float:
    """Return the seconds of a time, given as hours, minutes, seconds and the digits behind the point."""
    hours, minutes, seconds, fraction = groups
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0) + float(f"0.{fraction}")


def _group_cues(units: Sequence[Unit], cues: dict[str, _Cue]) -> Iterator[tuple[str, ...]]:
    """Yield the ids of cues that share a sentence: each but the last ends within one, and the pauses are short."""
    group: list[str] = []
    sources: set[str] = set()
    for unit in units:
        is_plain = unit.markup == "none" and not cues[unit.id].is_dialogue
        is_start = _TEXT_START.match(unit.source) is not None
        pause = cues[unit.id].begins_at - cues[group[-1]].ends_at if group else 0.0
        is_repeated = unit.source in sources  # captions that roll show a line twice
        is_same = not group or cues[unit.id].track == cues[group[-1]].track
        is_next = is_plain and is_same and 0 <= pause <= MAX_PAUSE and not is_repeated and not is_start
        if group and not (is_next and len(group) < MAX_GROUP):
            if len(group) > 1:
                yield tuple(group)
            group = []
        sources = {unit.source} if not group else sources | {unit.source}
        if is_plain:
            group.append(unit.id)
        if group and _SENTENCE_END.search(unit.source):
            if len(group) > 1:
                yield tuple(group)
            group = []
    if len(group) > 1:
        yield tuple(group)


def break_lines(text: str, line_length: int = LINE_LENGTH) -> str:
    """Return a text in as few lines as fit, of about equal length. Only single spaces become line breaks.

    A text with breaks in the style of SubStation has its lines already.
    """
    if "<br" in text:
        return text
    lines = _wrap(text, line_length)
    for width in range(-(-len(text) // len(lines)), line_length):
        if len(even := _wrap(text, width)) == len(lines):
            return "\n".join(even)
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    """Return lines of at most this width. A tag is not broken, and no break makes a dialogue, whose lines begin with dashes."""
    if _DIALOGUE.match(text):
        return [text]
    lines: list[list[str]] = []
    line_width = 0
    for word in _split_words(text):
        word_width = len(TAG.sub("", word))
        if lines and (_DIALOGUE.match(word) or line_width + 1 + word_width <= width):
            lines[-1].append(word)
            line_width += 1 + word_width
        else:
            lines.append([word])
            line_width = word_width
    return [" ".join(words) for words in lines]


def _split_words(text: str) -> list[str]:
    """Return the text between single spaces that are not in a tag. The time is linear in the length of the text."""
    words, start = [], 0
    for match in _TAG_OR_SPACE.finditer(text):
        if match[0] == " ":
            words.append(text[start : match.start()])
            start = match.end()
    return [*words, text[start:]]


def parse_ass(content: bytes) -> Document:
    """Return the document of an ASS or SSA file. Raises DataError for a file that is not one."""
    text = _decode_subtitles(content)
    if "[events]" not in text.text.lower():
        raise DataError("the file has no section [Events], so it is no file of SubStation", code="invalid-format")
    return _parse_cues(text, "ass", _read_events(text.text))


def _read_events(text: str) -> Iterator[_Cue]:
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
            times = [_EVENT_TIME.fullmatch(fields[columns[name]]) for name in ("start", "end") if len(fields) == len(columns)]
            if len(times) != 2 or times[0] is None or times[1] is None:
                raise make_line_error(text, start, "is no event with the columns of the format")
            begins_at, ends_at = _to_seconds(times[0].groups()), _to_seconds(times[1].groups())
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
                    yield _Cue(first, last, begins_at, ends_at, is_dialogue, is_timed=False, track=track, time_span=time_span)


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
