"""Files of installed packages, and randomly damaged small files: no change gives the same bytes, or the file is refused."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
from zip_files import make_docx, make_package, make_zip

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import random

from documents.donor_files import FormatCounts, find_files, make_mutations, run_file

FILES_A_FORMAT = 25
MUTATIONS = 200
MAX_BYTES = 60_000

_XLIFF = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en"
 target-language="de" datatype="plaintext"><body><trans-unit id="1"><source>One <g id="1">bold</g> word</source>
<target state="new">Ein</target></trans-unit><trans-unit id="2"><source>Two</source></trans-unit></body></file></xliff>
"""
_XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">
<unit id="u"><segment><source>One <pc id="1">bold</pc> word</source></segment></unit></file></xliff>
"""
_TMX = """<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>One <bpt i="1">[</bpt>word
<ept i="1">]</ept></seg></tuv><tuv xml:lang="de"><seg>Ein</seg></tuv></tu></body></tmx>
"""
_ANDROID = """<resources><string name="a">It\\'s <b>big</b> %1$s</string><plurals name="p"><item quantity="one">%d file</item>
<item quantity="other">%d files</item></plurals></resources>
"""
_TS = """<!DOCTYPE TS><TS version="2.1" language="de"><context><name>A</name><message numerus="yes"><source>%n file(s)</source>
<translation type="unfinished"><numerusform></numerusform></translation></message></context></TS>
"""
_ODT = """<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:text><text:h>Title</text:h>
<text:p>One <text:span>bold</text:span><text:tab/> word</text:p></office:text></office:body></office:document-content>
"""
_EPUB = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": '<container><rootfiles><rootfile full-path="a.opf"/></rootfiles></container>',
    "a.opf": '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>My '
    'book</dc:title></metadata><manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest></package>',
    "a.xhtml": '<html xmlns="http://www.w3.org/1999/xhtml"><body><p>One <i>word</i><br/> more</p></body></html>',
}
_A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_S = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
SAMPLES: dict[str, bytes] = {
    "po": b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=n>1;\\n"\n\n'
    b'#, fuzzy, c-format\nmsgid "One %s"\nmsgstr "Ein %s"\n\nmsgctxt "a"\nmsgid "%d file"\nmsgid_plural "%d files"\n'
    b'msgstr[0] ""\nmsgstr[1] ""\n\n#~ msgid "old"\n#~ msgstr "alt"\n',
    "xlf": _XLIFF.encode(),
    "xliff": _XLIFF_2.encode(),
    "tmx": _TMX.encode(),
    "html": b'<html lang="en"><title>A title</title><p>One <b title="More">bold</b><br>word &amp; <code>x</code><li>Two',
    "md": b"---\ntitle: A title\n---\n# Head\n\nOne **bold** `code` [link](x \"Title\")\n\n- item\n  two\n\n"
    b"| a | b |\n|---|---|\n| c | d |\n",
    "srt": b"1\n00:00:01,000 --> 00:00:02,000\n<i>One</i> word\n\n2\n00:00:02,500 --> 00:00:04,000\n- and\n- two.\n",
    "vtt": b"WEBVTT\n\nNOTE x\n\n00:01.000 --> 00:02.000 line:1\n<v Bob>One &amp; two\n",
    "json": b'{"a": {"b": "One \\u00e9 {{name}}", "c": ["two", 1, null]}, "@a": "x"}\n',
    "yaml": b"en:\n  a: One word\n  b: \"Two \\\"q\\\"\"\n  c: |\n    long\n    text\n"
    b"  d: >-\n    folded\n    text\n  e: [x, 'it''s']\n",
    "properties": b"# c\na = One \\u00e9 {0}\nb: two \\\n   lines\n",
    "strings": b'/* c */\n"a" = "One \\"word\\" %@";\n',
    "xml": _ANDROID.encode(),
    "resx": b'<root><data name="a" xml:space="preserve"><value>One {0}</value><comment>c</comment></data></root>',
    "ts": _TS.encode(),
    "txt": b"One line\nand more.\n\n  - item\n  - two\n\nLast\n",
    "docx": make_docx('<w:p><w:r><w:t>One </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>bold</w:t></w:r></w:p>'),
    "pptx": make_package(
        {"ppt/presentation.xml": ("presentationml.presentation.main", "<p/>"),
         "ppt/slides/slide1.xml": ("presentationml.slide", f"<sld {_A}><a:p><a:r><a:t>One word</a:t></a:r></a:p></sld>")}
    ),
    "xlsx": make_package(
        {"xl/workbook.xml": ("spreadsheetml.sheet.main", "<workbook/>"),
         "xl/sharedStrings.xml": ("spreadsheetml.sharedStrings", f"<sst {_S}><si><t>One word</t></si></sst>")}
    ),
    "odt": make_zip(
        {"mimetype": "application/vnd.oasis.opendocument.text", "META-INF/manifest.xml": "<manifest/>", "content.xml": _ODT},
        stored=("mimetype",),
    ),
    "epub": make_zip(_EPUB, stored=("mimetype",)),
}  # fmt: skip
"""Small file of each format, with the parts that are easy to break."""


@pytest.mark.slow
def test_damaged_files_are_kept_whole_or_refused() -> None:
    defects: list[str] = []
    for name, content in SAMPLES.items():
        whole, damaged = FormatCounts(), FormatCounts()
        run_file(whole, f"file.{name}", content, name)
        assert whole.read == 1, f"{name}: {whole}"
        assert whole.units
        for label, file_name, mutated in make_mutations(name, [(name, content)], MUTATIONS):
            run_file(damaged, file_name, mutated, label)
        defects += whole.defects + damaged.defects
    assert not defects


@pytest.mark.slow
def test_files_of_installed_packages_stay_whole() -> None:
    files = find_files([Path(sysconfig.get_paths()["purelib"])], FILES_A_FORMAT, random.Random(1))
    if not files:
        pytest.skip("no installed package has a file of a format that can be translated")
    defects: list[str] = []
    for paths in files.values():
        counts = FormatCounts()
        for path in paths:
            if path.stat().st_size <= MAX_BYTES:
                run_file(counts, path.name, path.read_bytes(), str(path))
        defects += counts.defects
    assert not defects
