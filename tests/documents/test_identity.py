"""Files of every format come back byte for byte: generated ones with odd features, and those of installed packages."""

from __future__ import annotations

import os
import random
import re
from functools import cache
from pathlib import Path

import pytest
from zip_files import make_docx, make_package, make_zip

from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.errors import DataError
from outside_parsers import EQUAL_SUFFIXES, INSIDE

WORDS = (
    "Open the file",
    "Größe 3 €",
    "שלום עולם",
    "東京 🐉 now",
    "A %s of %d",
    "see {name} here",
    "it’s 50 % off",
    "e\u0301te\u0301",
)
TABLE = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
OFFICE = 'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"'
TEXT = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
SDL = 'xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0"'
SEGMENT = (
    '<trans-unit id="N"><source>W</source><seg-source><mrk mtype="seg" mid="N">W</mrk></seg-source><target><mrk mtype="seg" '
    'mid="N">W</mrk></target><sdl:seg-defs><sdl:seg id="N"{}/></sdl:seg-defs></trans-unit>'
)
# Head, pieces and tail of a file. W is replaced by words, N by a number, and a line feed by the line break of the file.
FRAGMENTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    ".po": (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: de\\n"\n',
        (
            '\n#: a.c:N\n#, c-format\nmsgid "W N"\nmsgstr ""\n',
            '\n#, fuzzy\n#| msgid "W"\nmsgctxt "c N"\nmsgid ""\n"W\\n"\n"W"\nmsgstr "W"\n',
            '\n#~ msgid "W"\n#~ msgstr "W"\n',
            '\nmsgid "W N one"\nmsgid_plural "W N"\nmsgstr[0] ""\nmsgstr[1] "W"\n',
            "\n# W  \n\n",
        ),
        "",
    ),
    ".xlf": (
        '<?xml version="1.0"?>\n<xliff version="1.2"><file source-language="en" target-language="de"><body>\n',
        (
            '<trans-unit id="N"><source>W<x id="1"/></source></trans-unit>\n',
            "<!-- W -->\n<group  id='N' />",
            "<trans-unit id='N' ><source>W &amp; <![CDATA[<W>]]></source><target state=\"new\"/><note>W</note></trans-unit>",
            '<trans-unit id="N" translate="no"><source>W</source></trans-unit>',
        ),
        "</body></file></xliff>\n",
    ),
    ".sdlxliff": (
        f'<xliff version="1.2" {SDL}><file source-language="en" target-language="de"><body>\n',
        (
            SEGMENT.format(""),
            SEGMENT.format(' conf="Draft" locked="true"'),
            '<group id="N">' + SEGMENT.format(" percent='3'") + "</group>\n",
        ),
        "</body></file></xliff>",
    ),
    ".tmx": (
        '<tmx version="1.4"><header srclang="en" a=\'b\'/><body>\n',
        (
            "<tu ><tuv xml:lang='en'><seg>W</seg></tuv><tuv xml:lang='de'><seg>W</seg></tuv></tu>",
            '<tu><tuv xml:lang="en"><seg>W <ph x="1"/></seg></tuv></tu>\n',
            "<!-- W -->",
        ),
        "</body></tmx>",
    ),
    ".html": (
        "<!DOCTYPE html>\n<html lang=en><head><title>W</title></head><body>\n",
        (
            "<p CLASS=a>W <b>W</b><br>W\n",
            "<ul><li>W<li>W</ul>",
            "<!-- W --><img alt='W' src=x>",
            "<pre>  W\n W</pre>",
            "&nbsp;W &copy;",
            "<script>if (a < b) W</script>",
            "<table><tr><td>W<td></table>",
        ),
        "</body></html>\n",
    ),
    ".md": (
        "---\ntitle: W\n---\n",
        (
            "\n# W #\n",
            "\nW *W* `x` [W](a.md)\n",
            "\n- W\n  W\n* [ ] W\n",
            "\n> W\n> > W\n",
            "\n```c\nW\n```\n",
            "\n| W | W |\n|-|:-:|\n| W | |\n",
            "\n:::note\nW\n:::\n",
            "\nW  \nW\n",
            "\n<div>\nW\n</div>\n",
        ),
        "\n",
    ),
    ".srt": (
        "",
        ("N\n00:00:01,000 --> 00:00:02,500\n<i>W</i>\nW\n\n", "N\n00:00:03,0 --> 00:00:04,000 X1:10\n{\\an8}- W\n- W\n\n"),
        "",
    ),
    ".vtt": (
        "WEBVTT W\n\nNOTE W\n\n",
        ("00:01.000 --> 00:02.500 line:0\n<v A>W &amp; W\n\n", "x N\n00:03.000 --> 00:04.000\n<c.a>W</c>\n\n"),
        "",
    ),
    ".ass": (
        "[Script Info]\n; W\n[Events]\nFormat: Layer, Start, End, Style, Text\n",
        (
            "Dialogue: 0,0:00:01.00,0:00:02.00,A,{\\i1}W{\\i0}, W\\N W\n",
            "Comment: 0,0:00:01.00,0:00:02.00,A,W\n",
            "Dialogue: N,0:00:02.00,0:00:03.00,B,{\\p1}m 0 0 l 9 9{\\p0}W{note}\n",
            "; W\n",
        ),
        "\n[Fonts]\nW\n",
    ),
    ".json": (
        '{\n  "head": "W"',
        (',\n  "kN": "W"', ', "lN":["W",null , 1e5,{"a":"W"}]', ',"eN" : "W \\u00e9 \\" \\/"', ',\n// W\n"oN":{}'),
        "\n}\n",
    ),
    ".json5": (
        "// W\n{head: 'W',",
        ("kN: 'W \\'x\\'',\n", '"lN": ["W", .5, 0xF, +1,],', "/* W */ $eN : 'W \\x41 \\\n W',\n"),
        "}",
    ),
    ".yaml": (
        "en:\n",
        (
            "  aN: W\n",
            '  bN: "W \\"W\\" \\n"  # W\n',
            "  cN: 'W ''W'''\n",
            "  dN: |\n    W\n      W\n\n",
            "  eN: >-\n    W\n    W\n",
            '  fN: ["W", 1]\n',
        ),
        "",
    ),
    ".properties": ("# W\n", ("aN=W\n", "b.N : W \\\n   W\n", "c\\ N W\n", "! W\n\n", "dN=\\u00e9 \\t W\n"), "end=W"),
    ".strings": ("/* W */\n", ('"aN" = "W";\n', 'key_N="W \\"W\\" \\n" ;', "// W\n"), ""),
    ".stringsdict": (
        '<plist version="1.0"><dict>\n',
        (
            "<key>kN</key><dict><key>NSStringLocalizedFormatKey</key><string>%#@x@ W</string><key>x</key><dict>"
            "<key>NSStringFormatSpecTypeKey</key><string>NSStringPluralRuleType</string>\n<key>one</key><string>W</string>"
            "<key>other</key><string>W</string></dict></dict>\n",
        ),
        "</dict></plist>",
    ),
    ".xcstrings": (
        '{\n  "sourceLanguage" : "en",\n  "strings" : {\n    "W" : {\n\n    }',
        (
            ',\n    "W N" : {\n      "shouldTranslate" : false\n    }',
            ',\n"kN":{"localizations":{"de":{"stringUnit":{"state":"new","value":"W"}},"en":{"stringUnit":{"state":"translated","value":"W"}}}}',
            ',\n"pN":{"comment":"W","localizations":{"fr":{"variations":{"plural":{"other":{"stringUnit":{"state":"needs_review","value":"W"}}}}}}}',
        ),
        '\n  },\n  "version" : "1.0"\n}',
    ),
    ".xml": (
        '<?xml version="1.0" encoding="utf-8"?>\n<resources xmlns:tools="t">\n',
        (
            '  <string name="aN">W <b>W</b></string>\n',
            "<string name='bN' translatable='false'>W</string>",
            "<!-- W -->\n",
            '<plurals name="pN"><item quantity="one">W</item><item quantity="other">W</item></plurals>',
            '<string-array name="lN"><item>W</item><item>"  W "</item></string-array>',
        ),
        "</resources>\n",
    ),
    ".resx": (
        "<root>\n",
        ('<data name="aN" xml:space="preserve"><value>W</value><comment>W</comment></data>\n', "<resheader  name='N'/>"),
        "</root>",
    ),
    ".ts": (
        '<!DOCTYPE TS>\n<TS version="2.1" language="de"><context><name>W</name>\n',
        (
            '<message><source>W N</source><translation type="unfinished"></translation></message>\n',
            '<message numerus="yes"><source>W N n</source><translation>'
            "<numerusform>W</numerusform><numerusform/></translation></message>",
            "<message><source>W N</source><translation type='vanished'>W</translation></message>",
        ),
        "</context></TS>\n",
    ),
    ".csv": ("key,text\n", ("aN,W\n", 'bN,"W ""W"", W\nW"\n', "cN,\n"), ""),
    ".ftl": (
        "## W\n",
        ("aN = W\n    W\n", "-bN = W\n    .title = W\n", "cN = { $n ->\n    [one] W\n   *[other] W { $n }\n }\n", "\n# W\n"),
        "",
    ),
    ".txt": ("", ("W W W\nW W\n\n", "  W\n", "\tW\tW\n\n\n", "* W\n"), "W"),
    ".rst": (
        "W\n=====================\n\n",
        ("W *W* ``x`` :ref:`W <a>`\n\n", "* W\n\n  W\n\n", ".. note:: W\n\n   W\n\n", "::\n\n   W\n\n", ".. W\n\n"),
        "",
    ),
    ".adoc": (
        "= W\n\n",
        ("W *W* `x`\n\n", "* W\n** W\n\n", "[source]\n----\nW\n----\n\n", "// W\n\n", "|===\n|W |W\n|===\n\n", "== W\n\n"),
        "",
    ),
    ".docbook": (
        '<article xmlns="http://docbook.org/ns/docbook" version="5.0"><title>W</title>\n',
        (
            "<para>W <emphasis>W</emphasis></para>\n",
            "<programlisting>W</programlisting>",
            "<!-- W -->",
            "<note><para>W<footnote><para>W</para></footnote></para></note>",
        ),
        "</article>",
    ),
    ".docx": (
        "",
        (
            "<w:p><w:r><w:t>W</w:t></w:r></w:p>",
            '<w:p><w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">W </w:t></w:r><w:r><w:tab/></w:r></w:p>',
            "<w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl>",
            "<!-- W -->",
        ),
        "",
    ),
    ".pptx": (
        "",
        ("<a:p><a:r><a:t>W</a:t></a:r></a:p>", '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en"/><a:t>W</a:t></a:r><a:br/></a:p>'),
        "",
    ),
    ".xlsx": (
        "",
        (
            "<si><t>W N</t></si>",
            "<si><r><rPr><b/></rPr><t>W</t></r><r><t> N</t></r></si>",
            '<si><t xml:space="preserve"> W </t></si>',
        ),
        "",
    ),
    ".odt": (
        "",
        (
            "<text:p>W\n <text:span>W</text:span></text:p>",
            '<text:h text:outline-level="1">W<text:tab/>W</text:h>',
            "<text:p/><!-- W -->",
        ),
        "",
    ),
    ".ods": (
        "",
        (
            '<table:table-row><table:table-cell office:value-type="string">'
            "<text:p>W N</text:p></table:table-cell></table:table-row>",
            '<table:table-row><table:table-cell table:formula="of:=&quot;W&quot;">'
            "<text:p>W</text:p></table:table-cell></table:table-row>",
        ),
        "",
    ),
    ".epub": ("", ("<p>W <b>W</b></p>", "<h1 id='aN'>W</h1>", "<!-- W --><hr/>", "<p>W<br/>W</p>"), ""),
}
BYTES_AS_UTF8 = frozenset((".po", ".xml", ".html"))  # these state their encoding
NUM_FILES = 100
WORD = re.compile("(?<![A-Z])W(?![A-Z])")
NUMBER = re.compile(r"(?<![A-Z\\])N(?![A-Z])")
"""Place of a number in a piece, but neither the N of a break of SubStation nor that of a name such as NSString."""


