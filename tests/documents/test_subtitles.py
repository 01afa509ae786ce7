"""Subtitle files: cues, tags, sentences across cues and line lengths."""

from __future__ import annotations

import pytest
from document_laws import check_laws
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.subtitles import LINE_LENGTH, break_lines, parse_srt, parse_vtt, split_for_cues
from dragoman.errors import DataError

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
    document = parse_srt(SRT.encode())
    assert [(unit.source, unit.markup) for unit in document.units] == [
        ("This is a sentence that goes", "none"),
        ("on & on.", "none"),
        ("Whole cue", "none"),
        ("Some <b>bold</b> &amp; more &lt;3", "html"),
        ("- Hello.\n- Hi!", "none"),
    ]
    assert document.sentence_groups == (("0", "1"),)


def test_units_of_vtt_have_no_notes() -> None:
    document = parse_vtt(VTT.encode())
    assert [unit.source for unit in document.units] == [
        "<v Ann>Tom &amp; Jerry go",
        "home <now>.",
        "Some <c.red>red</c> text &amp; more.",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_laws_hold(newline: str, mark: bytes) -> None:
    check_laws(parse_srt, mark + SRT.replace("\n", newline).encode())
    check_laws(
        parse_vtt, mark + VTT.replace("\n", newline).encode(), lambda text: f"Ŧḗẋŧ {text} שלום, a longer text for two lines"
    )


def test_windows_encoding_is_kept() -> None:
    document = parse_srt(SRT.replace("Whole", "Été").replace("♪", "*").encode("cp1252"))
    assert "Œuvre".encode("cp1252") in write_document(document, {"2": UnitTranslation("Œuvre")})


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


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("abc,", min_size=1, max_size=5), min_size=1, max_size=9),
    st.lists(st.floats(0, 60), min_size=1, max_size=5),
)
def test_parts_are_the_text(words: list[str], goals: list[float]) -> None:
    parts = split_for_cues(" ".join(words), sorted(goals), is_spaced=True)
    assert len(parts) == len(goals) + 1
    assert " ".join(part for part in parts if part) == " ".join(words)
    assert all(parts) or len(words) <= len(goals)


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Zs")), min_size=1, max_size=80), st.booleans()
)
def test_any_text_reads_as_written(text: str, is_vtt: bool) -> None:
    parse, content = (parse_vtt, VTT.encode()) if is_vtt else (parse_srt, SRT.encode())
    document = parse(content)
    translations = {"1": UnitTranslation(f"{text} & {text} <x> e")}
    check_written(document, translations, write_document(document, translations), parse)


@pytest.mark.parametrize(
    ("parse", "content", "code"),
    [
        (parse_srt, b"", "invalid-format"),
        (parse_srt, b"a text\n", "invalid-format"),
        (parse_srt, b"\x81\x8d", "invalid-encoding"),
        (parse_srt, SRT.replace("This is a sentence", "这是一个句子" * 40).encode("gb2312", "ignore"), "invalid-encoding"),
        (parse_vtt, SRT.encode(), "invalid-format"),
        (parse_vtt, b"WEBVTT\n\xff", "invalid-encoding"),
    ],
)
def test_other_content_is_refused(parse: object, content: bytes, code: str) -> None:
    assert callable(parse)
    with pytest.raises(DataError) as caught:
        parse(content)
    assert caught.value.code == code
