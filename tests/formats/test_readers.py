"""Pairs from files of every format and back: what is read, left out and refused, and that nothing is lost in writing."""

from __future__ import annotations

import builtins
import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import CorpusConfig, Format, make_recipe
from dragoman.errors import DataError, DragomanError, MissingDependencyError, OutputError, RecipeError
from dragoman.formats import parquet as parquet_room
from dragoman.formats import text as lines_room
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.readers import STDIN_PATH, detect_format, list_corpus_files, read_file, read_pairs, read_sides
from dragoman.formats.text import MAX_LINE_BYTES, read_lines
from dragoman.formats.writers import WrittenFiles, write_pairs

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda written: written,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda written: cast(bytes, pa.compress(written, codec="zstd", asbytes=True)),
}
ENDING_OF: dict[Format, str] = {
    "lines": "", "tsv": ".tsv", "jsonl": ".jsonl", "tmx": ".tmx", "xliff": ".xlf", "po": ".po", "sgm": ".sgm",
    "parquet": ".parquet",
}  # fmt: skip
LANGUAGES: dict[str, Any] = {"source_language": "en", "target_language": "de"}

Texts = list[tuple[str, str]]


def texts(pairs: Iterable[Pair]) -> Texts:
    return [(pair.source, pair.target) for pair in pairs]


def read(path: Path, **settings: Any) -> list[Pair]:
    """The pairs of a file whose ending tells its format."""
    return list(read_file(path, detect_format(path), **{**LANGUAGES, **settings}))


def told(reading: Callable[[], object], kind: type[DragomanError] = DataError) -> str:
    """The one line with which something is refused."""
    with pytest.raises(kind) as caught:
        reading()
    line = str(caught.value)
    assert line.isprintable(), line
    return line


def refusal(path: Path, **settings: Any) -> str:
    """What is said of a file, without its name, which must come first."""
    line = told(lambda: read(path, **settings))
    assert line.startswith(str(path)), line
    return line.removeprefix(str(path))


def put(path: Path, written: str | bytes) -> Path:
    written = written.encode() if isinstance(written, str) else written
    path.write_bytes(PACKERS[path.suffix if path.suffix in PACKERS else ""](written))
    return path


# --- a text is one line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("a b", "a b"),
        (" a\t", " a\t"),
        ("a\nb", "a b"),
        ("a\r\nb\rc", "a b c"),
        ("a  \n\n\t b", "a b"),
        ("\n  a\n", "a"),
        (" a\nb ", " a b "),
        ("\n", ""),
        (" \n ", ""),
        ("a\u2028b\u0085c\vd", "a\u2028b\u0085c\vd"),
    ],
)
def test_a_line_break_becomes_a_space_and_at_the_ends_nothing(written: str, line: str) -> None:
    assert to_single_line(written) == line


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path, ending: str, end: bytes) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](b"a\n" + b"x" * MAX_LINE_BYTES + end))
    assert [len(line) for line in read_lines(path)] == [1, MAX_LINE_BYTES]
    path.write_bytes(PACKERS[ending](b"a\n" + b"x" * (MAX_LINE_BYTES + 1) + end))
    assert told(lambda: list(read_lines(path))) == f"{path}, line 2: longer than 16 MiB, which no sentence is"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_lines_are_the_same_however_the_file_is_cut_in_reading(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_room, "_CHUNK", size)
    path = put(tmp_path / "a.xz", "ä\r\n\n\r\nbc\rd\n\n\nlast\r")
    assert list(read_lines(path)) == ["ä", "", "", "bc\rd", "", "", "last\r"]


@pytest.mark.parametrize("ending", [".xz", ".bz2"])
@pytest.mark.parametrize("behind", [b"junk", b"\x00junk"])
def test_what_follows_an_archive_and_is_none_is_refused(tmp_path: Path, ending: str, behind: bytes) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](b"a\n") + behind)
    assert told(lambda: list(read_lines(path))).startswith(f"{path}: broken after line 1: ")


def test_padding_between_the_parts_of_an_xz_archive_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\n") + b"\0" * 8 + lzma.compress(b"b\n") + b"\0" * 4)
    assert list(read_lines(path)) == ["a", "b"]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_an_archive_of_no_bytes_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.touch()
    assert told(lambda: list(read_lines(path))) == f"{path}: cannot be read: an empty file is no {ending} archive"


READING = """
import sys
from pathlib import Path
from dragoman.errors import DataError
from dragoman.formats.text import read_lines
for name in sys.argv[1:]:
    try:
        next(iter(read_lines(Path(name))))
    except DataError as error:
        print(error)
"""


