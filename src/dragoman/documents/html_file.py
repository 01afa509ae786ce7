"""HTML files: the text of each block, the attributes that a reader sees, and the language of the page.

A text is what stands between the tags of two blocks, with its inline tags. White space is collapsed, as browsers show it.
"""

from __future__ import annotations

import html
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

from dragoman.documents.document import (
    Document,
    Edit,
    Unit,
    UnitTranslation,
    apply_ordered_edits,
    divide_units,
    get_source_language,
    has_same_tags,
)
from dragoman.documents.encoded_text import EncodedText, check_encoding, decode, make_line_error
from dragoman.documents.html_languages import DIRECTION, ROOT_TAGS, LanguageScopes, PageLanguage, Statement
from dragoman.documents.reading import check_codes, check_goes_on, check_tags, check_text, check_texts
from dragoman.errors import DataError
from dragoman.text.breaks import divide_at
from dragoman.text.element_depth import ElementDepth
from dragoman.text.inline_codes import BLOCK_TAGS, OPAQUE_TAGS, VOID_TAGS, Markup, parse_markup
from dragoman.text.nesting import Nested
from dragoman.text.no_language import begins_with_word
from dragoman.text.references import REFERENCE

TEXT_ATTRIBUTES = frozenset(("title", "alt", "placeholder", "aria-label"))
_READ_ATTRIBUTES = TEXT_ATTRIBUTES | {"content", "label", "value", "lang", "xml:lang", "dir", "style"}
BUTTON_TYPES = frozenset(("submit", "button", "reset"))
META_NAMES = frozenset(("description", "keywords", "og:title", "og:description", "twitter:title", "twitter:description"))
KEPT_TAGS = frozenset(("script", "style", "pre", "textarea", "template", "iframe", "object", "svg", "math"))
"""Elements that are kept with their content."""
_SHOWN_TAGS = KEPT_TAGS - {"script", "style", "template"}
"""Such elements whose attributes readers may see"""
_READ_TAGS = frozenset(("textarea", "template", "svg"))
"""Such elements whose texts readers may see"""

