"""Hostile, damaged and foreign files: `translate-file` refuses each with one line, and leaves it as it was."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from dragoman.documents.command import translate_file
from dragoman.documents.file_report import report_file
from office_files import make_docx, make_package, make_zip

PARAGRAPH = "<w:p><w:r><w:t>Hello there</w:t></w:r></w:p>"
DOCX = make_docx(PARAGRAPH)
BOMB = "<!ENTITY a 'ha'>" + "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
EXTERNAL = '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
XLIFF = '<xliff version="1.2"><file source-language="en" target-language="de"><body><trans-unit id="1"><source>{}</source>\
</trans-unit></body></file></xliff>'
PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a"\nmsgstr "ä"\n'


def set_encrypted(content: bytes) -> bytes:
    """Return an archive whose first member is marked as encrypted, in its local header and in the directory."""
    data = bytearray(content)
    data[6] |= 1
    data[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


CASES = {
    "entity_bomb.xlf": f"<!DOCTYPE r [{BOMB}]>{XLIFF.format('&i;')}".encode(),
    "external_entity.xlf": (EXTERNAL + XLIFF.format("&x;")).encode(),
    "external_entity.docx": make_package(
        {"word/document.xml": ("wordprocessingml.document.main", f"{EXTERNAL}<w:document/>")},
    ),
    "external_entity.tmx": (EXTERNAL + '<tmx version="1.4"/>').encode(),
    "outside_path.odt": make_zip({"../content.xml": "<a/>", "mimetype": "application/vnd.oasis.opendocument.text"}),
    "truncated.docx": DOCX[:-30],
    "truncated.pptx": DOCX[: len(DOCX) // 2],
    "protected.docx": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500),
    "encrypted.docx": set_encrypted(DOCX),
    "document.xlsx": DOCX,
    "document.pptx": DOCX,
    "workbook.docx": make_package({"xl/workbook.xml": ("spreadsheetml.sheet.main", "<a/>")}),
    "signed.docx": make_docx(PARAGRAPH, others={"_xmlsignatures/a.xml": "<a/>"}),
    "archive.po": DOCX,
    "page.docx": b"<html><p>Hello</p></html>",
    "pdf.html": b"%PDF-1.7\n",
    "picture.txt": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "latin.po": PO.encode("latin-1"),
    "unknown_encoding.po": PO.replace("UTF-8", "KLINGON").encode(),
    "shift_jis.srt": "1\n00:00:01,000 --> 00:00:02,000\n日本語の字幕です\n".encode("shift_jis"),
    "catalog.json": PO.encode(),
    "empty.po": b"",
    "old.doc": b"\xd0\xcf\x11\xe0",
}


def test_unexpected_exception_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(path: Path, on_progress: object) -> NoReturn:
        raise ZeroDivisionError("secret text\nof the file")

    report = report_file(tmp_path / "a.po", fail, lambda done, total: None)
    assert (report.status, report.code) == ("refused", "error")
    assert (
        report.error == f"{tmp_path / 'a.po'}: an unexpected ZeroDivisionError; report it, with the file if you can; "
        "--verbose shows where it comes from"
    )
    assert capsys.readouterr().err == ""
    report_file(tmp_path / "a.po", fail, lambda done, total: None, verbose=True)
    assert "in fail\n" in capsys.readouterr().err


def test_exhausted_memory_costs_one_file(tmp_path: Path) -> None:
    def fail(path: Path, on_progress: object) -> NoReturn:
        raise MemoryError

    report = report_file(tmp_path / "a.po", fail, lambda done, total: None)
    assert (report.status, report.code) == ("refused", "out-of-memory")


@pytest.mark.parametrize("name", CASES)
def test_bad_file_is_refused_with_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(CASES[name])
    result = CliRunner().invoke(translate_file, ["--check", str(path)])
    lines = result.stderr.strip().splitlines()
    assert (result.exit_code, len(lines)) == (4, 1), result.output
    assert name in lines[0]
    assert "Traceback" not in result.output
    assert "root:" not in result.output  # of /etc/passwd
    assert [(item.name, item.read_bytes()) for item in tmp_path.iterdir()] == [(name, CASES[name])]
