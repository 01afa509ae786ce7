"""An output that exists is completed: its texts stay, by their key or by their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from document_checks import OPTIONS, make_stub

from dragoman.documents.command import translate_file
from dragoman.documents.document import Document, UnitTranslation, write_document
from dragoman.documents.earlier_output import keep_values, match_texts, merge_translations
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import DocumentOptions, translate_document
from dragoman.errors import DataError
from expected_errors import raises_code
from office_files import W, make_docx, make_xlsx
from outside_parsers import INSIDE

_RUNS = "<w:r><w:rPr><w:{0}/></w:rPr><w:t>{1}</w:t></w:r>"
DOCX = make_docx(
    f"<w:p {W}>{_RUNS.format('b', 'One')}<w:r><w:t xml:space='preserve'> and </w:t></w:r>{_RUNS.format('i', 'two')}</w:p>"
    f"<w:p {W}><w:r><w:t>The last paragraph</w:t></w:r></w:p>"
)
WORDS = "The first text"
CUES = "".join(f"1\n00:00:0{{{n}}},000 --> 00:00:0{{{n}}},900\n{{{n + 1}}}.\n\n" for n in (0, 2))
ANDROID = '<resources><bool name="b">{}</bool><string name="e">{}</string><string name="a">{}</string></resources>'
RESX = '<root><data name="a"><value>{}</value></data><data name="s" type="Size"><value>{}</value></data></root>'
ASS = "[Events]\nFormat: Layer, Start, End, Text\nDialogue: 0,0:00:01.00,0:00:0{}.00,{}\n"
ARRAY = '<resources><string-array name="a">{}</string-array></resources>'


def read(name: str, content: str | bytes) -> Document:
    return parse_document(name, content if isinstance(content, bytes) else content.encode())


stub = make_stub(lambda line: f"T({line})")


def test_second_run_keeps_what_a_human_wrote(subtests: pytest.Subtests) -> None:
    """The output of the second run is that of the first one, byte for byte, with the human's changes."""
    for suffix, places in INSIDE.items():
        name, place = f"a{suffix}", next(iter(places), str)
        document = read(name, place(WORDS))
        if document.is_bilingual:
            continue
        with subtests.test(suffix):
            translations = {unit.id: UnitTranslation(unit.source.replace("The", "Der")) for unit in document.units}
            output = write_document(document, translations, "de")
            earlier = match_texts(document, read(name, output))
            assert set(earlier.texts) >= {unit.id for unit in document.units}
            assert not earlier.unused
            result = translate_document(document, get_parser(name), stub, OPTIONS, earlier=earlier.texts)
            assert {unit.origin for unit in result.results} == {"file"}
            assert result.content == output


def test_formats_that_changed_places_stay_with_their_words() -> None:
    """The bold word of the source comes last in the translation. Its number is 1 in the one, and 2 in the other."""
    document = read("a.docx", DOCX)
    first = document.units[0]
    assert first.source == "<g1>One</g1> and <g2>two</g2>"
    swapped = "<g2>Zwei</g2> und <g1>eins</g1>"
    output = write_document(document, {first.id: UnitTranslation(swapped)}, "de")
    parsed = read("a.docx", output)
    assert parsed.units[0].source == "<g1>Zwei</g1> und <g2>eins</g2>"
    assert match_texts(document, parsed).texts[first.id] == swapped


def translate_again(name: str, source: str, output: str, original: str | None = None, scope: str = "empty") -> str:
    parse, other = get_parser(name), read(name, output)
    parsed = None if original is None else keep_values(read(name, original), parse, other)
    document = keep_values(read(name, source), parse, other, None if original is None else read(name, original))
    earlier = match_texts(document, other, parsed)
    options = DocumentOptions("en", "de", scope)  # type: ignore[arg-type]
    return translate_document(document, get_parser(name), stub, options, earlier=earlier.texts).content.decode()


