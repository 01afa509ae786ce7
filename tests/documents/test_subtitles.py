"""Subtitle files: cues, tags, sentences across cues and line lengths."""

from __future__ import annotations

import re

import pytest
from document_checks import check_laws, translate_content
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents.cue_text import split_for_cues
from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.subtitles import LINE_LENGTH, break_lines, parse_srt, parse_vtt

SRT = """1
00:00:01,000 --> 00:00:02,500
This is a sentence
that goes

2
00:00:02,600 --> 00:00:04,000 X1:10 X2:20
on & on.

3
00:00:05,000 --> 00:00:06,000
{\\an8}<i>Whole cue</i>
4
00:00:07,000 --> 00:00:08,000
Some <b>bold</b> & more <3

5
00:00:09,000 --> 00:00:10,000
- Hello.
- Hi!

6
00:00:11,000 --> 00:00:12,000

7
00:00:13,000 --> 00:00:14,000
♪ ♪
"""
VTT = """WEBVTT Kind: captions

STYLE
::cue { color: red }

NOTE a note
--> kept

intro
00:01.000 --> 00:02.500 align:start position:10%
<v Ann>Tom &amp; Jerry go

00:02.600 --> 00:04.000
home &lt;now&gt;.

00:05.000 --> 00:06.000
Some <c.red>red</c> text &amp; more.
"""


def test_units_are_cues() -> None:
    document = check_laws(parse_srt, SRT.encode())
    assert [(unit.source, unit.markup) for unit in document.units] == [
        ("This is a sentence that goes", "none"),
        ("on & on.", "none"),
        ("Whole cue", "none"),
        ("Some <b>bold</b> &amp; more &lt;3", "html"),
        ("Hello.", "none"),
        ("Hi!", "none"),
    ]
    assert document.sentence_groups == (("0", "1"),)


def test_units_of_vtt_have_no_notes() -> None:
    document = check_laws(parse_vtt, VTT.encode(), lambda text: f"Ŧḗẋŧ {text} שלום, a longer text for two lines")
    assert [unit.source for unit in document.units] == [
        "Tom & Jerry go",
        "home <now>.",
        "Some <c.red>red</c> text &amp; more.",
    ]


def test_windows_encoding_is_kept() -> None:
    document = parse_srt(SRT.replace("Whole", "Été").replace("♪", "*").encode("cp1252"))
    assert "Œuvre".encode("cp1252") in write_document(document, {"2": UnitTranslation("Œuvre")})
    assert "Труд" in write_document(document, {"2": UnitTranslation("Труд")}).decode(), "UTF-8 has what Windows-1252 lacks"


def test_long_translation_is_broken_into_even_lines() -> None:
    assert break_lines("a b") == "a b"
    assert break_lines("word " * 9 + "end") == "word word word word word\nword word word word end"
    assert max(map(len, break_lines("word " * 40).split("\n"))) <= LINE_LENGTH


def test_sentence_is_divided_in_proportion() -> None:
    assert split_for_cues("Das ist ein Satz, der weiter geht.", [23], is_spaced=True) == [
        "Das ist ein Satz,",
        "der weiter geht.",
    ]
    assert split_for_cues("一二三四五六", [2], is_spaced=False) == ["一二", "三四五六"]
    assert split_for_cues("Ja", [1, 2], is_spaced=True) == ["Ja", "", ""]


@given(
    st.lists(st.text("abc,", min_size=1, max_size=5), min_size=1, max_size=9),
    st.lists(st.floats(0, 60), min_size=1, max_size=5),
)
def test_parts_are_the_text(words: list[str], goals: list[float]) -> None:
    parts = split_for_cues(" ".join(words), sorted(goals), is_spaced=True)
    assert len(parts) == len(goals) + 1
    assert " ".join(part for part in parts if part) == " ".join(words)
    assert all(parts) or len(words) <= len(goals)


