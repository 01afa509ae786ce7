"""HTML files: blocks, attributes, kept elements and the language of the page."""

from __future__ import annotations

import pytest
from document_checks import check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import html_file
from dragoman.documents.document import UnitTranslation, UnwritableUnitsError, check_written, has_same_tags, write_document
from dragoman.errors import DataError

PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>The &amp; title</title>
<meta name="description" content="A page"><style>p { color: red }</style></head>
<body class="a">
<!-- a comment -->
<h1>Hello   <b>big</b>
  world</h1>
<p>An image <img src=a.png alt="Red &quot;box&quot;" title='Box'> and <a href="x" title="Link">a link</a>.
<p translate="no">Kept</p>
<pre>kept  too</pre> <script>if (a < b) { c("<p>no</p>") }</script>
<ul><li>One<li>Two <code>x = 1</code></ul>
<input type="submit" value="Send"><input type="text" value="Kept"><br>
<p>123 <b>4</b></p>
<img alt="Alone" src="b">
<p><a href="x"
  title="In two lines">two</a>
</body></html>
"""


def read_sources(page: str) -> list[str]:
    return [unit.source for unit in html_file.parse(page.encode()).units]


def test_units_are_blocks_and_attributes() -> None:
    document = check_laws(html_file.parse, PAGE.encode())
    assert document.source_language == "en"
    assert [unit.source for unit in document.units] == [
        "The &amp; title",
        "A page",
        "Hello <b>big</b> world",
        'Red "box"',
        "Box",
        "Link",
        """An image <img src=a.png alt="#3" title='#4'> and <a href="x" title="#5">a link</a>.""",
        "One",
        "Two <code>x = 1</code>",
        "Send",
        "Alone",
        "In two lines",
        '<a href="x"\n  title="#12">two</a>',
    ]


def test_kept_texts_that_readers_see_are_counted() -> None:
    page = (
        "<p>a</p><textarea>Write here</textarea><textarea> 1 </textarea><template><p>Some <b>text</b></p></template>"
        "<svg><style>a {color: red}</style><title>A circle</title><path/></svg><pre>code</pre><script>let b;</script>"
    )
    expected = {"texts in textarea": 1, "texts in template": 2, "texts in svg": 1}
    assert html_file.parse(page.encode()).skipped == expected


def test_attributes_of_kept_elements_are_texts() -> None:
    page = (
        '<p>One <iframe title="a film">x</iframe> two</p><textarea placeholder="write">x</textarea>'
        '<iframe lang="fr" title="un"></iframe><style title="kept"></style><p translate="no" title="kept">It</p><p>three</p>'
    )
    document = check_laws(html_file.parse, page.encode())
    assert [unit.source for unit in document.units] == ["One", "a film", "two", "write", "un", "three"]
    assert {unit.source: unit.language for unit in document.units if unit.language} == {"un": "fr"}


def test_labels_of_options_and_tracks_are_texts() -> None:
    page = '<select><optgroup label="Big"><option label="One" value="1"></optgroup></select><track label="Two" kind="captions">'
    assert read_sources(page) == ["Big", "One", "Two"]


def test_translation_keeps_everything_else() -> None:
    document = html_file.parse(PAGE.encode())
    texts = {unit.id: UnitTranslation(unit.source.replace("a link", "un lien")) for unit in document.units}
    texts |= {"3": UnitTranslation('Boîte "rouge" <&>')}
    written = write_document(document, texts, "fr").decode()
    expected = PAGE.replace("Hello   <b>big</b>\n  world", "Hello <b>big</b> world").replace('lang="en"', 'lang="fr"')
    expected = expected.replace("Red &quot;box&quot;", "Boîte &quot;rouge&quot; &lt;&amp;&gt;").replace("a link", "un lien")
    assert written == expected


def test_missing_characters_become_references() -> None:
    page = PAGE.replace("utf-8", "iso-8859-1").encode("latin-1")
    document = check_laws(html_file.parse, page, lambda text: f"é „{text}“ Привет")
    written = write_document(document, {"2": UnitTranslation("Привет é"), "3": UnitTranslation("Łó")})
    assert b"<h1>&#1055;&#1088;&#1080;&#1074;&#1077;&#1090; \xe9</h1>" in written
    assert b'alt="&#321;\xf3"' in written


PIECES = st.sampled_from(
    ["<p>", "</p>", "<b>", "</b>", "<br>", "<div>", "</div>", "<!-- c -->", "<img alt='a b'>", "text", " ", "\n", "&lt;",
     "<", "<a title=\"t\" href=x>", "</a>", "<script>", "</script>", "<li>", "&", "<x/>", "<![CDATA[x]]>", "<pre>", "</pre>",
     "é", ">"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30))
def test_any_markup_obeys_the_laws(pieces: list[str]) -> None:
    check_laws(html_file.parse, ("<html>" + "".join(pieces)).encode(), lambda text: f"X {text} Ŧ")


@pytest.mark.parametrize(
    "page",
    [
        "<p>Use <code>{% if x %}</code> here.</p>",
        "<pre>{% if x %}</pre><p>Text</p>",
        "<script>f('<%= x %>')</script><p>Text</p>",
        "<!-- {% x %} --><p>Text</p>",
        "<p>Text {%d} {% x</p>",
    ],
)
def test_shown_template_code_is_kept(page: str) -> None:
    check_laws(html_file.parse, page.encode(), lambda text: text.replace("Text", "Ţext").replace("here", "hier"))


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ("<p>Text</p>\n<p>{% if x %}Text{% end %}</p>", "{% if x %}Text{% end %}</p>"),
        ("<p>Text</p>\n<p class='{% x %}'>Text</p>", "{% x %}'>Text</p>"),
        ("<p>Text</p>\n<p><%= x %></p>", "<%= x %></p>"),
        ("<p><code>Text</p>\n<p>{% x %}</p>", "{% x %}</p>"),
        ("Text\n{% include 'a' %}", "{% include 'a' %}"),
        ("<p>Text</p>\n<?php echo 1 ?>", "<?php echo 1 ?>"),
    ],
)
def test_template_is_refused_with_its_line(page: str, code: str) -> None:
    with pytest.raises(DataError, match="line 2: ") as caught:
        html_file.parse(page.encode())
    assert repr(code) in str(caught.value)


@pytest.mark.parametrize(
    ("after", "texts", "is_kept"),
    [
        ("<p>Eins <b>zwei</b></p>\n<p>drei</p>", ["Eins <b>zwei</b>", "drei"], True),
        ('<p lang="de">Eins <b>zwei</b></p>\n<p>drei</p>', ["Eins <b>zwei</b>", "drei"], True),
        ("<p>Eins &amp; <b>zwei</b></p>\n<p>drei</p>", ["Eins & <b>zwei</b>", "drei"], True),
        ("<p>Eins <b>zwei</b></p>\n<p>drei</p>", ["Eins <b>zwei</b>"], False),
        ("<p>Eins <b>zwei</b></p>\n<p>drei</p>", ["Eins <b>zwei</b>", "drei", "vier"], False),
        ("<p>Eins <b>zwei</b></p>\n<p>drei drei</p>", ["Eins <b>zwei</b>", "drei"], False),
        ("<p><b>zwei</b> Eins</p>\n<p>drei</p>", ["<b>zwei</b> Eins", "drei"], False),
        ("<p>Eins <i>zwei</i></p>\n<p>drei</p>", ["Eins <i>zwei</i>", "drei"], False),
        ("<p>Eins <b>zwei</b></p>\n<p>3</p>", ["Eins <b>zwei</b>", "3"], False),
        ("<p>Eins <b>&nbsp;</b></p>\n<p>drei</p>", ["Eins <b>&nbsp;</b>", "drei"], False),
        ("<p>Eins <b>&lt;b&gt;</b></p>\n<p>drei</p>", ["Eins <b>&lt;b&gt;</b>", "drei"], False),
        ("<p>Eins < 2 <b>zwei</b></p>\n<p>drei</p>", ["Eins < 2 <b>zwei</b>", "drei"], False),
        ("<p>Eins <b>zwei</b></p>\n<p></p>", ["Eins <b>zwei</b>"], False),
    ],
)
def test_same_tags_prove_that_no_text_is_lost(after: str, texts: list[str], is_kept: bool) -> None:
    assert has_same_tags(["<p>One <b>two</b></p>", "\n<p>three</p>"], [after], texts) is is_kept


@pytest.mark.parametrize(("source", "translation", "is_kept"), [
    ("One <b>two</b>", "Eins <b>two</b>", True),
    ('One <a title="x > y">two</a>', 'Eins <a title="x > y">two</a>', False),
    ("One <!-- <b> --> two", "Eins <!-- <b> --> two", False),
    ("One</p><script>if (a < b) c()</script><p>two", "Eins", False),
    ("One</p><pre>two</pre><p>three", "Eins", False),
    ("One <b>two</b> <i>three</i>", "<i>Drei</i> eins <b>zwei</b>", True),
    ("One <b>two</b><br/>three", "<br/>Eins drei <b>zwei</b>", False),
    ('One <b>two</b> <i lang="fr">trois</i>', '<i lang="fr">trois</i> eins <b>zwei</b>', False),
    ("One <b>two</b> <i>three</i>", "<i>1</i> 2 <b>3</b>", False),
    ("One <b>two</b> <i>three</i>", "<i>Drei</i> eins", False),
])  # fmt: skip
def test_written_page_is_read_again_unless_its_tags_are_plain(source: str, translation: str, is_kept: bool) -> None:
    document = html_file.parse(f"<p>First.</p><p>{source}</p><p>Last.</p>".encode())
    translations = {"1": UnitTranslation(translation)}
    content = write_document(document, translations)
    assert document.keeps_tags is not None
    assert document.keeps_tags(content, translations) is is_kept


def test_page_that_lost_or_doubled_a_text_is_no_good_one() -> None:
    page = b"<p>One <b>two</b></p><p>three</p>"
    document = html_file.parse(page)
    for old, new in ((b"three", b""), (b"three", b"three three"), (b"<b>two</b>", b"two two"), (b"three", b"four")):
        with pytest.raises(UnwritableUnitsError):
            check_written(document, {}, page.replace(old, new), html_file.parse)
