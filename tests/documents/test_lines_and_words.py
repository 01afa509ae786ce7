"""Tests of lines between breaks and of codes inside words in all formats, with a function in place of the model."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from document_checks import OPTIONS, make_stub, translate_content

from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import translate_document
from office_files import make_docx, make_epub, make_odt, make_pptx, read_members

SCRIPT = '<w:rPr><w:vertAlign w:val="{}"/></w:rPr>'
SUPERSCRIPT = (
    '<style:style style:family="text" style:name="T1"><style:text-properties style:text-position="super 58%"/></style:style>'
)
CAP = '<w:framePr w:dropCap="drop" w:lines="3"/>'
BASELINE = '<a:rPr baseline="{}"/>'


def translate(name: str, content: bytes) -> str:
    """Return a file with German dates, if no text is flagged; the members of an archive one after the other."""
    result = translate_content(name, content, lambda line: re.sub(r"May (\d+)(?:th)?, (\d+)", r"\1. Mai \2", line))
    assert [text for text in result.results if text.flags] == []
    if not result.content.startswith(b"PK"):
        return result.content.decode()
    return "".join(member.decode("utf-8", "replace") for member in read_members(result.content).values())


def run(text: str, properties: str = "") -> str:
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return f"<w:r>{properties}<w:t{space}>{text}</w:t></w:r>"


def drawn(text: str, properties: str = "") -> str:
    return f"<a:r>{properties}<a:t>{text}</a:t></a:r>"


FIRST, SECOND, NEW_FIRST, NEW_SECOND = "May 17, 2031", "May 18, 2031", "17. Mai 2031", "18. Mai 2031"
BREAKS = {
    "a.html": "<p>{}<br>\n{}<br/></p>",
    "b.html": "<p>See <b>{}<br>{}</b> now</p>",
    "a.md": "{}\\\n{}  \nEnd\n",
    "b.md": "| x |\n| - |\n| {}<br>{} |\n\nEnd <br /> x\n",
    "a.json": '{{"a": "{}\\t{}"}}',
    "a.txt": "{}\t{}\n",
    "a.vtt": "WEBVTT\n\n00:01.000 --> 00:09.000\n- {}\n- {}\n",
    "a.xlf": (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file><body><trans-unit id="1">'
        '<source>{}<x id="1" ctype="lb"/>{}</source></trans-unit></body></file></xliff>'
    ),
    "a.xml": '<resources><string name="a">{}<br/>{}</string></resources>',
}
PACKAGES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "a.docx": (make_docx, "<w:p><w:r><w:t>{}</w:t><w:br/><w:t>{}</w:t></w:r></w:p>"),
    "b.docx": (make_docx, "<w:p><w:r><w:tab/><w:t>{}</w:t><w:tab/></w:r><w:r><w:cr/></w:r><w:r><w:t>{}</w:t></w:r></w:p>"),
    "c.docx": (
        make_docx,
        "<w:p><w:hyperlink><w:r><w:t>{}</w:t></w:r><w:r><w:tab/></w:r><w:r><w:t>{}</w:t></w:r></w:hyperlink></w:p>",
    ),
    "a.pptx": (make_pptx, "<a:p><a:r><a:t>{}</a:t></a:r><a:br/><a:r><a:t>{}</a:t></a:r></a:p>"),
    "a.odt": (make_odt, "<text:p>{}<text:line-break/>{}</text:p>"),
    "b.odt": (make_odt, "<text:p><text:span>{}<text:tab/>{}</text:span></text:p>"),
    "a.epub": (make_epub, "<p>{}<br/>\n{}</p>"),
}


def test_lines_are_texts_of_their_own(subtests: pytest.Subtests) -> None:
    for name in [*BREAKS, *PACKAGES]:
        with subtests.test(name=name):
            make, form = PACKAGES.get(name) or (str.encode, BREAKS[name])
            content = make(form.format(FIRST, SECOND))
            expected = form.format(NEW_FIRST, NEW_SECOND)
            written = translate(name, content if isinstance(content, bytes) else content.encode()).replace("\\. Mai", ". Mai")
            assert written.count(NEW_FIRST) == written.count(NEW_SECOND) == 1
            breaks = re.compile(r"<br ?/?>|\\\n|\\t|(?<=31)(?:\t|\n- )|<w:(?:br|tab|cr)/>|<a:br/>|<text:(?:line-break|tab)/>")
            assert breaks.findall(written) == breaks.findall(expected)


def test_sentence_runs_over_a_soft_break() -> None:
    for name, content in (
        ("a.html", b"<p>It was on May\n  17, 2031.</p>"),
        ("b.html", b"<p>It was <br>on May 17, 2031.</p>"),
        ("a.md", b"It was on May\n17, 2031.\n"),
        ("a.docx", make_docx("<w:p><w:r><w:t>It was</w:t><w:br/><w:t>on May 17, 2031.</w:t></w:r></w:p>")),
    ):
        assert len(parse_document(name, content).units) == 1, name
        assert "17. Mai" in translate(name, content).replace("\\.", "."), name


def test_sentence_runs_over_a_break_in_an_element() -> None:
    for text in (
        "see {0}two<br>lines{1} here",
        "{0}two<br>lines{1} are here",
        "see {0}two<br>lines{1}",
        "a {0}b<br>c{1} d<br>E",
    ):
        for name, form, tags in (
            ("a.html", "<p>{}</p>", ("<b>", "</b>")),
            ("a.md", "{}\n", ("**", "**")),
            ("a.md", "{}\n", ("[", "](x)")),
        ):
            seen: list[str] = []
            document = parse_document(name, form.format(text.format(*tags)).encode())
            written = translate_document(document, get_parser(name), make_stub(lines=seen), OPTIONS).content
            expected = text.upper().replace("<BR>", "<br>").format(*tags)
            assert written.decode() == form.format(expected), (name, text)
            sentence = text.removesuffix("<br>E").format("", "").replace("<br>", " ")
            assert sentence in seen, (name, text, seen)


def test_lines_of_an_element_alone_are_texts() -> None:
    seen: list[str] = []
    content = b"<p><b>two<br>lines</b></p><p>see <b>Three<br>Lines</b></p>"
    document = parse_document("a.html", content)
    translate_document(document, get_parser("a.html"), make_stub(lines=seen), OPTIONS)
    assert set(seen) == {"two", "lines", "see", "Three", "Lines"}


@pytest.mark.parametrize("name", ["a.html", "a.md", "a.docx", "a.pptx", "a.odt", "a.epub"])
def test_noun_after_a_soft_break_is_written(name: str) -> None:
    """A line that begins in upper case would be read as a text of its own in the written file."""
    make, form = PACKAGES.get(name, (str.encode, "{}\\\n{}\n\n" if name == "a.md" else "<p>{}<br>{}</p>"))
    form *= 2
    words = {"This is the": "Das ist das", "house of mine.": "Haus von mir.", "In May": "im Mai", "In June": "im Juni"}
    content = make(form.format(*words))
    result = translate_content(name, content, lambda line: re.sub("|".join(words), lambda match: words[match[0]], line))
    assert [text.flags for text in result.results if not text.text] == []
    contents = [result.content] if not result.content.startswith(b"PK") else read_members(result.content).values()
    others = re.compile(r"<(?!(?:w:|a:)?br|text:line-break)[^<>]*>|\s")
    written = [others.sub("", content.decode("utf-8", "replace")) for content in contents]
    assert any(others.sub("", form.format(*words.values())) in content for content in written)


WORDS = {
    "a.html": ("<p>{}<sup>1</sup></p>", "<p>{}<sup>1</sup></p>"),
    "b.html": ('<p>{}<a href="#n5">5</a></p>', '<p>{}<a href="#n5">5</a></p>'),
    "c.html": ('<p><span class="dropcap">M</span>ay 17, 2031</p>', '<p><span class="dropcap">1</span>7. Mai 2031</p>'),
    "d.html": ("<p>May 17<sup>th</sup>, 2031</p>", "<p>17. Mai 2031</p>"),
    "e.html": ("<p>H<sub>2</sub>O of {}</p>", "<p>H<sub>2</sub>O of {}</p>"),
    "a.docx": (run(FIRST) + run("1", SCRIPT.format("superscript")), run(NEW_FIRST) + run("1", SCRIPT.format("superscript"))),
    "b.docx": (run("May 17") + run("th", SCRIPT.format("superscript")) + run(", 2031"), run(NEW_FIRST)),
    "c.docx": (
        run("H") + run("2", SCRIPT.format("subscript")) + run("O of " + FIRST),
        run("H") + run("2", SCRIPT.format("subscript")) + run("O") + run(" of " + NEW_FIRST),
    ),
    "d.docx": (run("M", "<w:rPr><w:b/></w:rPr>") + run("ay 17, 2031"), run("1", "<w:rPr><w:b/></w:rPr>") + run("7. Mai 2031")),
    "e.docx": (
        f"<w:pPr>{CAP}</w:pPr>{run('M')}</w:p><w:p>{run('ay 17, 2031')}",
        f"<w:pPr>{CAP}</w:pPr>{run('1')}</w:p><w:p>{run('7. Mai 2031')}",
    ),
    "a.pptx": (drawn(FIRST) + drawn("1", BASELINE.format(30000)), drawn(NEW_FIRST) + drawn("1", BASELINE.format(30000))),
    "a.odt": (
        f'{SUPERSCRIPT}<text:p>{{}}<text:span text:style-name="T1">1</text:span></text:p>',
        '<text:p>{}<text:span text:style-name="T1">1</text:span></text:p>',
    ),
    "a.epub": ("<p>{}<sup><a href='#n'>1</a></sup></p>", "<p>{}<sup><a href='#n'>1</a></sup></p>"),
}


def test_marks_and_first_letters_do_not_divide_words(subtests: pytest.Subtests) -> None:
    for name in WORDS:
        with subtests.test(name=name):
            source, expected = WORDS[name]
            make, _ = PACKAGES.get(f"a.{name.partition('.')[2]}", (str.encode, ""))
            paragraph = {"docx": "<w:p>{}</w:p>", "pptx": "<a:p>{}</a:p>"}.get(name.partition(".")[2], "{}")
            content = make(paragraph.format(source.format(FIRST)))
            assert expected.format(NEW_FIRST) in translate(name, content)
