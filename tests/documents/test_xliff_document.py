"""Tests of XLIFF documents."""

from __future__ import annotations

import pytest
from document_checks import check_document

from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.translation_memory import MemoryMatch
from dragoman.documents.unit_selection import list_selected
from dragoman.documents.xliff_document import parse_xliff
from expected_errors import raises_code

HEAD_1 = '<?xml version="1.0"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
FILE_1 = '<file original="a.c" source-language="en" target-language="de-DE" datatype="plaintext"><body>\n'
END_1 = "</body></file></xliff>"
UNITS_1 = """\
  <trans-unit id="1" resname="menu.open" maxwidth="20" size-unit="char">
    <source>Open <g id="1" ctype="bold">the <x id="2"/>file</g> &amp; go</source>
    <alt-trans><source>Open</source><target>Offen</target></alt-trans>
  </trans-unit>
  <trans-unit id="2"><source>A <bpt id="1">&lt;b&gt;</bpt>bold<ept id="1">&lt;/b&gt;</ept> word<ph id="2">%s</ph></source>\
<target state="new">A word</target></trans-unit>
  <trans-unit id="3" translate="no"><source>KEY</source></trans-unit>
  <group translate="no"><trans-unit id="4"><source>KEY</source></trans-unit></group>
  <trans-unit id="5" approved="yes"><source>Yes</source><target>Ja</target></trans-unit>
  <trans-unit id="6"><source>Keep <mrk mtype="protected">Dragoman</mrk> so</source><target/></trans-unit>
  <trans-unit id="7"><source><![CDATA[<p>Text</p>]]></source><target state="needs-adaptation">Text</target></trans-unit>
  <trans-unit id="8"><source>One. Two.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk> \
<mrk mtype="seg" mid="1">Two.</mrk></seg-source></trans-unit>
  <trans-unit id="8"><source>Same id</source></trans-unit>
"""
XLIFF_1 = (HEAD_1 + FILE_1 + UNITS_1 + END_1).encode()
XLIFF_2 = b"""\
<?xml version="1.0" encoding="UTF-8"?>
<xlf:xliff version="2.1" srcLang="en" trgLang="fr" xmlns:xlf="urn:oasis:names:tc:xliff:document:2.0" \
xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0">
<xlf:file id="f1"><xlf:unit id="u1" name="menu">
  <mtc:matches><mtc:match ref="#m1"><xlf:source>Old</xlf:source><xlf:target>Vieux</xlf:target></mtc:match></mtc:matches>
  <xlf:originalData><xlf:data id="d1">&lt;br/&gt;</xlf:data></xlf:originalData>
  <xlf:segment id="s1">
    <xlf:source>Open <xlf:pc id="1">the <xlf:ph id="2" dataRef="d1"/>file</xlf:pc>.</xlf:source>
  </xlf:segment>
  <xlf:ignorable><xlf:source> </xlf:source></xlf:ignorable>
  <xlf:segment id="s2" state="initial"><xlf:source><xlf:sc id="3"/>Close it<xlf:ec startRef="3"/> now</xlf:source>\
<xlf:target>Fermez</xlf:target></xlf:segment>
  <xlf:segment id="s3" state="final"><xlf:source>End</xlf:source><xlf:target>Fin</xlf:target></xlf:segment>
</xlf:unit></xlf:file>
<xlf:file id="f2" translate="no"><xlf:unit id="u1"><xlf:segment><xlf:source>No</xlf:source></xlf:segment></xlf:unit></xlf:file>
<xlf:file id="f3"><xlf:unit id="u1"><xlf:segment><xlf:source>Yes <xlf:mrk id="1" translate="no">A</xlf:mrk></xlf:source>\
</xlf:segment></xlf:unit></xlf:file>
</xlf:xliff>
"""


@pytest.mark.parametrize("content", [XLIFF_1, XLIFF_2, XLIFF_1.replace(b"\n", b"\r\n"), XLIFF_1.decode().encode("utf-16")])
def test_targets_are_read_back(content: bytes) -> None:
    if content.startswith(b"\xff\xfe"):
        content = content.decode("utf-16").replace('version="1.0"?', 'version="1.0" encoding="UTF-16"?').encode("utf-16")
    check_document(parse_xliff, content)


def test_units_of_version_1_are_read() -> None:
    document = parse_xliff(XLIFF_1)
    assert (document.source_language, document.target_language) == ("en", "de-DE")
    rows = {unit.id: (unit.source, unit.target, unit.state, unit.markup) for unit in document.units}
    assert rows == {
        "1": ("Open <g1>the <x2/>file</g1> &amp; go", "", "untranslated", "xml"),
        "2": ("A <g1>bold</g1> word<x2/>", "A word", "untranslated", "xml"),
        "5": ("Yes", "Ja", "locked", "none"),
        "6": ("Keep <x1/> so", "", "untranslated", "xml"),
        "7": ("<p>Text</p>", "Text", "fuzzy", "none"),
        "8": ("<g1>One.</g1> <g2>Two.</g2>", "", "untranslated", "xml"),
        "8#2": ("Same id", "", "untranslated", "none"),
    }
    assert (document.units[0].context, document.units[0].max_length) == ("menu.open", 20)


