"""Markup inside a text: tags and placeholders become codes beside a clean text, and come back into its translation.

A text with codes is a tree. An element is a pair of tags around other parts; a point is one code without content. A tag
without its partner is a point, so every input can be read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.languages import is_foreign
from dragoman.text.placeholders import find_placeholders

MAX_DEPTH = 64
"""Depth of elements in elements; the tags of deeper ones are points."""

# Neither < nor > stands inside a tag, and no part gives characters back, so a search takes time in proportion to the text.
_MARKUP = re.compile(
    r"<!--(?:(?!<!--).)*?-->|<!\[CDATA\[(?:(?!<!\[).)*?\]\]>"
    r"|<(?P<slash>/?)(?P<name>[A-Za-z][^\s<>/]*+)[^<>]*+(?:(?<=(?P<end>/)))?>|<[!?][^<>]*+>",
    re.DOTALL,
)
VOID_TAGS = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""HTML elements without content and without an end tag."""
BLOCK_TAGS = frozenset(
    (
        "address", "article", "aside", "blockquote", "body", "button", "canvas", "caption", "dd", "details", "dialog",
        "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6",
        "head", "header", "hr", "html", "iframe", "legend", "li", "link", "main", "menu", "meta", "nav", "noscript",
        "ol", "optgroup", "option", "p", "pre", "script", "section", "select", "style", "summary", "table", "tbody",
        "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video",
    )
)  # fmt: skip
"""HTML elements that end the sentence before them."""
OPAQUE_TAGS = frozenset(("code", "kbd", "math", "samp", "script", "style", "svg", "var"))
"""HTML elements whose content is no text for translation."""
_NO_TRANSLATION = re.compile(r"\btranslate\s*=\s*[\"']?no\b|\bclass\s*=\s*[\"'][^\"']*\bnotranslate\b", re.IGNORECASE)

_LANGUAGE = re.compile(r"""\s(?:xml:)?lang\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`/]+))""", re.IGNORECASE)


@dataclass(frozen=True)
class Point:
    """Code without content: a placeholder, a void tag, or an element that is kept whole.

    markup: the code as it is written
    plain: a placeholder without its character references, if it has any
    """

    markup: str
    plain: str = ""

    @property
    def text(self) -> str:
        """Text of a placeholder; empty for a tag."""
        return "" if self.markup.startswith("<") else self.plain or self.markup


@dataclass(frozen=True)
class Element:
    """Pair of tags and the parts between them."""

    start_tag: str
    parts: tuple[Part, ...]
    end_tag: str


Part = str | Point | Element
"""Text, or a code. Text is plain: character references are characters."""


@dataclass(frozen=True)
class CodedText:
    """Text with codes.

    is_escaped: `&`, `<` and `>` of the text are written as character references, as in XML and HTML
    """

    parts: tuple[Part, ...]
    is_escaped: bool = False

    @property
    def has_codes(self) -> bool:
        """Return whether there is a tag or a placeholder."""
        return any(not isinstance(part, str) for part in self.parts)

    @cached_property
    def clean(self) -> CleanText:
        """Text without codes, and the place of each code in it."""
        builder = _CleanTextBuilder()
        slots = builder.add(self.parts)
        return CleanText("".join(builder.pieces), slots)

    def write(self) -> str:
        """Return the text with its markup."""
        return "".join(write_parts(self.parts, is_escaped=self.is_escaped))


def escape(text: str) -> str:
    """Return the text with character references for the characters that markup needs."""
    return html.escape(text, quote=False)


def write_parts(parts: Sequence[Part], *, is_escaped: bool) -> Iterator[str]:
    """Yield the markup of parts, in order."""
    for part in parts:
        if isinstance(part, str):
            yield escape(part) if is_escaped else part
        elif isinstance(part, Point):
            yield part.markup
        else:
            yield part.start_tag
            yield from write_parts(part.parts, is_escaped=is_escaped)
            yield part.end_tag


def list_markup(parts: Sequence[Part]) -> list[str]:
    """Return the markup of all codes, in order: tags and points."""
    markup: list[str] = []
    for part in parts:
        if isinstance(part, Point):
            markup.append(part.markup)
        elif isinstance(part, Element):
            markup += [part.start_tag, *list_markup(part.parts), part.end_tag]
    return markup


def parse_placeholders(text: str) -> CodedText:
    """Return a plain text with its placeholders and addresses as points."""
    return CodedText(tuple(_split_placeholders(text)))


def parse_markup(text: str, *, is_html: bool, opaque: frozenset[str] = frozenset(), language: str = "") -> CodedText:
    """Return a fragment of XML or HTML with its tags and placeholders as codes.

    is_html: names of tags are read without case, and void and opaque elements are those of HTML
    opaque: names of further elements that are kept whole, with their content
    language: code of the text's language; elements that state another one are kept whole too
    """
    opaque_tags = opaque | OPAQUE_TAGS if is_html else opaque
    tokens = list(_tokenize(text, is_html=is_html))
    partners = _match_tags(tokens, is_html=is_html)
    return CodedText(tuple(_build_parts(tokens, partners, 0, len(tokens), opaque_tags, language)), is_escaped=True)


