"""Glossary files: CSV, TSV and both versions of TBX, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.formats.glossary_file import format_tsv_entries, read_glossary
from dragoman.text.glossary import Glossary
from expected_errors import raises_code

# Shortened from the examples of TBX-Basic: the DCT style of version 3, and martif with both kinds of term groups.
TBX_3 = """<?xml version="1.0" encoding="UTF-8"?>
<tbx type="TBX-Basic" style="dct" xml:lang="en" xmlns="urn:iso:std:iso:30042:ed-2" xmlns:basic="http://www.tbxinfo.net/ns/basic">
<tbxHeader/><text><body>
<conceptEntry id="c1"><langSec xml:lang="en"><termSec><term>proxy server</term></termSec><termSec><term>proxy</term></termSec>
</langSec><langSec xml:lang="de"><termSec><term>Stellvertreter</term>
<basic:administrativeStatus>deprecatedTerm-admn-sts</basic:administrativeStatus></termSec>
<termSec><term>Proxy</term></termSec><termSec><term>Proxyserver</term>
<basic:administrativeStatus>preferredTerm-admn-sts</basic:administrativeStatus></termSec></langSec></conceptEntry>
<conceptEntry id="c2"><langSec xml:lang="en"><termSec><term>proxy</term></termSec></langSec>
<langSec xml:lang="de"><termSec><term>Vollmacht</term></termSec></langSec></conceptEntry>
<conceptEntry id="c3"><langSec xml:lang="en"><termSec><term>alone</term></termSec></langSec></conceptEntry>
</body></text></tbx>"""
MARTIF = """<?xml version="1.0"?>
<!DOCTYPE martif SYSTEM "TBXcoreStructV02.dtd">
<martif type="TBX-Basic" xml:lang="en"><martifHeader/><text><body>
<termEntry id="1"><langSet xml:lang="en-US"><tig><term>valve</term></tig></langSet>
<langSet xml:lang="de"><ntig><termGrp><term>Ventil</term></termGrp></ntig>
<tig><term>Klappe</term><termNote type="administrativeStatus">supersededTerm-admn-sts</termNote></tig></langSet></termEntry>
</body></text></martif>"""


def read(folder: Path, name: str, content: str | bytes, source: str = "en", target: str = "de") -> Glossary:
    """Return the glossary of a file with this content."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_glossary(path, source, target)


READ: list[tuple[str, str | bytes, dict[str, tuple[str, ...]]]] = [
    ("a.tsv", "dog\tHund|Hündin\r\n\ncat \tKatze\ta comment\n", {"dog": ("Hund", "Hündin"), "cat": ("Katze",)}),
    ("a.csv", '\ufeffdog,Hund,en,de\n"a, b","x ""y""",EN-US,DE\n', {"dog": ("Hund",), "a, b": ('x "y"',)}),
    ("a.csv", "Target,Source,Comment\nHund,dog,\n", {"dog": ("Hund",)}),
    ("a.csv", "source,Quelle\ndog,Hund\n", {"source": ("Quelle",), "dog": ("Hund",)}),
    ("a.tbx", TBX_3, {"proxy server": ("Proxyserver", "Proxy"), "proxy": ("Proxyserver", "Proxy", "Vollmacht")}),
    ("a.tbx", TBX_3.replace("UTF-8", "UTF-16").encode("utf-16"), {"proxy server": ("Proxyserver", "Proxy")}),
    ("a.tbx", MARTIF, {"valve": ("Ventil",)}),
]


def test_files_are_read(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, content, expected in READ:
        with subtests.test(name=name, content=content, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            entries = {entry.source: entry.targets for entry in read(tmp_path, name, content).entries}
            assert entries | expected == entries
            assert len(entries) >= len(expected)


def test_header_names_flags(tmp_path: Path) -> None:
    glossary = read(tmp_path, "a.csv", "source,target,case_sensitive,do_not_translate\nUS,USA,yes,\nLinux,,no,true\n")
    flags = [(entry.source, entry.case_sensitive, entry.do_not_translate) for entry in glossary.entries]
    assert flags == [("US", True, False), ("Linux", False, True)]
    assert format_tsv_entries(glossary.entries) == "US\tUSA\nLinux\tLinux"


def test_wrong_files_are_one_line(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    cases: list[tuple[str, str | bytes, str, str]] = [
        ("a.csv", "source,comment\nx,y\n", "unknown-column", "line 1: the header has no column 'target'"),
        ("a.csv", "source,target,color\nx,y,z\n", "unknown-column", "'color'; allowed, once each, are source, target"),
        ("a.csv", "source,target\nx\n", "unknown-column", "line 2: has 1 columns, and the header has 2"),
        ("a.tsv", "dog\n", "unknown-column", "line 1: has 1 columns; without a header, there are 2 to 4"),
        ("a.tsv", "\tHund\n", "invalid-glossary", "line 1: the source term '' is empty"),
        ("a.tsv", "dog\t\n", "invalid-glossary", "line 1: 'dog' has no target term"),
        ("a.tsv", "dog\tHund\nDog\tKöter\n", "invalid-glossary", "line 2: 'Dog' has the target 'Köter', but"),
        ("a.csv", 'a,"b\nc"\n', "invalid-glossary", "holds a tab, a line break"),
        ("a.csv", 'a,"b\n', "invalid-format", "is not CSV: unexpected end of data"),
        (
            "a.csv",
            "source,target,case_sensitive\na,b,maybe\n",
            "invalid-glossary",
            "case_sensitive is 'maybe'; write yes or no",
        ),
        ("a.csv", "dog,chien,en,fr\n", "unsupported-language", "is of the language 'fr', and the translation needs 'de'"),
        ("a.csv", "\n", "empty-data", "the glossary has no terms"),
        ("a.tsv", b"\xff\tx\n", "invalid-encoding", "line 1: not UTF-8"),
        ("a.doc", "x", "unknown-format", "a glossary is a .csv, .tsv or .tbx file, not '.doc'"),
        ("a.tbx", MARTIF.replace('"de"', '"fr"'), "unsupported-language", "its languages are 'en-US', 'fr'"),
        ("a.tbx", MARTIF[:-30], "invalid-format", "not XML that can be read"),
        ("a.tbx", "<tmx/>", "invalid-format", "its first element is 'tmx'; expected 'martif'"),
        (
            "a.tbx",
            MARTIF.replace('"TBXcoreStructV02.dtd"', '"x" [<!ENTITY a "b">]'),
            "invalid-format",
            "declares the entity 'a'",
        ),
    ]
    for name, content, code, message in cases:
        with subtests.test(name=name, content=content, code=code, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code(code) as refused:
                read(tmp_path, name, content)
            assert str(refused.value).startswith(str(tmp_path / name))
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)


def test_tbx_needs_languages_and_a_file(tmp_path: Path) -> None:
    with raises_code("unknown-column"):
        read(tmp_path, "a.tbx", MARTIF, "", "")
    with raises_code("file-not-found"):
        read_glossary(tmp_path / "none.csv")
