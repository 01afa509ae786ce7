"""Readers of every corpus format: pairs read, skipped and refused."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus_files import COMPRESSORS
from dragoman.config import CorpusConfig, Format, make_recipe
from dragoman.documents.po import parse as parse_po
from dragoman.documents.tmx_document import parse_tmx
from dragoman.documents.xliff_document import parse_xliff
from dragoman.errors import MissingDependencyError, RecipeError
from dragoman.formats import xml
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.readers import STDIN_PATH, detect_format, list_corpus_files, read_file, read_pairs, read_sides
from dragoman.formats.writers import write_pairs
from expected_errors import error_message, raises_code

LANGUAGES: dict[str, Any] = {"source_language": "en", "target_language": "de"}

Texts = list[tuple[str, str]]


def texts(pairs: Iterable[Pair]) -> Texts:
    return [(pair.source, pair.target) for pair in pairs]


def read(path: Path, **settings: Any) -> list[Pair]:
    """Return the pairs of a file, in the format of its ending."""
    return list(read_file(path, detect_format(path), **{**LANGUAGES, **settings}))


def read_error(path: Path, **settings: Any) -> str:
    """Return the error message of reading a file, without the file name at its start."""
    line = error_message(lambda: read(path, **settings))
    assert line.startswith(str(path)), line
    return line.removeprefix(str(path))


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, and compress it if its ending says so."""
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""](content))
    return path


# --- TSV --------------------------------------------------------------------------------------------------------------


def test_tsv_columns_are_chosen_by_number(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", "1\tone\t\teins\n2\ttwo\tx\tzwei\n")
    assert texts(read(path, column_names=["2", "4"])) == [("one", "eins"), ("two", "zwei")]
    assert texts(read(path, column_names=["4", "1"])) == [("eins", "1"), ("zwei", "2")]
    assert read_error(path, column_names=["2", "5"]) == ", line 1: 4 tab-separated columns, but columns names 5"
    for column in ("0", "en", "", "²", "-1", "9" * 10):
        assert "the columns of a TSV are numbers from '1'" in read_error(path, column_names=["1", column])
    assert read_error(path).endswith("expected 2, source and target; make a file of two, such as by cut -f 1,2")
    narrow = write_file(tmp_path / "b.tsv", "\t\none\n")
    assert read_error(narrow) == ", line 2: 1 tab-separated columns; expected 2, source and target"


# --- CSV --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "columns", "expected"),
    [
        ("one,eins\ntwo,zwei\n", None, [("one", "eins"), ("two", "zwei")]),
        ("\ufeffEnglish;German\r\nSave, then exit;Speichern\r\n", None, [("Save, then exit", "Speichern")]),
        ('id,de_DE,en-US\n1,"a ""b""\nc",x\n\n', None, [("x", 'a "b" c')]),
        ("Source\tTarget\tnote\na\tb\tc\n", None, [("a", "b")]),
        ("Quelle,Ziel,x\na,b,c\n", ["Ziel", "Quelle"], [("b", "a")]),
        ("1,one,eins\n2,two,zwei\n", ["2", "3"], [("one", "eins"), ("two", "zwei")]),
    ],
)
def test_csv_columns_are_named_numbered_or_two(
    tmp_path: Path, content: str, columns: list[str] | None, expected: Texts
) -> None:
    assert texts(read(write_file(tmp_path / "a.csv", content), column_names=columns)) == expected


@pytest.mark.parametrize(
    ("content", "columns", "error"),
    [
        ("one,eins\ntwo\n", None, ", line 2: 1 columns; expected 2, source and target; keep two, or name"),
        ("en,x,de\na,b\n", None, ", line 2: 2 columns, but column 3 is to be read"),
        ("a,b\n", ["a", "c"], ": has no column 'c'; it has 'a', 'b'"),
        ("a,b\n", ["0", "1"], ": columns are counted from '1'"),
        ('a,b\nc,"d\n', None, ", line 2: not CSV: unexpected end of data"),
    ],
)
def test_csv_errors_name_the_line(tmp_path: Path, content: str, columns: list[str] | None, error: str) -> None:
    assert read_error(write_file(tmp_path / "a.csv", content), column_names=columns).startswith(error)


# --- JSON lines -------------------------------------------------------------------------------------------------------


