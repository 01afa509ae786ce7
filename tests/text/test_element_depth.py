"""The depth of elements in HTML is limited, in texts and in files."""

from __future__ import annotations

import pytest

from dragoman.documents.formats import parse_document
from dragoman.text.element_depth import MAX_ELEMENT_DEPTH
from dragoman.text.inline_codes import read_inline
from expected_errors import raises_code


def nest(name: str, depth: int) -> str:
    return f"<{name}>" * depth + "Text" + f"</{name}>" * depth


@pytest.mark.parametrize("name", ["b", "div"])
def test_elements_deeper_than_the_limit_are_refused(name: str) -> None:
    read_inline(nest(name, MAX_ELEMENT_DEPTH), "html")
    parse_document("a.html", nest(name, MAX_ELEMENT_DEPTH).encode())
    with raises_code("invalid-format"):
        read_inline(nest(name, MAX_ELEMENT_DEPTH + 1), "html")
    with raises_code("invalid-format"):
        parse_document("a.html", nest(name, MAX_ELEMENT_DEPTH + 1).encode())


def test_elements_without_end_tags_do_not_count() -> None:
    page = "<ul>" + "<li>Text" * (2 * MAX_ELEMENT_DEPTH) + "</ul>"
    read_inline(page, "html")
    assert len(parse_document("a.html", page.encode()).units) == 2 * MAX_ELEMENT_DEPTH
