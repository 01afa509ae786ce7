"""Limits of reading: memory, counts and the end of the work. The files are larger than anything that people write."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.documents import reading
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.reading import MAX_CHAPTER_PARTS, MAX_CODES, MAX_PARTS, MIN_TEXTS, check_goes_on, check_texts, ended_by
from dragoman.documents.xml_spans import MAX_ELEMENT_BYTES, MAX_NAMES
from dragoman.documents.zip_document import MIN_RATIO_BYTES
from dragoman.errors import DataError
from office_files import make_docx, make_epub, make_odt, make_xlsx

XLIFF = '<xliff version="1.2"><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
UNIT = "<trans-unit><source>{}</source></trans-unit>"

TOO_LARGE: dict[str, tuple[str, str]] = {
    "elements.xlf": (XLIFF.format(UNIT.format("<x/>" * MAX_PARTS)), "200,000 elements"),
    "codes.xlf": (XLIFF.format(UNIT.format("a<x/>" * (MAX_CODES + 1))), "10,000 tags"),
    "attributes.xlf": (XLIFF.format("<trans-unit " + " ".join(f'a{i}=""' for i in range(MAX_NAMES)) + "/>"), "different names"),
    "names.xlf": (XLIFF.format("".join(f"<a{i}/>" for i in range(MAX_NAMES))), "20,000 different names"),
    "breaks.html": ("<p>one" + "<br>" * (MAX_CODES + 2) + "two</p>", "10,000 tags"),
    "attributes.html": ("<p " + "a " * 50_000 + ">one</p>", "10,000 tags"),
    "hidden_attributes.html": ("<p title='>' " + "a " * 50_000 + ">one</p>", "10,000 tags"),
    "strings.json": ("[" + '"a",' * (MIN_TEXTS + 1) + "1]", "100,000 texts"),
    "comment.xlf": (XLIFF.format("<!--" + "a" * (MAX_ELEMENT_BYTES + 2**17) + "-->"), "8 MiB"),
    "unit.xlf": (XLIFF.format(UNIT.format("a" * (MAX_ELEMENT_BYTES + 2**17))), "8 MiB"),
    "lines.txt": ("\n" * 1_000_001, "1,000,000 lines"),
    "braces.ftl": ("a = " + "{}" * 500_001, "1,000,000 characters"),
    "lines.po": ("\n" * 1_000_001, "1,000,000 lines"),
    "objects.json": ("[" + "{}," * (MIN_TEXTS + 1) + "1]", "100,000 texts"),
    "tags.html": (("<p>" + "<b>a</b> " * 100 + "</p>") * 4_001, "400,000 tags"),
    "open_tags.html": (("<p>" + "<b>a " * 100 + "</p>") * 4_001, "400,000 tags"),
    "text.po": ('msgid "' + "one " * 250_001 + '"\nmsgstr ""\n', "1,000,000 characters"),
    "text.html": ("<p>" + "one " * 250_001 + "</p>", "1,000,000 characters"),
    "signs.html": ("<p>" + "< 1 " * 250_001 + "</p>", "1,000,000 characters"),
    "lines.md": ("\n" * 400_001, "400,000 lines"),
    "items.md": ("- a\n" * 50_000, "200,000 elements"),
    "table.md": ("|a|\n|-|\n" + "|b|\n" * 50_000, "200,000 elements"),
    "labels.md": ("".join(f"[a{number}]: /b\n" for number in range(MAX_PARTS + 2)), "200,000 elements"),
    "text.md": ("one " * 125_001, "500,000 characters"),
    "blocks.md": ("<p>a</p>\n\n" * 100_001, "100,000 texts"),
    "brackets.md": ("a [b " * 301, "300 opening brackets"),
    "references.md": ("&" * 100_001, "10,000 tags or other codes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_LARGE)
def test_error_names_the_limit(name: str) -> None:
    content, limit = TOO_LARGE[name]
    with pytest.raises(DataError, match=limit):
        parse_document(name, content.encode())


@pytest.mark.parametrize(("name", "content"), [
    ("a.xlf", XLIFF.format("<group/>" * 20_000)),
    ("a.tmx", f"<tmx version='1.4'><header srclang='en'/><body>{'<tu/>' * 4000}</body></tmx>"),
    ("a.xml", f"<resources>{'<string/>' * 4000}</resources>"),
])  # fmt: skip
def test_file_of_empty_elements_is_refused(name: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_document(name, content.encode()).units == []
    monkeypatch.setattr(reading, "MIN_ELEMENTS", 10_000)
    with pytest.raises(DataError, match=f"{name}: the XML file has more elements than texts need"):
        parse_document(name, content.encode())


def test_archive_beyond_the_packing_ratio_is_refused() -> None:
    body = "<w:p><w:r><w:t>One</w:t></w:r></w:p>" + "<w:p/>" * (MIN_RATIO_BYTES // 6)
    with pytest.raises(DataError, match="more than 100 times its size"):
        get_parser("a.docx")(make_docx(body))


def test_chapter_has_fewer_parts_than_other_elements() -> None:
    body = "<p>one</p>" + "".join(f"<p>{number * 7919 % 9973}</p>" for number in range(MAX_CHAPTER_PARTS // 2))
    with pytest.raises(DataError, match="'body' has more than 80,000 elements"):
        get_parser("a.epub")(make_epub(body))


def test_small_member_may_have_any_packing_ratio() -> None:
    body = "<w:p><w:r><w:t>One</w:t></w:r></w:p>" + " " * (MIN_RATIO_BYTES // 2)
    assert [unit.source for unit in get_parser("a.docx")(make_docx(body)).units] == ["One"]


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


def test_reading_ends_at_any_text(subtests: pytest.Subtests) -> None:
    for name in LONG_FILES:
        with subtests.test(name=name):
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


# Linux gives a new program the `ru_maxrss` of its parent, but a peak of its own in `VmHWM`.
READ_STATUS = """
def read_status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024
"""
MEASURE = """
import sys
from pathlib import Path
from dragoman.documents.formats import get_parser, read_document
from dragoman.errors import DataError
get_parser(sys.argv[1])
before = read_status("VmRSS:")
try:
    read_document(Path(sys.argv[1]))
