"""Contents that are no file of a format are refused by the parser of the format itself."""

from __future__ import annotations

import pytest
from document_checks import Parse
from test_subtitles import SRT

from dragoman.documents import html_file, json_file, markdown, plain_text, po, yaml_file
from dragoman.documents.android_strings import parse_android_strings
from dragoman.documents.csv_file import parse_csv
from dragoman.documents.fluent import parse_ftl
from dragoman.documents.properties import parse_properties, parse_strings
from dragoman.documents.qt_ts import parse_qt_ts
from dragoman.documents.resx import parse_resx
from dragoman.documents.stringsdict import parse_stringsdict
from dragoman.documents.subtitles import parse_ass, parse_srt, parse_vtt
from dragoman.documents.tmx_document import parse_tmx
from dragoman.documents.xcstrings import parse_xcstrings
from dragoman.documents.xliff_document import parse_xliff
from expected_errors import raises_code

EVENTS = b"[Events]\nFormat: Start, End, Text\n"
INVALID_FORMAT: dict[Parse, tuple[bytes, ...]] = {
    html_file.parse: (
        b"", b"just text", b"PK\x03\x04", b"<?xml version='1.0'?><svg></svg>", b"{% if a %}<p>text</p>{% endif %}",
    ),
    json_file.parse: (
        b"", b'"a"', b"{", b"[1", b"{]", b'{"a" 1}', b'{"a": "b}', b"{a: 1}", b'["\\x"]', b'{"\\u00": 1}',
        b"[" * 300 + b"]" * 300, b"[] []", b"<a>", b'{"a": }',
    ),
    json_file.parse_json5: (
        b"{a b: 1}", b"{'a': 'b", b"{a: 'b\nc'}", b"{a: '\\xz'}}", b"{" * 300, b"[" * 300, b"'a'", b"{a: 1} b", b"/*",
    ),
    markdown.parse: (b"<!DOCTYPE html><p>a", b"a\0b"),
    plain_text.parse: (b"a\0b",),
    po.parse: (
        b"", b"# only a comment\n", b'msgid "a"\nmsgstr "b\n', b'msgid "a"\n', b'msgid "a"\nmsgstr[0] "b"\n',
        b'msgid "a"\nmsgid "c"\nmsgstr "b"\n', b"<html>", b'msgid "a\0"\nmsgstr ""\n',
    ),
    yaml_file.parse: (b"", b"just a text", b"a: [", b"a: b\n c: d\n", b"a: \x01", b"- " * 300 + b"a", b"[" * 1500),
    parse_android_strings: (b"<a/>", b"<resources>", b"", b"PK\x03\x04"),
    parse_ass: (
        b"1\n00:00:01,000 --> 00:00:02,000\nText\n",
        b"[Events]\nFormat: Start, Text, End\n",
        b"[Events]\nDialogue: 0:00:01.00,0:00:02.00,Text\n",
        EVENTS + b"Dialogue: 0:00:01.00,later,Text\n",
        EVENTS + b"Dialogue: 0:00:01.00\n",
    ),
    parse_csv: (b"", b"\n", b'a,b\n"one"two,x\n', b"a" + b"," * 10_000),
    parse_ftl: (b"", b"# only a comment\n", b"no entry here\n", b"a = b\n}\n"),
    parse_properties: (b"= value", b"a\0b"),
    parse_qt_ts: (b"<tmx/>",),
    parse_resx: (b"<resources/>",),
    parse_srt: (b"", b"a text\n"),
    parse_strings: (b"", b'"a" = "b"'),
    parse_stringsdict: (b"<plist><dict><key>a</key><string>b</string></dict></plist>", b"<a/>"),
    parse_tmx: (b"<xliff/>",),
    parse_vtt: (SRT.encode(),),
    parse_xcstrings: (
        b'{"a": "b"}', b'{"sourceLanguage": "en"}', b"[]", b'{"sourceLanguage": "en", "strings": {', b"{" * 300,
    ),
    parse_xliff: (b"<tmx/>",),
}  # fmt: skip
INVALID_ENCODING: dict[Parse, tuple[bytes, ...]] = {
    html_file.parse: (b"<html>\xff", b'<meta charset="hex"><p>a', b'<meta charset="rot13"><p>text</p>'),
    markdown.parse: (b"\xff\xfe\xfd",),
    plain_text.parse: (b"\xffa",),
    po.parse: (b'msgid "a"\nmsgstr "\xff"\n', b'msgid ""\nmsgstr "charset=nonsense"\n'),
    yaml_file.parse: (b"a: \xff",),
    parse_srt: (b"\x81\x8d", SRT.replace("This is a sentence", "这是一个句子" * 40).encode("gb2312", "ignore")),
    parse_strings: (b"\xff",),
    parse_vtt: (b"WEBVTT\n\xff",),
}


def test_other_content_is_refused(subtests: pytest.Subtests) -> None:
    for code, table in (("invalid-format", INVALID_FORMAT), ("invalid-encoding", INVALID_ENCODING)):
        for parse, contents in table.items():
            for content in contents:
                with subtests.test(parse=parse.__module__, content=content[:60]), raises_code(code):
                    parse(content)
