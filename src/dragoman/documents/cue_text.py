"""Text of a cue without what is no text: time stamps, voices, and overrides in the style of SubStation.

A time stamp says when the words behind it are shown, so the stamps of a cue stay in their order. Captions with a stamp for each
word, such as those of YouTube, are one text, whose translation is divided among the stamps by length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from dragoman.documents.document import UnitTranslation
from dragoman.languages import is_spaced_language
from dragoman.text.inline_codes import Markup

MAX_STAMPS = 100
"""Most time stamps of a cue whose words are divided among them; in others, attention places the stamps."""
MARK_BONUS = 7
"""Characters by which the end of a part may be farther from its place if it is behind a mark."""

_MARKS = frozenset(",;:.!?，、。；：！？…–—")
TAG = re.compile(r"</?(?:[ibuc]|font|ruby|rt|v|lang)\b[^<>\n]*>|<(?:[ot]|br)\b[^<>\n]*/>", re.IGNORECASE)
STAMP = re.compile(r"<(?:\d{1,4}:)?\d{1,2}:\d\d(?:[.,]\d{1,3})?>")
_OVERRIDE = re.compile(r"\{\\[^{}<>\n]*\}")
_STAMP_OR_OVERRIDE = re.compile(rf"{STAMP.pattern}|{_OVERRIDE.pattern}")
_SHOWN_BREAK = "<br n/>"  # of SubStation; the file may have other tags of breaks
_SHOWN_CODE = re.compile(rf"<t/>|{_SHOWN_BREAK}|<o (\\[^{{}}<>\n]*)/>")
_VOICE = re.compile(r"<v(?:\.[^<>\s]*)?(?:[ \t][^<>\n]*)?>", re.IGNORECASE)
_VOICE_START = re.compile(rf"(?:(?<![^\n])[ \t]*+[-–—][ \t]*+)?{_VOICE.pattern}", re.IGNORECASE)
_LINE_BREAK = re.compile(r"(?<![ \t])[ \t]*+\r?\n")
_SUBSTATION_BREAK = re.compile(r"(?<![ \t])[ \t]*+\\[Nn]")
_LINE_END = re.compile(r"\r\n?|\n|\\[Nn]")
_HARD_SPACE = r"\h"  # of SubStation
# What stands around the words of captions: time stamps, and a class.
_TIMED_TAG = re.compile(rf"{STAMP.pattern}|<c(?:\.[^<>]*)?>|</c>", re.IGNORECASE)
_DASH = re.compile(r"(?:[-–—](?!\s*[\d-])|(?:>|&gt;){2,3}+)[ \t]*+")
_LISTED_DASH = re.compile(r"(?:[-–—](?![-\d])|(?:>|&gt;){2,3}+)[ \t]*+")  # of a cue whose lines all begin with one
_LABEL = re.compile(r"[ \t]*+([^\W\d_][\w.'’-]{0,20}+(?:[ \t][\w.'’#-]{1,20}+){0,3}+):[ \t]++(?=\S)")
_LINE_START = re.compile(r"(?:[ \t]|<[^<>\n]*>|\{\\[^{}\n]*\})*+")
_SOUND = re.compile(r"(?:\[([^\[\]\r\n\\]+)\]|\(([^()\r\n\\]+)\))(?:[ \t]|<[^<>\n]*>|\{\\[^{}\n]*\})*+(?=\r|\n|\\[Nn]|\Z)")
_EDGE_START = re.compile(rf"\s++|\\h|{_STAMP_OR_OVERRIDE.pattern}|{_VOICE.pattern}", re.IGNORECASE)
_EDGE_END = re.compile(rf"\s|\\[Nnh]|</v>|{_STAMP_OR_OVERRIDE.pattern}", re.IGNORECASE)
_AROUND = re.compile(r"<(i|b|u|font|v|c)\b[^<>\n]*>(?=[^<>]*</\1>\Z)", re.IGNORECASE)


@dataclass(frozen=True)
class CueText:
    """Text of a cue. source, markup: as in a unit. write: function from a translation to what the file has for it"""

    source: str
    markup: Markup
    write: Callable[[UnitTranslation], str]


def split_cue(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the spans of the texts of a cue, and whether a dash or a name of a dialogue stands before it.

    Each voice, each line of a dialogue, what follows a name, and each line of captions with time stamps is a text. So is a line
    with a sound in brackets beside other lines, and what begins with a note of music.

    start, end: place of what the cue shows
    """
    raw = text[start:end]
    cuts = [match.start() for match in _VOICE_START.finditer(raw)]
    labels: dict[int, int] = {}
    sounds: dict[int, tuple[int, int]] = {}
    dash_pattern = _DASH
    if not cuts:
        lines = [0, *(match.end() for match in _LINE_END.finditer(raw) if match.end() < len(raw))]
        starts = [match.end() for line in lines if (match := _LINE_START.match(raw, line))]
        if len(lines) > 1 and all(_LISTED_DASH.match(raw, start) for start in starts):
            dash_pattern = _LISTED_DASH
        dialogue = [line for line, start in zip(lines, starts, strict=True) if dash_pattern.match(raw, start)]
        labels = {} if dialogue else _find_labels(raw, lines)
        cuts = dialogue or [*labels] or (lines if STAMP.search(raw) else [])
        if len(lines) > 1:
            matches = zip(lines, (_SOUND.match(raw, start) for start in starts), strict=True)
            sounds = {line: match.span(match.lastindex or 0) for line, match in matches if match}
            behind = [end for line, end in pairwise(lines) if line in sounds]
            notes = [line for line, start in zip(lines, starts, strict=True) if raw[start : start + 1] in ("♪", "♫", "♬")]
            cuts = [*cuts, *sounds, *behind, *notes]
    cuts = sorted({0, *cuts})
    for first, last in zip(cuts, [*cuts[1:], len(raw)], strict=True):
        if first in sounds:
            yield start + sounds[first][0], start + sounds[first][1], True
            continue
        span = _trim(text, start + labels.get(first, first), start + last)
        dash = dash_pattern.match(text, *span)
        yield (*(_trim(text, dash.end(), span[1]) if dash else span), dash is not None or first in labels)