def test_new_keys_are_translated_and_others_kept() -> None:
    """Values for programs are kept, too, although their codes are others."""
    source = '{"new": "A new text", "a": "The text", "same": "Server", "point": ".", "date": "%Y-%m-%d"}'
    output = '{"a": "von Hand", "same": "Server", "point": ",", "date": "%d.%m.%Y"}'
    document, parse = read("a.json", source), get_parser("a.json")
    earlier = match_texts(document, read("a.json", output)).texts
    result = translate_document(document, parse, stub, OPTIONS, earlier=earlier)
    assert json.loads(result.content) == {"new": "T(A new text)", **json.loads(output)}
    assert not any(text.flags for text in result.results)
    assert json.loads(translate_again("a.json", source, output, scope="fuzzy"))["same"] == "T(Server)"
    assert json.loads(translate_again("a.json", source, output, scope="all"))["a"] == "T(The text)"


def test_changed_texts_are_translated_if_the_original_is_known() -> None:
    original, source = '{"a": "The old text", "b": "Stays"}', '{"a": "The new text", "b": "Stays", "moved": "The old text"}'
    written = json.loads(translate_again("a.json", source, '{"a": "der alte Text", "b": "bleibt"}', original))
    assert written == {"a": "T(The new text)", "b": "bleibt", "moved": "der alte Text"}


def test_paragraphs_are_kept_by_their_source_if_the_original_is_known() -> None:
    original, source = "One text.\n\nTwo texts.\n", "A new text.\n\nTwo texts.\n\nOne text.\n"
    written = translate_again("a.md", source, "Ein Text.\n\nZwei Texte.\n", original)
    assert written == "T(A new text.)\n\nZwei Texte.\n\nEin Text.\n"


@pytest.mark.parametrize(("name", "source", "output"), [
    ("a.json", '{"a": "The text", "n": 5, "t": true, "z": null, "e": "", "l": [1, 2], "s": "Text", "u": "https://a.org/en"}',
     '{"a": "Der", "n": 7, "t": "ja", "z": 4, "e": "neu", "l": [1, 3], "s": false, "u": "https://a.org/de"}'),
    ("a.yml", "en:\n  a: The text\n  n: 5\n  t: true\n  e:\n  o: no\n", "de:\n  a: Der\n  n: 7\n  t: ja\n  e: neu\n  o: yes\n"),
    ("a.properties", "a = The text\nn = 5\ne =\n", "a = Der\nn = 7\ne =neu\n"),
    ("a.strings", '"a" = "The text";\n"e" = "";\n', '"a" = "Der";\n"e" = "neu";\n'),
    ("a.csv", "key,en,de\na,The text,\nb,Two,Zwei\n", "key,en,de\na,Der,Er\nb,Zwei,Zwo\n"),
    ("a.srt", CUES.format(1, "One", 3, "Two"), CUES.format(1, "Eins", 3, "Zwei").replace(",900", ",800")),
    ("a.ass", ASS.format(2, "One."), ASS.format(3, "Eins.")),
    ("a.xml", ANDROID.format("true", "", "One"), ANDROID.format("false", "neu", "Eins")),
    ("a.xml", '<resources><string name="a">One</string><integer-array name="i"><item>1</item></integer-array></resources>',
     '<resources><string name="a">Eins</string><integer-array name="i"><item>2</item></integer-array></resources>'),
    ("a.resx", RESX.format("One", "1, 2"), RESX.format("Eins", "3, 2")),
    ("a.resx", '<root><data name="a"><value /></data></root>', '<root><data name="a"><value>Eins</value></data></root>'),
    ("a.xml", '<resources><string name="a"/></resources>', '<resources><string name="a">Eins</string></resources>'),
])  # fmt: skip
def test_values_of_a_human_stay(name: str, source: str, output: str) -> None:
    """They are numbers, truth values, empty texts and times, also where a human has written another type."""
    assert translate_again(name, source, output) == output