VTT_CUES = {
    "stamp": ("May 17, <00:06.000>2031.", "17. <00:06.000>Mai 2031."),
    "stamps at the ends": ("<00:09.500>May 17, 2031.<00:10.000>", "<00:09.500>17. Mai 2031.<00:10.000>"),
    "YouTube": (
        "May<00:00:00.500><c> 17,</c><00:00:01.000><c> 2031.</c>",
        "17.<00:00:00.500><c> Mai</c><00:00:01.000><c> 2031.</c>",
    ),
    "two classes behind a stamp": ("May<00:01.500><c> 17,</c><c.b> 2031.</c>", "17.<00:01.500><c> Mai</c><c.b> 2031.</c>"),
    "line and captions": (" \nHello you\nMay<00:01.500><c> 17, 2031.</c>", " \nHello you\n17.<00:01.500><c> Mai 2031.</c>"),
    "other tags among stamps": ("<i>May</i> <00:01.100>17, <00:01.200>2031.", "<i>17.</i> <00:01.100>Mai <00:01.200>2031."),
    "voices": ("<v Mary>May 17, 2031.\n<v Bob>May 18, 2031.", "<v Mary>17. Mai 2031.\n<v Bob>18. Mai 2031."),
    "voices on a line": ("<v A>Hi.</v> <v.loud B>May 17, 2031.</v>", "<v A>Hi.</v> <v.loud B>17. Mai 2031.</v>"),
    "dialogue": ("<i>- May 17, 2031.</i>\n- <b>Hi</b> &amp; bye", "<i>- 17. Mai 2031.</i>\n- <b>Hi</b> &amp; bye"),
    "class without words": ("May <c.red></c><00:01.500>17, 2031.", "17. <c.red></c><00:01.500>Mai 2031."),
    "class before a stamp": ("<c.red>May 17, </c> <00:01.500>2031.", "<c.red>17. </c> <00:01.500>Mai 2031."),
    "class in a class": ("May 17, <c.red><00:01.500><c>2031.</c></c>", "17. <c.red><00:01.500><c>Mai 2031.</c></c>"),
    "long line with a stamp": (f"{'It was ' * 7}<00:01.500>May 17, 2031.", f"{'It was ' * 7}17. <00:01.500>Mai 2031."),
    "speakers": ("MARY: May 17, 2031.\nMAN #2: It was\nMay 18, 2031.", "MARY: 17. Mai 2031.\nMAN #2: It was 18. Mai 2031."),
    "speakers in small letters": ("Mary: May 17, 2031.\nDr. Who: Hi.", "Mary: 17. Mai 2031.\nDr. Who: Hi."),
    "second speaker": ("It was\nMay 17, 2031.\nBOB: Hi.", "It was 17. Mai 2031.\nBOB: Hi."),
    "one speaker": ("MARY: It was\nMay 17, 2031.", "MARY: It was 17. Mai 2031."),
    "no speakers": ("It was: May\n17, 2031, at 10:00 or so: ok", "It was: 17. Mai 2031, at 10:00 or so: ok"),
    "new speakers": ("&gt;&gt; May 17, 2031.\n&gt;&gt; Hi.", "&gt;&gt; 17. Mai 2031.\n&gt;&gt; Hi."),
}
SRT_CUES = {
    "tags of breaks": ("May 17, 2031.<br/>May 18, 2031\\Nin <0>May</0>", "17. Mai 2031.<br/>18. Mai 2031\\Nin <0>May</0>"),
    "override at the end": (r"{\i1}May 17, 2031.{\i0}", r"{\i1}17. Mai 2031.{\i0}"),
    "position": (r"{\an8}{\pos(10,20)}May 17, 2031.", r"{\an8}{\pos(10,20)}17. Mai 2031."),
    "override inside": (r"May 17, {\b1}2031{\b0} ok.", r"17. Mai {\b1}2031{\b0} ok."),
    "line breaks": (r"May 17, 2031.\NIt was", r"17. Mai 2031.\NIt was"),
    "line break in a sentence": (r"It was\non May 18, 2031.", r"It was\Non 18. Mai 2031."),
    "dialogue": ("-May 17, 2031.\n-Yes.", "-17. Mai 2031.\n-Yes."),
    "hard spaces": (r"\hIt was\hmy & our May 17, 2031.\h", r"\hIt was\hmy & our 17. Mai 2031.\h"),
    "hard space beside tags": (r"<i>It\hwas</i>\hMay 17, 2031.", r"<i>It\hwas</i>\h17. Mai 2031."),
}


def translate_cue(name: str, file: str) -> str:
    """Return the file with German dates, by a function in place of the model, if no text is flagged but for its length."""
    result = translate_content(name, file, lambda line: re.sub(r"May (\d+), (\d+)", r"\1. Mai \2", line))
    assert [text.flags for text in result.results if set(text.flags) - {"line_length"}] == []
    return result.content.decode()


