"""Tests of archives: what is copied, and what is refused."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
from document_checks import check_document, check_other_members

import dragoman.documents.zip_document
from dragoman.documents.document import Edit
from dragoman.documents.docx import parse_docx
from dragoman.documents.formats import get_parser
from dragoman.documents.zip_document import ZipMembers
from expected_errors import raises_code
from office_files import W, make_docx, make_zip, read_members

DOCX = make_docx("<w:p><w:r><w:t>Text</w:t></w:r></w:p>")
TEXTS: dict[str, str | bytes] = {"a.xml": "<a>one</a>", "b.bin": b"\0\1" * 50, "c.xml": "<c>two</c>"}


def test_edited_members_are_packed_again() -> None:
    content = make_zip(TEXTS, stored=("c.xml",), comment=b"note")
    members = ZipMembers(content, "docx")
    assert (members.open("c.xml")[:], members.open("a.xml")[:]) == (b"<c>two</c>", b"<a>one</a>")
    written = members.assemble(content, [Edit(3, 6, b"three"), Edit(13, 16, b"four")])
    assert read_members(written) == {"a.xml": b"<a>four</a>", "b.bin": b"\0\1" * 50, "c.xml": b"<c>three</c>"}
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        assert [entry.compress_type for entry in archive.infolist()] == [8, 8, 0]
        assert archive.comment == b"note"
    assert members.assemble(content, [Edit(3, 6, b"two")]) is content


def test_members_with_data_descriptors_are_read_and_copied() -> None:
    output = _Stream()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in TEXTS.items():
            archive.writestr(name, data)
    content = bytes(output.data)
    assert b"PK\x07\x08" in content
    members = ZipMembers(content, "docx")
    members.open("a.xml")
    written = members.assemble(content, [Edit(3, 6, b"four")])
    assert read_members(written)["a.xml"] == b"<a>four</a>"
    assert written.count(b"PK\x07\x08") == 2


class _Stream(io.RawIOBase):
    """Output without a position, to which zipfile writes data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.data += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def make_overlapping() -> bytes:
    """Return an archive of which two members have the same data, as zip bombs have."""
    content = bytearray(DOCX)
    first = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", first + 4)
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(make_overlapping(), id="overlapping"),
        pytest.param(b"#!/bin/sh\n" + DOCX, id="program before it"),
        pytest.param(make_zip({**TEXTS, "../../etc/passwd": "x"}), id="path outside"),
        pytest.param(make_zip({**TEXTS, "/etc/passwd": "x"}), id="absolute path"),
        pytest.param(make_zip({**TEXTS, "C:\\a": "x"}), id="drive"),
        pytest.param(make_docx("<w:p>"), id="broken XML"),
    ],
)
def test_hostile_and_foreign_files_are_refused(content: bytes) -> None:
    with raises_code("invalid-format"):
        parse_docx(content)


def test_package_without_its_main_part_is_refused() -> None:
    with raises_code("unknown-format"):
        parse_docx(DOCX.replace(b"word/document.xml", b"word/document.xmm"))


def test_truncated_archives_are_refused(subtests: pytest.Subtests) -> None:
    for length in range(0, len(DOCX), 37):
        with subtests.test(length=length), raises_code("invalid-format"):
            parse_docx(DOCX[:length])


def test_damaged_member_is_refused() -> None:
    content = bytearray(make_zip(TEXTS, stored=("a.xml",)))
    content[content.index(b"one")] ^= 1
    with raises_code("invalid-format", "a.xml"):
        ZipMembers(bytes(content), "docx").open("a.xml")
    packed = bytearray(make_zip(TEXTS))
    packed[packed.index(b"a.xml") + 5] = 0xFF
    with raises_code("invalid-format", "a.xml"):
        ZipMembers(bytes(packed), "docx").open("a.xml")


def test_zip_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.documents.zip_document, "MAX_UNPACKED_BYTES", 2**16)
    bomb = make_zip({"a.xml": bytes(2**20)})
    with raises_code("input-too-long"):
        ZipMembers(bomb, "docx").open("a.xml")
    crc, size = struct.pack("<L", zlib.crc32(bytes(2**20))), struct.pack("<L", 2**20)
    lying = bomb.replace(size, struct.pack("<L", 5))
    assert crc in lying
    with raises_code("input-too-long"):
        ZipMembers(lying, "docx").open("a.xml")
    members = ZipMembers(make_zip({str(number): bytes(40_000) for number in range(2)}), "docx")
    members.open("0")
    with raises_code("input-too-long"):
        members.open("1")


def test_archive_with_too_many_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.documents.zip_document, "MAX_MEMBERS", 2)
    with raises_code("input-too-long"):
        ZipMembers(make_zip(TEXTS), "docx")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused() -> None:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr("a.xml", "<a/>")
        archive.writestr("a.xml", "<b/>")
    with raises_code("invalid-format"):
        ZipMembers(output.getvalue(), "docx")


def test_macros_stay_byte_for_byte(subtests: pytest.Subtests) -> None:
    body = f"<w:document {W}><w:p><w:r><w:t>One two</w:t></w:r></w:p></w:document>"
    paragraph = '<a:p xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:r><a:t>One two</a:t></a:r></a:p>'
    cell = '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><t>One two</t></si></sst>'
    parts = {
        "docm": ("word.document.macroEnabled", "", body),
        "dotm": ("word.template.macroEnabledTemplate", "", body),
        "pptm": ("powerpoint.presentation.macroEnabled", "presentationml.slide+xml", f"<sld>{paragraph}</sld>"),
        "potm": ("powerpoint.template.macroEnabled", "presentationml.slide+xml", f"<sld>{paragraph}</sld>"),
        "ppsm": ("powerpoint.slideshow.macroEnabled", "presentationml.slide+xml", f"<sld>{paragraph}</sld>"),
        "xlsm": ("excel.sheet.macroEnabled", "spreadsheetml.sharedStrings+xml", cell),
        "xltm": ("excel.template.macroEnabled", "spreadsheetml.sharedStrings+xml", cell),
    }
    for suffix, (kind, part, xml) in parts.items():
        with subtests.test(suffix=suffix):
            main = f'<Override PartName="/main.xml" ContentType="application/vnd.ms-{kind}.main+xml"/>'
            main += f'<Override PartName="/part.xml" ContentType="{part}"/>'
            members: dict[str, str | bytes] = {
                "[Content_Types].xml": f"<Types>{main}</Types>",
                "vbaProject.bin": bytes(range(256)),
            }
            content = make_zip({**members, "main.xml": "<a/>" if part else xml, "part.xml": xml if part else "<a/>"})
            document = check_document(get_parser(f"a.{suffix}"), content)
            assert [unit.source for unit in document.units] == ["One two"]
            check_other_members(get_parser(f"a.{suffix}"), content, {"part.xml" if part else "main.xml"})


def test_damaged_pictures_are_found_at_the_start() -> None:
    content = make_zip({**read_members(DOCX), "word/media/image1.png": bytes(range(256))}, stored=("word/media/image1.png",))
    place = content.index(bytes(range(256)))
    with raises_code("invalid-format", "image1.png"):
        parse_docx(content[:place] + b"x" + content[place + 1 :])
