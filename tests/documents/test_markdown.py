"""Markdown files: blocks, inline codes, escapes and wrapping."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from document_checks import check_laws, translate_content
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dragoman.documents import markdown
from dragoman.documents.document import UnitTranslation, check_written, write_document

PAGE = r"""---
layout: Kept
---
# A *big* heading {#anchor}

Some text with `code`, a [link](http://a.b/c_d "Title") and
an ![image *alt*](i.png), <http://auto.link> and **bold [text][ref]**.

> Quoted text that is
> long enough.
>
> - [ ] a task\
>   next line

| Head \| one | Two |
| --- | --- |
| a `x\|y` | **b** |
|  | c |

Setext heading
==============

```python
kept = "code"
```

1. First[^1] &copy; 5 \* 3
2. Second <b>html</b>

[^1]: The note.

[ref]: http://example.org "kept"

<div>kept</div>
"""


def pseudo_translate(text: str) -> str:
    """Return a longer text, with the codes at its ends where they are."""
    return re.sub(r"^((?:<x\d+/>)*)(.*?)((?:<x\d+/>)*)$", r"\1Ŧḗẋŧ * \2 „q“ _ ` [ | 1.\3", text)


def read_sources(text: str) -> list[str]:
    return [unit.source for unit in markdown.parse(text.encode()).units]


def test_units_are_blocks_with_codes() -> None:
    assert [unit.source for unit in check_laws(markdown.parse, PAGE.encode(), pseudo_translate).units] == [
        "A <g1>big</g1> heading",
        "Some text with <x1/>, a <g2>link</g2> and an <x3/>, <x4/> and <g5>bold <g6>text</g6></g5>.",
        "Title",
        "Quoted text that is long enough.",
        "<x1/>a task<br2/>next line",
        "Head | one",
        "Two",
        "a <x1/>",
        "<g1>b</g1>",
        "c",
        "Setext heading",
        "First<x1/> © 5 * 3",
        "Second <g1>html</g1>",
        "The note.",
        "kept",
        "kept",
    ]


def test_texts_of_html_blocks() -> None:
    page = """<p align="center">\n  <img src="a.png" alt="Logo"> <b>Good</b>\n  text\n</p>\n\n<details>\n<summary>More</summary>

Some *text*.\n\n</details>\n\n> <div>Quoted\n> words</div>\n\n<div markdown>*Marks*</div>

<script>var a = "code";</script>\n"""
    document = markdown.parse(page.encode())
    sources = ["Logo", '<img src="a.png" alt="#0"> <b>Good</b> text', "More", "Some <g1>text</g1>."]
    assert [unit.source for unit in document.units] == sources
    texts = ["<Bild>", sources[1].replace("text", "Text"), "Mehr", "Etwas <g1>Text</g1>."]
    translations = {unit.id: UnitTranslation(text) for unit, text in zip(document.units, texts, strict=True)}
    written = write_document(document, translations, "de")
    check_written(document, translations, written, markdown.parse)
    assert b'<img src="a.png" alt="&lt;Bild&gt;"> <b>Good</b> Text\n</p>' in written
    assert b"<summary>Mehr</summary>\n\nEtwas *Text*." in written
    sources = ["Logo", "More", "Some <g1>text</g1>.", "<g1>Marks</g1>"]
    assert [unit.source for unit in markdown.parse_mdx(page.encode()).units] == sources


def test_translation_keeps_codes_and_wraps() -> None:
    document = markdown.parse(PAGE.encode())
    texts = {
        "1": UnitTranslation("Ein <g2>Verweis</g2> mit <x1/> und einem <x3/>, <x4/> und <g5>fett <g6>Text</g6></g5> mehr."),
        "4": UnitTranslation("<x1/>Aufgabe<br2/>Zeile"),
        "7": UnitTranslation("A | B <x1/>"),
    }
    written = write_document(document, texts).decode()
    paragraph = written.split("\n\n")[1]
    assert max(map(len, paragraph.split("\n"))) <= len("an ![image *alt*](i.png), <http://auto.link> and **bold [text][ref]**.")
    assert paragraph.replace("\n", " ") == (
        'Ein [Verweis](http://a.b/c_d "Title") mit `code` und einem ![image *alt*](i.png), <http://auto.link> und '
        "**fett [Text][ref]** mehr."
    )
    assert "> - [ ] Aufgabe\\\n>   Zeile\n" in written
    assert "| A \\| B `x\\|y` | **b** |" in written


@pytest.mark.parametrize(
    ("front", "written"),
    [
        ("---\ntitle: 'It''s'  # note\ntags: [title]\nother: {title: x}\n---\n", ("'It''s'", "'An \"é\"'")),
        ('{\n  "title": "A \\"b\\"",\n  "other": {"summary": 3}\n}\n', ('"A \\"b\\""', '"An \\"é\\""')),
        ('+++\ntitle = """\nA\nb"""\n+++\n', ('"""\nA\nb"""', '"An \\"é\\""')),
        ("+++\ntitle = '''A 'b' c'''\n+++\n", ("'''A 'b' c'''", '"An \\"é\\""')),
        ("---\ntitle: 'It'\n...\n", ("'It'", "'An \"é\"'")),
        ('+++\r\ntitle = "A \\"b\\""\r\n[other]\r\ntitle = "x"\r\n+++\r\n', ('"A \\"b\\""', '"An \\"é\\""')),
    ],
)
def test_titles_of_front_matter_are_translated(front: str, written: tuple[str, str]) -> None:
    document = markdown.parse(f"{front}Text\n".encode())
    assert [unit.id for unit in document.units] == ["title", "0"]
    assert write_document(document, {"title": UnitTranslation('An "é"')}).decode() == f"{front}Text\n".replace(*written)
    check_laws(markdown.parse, document.content, pseudo_translate)


def test_texts_of_home_page_are_translated() -> None:
    front = (
        "---\nhero:\n  name: A\n  actions:\n    - text: B c\n      link: /b\nfeatures:\n  - title: D e\n    details: F g\n---\n"
    )
    assert read_sources(front) == ["B c", "D e", "F g"]


@pytest.mark.parametrize("front", [
    "---\ntitle: [\n---\n", "---\nOne value.\n---\n", "+++\ntitle = 3\n+++\n", '+++\na = """\ntitle = "x"\n"""\n+++\n',
    # Python reads integers of at most 4,300 digits.
    f'{{\n"title": "A",\n"b": {"1" * 4301}\n}}\n', f'+++\ntitle = "A"\nb = {"1" * 4301}\n+++\n',
])  # fmt: skip
def test_other_front_matter_is_kept(front: str) -> None:
    assert read_sources(f"{front}Text\n") == ["Text"]


SPECIAL = st.text(st.sampled_from("ab1 \\`*_[]<>&;#|~!-+=.:(){}$%é\"'/"), min_size=1, max_size=12)


@given(SPECIAL, st.integers(0, 12))
@example("{:}", 0)
def test_any_text_reads_as_written(text: str, number: int) -> None:
    assume("${" not in text)  # a text of placeholders alone, such as `${ x }`, is not translated
    document = markdown.parse(PAGE.encode())
    unit = document.units[number]
    text = " ".join(f"{text} x {text}".split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    codes = "".join(part for part in markdown._TAG.split(unit.source)[1::2])
    translations = {unit.id: UnitTranslation(text if not codes else unit.source.replace("o", text).replace("a", text))}
    check_written(document, translations, write_document(document, translations), markdown.parse)


PIECES = st.sampled_from(
    ["# ", "- ", "> ", "1. ", "\n", "\n\n", "text", " ", "*", "**", "_", "`", "``", "[a](b)", "[a][r]", "![a](b 'c')", "<b>",
     "&amp;", "\\*", "  \n", "\\\n", "|", "\n|--|--|\n", "~~", "```\n", "    ", "<http://a.b>", "[r]: x\n", "é", "\t", "---\n",
     "[", "]", "(", ")"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25))
def test_any_markup_obeys_the_laws(pieces: list[str]) -> None:
    content = "".join(pieces).encode()
    document = markdown.parse(content)
    assert write_document(document, {}) == content


@pytest.mark.slow
def test_the_documentation_of_dragoman_obeys_the_laws() -> None:
    paths = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
    assert len(paths) > 20
    for path in paths:
        check_laws(markdown.parse, path.read_bytes(), pseudo_translate)


@pytest.mark.parametrize("content", [
    "See \\<. and \\<T>, \\{a\\}, \\#1, a\\@b.org, \\:a\\: and a\\^b\n",
    "![A red\ncat](a.svg)\n",
    "[![A red\ncat](a.svg)](b) and ![one](c)\n",
])  # fmt: skip
def test_signs_of_programs_and_broken_descriptions_stay(content: str) -> None:
    """MDX reads `<.` as a tag, and GitHub `#1` and `:a:` as codes. They have no meaning where the file escapes them."""
    document = check_laws(markdown.parse, content.encode())
    translations = {unit.id: UnitTranslation(unit.source.replace("and", "and a")) for unit in document.units}
    assert " ".join(write_document(document, translations).decode().split()) == " ".join(
        content.replace("and", "and a").split()
    )


@pytest.mark.parametrize("end", ["", "[]", "[red cat]"])
def test_link_keeps_its_label_when_its_text_changes(end: str) -> None:
    content = f"See the [red cat]{end} and *the* [red cat]{end}.\n\n[red cat]: /a.md\n"
    document = markdown.parse(content.encode())
    (unit,) = document.units
    for changed, expected in ((unit.source, content), (unit.source.replace("red", "blue", 1), "")):
        translations = {unit.id: UnitTranslation(changed)}
        written = write_document(document, translations, "de")
        check_written(document, translations, written, markdown.parse)
        expected = expected or content.replace(f"[red cat]{end}", "[blue cat][red cat]", 1)
        assert written.decode() == expected


def test_code_of_programs_is_written_as_it_is() -> None:
    text = "Delete *.txt with --all, call a[i] or Map<String, List<T>> in C:\\dir"
    written = translate_content("a.md", text, str.swapcase).content
    assert written.decode() == "dELETE *.txt WITH --all, CALL a[i] OR Map<String, List<T>> IN C:\\dir"


def test_elements_of_html_in_a_text_are_pairs_or_points(subtests: pytest.Subtests) -> None:
    for text, source in {
        "Press <kbd>Ctrl</kbd>+<kbd>C</kbd> now": "Press <x1/>+<x2/> now",
        "The <b>big *red* <i>car</i></b> stops": "The <g1>big <g2>red</g2> <g3>car</g3></g1> stops",
        "A *b <b>c* d</b> e": "A <g1>b <x2/>c</g1> d<x3/> e",
        "A <b>c <i>d</b> e": "A <g1>c <x2/>d</g1> e",
        'A <a id="x"></a>b 10<sup>6</sup> <br> <u>10</u>': "A <x1/>b 10<x2/> <br3/> <g4>10</g4>",
        "A <code>b *c*</code> [d <x>e](f) g</x>": "A <x1/> <g2>d <x3/>e</g2> g<x4/>",
    }.items():
        with subtests.test(text):
            assert read_sources(text) == [source]
            check_laws(markdown.parse, text.encode())


def test_descriptions_of_images_are_pairs(subtests: pytest.Subtests) -> None:
    """A description with markup, one without letters, and one that names the image by its reference are points."""
    for text, source in {
        'See ![a \\[red\\] dog](d.png "5") &amp; run': "See <g1>a [red] dog</g1> &amp; run",
        "[![Build](b.svg)](/c)": "<g1><g2>Build</g2></g1>",
        "![First badge](b.svg)\n![Second\nbadge](d.svg)": "<g1>First badge</g1> <g2>Second badge</g2>",
        "A ![](d.png) b ![2](e.png) c ![*d* e](f.png) g": "A <x1/> b <x2/> c <x3/> g",
        "A ![dog] b ![dog][] c ![cat][dog] d\n\n[dog]: /d.png": "A <x1/> b <x2/> c <g3>cat</g3> d",
    }.items():
        with subtests.test(text):
            assert read_sources(text) == [source]
            check_laws(markdown.parse, text.encode())


def test_anchors_of_headings_are_outside_of_the_text(subtests: pytest.Subtests) -> None:
    """The text of a heading is the same with and without the anchor that a translation gets."""
    for text in ('# <a id="x"></a><a name="y"></a>B *c*', "# B *c* {#x .y}", "B *c* {: #x}\n===", '## <a id="x"></a>B *c* ##'):
        with subtests.test(text):
            assert read_sources(text) == ["B <g1>c</g1>"]
            check_laws(markdown.parse, text.encode())
    assert read_sources('# <a id="x"></a>\n\n# {#x}\n\nA {#x}\n') == ["A<x1/>"]


@pytest.mark.parametrize("content", [
    '[the cat](b "A \\"title\\"") ![a cat](c.png \'The title\') and "The title" [![x y](d (See \\) me))](e "The end").\n',
    '> long [text\n> goes](b\n> "Two\n> lines")\n\n![](c.png "Only a title")\n',
    '| Head | [a cell](b "A \\| sign") |\n|--|--|\n| `a "b"` | ![](c "The sign") |\n',
    'See [ref].\n\n[ref]: /x "The \\" title"\n[other]:\n  <b c>\n  (Another)\n> [third]: /z \'The third\'\n',
    'An <abbr title="A &quot;b&quot;">HTML</abbr> <a href="x"><img alt="The dog" src="y"></a> here.\n',
])  # fmt: skip
def test_titles_are_texts_of_their_own(content: str) -> None:
    """They are written into new and into old texts."""
    document = check_laws(markdown.parse, content.encode(), lambda text: text.replace("e", "e\" ' ) \\ | &lt; "))
    titles = {unit.id: UnitTranslation(unit.source) for unit in document.units if unit.context}
    assert len(titles) > 1
    written = write_document(document, titles).decode()
    assert written.replace("\n> lines", " lines").split() == content.replace("\n> lines", " lines").split()


def test_titles_in_code_and_of_data_stay() -> None:
    for text in ('`[a](b "A title")` [c](d "5")', '`<a title="A b">`', '<code title="A b">c</code>', '    ![](a "B c")'):
        assert not [unit for unit in markdown.parse(text.encode()).units if unit.context], text