def pack(suffix: str, body: str) -> bytes:
    """Return an archive of a format whose main member has this content."""
    match suffix:
        case ".docx":
            return make_docx(body)
        case ".pptx":
            main = {"ppt/presentation.xml": ("presentationml.presentation.main", "<a/>")}
            return make_package({**main, "ppt/slides/slide1.xml": ("presentationml.slide", f"<sld {DRAWING}>{body}</sld>")})
        case ".xlsx":
            main = {"xl/workbook.xml": ("spreadsheetml.sheet.main", "<a/>")}
            return make_package({**main, "xl/sharedStrings.xml": ("spreadsheetml.sharedStrings", f"<sst {SHEET}>{body}</sst>")})
        case ".epub":
            item = '<item href="a.xhtml" media-type="application/xhtml+xml"/>'
            members = {"mimetype": "application/epub+zip", "b.opf": f"<package><manifest>{item}</manifest></package>"}
            members["META-INF/container.xml"] = '<container><rootfile full-path="b.opf"/></container>'
            members["a.xhtml"] = f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>'
            return make_zip(dict(members), ("mimetype",), b"note")
        case _:
            kind = {".odt": "text", ".ods": "spreadsheet"}[suffix]
            body = f"<table:table>{body}</table:table>" if suffix == ".ods" else body
            content = f"<office:document-content {OFFICE} {TEXT} {TABLE}>{body}</office:document-content>"
            members = {"mimetype": f"application/vnd.oasis.opendocument.{kind}", "META-INF/manifest.xml": "<manifest/>"}
            return make_zip({**members, "content.xml": content, "Pictures/1.png": bytes(range(256))}, ("mimetype",))


