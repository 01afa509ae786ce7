"""Translated office files as LibreOffice reads them: the text of each paragraph and cell, and its direction."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from document_checks import make_stub
from test_odt import DRAWING, NAMES, make_odt
from zip_files import make_docx, make_package, make_zip, read_members

from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import DocumentOptions, translate_document

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("soffice"), reason="LibreOffice is not installed")]

RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
_RELATION = f'<Relationship Id="r{{}}" Type="{RELATIONS}/{{}}" Target="{{}}"/>'
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
PARAGRAPHS = (
    "May 17, 2031",
    "It was on May 18, 2031.",
    "&lt;May 19, 2031&gt; &amp; %s",
)


def relate(*targets: str) -> str:
    """Return the relations to targets, each of which is a kind and a path."""
    return _RELATIONS.format(
        "".join(_RELATION.format(number, *target.split(" ")) for number, target in enumerate(targets, start=1))
    )


def build_docx() -> bytes:
    paragraphs = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in PARAGRAPHS)
    runs = (
        '<w:r><w:t xml:space="preserve">On </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>May 20, 2031</w:t></w:r>'
        '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>1</w:t></w:r><w:r><w:br/><w:t>May 21, 2031</w:t></w:r>'
    )
    table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>May 22, 2031</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    return make_docx(
        f"{paragraphs}<w:p>{runs}</w:p>{table}<w:p/>", others={"_rels/.rels": relate("officeDocument word/document.xml")}
    )


def build_odt() -> bytes:
    paragraphs = "".join(f"<text:p>{text}</text:p>" for text in PARAGRAPHS)
    body = f"{paragraphs}<text:p>On <text:span>May 20, 2031</text:span><text:line-break/>May 21, 2031<text:tab/>x</text:p>"
    titles = "<svg:title>Title of May 24, 2031</svg:title><svg:desc>Words of May 25, 2031</svg:desc>"
    box = f"<draw:text-box><text:p>May 26, 2031</text:p></draw:text-box>{titles}"
    size = 'draw:name="F" text:anchor-type="as-char" svg:width="3cm" svg:height="2cm"'
    body += f"<text:p>In <draw:frame {DRAWING} {size}>{box}</draw:frame> May 27, 2031</text:p>"
    entries = '<manifest:file-entry manifest:full-path="{}" manifest:media-type="{}"/>'
    manifest = entries.format("/", "application/vnd.oasis.opendocument.text") + "".join(
        entries.format(name, "text/xml") for name in ("content.xml", "styles.xml")
    )
    content = make_odt(f"<office:body><office:text>{body}</office:text></office:body>", manifest=manifest)
    assert NAMES.encode() not in content  # the members are compressed
    return content


def build_ods() -> bytes:
    names = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" '
    names += 'xmlns:of="urn:oasis:names:tc:opendocument:xmlns:of:1.2"'
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    rows = "".join(f"<table:table-row>{cell.format(text)}</table:table-row>" for text in PARAGRAPHS)
    compared = f"<table:table-row>{cell.format('May 23, 2031')}</table:table-row>"
    formula = '<table:table-cell table:formula="of:=IF([.A4]=&quot;May 23, 2031&quot;;1;0)" office:value-type="float" '
    formula += 'office:value="1"><text:p>1</text:p></table:table-cell>'
    table = f'<table:table table:name="S">{rows}{compared}<table:table-row>{formula}</table:table-row></table:table>'
    entry = '<manifest:file-entry manifest:full-path="{}" manifest:media-type="{}"/>'
    manifest = entry.format("/", "application/vnd.oasis.opendocument.spreadsheet") + entry.format("content.xml", "text/xml")
    body = f"<office:body><office:spreadsheet {names}>{table}</office:spreadsheet></office:body>"
    return make_odt(body, manifest=manifest, mimetype="spreadsheet")


def add_macros(content: bytes) -> bytes:
    """Return a document of Word as one with macros."""
    members = read_members(content)
    old, new = b"openxmlformats-officedocument.wordprocessingml.document.main", b"ms-word.document.macroEnabled.main"
    members["[Content_Types].xml"] = members["[Content_Types].xml"].replace(old, new)
    return make_zip({**members, "word/vbaProject.bin": bytes(range(256))})


def build_pptx() -> bytes:
    names = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="' + RELATIONS + '"'
    names += ' xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
    paragraphs = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in PARAGRAPHS)
    shape = (
        '<p:nvGrpSpPr><p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/><p:sp><p:nvSpPr>'
        '<p:cNvPr id="2" name="x"/><p:cNvSpPr/><p:nvPr/></p:nvSpPr><p:spPr><a:xfrm><a:off x="0" y="0"/>'
        '<a:ext cx="5000000" cy="3000000"/></a:xfrm><a:prstGeom prst="rect"/></p:spPr>'
        f"<p:txBody><a:bodyPr/>{paragraphs}</p:txBody></p:sp>"
    )
    slide = f"<p:sld {names}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>"
    show = f'<p:presentation {names}><p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst></p:presentation>'
    return make_package(
        {
            "ppt/presentation.xml": ("presentationml.presentation.main", show),
            "ppt/slides/slide1.xml": ("presentationml.slide", slide),
        },
        {
            "_rels/.rels": relate("officeDocument ppt/presentation.xml"),
            "ppt/_rels/presentation.xml.rels": relate("slide slides/slide1.xml"),
        },
    )


def build_xlsx() -> bytes:
    names = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{RELATIONS}"'
    rows = "".join(
        f'<row r="{number}"><c r="A{number}" t="inlineStr"><is><t>{text}</t></is></c><c r="B{number}"><v>{number}</v></c></row>'
        for number, text in enumerate(PARAGRAPHS, start=1)
    )
    book = f'<workbook {names}><sheets><sheet name="S" sheetId="1" r:id="r1"/></sheets></workbook>'
    return make_package(
        {
            "xl/workbook.xml": ("spreadsheetml.sheet.main", book),
            "xl/worksheets/sheet1.xml": (
                "spreadsheetml.worksheet",
                f"<worksheet {names}><sheetData>{rows}</sheetData></worksheet>",
            ),
        },
        {
            "_rels/.rels": relate("officeDocument xl/workbook.xml"),
            "xl/_rels/workbook.xml.rels": relate("worksheet worksheets/sheet1.xml"),
        },
    )


BUILDERS = {
    "docx": build_docx,
    "docm": lambda: add_macros(build_docx()),
    "odt": build_odt,
    "pptx": build_pptx,
    "xlsx": build_xlsx,
    "ods": build_ods,
}
FLAT_FORMATS = {"fodt": ("docx", "docm", "odt"), "fodp": ("pptx",), "fods": ("xlsx", "ods")}
"""Flat format of LibreOffice for each of ours."""


def change(text: str) -> str:
    return re.sub(r"May (\d+), (\d+)", r"\1. Mai \2", text)


def read_texts(path: Path) -> list[str]:
    """Return the paragraphs and the alternative texts of a flat file of LibreOffice, with a sign for each break and tab."""
    texts = []
    for paragraph in ElementTree.parse(path).iter():
        if paragraph.tag not in (f"{_TEXT}p", f"{_SVG}title", f"{_SVG}desc"):
            continue
        for element in paragraph.iter():
            if element.tag in (f"{_TEXT}line-break", f"{_TEXT}tab"):
                element.text = "|"
        texts.append("".join(paragraph.itertext()))
    return [text for text in texts if text.strip() and "???" not in text]


def read_directions(path: Path) -> set[str]:
    """Return the writing modes of the automatic styles of a flat file."""
    return {
        element.get(f"{_STYLE}writing-mode", "") for element in ElementTree.parse(path).iter(f"{_STYLE}paragraph-properties")
    }


def test_libreoffice_reads_translations_in_their_places(tmp_path: Path) -> None:
    stub = make_stub(change)
    for name, build in BUILDERS.items():
        content = build()
        (tmp_path / f"old-{name}.{name}").write_bytes(content)
        for language in ("de", "ar"):
            document = parse_document(f"a.{name}", content)
            result = translate_document(document, get_parser(f"a.{name}"), stub, DocumentOptions("en", language))
            (tmp_path / f"{language}-{name}.{name}").write_bytes(result.content)
    profile = f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}"
    for flat, names in FLAT_FORMATS.items():
        files = [str(path) for name in names for path in sorted(tmp_path.glob(f"*.{name}"))]
        command = ["soffice", profile, "--headless", "--convert-to", flat, "--outdir", str(tmp_path / "out"), *files]
        subprocess.run(command, check=True, capture_output=True, timeout=240)
        for name in names:
            old, new, arabic = (tmp_path / "out" / f"{kind}-{name}.{flat}" for kind in ("old", "de", "ar"))
            texts = read_texts(old)
            assert read_texts(new) == [text if "23" in text else change(text) for text in texts], name  # a formula compares
            assert sum("17. Mai 2031" in text for text in read_texts(new)) == 1, name
            assert sum(text in ("Title of 24. Mai 2031", "Words of 25. Mai 2031") for text in read_texts(new)) == 2 * (
                name == "odt"
            )
            if name not in ("xlsx", "ods"):
                assert "rl-tb" in read_directions(arabic) - read_directions(old), name
