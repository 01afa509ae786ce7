"""Small ZIP archives and office documents, built by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
S = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
ODF = (
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
)
_TYPE = "application/vnd.openxmlformats-officedocument."
_PICTURE = bytes(range(256)) * 4


def make_zip(members: Mapping[str, str | bytes], stored: tuple[str, ...] = (), comment: bytes = b"") -> bytes:
    """Return an archive with these members, compressed unless they are in `stored`."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = comment
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2020, 1, 2, 3, 4, 6))
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return output.getvalue()


def make_package(parts: Mapping[str, tuple[str, str]], others: Mapping[str, str | bytes] | None = None) -> bytes:
    """Return an Office Open XML package. parts: content type, without its start and `+xml`, and XML, by name"""
    overrides = "".join(f'<Override PartName="/{name}" ContentType="{_TYPE}{kind}+xml"/>' for name, (kind, _) in parts.items())
    types = f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{overrides}</Types>'
    members: dict[str, str | bytes] = {"[Content_Types].xml": types, "media/picture.png": _PICTURE}
    members |= {name: xml for name, (_, xml) in parts.items()}
    return make_zip({**members, **(others or {})})


def make_docx(
    body: str, parts: Mapping[str, tuple[str, str]] | None = None, others: Mapping[str, str | bytes] | None = None
) -> bytes:
    """Return a DOCX file with this body."""
    document = f'<?xml version="1.0"?>\n<w:document {W}><w:body>{body}<w:sectPr/></w:body></w:document>'
    main = {"word/document.xml": ("wordprocessingml.document.main", document)}
    return make_package({**main, **(parts or {})}, others)


def make_pptx(body: str, parts: Mapping[str, tuple[str, str]] | None = None) -> bytes:
    """Return a PPTX file with one slide."""
    main = ("presentationml.presentation.main", "<a/>")
    slide = ("presentationml.slide", f"<sld {A}>{body}</sld>")
    return make_package({"ppt/presentation.xml": main, "ppt/slides/slide1.xml": slide, **(parts or {})})


def make_xlsx(strings: str, sheet: str = "", parts: Mapping[str, tuple[str, str]] | None = None) -> bytes:
    """Return an XLSX file with these shared strings, and with this content of its sheet."""
    book = f'<workbook {S}><sheet name="Sheet one"/><sheet name="2"/></workbook>'
    main = {
        "xl/workbook.xml": ("spreadsheetml.sheet.main", book),
        "xl/sharedStrings.xml": ("spreadsheetml.sharedStrings", f"<sst {S}>{strings}</sst>"),
        "xl/worksheets/sheet1.xml": ("spreadsheetml.worksheet", f"<worksheet {S}>{sheet}</worksheet>"),
    }
    return make_package({**main, **(parts or {})})


def make_odt(body: str, styles: str = "", manifest: str = "", mimetype: str = "text") -> bytes:
    """Return an ODT file, or one of another kind of OpenDocument."""
    members: dict[str, str | bytes] = {
        "mimetype": f"application/vnd.oasis.opendocument.{mimetype}",
        "content.xml": f'<?xml version="1.0"?><office:document-content {ODF}>{body}</office:document-content>',
        "styles.xml": f"<office:document-styles {ODF}>{styles}</office:document-styles>",
        "Pictures/1.png": bytes(range(256)),
        "META-INF/manifest.xml": f"<manifest:manifest {ODF}>{manifest}</manifest:manifest>",
    }
    return make_zip(members, stored=("mimetype",))


def make_epub(body: str) -> bytes:
    """Return an EPUB file with one chapter and nothing else."""
    item = '<item href="a.xhtml" media-type="application/xhtml+xml"/>'
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>',
        "b.opf": f"<package><manifest>{item}</manifest></package>",
        "a.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>',
    }
    return make_zip(members, stored=("mimetype",))


def read_members(content: bytes) -> dict[str, bytes]:
    """Return the members of an archive, unpacked, in order."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}