def test_values_of_a_human_are_not_translated() -> None:
    """The source leaves them empty, so they are no texts in its language."""
    source, output = '{"a": "One", "b": ""}', '{"a": "Eins", "b": "neu"}'
    assert translate_again("a.json", source, output, scope="fuzzy") == output


def test_order_of_shared_texts_does_not_matter() -> None:
    """LibreOffice stores the texts in the order of the cells, and equal ones once."""

    def make(strings: list[str], numbers: list[int]) -> bytes:
        cells = "".join(f'<c r="A{row}" t="s"><v>{number}</v></c>' for row, number in enumerate(numbers, start=1))
        return make_xlsx("".join(f"<si><t>{text}</t></si>" for text in strings), f"<sheetData><row>{cells}</row></sheetData>")

    source, output = make(["Two", "Shut", "One", "Open"], [2, 0, 3, 1]), make(["Eins", "Zwei", "Auf"], [0, 1, 2, 2])
    document = read("a.xlsx", source)
    texts = match_texts(document, read("a.xlsx", output)).texts
    assert [texts[unit.id] for unit in document.units] == ["Zwei", "Auf", "Eins", "Auf"]
    with raises_code("length-mismatch"):
        match_texts(document, read("a.xlsx", make(["Eins", "Neu", "Zwei", "Auf"], [0, 1, 2, 3, 3])))


def test_cells_that_share_a_text_may_have_several_in_the_output() -> None:
    """A human has changed one of three cells, so the spreadsheet program has stored two texts."""
    cell = '<c r="{}1" s="1" t="s"><v>{}</v></c>'.format
    row = f"<sheetData><row>{cell('A', 0)}{cell('B', '{}')}{cell('C', 0)}</row></sheetData>"
    source = make_xlsx("<si><t>Open</t></si>", row.format(0))
    output = read("a.xlsx", make_xlsx("<si><t>Offen</t></si><si><t>Auf</t></si>", row.format(1)))
    for original in (None, read("a.xlsx", source)):
        parse = get_parser("a.xlsx")
        document = keep_values(read("a.xlsx", source), parse, output, original)
        kept = None if original is None else keep_values(original, parse, output)
        earlier = match_texts(document, output, kept)
        written = read("a.xlsx", translate_document(document, parse, stub, OPTIONS, earlier=earlier.texts).content)
        cells, texts = written.find_cells(), {unit.id: unit.source for unit in written.units}
        assert {cell[-2:]: texts[name] for name in texts for cell in cells[name]} == {"A1": "Offen", "B1": "Auf", "C1": "Offen"}


def test_values_that_changed_in_the_source_are_taken() -> None:
    original, source = '{"a": "Text", "n": 1, "m": 1, "l": [1]}', '{"a": "Text", "n": 2, "m": 1, "l": [1, 2]}'
    written = translate_again("a.json", source, '{"a": "Wort", "n": 1, "m": 3, "l": [5]}', original)
    assert written == '{"a": "Wort", "n": 2, "m": 3, "l": [1, 2]}'


def test_rows_are_found_by_cells_that_stay() -> None:
    """The first column has other names in the translation, so the second one tells which row is which."""
    source, output = "name,n\nApple,1\nNew,3\nPlum,2\n", "name,n\nApfel,1\nPflaume,2\n"
    assert translate_again("a.csv", source, output) == "name,n\nApfel,1\nT(New),3\nPflaume,2\n"
    without_number = (table.replace(",1", ",same").replace(",2", ",same").replace(",3", ",same") for table in (source, output))
    with raises_code("length-mismatch"):
        translate_again("a.csv", *without_number)


def test_new_cues_are_found_by_their_times() -> None:
    output = CUES.format(1, "Eins", 5, "Zwei")
    written = translate_again("a.srt", CUES.format(1, "One", 3, "New") + CUES.format(5, "Two", 7, "More"), output)
    assert written == CUES.format(1, "Eins", 3, "T(New.)").replace(").", ")") + CUES.format(5, "Zwei", 7, "T(More.)").replace(
        ").", ")"
    )


