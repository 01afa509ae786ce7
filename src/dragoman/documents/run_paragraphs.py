"""Paragraphs of Office Open XML: runs of text with formatting, among fields, links and marks.

Word cuts a sentence into runs without a visible reason, such as the session in which a word was typed. So runs of equal
formatting are read as one text. The plainest formatting of a paragraph has no tag; each other one is a pair of tags. Runs of
code are kept as they are.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, groupby, takewhile
from typing import Literal

from dragoman.documents.code_formatting import FontStyles, is_monospaced
from dragoman.documents.document import Edit, Unit, UnitTranslation
from dragoman.documents.office_languages import read_run_languages, state_run, turn_paragraph
from dragoman.documents.office_texts import ALTERNATIVE_TEXTS, add_attributes_of
from dragoman.documents.xml_spans import XmlElement, XmlMarkup, XmlSource, escape_xml
from dragoman.documents.xml_units import Code, Piece, TaggedText, UnitList, name_codes, write_pieces
from dragoman.documents.zip_document import ZipMembers
from dragoman.languages import get_language
from dragoman.text.breaks import divide_at
from dragoman.text.word_codes import find_formula_end, find_formula_head, is_ordinal, is_script_mark

MAX_FIELD_DEPTH = 8
"""Fields in fields that become codes."""
_CONTAINERS = frozenset(("hyperlink", "ins", "moveTo", "smartTag", "sdt", "customXml", "dir", "bdo"))
_DROPPED = frozenset(("proofErr", "lastRenderedPageBreak"))
_SEPARATORS: dict[str, Literal["br", "tab"]] = {"br": "br", "cr": "br", "tab": "tab", "ptab": "tab"}
_BREAKS = frozenset(_SEPARATORS)
_EDGE_PROPERTIES = frozenset(("pPr", "endParaRPr"))
_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_TEXTS = frozenset(("t", *_CHARACTERS))
_PARTS_OF_DIVIDED = _BREAKS | _TEXTS | _DROPPED | {"rPr"}
_MARK = re.compile("(bookmark|commentRange|permission|perm)(Start|End)")
# What a program notes about the language and the spelling of a run: no formatting that a reader sees.
_SPELLING_TAGS = re.compile(r"<w:(?:lang|noProof)\b[^<>]*/>")
_SPELLING_ATTRIBUTES = re.compile(r"""\s(?:lang|altLang|dirty|err|smtClean|noProof)=(?:"[^"]*"|'[^']*')""")
_STYLE = re.compile(r"""<(?:\w+:)?rStyle\b[^<>]*?\bval=["']([^"']*)""")
_FONT = re.compile(r"""<(?:\w+:)?(?:rFonts\b[^<>]*?\bascii|latin\b[^<>]*?\btypeface)=["']([^"']*)""")
# Superscript and subscript of Word and of DrawingML.
_SCRIPT = re.compile(r"""<w:vertAlign\b[^<>]*?\bval=["'](superscript|subscript)|<a:rPr\b[^<>]*?\sbaseline=["'](?!0["'])(-?)""")
_DROP_CAP = re.compile(r"[^\w\s]{0,3}\w")
_NO_PROPERTIES = re.compile(r"<[\w:]+\s*(?:/>|>\s*</[\w:]+>)")


@dataclass(slots=True)
class _Item:
    """Text of a run, or a code.

    Attributes:
        span: place of the run or element; several items may come from one run without breaks
        text, properties: text and its formatting; the code is None
        stated: its formatting with the language that the run states, if it states one
        language: language of the text, if it is not that of the paragraph
        code: code; a start or end without a key is the tag of an element around runs
        field: "begin", "separate" or "end" for the marks of a field
        instruction: part of the instruction of a field
        cut: markup that ends the run before the item, and that begins it anew behind it, if the item is a part of a run
    """

    span: tuple[int, int]
    text: str = ""
    properties: str = ""
    stated: str = ""
    language: str = ""
    code: Code | None = None
    field: str = ""
    instruction: str = ""
    cut: tuple[str, str] = ("", "")


def add_paragraphs(units: UnitList, members: ZipMembers, name: str, styles: FontStyles) -> None:
    """Add the texts of all paragraphs of a member, those in text boxes also."""
    source = members.read_xml(name)
    numbers = count(1)
    cap: _Item | None = None
    add_without_cap = partial(_add_paragraphs_of, source, name, styles, numbers, None)
    for outermost in source.iter_elements(("p",)):
        add = add_without_cap if cap is None else partial(_add_paragraphs_of, source, name, styles, numbers, cap)
        cap = units.read(source, outermost, add, keep_writers=True)