def test_units_of_version_2_are_read() -> None:
    document = parse_xliff(XLIFF_2)
    assert (document.source_language, document.target_language) == ("en", "fr")
    assert [(unit.id, unit.source, unit.target, unit.state) for unit in document.units] == [
        ("u1/s1", "Open <g1>the <x2/>file</g1>.", "", "untranslated"),
        ("u1/s2", "<g1>Close it</g1> now", "Fermez", "fuzzy"),
        ("u1/s3", "End", "Fin", "locked"),
        ("f3/u1", "Yes <x1/>", "", "untranslated"),
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (
            '<mrk mtype="seg" mid="0">One.</mrk> <mrk mtype="seg" mid="1">Two.</mrk>',
            '<mrk mtype="seg" mid="0"/> <mrk mtype="seg" mid="1"/>',
        ),
        ('<g id="1">All of it</g>', '<g id="1"></g>'),
        ('Line <x id="1"/>', '<x id="1"/>'),
    ],
)
def test_target_of_codes_alone_is_empty(source: str, target: str) -> None:
    content = f'{HEAD_1}{FILE_1}<trans-unit id="1"><source>{source}</source><target>{target}</target></trans-unit>{END_1}'
    document = parse_xliff(content.encode())
    (unit,) = document.units
    assert (unit.target, unit.state) == ("", "untranslated")
    written = write_document(document, {"1": UnitTranslation(unit.source)}).decode()
    assert written == content.replace(f"<target>{target}", f'<target state="translated">{source}')


def test_empty_segments_of_a_target_are_untranslated() -> None:
    """The other segments stay, and the state of the target says that a part of it is new."""
    source = '<mrk mtype="seg" mid="1">One.</mrk> <mrk mtype="seg" mid="2">Two.</mrk> <mrk mtype="seg" mid="3">Three.</mrk>'
    unit = f'<trans-unit id="1"><source>One. Two. Three.</source><seg-source>{source}</seg-source>'
    targets = '<mrk mtype="seg" mid="1">Eins.</mrk> <mrk mtype="seg" mid="2"/> <mrk mtype="seg" mid="3"> </mrk>'
    content = f'{HEAD_1}{FILE_1}{unit}<target state="translated">{targets}</target></trans-unit>{END_1}'
    document = parse_xliff(content.encode())
    assert [(unit.id, unit.target, unit.state) for unit in document.units] == [
        ("1/1", "Eins.", "translated"), ("1/2", "", "untranslated"), ("1/3", "", "untranslated"),
    ]  # fmt: skip
    texts = {"1/2": "Zwei.", "1/3": "Drei."}
    written = write_document(document, {name: UnitTranslation(text, "fuzzy") for name, text in texts.items()})
    state = 'state="needs-review-translation" state-qualifier="leveraged-mt"'
    filled = targets.replace('2"/>', '2">Zwei.</mrk>').replace('3"> <', '3">Drei.<')
    assert written.decode() == content.replace('state="translated"', state).replace(targets, filled)
    check_written(document, {name: UnitTranslation(text) for name, text in texts.items()}, written, parse_xliff)


def test_equal_and_missing_numbers_of_segments_are_counted() -> None:
    numbers = ("", "", ' mid="1"', ' mid="1"')
    sources, targets = (
        "".join(f'<mrk mtype="seg"{number}>{text}</mrk>' for number, text in zip(numbers, texts, strict=True))
        for texts in ("ABCD", ("", "E", "", ""))
    )
    unit = f'<trans-unit id="1"><source>ABCD</source><seg-source>{sources}</seg-source><target>{targets}</target></trans-unit>'
    document = parse_xliff(f"{HEAD_1}{FILE_1}{unit}{END_1}".encode())
    assert [(unit.id, unit.source, unit.target) for unit in document.units] == [
        ("1/", "A", ""), ("1/#2", "B", "E"), ("1/1", "C", ""), ("1/1#2", "D", ""),
    ]  # fmt: skip


def test_source_of_codes_alone_has_a_translation() -> None:
    content = f'{HEAD_1}{FILE_1}<trans-unit id="1"><source><x id="1"/></source><target><x id="1"/></target></trans-unit>{END_1}'
    assert parse_xliff(content.encode()).units[0].state == "translated"


def test_target_stands_behind_source_with_state_and_note() -> None:
    document = parse_xliff(XLIFF_1)
    text = "Die <g1><x2/>Datei</g1> öffnen &amp; los"
    written = write_document(document, {"1": UnitTranslation(text, "fuzzy", ("numbers",), note="A number & more")})
    source = b'<source>Open <g id="1" ctype="bold">the <x id="2"/>file</g> &amp; go</source>'
    target = (
        '\n    <target state="needs-review-translation" state-qualifier="leveraged-mt">'
        'Die <g id="1" ctype="bold"><x id="2"/>Datei</g> öffnen &amp; los</target>'
        '\n    <note from="dragoman">A number &amp; more</note>'
    )
    assert written == XLIFF_1.replace(source, source + target.encode())
    again = parse_xliff(written)
    assert (again.units[0].target, again.units[0].state) == (text, "fuzzy")
    clean = write_document(again, {"1": UnitTranslation(text)})
    assert clean == XLIFF_1.replace(
        source, source + f'\n    <target state="translated">{target[target.index("Die") :]}'.encode()
    ).replace(b'\n    <note from="dragoman">A number &amp; more</note>', b"")


