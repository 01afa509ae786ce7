"""Documents of files: the name selects the format, and content of another format is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from dragoman.documents.document import Document
from dragoman.documents.reading import check_text
from dragoman.errors import DataError
from dragoman.text.breaks import recorded_boundaries

MAX_FILE_BYTES = 2**28
"""Largest size of a file."""

SUFFIXES = (
    ".po", ".pot", ".xlf", ".xliff", ".tmx", ".html", ".htm", ".xhtml", ".md", ".markdown", ".mdx", ".srt", ".vtt", ".json",
    ".arb", ".yaml", ".yml", ".properties", ".strings", ".xml", ".resx", ".resw", ".ts", ".docx", ".dotx", ".pptx", ".potx",
    ".ppsx", ".xlsx", ".xltx", ".odt", ".ott", ".odp", ".otp", ".epub", ".csv", ".tsv", ".ftl", ".stringsdict", ".txt",
)  # fmt: skip
"""Endings of the names of files that can be translated."""

_SIGNATURES = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0", "an old or a protected Office file"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF87a", "a GIF picture"),
    (b"GIF89a", "a GIF picture"),
    (b"\x1f\x8b", "a gzip archive"),
)
_ZIP_READERS_SIGNATURES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # their readers tell a protected file from other ones
_ZIP_SUFFIXES = frozenset(
    (".docx", ".dotx", ".pptx", ".potx", ".ppsx", ".xlsx", ".xltx", ".odt", ".ott", ".odp", ".otp", ".epub")
)


def parse_document(name: str, content: bytes) -> Document:
    """Return the document of a file.

    name: name of the file, whose ending selects the format

    Raises DataError, which names the file, for an unknown format and for content that is not of the format or too large.
    """
    suffix = PurePath(name).suffix.lower()
    parse = get_parser(name)
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{name}: has more than {MAX_FILE_BYTES >> 20} MiB; divide it", code="input-too-long")
    for signature, kind in _SIGNATURES:
        if content.startswith(signature) and not (suffix in _ZIP_SUFFIXES and signature in _ZIP_READERS_SIGNATURES):
            raise DataError(f"{name}: is {kind}, not a {suffix} file; give it its right ending", code="invalid-format")
    try:
        with recorded_boundaries() as boundaries:
            document = replace(parse(content), boundaries=boundaries)
        for unit in document.units:
            check_text(len(unit.source))
    except DataError as error:
        raise DataError(f"{name}: {error}", code=error.code) from None
    return document


def read_document(path: Path) -> Document:
    """Return the document of a file. Raises DataError if it cannot be read."""
    get_parser(str(path))
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist", code="file-not-found") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", code="file-unreadable") from None
    return parse_document(str(path), content)


def get_parser(name: str) -> Callable[[bytes], Document]:
    """Return the function that reads a file of this name. Raises DataError for an unknown ending."""
    match PurePath(name).suffix.lower():
        case ".po" | ".pot":
            from dragoman.documents.po import parse
        case ".xlf" | ".xliff":
            from dragoman.documents.xliff_document import parse_xliff as parse
        case ".tmx":
            from dragoman.documents.tmx_document import parse_tmx as parse
        case ".html" | ".htm" | ".xhtml":
            from dragoman.documents.html_file import parse
        case ".md" | ".markdown":
            from dragoman.documents.markdown import parse
        case ".mdx":
            from dragoman.documents.markdown import parse_mdx as parse
        case ".srt":
            from dragoman.documents.subtitles import parse_srt as parse
        case ".vtt":
            from dragoman.documents.subtitles import parse_vtt as parse
        case ".json" | ".arb":
            from dragoman.documents.json_file import parse
        case ".yaml" | ".yml":
            from dragoman.documents.yaml_file import parse
        case ".properties":
            from dragoman.documents.properties import parse_properties as parse
        case ".strings":
            from dragoman.documents.properties import parse_strings as parse
        case ".xml":
            from dragoman.documents.android_strings import parse_android_strings as parse
        case ".resx" | ".resw":
            from dragoman.documents.resx import parse_resx as parse
        case ".ts":
            from dragoman.documents.qt_ts import parse_qt_ts as parse
        case ".docx" | ".dotx":
            from dragoman.documents.docx import parse_docx as parse
        case ".pptx" | ".potx" | ".ppsx":
            from dragoman.documents.pptx import parse_pptx as parse
        case ".xlsx" | ".xltx":
            from dragoman.documents.xlsx import parse_xlsx as parse
        case ".odt" | ".ott":
            from dragoman.documents.odt import parse_odt as parse
        case ".odp" | ".otp":
            from dragoman.documents.odt import parse_odp as parse
        case ".csv":
            from dragoman.documents.csv_file import parse_csv as parse
        case ".tsv":
            from dragoman.documents.csv_file import parse_tsv as parse
        case ".stringsdict":
            from dragoman.documents.stringsdict import parse_stringsdict as parse
        case ".ftl":
            from dragoman.documents.fluent import parse_ftl as parse
        case ".epub":
            from dragoman.documents.epub import parse_epub as parse
        case ".txt":
            from dragoman.documents.plain_text import parse
        case suffix:
            kind = f"files that end with {suffix!r}" if suffix else "files without an ending"
            raise DataError(
                f"{name}: {kind} cannot be translated; allowed are {' '.join(SUFFIXES)}",
                code="unknown-format",
            )
    return parse