def make_file(suffix: str, seed: int) -> bytes:
    """Return a file of a format with pieces, words, line breaks and an encoding that a seed selects."""
    rng = random.Random(f"{suffix} {seed}")
    head, pieces, tail = FRAGMENTS[suffix]
    parts = [
        head,
        NUMBER.sub("0", pieces[0]),
        *(NUMBER.sub(str(number), rng.choice(pieces)) for number in range(rng.randint(1, 12))),
        tail,
    ]
    text = WORD.sub(lambda match: rng.choice(WORDS), "".join(parts))
    if suffix in (".docx", ".pptx", ".xlsx", ".odt", ".ods", ".epub"):
        return pack(suffix, text)
    text = text.replace("\n", rng.choice(("\n", "\n", "\r\n")))
    return text.encode("utf-8" if suffix in BYTES_AS_UTF8 else rng.choice(("utf-8", "utf-8", "utf-8-sig")))


def check_identity(name: str, content: bytes) -> int:
    """Check that a file comes back, and that its own texts, written into it, read as before. Return the number of texts."""
    document = parse_document(name, content)
    assert write_document(document, {}) == content
    assert document.assemble(content, ()) == content
    own = {unit.id: UnitTranslation(unit.target or unit.source) for unit in document.units if unit.state != "locked"}
    check_written(document, own, write_document(document, own), get_parser(name))
    return len(document.units)