def _add_paragraphs_of(
    source: XmlSource,
    name: str,
    styles: FontStyles,
    numbers: Iterator[int],
    cap: _Item | None,
    units: UnitList,
    outermost: XmlElement,
) -> _Item | None:
    """Add the texts of a paragraph and of those in it. Returns the drop cap of the next paragraph, if the last one is one.

    cap: drop cap of the first paragraph
    """
    elements = list(outermost.descend())
    paragraphs = [element for element in elements if element.name == "p" and element.namespace == outermost.namespace]
    pictures = [
        element for element in elements if element.name == "docPr" and any(map(element.attributes.get, ALTERNATIVE_TEXTS))
    ]
    holders = _find_holders(paragraphs[1:], pictures, outermost)
    for element in paragraphs:
        runs = _RunWriter.for_paragraph(source, element)
        reader = _ParagraphReader(source, element, runs, holders, styles.default)
        unit_id = f"{name}/{next(numbers)}"
        if cap is None and (cap := _read_drop_cap(reader)) is not None:
            continue
        _add_paragraph(units, unit_id, reader, styles, cap)
        cap = None
    for properties in pictures:
        if id(properties) in holders:
            add_attributes_of(source, name, {properties.name: ALTERNATIVE_TEXTS}, units, properties)
    return cap


def _find_holders(paragraphs: Sequence[XmlElement], pictures: Sequence[XmlElement], outermost: XmlElement) -> Collection[int]:
    """Return the Python ids of these paragraphs and of the elements around them, up to the outermost.

    pictures: elements of Word with an alternative text, of which those that have their own are added in the same way
    """
    holders: set[int] = set()
    for paragraph in paragraphs:
        for element in takewhile(lambda element: element is not outermost, paragraph.ascend()):
            if id(element) in holders:
                break
            holders.add(id(element))
    for properties in pictures:
        parents = list(takewhile(lambda element: element is not outermost, properties.ascend()))[1:]
        # The text of a run in which a picture stays is not translated, so the picture has to have its own.
        if not any(parent.name in _CONTAINERS or _TEXTS & {child.name for child in parent.children} for parent in parents):
            holders |= {id(properties), *map(id, parents)}
    return holders


def _read_drop_cap(reader: _ParagraphReader) -> _Item | None:
    """Return the text of a paragraph that holds the first letter of the next one as a drop cap; None for another paragraph."""
    properties = reader.paragraph.find("pPr")
    frame = None if properties is None else properties.find("framePr")
    if frame is None or frame.attributes.get(":dropCap") not in ("drop", "margin"):
        return None
    items = list(reader.read_children(reader.paragraph))
    is_cap = len(items) == 1 and items[0].code is None and _DROP_CAP.fullmatch(items[0].text) is not None
    return items[0] if is_cap else None


def _add_paragraph(units: UnitList, unit_id: str, reader: _ParagraphReader, styles: FontStyles, cap: _Item | None) -> None:
    """Add a unit for each text of a paragraph, which breaks divide. cap: first letter of the first one, before the paragraph"""
    items, style = _join_fields(list(reader.read_children(reader.paragraph)), reader.runs.write), reader.style
    language, items = _keep_languages(_keep_scripts(items, reader.runs.write), styles, style)
    items = _keep_code(items, styles, styles.get_font(style) or styles.font, reader.runs.write)
    if cap is not None and items and items[0].code is None:
        items[0] = replace(items[0], text=cap.text + items[0].text)
    else:
        cap = None
    is_first = True
    for line in map(_trim, _split_at_breaks(items)):
        if any(item.text.strip() for item in line):
            _add_line(units, unit_id, language, reader, line, is_first, cap)
            is_first, cap = False, None


