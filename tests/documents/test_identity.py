"""Files of every format come back byte for byte: small ones with a text in each place, and those of installed packages."""

from __future__ import annotations

import html
import os
from functools import cache
from pathlib import Path

import pytest
from document_checks import check_document, check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.errors import DataError
from outside_parsers import INSIDE

WORDS = "Open Größe 3 € of שלום,\n    東京 🐉 in {name} and %s, it’s e\u0301te\u0301"
SYNTAX = ((".json", 1), (".json5", 1))
"""Places of syntax, in which words are no texts."""
UTF_16 = (".html", ".json", ".json5", ".txt", ".properties", ".strings")
MARKED = (".adoc", ".ass", ".ftl", ".rst")
"""Formats in which some signs are marks, so a translation that has them is flagged and not written."""
MAX_FILES = 100
LETTERS = st.sampled_from("ab1 \\`*_[]<>&;#|~!-+=.:(){}$%é\"'/@?,^\n") | st.characters(codec="utf-8", exclude_categories=["Cc"])


@pytest.mark.parametrize("suffix", INSIDE)
def test_small_files_obey_the_laws(suffix: str) -> None:
    parse = get_parser(f"a{suffix}")
    for number, place in enumerate(INSIDE[suffix]):
        if (suffix, number) in SYNTAX:
            continue
        content = place(WORDS)
        if isinstance(content, bytes):
            check_document(parse, content)
            continue
        encodings = ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"] if suffix in UTF_16 else ["utf-8"]
        for newline in ("\n", "\r\n"):
            for encoding in encodings:
                check_laws(parse, content.replace("\n", newline).encode(encoding))


@pytest.mark.parametrize("suffix", [suffix for suffix in INSIDE if suffix not in MARKED])
@given(text=st.text(LETTERS, min_size=1, max_size=15))
def test_any_text_reads_as_written(suffix: str, text: str) -> None:
    parse = get_parser(f"a{suffix}")
    for number, place in enumerate(INSIDE[suffix] or [str]):
        if (suffix, number) in SYNTAX:
            continue
        content = place("Word")
        document = parse(content.encode() if isinstance(content, str) else content)
        translations = {
            unit.id: UnitTranslation(f"a {text} b" if unit.markup == "none" else html.escape(f"a {text} b", quote=False))
            for unit in document.units
        }
        check_written(document, translations, write_document(document, translations, "de"), parse)


@cache
def find_installed() -> dict[str, list[Path]]:
    """Return the files of installed packages, of at most 50 kB and at most 100 of each ending."""
    files: dict[str, list[Path]] = {suffix: [] for suffix in INSIDE}
    for root in ("/usr/share", "/usr/lib"):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                listed = files.get(path.suffix)
                if listed is not None and len(listed) < MAX_FILES and path.is_file() and path.stat().st_size < 50_000:
                    listed.append(path)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("suffix", INSIDE)
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
