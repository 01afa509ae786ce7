"""Plain text: paragraphs, lists, wrapping and encodings."""

from __future__ import annotations

import textwrap

import pytest
from document_checks import check_laws, translate_content
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import plain_text
from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.formats import parse_document
from dragoman.documents.reading import MAX_TEXT
from dragoman.documents.unit_selection import list_selected

TEXT = """TITLE

This paragraph is wrapped at a column, so that its lines are
one text, and a translation of it is wrapped there again as
well.

A poem
has lines
of its own that are longer

  - An item that is also wrapped at the column where others
    are wrapped.
  - Two
  3) Three
* * *

The last line"""


def test_units_are_paragraphs_items_and_lines() -> None:
    assert [unit.source for unit in check_laws(plain_text.parse, TEXT.encode()).units] == [
        "TITLE",
        "This paragraph is wrapped at a column, so that its lines are one text, and a translation of it is wrapped there again "
        "as well.",
        "A poem\nhas lines\nof its own that are longer",
        "An item that is also wrapped at the column where others are wrapped.",
        "Two",
        "Three",
        "The last line",
    ]


def test_translation_is_wrapped_with_its_indent() -> None:
    document = plain_text.parse(TEXT.encode())
    written = write_document(
        document, {"3": UnitTranslation("Ein Punkt - der auch an der Spalte umbrochen ist, wie die anderen.")}
    )
    assert "  - Ein Punkt - der auch an der Spalte umbrochen ist, wie\n    die anderen.\n  - Two\n" in written.decode()


@given(st.lists(st.text(st.sampled_from("abc -*.1)\t"), max_size=200), max_size=6), st.integers(30, 130))
def test_any_text_obeys_the_laws(paragraphs: list[str], width: int) -> None:
    content = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs).encode()
    check_laws(plain_text.parse, content, lambda text: f"Ŧext {text} end")


def test_formula_of_variables_is_no_language() -> None:
    document = plain_text.parse(b"a \xc3\xb7 b = c\n\nx = 10\n\nI am here\n\nA - B\n\nx = 2.5\n")
    assert [unit.source for unit in list_selected(document, "all")] == ["I am here", "A - B", "x = 2.5"]


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_long_paragraph_is_translated_in_parts(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_text, "MAX_CHARACTERS", 200)
    content = separator.join(f"The rain fell on town {number}." for number in range(100))
    translation = translate_content("book.txt", content, lambda text: text.replace("rain", "snow"))
    assert translation.content.decode() == content.replace("rain", "snow")
    sources = [result.unit.source for result in translation.results]
    assert max(map(len, sources)) < 200 + len("The rain fell on town 100.\n")
    assert {source[-1] for source in sources} == {"."}


@pytest.mark.parametrize("text", ["a", "雨", "雨。", "It fell. ", "It fell.\n"])
def test_paragraph_beyond_one_text_is_read(text: str) -> None:
    content = text * (MAX_TEXT // len(text) + 1)
    document = parse_document("book.txt", content.encode())
    translations = {unit.id: UnitTranslation(unit.source.upper()) for unit in document.units}
    assert write_document(document, translations).decode() == content.upper()