def _add_line(
    units: UnitList,
    unit_id: str,
    language: str,
    reader: _ParagraphReader,
    items: Sequence[_Item],
    is_first: bool,
    cap: _Item | None,
) -> None:
    """Add a unit for a text of a paragraph. The first one also gives the paragraph its direction, and has its drop cap."""
    base = _get_base(items)
    text = name_codes(_format(items, base))
    span, cut = (items[0].span[0], items[-1].span[1]), (items[0].cut[0], items[-1].cut[1])
    has_language = any(any(read_run_languages(item.stated)) for item in items if item.stated)
    paragraph = _copy_with_properties(reader.paragraph) if is_first else None
    unit = Unit(unit_id, text.text, text.markup, keep_line_breaks=False, language=language)
    units.add(unit, _LineWriter(reader.source, reader.runs, text, span, cut, base, has_language, paragraph, cap))


@dataclass(slots=True)
class _LineWriter:
    """Writer of a text of a paragraph. A file has as many as texts, so each takes little memory.

    Attributes:
        runs, text, base: writer of its runs, the text with its codes, and the formatting outside all codes
        span, cut: place of the text, and markup that ends the run before it and begins the run behind it
        has_language: a run of it states a language
        paragraph: the paragraph with its properties, if the text gives it its direction
        cap: drop cap of the text
    """

    source: XmlSource
    runs: _RunWriter
    text: TaggedText
    span: tuple[int, int]
    cut: tuple[str, str]
    base: str
    has_language: bool
    paragraph: XmlElement | None
    cap: _Item | None

    def __call__(self, translation: UnitTranslation) -> list[Edit]:
        """Return the edits that write a translation."""

        def write_run(text: str, properties: str) -> str:
            new = state_run(text, properties, translation, is_word=self.runs.is_word, has_language=self.has_language)
            return self.runs.write(text, new)

        pieces = self.text.split(translation.text)
        edits = [] if self.paragraph is None else turn_paragraph(self.source, self.paragraph, translation.language)
        if self.cap is not None:
            letter, pieces = _take_first_letter(pieces)
            edits.append(self.source.edit(*self.cap.span, write_run(letter, self.cap.properties)))
        if any(self.cut):
            pieces = [Code("point", self.cut[0]), *pieces, Code("point", self.cut[1])]
        return edits + write_pieces(pieces, self.span, self.source, write_run, self.base)


def _copy_with_properties(paragraph: XmlElement) -> XmlElement:
    """Return a paragraph with its properties alone, which stay when the paragraph is released."""
    properties = paragraph.find("pPr")
    return paragraph.copy(() if properties is None else (properties.copy([child.copy() for child in properties.children]),))


def _take_first_letter(pieces: Sequence[Piece]) -> tuple[str, list[Piece]]:
    """Return the first letter of a translation, with marks before it, and the other pieces."""
    rest = list(pieces)
    for number, piece in enumerate(rest):
        if isinstance(piece, str) and (match := _DROP_CAP.match(piece)):
            rest[number : number + 1] = [piece[match.end() :]] if match.end() < len(piece) else []
            return match[0], rest
    return "", rest


def _split_at_breaks(items: Sequence[_Item]) -> Iterable[Sequence[_Item]]:
    """Return the items of each text, without the breaks that end a text. A break inside an element around runs stays."""
    places: list[int] = []
    depth = 0
    for number, item in enumerate(items):
        if item.code is not None:
            depth += 0 if item.code.key else item.code.depth_change
            places += [number] * (bool(item.code.separator) and not depth)
    if not places:
        return (items,)
    tabs = [number for number, place in enumerate(places) if (code := items[place].code) and code.separator == "tab"]
    return divide_at(items, places, lambda line: "".join(item.text for item in line), tabs)


@dataclass(frozen=True)
class _RunWriter:
    """Writer of runs.

    prefix: prefix of the names of its elements, with a colon
    is_word: the runs are those of Word, and not of DrawingML
    """

    prefix: str
    is_word: bool

    @classmethod
    def for_paragraph(cls, source: XmlSource, paragraph: XmlElement) -> _RunWriter:
        """Return the writer for the runs of a paragraph."""
        return _make_run_writer(source.get_prefix(paragraph), "wordprocessingml" in paragraph.namespace)

    def write(self, text: str, properties: str) -> str:
        """Return a run with this text and formatting."""
        attribute = ' xml:space="preserve"' if self.is_word and text != text.strip() else ""  # DrawingML has no such attribute
        return self.wrap(f"<{self.prefix}t{attribute}>{escape_xml(text)}</{self.prefix}t>", properties)

    def wrap(self, content: str, properties: str) -> str:
        """Return a run with this content and formatting."""
        return f"<{self.prefix}r>{properties}{content}</{self.prefix}r>"