def test_equal_keys_keep_their_places() -> None:
    assert translate_again("a.json", '{"a": "One", "a": "Two"}', '{"a": "Eins", "a": "Zwei"}') == '{"a": "Eins", "a": "Zwei"}'


@pytest.mark.parametrize(("name", "source", "output"), [
    ("a.md", "In 1990.\n\nBerlin is old.\n\nLast.\n", "Berlin ist alt.\n\nIm Jahr 1990.\n\nEnde.\n"),
    ("a.md", "---\ntitle: The title\n---\nOne\n", "Eins\n\nZwei\n"),
    ("a.json", '["In 1990", "In 2000"]', '["Im Jahr 2000", "Im Jahr 1990"]'),
    ("a.srt", CUES.format(1, "One", 3, "New"), CUES.format(1, "Eins", 5, "Zwei")),
    ("a.xml", ARRAY.format("<item>One</item><item>New</item>"), ARRAY.format("<item>Eins</item>")),
])  # fmt: skip
def test_texts_that_changed_places_are_refused(name: str, source: str, output: str) -> None:
    with raises_code("length-mismatch"):
        translate_again(name, source, output)


def test_numbers_that_a_human_writes_as_words_stay_in_place() -> None:
    output = "Ein Text\n\n- fünf\n- 5\n- 6\n"
    assert translate_again("a.md", "One text\n\n- 5\n- five\n- 6\n", output) == output


@pytest.mark.parametrize(("name", "source", "output"), [
    ("a.md", "A new text.\n\nTwo texts.\n\nOne text.\n", "Ein Text.\n\nZwei Texte.\n"),
    ("a.json", '[{"a": "One"}, {"a": "New"}, {"a": "Two"}]', '[{"a": "Eins"}, {"a": "Zwei"}]'),
    ("a.yml", "en: {a: [One, New, Two]}", "de: {a: [Eins, Zwei]}"),
])  # fmt: skip
def test_places_that_nobody_can_tell_are_refused(name: str, source: str, output: str) -> None:
    with raises_code("length-mismatch", "2 ", "3"):
        match_texts(read(name, source), read(name, output))


def test_links_of_a_human_stay() -> None:
    """The human has changed the targets and the order of the links. A link that is new in the source comes from there."""
    source = "> See [the page](/en/a), and\n> [that](/en/b).\n\n- `x` is [new](/b)\n"
    output = "> Siehe [das](/de/b) und\n> [die Seite](/de/a).\n\n- [neu](/a) ist `x`\n"
    for original, expected in ((None, output), (source.replace("/b)\n", "/a)\n"), output.replace("(/a)", "(/b)"))):
        document = read("a.md", source)
        earlier = match_texts(document, read("a.md", output), None if original is None else read("a.md", original))
        document = earlier.keep_codes(document)
        written = translate_document(document, get_parser("a.md"), stub, OPTIONS, earlier=earlier.texts).content.decode()
        assert written == expected


# The command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(translate_file, [str(argument) for argument in arguments])