def _find_labels(raw: str, lines: Sequence[int]) -> dict[int, int]:
    """Return the places of the lines that begin with a name and a colon, as of a play, and of their words.

    A name is in capitals; with two names, each word may have one capital. A cue with one name, at its start, has none.
    """
    matches = [(line, match) for line in lines if (match := _LABEL.match(raw, line))]
    shouted = {line: match.end() for line, match in matches if match[1].isupper()}
    names = {
        line: match.end()
        for line, match in matches
        if all(word[0].isupper() or not word[0].isalpha() for word in match[1].split())
    }
    labels = names if len(names) > 1 else shouted
    return labels if len(labels) > 1 or labels.keys() - {0} else {}


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of a text without white space, positions, time stamps, voices, and pairs of tags around it."""
    while start < end:
        if match := _EDGE_START.match(text, start, end):
            start = match.end()
            continue
        last = end - 1
        if text[last] in "Nnh" and text[last - 1] == "\\":
            last -= 1
        elif text[last] in ">}":
            last = text.rfind("<" if text[last] == ">" else "{", start, end)
        if last >= 0 and _EDGE_END.fullmatch(text, last, end):
            end = last
            continue
        if text[start] != "<" or not (match := _AROUND.match(text[start:end])):
            break
        end = text.rindex("</", start, end)
        start += match.end()
    return start, max(start, end)


def read_cue_text(raw: str, *, is_escaped: bool) -> CueText:
    """Return the text of a cue, in one line.

    is_escaped: the file has character references, as WebVTT has
    """
    source = _LINE_BREAK.sub(" ", raw)
    if not is_escaped:
        source = _SUBSTATION_BREAK.sub(_SHOWN_BREAK, source)
    words = _read_timed_words(source)
    if words:
        unescape = html.unescape if is_escaped else str
        text = " ".join(unescape("".join(word.text for word in words)).split())
        return CueText(text, "none", lambda translation: _write_timed_words(words, translation, is_escaped=is_escaped))
    stamps = STAMP.findall(source)
    source = _STAMP_OR_OVERRIDE.sub(_show_code, source)
    has_spaces = not is_escaped and _HARD_SPACE in source
    has_tags = has_spaces or TAG.search(source) is not None
    if has_tags and not is_escaped:
        source = _map_text(source, lambda part: html.escape(part, quote=False))
    if has_spaces:
        source = source.replace(_HARD_SPACE, "&nbsp;")
    elif not has_tags and is_escaped:
        source = html.unescape(source)

    def write(translation: UnitTranslation) -> str:
        written = translation.text
        if has_tags and not is_escaped:
            written = _map_text(written, html.unescape)
            written = written.replace("\xa0", _HARD_SPACE) if has_spaces else written
        elif not has_tags and is_escaped:
            written = html.escape(written, quote=False)
        remaining = iter(stamps)

        def write_code(match: re.Match[str]) -> str:
            return r"\N" if match[0] == _SHOWN_BREAK else f"{{{match[1]}}}" if match[1] else next(remaining, "")

        return _SHOWN_CODE.sub(write_code, written)

    return CueText(source, "html" if has_tags else "none", write)


def _show_code(match: re.Match[str]) -> str:
    """Return a time stamp or an override as a tag of a text. All stamps are equal, because they keep their order."""
    return "<t/>" if match[0].startswith("<") else f"<o {match[0][1:-1]}/>"


@dataclass(frozen=True)
class _TimedWords:
    """Words behind a time stamp. before, after: the stamp and tags around them"""

    before: str
    text: str
    after: str


def _read_timed_words(source: str) -> list[_TimedWords]:
    """Return the words of captions with time stamps, or nothing if there are none, or other tags among them."""
    if not 0 < len(STAMP.findall(source)) <= MAX_STAMPS:
        return []
    words: list[_TimedWords] = []
    before, text, position = "", "", 0
    depth = 0
    for match in (*_TIMED_TAG.finditer(source), None):
        part = source[position : match.start() if match else len(source)]
        text += part
        position = match.end() if match else len(source)
        if "<" in part or _OVERRIDE.search(part):
            return []
        if match is None or match[0] != "</c>":
            if text or (before and match is None):
                words.append(_TimedWords(before, text, ""))
                before, text = "", ""
            before += match[0] if match else ""
            depth += match is not None and match[0][1] in "cC"
        elif not depth:
            return []
        else:
            words.append(_TimedWords(before, text, match[0]))
            before, text = "", ""
            depth -= 1
    return [] if depth or not any(map(_is_spoken, words)) else words


def _is_spoken(word: _TimedWords) -> bool:
    """Return whether there is more than white space behind a time stamp."""
    return bool(word.text.strip())


def _write_timed_words(words: Sequence[_TimedWords], translation: UnitTranslation, *, is_escaped: bool) -> str:
    """Return a translation divided among the time stamps. A space stands on the side of a stamp where the source has it."""
    text = translation.text
    spoken = [word for word in words if _is_spoken(word)]
    ends = list(accumulate(len(word.text) for word in spoken))
    is_spaced = is_spaced_language(translation.language) or " " in text
    goals = [len(text) * end / max(ends[-1], 1) for end in ends[:-1]]
    parts = split_for_cues(text, goals, is_spaced=is_spaced)
    output = shown = ""
    number = 0
    for word in words:
        if not _is_spoken(word):
            output += word.before + word.text + word.after
            shown += word.text
            continue
        part = html.escape(parts[number], quote=False) if is_escaped else parts[number]
        is_glued = not part or not number or not is_spaced
        number += 1
        before = "" if is_glued or shown.endswith(" ") else " "
        after = " " if part and is_spaced and word.text[-1:].isspace() and any(parts[number:]) else ""
        output += word.before + before + part + after + word.after
        shown += before + part + after
    return output


def _map_text(text: str, change: Callable[[str], str]) -> str:
    """Return a text with a change of everything between its tags."""
    position, output = 0, ""
    for match in TAG.finditer(text):
        output += change(text[position : match.start()]) + match[0]
        position = match.end()
    return output + change(text[position:])


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