def test_an_archive_that_cannot_be_read_is_told_in_one_line_and_nothing_is_left_open(tmp_path: Path) -> None:
    """Python's development mode tells of files that nobody closed, and of errors that nobody could catch."""
    endings = [".gz", ".xz", ".bz2", ".zst"]
    missing = [tmp_path / f"missing{ending}" for ending in endings]
    empty = [tmp_path / f"empty{ending}" for ending in endings]
    damaged = [tmp_path / f"damaged{ending}" for ending in endings]
    cut = [tmp_path / f"cut{ending}" for ending in endings]
    whole = [put(tmp_path / f"whole{ending}", "a\n" * 9) for ending in endings]
    for path, packed in zip(damaged, whole, strict=True):
        path.write_bytes(packed.read_bytes()[:9] + b"\xff" * 9)
    for path, packed in zip(cut, whole, strict=True):
        path.write_bytes(packed.read_bytes()[:12])
    for path in empty:
        path.touch()
    paths = [*missing, *empty, *damaged, *cut, *whole]
    words = [sys.executable, "-X", "dev", "-c", READING, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [f"{path}: there is no such file" for path in missing]
    for line, path in zip(lines, paths[:-4], strict=True):
        assert line.startswith(f"{path}: ")


def test_an_xz_archive_that_asks_for_too_much_memory_is_refused(tmp_path: Path) -> None:
    """By the .xz format 1.0.4, 3.1 and 5.3.1: 2^29 bytes of dictionary in a block header, which ends with its check sum."""
    path = tmp_path / "a.xz"
    packed = bytearray(lzma.compress(b"a\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]))
    header = 12
    end = header + (packed[header] + 1) * 4 - 4
    packed[packed.index(b"\x21\x01", header) + 2] = 34
    packed[end : end + 4] = zlib.crc32(packed[header:end]).to_bytes(4, "little")
    path.write_bytes(packed)
    assert told(lambda: list(read_lines(path))) == f"{path}: cannot be read: Memory usage limit exceeded"


# --- TSV --------------------------------------------------------------------------------------------------------------


def test_columns_of_a_tsv_are_chosen_by_number(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "1\tone\t\teins\n2\ttwo\tx\tzwei\n")
    assert texts(read(path, fields=["2", "4"])) == [("one", "eins"), ("two", "zwei")]
    assert texts(read(path, fields=["4", "1"])) == [("eins", "1"), ("zwei", "2")]
    assert refusal(path, fields=["2", "5"]) == ", line 1: 4 tab-separated fields, but fields names 5"
    assert refusal(path) == ", line 1: 4 tab-separated fields; expected 2, source and target"


@pytest.mark.parametrize("field", ["0", "en", "", "²", "-1", "1.5", "9" * 10])
def test_a_column_of_a_tsv_is_a_number_from_1(tmp_path: Path, field: str) -> None:
    path = put(tmp_path / "a.tsv", "one\teins\n")
    assert refusal(path, fields=["1", field]) == f": fields names {field!r}, but the columns of a TSV are numbers from '1'"


# --- JSON lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"translation": {"en": "one", "de": "eins"}, "en": "x", "de": "x", "source": "x", "target": "x"}, None),
        ({"en": "one", "de": "eins", "source": "x", "target": "x"}, None),
        ({"source": "one", "target": "eins", "src": "x", "tgt": "x", "en": "x"}, None),
        ({"src": "one", "tgt": "eins", "source": "wmt"}, None),
        ({"a": {"b": {"c": "one"}}, "d": "eins"}, ["a.b.c", "d"]),
        ({"a.b": "one", "a": {"b": "x"}, "d": "eins"}, ["a.b", "d"]),
    ],
)
def test_texts_stand_under_the_keys_named_or_the_usual_ones(
    tmp_path: Path, row: dict[str, Any], fields: list[str] | None
) -> None:
    path = put(tmp_path / "a.jsonl", f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    assert read(path, fields=fields) == [Pair("one", "eins", f"{path}:1"), Pair("one", "eins", f"{path}:3")]
    table = put(tmp_path / "a.parquet", "")
    pq.write_table(pa.Table.from_pylist([row, row]), table)
    assert read(table, fields=fields) == [Pair("one", "eins", f"{table}:#1"), Pair("one", "eins", f"{table}:#2")]


def test_a_null_and_a_missing_key_are_empty_texts(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.ndjson", '{"en": "one"}\n{"en": "two", "de": null}\n{"de": "drei"}\n{"en": "4\\r\\n5", "de": "4"}\n'
    )
    assert texts(read(path)) == [("one", ""), ("two", ""), ("", "drei"), ("4 5", "4")]


@pytest.mark.parametrize(
    ("written", "fields", "said"),
    [
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
            ", line 1: neither en and de, source and target nor src and tgt among 'a', 'c.d'; name two of them in fields",
        ),
    ],
)
def test_json_lines_that_cannot_be_pairs_are_named(tmp_path: Path, written: str, fields: list[str] | None, said: str) -> None:
    assert refusal(put(tmp_path / "a.jsonl", written), fields=fields) == said


# --- TMX --------------------------------------------------------------------------------------------------------------


def tmx(*units: str, head: str = "") -> str:
    body = "\n".join(units)
    return f'<?xml version="1.0"?>\n{head}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>\n'


def tu(*variants: tuple[str, str], attributes: str = "") -> str:
    inner = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in variants)
    return f"<tu{attributes}>{inner}</tu>"


def test_each_unit_of_a_tmx_is_a_pair(tmp_path: Path) -> None:
    path = put(
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


@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [
        ("en", "de", ("exact", "de")),
        ("en-GB", "en", ("british", "exact")),
        ("en", "en-GB", ("exact", "british")),
        ("en-US", "en-GB", ("exact", "british")),
        ("en", "en", ("exact", "british")),
        ("de-AT", "fr", ("de", "")),
    ],
)
def test_a_language_is_matched_as_written_and_else_by_its_first_subtag(
    tmp_path: Path, source: str, target: str, pair: tuple[str, str]
) -> None:
    units = [tu(("en-GB", "british"), ("EN", "exact"), ("de", "de")), tu(("fr", "f"))]
    path = put(tmp_path / "a.tmx", tmx(*units))
    assert texts(read(path, source_language=source, target_language=target))[0] == pair


def test_native_codes_are_left_out_and_text_within_is_kept(tmp_path: Path) -> None:
    segment = (
        'a <bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept>, <hi>high</hi> <it pos="begin">&lt;i&gt;</it>'
        '<ph>&lt;img alt="<sub>picture</sub>"/&gt;</ph><ut>junk</ut> end'
    )
    path = put(tmp_path / "a.tmx", tmx(tu(("en", segment), ("de", "d"))))
    assert texts(read(path)) == [("a bold, high picture end", "d")]