def test_keys_are_given_or_usual_ones(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for row, columns in [
        ({"translation": {"en": "one", "de": "eins"}, "en": "x", "de": "x", "source": "x", "target": "x"}, None),
        ({"en": "one", "de": "eins", "source": "x", "target": "x"}, None),
        ({"source": "one", "target": "eins", "src": "x", "tgt": "x", "en": "x"}, None),
        ({"src": "one", "tgt": "eins", "source": "wmt"}, None),
        ({"a": {"b": {"c": "one"}}, "d": "eins"}, ["a.b.c", "d"]),
        ({"a.b": "one", "a": {"b": "x"}, "d": "eins"}, ["a.b", "d"]),
    ]:
        with subtests.test(row=row, columns=columns):
            tmp_path = tmp_path_factory.mktemp("case")
            path = write_file(tmp_path / "a.jsonl", f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
            assert read(path, column_names=columns) == [Pair("one", "eins", f"{path}:1"), Pair("one", "eins", f"{path}:3")]
            table = write_file(tmp_path / "a.parquet", "")
            pq.write_table(pa.Table.from_pylist([row, row]), table)
            assert read(table, column_names=columns) == [Pair("one", "eins", f"{table}:#1"), Pair("one", "eins", f"{table}:#2")]


def test_null_and_missing_key_are_empty_texts(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "a.ndjson", '{"en": "one"}\n{"en": "two", "de": null}\n{"de": "drei"}\n{"en": "4\\r\\n5", "de": "4"}\n'
    )
    assert texts(read(path)) == [("one", ""), ("two", ""), ("", "drei"), ("4 5", "4")]


def test_invalid_json_line_is_named(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, columns, expected in [
        ("{}\n[1]\n", ["a", "b"], ", line 2: is not a JSON object of keys and values"),
        ('{"a": 1, "b": ""}', ["a", "b"], ", line 1: 'a' holds a number, not text"),
        ('{"a": "", "b": [""]}', ["a", "b"], ", line 1: 'b' holds a list, not text"),
        ('{"a": "\\ud800"}', ["a", "b"], ", line 1: 'a' holds half a surrogate pair (\\ud800)"),
        ('{"a": "x"', ["a", "b"], ", line 1: not JSON: Expecting ',' delimiter at column 10"),
        ("[" * 10**6, None, ", line 1: nested too deep to read"),
        ('{"a": ' + "9" * 5000 + "}", None, ", line 1: holds a number too long to read"),
        ("{}\n{}\n", ["a", "b"], ": no line has 'a'; the first one has nothing"),
        ('{"a": "x", "c": {"d": ""}}\n', ["a", "b"], ": no line has 'b'; the first one has 'a', 'c.d'"),
        (
            '{"a": "x", "c": {"d": ""}}\n',
            None,
            ", line 1: neither en and de, source and target nor src and tgt among 'a', 'c.d'; name two of them in columns",
        ),
    ]:
        with subtests.test(content=content, columns=columns, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            assert read_error(write_file(tmp_path / "a.jsonl", content), column_names=columns) == expected


# --- TMX --------------------------------------------------------------------------------------------------------------


def tmx(*units: str, head: str = "") -> str:
    body = "\n".join(units)
    return f'<?xml version="1.0"?>\n{head}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>\n'


def tu(*variants: tuple[str, str], attributes: str = "") -> str:
    inner = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in variants)
    return f"<tu{attributes}>{inner}</tu>"


def test_tmx_unit_is_pair(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "a.tmx",
        tmx(
            '<tu tuid="x1"><note>no</note><tuv xml:lang="de"><seg>eins</seg></tuv><tuv lang="EN-us"><seg>one</seg></tuv></tu>',
            tu(("fr", "deux"), ("en_GB", "two"), ("en", "2"), ("DE", "zwei")),
            tu(("en", "three")),
            tu(("fr", "quatre"), ("de", "vier")),
            '<tu><tuv xml:lang="en"/><tuv xml:lang="de"><seg/></tuv></tu>',
            tu(("en", "\n  a &amp;\n b<!-- no -->c <![CDATA[<d>]]>\n"), ("de", "ä"), attributes=f' tuid="{"y" * 90}"'),
            head='<!DOCTYPE tmx SYSTEM "tmx14.dtd">',
        ),
    )
    assert read(path) == [
        Pair("one", "eins", f"{path}:x1"),
        Pair("2", "zwei", f"{path}:#2"),
        Pair("three", "", f"{path}:#3"),
        Pair("", "vier", f"{path}:#4"),
        Pair("", "", f"{path}:#5"),
        Pair("a & bc <d>", "ä", f"{path}:#6"),
    ]


def test_tmx_language_matches_exactly_or_by_subtag(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for source, target, pair in [
        ("en", "de", ("exact", "de")),
        ("en-GB", "en", ("british", "exact")),
        ("en", "en-GB", ("exact", "british")),
        ("en-US", "en-GB", ("exact", "british")),
        ("en", "en", ("exact", "british")),
        ("de-AT", "fr", ("de", "")),
    ]:
        with subtests.test(source=source, target=target, pair=pair):
            tmp_path = tmp_path_factory.mktemp("case")
            units = [tu(("en-GB", "british"), ("EN", "exact"), ("de", "de")), tu(("fr", "f"))]
            path = write_file(tmp_path / "a.tmx", tmx(*units))
            assert texts(read(path, source_language=source, target_language=target))[0] == pair


def test_native_codes_are_removed_without_their_text(tmp_path: Path) -> None:
    segment = (
        'a <bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept>, <hi>high</hi> <it pos="begin">&lt;i&gt;</it>'
        '<ph>&lt;img alt="<sub>picture</sub>"/&gt;</ph><ut>junk</ut> end'
    )
    path = write_file(tmp_path / "a.tmx", tmx(tu(("en", segment), ("de", "d"))))
    assert texts(read(path)) == [("a bold, high picture end", "d")]


def test_tmx_without_languages_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tmx", tmx(tu(("fr", "un"), ("de-DE", "eins"))))
    assert read_error(path) == ": no unit has the language 'en'; it holds 'fr', 'de-DE'"
    assert (
        read_error(path, source_language="de", target_language="pl")
        == ": no unit has the language 'pl'; it holds 'fr', 'de-DE'"
    )
    expected = ": holds 'fr', 'de-DE'; choose two in task.source_language and task.target_language"
    assert read_error(path, source_language="", target_language="") == expected
    assert read(write_file(path, tmx())) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_xml_declares_its_encoding(tmp_path: Path, encoding: str) -> None:
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
    written = tmx(tu(("en", "naïve"), ("de", "größer"))).replace('<?xml version="1.0"?>', head)
    assert texts(read(write_file(tmp_path / "a.tmx", written.encode(encoding)))) == [("naïve", "größer")]


# --- hostile and damaged XML ------------------------------------------------------------------------------------------


BOMB = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12))


def test_entities_and_damaged_xml_are_refused(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xml, "MAX_LINE_BYTES", 2**20)
    for head, text, expected in [
        (
            f"<!DOCTYPE tmx [{BOMB}]>",
            "&a11;",
            ", line 1: not XML that can be read: Maximum entity amplification factor exceeded",
        ),
        ("<!DOCTYPE tmx [<!ENTITY x 'y'>]>", "no use of it", ": declares the entity 'x', and is not read: write the text"),
        ("<!DOCTYPE tmx [<!ENTITY x SYSTEM '{secret}'>]>", "&x;", ": declares the entity 'x', and is not read"),
        ("<!DOCTYPE tmx [<!ENTITY % x SYSTEM '{secret}'> %x;]>", "&y;", ": declares the entity 'x', and is not read"),
        (
            "<!DOCTYPE tmx SYSTEM '{secret}'>",
            "a &y; b",
            ":#1: refers to the entity '&y;', which is not declared; write the text",
        ),
        ("", "a &nbsp; b", ", line 3: not XML that can be read: Entity 'nbsp' not defined"),
        ("", "a & b", ", line 3: not XML that can be read: xmlParseEntityRef: no name"),
        ("", "a\x00b", ", line 3: not XML that can be read: "),
        ("", "</seg>", ", line 3: not XML that can be read: Opening and ending tag mismatch: tuv line 3 and seg"),
        ("", "<g>" * 300, ", line 3: not XML that can be read: Excessive depth in document: 256"),
        ("", "<it/>" * (2**20 // 5 + 2**14), ": no unit ends within 1 MiB after 0 units"),
    ]:
        with subtests.test(head=head, text=text, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            secret = tmp_path / "secret.dtd"
            secret.write_text("<!ENTITY y 'secret'>")
            path = write_file(
                tmp_path / "a.tmx", tmx(tu(("en", text), ("de", "d")), head=head.replace("{secret}", secret.as_uri()))
            )
            line = read_error(path)
            assert line.startswith(expected)
            assert "secret'" not in line


def test_invalid_tmx_is_refused(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, expected in [
        (b"", ": not XML that can be read: no element found"),
        (b"plain text", ", line 1: not XML that can be read: Start tag expected, '<' not found"),
        (b"<html/>", ": its first element is 'html'; expected 'tmx'"),
        (b"<a><tmx/></a>", ": its first element is 'a'; expected 'tmx'"),
        (b"<tu/>", ": its first element is 'tu'; expected 'tmx'"),
        (b"<tmx><tu><tu/></tu></tmx>", ", unit 1: one unit stands within another"),
        (b"<tmx>\n<tu>\xff</tu></tmx>", ", line 2: not XML that can be read: Invalid bytes in character encoding"),
        (b"<tmx>\n<tu>\n", ", line 3: not XML that can be read: Premature end of data in tag tu line 2"),
    ]:
        with subtests.test(content=content, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            assert read_error(write_file(tmp_path / "a.tmx", content)) == expected


def test_xml_in_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx.gz"
    packed = gzip.compress(tmx(*(tu(("en", f"{n * 7919}"), ("de", f"{n * 104729}")) for n in range(9000))).encode())
    path.write_bytes(packed[: len(packed) // 2])
    line = read_error(path)
    assert re.match(r": damaged after unit \d+: Compressed file ended before the end-of-stream marker was reached", line), line


def test_xml_needs_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    line = error_message(lambda: read(write_file(tmp_path / "a.tmx", tmx())), MissingDependencyError)
    assert line == "reading TMX and XLIFF needs lxml, which is not installed: pip install 'dragoman[formats]'"


# --- XLIFF ------------------------------------------------------------------------------------------------------------


def xliff1(inner: str, *, target: str = ' target-language="de-DE"', namespace: bool = True) -> str:
    namespace_attribute = ' xmlns="urn:oasis:names:tc:xliff:document:1.2"' if namespace else ""
    return (
        f'<xliff version="1.2"{namespace_attribute}><file original="f" source-language="en-GB"{target} datatype="x"><header/>'
        f"<body>\n{inner}\n</body></file></xliff>"
    )


def xliff2(inner: str, *, target: str = ' trgLang="de"', version: str = "2.0") -> str:
    return (
        f'<xliff version="{version}" xmlns="urn:oasis:names:tc:xliff:document:{version}" srcLang="en"{target}>'
        f'<file id="f">\n{inner}\n</file></xliff>'
    )


@pytest.mark.parametrize("namespace", [True, False])
def test_xliff_1_unit_is_pair(tmp_path: Path, namespace: bool) -> None:
    units = """
      <trans-unit id="a"><source>one</source><target>eins</target>
        <alt-trans><source>no</source><target>nein</target></alt-trans></trans-unit>
      <group><trans-unit id="b"><source>two</source><target state="needs-translation">two</target></trans-unit></group>
      <trans-unit id="c"><source>three</source><target state="new"/></trans-unit>
      <trans-unit id="d"><source>four</source><alt-trans><target>nein</target></alt-trans></trans-unit>
      <trans-unit id="e"><source>five</source><seg-source>no</seg-source>
        <target state="needs-review-translation">fünf</target></trans-unit>
      <trans-unit id="f"><source>a <g id="1">b <mrk mtype="x">c</mrk></g><x id="2"/>
        <bpt id="3">&lt;i></bpt>d<ept id="3">no</ept> <ph id="4">no <sub>e</sub></ph><bx id="5"/><ex id="5"/>
        <it id="6" pos="open">no</it></source><target>f</target></trans-unit>
    """
    path = write_file(tmp_path / "a.xlf", xliff1(units, namespace=namespace))
    assert read(path) == [
        Pair("one", "eins", f"{path}:a"),
        Pair("two", "", f"{path}:b"),
        Pair("three", "", f"{path}:c"),
        Pair("four", "", f"{path}:d"),
        Pair("five", "fünf", f"{path}:e"),
        Pair("a b c d e", "f", f"{path}:f"),
    ]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_xliff_2_segment_is_pair(tmp_path: Path, version: str) -> None:
    units = """
      <unit id="a"><originalData><data id="d">&lt;b></data></originalData>
        <m:matches xmlns:m="urn:oasis:names:tc:xliff:matches:2.0"><m:match ref="#x"><source>no</source>
        <target>no</target></m:match></m:matches><segment><source>one</source><target>eins</target></segment></unit>
      <group id="g"><unit id="b">
        <segment id="s1" state="initial"><source>two</source><target>two</target></segment>
        <ignorable><source> </source><target> </target></ignorable>
        <segment state="final"><source>three</source><target>drei</target></segment>
      </unit></group>
      <unit id="c"><segment><source>four</source></segment></unit>
      <unit id="d"><segment><source>a <pc id="1">b <mrk id="m">c</mrk></pc><ph id="2"/><sc id="3"/> d<ec startRef="3"/>
        <sm id="4"/><em startRef="4"/>e<cp hex="0007"/></source><target>f</target></segment></unit>
    """
    path = write_file(tmp_path / "a.xliff", xliff2(units, version=version))
    assert read(path) == [
        Pair("one", "eins", f"{path}:a"),
        Pair("two", "", f"{path}:b:s1"),
        Pair("three", "drei", f"{path}:b:#2"),
        Pair("four", "", f"{path}:c"),
        Pair("a b c d e\x07", "f", f"{path}:d"),
    ]


def test_xliff_of_other_languages_is_refused(tmp_path: Path) -> None:
    version_1 = write_file(
        tmp_path / "1.xlf", xliff1(""" <trans-unit id="a"><source>one</source><target>eins</target></trans-unit>""")
    )
    version_2 = write_file(
        tmp_path / "2.xlf", xliff2('<unit id="a"><segment><source>one</source><target>eins</target></segment></unit>')
    )
    assert read_error(version_1, target_language="fr") == ": its target language is 'de-DE', but task.target_language is 'fr'"
    assert read_error(version_2, source_language="fr") == ": its source language is 'en', but task.source_language is 'fr'"
    for path in (version_1, version_2):
        assert texts(read(path, source_language="", target_language="de-AT")) == [("one", "eins")]
    unnamed = write_file(tmp_path / "3.xlf", version_1.read_text().replace(' target-language="de-DE"', ""))
    assert texts(read(unnamed, target_language="fr")) == [("one", "eins")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            xliff2('<unit id="u"><segment><source><cp hex="D800"/></source></segment></unit>'),
            ":u: <cp hex='D800'> is not a character",
        ),
        (xliff2('<unit id="u"><segment><source><cp/></source></segment></unit>'), ":u: <cp hex=''> is not a character"),
    ],
)
def test_invalid_xliff_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    assert read_error(write_file(tmp_path / "a.xlf", content)) == expected


# --- PO ---------------------------------------------------------------------------------------------------------------

PO_HEAD = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
PO = (
    "# Title\n#, fuzzy\n"
    + PO_HEAD
    + r"""
#. comment
#: file.c:12
msgid "one"
msgstr "eins"
#, c-format, fuzzy
#| msgid "too"
msgid "two"
msgstr "zwei"

msgid "three"
msgstr ""
msgctxt "menu"
msgid "four\n"
"lines"
msgstr ""
"vier\n"
"Zei" "len\t\"\\\""

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d D."
msgstr[2] "%d Dateien"

msgid "a\u2028b"
msgstr"\303"

#, fuzzy
#~| msgid "x"
#~ msgid "old"
#~ "er"
#~ msgstr "alt"
"""
)


def po_file(path: Path) -> Path:
    return write_file(path, PO.replace("\\u2028", "\u2028").replace(r"\303", r"\101\x42\v"))


def test_po_message_is_pair(tmp_path: Path) -> None:
    path = po_file(tmp_path / "a.po")
    lines = path.read_text().split("\n")

    def origin_of(message: str) -> str:
        return f"{path}:{lines.index(message) + 1}"

    assert read(path) == [
        Pair("one", "eins", origin_of('msgid "one"')),
        Pair("two", "", origin_of('msgid "two"')),
        Pair("three", "", origin_of('msgid "three"')),
        Pair("four lines", 'vier Zeilen\t"\\"', origin_of('msgid "four\\n"')),
        Pair("%d file", "%d Datei", origin_of('msgid "%d file"')),
        Pair("%d files", "%d Dateien", origin_of('msgid "%d file"')),
        Pair("a\u2028b", "AB\v", origin_of('msgid "a\u2028b"')),
    ]


def test_corpus_and_document_read_the_same_po(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for charset in ["ASCII", "ISO-8859-1", "latin1", "windows-1252", "UTF-8", "GB18030"]:
        with subtests.test(charset=charset):
            tmp_path = tmp_path_factory.mktemp("case")
            content = (PO_HEAD.replace("UTF-8", charset) + '\nmsgid "J\xfcrgen"\nmsgstr "Gr\xfc\xdfe \\n" "\xe9"\n').encode(
                "UTF-8" if charset == "ASCII" else charset
            )
            [unit] = parse_po(content).units
            [pair] = read(write_file(tmp_path / "a.po", content))
            assert (pair.source, pair.target) == (unit.source, to_single_line(unit.target)) == ("J\xfcrgen", "Gr\xfc\xdfe \xe9")


def test_corpus_and_document_read_the_same_xml(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for ending, content in [
        ("tmx", tmx(tu(("en-GB", "colour"), ("en", "color"), ("de-AT", "Farbe &#228;")))),
        ("tmx", tmx(tu(("en", "a&nbsp;b &eacute;"), ("de", "c<![CDATA[&]]>")), head='<!DOCTYPE tmx SYSTEM "tmx14.dtd">')),
        (
            "xlf",
            xliff1('<trans-unit id="a"><source>one</source><target>eins</target></trans-unit>').replace(' version="1.2"', ""),
        ),
        ("xlf", xliff1('<trans-unit id="a"><source>one</source><target state="new">one</target></trans-unit>')),
        ("xlf", xliff2('<unit id="u"><segment><source>one</source><target>eins</target></segment></unit>', version="2.1")),
    ]:
        with subtests.test(ending=ending, content=content):
            tmp_path = tmp_path_factory.mktemp("case")
            [unit] = (parse_tmx if ending == "tmx" else parse_xliff)(content.encode()).units
            [pair] = read(write_file(tmp_path / f"a.{ending}", content))
            assert (pair.source, pair.target) == (unit.source, "" if unit.state == "untranslated" else unit.target)


@pytest.mark.parametrize("version", ["", "1.9", "2", "3.0"])
def test_corpus_and_document_refuse_the_same_xliff(version: str, tmp_path: Path) -> None:
    content = f'<xliff version="{version}"/>'
    with raises_code("unknown-format", f"is XLIFF of version {version!r}"):
        parse_xliff(content.encode())
    with raises_code("unknown-format", f"is XLIFF of version {version!r}"):
        read(write_file(tmp_path / "a.xlf", content))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_text_in_utf16_names_its_conversion(encoding: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", "\ufeffa\tb\n".removeprefix("\ufeff" * (encoding == "utf-16")).encode(encoding))
    assert read_error(path).endswith("the file is UTF-16; convert it, such as by iconv -f UTF-16 -t UTF-8")


def test_po_in_unknown_encoding_is_refused(tmp_path: Path) -> None:
    columns_error = read_error(write_file(tmp_path / "b.po", PO_HEAD), column_names=["1", "2"])
    assert columns_error == ": po has no columns; columns is for tsv, csv, jsonl, parquet"
    path = write_file(tmp_path / "a b.po", PO_HEAD.replace("UTF-8", "rot13").encode())
    convert = f"convert it: msgconv --to-code=UTF-8 '{path}' -o NEW.po"
    assert read_error(path) == f", line 1: its charset is 'rot13', not UTF-8; {convert}"
    write_file(path, "# J\xfcrgen\n".encode("latin-1") + PO_HEAD.encode())
    assert read_error(path) == f", line 1: not UTF-8 (byte 0xfc at column 4); {convert}"
    assert read(write_file(path, PO_HEAD.replace("UTF-8", "CHARSET"))) == []


def test_invalid_po_is_refused(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, expected in [
        ('msgid "a\nmsgstr "b"', ", line 1: the quotation marks are not balanced"),
        ('msgid "a" b\nmsgstr "b"', ", line 1: the quotation marks are not balanced"),
        ('msgid "a"b"\nmsgstr "b"', ", line 1: the quotation marks are not balanced"),
        ('msgid "a\\"\nmsgstr "b"', ", line 1: the quotation marks are not balanced"),
        ('msgid "a\\q"\nmsgstr "b"', ", line 1: \\q is not an escape sequence of a character"),
        ('msgid "a\\303"\nmsgstr "b"', ", line 1: \\303 is not an escape sequence of a character"),
        ('msgid "a"\nmsgid "b"', ", line 2: msgid does not belong here; an entry is msgid, msgid_plural, msgstr, each once"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"', ", line 3: msgstr does not belong here; an entry is"),
        ('msgstr "b"', ", line 1: msgstr does not belong here; an entry is"),
        ('msgid "a"\nmsgctxt "b"', ", line 2: msgctxt does not belong here; an entry is"),
        ('"a"', ", line 1: '\"a\"' is not valid in a PO file here"),
        ("msgid a", ", line 1: 'msgid a' is not valid in a PO file here"),
        ('msgid "a"\n#~ msgstr "b"', ", line 2: '\"b\"' is not valid in a PO file here"),
        ('\nmsgid "a"', ", line 2: the message has no msgstr"),
        ('msgid "a"\nmsgstr[0] "b"', ", line 1: has msgstr[0] for a message without msgid_plural"),
        ('msgid "a"\nmsgid_plural "as"\nmsgstr "b"', ", line 1: has msgstr for a message with msgid_plural"),
        ('msgid "a"\nmsgid_plural "as"\nmsgstr[1] "b"', ", line 1: has msgstr[1] for a message with msgid_plural"),
    ]:
        with subtests.test(content=content, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            assert read_error(write_file(tmp_path / "a.po", content)).startswith(expected)


# --- SGM --------------------------------------------------------------------------------------------------------------


def test_sgm_segments_are_pairs(tmp_path: Path) -> None:
    source = write_file(
        tmp_path / "a-src.en.sgm",
        '<srcset setid="x" srclang="any">\n<doc sysid="s" docid="d1" genre=\'news\'>\n<hl>\n'
        '<seg id="1"> AT&T & a < b &amp;lt; </seg>\n'
        '</hl><p><seg id="2">two\n lines</seg> <SEG ID=3>&#252;&#x20AC;&nbsp;</SEG></p>\n</doc>\n'
        '<DOC docid="d2"><seg id="1"></seg></DOC></srcset>\n',
    )
    target = write_file(
        tmp_path / "a-ref.de.sgm.gz",
        '<refset setid="x"><doc docid="d1" sysid="ref"><seg id="1">eins</seg><seg id="2">zwei</seg><seg id="3">drei</seg></doc>'
        '<doc docid="d2"><seg id="1">vier</seg></doc></refset>',
    )
    corpus = CorpusConfig(source=source.name, target=target.name)
    assert list(read_pairs(corpus, tmp_path)) == [
        Pair("AT&T & a < b &lt;", "eins", f"{source}:4"),
        Pair("two lines", "zwei", f"{source}:5"),
        Pair("ü€&nbsp;", "drei", f"{source}:6"),
        Pair("", "vier", f"{source}:8"),
    ]


GOOD_SGM = '<doc docid="d">\n<seg id="1">x</seg>\n<seg id="2">y</seg>\n</doc>\n'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"2"', '"3"', "{t}, line 3: has segment '3' of document 'd', but {s}, line 3, has '2' of document 'd'"),
        ('"d"', '"e"', "{t}, line 2: has segment '1' of document 'e', but {s}, line 2, has '1' of document 'd'"),
        ('<seg id="2">y</seg>', "", "{t} ends before segment '2' of document 'd' of {s}, line 3"),
        ("</doc>\n", '</doc>\n<seg id="3"></seg>', "{s} ends before segment '3' of document 'd' of {t}, line 5"),
        ("x</seg>", "x", "{t}, line 3: '<seg id=\"2\">' is in the segment of line 2, which has no </seg>"),
        ("y</seg>", "y", "{t}, line 4: '</doc>' is in the segment of line 3, which has no </seg>"),
        ("x</seg>", "x</seg></seg>", "{t}, line 2: </seg> has no open <seg>"),
        ("y</seg>\n</doc>", "y", "{t}, line 3: the segment has no </seg>"),
        ('<seg id="2">', '<seg\nid="2">', "{t}, line 3: the tag '<seg' does not end on its line"),
    ],
)
def test_differing_or_damaged_sgm_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    source, target = write_file(tmp_path / "s.sgm", GOOD_SGM), write_file(tmp_path / "t.sgm", GOOD_SGM.replace(old, new))
    assert error_message(lambda: list(read_sides(source, target))) == expected.format(s=source, t=target)


# --- trees ------------------------------------------------------------------------------------------------------------


def test_tree_gives_words_and_brackets(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "a.mrg",
        "( (S (NP-SBJ (-NONE- *T*-1))\n     (VP (VB Go)\r\n\t(. .))) )\n\n"
        "id 7\t(S(NP (PRP It))  (VP (VBZ -LRB-)))(X a b)\n\t( (NN\u00a0 x) )\n(())",
    )
    assert read(path) == [
        Pair("Go .", "( (S (NP-SBJ (-NONE- *T*-1)) (VP (VB Go) (. .))))", f"{path}:1"),
        Pair("It -LRB-", "(S (NP (PRP It)) (VP (VBZ -LRB-)))", f"{path}:5"),
        Pair("a b", "(X a b)", f"{path}:5"),
        Pair("x", "( (NN\u00a0 x))", f"{path}:6"),
        Pair("", "( ())", f"{path}:7"),
    ]


def test_unbalanced_brackets_are_named(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, expected in [
        ("(S (NP x))\n(S (NP x)\n\n", ", line 2: the tree that begins here has 1 brackets that never close"),
        ("(S (NP x))\n\n)", ", line 3: a bracket closes that never opened"),
        ("(S x) y (S z)", ", line 1: 'y' is outside of any tree"),
        ("id (S x)", ", line 1: 'id' is outside of any tree"),
        ("(S (NP\nid\t(S x)", ", line 1: the tree that begins here has 2 brackets that never close"),
        ("\n" + "(" * 2000, ", line 2: the tree that begins in line 2 is deeper than 1000 brackets"),
    ]:
        with subtests.test(content=content, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            assert read_error(write_file(tmp_path / "a.ptb", content)) == expected


# --- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_reads_any_text_type(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sources = ["one", None, "a\nb", "ä"]
    targets = pa.array([{"de": "eins"}, {"de": "zwei"}, None, {"de": None}])
    for text_type in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(
            pa.table({"x": pa.array(sources).cast(text_type), "n": [1, 2, 3, 4], "t": targets}), path, row_group_size=2
        )
        assert texts(read(path, column_names=["x", "t.de"])) == [("one", "eins"), ("", "zwei"), ("a b", ""), ("ä", "")]
    assert read_error(path, column_names=["x", "y"]) == ": has no column 'y'; it has 'x', 'n', 't.de'"
    assert read_error(path, column_names=["x", "n"]) == ": the column 'n' holds int64, not text"
    assert read_error(path, column_names=["x", "t"]) == ": the column 't' holds struct<de: string>, not text"
    assert read_error(path) == (
        ": neither en and de, source and target nor src and tgt among 'x', 'n', 't.de'; name two of them in columns"
    )


def test_invalid_or_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", "no parquet")
    assert read_error(path).startswith(": cannot be read: ")
    assert read_error(tmp_path / "b.parquet") == ": there is no such file; check its name and its folder"
    write_pairs(path, [Pair(f"{n}", f"{-n}") for n in range(5000)], overwrite=True)
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert "CRC" in read_error(path, source_language="")
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"source": column, "target": ["x"]}), path)
    assert read_error(path) == ", rows 1 to 1: 'source' is not UTF-8"
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["source", "source", "target"])
    pq.write_table(twice, path)
    assert read_error(path) == ": has more than one column 'source'"


# --- formats, files, standard input -----------------------------------------------------------------------------------


def test_format_comes_from_ending_inside_archive(subtests: pytest.Subtests) -> None:
    for name, file_format in [
        ("a.tsv", "tsv"),
        ("a.JSONL", "jsonl"),
        ("a.b.ndjson.gz", "jsonl"),
        ("a.tmx.zst", "tmx"),
        ("a.xlf", "xliff"),
        ("a.xliff.xz", "xliff"),
        ("a.po", "po"),
        ("a.parquet", "parquet"),
        ("a.mrg.bz2", "brackets"),
        ("a.ptb", "brackets"),
    ]:
        with subtests.test(name=name, file_format=file_format):
            assert detect_format(Path(name)) == file_format
            assert detect_format(Path(name), "tsv") == "tsv"
            assert detect_format(Path(name), is_one_side=True) == "lines"
            for sided in ("a.sgm", "a.sgml.gz"):
                assert detect_format(Path(sided), is_one_side=True) == "sgm"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt.gz", "a.txt.gz: the ending '.txt' does not name a format; known are .tsv .csv .jsonl"),
        ("corpus", "corpus: a name without an ending does not name a format; known are"),
        ("a.sgm", "a.sgm: an SGM file holds one side: give data.….source and target instead of file"),
        ("-", "standard input: its format is unknown; give data.….format, such as 'tsv' or 'jsonl'"),
    ],
)
def test_unknown_ending_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    assert error_message(lambda: detect_format(Path(name))).startswith(expected)
    (tmp_path / "folder").mkdir()
    assert "folder: is a folder; give a file" in error_message(lambda: detect_format(tmp_path / "folder"))
    assert "tab-separated text, or state its format in a recipe, as data.train.format" in error_message(
        lambda: list(read_pairs(CorpusConfig(file="a.txt"), tmp_path))
    )


def test_files_of_corpus_are_chained(tmp_path: Path) -> None:
    write_file(tmp_path / "b.tsv", "two\tzwei\n")
    write_file(tmp_path / "a10.tsv.gz", "one\teins\n")
    write_file(tmp_path / "a[1].tsv.gz", "three\tdrei\n")
    write_file(tmp_path / ".a.tsv.gz", "no\tnein\n")
    (tmp_path / "afolder.tsv.gz").mkdir()
    corpus = CorpusConfig(file=["b.tsv", "a*.gz"])
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("b.tsv", "a10.tsv.gz", "a[1].tsv.gz")]
    assert texts(read_pairs(corpus, tmp_path)) == [("two", "zwei"), ("one", "eins"), ("three", "drei")]
    assert list_corpus_files(CorpusConfig(file="*.gz"), tmp_path) == list_corpus_files(CorpusConfig(file="a*gz"), tmp_path)
    assert list_corpus_files(CorpusConfig(file="a[1]*"), tmp_path) == [tmp_path / "a[1].tsv.gz"]
    line = error_message(lambda: list(read_pairs(CorpusConfig(file=["b.tsv", "c*.tsv"]), tmp_path)))
    assert line.startswith(f"{tmp_path / 'c*.tsv'}: there is no such file; * matches file names")
    assert error_message(lambda: list_corpus_files(CorpusConfig(file="no/*.tsv"), tmp_path)).startswith(
        f"{tmp_path / 'no'}: cannot be listed"
    )


def test_file_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The name becomes part of the origin of each pair, which is written as UTF-8."""
    try:
        for name in ("b\udcff.tsv", "c.tsv", "c\udcff.en", "c.de"):
            (tmp_path / name).write_text("one\teins\n")
    except OSError:
        pytest.skip("this disk takes no names but UTF-8")
    document = {"data": {"root": str(tmp_path), "train": {"file": "b\udcff.tsv"}}}
    assert "data.train.file = 'b\\udcff.tsv': is not UTF-8" in error_message(lambda: make_recipe(document), RecipeError)
    for corpus, name in (
        (CorpusConfig(file=["c.tsv", "*.tsv"]), "b\udcff.tsv"),
        (CorpusConfig(source="c*.en", target="c.de"), "c\udcff.en"),
    ):
        for read_function in (list_corpus_files, lambda *arguments: list(read_pairs(*arguments))):
            message = error_message(lambda: read_function(corpus, tmp_path))  # noqa: B023
            assert message == f"{str(tmp_path / name)!a}: the file name is not UTF-8; rename the file"
    assert texts(read_pairs(CorpusConfig(file="c*.tsv"), tmp_path)) == [("one", "eins")]


def test_sides_of_corpus_are_chained(tmp_path: Path) -> None:
    for name, content in {"1.en": "one\n", "2.en": "two\n", "1.de": "eins\n", "2.de": "zwei\n", "3.de": "drei\n"}.items():
        write_file(tmp_path / name, content)
    corpus = CorpusConfig(source=["1.en", "2.en"], target=["1.de", "2.de"])
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("1.en", "2.en", "1.de", "2.de")]
    assert list(read_pairs(corpus, tmp_path)) == [
        Pair("one", "eins", f"{tmp_path / '1.en'}:1"),
        Pair("two", "zwei", f"{tmp_path / '2.en'}:1"),
    ]
    assert error_message(lambda: list(read_pairs(CorpusConfig(source="*.en", target="*.de"), tmp_path))) == (
        "*.en matches 2 files but *.de 3; file n of one must be the translation of file n of the other"
    )
    write_file(tmp_path / "1.sgm", GOOD_SGM)
    assert "give two files of one format" in error_message(
        lambda: list(read_pairs(CorpusConfig(source="1.en", target="1.sgm"), tmp_path))
    )


def test_read_error_has_code(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    cases: list[tuple[str | bytes, CorpusConfig, str]] = [
        ("", CorpusConfig(file="none.tsv"), "file-not-found"),
        ("", CorpusConfig(file="none*.tsv"), "file-not-found"),
        ("", CorpusConfig(file="a.txt"), "unknown-format"),
        ("one", CorpusConfig(file="a.tsv"), "invalid-format"),
        (b"\xff", CorpusConfig(file="a.tsv"), "invalid-encoding"),
        ("1\t2\t3", CorpusConfig(file="a.tsv", columns=["1", "x"]), "unknown-column"),
        ("one", CorpusConfig(source="a.tsv", target="empty"), "length-mismatch"),
    ]
    for content, corpus, code in cases:
        with subtests.test(content=content, corpus=corpus, code=code):
            tmp_path = tmp_path_factory.mktemp("case")
            write_file(tmp_path / "a.tsv", content)
            write_file(tmp_path / "empty", "")
            with raises_code(code):
                list(read_pairs(corpus, tmp_path))


@pytest.mark.parametrize(
    ("file_format", "content", "origin"),
    [
        ("tsv", "one\teins\n", ":1"),
        ("jsonl", '{"en": "one", "de": "eins"}\n', ":1"),
        ("tmx", tmx(tu(("en", "one"), ("de", "eins"))), ":#1"),
        ("po", 'msgid "one"\nmsgstr "eins"\n', ":1"),
    ],
)
def test_pairs_are_read_from_standard_input(
    file_format: Format, content: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    corpus = CorpusConfig(file="-", format=file_format)
    assert list_corpus_files(corpus, Path("/data")) == [STDIN_PATH]
    assert list(read_pairs(corpus, Path("/data"), **LANGUAGES)) == [Pair("one", "eins", f"standard input{origin}")]


@pytest.mark.parametrize("name", ["-", "a.parquet.gz"])
def test_parquet_from_pipe_or_archive_is_refused(tmp_path: Path, name: str) -> None:
    corpus = CorpusConfig(file=name, format="parquet")
    assert "unpack it" in error_message(lambda: list(read_pairs(corpus, tmp_path)))


def test_corpus_may_mix_one_and_two_sided_files(tmp_path: Path) -> None:
    for name, content in {"a.en": "one\n", "a.de": "eins\n", "b.tsv": "two\tzwei\n"}.items():
        write_file(tmp_path / name, content)
    corpus = CorpusConfig(source="a.en", target="a.de", file="b.tsv")
    assert texts(read_pairs(corpus, tmp_path)) == [("one", "eins"), ("two", "zwei")]
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("a.en", "a.de", "b.tsv")]
