"""Markup inside a text: tags and placeholders become codes beside a clean text, and come back into its translation.

A text with codes is a tree. An element is a pair of tags around other parts; a point is one code without content. A tag
without its partner is a point, so every input can be read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Literal, NamedTuple

from dragoman.languages import is_foreign
from dragoman.text.element_depth import ElementDepth
from dragoman.text.inline_rules import COMMON_RULES, InlineRules
from dragoman.text.inline_tokens import (
    BLOCK_TAGS,
    BREAK_TAGS,
    CODE_ELEMENTS,
    INLINE_TAGS,
    LINE_BREAK,
    OPAQUE_TAGS,
    VOID_TAGS,
    Token,
    is_plain,
    match_pairs,
    tokenize_codes,
    tokenize_markup,
    tokenize_text,
)
from dragoman.text.placeholders import may_have_codes
from dragoman.text.references import REFERENCE, is_icon, is_invisible, spells_word

__all__ = ["BLOCK_TAGS", "BREAK_TAGS", "INLINE_TAGS", "OPAQUE_TAGS", "VOID_TAGS"]

Markup = Literal["none", "html", "xml"]
"""Markup of a text: none, or tags with character references."""

# The tag of an element, and its slash and name as `tokenize_markup` reads them. Neither < nor > stands inside.
_SIMPLE_TAG = re.compile(r"(<(/?)([A-Za-z][^\s<>/]*+)[^<>]*+>)")
_MAX_SIMPLE_PIECES = 200
"""Most pieces of a fragment that is read by one pattern. No element in it is too deep."""
_NO_TRANSLATION = re.compile(r"\btranslate\s*=\s*[\"']?no\b|\bclass\s*=\s*[\"'][^\"']*\bnotranslate\b", re.IGNORECASE)

MAX_CACHED_CHARACTERS = 500
"""Most characters of a text with markup whose codes are kept. The 1,024 texts that are kept take 64 MB at most."""
MAX_REFERENCE = 34
"""Most characters of a character reference of HTML."""
# Also the tag `<lang fr>` of WebVTT.
_LANGUAGE = re.compile(
    r"""\s(?:xml:)?lang\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`/]+))|^<lang\s+([A-Za-z0-9-]+)\s*>$""", re.IGNORECASE
)


@dataclass(frozen=True)
class Point:
    """Code without content: a placeholder, a void tag, or an element that is kept whole.

    markup: the code as it is written
    plain: a placeholder without its character references, if it has any; the character of a reference
    is_break: the code ends the sentence before it
    is_space: the code stands for white space
    """

    markup: str
    plain: str = ""
    is_break: bool = False
    is_space: bool = False

    @property
    def text(self) -> str:
        """Text of a placeholder; empty for a tag, a break, white space, an icon, and what has no width."""
        is_tag = self.markup.startswith("<") or (self.markup.startswith("&lt;") and len(self.markup) > 4)
        text = self.plain or self.markup
        return "" if is_tag or self.is_break or self.is_space or is_invisible(text) or is_icon(text) else text

    @property
    def is_invisible(self) -> bool:
        """Return whether the code is a place inside a word where a line may end, or another mark without width."""
        return is_invisible(self.plain or self.markup) or self.markup[:4].lower() == "<wbr"


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

    @cached_property
    def has_codes(self) -> bool:
        """Return whether there is a tag or a placeholder."""
        return any([not isinstance(part, str) for part in self.parts])  # a list is faster than a generator

    @property
    def has_text(self) -> bool:
        """Return whether there is text or a placeholder."""
        return any(part.strip() if isinstance(part, str) else part.text for part in list_leaves(self.parts))

    @cached_property
    def clean(self) -> CleanText:
        """Text without codes, and the place of each code in it."""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return CleanText(self.parts[0], ())
        builder = _CleanTextBuilder()
        slots = builder.add(self.parts)
        return CleanText("".join(builder.pieces), slots)

    def write(self) -> str:
        """Return the text with its markup."""
        return write_parts(self.parts, is_escaped=self.is_escaped)


def list_leaves(parts: Sequence[Part]) -> list[str | Point]:
    """Return the texts and the points in order, those inside elements too."""
    leaves: list[str | Point] = []
    for part in parts:
        if isinstance(part, Element):
            leaves += list_leaves(part.parts)
        else:
            leaves.append(part)
    return leaves


def list_texts(parts: Sequence[Part]) -> list[str]:
    """Return the texts between codes."""
    return [part for part in list_leaves(parts) if isinstance(part, str)]


def escape(text: str) -> str:
    """Return the text with character references for the characters that markup needs."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def write_parts(parts: Sequence[Part], *, is_escaped: bool) -> str:
    """Return the markup of parts."""
    output: list[str] = []
    for part in parts:
        if isinstance(part, str):
            output.append(escape(part) if is_escaped else part)
        elif isinstance(part, Point):
            output.append(part.markup)
        else:
            output += part.start_tag, write_parts(part.parts, is_escaped=is_escaped), part.end_tag
    return "".join(output)


def list_markup(parts: Sequence[Part]) -> list[str]:
    """Return the markup of all codes, in order: tags and points."""
    markup: list[str] = []
    for part in parts:
        if isinstance(part, Point):
            markup.append(part.markup)
        elif isinstance(part, Element):
            markup += [part.start_tag, *list_markup(part.parts), part.end_tag]
    return markup


def read_inline(
    text: str,
    markup: Markup = "none",
    rules: InlineRules = COMMON_RULES,
    opaque: frozenset[str] = frozenset(),
    *,
    keep_line_breaks: bool = False,
    language: str = "",
) -> CodedText:
    """Return a text with its codes, for any format.

    markup: "none" for a text as it is written, with tags, references and other codes only where they are meant as such
    opaque: names of further elements that are kept with their content
    keep_line_breaks: line breaks of a text, unless it is HTML, are codes that end a sentence
    language: of the source; an element that states another one is kept with its content
    """
    if markup != "none":
        parse = parse_markup if len(text) > MAX_CACHED_CHARACTERS else _parse_markup_once
        stated = language if "lang" in text.lower() else ""  # no element of other texts states a language
        is_html = markup == "html"
        has_breaks = keep_line_breaks and not is_html and LINE_BREAK.search(text) is not None
        return parse(text, is_html=is_html, opaque=opaque, rules=rules, language=stated, keep_line_breaks=has_breaks)
    if is_plain(text, rules, keep_line_breaks=keep_line_breaks):
        return CodedText((text,) if text else ())
    tokens = tokenize_text(text, rules, keep_line_breaks=keep_line_breaks)
    builder = _PartTreeBuilder(tokens, rules, opaque | OPAQUE_TAGS | CODE_ELEMENTS, is_escaped=False, language=language)
    return CodedText(tuple(_join_texts(builder.build(0, len(tokens)))))


def parse_markup(
    text: str,
    *,
    is_html: bool,
    opaque: frozenset[str] = frozenset(),
    rules: InlineRules = COMMON_RULES,
    language: str = "",
    keep_line_breaks: bool = False,
) -> CodedText:
    """Return a fragment of XML or HTML with its tags and placeholders as codes.

    is_html: names of tags are read without case, and void and opaque elements are those of HTML
    opaque: names of further elements that are kept whole, with their content
    language: code of the text's language; elements that state another one are kept whole too
    keep_line_breaks: line breaks in the texts are codes that end a sentence
    """
    if "<" not in text and "&" not in text and is_plain(text, rules, keep_line_breaks=keep_line_breaks):
        return CodedText((text,) if text else (), is_escaped=True)
    kept = opaque | OPAQUE_TAGS if is_html else opaque
    if (
        not (keep_line_breaks or language or rules.kept)
        and (parts := _parse_nested(text, is_html=is_html, kept=kept)) is not None
    ):
        return CodedText(parts, is_escaped=True)
    tokens = list(tokenize_markup(text, is_html=is_html, keep_line_breaks=keep_line_breaks))
    builder = _PartTreeBuilder(tokens, rules, kept, is_escaped=True, language=language)
    return CodedText(tuple(builder.build(0, len(tokens))), is_escaped=True)


def _parse_nested(text: str, *, is_html: bool, kept: frozenset[str]) -> tuple[Part, ...] | None:
    """Return the parts of a fragment whose codes are pairs of tags that nest and void tags, as most are, in less time.

    None for any other, which has to be read token by token.

    kept: names of elements that are kept with their content
    """
    if (pieces := split_tags(text)) is None or len(pieces) > _MAX_SIMPLE_PIECES:
        return None
    parts: list[Part] = []
    stack: list[tuple[str, str, list[Part]]] = []
    remaining = iter(pieces)
    for words in remaining:
        if words:
            parts.append(words)
        tag, slash, name = next(remaining, ""), next(remaining, ""), next(remaining, "")
        if not tag:
            break
        name = name.lower() if is_html else name
        if tag.endswith("/>") or (is_html and name in VOID_TAGS):
            parts.append(Point(tag, is_break=is_html and name in BREAK_TAGS))
        elif not slash:
            if name in kept:
                return None
            stack.append((name, tag, parts))
            parts = []
        else:
            if not stack or stack[-1][0] != name:
                return None
            _, start_tag, outer = stack.pop()
            outer.append(Element(start_tag, tuple(parts), tag) if parts else Point(start_tag + tag))
            parts = outer
    return None if stack else tuple(parts)


def split_tags(text: str) -> list[str] | None:
    """Return the texts of a fragment and, between them, each tag, its slash and its name; None if it may have other codes."""
    return _split_tags(text) if len(text) > MAX_CACHED_CHARACTERS else _split_tags_once(text)


def _split_tags(text: str) -> list[str] | None:
    if "&" in text or "translate" in text.lower():
        return None
    pieces = _SIMPLE_TAG.split(text)
    texts = "".join(pieces[::4])
    return None if "<" in texts or ">" in texts or may_have_codes(texts) else pieces


# A text is read for its segments, for the check of each, and for that of the whole text.
_parse_markup_once = lru_cache(maxsize=1024)(parse_markup)
_split_tags_once = lru_cache(maxsize=1024)(_split_tags)


def list_equal_tags(source: str, translation: str, opaque: frozenset[str] = frozenset()) -> tuple[list[str], list[str]] | None:
    """Return the texts between the tags of two fragments of XML or HTML that have equal tags in the same order.

    None if they may differ in their codes, which has to be read from their parts.

    opaque: names of further elements that are kept with their content
    """
    is_short = len(source) <= MAX_CACHED_CHARACTERS and len(translation) <= MAX_CACHED_CHARACTERS
    return (_list_equal_tags_once if is_short else _list_equal_tags)(source, translation, opaque)


def _list_equal_tags(source: str, translation: str, opaque: frozenset[str]) -> tuple[list[str], list[str]] | None:
    pieces, new_pieces = split_tags(source), _split_tags(translation)
    if pieces is None or new_pieces is None or pieces[1::4] != new_pieces[1::4]:
        return None
    texts, new_texts = pieces[::4], new_pieces[::4]
    if len(texts) > 1:
        names = {*pieces[3::4], *map(str.lower, pieces[3::4])}
        has_kept = not (opaque.isdisjoint(names) and OPAQUE_TAGS.isdisjoint(names))
        if has_kept or "lang" in source.lower() or list(map(bool, texts)) != list(map(bool, new_texts)):
            return None
    return texts, new_texts


# It is asked for each segment, and then for the whole text, which most segments are.
_list_equal_tags_once = lru_cache(maxsize=1024)(_list_equal_tags)


class _PartTreeBuilder:
    """Builder of the parts of tokens. is_escaped: texts have character references, and their placeholders are still texts"""

    def __init__(
        self, tokens: Sequence[Token], rules: InlineRules, opaque: frozenset[str], *, is_escaped: bool, language: str = ""
    ) -> None:
        self._tokens, self._rules, self._opaque, self._is_escaped = tokens, rules, opaque, is_escaped
        self._language = language
        if is_escaped:
            depth = ElementDepth()
            for token in tokens:
                if token.depth_change:
                    depth.add(token.name, is_start=token.is_start)
        self._partners = match_pairs(tokens)

    def build(self, start: int, stop: int) -> Iterator[Part]:
        """Yield the parts of the tokens from `start` to `stop`."""
        index = start
        while index < stop:
            token, end = self._tokens[index], self._partners.get(index)
            if self._is_escaped and (token.is_text or (end is None and token.is_text_alone)):
                yield from self._build_escaped(token.markup)
            elif token.is_text:
                yield token.markup
            elif end is None and token.is_text_alone:
                yield from self._build_codes(token.markup)
            elif token.plain and self._spells_word(index):
                yield token.plain
            elif end is None:
                yield _make_point(token)
            elif self._is_opaque(token) or end == index + 1:
                yield Point("".join(item.markup for item in self._tokens[index : end + 1]))
            else:
                yield Element(token.markup, tuple(_join_texts(self.build(index + 1, end))), self._tokens[end].markup)
            index = (end if end is not None else index) + 1

    def _is_opaque(self, token: Token) -> bool:
        """Return whether an element is kept with its content."""
        return token.name.removeprefix("escaped ") in self._opaque or _is_kept(token.markup, self._language)

    def _spells_word(self, index: int) -> bool:
        """Return whether a reference is part of a word."""
        before, after = (
            self._tokens[place] if 0 <= place < len(self._tokens) else Token("") for place in (index - 1, index + 1)
        )
        return spells_word(self._tokens[index].plain, (before.plain or before.markup)[-1:], (after.plain or after.markup)[:1])

    def _build_escaped(self, markup: str) -> Iterator[Part]:
        """Yield the parts of a text with character references.

        References that HTML does not know stay as they are. Those of signs and spaces beyond ASCII are codes.
        """
        position = 0
        for match in REFERENCE.finditer(markup) if "&" in markup else ():
            character = html.unescape(match[0])
            if character != match[0]:
                start, end = match.span()
                sides = markup[max(start - MAX_REFERENCE, 0) : start], markup[end : end + MAX_REFERENCE]
                before, after = map(html.unescape, sides)
                if character.isascii() or spells_word(character, before[-1:], after[:1]):
                    continue
            yield from self._build_codes(html.unescape(markup[position : match.start()]))
            yield Point(match[0], character, is_space=character.isspace())
            position = match.end()
        yield from self._build_codes(html.unescape(markup[position:]))

    def _build_codes(self, text: str) -> Iterator[Part]:
        """Yield the placeholders of a text and the texts between them."""
        for token in tokenize_codes(text, self._rules):
            if token.is_text:
                yield token.markup
            else:
                point = _make_point(token)
                escaped = escape(point.markup) if self._is_escaped else point.markup
                yield point if escaped == point.markup else replace(point, markup=escaped, plain=point.markup)


def _is_kept(start_tag: str, language: str) -> bool:
    """Return whether a start tag says that its content is not translated, or is in another language than this."""
    stated = _LANGUAGE.search(start_tag)
    is_other = stated is not None and is_foreign(next(filter(None, stated.groups()), ""), language)
    return is_other or _NO_TRANSLATION.search(start_tag) is not None


def _make_point(token: Token) -> Point:
    return Point(token.markup, token.plain, token.is_break, token.is_space)


def _join_texts(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts with neighboring texts as one."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield "".join(part for part in group if isinstance(part, str))
        else:
            yield from group


class Slot(NamedTuple):
    """Place of a code in the clean text.

    start, end: positions of its content; equal for a point
    before, after: the characters beside a code in the source, also those in an element; empty at the ends and beside a point
    """

    part: Point | Element
    start: int
    end: int
    children: tuple[Slot, ...] = ()
    before: str = ""
    after: str = ""


class CleanText(NamedTuple):
    """Text without codes, with the slots of its codes."""

    text: str
    slots: tuple[Slot, ...]


def _get_edge(part: Part, place: Literal[0, -1]) -> str:
    """Return the first (0) or last (-1) character of a part, also of one in an element; empty if a point is there."""
    while isinstance(part, Element):
        part = part.parts[place] if part.parts else ""
    return part[place] if part and isinstance(part, str) else ""


class _CleanTextBuilder:
    """Builder of a clean text. A point between two words leaves one space; two spaces around a point or a tag are one."""

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
                continue
            before = _get_edge(parts[index - 1], -1) if index else ""
            after = _get_edge(parts[index + 1], 0) if index + 1 < len(parts) else ""
            if isinstance(part, Point):
                slots.append(Slot(part, self.length, self.length, before=before, after=after))
                if part.is_space and self.last and not self.last.isspace():
                    self._add_text(" ")
                self.is_after_point |= not part.is_invisible
            else:
                start = self.length
                children = self.add(part.parts)
                slots.append(Slot(part, start, self.length, children, before, after))
        return tuple(slots)

    def _add_text(self, text: str) -> None:
        if self.is_after_point:
            if not self.last or self.last.isspace():
                text = text.lstrip()
            elif self.last.isalnum() and text[:1].isalnum():
                text = " " + text
            self.is_after_point = not text
        elif self.last == " " and text.startswith(" "):
            text = text.lstrip(" ")
        if text:
            self.pieces.append(text)
            self.length += len(text)
            self.last = text[-1]
