"""Limits of reading: memory, counts and the end of the work. The files are larger than anything that people write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from zip_files import make_docx, make_zip

from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.reading import MAX_CODES, MAX_PARTS, MIN_TEXTS, check_goes_on, check_texts, ended_by
from dragoman.documents.xml_spans import MAX_ELEMENT_BYTES, MAX_NAMES
from dragoman.documents.zip_document import MIN_RATIO_BYTES
from dragoman.errors import DataError

XLIFF = '<xliff version="1.2"><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
UNIT = "<trans-unit><source>{}</source></trans-unit>"

TOO_LARGE: dict[str, tuple[str, str]] = {
    "elements.xlf": (XLIFF.format(UNIT.format("<x/>" * MAX_PARTS)), "200,000 elements"),
    "codes.xlf": (XLIFF.format(UNIT.format("a<x/>" * (MAX_CODES + 1))), "20,000 tags"),
    "attributes.xlf": (XLIFF.format("<trans-unit " + " ".join(f'a{i}=""' for i in range(MAX_NAMES)) + "/>"), "different names"),
    "names.xlf": (XLIFF.format("".join(f"<a{i}/>" for i in range(MAX_NAMES))), "20,000 different names"),
    "breaks.html": ("<p>one" + "<br>" * (MAX_CODES + 2) + "two</p>", "20,000 tags"),
    "attributes.html": ("<p " + "a " * 50_000 + ">one</p>", "20,000 tags"),
    "hidden_attributes.html": ("<p title='>' " + "a " * 50_000 + ">one</p>", "20,000 tags"),
    "strings.json": ("[" + '"a",' * (MIN_TEXTS + 1) + "1]", "100,000 texts"),
    "text.txt": ("one " * 500_001, "2,000,000 characters"),
    "comment.xlf": (XLIFF.format("<!--" + "a" * (MAX_ELEMENT_BYTES + 2**17) + "-->"), "8 MiB"),
    "unit.xlf": (XLIFF.format(UNIT.format("a" * (MAX_ELEMENT_BYTES + 2**17))), "8 MiB"),
    "lines.txt": ("\n" * 1_000_001, "1,000,000 lines"),
    "lines.po": ("\n" * 1_000_001, "1,000,000 lines"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_LARGE)
def test_error_names_the_limit(name: str) -> None:
    content, limit = TOO_LARGE[name]
    with pytest.raises(DataError, match=limit):
        parse_document(name, content.encode())


def test_archive_beyond_the_packing_ratio_is_refused() -> None:
    body = "<w:p><w:r><w:t>One</w:t></w:r></w:p>" + "<w:p/>" * (MIN_RATIO_BYTES // 6)
    with pytest.raises(DataError, match="more than 100 times its size"):
        get_parser("a.docx")(make_docx(body))


def test_small_member_may_have_any_packing_ratio() -> None:
    body = "<w:p><w:r><w:t>One</w:t></w:r></w:p>" + " " * (MIN_RATIO_BYTES // 2)
    assert [unit.source for unit in get_parser("a.docx")(make_docx(body)).units] == ["One"]


def test_more_members_than_the_limit_are_refused() -> None:
    with pytest.raises(DataError, match="20,001 members"):
        get_parser("a.odt")(make_zip({str(number): "" for number in range(20_001)}))


def test_default_value_of_an_attribute_is_refused() -> None:
    doctype = '<!DOCTYPE xliff [<!ATTLIST x a CDATA "one">]>'
    with pytest.raises(DataError, match="default value of the attribute 'a'"):
        get_parser("a.xlf")((doctype + XLIFF.format("")).encode())


def test_large_file_may_have_a_text_in_160_bytes() -> None:
    check_texts(10 * MIN_TEXTS, 160 * 10 * MIN_TEXTS)
    with pytest.raises(DataError, match="1,000,000 texts"):
        check_texts(10 * MIN_TEXTS + 1, 160 * 10 * MIN_TEXTS)


class _EndError(Exception):
    """End of the work."""


LONG_FILES: dict[str, bytes] = {
    "a.xlf": XLIFF.format(UNIT.format("one two") * 500).encode(),
    "a.docx": make_docx("<w:p><w:r><w:t>One</w:t></w:r></w:p>" * 500),
    "a.html": b"<p>one two</p>" * 500,
    "a.json": b"[" + b'"one two",' * 500 + b"1]",
    "a.yaml": b"".join(b"k%d: one two\n" % number for number in range(500)),
    "a.md": b"one two\n\n" * 500,
    "a.po": b'msgid "one"\nmsgstr ""\n\n' * 500,
    "a.srt": b"1\n00:00:01,000 --> 00:00:02,000\none\n\n" * 500,
    "a.txt": b"one two\n\n" * 500,
    "a.properties": b"a = one two\n" * 500,
    "a.strings": b'"a" = "one two";\n' * 500,
}


def build_check(num_calls: int) -> Callable[[], None]:
    """Return a check that ends the work at this call."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == num_calls:
            raise _EndError

    return check


@pytest.mark.parametrize("name", LONG_FILES)
def test_reading_ends_at_any_text(name: str) -> None:
    for num_calls in (1, 100, 400):
        with pytest.raises(_EndError), ended_by(build_check(num_calls)):
            get_parser(name)(LONG_FILES[name])
    assert len(get_parser(name)(LONG_FILES[name]).units) == 500


def test_check_is_that_of_the_context() -> None:
    with ended_by(build_check(2)):
        check_goes_on()
        with ended_by(lambda: None):
            check_goes_on()
        with pytest.raises(_EndError):
            check_goes_on()
    check_goes_on()


MEASURE = """
import resource, sys
from pathlib import Path
from dragoman.documents.formats import get_parser, read_document
from dragoman.errors import DataError
get_parser(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_document(Path(sys.argv[1]))
except DataError as error:
    assert error.code == "input-too-long", error
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def fill(start: str, pattern: str, end: str = "") -> str:
    """Return a file of 16 MiB, most of which repeats a pattern."""
    return start + pattern * (2**24 // len(pattern)) + end


LARGE_FILES = {
    "units.xlf": lambda: fill(XLIFF.partition("{}")[0], UNIT.format("one two <x/> three"), XLIFF.partition("{}")[2]),
    "elements.xlf": lambda: fill("<xliff version='1.2'>", "<x/>", "</xliff>"),
    "newlines.resx": lambda: fill("<root><data name='a'><value>a", "\n", "</value></data></root>"),
    "messages.ts": lambda: fill("<TS><context>", "<message><source>a</source></message>", "</context></TS>"),
    "paragraphs.html": lambda: fill("<html>", "<p>a"),
    "attributes.html": lambda: fill("<p title='>' ", "a=1 ", ">one</p>"),
    "references.html": lambda: fill("<p>", "&amp;", "one</p>"),
    "strings.json": lambda: fill("[", '"a",', "1]"),
    "lists.json": lambda: fill("[", "[],", "1]"),
    "entries.po": lambda: fill("", 'msgid "a"\nmsgstr ""\n\n'),
    "line.txt": lambda: fill("", "one "),
    "paragraphs.txt": lambda: fill("", "one two three four five six\n\n"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
@pytest.mark.parametrize("name", LARGE_FILES)
def test_reading_16_mib_takes_less_than_256_mib(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LARGE_FILES[name](), encoding="utf-8", newline="")
    words = [sys.executable, "-c", MEASURE, str(tmp_path / name)]
    result = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ), check=True)
    assert int(result.stdout) < 256