def test_generated_files_come_back(subtests: pytest.Subtests) -> None:
    for suffix in FRAGMENTS:
        with subtests.test(suffix=suffix):
            assert any(check_identity(f"a{suffix}", make_file(suffix, seed)) for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FRAGMENTS)
def test_hundred_generated_files_come_back(suffix: str) -> None:
    contents = {make_file(suffix, seed) for seed in range(NUM_FILES)}
    assert len(contents) > NUM_FILES // 3
    for content in contents:
        check_identity(f"a{suffix}", content)


def test_every_format_is_generated() -> None:
    assert FRAGMENTS.keys() | {EQUAL_SUFFIXES.get(suffix) for suffix in FRAGMENTS} >= INSIDE.keys()


@cache
def find_installed() -> dict[str, list[Path]]:
    """Return the files of installed packages, of at most 50 kB and at most 100 of each ending."""
    files: dict[str, list[Path]] = {suffix: [] for suffix in FRAGMENTS}
    for root in ("/usr/share", "/usr/lib"):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                listed = files.get(path.suffix)
                if listed is not None and len(listed) < NUM_FILES and path.is_file() and path.stat().st_size < 50_000:
                    listed.append(path)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FRAGMENTS)
def test_installed_files_come_back(suffix: str) -> None:
    num_files = 0
    for path in find_installed()[suffix]:
        content = path.read_bytes()
        try:
            document = parse_document(str(path), content)
        except DataError:
            continue
        assert document.assemble(content, ()) == content, path
        num_files += 1
    if num_files < 10:
        pytest.skip(f"the system has {num_files} {suffix} files")
