"""Tests of TS files."""

from __future__ import annotations

from document_checks import check_document

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.qt_ts import parse_qt_ts

TS = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="ru_RU" sourcelanguage="en">
<context>
    <name>Window</name>
    <message>
        <location filename="a.cpp" line="3"/>
        <source>Open &amp;file</source>
        <comment>menu</comment>
        <translation type="unfinished"></translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished">
            <numerusform>%n файл</numerusform>
            <numerusform></numerusform>
            <numerusform/>
        </translation>
    </message>
    <message>
        <source>Close<byte value="x9"/></source>
        <translation>Закрыть<byte value="x9"/></translation>
    </message>
    <message><source>Old</source><translation type="vanished">Стар</translation></message>
    <message id="new"><source>New</source></message>
    <message numerus="yes"><source>%n new</source><translation type="unfinished"/></message>
</context>
</TS>
""".encode()


def test_messages_are_read() -> None:
    document = check_document(parse_qt_ts, TS)
    assert (document.source_language, document.target_language) == ("en", "ru_RU")
    assert [(unit.id, unit.source, unit.target, unit.state) for unit in document.units] == [
        ("Window/Open &file/menu", "Open &file", "", "untranslated"),
        ("Window/%n file(s)/0", "%n file(s)", "%n файл", "fuzzy"),
        ("Window/%n file(s)/1", "%n file(s)", "", "untranslated"),
        ("Window/%n file(s)/2", "%n file(s)", "", "untranslated"),
        ("Window/Close", "Close<x1/>", "Закрыть<x1/>", "translated"),
        ("new", "New", "", "untranslated"),
    ]


def test_states_and_checks_are_written() -> None:
    name = "Window/Open &file/menu"
    document = parse_qt_ts(TS)
    fuzzy = write_document(document, {name: UnitTranslation("Файл <1>", "fuzzy", ("numbers",), note="A number & more")})
    comment = b"<translatorcomment>dragoman: A number &amp; more</translatorcomment>"
    old = b'<translation type="unfinished"></translation>'
    new = '<translation type="unfinished">Файл &lt;1&gt;</translation>'.encode()
    assert fuzzy == TS.replace(old, comment + new)
    assert write_document(parse_qt_ts(fuzzy), {name: UnitTranslation("Файл <1>")}) == TS.replace(
        old, new.replace(b' type="unfinished"', b"")
    )


def test_numerus_forms_share_a_state() -> None:
    document = parse_qt_ts(TS)
    names = [unit.id for unit in document.units if unit.id.startswith("Window/%n")]
    written = write_document(document, {name: UnitTranslation(f"%n {name[-1]}") for name in names}, "uk")
    expected = TS.replace(
        '<translation type="unfinished">\n            <numerusform>%n файл'.encode(),
        b"<translation>\n            <numerusform>%n 0",
    )
    expected = expected.replace(b"<numerusform></numerusform>", b"<numerusform>%n 1</numerusform>")
    expected = expected.replace(b"<numerusform/>", b"<numerusform>%n 2</numerusform>")
    assert written == expected.replace(b"ru_RU", b"uk")
    state, first = b' type="unfinished"', ">\n            <numerusform>%n файл<".encode()
    new = {names[1]: UnitTranslation("%n файла", "fuzzy")}
    assert state + first in write_document(parse_qt_ts(TS.replace(state + first, first)), new)
