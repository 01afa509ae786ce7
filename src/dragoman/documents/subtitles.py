"""Subtitle files, SubRip and WebVTT: the text of each cue. Numbers, times, settings, styles and notes stay as they are.

A sentence often goes on in the next cue. `sentence_groups` of the document lists the cues that belong together.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.encoded_text import EncodedText, decode, split_lines
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
MARK_BONUS = 7
"""Characters by which the end of a cue may be farther from its place if it is behind a mark."""
MAX_GROUP = 6
"""Most cues that are translated together."""

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:[ \t].*)?\s*")
_NUMBER = re.compile(r"\s*\d+\s*")
_VTT_BLOCK = re.compile(r"(?:NOTE|STYLE|REGION)\b")
_TAG = re.compile(r"</?(?:[ibuc]|font|ruby|rt|v|lang)\b[^<>\n]*>|<[\d:.]+>", re.IGNORECASE)
# Positions in the style of SubStation, and one pair of tags around a whole cue.
_POSITION = re.compile(r"(?:\{\\[^{}\n]*\}[ \t]*)+")
_AROUND = re.compile(r"<(i|b|u|font|v|c)\b[^<>\n]*>(?=[^<>]*</\1>\Z)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…。！？؟।:]['\"”’»)\]]*$|^\W*$")
_MARKS = frozenset(",;:.!?，、。；：！？…–—")
_DIALOGUE = re.compile(r"^[ \t]*[-–—]", re.MULTILINE)
_LINE_BREAK = re.compile(r"(?<![ \t])[ \t]*+\r?\n")
_TAG_OR_SPACE = re.compile(r"<[^<>]*>|(?<!\s) (?!\s)")


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


@dataclass(frozen=True)
class Cue:
    """Cue of a subtitle file. start, end: its characters in the file. begins_at, ends_at: seconds"""

    start: int
    end: int
    begins_at: float
    ends_at: float

    @property
    def seconds(self) -> float:
        """Time for which the cue is shown."""
        return max(self.ends_at - self.begins_at, 0.0)


def parse_srt(content: bytes) -> Document:
    """Return the document of a SubRip file. Raises DataError for a file that is not one."""
    return _parse(_decode(content), "srt")


def parse_vtt(content: bytes) -> Document:
    """Return the document of a WebVTT file. Raises DataError for a file that is not one."""
    text = decode(content)
    if not re.match(r"WEBVTT(?:[ \t\n\r]|$)", text.text):
        raise DataError("the file does not begin with WEBVTT, so it is no WebVTT file", code="invalid-format")
    return _parse(text, "vtt")


def _decode(content: bytes) -> EncodedText:
    """Return the text of a SubRip file, which is in Windows-1252 if it is not in UTF-8.

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


def _parse(text: EncodedText, name: str) -> Document:
    is_escaped = name == "vtt"
    units: list[Unit] = []
    cues: dict[str, Cue] = {}
    for cue in _read_cues(text.text, has_notes=is_escaped):
        raw = text.text[cue.start : cue.end]
        keeps_lines = _DIALOGUE.search(raw) is not None
        source = _LINE_BREAK.sub("\n" if keeps_lines else " ", raw)
        has_tags = _TAG.search(source) is not None
        if has_tags and not is_escaped:
            source = _map_text(source, lambda part: html.escape(part, quote=False))
        elif not has_tags and is_escaped:
            source = html.unescape(source)
        if any(map(str.isalpha, source)):
            unit = Unit(
                str(len(units)),
                source,
                markup="html" if has_tags else "none",
                keep_line_breaks=keeps_lines,
                seconds=cue.seconds,
                lines=_LINE_BREAK.sub("\n", raw),
            )
            units.append(unit)
            cues[unit.id] = cue
    if not units and "-->" not in text.text:
        raise DataError(f"the file has no cue, so it is no {name.upper()} file", code="invalid-format")

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        written = translation.text
        if unit.markup == "html" and not is_escaped:
            written = _map_text(written, html.unescape)
        elif unit.markup == "none" and is_escaped:
            written = html.escape(written, quote=False)
        if not unit.keep_line_breaks and "\n" not in written:
            written = break_lines(written)
        cue = cues[unit.id]
        return [text.make_edit(cue.start, cue.end, written.replace("\n", text.newline))]

    return Document(text.content, units, name, make_edits, sentence_groups=tuple(_group_cues(units, cues)))


def _map_text(text: str, change: Callable[[str], str]) -> str:
    """Return a text with a change of everything between its tags."""
    position, output = 0, ""
    for match in _TAG.finditer(text):
        output += change(text[position : match.start()]) + match[0]
        position = match.end()
    return output + change(text[position:])