except DataError as error:
    assert error.code == "input-too-long", error
print(read_status("VmHWM:") - before)
"""


def fill(start: str, pattern: str, end: str = "") -> str:
    """Return a file of 4 MiB, most of which repeats a pattern."""
    return start + pattern * (2**22 // len(pattern)) + end


ASS = "[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,one two "
LARGE_FILES = {
    "units.xlf": lambda: fill(XLIFF.partition("{}")[0], UNIT.format("one two <x/> three"), XLIFF.partition("{}")[2]),
    "elements.xlf": lambda: fill("<xliff version='1.2'>", "<x/>", "</xliff>"),
    "newlines.resx": lambda: fill("<root><data name='a'><value>a", "\n", "</value></data></root>"),
    "messages.ts": lambda: fill("<TS><context>", "<message><source>a</source></message>", "</context></TS>"),
    "paragraphs.html": lambda: fill("<html>", "<p>a"),
    "attributes.html": lambda: fill("<p title='>' ", "a=1 ", ">one</p>"),
    "references.html": lambda: fill("<p>", "&amp;", "one</p>"),
    "strings.json": lambda: fill("[", '"a",', "1]"),
    "escapes.json5": lambda: fill("{a: '", "\\v", "'}"),
    "words.json5": lambda: fill("[", "+1 , ", "]"),
    "word.json5": lambda: fill("[", "+", "]"),
    "lists.json": lambda: fill("[", "[],", "1]"),
    "escapes.json": lambda: fill('["', "\\u00e4", '"]'),
    "letters.arb": lambda: fill('{"a": "', "{a, plural, one {x} other {y}}", '"}'),
    "escapes.po": lambda: fill('msgid "', "\\n", '"\nmsgstr ""\n'),
    "escapes.properties": lambda: fill("a=", "\\u00e4"),
    "escapes.strings": lambda: fill('"a"="', "\\n", '";'),
    "comments.strings": lambda: fill('"a"="b";', "/* a */"),
    "tags.srt": lambda: fill("1\n00:00:01,000 --> 00:00:02,000\n", "<i>a</i>"),
    "braces.ass": lambda: fill(ASS, "{a}"),
    "events.ass": lambda: fill("[Events]\nFormat: Start, End, Text\n", "Dialogue: 0:00:01.00,0:00:02.00,a b\n"),
    "stamps.vtt": lambda: fill("WEBVTT\n\n00:01.000 --> 00:02.000\n", "<00:01.500>a "),
    "segments.tmx": lambda: fill(
        "<tmx version='1.4'><header srclang='en'/><body><tu>", "<tuv xml:lang='en'><seg>a</seg></tuv>", "</tu></body></tmx>"
    ),
    "items.xml": lambda: fill("<resources><string-array name='a'>", "<item>b c</item>", "</string-array></resources>"),
    "entries.po": lambda: fill("", 'msgid "a"\nmsgstr ""\n\n'),
    "rows.csv": lambda: fill("a,b\n", ",\n"),
    "quoted.csv": lambda: fill('a,b\n"', '""', '"\n'),
    "texts.csv": lambda: fill("a,b\n", "one two three four five six,,\n"),
    "selector.ftl": lambda: fill("a = { ", "-", " ->\n    [one] b\n   *[other] c\n}\n"),
    "variant.ftl": lambda: fill("a = { $n ->\n    [one] b", "\n", "   *[other] c\n}\n"),
    "line.txt": lambda: fill("", "one "),
    "paragraphs.txt": lambda: fill("", "one two three four five six\n\n"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", LARGE_FILES)
def test_reading_takes_memory_in_proportion_to_the_file(name: str, tmp_path: Path) -> None:
    """A file of 16 MiB then takes less than 256 MiB. 8 MiB are what the first call imports."""
    (tmp_path / name).write_text(LARGE_FILES[name](), encoding="utf-8", newline="")
    has_most_texts = name in ("entries.po", "events.ass", "paragraphs.txt")  # a larger file is refused after as many
    assert measure_mib(MEASURE, tmp_path / name) < (256 if has_most_texts else 256 / 4 + 8)


def measure_mib(program: str, path: Path) -> int:
    """Return the MiB that a program prints for a file."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((*sys.path, str(Path(__file__).parent)))}
    words = [sys.executable, "-c", READ_STATUS + program, str(path)]
    result = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