# All paragraphs of a file have the same.
_make_run_writer = lru_cache(maxsize=16)(_RunWriter)


class _ParagraphReader:
    """Reader of the items of one paragraph. holders: Python ids of elements that have paragraphs of their own in them"""

    def __init__(
        self, source: XmlSource, paragraph: XmlElement, runs: _RunWriter, holders: Collection[int], default_style: str
    ) -> None:
        self.source = source
        self.paragraph = paragraph
        self.runs = runs
        self._holders = holders
        self._default_style = default_style

    @property
    def style(self) -> str:
        """Style of the paragraph; empty if it names none and the document has no default."""
        properties = self.paragraph.find("pPr")
        style = properties.find("pStyle") if properties else None
        return self._default_style if style is None else style.attributes.get(":val", "")

    def _get_markup(self, element: XmlElement | XmlMarkup) -> str:
        return self.source.get_markup(element.start, element.end)

    def read_children(self, element: XmlElement) -> Iterator[_Item]:
        """Yield the items of an element, in order."""
        for part in element.parts:
            if isinstance(part, XmlMarkup):
                yield _Item((part.start, part.end), code=Code("point", self._get_markup(part)))
            elif isinstance(part, XmlElement) and part.name not in _DROPPED and part.name not in _EDGE_PROPERTIES:
                yield from self._read_element(part)

    def _read_element(self, element: XmlElement) -> Iterator[_Item]:
        span = (element.start, element.end)
        is_own = element.namespace == self.paragraph.namespace
        if id(element) in self._holders:
            yield _Item(span, code=Code("point", "", fixed=span))
        elif is_own and element.name == "r":
            names = {child.name for child in element.children}
            is_divided = not names.isdisjoint(_BREAKS) and not names.isdisjoint(_TEXTS) and names <= _PARTS_OF_DIVIDED
            yield from self._cut_run(element) if is_divided else self._read_run(element, span)
        elif is_own and element.name in _CONTAINERS and not element.is_empty_tag:
            yield from self._read_container(element)
        elif is_own and (mark := _MARK.fullmatch(element.name)):
            key = f"{mark[1]} {element.attributes.get(':id', '')}"
            yield _Item(span, code=Code("start" if mark[2] == "Start" else "end", self._get_markup(element), key))
        else:
            yield _Item(
                span,
                code=Code("point", self._get_markup(element), separator=_SEPARATORS.get(element.name, "") if is_own else ""),
            )

    def _read_container(self, element: XmlElement) -> Iterator[_Item]:
        """Yield the tags of an element around runs, and what is inside. Properties before the runs belong to its start tag."""
        inner = element.find("sdtContent") or element if element.name == "sdt" else element
        if inner.is_empty_tag:
            yield _Item((element.start, element.end), code=Code("point", self._get_markup(element)))
            return
        start_end = inner.content_start
        items = []
        for part in inner.parts:
            if isinstance(part, XmlElement) and part.name.endswith("Pr"):
                start_end = part.end
            elif isinstance(part, XmlElement) and part.name not in _DROPPED:
                items += list(self._read_element(part))
        start = Code("start", self.source.get_markup(element.start, start_end), properties=_get_base(items))
        yield _Item((element.start, start_end), code=start)
        yield from items
        yield _Item((inner.content_end, element.end), code=Code("end", self.source.get_markup(inner.content_end, element.end)))

    def _cut_run(self, run: XmlElement) -> Iterator[_Item]:
        """Yield the texts and breaks of a run, which may be divided between two of them."""
        properties = run.find("rPr")
        stated = "" if properties is None else self._get_markup(properties)
        normalized = _normalize_properties(stated)
        children = [child for child in run.children if child.name in _BREAKS | _TEXTS]
        opening = self.source.get_markup(run.start, run.content_start) + stated
        closing = self.source.get_markup(run.content_end, run.end)
        for number, child in enumerate(children):
            is_first, is_last = number == 0, number == len(children) - 1
            span = (run.start if is_first else child.start, run.end if is_last else child.end)
            cut = "" if is_first else closing, "" if is_last else opening
            if child.name in _BREAKS:
                markup = self.runs.wrap(self._get_markup(child), normalized)
                code = Code("point", markup, separator=_SEPARATORS[child.name])
                yield _Item(span, code=code, cut=cut)
            else:
                yield _Item(span, _CHARACTERS.get(child.name) or child.text, normalized, stated, cut=cut)

    def _read_run(self, run: XmlElement, span: tuple[int, int]) -> Iterator[_Item]:
        properties = stated = ""
        markup = ""
        for child in run.children:
            character = _CHARACTERS.get(child.name, "")
            if child.name == "rPr":
                stated = self._get_markup(child)
                properties = _normalize_properties(stated)
                continue
            if child.name in _DROPPED:
                continue
            is_break = child.name in _BREAKS
            if markup and (is_break or child.name in ("t", "fldChar", "instrText") or character):
                yield _Item(span, code=Code("point", self.runs.wrap(markup, properties)))
                markup = ""
            if is_break:
                own_markup = self.runs.wrap(self._get_markup(child), properties)
                yield _Item(span, code=Code("point", own_markup, separator=_SEPARATORS[child.name]))
                continue
            if child.name == "t" or character:
                yield _Item(span, character or child.text, properties, stated)
            elif child.name in ("fldChar", "instrText"):
                yield _Item(
                    span,
                    code=Code("point", self.runs.wrap(self._get_markup(child), properties)),
                    field=child.attributes.get(":fldCharType", ""),
                    instruction=child.text,
                )
            else:
                markup += self._get_markup(child)
        if markup:
            yield _Item(span, code=Code("point", self.runs.wrap(markup, properties)))