def test_file_states_the_language_of_its_translations() -> None:
    for content, name in ((XLIFF_1, "target-language"), (XLIFF_2, "trgLang")):
        document = parse_xliff(content)
        translations = {document.units[-1].id: UnitTranslation("Text <x1/>" if name == "trgLang" else "Text")}
        same = write_document(document, translations, document.target_language[:2])
        assert parse_xliff(same).target_language == document.target_language
        other = write_document(document, translations, "cs")
        assert parse_xliff(other).target_language == "cs"
        assert other.replace(f'{name}="cs"'.encode(), f'{name}="{document.target_language}"'.encode()) == same


def test_segment_of_version_2_states_the_checks() -> None:
    document = parse_xliff(XLIFF_2)
    text = "<g1>Fermez-le</g1> maintenant"
    written = write_document(document, {"u1/s2": UnitTranslation(text, "fuzzy", ("numbers",))})
    assert b'<xlf:segment id="s2" state="initial" subState="dragoman:numbers">' in written
    assert b'<xlf:target><xlf:sc id="3"/>Fermez-le<xlf:ec startRef="3"/> maintenant</xlf:target>' in written
    clean = write_document(parse_xliff(written), {"u1/s2": UnitTranslation(text)})
    assert b'<xlf:segment id="s2" state="translated"><xlf:source>' in clean


@pytest.mark.parametrize("text", ["Die Datei", "<g1><x2/>", "<g1><x2/></g1><x2/>", "</g1><g1><x2/>", "<x2/><g1></g1></g1>"])
def test_damaged_tags_are_refused(text: str) -> None:
    with raises_code("invalid-data"):
        write_document(parse_xliff(XLIFF_1), {"1": UnitTranslation(text)})


def test_codes_that_cross_elements_are_points() -> None:
    source = '<source><g id="1">a<bpt id="2"/>b</g>c<ept id="2"/></source>'
    document = check_document(parse_xliff, f'{HEAD_1}{FILE_1}<trans-unit id="1">{source}</trans-unit>{END_1}'.encode())
    assert document.units[0].source == "<g1>a<x2/>b</g1>c<x3/>"


@pytest.mark.parametrize("prefix", ["", "xlf:"])
def test_match_of_a_similar_text_stands_in_the_module_for_matches(prefix: str) -> None:
    namespace = f"xmlns{':xlf' if prefix else ''}"
    content = (
        f'<{prefix}xliff version="2.0" srcLang="en" trgLang="de" {namespace}="urn:oasis:names:tc:xliff:document:2.0">'
        f'<{prefix}file id="f"><{prefix}unit id="u"><{prefix}segment id="s"><{prefix}source>Open it</{prefix}source>'
        f"</{prefix}segment></{prefix}unit></{prefix}file></{prefix}xliff>"
    ).encode()
    similar = UnitTranslation("Öffne", "fuzzy", match=MemoryMatch("Open & it", "Öffne", 0.9))
    written = write_document(parse_xliff(content), {"u": similar})
    match = (
        f'<mtc:match ref="#s" type="tm" origin="dragoman" similarity="90.0"><{prefix}source>Open &amp; it</{prefix}source>'
        f"<{prefix}target>Öffne</{prefix}target></mtc:match>"
    )
    matches = f'<mtc:matches xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0">{match}</mtc:matches>'
    assert f'<{prefix}unit id="u">{matches}<{prefix}segment ' in written.decode()
    again = write_document(parse_xliff(written), {"u": similar})
    assert again == written
    assert b"mtc:" not in write_document(parse_xliff(written), {"u": UnitTranslation("Öffne es")})


def test_each_file_has_its_own_languages() -> None:
    """A file into another language stays, with its language. One without a language gets that of the translation."""
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    names = {"a": 'target-language="de-DE"', "b": 'target-language="fr"', "c": "", "d": 'target-language="de"'}
    languages = {"d": "es"}
    files = "".join(
        f'<file original="{name}" source-language="{languages.get(name, "en")}" {target} datatype="plaintext"><body>'
        f'<trans-unit id="1"><source>Text {name}</source></trans-unit></body></file>'
        for name, target in names.items()
    )
    document = parse_xliff(f"{head}{files}</xliff>".encode())
    assert (document.source_language, document.target_language) == ("", "")
    selected = list_selected(document, "empty", source_language="en", target_language="de")
    assert [unit.source for unit in selected] == ["Text a", "Text c"]
    content = write_document(document, {unit.id: UnitTranslation("Wort") for unit in selected}, "de").decode()
    assert content.count("Wort") == 2
    assert [f'target-language="{code}"' in content for code in ("de-DE", "fr", "de")] == [True, True, True]
    assert content.count("target-language") == 4
