"""Files of every format come back byte for byte: small ones with a text in each place, and those of installed packages."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.errors import DataError
from outside_parsers import INSIDE

WORDS = "Open Größe 3 € of שלום, 東京 🐉 in {name} and %s, it’s e\u0301te\u0301"
SYNTAX = ((".json", 1), (".json5", 1))
"""Places of syntax, in which words are no texts."""
STATED_ENCODINGS = (".po", ".xml", ".html")
MAX_FILES = 100


def check_identity(name: str, content: bytes) -> int:
    """Check that a file comes back, and that its own texts, written into it, read as before. Return the number of texts."""
    document = parse_document(name, content)
    assert write_document(document, {}) == content
    assert document.assemble(content, ()) == content
    own = {unit.id: UnitTranslation(unit.target or unit.source) for unit in document.units if unit.state != "locked"}
    check_written(document, own, write_document(document, own, document.target_language or "de"), get_parser(name))
    return len(document.units)


def test_small_files_come_back(subtests: pytest.Subtests) -> None:
    for suffix, places in INSIDE.items():
        for number, place in enumerate(places):
            content = place(WORDS)
            with subtests.test(suffix=suffix, number=number):
                if (suffix, number) in SYNTAX:
                    continue
                if isinstance(content, bytes):
                    assert check_identity(f"a{suffix}", content)
                    continue
                for newline in ("\n", "\r\n"):
                    for encoding in ("utf-8", "utf-8-sig")[: 1 if suffix in STATED_ENCODINGS else 2]:
                        assert check_identity(f"a{suffix}", content.replace("\n", newline).encode(encoding))


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