def test_a_tmx_without_the_languages_is_refused_with_those_it_has(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tmx", tmx(tu(("fr", "un"), ("de-DE", "eins"))))
    assert refusal(path) == ": no unit has the language 'en'; it holds 'fr', 'de-DE'"
    assert (
        refusal(path, source_language="de", target_language="pl") == ": no unit has the language 'pl'; it holds 'fr', 'de-DE'"
    )
    said = ": holds 'fr', 'de-DE'; say which to take in task.source_language and target_language"
    assert refusal(path, source_language="", target_language="") == said
    assert read(put(path, tmx())) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_xml_says_its_own_encoding(tmp_path: Path, encoding: str) -> None:
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
    written = tmx(tu(("en", "naïve"), ("de", "größer"))).replace('<?xml version="1.0"?>', head)
    assert texts(read(put(tmp_path / "a.tmx", written.encode(encoding)))) == [("naïve", "größer")]


# --- XML that means harm, or is damaged -------------------------------------------------------------------------------


BOMB = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12))


@pytest.mark.parametrize(
    ("head", "text", "said"),
    [
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
        ("", "<it/>" * (MAX_LINE_BYTES // 5 + 2**14), ": no unit ends within 16 MiB after 0 units"),
    ],
)
def test_entities_and_damage_are_refused_in_one_line(tmp_path: Path, head: str, text: str, said: str) -> None:
    secret = tmp_path / "secret.dtd"
    secret.write_text("<!ENTITY y 'secret'>")
    path = put(tmp_path / "a.tmx", tmx(tu(("en", text), ("de", "d")), head=head.replace("{secret}", secret.as_uri())))
    line = refusal(path)
    assert line.startswith(said)
    assert "secret'" not in line


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", ": not XML that can be read: no element found"),
        (b"plain text", ", line 1: not XML that can be read: Start tag expected, '<' not found"),
        (b"<html/>", ": its first element is 'html'; expected 'tmx'"),
        (b"<a><tmx/></a>", ": its first element is 'a'; expected 'tmx'"),
        (b"<tu/>", ": its first element is 'tu'; expected 'tmx'"),
        (b"<tmx><tu><tu/></tu></tmx>", ", unit 1: one unit stands within another"),
        (b"<tmx>\n<tu>\xff</tu></tmx>", ", line 2: not XML that can be read: Invalid bytes in character encoding"),
        (b"<tmx>\n<tu>\n", ", line 3: not XML that can be read: Premature end of data in tag tu line 2"),
    ],
)
def test_what_is_no_tmx_is_refused(tmp_path: Path, written: bytes, said: str) -> None:
    assert refusal(put(tmp_path / "a.tmx", written)) == said


def test_xml_cut_with_its_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx.gz"
    packed = gzip.compress(tmx(*(tu(("en", f"{n * 7919}"), ("de", f"{n * 104729}")) for n in range(9000))).encode())
    path.write_bytes(packed[: len(packed) // 2])
    line = refusal(path)
    assert re.match(r": broken after unit \d+: Compressed file ended before the end-of-stream marker was reached", line), line


def test_xml_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    line = told(lambda: read(put(tmp_path / "a.tmx", tmx())), MissingDependencyError)
    assert line == "reading TMX and XLIFF needs lxml, which is not installed: pip install 'dragoman[formats]'"


# --- XLIFF ------------------------------------------------------------------------------------------------------------


def xliff1(inner: str, *, target: str = ' target-language="de-DE"', namespace: bool = True) -> str:
    kin = ' xmlns="urn:oasis:names:tc:xliff:document:1.2"' if namespace else ""
    return (
        f'<xliff version="1.2"{kin}><file original="f" source-language="en-GB"{target} datatype="x"><header/>'
        f"<body>\n{inner}\n</body></file></xliff>"
    )


def xliff2(inner: str, *, target: str = ' trgLang="de"', version: str = "2.0") -> str:
    return (
        f'<xliff version="{version}" xmlns="urn:oasis:names:tc:xliff:document:{version}" srcLang="en"{target}>'
        f'<file id="f">\n{inner}\n</file></xliff>'
    )


@pytest.mark.parametrize("namespace", [True, False])
def test_each_unit_of_an_xliff_1_is_a_pair(tmp_path: Path, namespace: bool) -> None:
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
    path = put(tmp_path / "a.xlf", xliff1(units, namespace=namespace))
    assert read(path) == [
        Pair("one", "eins", f"{path}:a"),
        Pair("two", "", f"{path}:b"),
        Pair("three", "", f"{path}:c"),
        Pair("four", "", f"{path}:d"),
        Pair("five", "fünf", f"{path}:e"),
        Pair("a b c d e", "f", f"{path}:f"),
    ]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_each_segment_of_an_xliff_2_is_a_pair(tmp_path: Path, version: str) -> None:
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
    path = put(tmp_path / "a.xliff", xliff2(units, version=version))
    assert read(path) == [
        Pair("one", "eins", f"{path}:a"),
        Pair("two", "", f"{path}:b:s1"),
        Pair("three", "drei", f"{path}:b:#2"),
        Pair("four", "", f"{path}:c"),
        Pair("a b c d e\x07", "f", f"{path}:d"),
    ]


def test_an_xliff_of_other_languages_is_refused(tmp_path: Path) -> None:
    one = put(tmp_path / "1.xlf", xliff1(""" <trans-unit id="a"><source>one</source><target>eins</target></trans-unit>"""))
    two = put(tmp_path / "2.xlf", xliff2('<unit id="a"><segment><source>one</source><target>eins</target></segment></unit>'))
    assert refusal(one, target_language="fr") == ": its target language is 'de-DE', but task.target_language is 'fr'"
    assert refusal(two, source_language="fr") == ": its source language is 'en', but task.source_language is 'fr'"
    for path in (one, two):
        assert texts(read(path, source_language="", target_language="de-AT")) == [("one", "eins")]
    unnamed = put(tmp_path / "3.xlf", one.read_text().replace(' target-language="de-DE"', ""))
    assert texts(read(unnamed, target_language="fr")) == [("one", "eins")]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('<xliff version="3.0"/>', ": is XLIFF of version '3.0'; 1.0 to 1.2 and 2.0 to 2.2 can be read"),
        ("<xliff/>", ": is XLIFF of version ''; 1.0 to 1.2 and 2.0 to 2.2 can be read"),
        (
            xliff2('<unit id="u"><segment><source><cp hex="D800"/></source></segment></unit>'),
            ":u: <cp hex='D800'> is no character",
        ),
        (xliff2('<unit id="u"><segment><source><cp/></source></segment></unit>'), ":u: <cp hex=''> is no character"),
    ],
)
def test_what_is_no_xliff_is_refused(tmp_path: Path, written: str, said: str) -> None:
    assert refusal(put(tmp_path / "a.xlf", written)) == said