def _read_cues(text: str, *, has_notes: bool) -> Iterator[Cue]:
    """Yield the cues with the place of their text, without the tags and positions around it."""
    lines = split_lines(text)
    number = position = 0
    while number < len(lines):
        line = lines[number]
        if has_notes and _VTT_BLOCK.match(line):
            while number < len(lines) and lines[number].strip():
                position += len(lines[number])
                number += 1
            continue
        number += 1
        position += len(line)
        if (times := _TIMES.fullmatch(line)) is None:
            continue
        start = position
        while number < len(lines) and lines[number].strip() and not _begins_cue(lines, number):
            position += len(lines[number])
            number += 1
        groups = times.groups()
        yield _trim(text, start, position, _to_seconds(groups[:4]), _to_seconds(groups[4:]))


def _begins_cue(lines: Sequence[str], number: int) -> bool:
    """Return whether a line begins the next cue, because there is no blank line between the two."""
    if _TIMES.fullmatch(lines[number]):
        return True
    following = lines[number + 1] if number + 1 < len(lines) else ""
    return bool(_NUMBER.fullmatch(lines[number]) and _TIMES.fullmatch(following))


def _to_seconds(groups: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = groups
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0) + float(f"0.{fraction}")


def _trim(text: str, start: int, end: int, begins_at: float, ends_at: float) -> Cue:
    raw = text[start:end]
    end -= len(raw) - len(raw.rstrip())
    start = min(start + len(raw) - len(raw.lstrip()), end)
    while match := _POSITION.match(text, start, end) or _AROUND.match(text[start:end]):
        if match.re is _AROUND:
            end = start + text[start:end].rindex("</")
            start += match.end()
        else:
            start = match.end()
    return Cue(start, max(start, end), begins_at, ends_at)


def _group_cues(units: Sequence[Unit], cues: dict[str, Cue]) -> Iterator[tuple[str, ...]]:
    """Yield the ids of cues that share a sentence: each but the last ends within one, and the pauses are short."""
    group: list[str] = []
    for unit in units:
        is_plain = unit.markup == "none" and not unit.keep_line_breaks
        pause = cues[unit.id].begins_at - cues[group[-1]].ends_at if group else 0.0
        if group and not (is_plain and 0 <= pause <= MAX_PAUSE and len(group) < MAX_GROUP):
            if len(group) > 1:
                yield tuple(group)
            group = []
        if is_plain:
            group.append(unit.id)
        if group and _SENTENCE_END.search(unit.source):
            if len(group) > 1:
                yield tuple(group)
            group = []
    if len(group) > 1:
        yield tuple(group)


def break_lines(text: str, line_length: int = LINE_LENGTH) -> str:
    """Return a text in as few lines as fit, of about equal length. Only single spaces become line breaks."""
    lines = _wrap(text, line_length)
    for width in range(-(-len(text) // len(lines)), line_length):
        if len(even := _wrap(text, width)) == len(lines):
            return "\n".join(even)
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    """Return lines of at most this width. A tag is not broken, and no break makes a dialogue, whose lines begin with dashes."""
    if _DIALOGUE.match(text):
        return [text]
    lines: list[str] = []
    for word in _split_words(text):
        if lines and (_DIALOGUE.match(word) or len(_TAG.sub("", f"{lines[-1]} {word}")) <= width):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _split_words(text: str) -> list[str]:
    """Return the text between single spaces that are not in a tag. The time is linear in the length of the text."""
    words, start = [], 0
    for match in _TAG_OR_SPACE.finditer(text):
        if match[0] == " ":
            words.append(text[start : match.start()])
            start = match.end()
    return [*words, text[start:]]


def split_for_cues(text: str, goals: Sequence[float], *, is_spaced: bool) -> list[str]:
    """Return the parts of a translated text for cues: one more than there are goals, and empty ones if there are few words.

    A part ends at a space near its goal, better after a comma or another mark. Without spaces, any character can end it.

    goals: characters at which the parts should end
    """
    cuts = [match.start() for match in re.finditer(" ", text)] if is_spaced else list(range(1, len(text)))
    parts: list[str] = []
    start = 0
    for number, goal in enumerate(goals):
        num_later = len(goals) - number - 1
        possible = [cut for cut in cuts if cut > start]
        possible = possible[: max(len(possible) - num_later, 1)]  # each later part needs a cut
        end = min(possible, key=lambda cut: abs(cut - goal) - MARK_BONUS * (text[cut - 1] in _MARKS), default=len(text))
        parts.append(text[start:end].strip())
        start = end
    return [*parts, text[start:].strip()]
