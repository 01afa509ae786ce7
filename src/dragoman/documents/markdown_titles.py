"""Titles in Markdown: those of links, pictures and definitions, and the attributes of elements and shortcodes that readers see.

A title inside a text is a unit of its own. If both change, the title is written into the new text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from dragoman.documents.document import Edit, apply_ordered_edits
from dragoman.text.no_language import is_data

Span = tuple[int, int]

COMPONENT = re.compile(
    r"<[A-Za-z][^<>]*+>|\{\{[<%][^{}]*+\}\}|\{%-?[ \t]*+include\b[^{}%]*+%\}|(?m:^)[ \t>]*+:{3,}[^{}\n]*+\{[^{}\n]*+\}"
)
"""Tag of an element or a component, shortcode of Hugo, include of Jekyll, or start of a container."""
_NAMES = r"(?<![\w:.@-])(title|alt|placeholder|aria-label|caption|label)\s*+=\s*+"
_ATTRIBUTE = re.compile(rf"""{_NAMES}(["'])((?:(?!\2)[^\n])*+)\2""")
_SHORTCODE_ATTRIBUTE = re.compile(rf"""{_NAMES}(["'])((?:\\[^\n]|(?!\2)[^\n\\])*+)\2""")
_DEFINITION = re.compile(
    r"""\[(?:\\.|[^\[\]\\])*+\]:[ \t]*+\n?[ \t]*+(?:<[^<>\n]*+>|[^\s<]\S*+)\s++"""
    r"""("(?:\\.|[^"\\])*+"|'(?:\\.|[^'\\])*+'|\((?:\\.|[^()\\])*+\))\s*+""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])|&(?:#\w{1,8}|\w{1,32});")


@dataclass(frozen=True, slots=True)
class Title:
    """Title with letters.

    Attributes:
        text: the title as readers see it
        start, end: its characters
        code: characters of the code that has it: a tag, a shortcode, or the end of a link
        escape: function that writes a text as the title
    """

    text: str
    start: int
    end: int
    code: Span
    escape: Callable[[str], str]


def read_title(content: str, span: Span, code: Span) -> Iterator[Title]:
    """Yield the title of a link. span: its characters, with quotation marks"""
    start, end = span[0] + 1, span[1] - 1
    text = _ESCAPE.sub(lambda match: match[1] or html.unescape(match[0]), content[start:end])
    marks = "()" if content[end] == ")" else content[end]
    special = re.compile(rf"[{marks}]|\\(?=[!-/:-@\[-`{{-~]|$)|&(?=#?\w+;)")
    if any(map(str.isalpha, text)):
        yield Title(" ".join(text.split()), start, end, code, lambda new: special.sub(r"\\\g<0>", new))


def read_definition(content: str, first: int, last: int) -> Iterator[Title]:
    """Yield the title of the definition of a link in lines. first, last: their characters"""
    match = _DEFINITION.fullmatch(content, max(content.find("[", first, last), 0), last)
    if match is not None:
        yield from read_title(content, match.span(1), match.span(1))


def read_attributes(content: str, code: Span) -> Iterator[Title]:
    """Yield the texts in the attributes of a tag or a shortcode. code: its characters"""
    is_tag = content[code[0]] == "<"
    for match in (_ATTRIBUTE if is_tag else _SHORTCODE_ATTRIBUTE).finditer(content, *code):
        text = html.unescape(match[3]) if is_tag else re.sub(r"\\(.)", r"\1", match[3])
        if any(map(str.isalpha, text)) and not is_data(text, match[1]):
            yield Title(" ".join(text.split()), *match.span(3), code, html.escape if is_tag else _escape_shortcode)


def _escape_shortcode(text: str) -> str:
    return re.sub(r"[\\\"']", r"\\\g<0>", text)


def assemble(content: bytes, edits: Iterable[Edit], codes: Mapping[int, Span]) -> bytes:
    """Return the bytes with replaced spans. Edits inside others are those of titles, which are written into the new texts.

    codes: bytes of the code of each title, by the first byte of the title
    """
    outer: list[tuple[Edit, list[Edit]]] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if outer and edit.start < outer[-1][0].end:
            outer[-1][1].append(edit)
        else:
            outer.append((edit, []))
    return apply_ordered_edits(content, (_write_titles(content, edit, inner, codes) for edit, inner in outer))


def _write_titles(content: bytes, edit: Edit, inner: Iterable[Edit], codes: Mapping[int, Span]) -> Edit:
    """Return the edit of a text with new titles in its codes, most of which follow each other as in the source."""
    places: list[Edit] = []
    position = 0
    for (first, last), titles in groupby(inner, key=lambda title: codes[title.start]):
        code = content[first:last]
        start = edit.content.find(code, position)
        start = edit.content.find(code) if start < 0 else start
        if start >= 0:
            position = start + len(code)
            own = (Edit(title.start - first, title.end - first, title.content) for title in titles)
            places.append(Edit(start, position, apply_ordered_edits(code, own)))
    places.sort(key=lambda place: place.start)
    return Edit(edit.start, edit.end, apply_ordered_edits(edit.content, places)) if places else edit