def test_command_completes_an_output(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "en.json", tmp_path / "en.de.json"
    source.write_text('{"a": "one two", "b": "big {n}"}', encoding="utf-8")
    output.write_text('{"b": "groß", "c": "weg"}', encoding="utf-8")
    result = run(bundle, source, "--overwrite", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["kept"], report["unused"]) == (3, 1, ["c"])
    assert [flag for text in report["flagged"] if text["context"] == "b" for flag in text["flags"]] == ["variables"]
    assert json.loads(output.read_text())["b"] == "groß"
    assert json.loads(output.read_text())["a"] not in ("one two", "")


def test_command_refuses_an_output_whose_places_are_others(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "a.md", tmp_path / "a.de.md"
    source.write_text("one two\n\nthree\n", encoding="utf-8")
    output.write_text("von Hand\n", encoding="utf-8")
    result = run(bundle, source, "--overwrite", "--json")
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (4, "length-mismatch")
    assert "--translation-of" in json.loads(result.stdout)["error"]
    assert output.read_text(encoding="utf-8") == "von Hand\n"
    (tmp_path / "old.md").write_text("one two\n", encoding="utf-8")
    assert run(bundle, source, "--overwrite", "--translation-of", tmp_path / "old.md").exit_code in (0, 3)
    assert output.read_text(encoding="utf-8").startswith("von Hand\n\n")


def test_command_refuses_an_output_in_another_language(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "a.po", tmp_path / "de.po"
    source.write_text('msgid "one two"\nmsgstr ""\n', encoding="utf-8")
    catalog = 'msgid ""\nmsgstr "Language: fr\\n"\n\nmsgid "one two"\nmsgstr "un deux"\n'
    output.write_text(catalog, encoding="utf-8")
    result = run(bundle, source, "-o", output, "--overwrite", "--json")
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (4, "unsupported-language")
    assert output.read_text(encoding="utf-8") == catalog


def test_command_checks_against_the_source_beside_it(tmp_path: Path) -> None:
    (tmp_path / "en.de.json").write_text('{"b": "May 18"}', encoding="utf-8")
    alone = run("--check", tmp_path / "en.de.json", "--json")
    assert (alone.exit_code, json.loads(alone.stdout)["code"]) == (4, "file-not-found")
    (tmp_path / "en.json").write_text('{"b": "In {n} days"}', encoding="utf-8")
    checked = run("--check", tmp_path / "en.de.json", "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["flagged"][0]["flags"]) == (3, ["variables"])
    other = run("--check", tmp_path / "en.de.json", "--translation-of", tmp_path / "en.de.json")
    assert other.exit_code == 0
    assert run("--check", tmp_path / "en.de.json", tmp_path / "en.json", "--translation-of", "x").exit_code == 2


def test_unreadable_output_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "one"}', encoding="utf-8")
    (tmp_path / "a.de.json").write_text("{", encoding="utf-8")
    result = run(bundle, tmp_path / "a.json", "--overwrite", "--json")
    assert result.exit_code == 4
    assert "--redo-all" in json.loads(result.stdout)["error"]
    assert run(bundle, tmp_path / "a.json", "--overwrite", "--redo-all").exit_code in (0, 3)
    with pytest.raises(DataError):
        read("a.json", "{")


def test_equal_sources_keep_the_translations_of_their_places() -> None:
    """A human translated the same heading in two ways. The earlier file, if there is one, had them in the same order."""
    content = "# Open\n\nText\n\n# Open\n\nNew text\n"
    output = read("a.md", "# Öffnen\n\nText\n\n# Offen\n\nNeuer Text\n")
    for document, original in ((read("a.md", content), None), (read("a.md", f"# Added\n\n{content}"), read("a.md", content))):
        texts = match_texts(document, output, original).texts
        assert [texts.get(unit.id) for unit in document.units if unit.source == "Open"] == ["Öffnen", "Offen"]


CATALOGS = {
    "po/a.pot": ("po/de.po", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n{}', '\nmsgid "{}"\nmsgstr ""\n'),
    "a.xlf": (
        "a.de.xlf",
        '<xliff version="1.2"><file source-language="en" target-language="de"><body>{}</body></file></xliff>',
        '<trans-unit id="{0}"><source>{0}</source></trans-unit>',
    ),
    "a.ts": (
        "a.de.ts",
        '<TS version="2.1" language="de" sourcelanguage="en"><context><name>A</name>{}</context></TS>',
        "<message><source>{}</source><translation/></message>",
    ),
    "a.tmx": (
        "a.de.tmx",
        '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>',
        '<tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu>',
    ),
}


@pytest.mark.parametrize("name", CATALOGS)
def test_translations_of_an_earlier_catalog_stay(name: str, bundle: Path, tmp_path: Path) -> None:
    """A human's text stays, a text that is new is translated, and one without a place is named."""
    output, file, entry = CATALOGS[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(file.format(entry.format("big") + entry.format("one two")), encoding="utf-8")
    earlier = read(name, file.format(entry.format("old") + entry.format("one two")))
    translations = {unit.id: UnitTranslation("von Hand", language="de") for unit in earlier.units}
    (tmp_path / output).write_bytes(write_document(earlier, translations, "de"))
    result = run(bundle, path, "--overwrite", "--project-names")
    assert result.exit_code in (0, 3), result.output
    assert "1 kept" in result.output
    assert "(old)" in result.output
    units = {unit.source: unit for unit in read(output, (tmp_path / output).read_bytes()).units}
    assert (units["one two"].target, units["one two"].state) == ("von Hand", "translated")
    assert units["big"].target
    assert units["big"].state == "fuzzy"


def test_translations_of_equal_sources_stay_with_their_ids() -> None:
    """The output has the units in another order, and a human added a note to one."""
    unit, file = CATALOGS["a.xlf"][2].replace("{0}</source>", "{1}</source>{2}"), CATALOGS["a.xlf"][1]
    document = read(
        "a.xlf", file.format("".join(unit.format(*texts, "") for texts in (("2", "Open"), ("1", "Open"), ("3", "One"))))
    )
    target = "<target>{}</target>".format
    texts = [("1", "Open", target("Öffnen")), ("2", "Open", target("Offen")), ("3", "One", target("Eins") + "<note>N</note>")]
    output = read("a.xlf", file.format("".join(unit.format(*text) for text in texts)))
    merged, unused = merge_translations(document, get_parser("a.xlf"), output)
    assert [unit.target for unit in merged.units] == ["Offen", "Öffnen", "Eins"]
    assert not unused


_PO_HEADER = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n"POT-Creation-Date: {}\\n"\n"Last-Translator: {}\\n"\n'
_XLIFF_2 = '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><file id="f">{}</file></xliff>'
_NOTE = '\n  <note from="Ann">N</note>'
_QT = "\n  <source>One &amp; all</source>"


@pytest.mark.parametrize(("name", "file", "source", "output"), [
    ("a.xlf", CATALOGS["a.xlf"][1], '<trans-unit id="1">\n  <source>One</source>\n</trans-unit>',
     '<trans-unit id="1" approved="yes">\n  <source>One</source>\n  <target state="final" a="b">Eins</target>'
     f"{_NOTE}\n</trans-unit>"),
    ("a.xlf", CATALOGS["a.xlf"][1], '<trans-unit id="1">\n  <source>One</source>\n</trans-unit>',
     f'<trans-unit id="1">\n  <source>One</source>{_NOTE}\n</trans-unit>'),
    ("a.xlf", _XLIFF_2, '<unit id="u">\n <segment id="s"><source>One</source></segment></unit>',
     f'<unit id="u">\n <notes>{_NOTE}</notes>\n <segment id="s" state="final"><source>One</source>'
     "<target>1</target></segment></unit>"),
    ("a.xlf", _XLIFF_2, '<unit id="u"><notes>\n  <note>D</note></notes><segment id="s"><source>One</source></segment></unit>',
     f'<unit id="u"><notes>\n  <note>D</note>{_NOTE}</notes><segment id="s" state="reviewed" subState="a:b">'
     "<source>One</source><target>Eins</target></segment></unit>"),
    ("a.ts", CATALOGS["a.ts"][1], f'<message>{_QT}\n  <translation type="unfinished"></translation></message>',
     f"<message>{_QT}\n  <translatorcomment>Hi</translatorcomment>\n  <translation>Eins</translation></message>"),
    ("a.tmx", CATALOGS["a.tmx"][1], '<tu><tuv xml:lang="en"><seg>One</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>',
     '<tu changedate="20260101T000000Z"><note>n</note><tuv xml:lang="en"><seg>One</seg></tuv>'
     '<tuv xml:lang="de" changeid="Ann"><prop type="a">p</prop><seg>Eins</seg></tuv></tu>'),
    ("a.po", "{}", _PO_HEADER.format("2026", "N") + '\n#. Of a program\n#, c-format\nmsgid "%s"\nmsgstr ""\n',
     "# Ann\n" + _PO_HEADER.format("2026", "Ann") + '"X-Generator: Poedit\\n"\n\n# Of a human\n# at work\n#. Of a program\n'
     '#, c-format, fuzzy, no-wrap\n#| msgid "%d"\nmsgid "%s"\nmsgstr "%s!"\n\n# Old\n#~ msgid "Gone"\n#~ msgstr "Weg"\n'),
])  # fmt: skip
def test_states_and_notes_of_a_human_stay(name: str, file: str, source: str, output: str) -> None:
    document, output = read(name, file.format(source)), file.format(output)
    merged, unused = merge_translations(document, get_parser(name), read(name, output))
    assert (merged.content.decode(), unused) == (output, [])


@pytest.mark.parametrize(("name", "file", "source", "output"), [
    ("a.xlf", CATALOGS["a.xlf"][1], '<trans-unit id="1"><source>One <x id="1"/></source></trans-unit>',
     '<trans-unit id="1"><source>One <x id="1"/></source><target state="final">Eins</target></trans-unit>'),
    ("a.xlf", _XLIFF_2, '<unit id="u"><segment><source>One <ph id="1"/></source></segment></unit>',
     '<unit id="u"><segment><source>One <ph id="1"/></source><target>Eins</target></segment></unit>'),
    ("a.tmx", CATALOGS["a.tmx"][1], '<tu>\n<tuv xml:lang="en"><seg>One <ph/></seg></tuv></tu>',
     '<tu>\n<tuv xml:lang="en"><seg>One <ph/></seg></tuv>\n<tuv xml:lang="de"><seg>Eins</seg></tuv></tu>'),
])  # fmt: skip
def test_translations_without_codes_of_their_sources_stay(name: str, file: str, source: str, output: str) -> None:
    merged, _ = merge_translations(read(name, file.format(source)), get_parser(name), read(name, file.format(output)))
    assert merged.content.decode() == file.format(output)


def test_entries_of_a_catalog_that_are_gone_become_obsolete() -> None:
    """The rest is as msgmerge 0.21 writes it: comments of programs and the date are those of the template."""
    entry = '\n#: a.c:{}\nmsgid "{}"\nmsgstr "{}"\n'.format
    document = read("a.po", _PO_HEADER.format("new", "N").replace("\n", "\r\n") + entry(2, "One", ""))
    output = _PO_HEADER.format("old", "Ann") + "\n# H" + entry(1, "One", "Eins")
    other = read("a.po", output + "\n# G" + entry(8, "Gone", "Weg"))
    merged, unused = merge_translations(document, get_parser("a.po"), other)
    obsolete = '\n# G\n#~ msgid "Gone"\n#~ msgstr "Weg"\n'
    assert merged.content.decode().replace("\r", "") == (
        _PO_HEADER.format("new", "Ann") + "\n# H" + entry(2, "One", "Eins") + obsolete
    )
    assert unused == ["Gone"]


def test_translation_that_a_human_changed_wins() -> None:
    """The output has another translation than the file. A fuzzy one and one that is no translation do not count."""
    unit = '<trans-unit id="1"><source>One</source><target state="{}">{}</target></trans-unit>'.format
    file, parse = CATALOGS["a.xlf"][1], get_parser("a.xlf")
    document = read("a.xlf", file.format(unit("translated", "Eins")))
    for state, text, expected in (("final", "Erstes", "Erstes"), ("needs-l10n", "E", "Eins"), ("new", "One", "Eins")):
        output = read("a.xlf", file.format(unit(state, text)))
        assert merge_translations(document, parse, output)[0].units[0].target == expected