@dataclass(frozen=True)
class _Token:
    """Tag or text. name: of a tag, empty for text, comments and the like"""

    markup: str
    name: str = ""
    kind: str = "text"


def _tokenize(text: str, *, is_html: bool) -> Iterator[_Token]:
    position = 0
    for match in _MARKUP.finditer(text):
        if match.start() > position:
            yield _Token(text[position : match.start()])
        position = match.end()
        name = match["name"] or ""
        name = name.lower() if is_html else name
        if not name or match["end"] or (is_html and name in VOID_TAGS):
            yield _Token(match[0], name, "point")
        else:
            yield _Token(match[0], name, "end" if match["slash"] else "start")
    if position < len(text):
        yield _Token(text[position:])


def _match_tags(tokens: Sequence[_Token], *, is_html: bool) -> dict[int, int]:
    """Return the index of the end tag of each start tag that has one. Pairs nest; a tag that would cross is left out."""
    partners: dict[int, int] = {}
    open_tags: list[int] = []
    counts: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "start":
            open_tags.append(index)
            counts[token.name] = counts.get(token.name, 0) + 1
        elif token.kind == "end" and counts.get(token.name):
            while tokens[start := open_tags.pop()].name != token.name:
                counts[tokens[start].name] -= 1
            counts[token.name] -= 1
            if len(open_tags) < MAX_DEPTH:
                partners[start] = index
    return partners


def _build_parts(
    tokens: Sequence[_Token], partners: dict[int, int], start: int, stop: int, opaque: frozenset[str], language: str
) -> Iterator[Part]:
    index = start
    while index < stop:
        token, end = tokens[index], partners.get(index)
        if token.kind == "text":
            for part in _split_placeholders(html.unescape(token.markup)):
                yield _escape_point(part) if isinstance(part, Point) else part
        elif end is None:
            yield Point(token.markup)
        elif token.name in opaque or _is_kept(token.markup, language) or end == index + 1:
            yield Point("".join(item.markup for item in tokens[index : end + 1]))
        else:
            parts = tuple(_build_parts(tokens, partners, index + 1, end, opaque, language))
            yield Element(token.markup, parts, tokens[end].markup)
        index = (end if end is not None else index) + 1


def _is_kept(start_tag: str, language: str) -> bool:
    """Return whether a start tag says that its content is not translated, or is in another language than this."""
    stated = _LANGUAGE.search(start_tag)
    is_other = stated is not None and is_foreign(next(filter(None, stated.groups()), ""), language)
    return is_other or _NO_TRANSLATION.search(start_tag) is not None


def _escape_point(point: Point) -> Point:
    """Return a placeholder with character references for the characters that markup needs."""
    escaped = escape(point.markup)
    return point if escaped == point.markup else Point(escaped, point.markup)


def _split_placeholders(text: str) -> Iterator[Part]:
    position = 0
    for start, end in find_placeholders(text):
        if start > position:
            yield text[position:start]
        yield Point(text[start:end])
        position = end
    if position < len(text):
        yield text[position:]


@dataclass(frozen=True)
class Slot:
    """Place of a code in the clean text.

    start, end: positions of its content; equal for a point
    before, after: the characters beside a point in the source; empty at the ends and beside another code
    """

    part: Point | Element
    start: int
    end: int
    children: tuple[Slot, ...] = ()
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class CleanText:
    """Text without codes, with the slots of its codes."""

    text: str
    slots: tuple[Slot, ...]


class _CleanTextBuilder:
    """Builder of a clean text. A point between two words leaves one space, and a point between two spaces leaves one."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0
        self.last = ""  # last character
        self.is_after_point = False

    def add(self, parts: Sequence[Part]) -> tuple[Slot, ...]:
        """Add parts, and return the slots of their codes."""
        slots: list[Slot] = []
        for index, part in enumerate(parts):
            if isinstance(part, str):
                self._add_text(part)
            elif isinstance(part, Point):
                before, after = parts[index - 1] if index else "", parts[index + 1] if index + 1 < len(parts) else ""
                slots.append(
                    Slot(
                        part,
                        self.length,
                        self.length,
                        before=before[-1:] if isinstance(before, str) else "",
                        after=after[:1] if isinstance(after, str) else "",
                    )
                )
                self.is_after_point = True
            else:
                start = self.length
                children = self.add(part.parts)
                slots.append(Slot(part, start, self.length, children))
        return tuple(slots)

    def _add_text(self, text: str) -> None:
        if self.is_after_point:
            if not self.last or self.last.isspace():
                text = text.lstrip()
            elif self.last.isalnum() and text[:1].isalnum():
                text = " " + text
            self.is_after_point = not text
        if text:
            self.pieces.append(text)
            self.length += len(text)
            self.last = text[-1]