@lru_cache(maxsize=16)
def _normalize_properties(markup: str) -> str:
    """Return the properties of a run without language and spelling, or nothing if none is left."""
    if not markup:
        return ""
    markup = _SPELLING_TAGS.sub("", markup)
    end = markup.find(">")
    if markup.startswith("<a:"):
        markup = _SPELLING_ATTRIBUTES.sub("", markup[:end]) + markup[end:]
    return "" if _NO_PROPERTIES.fullmatch(markup) else markup


def _keep_scripts(items: Sequence[_Item], write_run: Callable[[str, str], str]) -> list[_Item]:
    """Return the items with one code for each mark of a note, exponent and formula, and ordinals without a superscript."""
    output: list[_Item] = []
    remaining = deque(items)
    if not any(map(_SCRIPT.search, {item.properties for item in items})):  # so are most paragraphs
        output, remaining = list(items), deque()
    while remaining:
        item = remaining.popleft()
        before = output[-1] if output and output[-1].code is None else None
        if item.code is not None or not item.properties or not _SCRIPT.search(item.properties):
            output.append(item)
        elif before is not None and is_ordinal(before.text, item.text) and not _is_subscript(item):
            output.append(replace(item, properties=before.properties, stated=before.stated))
        elif not is_script_mark(item.text):
            output.append(item)
        else:
            markup, first, last = write_run(item.text, item.properties), item, item
            if before is not None and _is_subscript(item) and (head := find_formula_head(before.text)):
                output[-1] = replace(before, text=before.text.removesuffix(head))
                markup, first = write_run(head, before.properties) + markup, before
                while remaining and (end := _take_formula(remaining)) is not None:
                    markup, last = markup + write_run(end.text, end.properties), end
            cut = first.cut[0], last.cut[1]
            output.append(_Item((first.span[0], last.span[1]), code=Code("point", markup), cut=cut))
    return [item for item in output if item.code is not None or item.text]


def _is_subscript(item: _Item) -> bool:
    match = _SCRIPT.search(item.properties)
    return match is not None and (match[1] == "subscript" or match[2] == "-")


def _take_formula(remaining: deque[_Item]) -> _Item | None:
    """Return what continues a formula at the start of the items, and remove it from them; None if the formula ends."""
    item = remaining[0]
    if item.code is not None:
        return None
    if _SCRIPT.search(item.properties):
        return remaining.popleft() if is_script_mark(item.text) else None
    end = find_formula_end(item.text)
    if not end:
        return None
    remaining[0] = replace(item, text=item.text[len(end) :])
    if not remaining[0].text:
        remaining.popleft()
    return replace(item, text=end)