def test_stamps_voices_and_lines_of_vtt_stay(subtests: pytest.Subtests) -> None:
    for name in VTT_CUES:
        with subtests.test(name=name):
            head = "WEBVTT\nKind: captions\nLanguage: {}\n\n00:01.000 --> 00:09.000 align:start position:0%\n{}\n"
            source, expected = VTT_CUES[name]
            assert translate_cue("a.vtt", head.format("en", source)) == head.format("de", expected)


@pytest.mark.parametrize("name", SRT_CUES)
def test_overrides_and_lines_of_srt_stay(name: str) -> None:
    head = "1\n00:00:01,000 --> 00:00:09,000\n{}\n"
    source, expected = SRT_CUES[name]
    assert translate_cue("a.srt", head.format(source)) == head.format(expected)


def test_rolling_captions_are_no_sentence() -> None:
    cues = ["00:01.000 --> 00:02.000\nhello there", "00:02.000 --> 00:03.000\nhello there\nMay<00:02.500><c> 17</c>"]
    document = parse_vtt("\n\n".join(["WEBVTT", *cues]).encode())
    assert [unit.source for unit in document.units] == ["hello there", "hello there", "May 17"]
    assert document.sentence_groups == ()


def test_songs_and_sounds_are_no_part_of_a_sentence() -> None:
    texts = ("we sing", "♪ a song ♪", "and on", "[door opens]", "(Anna) we", "go home")
    cues = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{text}\n\n" for n, text in enumerate(texts))
    assert parse_srt(cues.encode()).sentence_groups == (("4", "5"),)


def test_line_length_of_a_cue_with_time_stamps_is_that_of_its_lines() -> None:
    line = "<00:00:00.500>" + " ".join(["words"] * 9)  # 53 characters, which no break divides
    for stamp, flags in ((line, ("line_length",)), (line.partition(">")[2], ())):
        content = f"WEBVTT\n\n00:00.000 --> 00:09.000\nSome {stamp}\n"
        result = translate_content("a.vtt", content, lambda text: text.replace("words", "Worte").replace("Some", "Einige"))
        assert [text.flags for text in result.results] == [flags]
        assert result.content.count(b"\n") == (5 if not flags else 4)


@pytest.mark.parametrize(
    ("cue", "sources"),
    [
        ("[door opens]\nHello, my\nfriend.", ["door opens", "Hello, my friend."]),
        ("Hello.\n<i>(laughs)</i>\nGo on.", ["Hello.", "laughs", "Go on."]),
        (
            "\u266a Oh, what a day \u266a\n\u266a What a night \u266a",
            ["\u266a Oh, what a day \u266a", "\u266a What a night \u266a"],
        ),
        ("\u266a Oh, what\na day \u266a", ["\u266a Oh, what a day \u266a"]),
        ("(sighs) Never\nmind.", ["(sighs) Never mind."]),
        ("- Who?\n[knocking]\n- Me.", ["Who?", "knocking", "Me."]),
        ("- <v Bob>Hi there</v>\n- <v Al>Good day</v>", ["Hi there", "Good day"]),
    ],
)
def test_sounds_songs_and_voices_keep_their_lines(cue: str, sources: list[str]) -> None:
    document = check_laws(parse_vtt, f"WEBVTT\n\n00:01.000 --> 00:04.000\n{cue}\n".encode(), str.upper)
    assert [unit.source for unit in document.units] == sources


@pytest.mark.parametrize("cue", ['{"title": "Chapter one",\n "id": 5}', "sprite.jpg#xywh=0,0,160,90"])
def test_metadata_for_programs_stays(cue: str) -> None:
    document = parse_vtt(f"WEBVTT\n\n00:01.000 --> 00:04.000\n{cue}\n\n00:05.000 --> 00:06.000\nText\n".encode())
    assert [unit.source for unit in document.units] == ["Text"]


def test_language_in_a_cue_is_its_text() -> None:
    content = b"WEBVTT\n00:01.000 --> 00:09.000\nLanguage: en\n"
    document = check_laws(parse_vtt, content)
    assert (document.source_language, write_document(document, {}, "de")) == ("", content)