MEASURE_TRANSLATION = """
import sys
from pathlib import Path
from document_checks import make_stub
from dragoman.documents.formats import get_parser, read_document
from dragoman.documents.translate_document import DocumentOptions, translate_document
path = Path(sys.argv[1])
options = DocumentOptions("en", "ar", any_language=True)
def translate(document):
    return translate_document(document, get_parser(path.name), make_stub(str.upper), options)
translate(read_document(path.with_stem("small")))
before = read_status("VmRSS:")
document = read_document(path)
result = translate(document)
assert len(result.results) == len(document.units) and all(unit.text for unit in result.results)
print(read_status("VmHWM:") - before)
"""
TEXTS: dict[str, tuple[Callable[[str], bytes], str]] = {
    "docx": (make_docx, "<w:p><w:pPr><w:ind w:left='1'/></w:pPr><w:r><w:t>one {}</w:t></w:r></w:p>"),
    "xlsx": (make_xlsx, "<si><t>one {}</t></si>"),
    "odt": (make_odt, "<text:p>one {}</text:p>"),
    "epub": (make_epub, "<p>one {}</p>"),
    "po": (str.encode, '\nmsgctxt "{0}"\nmsgid "one {0}"\nmsgstr ""\n'),
}


def build_large_file(suffix: str, num_texts: int, num_mib: int) -> bytes:
    """Return a file with so many texts, and so many MiB of comments that compress by less than the allowed ratio."""
    make, text = TEXTS[suffix]
    rng = random.Random(1)
    blocks = num_mib * 2**10 // num_texts

    def make_comment() -> str:
        return f"<!--{''.join(f'{rng.getrandbits(256):<1024}' for _ in range(blocks))}-->" if blocks else ""

    return make("".join(text.format(number) + make_comment() for number in range(num_texts)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("suffix", "num_texts", "num_mib"), [
    ("docx", 1000, 100), ("xlsx", 1000, 100), ("odt", 1000, 100), ("epub", 1000, 7), ("docx", 20_000, 4),
    ("epub", 20_000, 4), ("po", 20_000, 0),
])  # fmt: skip
def test_translation_of_large_files_keeps_the_memory(suffix: str, num_texts: int, num_mib: int, tmp_path: Path) -> None:
    """Five times the texts, the most that a file may have, stay below 256 MiB too, as memory is linear in them."""
    (tmp_path / f"large.{suffix}").write_bytes(build_large_file(suffix, num_texts, num_mib))
    (tmp_path / f"small.{suffix}").write_bytes(build_large_file(suffix, 10, 0))
    limit = 256 if num_texts < 20_000 else 256 / 5 + 25  # 25 MiB are the cache and the window, which do not grow
    assert measure_mib(MEASURE_TRANSLATION, tmp_path / f"large.{suffix}") < limit
