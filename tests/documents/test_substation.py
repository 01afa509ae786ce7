"""Subtitles of SubStation Alpha: overrides, breaks, drawings and comments, and the file as ffmpeg reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from document_checks import check_laws, translate_content
from test_subtitles import SRT, VTT

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.subtitles import parse_ass

FILE = r"""[Script Info]
; A comment
Title: A film
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Main,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Comment: 0,0:00:00.00,0:00:01.00,Main,,0,0,0,,A note for the team
Dialogue: 0,0:00:01.00,0:00:02.50,Main,Ann,0,0,0,,{\an8}This is, {\i1}really{\i0}, a sentence\Nthat goes
Dialogue: 0,0:00:02.60,0:00:04.00,Main,Ann,0,0,0,,on here.
Dialogue: 0,0:00:05.00,0:00:06.00,Sign,,0,0,0,,{\pos(10,20)\p1}m 0 0 l 100 0 100 50{\p0}Open the door{note: a sign}
Dialogue: 0,0:00:05.00,0:00:06.00,Sign,,0,0,0,,{\p2}m 0 0 l 100 0
Dialogue: 0,0:00:07.00,0:00:08.00,Main,,0,0,0,,He waits and
Dialogue: 0,0:00:08.00,0:00:09.00,Sign,,0,0,0,,no entry
Dialogue: 0,0:00:09.00,0:00:10.00,Main,,0,0,0,,12

[Fonts]
Dialogue: no event
""".replace("\n", "\r\n")


def test_texts_of_events_are_read_and_written() -> None:
    document = check_laws(parse_ass, FILE.encode("utf-8-sig"))
    assert [(unit.source, unit.seconds) for unit in document.units] == [
        (r"This is, <o \i1/>really<o \i0/>, a sentence<br n/>that goes", 1.5),
        ("on here.", 1.4),
        ("Open the door", 1.0),
        ("He waits and", 1.0),
        ("no entry", 1.0),
    ]  # fmt: skip
    assert document.sentence_groups == ()  # the first cue has codes, and the others have another style or a long pause
    texts = [r"Das, <o \i1/>ja<o \i0/>, ist ein Satz,<br n/>der geht", "hier weiter.", "Tür\nauf", "Er wartet und", "Halt"]
    written = write_document(document, {str(number): UnitTranslation(text) for number, text in enumerate(texts)})
    expected = FILE
    for old, new in (
        (r"This is, {\i1}really{\i0}, a sentence\Nthat goes", r"Das, {\i1}ja{\i0}, ist ein Satz,\Nder geht"),
        ("on here.", "hier weiter."), ("Open the door", "Tür auf"), ("He waits and", "Er wartet und"), ("no entry", "Halt"),
    ):  # fmt: skip
        expected = expected.replace(old, new)
    assert written.decode("utf-8-sig") == expected


def test_each_line_of_a_dialogue_is_a_text() -> None:
    event = "Dialogue: 0:00:01.00,0:00:02.00,{\\an8}- Who is it?\\N{\\i1}- A friend"
    document = check_laws(parse_ass, f"[Events]\nFormat: Start, End, Text\n{event}\n".encode())
    assert [unit.source for unit in document.units] == ["Who is it?", "A friend"]


def test_sentence_goes_on_in_the_next_event_of_its_style() -> None:
    content = FILE.replace(r"{\an8}This is, {\i1}really{\i0}, a sentence\Nthat goes", "This goes").encode()
    assert parse_ass(content).sentence_groups == (("0", "1"),)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
@pytest.mark.parametrize(
    ("name", "content"), [("a.ass", FILE), ("a.srt", SRT), ("a.vtt", f"WEBVTT\n\n{VTT[VTT.index('intro') :]}")]
)
def test_ffmpeg_reads_the_translated_events(name: str, content: str, tmp_path: Path) -> None:
    texts = []
    for folder, written in (("old", content.encode()), ("new", translate_content(name, content).content)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(written)
        command = ["ffmpeg", "-v", "error", "-i", name, "-f", "srt", "-"]
        run = subprocess.run(command, cwd=tmp_path / folder, check=True, capture_output=True, text=True)
        assert not run.stderr
        texts.append(re.sub(r"<[^<>]*>|\{[^{}]*\}|m 0 0 l[ 0-9]*", "", run.stdout).upper().split())
    assert texts[0] == texts[1]
    assert sum(word == "-->" for word in texts[0]) >= 3