def _keep_languages(items: list[_Item], styles: FontStyles, style: str) -> tuple[str, list[_Item]]:
    """Return the language of a paragraph, and the items, of which those in another language keep it in their formatting.

    The language of a paragraph is that of the document (empty) if a run with letters has it, and else that of most letters.
    """
    codes: dict[str, str] = {}
    languages: list[str] = []
    for item in items:
        run_style = _read_style_and_font(item.properties)[0]
        code = (
            (read_run_languages(item.stated).select(item.text) if item.stated else "")
            or (styles.get_language(run_style, item.text) if run_style else "")
            or styles.get_language(style, item.text)
            or styles.languages.select(item.text)
        )
        languages.append(get_language(code))
        codes.setdefault(languages[-1], code)
    document_language, main = get_language(styles.language), next(iter(codes), "")
    if len(codes) > 1:
        counts: Counter[str] = Counter()
        for item, language in zip(items, languages, strict=True):
            counts[language] += sum(map(str.isalpha, item.text))
        main = document_language if counts[document_language] else max(counts, key=counts.__getitem__)
        items = [
            replace(item, properties=item.stated, language=codes[language])
            if language != main and item.stated and any(read_run_languages(item.stated)) and any(map(str.isalpha, item.text))
            else item
            for item, language in zip(items, languages, strict=True)
        ]
    return "" if main == document_language else codes.get(main, ""), items


def _keep_code(
    items: list[_Item], styles: FontStyles, paragraph_font: str, write_run: Callable[[str, str], str]
) -> list[_Item]:
    """Return the items with one code for each text that is code, or for neighbors of one formatting."""
    code_properties: set[str] = set()
    monospaced_properties: set[str] = set()
    for properties in {item.properties for item in items if item.code is None}:
        style, font = _read_style_and_font(properties)
        if styles.is_code(style):
            code_properties.add(properties)
        elif is_monospaced(font or styles.get_font(style)) and not is_monospaced(paragraph_font):
            monospaced_properties.add(properties)
    if not code_properties and not monospaced_properties:
        return items
    others = (item.text for item in items if item.properties not in code_properties | monospaced_properties)
    if any(character.isalpha() for text in others for character in text):
        code_properties |= monospaced_properties

    def get_code_properties(item: _Item) -> str | None:
        return item.properties if item.properties in code_properties else None

    output: list[_Item] = []
    for properties_of_code, group in groupby(items, get_code_properties):
        neighbors = list(group)
        if properties_of_code is None:
            output += neighbors
            continue
        text = "".join(item.text for item in neighbors)
        span = (neighbors[0].span[0], neighbors[-1].span[1])
        output.append(_Item(span, code=Code("point", write_run(text, properties_of_code))))
    return output


@lru_cache(maxsize=16)
def _read_style_and_font(properties: str) -> tuple[str, str]:
    """Return the style and the font that the formatting of a run names, each empty if it names none."""
    style, font = (match[1] if (match := pattern.search(properties)) else "" for pattern in (_STYLE, _FONT))
    return style, font


def _get_base(items: Sequence[_Item]) -> str:
    """Return the plainest formatting of the texts outside the elements among the items."""
    depth = 0
    properties = set()
    for item in items:
        if item.code is None and not depth and not item.language:
            properties.add(item.properties)
        elif item.code is not None and not item.code.key:
            depth += item.code.depth_change
    return min(properties, key=lambda markup: (len(markup), markup), default="")


def _trim(items: Sequence[_Item]) -> Sequence[_Item]:
    """Return the items without the points at both ends, as far as these are not in one run with a text."""
    start, end = 0, len(items)

    def is_point(item: _Item) -> bool:
        if item.code is None or item.field or item.instruction:
            return False
        return not item.code.depth_change or bool(item.code.key)

    while start < end - 1 and is_point(items[start]) and items[start].span[1] <= items[start + 1].span[0]:
        start += 1
    while start < end - 1 and is_point(items[end - 1]) and items[end - 2].span[1] <= items[end - 1].span[0]:
        end -= 1
    return items[start:end]