MIN_LONG_TAG = 2**16
"""Length of a tag whose attributes are counted before they are read."""
_PART_CHARACTERS = 2**15
_CHECKED_CHARACTERS = 2**14
"""Length of the tokens that are read between two checks of the limits"""
_XML_ENCODING = re.compile(rb"<\?xml\s[^<>]*?\bencoding\s*+=\s*+[\"']([\w.:-]++)")
_NAMES_FOR_BROWSERS = {
    "ascii": "windows-1252", "iso8859-1": "windows-1252", "iso8859-9": "windows-1254",
    "utf-16-le": "utf-8", "utf-16-be": "utf-8",
}  # fmt: skip
"""Encodings that browsers read for those that a page states: https://encoding.spec.whatwg.org, and the prescan of HTML."""
_META = re.compile(r"<!--(?:(?!-->).)*+|<meta(?=[\s/])(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+>", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(r"\bcharset\s*+=[\s\"']*+([\w.:-]++)", re.IGNORECASE)
_BLANKS = " \t\n\r\f"
_SPACE = re.compile(f"[{_BLANKS}]{{2,}}|[{_BLANKS[1:]}]")
"""White space that is shown as one space and is none"""
_ATTRIBUTE = re.compile(r"""(?<=[\s"'])([^\s"'<>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`]+))""")
_QUOTES = re.compile("&(?:quot|apos|#0*3[49]|#[xX]0*2[27]);")
_ANY_TAG = re.compile("<[^<>]*>")
_STRUCTURE_TAG = re.compile(r"<(?:br\b|[^A-Za-z/]|[^>]*\b(?:lang|dir|style)\b)", re.IGNORECASE)
"""Tags that divide texts or state a language, and what is no tag"""
_TAG_WORD = re.compile(r"""\"[^"]*+"|'[^']*+'|[^\s"'/]++""")
# A start tag, or an end tag. Outside of values in quotation marks, neither < nor > stands in one.
_TAG_AT = re.compile(r"""<(?:([a-zA-Z][^\s/<>]*+)(?:[^<>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+|/([a-zA-Z][^\s/<>]*+)?[^<>]*+)>""")
_UNQUOTED_END = re.compile(r"=\s*+[^\s\"'=<>]++/>$")
_OTHER_MARKUP = (
    ("<!--", "-->", "comment"), ("<![CDATA[", "]]>", "declaration"), ("<!", ">", "declaration"), ("<?", ">", "declaration"),
)  # fmt: skip
_RAW_TEXT_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
_TAG = re.compile(r"<(?:!doctype\s+html|[a-z][a-z0-9]*[\s>/])", re.IGNORECASE)
_OTHER_XML = re.compile(r"\s*<\?xml(?!.{0,2000}<html\b)", re.IGNORECASE | re.DOTALL)
_TEMPLATE = re.compile(r"\{%(?=(?:(?!\{%).){0,1000}%\})|<%|<\?(?:php|=)", re.DOTALL)
"""Marks of languages that make pages, whose code would be read as text."""


@dataclass(slots=True)
class _HtmlToken(Nested):
    """Part of the file.

    kind: text, start, end, empty, comment or declaration
    name: of a tag, in lower case
    source: the part as it stands there
    tag: the tag if it has attributes with a text or with a language
    """

    kind: str
    name: str
    source: str
    start: int
    end: int
    tag: _Tag | None = None

    @property
    def is_blank(self) -> bool:
        """Return whether the token belongs to no text if it is at the edge of one."""
        return self.kind == "comment" or not self.source.strip(_BLANKS)

    @property
    def shown(self) -> str:
        """The part as its text shows it."""
        if self.tag is not None:
            return self.tag.shown
        return _SPACE.sub(" ", self.source) if self.is_text else self.source


@dataclass(frozen=True, slots=True)
class _Attribute:
    """Attribute with a text. start, end: its value in the file, without quotation marks. markup: that of its unit"""

    id: str
    start: int
    end: int
    markup: Markup = "none"

    def write(self, text: str) -> str:
        """Return a text as the value of the attribute."""
        return html.escape(text) if self.markup == "none" else text.replace('"', "&quot;").replace("'", "&#x27;")


@dataclass(frozen=True, slots=True)
class _Tag:
    """Tag with such attributes, or with a language. shown: the tag as its text shows it, with references to the attributes"""

    shown: str
    start: int
    end: int
    attributes: Sequence[_Attribute]
    statements: Sequence[Statement]


def _list_depths(run: Sequence[_HtmlToken]) -> list[int]:
    """Return the number of open elements after each token; -1 last if a tag has no partner among the tokens."""
    names: list[str] = []
    depths: list[int] = []
    for token in run:
        if token.is_start and token.name not in VOID_TAGS:
            names.append(token.name)
        elif token.is_end and (not names or names.pop() != token.name):
            return [*depths, -1]
        depths.append(len(names))
    return depths


def _is_one_element(run: Sequence[_HtmlToken]) -> bool:
    depths = _list_depths(run)
    return depths.count(0) == 1 and depths[-1] == 0


def _iter_tokens(text: str) -> Iterator[_HtmlToken]:
    """Yield the tokens of a file in order, in time proportional to its length. A `<` that begins none is text."""
    marks = _MarkPlaces(text)
    position = text_start = 0
    while (start := text.find("<", position)) >= 0:
        if (token := _read_token(text, start, marks)) is None:
            check_text(start - text_start)
            position = start + 1
            continue
        if text_start < start:
            yield _HtmlToken("text", "", text[text_start:start], text_start, start)
        yield token
        position = text_start = token.end
        if token.name in _RAW_TEXT_ENDS and token.is_start:
            end = _RAW_TEXT_ENDS[token.name].search(text, position)
            position = end.start() if end else len(text)
    if text_start < len(text):
        yield _HtmlToken("text", "", text[text_start:], text_start, len(text))


class _MarkPlaces:
    """Places of marks in a text. Each part of the text is searched once for each mark."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, tuple[int, int]] = {}

    def find_end(self, mark: str, start: int) -> int:
        """Return the place behind the next mark, or -1 if there is none."""
        first, place = self._found.get(mark, (len(self._text), 0))
        if not first <= start <= place:
            place = self._text.find(mark, start)
            place = len(self._text) if place < 0 else place
            self._found[mark] = (start, place)
        return place + len(mark) if place < len(self._text) else -1


def _read_token(text: str, start: int, marks: _MarkPlaces) -> _HtmlToken | None:
    """Return the token that begins with this `<`, or None."""
    if match := _TAG_AT.match(text, start):
        source, start_name, end_name = match.group(0, 1, 2)
        if not start_name:
            return _HtmlToken("end" if end_name else "comment", (end_name or "").lower(), source, start, match.end())
        if len(source) > MIN_LONG_TAG:
            for count, _ in enumerate(_TAG_WORD.finditer(source)):
                check_codes(count)
        is_empty = source.endswith("/>") and not _UNQUOTED_END.search(source)
        return _HtmlToken("empty" if is_empty else "start", start_name.lower(), source, start, match.end())
    for opening, closing, kind in _OTHER_MARKUP:
        if text.startswith(opening, start):
            end = marks.find_end(closing, start + len(opening))
            return None if end < 0 else _HtmlToken(kind, "", text[start:end], start, end)
    return None


def parse(content: bytes) -> Document:
    """Return the document of an HTML file. Raises DataError for a file without a tag, and for a template."""
    text = _decode(content)
    if _OTHER_XML.match(text.text) or not _TAG.search(text.text):
        if mark := _TEMPLATE.search(text.text):
            raise _make_template_error(text.text, mark.start())
        raise DataError("the file has no tag of HTML, so it is no HTML file", code="invalid-format")
    reader = _PageReader(text)
    units = list(reader.read())
    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "html",
        other_units=others,
        make_edits=lambda unit, translation: (),
        source_language=reader.page.language,
        make_document_edits=reader.make_edits,
        assemble=apply_ordered_edits,
        iter_units=lambda content: _PageReader(_decode(content)).read(),
        skipped={name: number for name, number in reader.skipped.items() if number},
        keeps_tags=lambda content, translations: reader.keeps_tags(units, _decode(content), translations),
    )


def read_fragment(text: EncodedText) -> tuple[list[Unit], Callable[[Mapping[str, UnitTranslation], str], Iterator[Edit]]]:
    """Return the units of a part of a page, such as a block of HTML in Markdown, and the function that makes their edits.

    Raises DataError for code of a template.
    """
    reader = _PageReader(text)
    return list(reader.read()), reader.make_edits


def _decode(content: bytes) -> EncodedText:
    if declaration := _XML_ENCODING.match(content[:512]):
        return decode(content, declaration[1].decode("ascii"))
    name = next(filter(None, map(_find_charset, _META.findall(content[:4096].decode("latin-1")))), "utf-8")
    return decode(content, _NAMES_FOR_BROWSERS.get(check_encoding(name), name))


def _find_charset(tag: str) -> str:
    """Return the encoding that a tag `meta` states; empty for a comment and for other tags."""
    values = _read_values(tag)
    is_statement = "charset" in values or values.get("http-equiv", "").lower() == "content-type"
    stated = _CHARSET.search(tag) if is_statement and not tag.startswith("<!") else None
    return stated[1] if stated else ""


def _make_template_error(text: str, start: int) -> DataError:
    """Return the error about code of a template that starts there."""
    code = " ".join(text[start : start + 40].split())
    return make_line_error(text, start, f"the file is a template with the code {code!r}; translate the pages that it makes")


class _PageReader:
    """Reader of the units, and writer of their edits. The id of a unit is its number."""

    def __init__(self, text: EncodedText) -> None:
        self.text = text
        self.page = PageLanguage()
        self._scopes = LanguageScopes()
        self._run_language = ""
        self._starts = array("q")
        self._ends = array("q")
        self._attributes: dict[int, _Attribute] = {}
        self._tags: dict[int, Sequence[_Tag]] = {}
        self._bare: dict[int, bool] = {}  # texts in no block, and whether one element with a direction holds each
        self.skipped: Counter[str] = Counter()
        self._new_units: list[Unit] = []
        self._run: list[_HtmlToken] = []  # one behind the other in the page

    def read(self) -> Iterator[Unit]:
        """Yield the units of the page."""
        for _ in self._read_tokens():
            units, self._new_units = self._new_units, []
            yield from units

    def _read_tokens(self) -> Iterator[None]:
        """Read token by token. Memory holds the places of all units, and the texts of those of one block."""
        text = self.text
        kept_tag, depth, opaque_depth, element_depth = "", 0, 0, ElementDepth()
        num_tags, check_place = 0, 0
        check_tags(text.text.count("</"), len(text.content))
        marks = [mark.start() for mark in _TEMPLATE.finditer(text.text)][::-1]
        for token in _iter_tokens(text.text):
            kind, name = token.kind, token.name
            if token.end >= check_place:
                check_place = token.end + _CHECKED_CHARACTERS
                self._check_limits(num_tags)
            if name:
                num_tags += 1
                if kind != "empty" and name not in VOID_TAGS:
                    element_depth.add(name, is_start=kind == "start")
            if marks:
                if name in OPAQUE_TAGS:
                    opaque_depth += token.depth_change
                elif name in BLOCK_TAGS:
                    opaque_depth = 0
                is_kept = kept_tag or kind == "comment" or (opaque_depth > 0 and token.is_text)
                while marks and marks[-1] < token.end:
                    if not is_kept:
                        raise _make_template_error(text.text, marks[-1])
                    marks.pop()
            if kept_tag:
                if name == kept_tag:
                    depth += token.depth_change
                elif token.is_text and kept_tag in _READ_TAGS:
                    self._count_kept(kept_tag, token)
                kept_tag = kept_tag if depth else ""
            elif not name:
                if kind == "declaration":
                    self._end_run()
                elif self._run or not token.is_blank:
                    self._add_to_run(token)
            elif kind == "end":
                if name in BLOCK_TAGS:
                    self._end_run()
                    self.page.outer_blocks.read_end(name)
                else:
                    self._add_to_run(token)
                self._scopes.read_end(name)
            else:
                values = _read_values(token.source) if "=" in token.source else {}
                is_whole, is_void = _is_kept(name, values), name in VOID_TAGS
                if is_whole and kind == "start" and not is_void:
                    kept_tag, depth = name, 1
                if is_outside := bool(kept_tag) or name in BLOCK_TAGS:
                    self._end_run()
                else:
                    self._add_to_run(token)
                if not kept_tag or kept_tag in _SHOWN_TAGS:
                    token.tag = self._read_tag(token, values, has_texts=not is_whole and not is_void)
                    if token.tag is not None and is_outside and not kept_tag:
                        self.page.add(token.tag.statements)
            if self._new_units:
                yield
        self._check_limits(num_tags)
        self._end_run()
        yield

    def _count_kept(self, tag: str, token: _HtmlToken) -> None:
        """Count a text in an element that is kept, if it has letters and is no code."""
        text = self.text.text
        start = text.rfind("<", 0, token.start) + 1
        is_code = text[start : start + 6].lower().startswith(tuple(_RAW_TEXT_ENDS))
        self.skipped[f"texts in {tag}"] += not is_code and any(map(str.isalpha, token.source))

    def _check_limits(self, num_tags: int) -> None:
        """End the work, or raise DataError for too many tags, or too long a text, so far."""
        check_goes_on()
        check_tags(num_tags, len(self.text.content))
        self._check_run()

    def _check_run(self) -> None:
        """Raise DataError for too many tags, or too long a text, in the run so far."""
        if self._run:
            check_codes(len(self._run) - 1)
            check_text(self._run[-1].end - self._run[0].start)

    def _read_tag(self, token: _HtmlToken, values: Mapping[str, str], *, has_texts: bool) -> _Tag | None:
        """Read a start tag and add units for its attributes with text. Return the tag, or None if it has no such attribute."""
        source = token.source
        language = values.get("lang") or values.get("xml:lang", "")
        self._scopes.read_start(token.name, language, is_void=token.kind == "empty" or not has_texts)
        if token.name not in BLOCK_TAGS and _READ_ATTRIBUTES.isdisjoint(values):  # so are most tags inside texts
            return None
        names = set() if not values or _is_locked(values) else set(TEXT_ATTRIBUTES)
        if token.name == "meta" and (values.get("name") or values.get("property", "")).lower() in META_NAMES:
            names.add("content")
        if token.name in ("optgroup", "option", "track"):
            names.add("label")
        if token.name == "input" and values.get("type", "").lower() in BUTTON_TYPES:
            names.add("value")
        shown, position = "", 0
        attributes: list[_Attribute] = []
        statements: list[Statement] = []
        for match in _ATTRIBUTE.finditer(source) if values else ():
            name, group = match[1].lower(), next(group for group in (2, 3, 4) if match[group] is not None)
            start, end = match.span(group)
            if kind := _get_statement_kind(token.name, name, values):
                statements.append(self._make_statement(kind, token, (start, end), match.span()))
            elif name == "style" and (direction := DIRECTION.search(match[group])):
                outer = match.span() if direction[0] == match[group] else (start + direction.start(), start + direction.end())
                inner = start + direction.start(1), start + direction.end(1)
                statements.append(self._make_statement("dir", token, inner, outer))
            value, markup = _read_value(match[group]) if name in names and group != 4 else ("", "none")
            if value:
                number = self._add_place(token.start + start, token.start + end)
                attribute = _Attribute(str(number), token.start + start, token.start + end, markup)
                attributes.append(attribute)
                self._attributes[number] = attribute
                self._new_units.append(
                    Unit(
                        attribute.id,
                        value,
                        markup,
                        context=f"{token.name} {name}",
                        keep_line_breaks=False,
                        language=self._scopes.language or language,
                    )
                )
                shown += f"{source[position:start]}#{attribute.id}"
                position = end
        place = token.start + len(source.removesuffix(">").rstrip(_BLANKS + "/"))
        if token.name in ROOT_TAGS:
            statements.append(Statement("root", token.name, "", place, place, place, place, ""))
        elif token.name in BLOCK_TAGS and has_texts:
            self.page.outer_blocks.read_start(token.name, place, statements)
        if not attributes and not statements:
            return None
        return _Tag(shown + source[position:], token.start, token.end, attributes, statements)

    def _make_statement(self, kind: str, token: _HtmlToken, inner: tuple[int, int], outer: tuple[int, int]) -> Statement:
        """Return a statement. inner, outer: place of the value, and of all that states it, in the tag"""
        left = outer[0] - self.text.text[token.start + outer[0] - 1].isspace()
        start, end, left, right = (token.start + place for place in (*inner, left, outer[1]))
        return Statement(kind, token.name, self.text.text[start:end], start, end, left, right, self._scopes.language)

    def _add_to_run(self, token: _HtmlToken) -> None:
        if not self._run:
            self._run_language = self._scopes.language
        self._run.append(token)

    def _end_run(self) -> None:
        """Add a unit for each text of the run, which breaks divide."""
        if not self._run:
            return
        self._check_run()
        run, self._run = self._run, []
        if not (breaks := _find_breaks(run)):
            self._add_text(run)
            return
        for line in divide_at(run, breaks, lambda tokens: "".join(token.source for token in tokens if token.is_text)):
            self._add_text(line)

    def _add_text(self, run: Sequence[_HtmlToken]) -> None:
        """Add a unit for a text, without the white space and comments at its ends."""
        start, end = 0, len(run)
        while start < end and run[start].is_blank:
            start += 1
        if start == end:
            return
        while run[end - 1].is_blank:
            end -= 1
        run = run[start:end]
        raw = self.text.text[run[0].start : run[-1].end]
        tags = [token.tag for token in run if token.tag is not None]
        is_shown = not tags and raw.isprintable() and "  " not in raw  # so are most texts, and this is fast
        source = (raw if is_shown else "".join([token.shown for token in run])).strip(_BLANKS)
        if begins_with_word(source) or parse_markup(source, is_html=True).has_text:
            start = run[0].start + len(raw) - len(raw.lstrip(_BLANKS))
            end = run[-1].end - len(raw) + len(raw.rstrip(_BLANKS))
            number = self._add_place(start, end)
            statements = () if run[0].tag is None else run[0].tag.statements
            stated = [item.value.lower() for item in statements if item.kind == "dir"]
            direction = stated[0] if stated and _is_one_element(run) else ""
            if not self.page.outer_blocks.add_text(direction) and _list_depths(run)[-1] == 0:
                self._bare[number] = bool(direction)
            if tags:
                self._tags[number] = tags
            self._new_units.append(
                Unit(str(number), source, markup="html", keep_line_breaks=False, language=self._run_language)
            )

    def _add_place(self, start: int, end: int) -> int:
        """Return the number of a new unit at this place."""
        check_texts(len(self._starts), len(self.text.content))
        self._starts.append(start)
        self._ends.append(end)
        return len(self._starts) - 1

    def keeps_tags(self, units: Sequence[Unit], written: EncodedText, translations: Mapping[str, UnitTranslation]) -> bool:
        """Return whether a written page has the tags of this one, with the texts of the units or their translations."""
        if _TEMPLATE.search(written.text):
            return False
        own = [unit for unit in units if int(unit.id) not in self._attributes]
        texts = [translations[unit.id].text if unit.id in translations else unit.source for unit in own]
        if has_same_tags(_iter_parts(self.text.text), _iter_parts(written.text), texts):
            return True
        moved = self._move_tags(own, texts)
        return moved != self.text.text and has_same_tags(_iter_parts(moved), _iter_parts(written.text), texts)

    def _move_tags(self, units: Sequence[Unit], texts: Sequence[str]) -> str:
        """Return the page with each text that only has its inline tags in another order than its source instead of that."""
        output: list[str] = []
        position = 0
        for unit, text in zip(units, texts, strict=True):
            tags, new_tags = _ANY_TAG.findall(unit.source), _ANY_TAG.findall(text)
            if (
                tags != new_tags
                and sorted(tags) == sorted(new_tags)
                and not any(map(_STRUCTURE_TAG.match, tags))
                and any(map(str.isalpha, html.unescape(_ANY_TAG.sub("", text))))
            ):
                output += [self.text.text[position : self._starts[int(unit.id)]], text]
                position = self._ends[int(unit.id)]
        return "".join([*output, self.text.text[position:]])

    def make_edits(self, translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        """Yield the edits of all texts and attributes, and of the language of the page, in the order of the page."""
        languages = self.page.make_edits(self.text, get_source_language(translations), language)
        yield from merge(languages, self._make_text_edits(translations), key=lambda edit: edit.start)

    def _make_text_edits(self, translations: Mapping[str, UnitTranslation]) -> Iterator[Edit]:
        is_inside: set[int] = set()
        for number, tags in self._tags.items():
            if str(number) in translations:
                is_inside.update(int(attribute.id) for tag in tags for attribute in tag.attributes)
        # An attribute has its number before the text that ends at its tag.
        for number in sorted(range(len(self._starts)), key=self._starts.__getitem__):
            if number in is_inside or (translation := translations.get(str(number))) is None:
                continue
            if number in self._attributes:
                text = self._attributes[number].write(translation.text)
            else:
                text = self._write_tags(self._tags.get(number, ()), translation, translations)
                if number in self._bare:
                    text = self.page.direct_text(text, translation.language, is_directed=self._bare[number])
            yield self._make_edit(self._starts[number], self._ends[number], text)

    def _make_edit(self, start: int, end: int, text: str) -> Edit:
        return self.text.make_edit(start, end, text, escape=lambda character: f"&#{ord(character)};")

    def _write_tags(
        self, tags: Sequence[_Tag], translation: UnitTranslation, translations: Mapping[str, UnitTranslation]
    ) -> str:
        """Return a text with the new attributes of its tags, most of which follow each other as in the source."""
        text = translation.text
        places: list[tuple[int, _Tag]] = []
        position = 0
        for tag in tags:
            start = text.find(tag.shown, position)
            start = text.find(tag.shown) if start < 0 else start
            if start >= 0:
                places.append((start, tag))
                position = start + len(tag.shown)
        output: list[str] = []
        position = 0
        for start, tag in sorted(places, key=lambda item: item[0]):
            output += [text[position:start], self._write_tag(tag, translation, translations)]
            position = start + len(tag.shown)
        return "".join([*output, text[position:]])

    def _write_tag(self, tag: _Tag, translation: UnitTranslation, translations: Mapping[str, UnitTranslation]) -> str:
        edits = [
            (attribute.start, attribute.end, attribute.write(translations[attribute.id].text))
            for attribute in tag.attributes
            if attribute.id in translations
        ]
        edits += self.page.list_edits(tag.statements, translation.source_language, translation.language)
        output, position = "", tag.start
        for start, end, new in sorted(edits):
            output += self.text.text[position:start] + new
            position = end
        return output + self.text.text[position : tag.end]


def _iter_parts(text: str) -> Iterator[str]:
    """Yield a page in parts that end behind a tag."""
    start = 0
    while start < len(text):
        end = text.find(">", start + _PART_CHARACTERS) + 1 or len(text)
        yield text[start:end]
        start = end


def _find_breaks(run: Sequence[_HtmlToken]) -> list[int]:
    """Return the numbers of the line breaks of a run that are in no inline element."""
    breaks: list[int] = []
    depth = 0
    if "br" not in [token.name for token in run]:
        return breaks
    for number, token in enumerate(run):
        if token.name == "br" and not token.is_end and not depth:
            breaks.append(number)
        elif token.name not in VOID_TAGS:
            depth = max(depth + token.depth_change, 0)
    return breaks


def _collapse(text: str) -> str:
    return _SPACE.sub(" ", text).strip(" ")


def _read_value(value: str) -> tuple[str, Markup]:
    """Return the text of an attribute, and its markup. References of signs and spaces beyond ASCII stay as they are."""
    text = html.unescape(value)
    if "&" not in value or "<" in text or all(map(str.isascii, map(html.unescape, REFERENCE.findall(value)))):
        return _collapse(text), "none"
    return _collapse(_QUOTES.sub(lambda match: html.unescape(match[0]), value)), "html"


def _get_statement_kind(tag: str, attribute: str, values: Mapping[str, str]) -> str:
    """Return what an attribute states: a language ("lang"), a direction ("dir"), or nothing (an empty text)."""
    if attribute in ("lang", "xml:lang"):
        return "lang"
    if tag == "meta" and attribute == "content" and values.get("http-equiv", "").lower() == "content-language":
        return "lang"
    return "dir" if attribute == "dir" else ""


def _read_values(tag: str) -> dict[str, str]:
    """Return the attributes of a tag."""
    return {match[1].lower(): match[2] or match[3] or match[4] or "" for match in _ATTRIBUTE.finditer(tag)}


def _is_locked(values: Mapping[str, str]) -> bool:
    """Return whether the attributes of an element forbid its translation."""
    return values.get("translate", "").lower() == "no" or "notranslate" in values.get("class", "").split()


def _is_kept(name: str, values: Mapping[str, str]) -> bool:
    """Return whether an element is kept with its content. An inline one is a code inside its text, so it is none of these."""
    return name in KEPT_TAGS or (bool(values) and name in BLOCK_TAGS and _is_locked(values))
