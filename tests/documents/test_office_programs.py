"""Translated office files as LibreOffice reads them: the text of each paragraph and cell, and its direction."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from document_checks import translate_content
from test_odt import DRAWING

from dragoman.documents.translate_document import DocumentOptions
from office_files import make_docx, make_odt

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


BUILDERS = {"docx": (build_docx, "fodt"), "odt": (build_odt, "fodt"), "ods": (build_ods, "fods")}
"""Builder of a file of each format, and the flat format of LibreOffice for it."""


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
    profile = f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}"
    for name, (build, flat) in BUILDERS.items():
        paths = {kind: tmp_path / f"{kind}-{name}.{name}" for kind in ("old", "de", "ar")}
        paths["old"].write_bytes(build())
        for language in ("de", "ar"):
            result = translate_content(f"a.{name}", build(), change, DocumentOptions("en", language))
            paths[language].write_bytes(result.content)
        command = [
            "soffice",
            profile,
            "--headless",
            "--convert-to",
            flat,
            "--outdir",
            str(tmp_path / "out"),
            *map(str, paths.values()),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=240)
        old, new, arabic = (tmp_path / "out" / f"{path.stem}.{flat}" for path in paths.values())
        texts, new_texts = read_texts(old), read_texts(new)
        assert new_texts == [text if "23" in text else change(text) for text in texts], name  # a formula compares
        assert sum("17. Mai 2031" in text for text in new_texts) == 1, name
        titles = [text for text in new_texts if text in ("Title of 24. Mai 2031", "Words of 25. Mai 2031")]
        assert len(titles) == 2 * (name == "odt")
        if name != "ods":
            assert "rl-tb" in read_directions(arabic) - read_directions(old), name
