"""Documents of files: the name selects the format, and content of another format is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath

from dragoman.documents.document import Document, Edit
from dragoman.documents.encoded_text import decode
from dragoman.documents.reading import check_text
from dragoman.errors import DataError
from dragoman.text.breaks import recorded_boundaries
from dragoman.text.encodings import find_codec

MAX_FILE_BYTES = 2**28
"""Largest size of a file."""

_PARSERS = {
    suffix: (module, function)
    for suffixes, (module, function) in {
        ".po .pot": ("po", "parse"),
        ".xlf .xliff .sdlxliff": ("xliff_document", "parse_xliff"),
        ".tmx": ("tmx_document", "parse_tmx"),
        ".html .htm .xhtml": ("html_file", "parse"),
        ".md .markdown": ("markdown", "parse"),
        ".mdx": ("markdown", "parse_mdx"),
        ".srt": ("subtitles", "parse_srt"),
        ".vtt": ("subtitles", "parse_vtt"),
        ".ass .ssa": ("subtitles", "parse_ass"),
        ".json .arb": ("json_file", "parse"),
        ".json5": ("json_file", "parse_json5"),
        ".yaml .yml": ("yaml_file", "parse"),
        ".properties": ("properties", "parse_properties"),
        ".strings": ("properties", "parse_strings"),
        ".stringsdict": ("stringsdict", "parse_stringsdict"),
        ".xcstrings": ("xcstrings", "parse_xcstrings"),
        ".xml": ("docbook", "parse_xml"),
        ".docbook .dbk": ("docbook", "parse_docbook"),
        ".rst": ("restructured_text", "parse_rst"),
        ".adoc .asciidoc": ("asciidoc", "parse_asciidoc"),
        ".resx .resw": ("resx", "parse_resx"),
        ".ts": ("qt_ts", "parse_qt_ts"),
        ".docx .docm .dotx .dotm": ("docx", "parse_docx"),
        ".pptx .pptm .potx .potm .ppsx .ppsm": ("pptx", "parse_pptx"),
        ".xlsx .xlsm .xltx .xltm": ("xlsx", "parse_xlsx"),
        ".odt .ott": ("odt", "parse_odt"),
        ".odp .otp": ("odt", "parse_odp"),
        ".ods .ots": ("odt", "parse_ods"),
        ".epub": ("epub", "parse_epub"),
        ".csv": ("csv_file", "parse_csv"),
        ".tsv": ("csv_file", "parse_tsv"),
        ".ftl": ("fluent", "parse_ftl"),
        ".txt": ("plain_text", "parse"),
    }.items()
    for suffix in suffixes.split()
}
"""Module and function that read a file, by the ending of its name. A module is imported when a file needs it."""
SUFFIXES = tuple(_PARSERS)
"""Endings of the names of files that can be translated."""
SUCCESSORS = {".doc": ".docx", ".pdf": ".docx", ".ppt": ".pptx", ".rtf": ".docx", ".xls": ".xlsx"}
"""Endings of office files that cannot be translated, and those of formats that office programs save instead."""

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
_XML_MODULES = frozenset(("android_strings", "docbook", "qt_ts", "resx", "stringsdict", "tmx_document", "xliff_document"))
_MULTIBYTE_CODECS = frozenset(("big5hkscs", "cp932", "cp949", "euc_jp", "gb18030", "gbk"))
"""Encodings that expat does not read."""
_DECLARED_ENCODING = re.compile(rb"<\?xml\s[^<>]*?\sencoding\s*=\s*[\"']([A-Za-z][\w.-]*)")
_ZIP_MODULES = frozenset(("docx", "pptx", "xlsx", "odt", "epub"))


def is_archive(suffix: str) -> bool:
    """Return whether files with an ending of `SUFFIXES` are archives of several files."""
    return _PARSERS[suffix][0] in _ZIP_MODULES


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
        if content.startswith(signature) and not (is_archive(suffix) and signature in _ZIP_READERS_SIGNATURES):
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
    suffix = PurePath(name).suffix.lower()
    if suffix not in _PARSERS:
        kind = f"files that end with {suffix!r}" if suffix else "files without an ending"
        hint = f"save it as {SUCCESSORS[suffix]}" if suffix in SUCCESSORS else f"allowed are {' '.join(SUFFIXES)}"
        raise DataError(f"{name}: {kind} cannot be translated; {hint}", code="unknown-format")
    module, function = _PARSERS[suffix]
    parse: Callable[[bytes], Document] = getattr(import_module(f"dragoman.documents.{module}"), function)
    return partial(_parse_xml, parse) if module in _XML_MODULES else parse


def _parse_xml(parse: Callable[[bytes], Document], content: bytes) -> Document:
    """Return the document of an XML file, also of one in an encoding of several bytes, which is read in UTF-8 instead."""
    declaration = _DECLARED_ENCODING.match(content)
    codec = find_codec(declaration[1].decode()) if declaration else None
    if declaration is None or codec is None or codec not in _MULTIBYTE_CODECS:
        return parse(content)
    start, end = declaration.span(1)
    decode(content, declaration[1].decode())  # whether each text has one encoding
    document = parse(content[:start] + b"utf-8" + content[end:].decode(codec).encode())

    def assemble(_: bytes, edits: Iterable[Edit]) -> bytes:
        written = document.assemble(document.content, edits)
        return content[:end] + written[start + len(b"utf-8") :].decode().encode(codec, "xmlcharrefreplace")

    return replace(document, content=content, assemble=assemble, iter_units=None)
