"""Small ZIP archives and office documents, built by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from document_checks import Parse, make_pseudo_translation

from dragoman.documents.document import UnitTranslation, write_document

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
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


def read_members(content: bytes) -> dict[str, bytes]:
    """Return the members of an archive, unpacked, in order."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def check_other_members(parse: Parse, content: bytes, changed: set[str]) -> None:
    """Check that a translation changes these members, and that the header and the compressed bytes of all others stay."""
    document = parse(content)
    translations = {unit.id: UnitTranslation(make_pseudo_translation(unit)) for unit in document.units}
    written = write_document(document, translations)
    before, after = read_members(content), read_members(written)
    assert list(after) == list(before)
    assert {name for name in before if before[name] != after[name]} == changed
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(io.BytesIO(written)) as new:
        for name in set(before) - changed:
            start, new_start = old.getinfo(name).header_offset, new.getinfo(name).header_offset
            length = 30 + len(name.encode()) + old.getinfo(name).compress_size
            assert content[start : start + length] == written[new_start : new_start + length]
            assert old.getinfo(name).date_time == new.getinfo(name).date_time
        assert old.comment == new.comment