def test_a_version_may_be_told_by_the_namespace_alone(tmp_path: Path) -> None:
    written = xliff1('<trans-unit id="a"><source>one</source></trans-unit>').replace(' version="1.2"', "")
    assert texts(read(put(tmp_path / "a.xlf", written))) == [("one", "")]


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
"""
)


def po_file(path: Path) -> Path:
    return put(path, PO.replace("\\u2028", "\u2028").replace(r"\303", r"\101\x42\v"))


def test_each_message_of_a_po_is_a_pair(tmp_path: Path) -> None:
    path = po_file(tmp_path / "a.po")
    lines = path.read_text().split("\n")

    def at(message: str) -> str:
        return f"{path}:{lines.index(message) + 1}"

    assert read(path) == [
        Pair("one", "eins", at('msgid "one"')),
        Pair("two", "", at('msgid "two"')),
        Pair("three", "", at('msgid "three"')),
        Pair("four lines", 'vier Zeilen\t"\\"', at('msgid "four\\n"')),
        Pair("%d file", "%d Datei", at('msgid "%d file"')),
        Pair("%d files", "%d Dateien", at('msgid "%d file"')),
        Pair("a\u2028b", "AB\v", at('msgid "a\u2028b"')),
    ]


def test_obsolete_entries_are_skipped_with_their_marks(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.po",
        PO_HEAD + '\nmsgid "one"\nmsgstr "eins"\n#, fuzzy\n#~| msgid "x"\n#~ msgid "old"\n#~ "er"\n#~ msgstr "alt"\n#~ "er"\n'
        'msgid "two"\nmsgstr "zwei"\n#~ msgid "older"\n#~ msgstr ""\n',
    )
    assert texts(read(path)) == [("one", "eins"), ("two", "zwei")]


def test_messages_are_those_that_another_reader_finds(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    path = put(tmp_path / "a.po", PO.split('\nmsgid "a\\u2028b"')[0].replace('"Zei" "len', '"Zeilen'))
    found = []
    for entry in polib.pofile(str(path)):
        forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)] or [entry.msgstr]
        for message, form in zip(
            [entry.msgid, entry.msgid_plural][: 1 + bool(entry.msgid_plural)], (forms[0], forms[-1]), strict=False
        ):
            found.append((to_single_line(message), "" if entry.fuzzy else to_single_line(form)))
    assert texts(read(path)) == found
    assert len(found) == 6


def test_a_po_in_another_charset_is_refused_with_advice(tmp_path: Path) -> None:
    path = put(tmp_path / "a b.po", PO_HEAD.replace("UTF-8", "ISO-8859-2").encode())
    convert = f"convert it: msgconv --to-code=UTF-8 '{path}' -o NEW.po"
    assert refusal(path) == f", line 1: its charset is 'ISO-8859-2', not UTF-8; {convert}"
    put(path, "# J\xfcrgen\n".encode("latin-1") + PO_HEAD.encode())
    assert refusal(path) == f", line 1: not UTF-8 (byte 0xfc at column 4); {convert}"
    assert read(put(path, PO_HEAD.replace("UTF-8", "CHARSET"))) == []


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('msgid "a\nmsgstr "b"', ", line 1: a quotation mark is missing or too many"),
        ('msgid "a" b\nmsgstr "b"', ", line 1: a quotation mark is missing or too many"),
        ('msgid "a"b"\nmsgstr "b"', ", line 1: a quotation mark is missing or too many"),
        ('msgid "a\\"\nmsgstr "b"', ", line 1: a quotation mark is missing or too many"),
        ('msgid "a\\q"\nmsgstr "b"', ", line 1: \\q is no escape sequence of a character"),
        ('msgid "a\\303"\nmsgstr "b"', ", line 1: \\303 is no escape sequence of a character"),
        ('msgid "a"\nmsgid "b"', ", line 2: msgid does not belong here; an entry is msgid, msgid_plural, msgstr, each once"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"', ", line 3: msgstr does not belong here; an entry is"),
        ('msgstr "b"', ", line 1: msgstr does not belong here; an entry is"),
        ('msgid "a"\nmsgctxt "b"', ", line 2: msgctxt does not belong here; an entry is"),
        ('"a"', ", line 1: '\"a\"' is nothing that PO knows here"),
        ("msgid a", ", line 1: 'msgid a' is nothing that PO knows here"),
        ('msgid "a"\n#~ msgstr "b"', ", line 2: '\"b\"' is nothing that PO knows here"),
        ('\nmsgid "a"', ", line 2: the message has no msgstr"),
        ('msgid "a"\nmsgstr[0] "b"', ", line 1: has msgstr[0] for a message without msgid_plural"),
        ('msgid "a"\nmsgid_plural "as"\nmsgstr "b"', ", line 1: has msgstr for a message with msgid_plural"),
        ('msgid "a"\nmsgid_plural "as"\nmsgstr[1] "b"', ", line 1: has msgstr[1] for a message with msgid_plural"),
    ],
)
def test_what_is_no_po_is_refused(tmp_path: Path, written: str, said: str) -> None:
    assert refusal(put(tmp_path / "a.po", written)).startswith(said)


# --- SGM --------------------------------------------------------------------------------------------------------------


def test_segments_of_two_sgm_files_are_pairs(tmp_path: Path) -> None:
    source = put(
        tmp_path / "a-src.en.sgm",
        '<srcset setid="x" srclang="any">\n<doc sysid="s" docid="d1" genre=\'news\'>\n<hl>\n'
        '<seg id="1"> AT&T & a < b &amp;lt; </seg>\n'
        '</hl><p><seg id="2">two\n lines</seg> <SEG ID=3>&#252;&#x20AC;&nbsp;</SEG></p>\n</doc>\n'
        '<DOC docid="d2"><seg id="1"></seg></DOC></srcset>\n',
    )
    target = put(
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
    ("target", "said"),
    [
        (
            GOOD_SGM.replace('"2"', '"3"'),
            "{t}, line 3: the segment '3' of document 'd' stands where {s}, line 3, has '2' of document 'd'",
        ),
        (
            GOOD_SGM.replace('"d"', '"e"'),
            "{t}, line 2: the segment '1' of document 'e' stands where {s}, line 2, has '1' of document 'd'",
        ),
        (GOOD_SGM.replace('<seg id="2">y</seg>', ""), "{t} ends before the segment '2' of document 'd' of {s}, line 3"),
        (GOOD_SGM + '<seg id="3"></seg>', "{s} ends before the segment '3' of document 'd' of {t}, line 5"),
        (GOOD_SGM.replace("x</seg>", "x"), "{t}, line 3: '<seg id=\"2\">' stands before the </seg> of line 2's segment"),
        (GOOD_SGM.replace("y</seg>", "y"), "{t}, line 4: '</doc>' stands before the </seg> of line 3's segment"),
        (GOOD_SGM.replace("x</seg>", "x</seg></seg>"), "{t}, line 2: </seg> stands where no segment was begun"),
        (GOOD_SGM.replace("y</seg>\n</doc>", "y"), "{t}, line 3: the segment has no </seg>"),
        (GOOD_SGM.replace('<seg id="2">', '<seg id="2"'), "{t}, line 3: '<seg id=\"2\"y</seg>' stands"),
        (GOOD_SGM.replace('<seg id="2">', '<seg\nid="2">'), "{t}, line 3: the tag '<seg' does not end on its line"),
    ],
)  # fmt: skip
def test_sgm_files_that_part_or_are_damaged_are_refused(tmp_path: Path, target: str, said: str) -> None:
    source, other = put(tmp_path / "s.sgm", GOOD_SGM), put(tmp_path / "t.sgm", target)
    line = told(lambda: list(read_sides(source, other)))
    if '<seg id="2"y' in target:  # whose `>` is that of </seg
        assert line.startswith(f"{other}, line ")
    else:
        assert line == said.format(s=source, t=other)


# --- trees ------------------------------------------------------------------------------------------------------------


def test_each_tree_is_its_words_and_itself_on_one_line(tmp_path: Path) -> None:
    path = put(
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


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("(S (NP x))\n(S (NP x)\n\n", ", line 2: the tree that begins here has 1 brackets that never close"),
        ("(S (NP x))\n\n)", ", line 3: a bracket closes that was never opened"),
        ("(S x) y (S z)", ", line 1: 'y' is in no tree"),
        ("id (S x)", ", line 1: 'id' is in no tree"),
        ("(S (NP\nid\t(S x)", ", line 1: the tree that begins here has 2 brackets that never close"),
        ("\n" + "(" * 2000, ", line 2: the tree that begins in line 2 is deeper than 1000 brackets"),
    ],
)
def test_brackets_out_of_balance_are_named(tmp_path: Path, written: str, said: str) -> None:
    assert refusal(put(tmp_path / "a.ptb", written)) == said


@pytest.mark.skipif(not CRAFT.is_dir(), reason="the CRAFT trees are not here")
def test_the_trees_of_craft_come_back_as_they_stand() -> None:
    path = CRAFT / "dev.tsv.gz"
    pairs = list(read_file(path, "brackets"))
    written = [line.partition("\t")[2] for line in read_lines(path)]
    assert [pair.target for pair in pairs] == [tree.replace(" )", ")") for tree in written]
    for pair, tree in zip(pairs, written, strict=True):
        leaves = re.findall(r"\(([^() ]+) ([^() ]+)\)", tree)
        assert pair.source.split(" ") == [word for label, word in leaves if label != "-NONE-"]


# --- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_holds_text_of_any_kind_in_columns_or_structs(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sources = ["one", None, "a\nb", "ä"]
    targets = pa.array([{"de": "eins"}, {"de": "zwei"}, None, {"de": None}])
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"x": pa.array(sources).cast(kind), "n": [1, 2, 3, 4], "t": targets}), path, row_group_size=2)
        assert texts(read(path, fields=["x", "t.de"])) == [("one", "eins"), ("", "zwei"), ("a b", ""), ("ä", "")]
    assert refusal(path, fields=["x", "y"]) == ": has no column 'y'; it has 'x', 'n', 't.de'"
    assert refusal(path, fields=["x", "n"]) == ": the column 'n' holds int64, not text"
    assert refusal(path, fields=["x", "t"]) == ": the column 't' holds struct<de: string>, not text"
    assert refusal(path) == (
        ": neither en and de, source and target nor src and tgt among 'x', 'n', 't.de'; name two of them in fields"
    )


def test_parquet_that_is_none_or_damaged_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", "no parquet")
    assert refusal(path).startswith(": cannot be read: ")
    assert refusal(tmp_path / "b.parquet") == ": there is no such file"
    write_pairs(path, [Pair(f"{n}", f"{-n}") for n in range(5000)], overwrite=True)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert "CRC" in refusal(path, source_language="")
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"source": column, "target": ["x"]}), path)
    assert refusal(path) == ", rows 1 to 1: 'source' is not UTF-8"
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["source", "source", "target"])
    pq.write_table(twice, path)
    assert refusal(path) == ": has more than one column 'source'"


# --- formats, files, standard input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.tsv", "tsv"), ("a.JSONL", "jsonl"), ("a.b.ndjson.gz", "jsonl"), ("a.tmx.zst", "tmx"), ("a.xlf", "xliff"),
        ("a.xliff.xz", "xliff"), ("a.po", "po"), ("a.parquet", "parquet"), ("a.mrg.bz2", "brackets"), ("a.ptb", "brackets"),
    ],
)  # fmt: skip
def test_the_ending_beneath_that_of_an_archive_tells_the_format(name: str, format: Format) -> None:
    assert detect_format(Path(name)) == format
    assert detect_format(Path(name), "tsv") == "tsv"
    assert detect_format(Path(name), is_one_side=True) == "lines"
    for sided in ("a.sgm", "a.sgml.gz"):
        assert detect_format(Path(sided), is_one_side=True) == "sgm"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.txt.gz", "a.txt.gz: the ending '.txt' tells no format; known are .tsv .jsonl"),
        ("corpus", "corpus: a name without an ending tells no format; known are"),
        ("a.sgm", "a.sgm: an SGM file holds one side: give data.….source and target instead of file"),
        ("-", "standard input has no ending that tells its format: give data.….format, such as 'tsv' or 'jsonl'"),
    ],
)
def test_an_ending_that_tells_no_format_is_refused(tmp_path: Path, name: str, said: str) -> None:
    assert told(lambda: detect_format(Path(name))).startswith(said)
    assert "data.….format" in told(lambda: list(read_pairs(CorpusConfig(file="a.txt"), tmp_path)))


def test_files_of_a_corpus_are_chained(tmp_path: Path) -> None:
    put(tmp_path / "b.tsv", "two\tzwei\n")
    put(tmp_path / "a10.tsv.gz", "one\teins\n")
    put(tmp_path / "a[1].tsv.gz", "three\tdrei\n")
    put(tmp_path / ".a.tsv.gz", "no\tnein\n")
    (tmp_path / "afolder.tsv.gz").mkdir()
    corpus = CorpusConfig(file=["b.tsv", "a*.gz"])
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("b.tsv", "a10.tsv.gz", "a[1].tsv.gz")]
    assert texts(read_pairs(corpus, tmp_path)) == [("two", "zwei"), ("one", "eins"), ("three", "drei")]
    assert list_corpus_files(CorpusConfig(file="*.gz"), tmp_path) == list_corpus_files(CorpusConfig(file="a*gz"), tmp_path)
    assert list_corpus_files(CorpusConfig(file="a[1]*"), tmp_path) == [tmp_path / "a[1].tsv.gz"]
    line = told(lambda: list(read_pairs(CorpusConfig(file=["b.tsv", "c*.tsv"]), tmp_path)))
    assert line.startswith(f"{tmp_path / 'c*.tsv'}: there is no such file; * stands for any name")
    assert told(lambda: list_corpus_files(CorpusConfig(file="no/*.tsv"), tmp_path)).startswith(
        f"{tmp_path / 'no'}: cannot be looked"
    )


def test_a_file_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """Its name would go into the origin of each of its pairs, which is written as UTF-8."""
    folder = tmp_path / "f\udcffolder"
    try:
        folder.mkdir()
        for name in ("b\udcff.tsv", "c.tsv", "c\udcff.en", "c.de"):
            (tmp_path / name).write_text("one\teins\n")
        (folder / "c.tsv").write_text("one\teins\n")
    except OSError:
        pytest.skip("this disk takes no names but UTF-8")
    said = ": this file's name is not UTF-8; rename the file"
    assert os.fsencode("b\udcff.tsv") == b"b\xff.tsv"
    given = {"data": {"root": str(tmp_path), "train": {"file": "b\udcff.tsv"}}}
    assert "data.train.file = 'b\\udcff.tsv'" in told(lambda: make_recipe(given), RecipeError)
    for corpus, root, path in (
        (CorpusConfig(file="b*.tsv"), tmp_path, tmp_path / "b\udcff.tsv"),
        (CorpusConfig(file=["c.tsv", "*.tsv"]), tmp_path, tmp_path / "b\udcff.tsv"),
        (CorpusConfig(source="c*.en", target="c.de"), tmp_path, tmp_path / "c\udcff.en"),
        (CorpusConfig(file="c.tsv"), folder, folder / "c.tsv"),
    ):
        for reading in (lambda: list_corpus_files(corpus, root), lambda: list(read_pairs(corpus, root))):  # noqa: B023
            assert told(reading) == f"{str(path)!a}{said}"
    assert texts(read_pairs(CorpusConfig(file="c*.tsv"), tmp_path)) == [("one", "eins")]
    put(tmp_path / "ä 😀\u2028.tsv", "two\tzwei\n")  # a name of any letters
    assert texts(read_pairs(CorpusConfig(file="ä*.tsv"), tmp_path)) == [("two", "zwei")]


def test_sides_of_a_corpus_are_chained_file_by_file(tmp_path: Path) -> None:
    for name, written in {"1.en": "one\n", "2.en": "two\n", "1.de": "eins\n", "2.de": "zwei\n", "3.de": "drei\n"}.items():
        put(tmp_path / name, written)
    corpus = CorpusConfig(source=["1.en", "2.en"], target=["1.de", "2.de"])
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("1.en", "2.en", "1.de", "2.de")]
    assert list(read_pairs(corpus, tmp_path)) == [
        Pair("one", "eins", f"{tmp_path / '1.en'}:1"),
        Pair("two", "zwei", f"{tmp_path / '2.en'}:1"),
    ]
    assert told(lambda: list(read_pairs(CorpusConfig(source="*.en", target="*.de"), tmp_path))) == (
        "*.en stands for 2 files but *.de for 3; the n-th of one must be the translation of the n-th of the other"
    )
    put(tmp_path / "1.sgm", GOOD_SGM)
    assert "give two files of one format" in told(
        lambda: list(read_pairs(CorpusConfig(source="1.en", target="1.sgm"), tmp_path))
    )


def test_fields_are_for_formats_that_have_them(tmp_path: Path) -> None:
    said = ": fields is given, but po has none; it is for tsv, jsonl, parquet"
    assert refusal(put(tmp_path / "a.po", PO_HEAD), fields=["1", "2"]) == said


@pytest.mark.parametrize(
    ("format", "written", "origin"),
    [
        ("tsv", "one\teins\n", ":1"),
        ("jsonl", '{"en": "one", "de": "eins"}\n', ":1"),
        ("tmx", tmx(tu(("en", "one"), ("de", "eins"))), ":#1"),
        ("po", 'msgid "one"\nmsgstr "eins"\n', ":1"),
    ],
)
def test_pairs_come_from_standard_input(format: Format, written: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written.encode())))
    corpus = CorpusConfig(file="-", format=format)
    assert list_corpus_files(corpus, Path("/data")) == [STDIN_PATH]
    assert list(read_pairs(corpus, Path("/data"), **LANGUAGES)) == [Pair("one", "eins", f"standard input{origin}")]


@pytest.mark.parametrize("name", ["-", "a.parquet.gz"])
def test_parquet_cannot_come_from_a_pipe_or_an_archive(tmp_path: Path, name: str) -> None:
    corpus = CorpusConfig(file=name, format="parquet")
    assert "unpack it" in told(lambda: list(read_pairs(corpus, tmp_path)))


def test_a_corpus_may_have_files_of_both_kinds(tmp_path: Path) -> None:
    for name, written in {"a.en": "one\n", "a.de": "eins\n", "b.tsv": "two\tzwei\n"}.items():
        put(tmp_path / name, written)
    corpus = CorpusConfig(source="a.en", target="a.de", file="b.tsv")
    assert texts(read_pairs(corpus, tmp_path)) == [("one", "eins"), ("two", "zwei")]
    assert list_corpus_files(corpus, tmp_path) == [tmp_path / name for name in ("a.en", "a.de", "b.tsv")]


# --- writing ----------------------------------------------------------------------------------------------------------

# Whatever UTF-8 can hold on one line; and of that, what XML can.
LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40)
XML_LINE = st.text(
    st.characters(exclude_characters="\r\n\ufffe\uffff", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\x85\x9f"),
    max_size=40,
)
TEXT_OF = {"tmx": XML_LINE, "xliff": XML_LINE, "tsv": LINE.map(lambda text: text.replace("\t", " "))}


def read_back(written: WrittenFiles, format: Format, **languages: str) -> Iterator[Pair]:
    return read_sides(*written.files) if len(written.files) == 2 else read_file(written.files[0], format, **languages)


@pytest.mark.parametrize("format", ENDING_OF)
def test_what_was_written_is_read(format: Format, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(format)
    text = TEXT_OF.get(format, LINE)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(text, text), max_size=6),
        st.sampled_from([LANGUAGES, {"source_language": "x", "target_language": "x"}]),
    )
    def law(pairs: Texts, languages: dict[str, str]) -> None:
        written = write_pairs(
            folder / f"a{ENDING_OF[format]}", [Pair(*pair) for pair in pairs], file_format=format, overwrite=True, **languages
        )
        assert written.num_pairs == len(pairs)
        assert texts(read_back(written, format, **languages)) == pairs

    law()


@pytest.mark.parametrize("ending", [ending for ending in PACKERS if ending])
@pytest.mark.parametrize("format", [format for format in ENDING_OF if format != "parquet"])
def test_what_was_written_into_an_archive_is_read(tmp_path: Path, format: Format, ending: str) -> None:
    pairs = [(f"sentence {n}", f"Satz {n} ä") for n in range(5000)]
    written = write_pairs(
        tmp_path / f"a{ENDING_OF[format]}{ending}", [Pair(*pair) for pair in pairs], file_format=format, **LANGUAGES
    )
    assert all(file.suffix == ending and file.stat().st_size < 60_000 for file in written.files)
    assert texts(read_back(written, format, **LANGUAGES)) == pairs
    assert sorted(tmp_path.iterdir()) == sorted(written.files)


def test_two_files_are_named_for_their_languages(tmp_path: Path) -> None:
    def names(name: str, **settings: Any) -> list[str]:
        return [file.name for file in write_pairs(tmp_path / name, [Pair("a", "b")], overwrite=True, **settings).files]

    assert names("a.gz", format="lines", **LANGUAGES) == ["a.en.gz", "a.de.gz"]
    assert names("a", format="lines") == ["a.source", "a.target"]
    assert names("a.b", format="lines", **LANGUAGES) == ["a.b.en", "a.b.de"]
    assert names("a", format="sgm", **LANGUAGES) == ["a-src.en.sgm", "a-ref.de.sgm"]
    assert names("a", format="tsv") == ["a.tsv"]
    assert names("a.txt", format="tsv") == ["a.txt"]
    assert names("a.xz", format="xliff", **LANGUAGES) == ["a.xlf.xz"]
    assert names("a", format="lines", source_language="en", target_language="en") == ["a.source", "a.target"]
    assert names("a.b.sgm.xz", **LANGUAGES) == ["a.b-src.en.sgm.xz", "a.b-ref.de.sgm.xz"]
    assert "'../x' is no language code" in told(
        lambda: names("a", format="lines", source_language="../x", target_language="de")
    )


def test_columns_and_keys_are_named_for_their_languages(tmp_path: Path) -> None:
    write_pairs(tmp_path / "a.jsonl", [Pair("a", "ä")], **LANGUAGES)
    assert (tmp_path / "a.jsonl").read_text() == '{"en": "a", "de": "ä"}\n'
    write_pairs(tmp_path / "b.jsonl", [Pair("a", "ä")])
    assert (tmp_path / "b.jsonl").read_text() == '{"source": "a", "target": "ä"}\n'
    write_pairs(tmp_path / "a.parquet", [Pair("a", "ä")], **LANGUAGES)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [{"en": "a", "de": "ä"}]


def test_line_breaks_and_tabs_become_spaces_where_they_cannot_be(tmp_path: Path) -> None:
    pairs = [Pair("a\tb\r\nc", "d\r")]
    for format, source in {"tsv": "a b c", "lines": "a\tb c", "jsonl": "a\tb c", "po": "a\tb c", "sgm": "a\tb c"}.items():
        written = write_pairs(tmp_path / f"x{format}", pairs, file_format=cast(Format, format))
        assert texts(read_back(written, cast(Format, format))) == [(source, "d")]


@pytest.mark.parametrize("format", ["tmx", "xliff"])
@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1f", "\ufffe"])
def test_characters_that_xml_cannot_hold_are_refused_by_their_origin(tmp_path: Path, format: Format, character: str) -> None:
    pairs = [Pair("a", "b", "corpus.tsv:1"), Pair("a", f"b{character}", "corpus.tsv:2")]
    line = told(lambda: write_pairs(tmp_path / "a.xml", pairs, file_format=format, **LANGUAGES))
    assert line.startswith(f"corpus.tsv:2: holds the character U+{ord(character):04X}, which XML cannot")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ENDING_OF)
def test_half_a_surrogate_pair_is_refused_and_nothing_is_left(tmp_path: Path, format: Format) -> None:
    pairs = [Pair("a", "b"), Pair("a\udc80", "b")]
    path = tmp_path / f"a{ENDING_OF[format]}"
    line = told(lambda: write_pairs(path, pairs, file_format=format, **LANGUAGES))
    assert line == "pair 2: holds half a surrogate pair (\\udc80)"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("", {"format": "tsv"}, ".: is a folder; give a name for the file"),
        ("a.txt", LANGUAGES, "a.txt: its ending tells no format; known are .tsv .jsonl"),
        ("a.mrg", LANGUAGES, "a.mrg: trees cannot be written from pairs"),
        ("a.tmx", {}, "a.tmx: tmx names its languages; give task.source_language and task.target_language"),
        ("a.parquet.gz", LANGUAGES, "a.parquet.gz: Parquet is compressed in itself and is not put into an archive"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told(lambda: write_pairs(Path(name), [], **settings)).startswith(said)


@pytest.mark.parametrize("ending", ["", *(ending for ending in PACKERS if ending)])
def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.tsv{ending}"

    def pairs() -> Iterator[Pair]:
        for number in range(50_000):
            yield Pair(f"{number}", "x")
        assert not path.exists()
        raise DataError("the pairs have an end")

    assert told(lambda: write_pairs(path, pairs())) == "the pairs have an end"
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    assert "exists already" in told(lambda: write_pairs(path, [Pair("a", "b")]), OutputError)
    assert path.read_text() == "old"
    write_pairs(path, [Pair("a", "b")], overwrite=True)
    assert texts(read(path)) == [("a", "b")]


def test_equal_pairs_make_equal_archives(tmp_path: Path) -> None:
    for ending in ("gz", "xz", "bz2", "zst"):
        first, second = (write_pairs(tmp_path / f"{n}.tsv.{ending}", [Pair("a", "b")]).files[0] for n in (1, 2))
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="gettext is not installed")
def test_gettext_accepts_a_po_that_was_written(tmp_path: Path) -> None:
    pairs = [
        Pair('one \\ "x"\t', "eins"),
        Pair('one \\ "x"\t', "noch eins"),
        Pair("two", ""),
        Pair("", "leer"),
        Pair("ä\x07", "b\v"),
    ]
    path = write_pairs(tmp_path / "a.po", pairs, **LANGUAGES).files[0]
    checked = subprocess.run(["msgfmt", "-c", "-v", "-o", tmp_path / "a.mo", path], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "4 translated messages, 1 untranslated message" in checked.stderr


# --- memory -----------------------------------------------------------------------------------------------------------


def generated(number: int) -> Iterator[Pair]:
    for n in range(number):
        yield Pair(f"Sentence {n} of a corpus {'that goes on and on ' * 100}", f"Satz {n} {'und so weiter ' * 100}")


@pytest.mark.parametrize("format", [format for format in ENDING_OF if format != "parquet"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, format: Format, ending: str) -> None:
    """Four times as many pairs, 14 MB in all, take no more memory to write or to read."""
    peaks = []
    for number in (1_000, 4_000):
        tracemalloc.start()
        path = tmp_path / f"{number}{ENDING_OF[format]}{ending}"
        written = write_pairs(path, generated(number), file_format=format, **LANGUAGES)
        assert sum(1 for _ in read_back(written, format, **LANGUAGES)) == number
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**20, peaks  # other threads of whoever runs the tests are counted, too


def test_memory_of_parquet_is_that_of_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Arrow's own, which tracemalloc does not see."""
    monkeypatch.setattr(parquet_room, "_ROW_GROUP", 2**20)
    peaks = []
    for number in (2_000, 16_000):
        before, peak = pa.total_allocated_bytes(), 0
        written = write_pairs(tmp_path / f"{number}.parquet", generated(number))
        for _ in read_back(written, "parquet"):
            peak = max(peak, pa.total_allocated_bytes() - before)
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 2**21, peaks


def test_no_library_beyond_the_core_is_needed_for_the_plain_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("lxml", "polib"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for format in ENDING_OF:
        written = write_pairs(tmp_path / f"a{ENDING_OF[format]}", [Pair("a", "b")], file_format=format, **LANGUAGES)
        if format not in ("tmx", "xliff"):
            assert texts(read_back(written, format, **LANGUAGES)) == [("a", "b")]