def _join_fields(items: list[_Item], write_run: Callable[[str, str], str], depth: int = 0) -> list[_Item]:
    """Return the items with each complete field as a pair of codes around its text if it is a link, and as one code otherwise.

    A field that goes on in other paragraphs, such as a table of contents, stays a sequence of codes among its texts, and so
    does one in `MAX_FIELD_DEPTH` others.
    """
    output: list[_Item] = []
    ends = _find_field_ends(items) if depth < MAX_FIELD_DEPTH and any(item.field for item in items) else {}
    if not ends:
        return items
    index = 0
    while index < len(items):
        end = ends.get(index, -1)
        if end < 0:
            output.append(items[index])
            index += 1
            continue
        content = items[index : end + 1]
        separator, instruction = _read_instruction(content)
        span = (content[0].span[0], content[-1].span[1])
        if instruction.split()[:1] == ["HYPERLINK"] and separator:
            inner = content[separator + 1 : -1]
            start = Code("start", _write_items(content[: separator + 1], write_run), properties=_get_base(inner))
            output.append(_Item((span[0], content[separator].span[1]), code=start))
            output += _join_fields(inner, write_run, depth + 1)
            output.append(_Item(content[-1].span, code=Code("end", _write_items(content[-1:], write_run))))
        else:
            output.append(_Item(span, code=Code("point", _write_items(content, write_run))))
        index = end + 1
    return output


def _find_field_ends(items: Sequence[_Item]) -> dict[int, int]:
    """Return the index of the end of each field by that of its begin.

    A field that does not end here has none, nor has one with a part of an element or with a code of a fixed place in it.
    """
    ends: dict[int, int] = {}
    begins: list[tuple[int, int, int]] = []  # index, depth of elements, and codes of a fixed place before it
    lowest: list[int] = []  # lowest depth of elements since each begin
    depth = num_fixed = 0
    for index, item in enumerate(items):
        if item.field == "begin":
            begins.append((index, depth, num_fixed))
            lowest.append(depth)
        if item.code is not None:
            num_fixed += item.code.fixed is not None
            depth += 0 if item.code.key else item.code.depth_change
            lowest[-1:] = [min(lowest[-1], depth)] if lowest else []
        if item.field == "end" and begins:
            start, depth_before, fixed_before = begins.pop()
            lowest_depth = lowest.pop()
            lowest[-1:] = [min(lowest[-1], lowest_depth)] if lowest else []
            if lowest_depth == depth == depth_before and num_fixed == fixed_before:
                ends[start] = index
    return ends


def _read_instruction(content: Sequence[_Item]) -> tuple[int, str]:
    """Return the index of the separator of a field, or 0, and its instruction."""
    depth = 0
    instruction = ""
    for index, item in enumerate(content):
        depth += {"begin": 1, "end": -1}.get(item.field, 0)
        if depth == 1:
            instruction += item.instruction
            if item.field == "separate":
                return index, instruction
    return 0, instruction


def _write_items(items: Sequence[_Item], write_run: Callable[[str, str], str]) -> str:
    return "".join(item.code.markup if item.code else write_run(item.text, item.properties) for item in items)


def _format(items: Sequence[_Item], base: str) -> Iterator[Piece]:
    """Yield the texts and codes of items, with a pair of codes around texts whose formatting is not that around them."""
    bases = [base]
    current = base
    languages = {item.properties: item.language for item in items if item.language}
    following = _list_next_properties(items)
    for index, item in enumerate(items):
        code = item.code
        wanted_properties = item.properties
        if code is not None:
            is_element = bool(code.depth_change) and not code.key
            next_properties = following[index]
            wanted_properties = bases[-1] if is_element or next_properties is None else next_properties
            wanted_properties = current if wanted_properties == current else bases[-1]
        if wanted_properties != current:
            if current != bases[-1]:
                yield Code("end", "")
            if wanted_properties != bases[-1]:
                yield Code("start", "", properties=wanted_properties, language=languages.get(wanted_properties, ""))
            current = wanted_properties
        if code is None:
            yield item.text
            continue
        yield code
        if not code.key and code.is_start:
            bases.append(code.properties or "")
            current = bases[-1]
        elif not code.key and code.is_end:
            bases.pop()
            current = bases[-1]
    if current != base:
        yield Code("end", "")


def read_runs(formatted: Iterable[tuple[str, str]]) -> tuple[TaggedText, str]:
    """Return the text of runs, and the plainest formatting, which has no tag. formatted: formatting and text of each run"""
    items = [_Item((0, 0), text, properties) for properties, text in formatted]
    base = _get_base(items)
    return name_codes(_format(items, base)), base


def _list_next_properties(items: Sequence[_Item]) -> list[str | None]:
    """Return the formatting of the next text at each item, or None if an element starts or ends before it."""
    output: list[str | None] = []
    properties: str | None = None
    for item in reversed(items):
        if item.code is None:
            properties = item.properties
        elif item.code.depth_change and not item.code.key:
            properties = None
        output.append(properties)
    return output[::-1]
