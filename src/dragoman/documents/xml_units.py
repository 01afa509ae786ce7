"""Texts with tags from XML, and the way back: each code of the file has a short tag in the text of a unit.

`<g1>…</g1>` is a pair of codes, `<x2/>` is one code, and `<br3/>` and `<tab4/>` are breaks. The numbers count the codes of a
text. So a text has no attributes and no native markup. A translation can be checked: it has each tag of its source once, and
pairs nest.
"""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from dragoman.documents.document import (
    BILINGUAL_FORMATS,
    Document,
    Edit,
    Remarks,
    Unit,
    UnitTranslation,
    divide_units,
)
from dragoman.documents.icu_message import has_branches
from dragoman.documents.reading import check_codes, check_texts
from dragoman.documents.xml_spans import (
    XmlElement,
    XmlMarkup,
    XmlPlace,
    XmlSource,
    XmlText,
    escape_xml,
    get_tag_name,
    set_attribute,
)
from dragoman.errors import DataError
from dragoman.languages import is_same_language
from dragoman.text.inline_codes import Markup
from dragoman.text.nesting import Nested

_NAMED_FORMATS = BILINGUAL_FORMATS | {"android", "resx"}
"""Formats in which each text has a name, so that it is one also without a letter."""
_SHORT_TAG = re.compile(r"</?(?P<pair>g\d+)(?: lang=\"[\w-]*\")?>|<(?:x|br|tab)\d+/>")


@dataclass(frozen=True, slots=True)
class Code(Nested):
    """Code in a text.

    Attributes:
        kind: "start" and "end" of a pair, or "point"
        markup: XML that it stands for, as it is in the file
        key: name that a start and an end share, if the pair may cross XML elements; empty for the tags of an element
        properties: formatting of the text after a start, for formats that write it at each run of text; None if it stays
        fixed: place in the file, if it contains texts that are units of their own; it is not copied, but written around
        language: code that the element of a start states, if it is not that of the text around it
        separator: "br" for a line break, "tab" for a tab, and empty for any other code
    """

    kind: Literal["start", "end", "point"]
    markup: str
    key: str = ""
    properties: str | None = None
    fixed: tuple[int, int] | None = None
    language: str = ""
    separator: Literal["", "br", "tab"] = ""


Piece = str | Code
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaggedText:
    """Text with short tags.

    text: the text; with character references if it has a tag
    codes: code of each short tag, in order
    """

    text: str
    codes: dict[str, Code] = field(default_factory=dict)

    @property
    def markup(self) -> Markup:
        """Markup of the text, as a unit states it."""
        return "xml" if self.codes else "none"

    @property
    def has_words(self) -> bool:
        """Return whether the text has more than codes and white space."""
        return bool((_SHORT_TAG.sub("", self.text) if self.codes else self.text).strip())

    def split(self, translation: str) -> list[Piece]:
        """Return the pieces of a translation, which may have tags of a message with branches in each branch.

        Raises DataError if a tag is missing, doubled elsewhere, or crosses a pair.
        """
        if not self.codes:
            return [translation]
        pieces: list[Piece] = []
        tags: list[str] = []
        open_tags: list[str] = []
        position = 0
        for match in _SHORT_TAG.finditer(translation):
            tag = match[0]
            if tag not in self.codes:
                continue
            pieces.append(html.unescape(translation[position : match.start()]))
            pieces.append(self.codes[tag])
            tags.append(tag)
            position = match.end()
            if tag.startswith("<g"):
                open_tags.append(match["pair"])
            elif tag.startswith("</") and (not open_tags or open_tags.pop() != match["pair"]):
                raise DataError(f"the tag {tag} of a translation has no partner: {translation[:80]!r}", code="invalid-data")
        can_repeat = has_branches(self.text) and not any(code.fixed for code in self.codes.values())
        if set(tags) != self.codes.keys() or not (can_repeat or len(tags) == len(self.codes)):
            raise DataError(
                f"a translation has the tags {' '.join(tags) or 'of no code'}, and its source has {' '.join(self.codes)}",
                code="invalid-data",
            )
        pieces.append(html.unescape(translation[position:]))
        return [piece for piece in pieces if piece != ""]

    def write(self, translation: str) -> str:
        """Return the XML of a translation. Raises DataError as `split` does."""
        pieces = self.split(translation)
        return "".join(piece.markup if isinstance(piece, Code) else escape_xml(piece) for piece in pieces)


def name_codes(pieces: Iterable[Piece], known: TaggedText | None = None) -> TaggedText:
    """Return the text of pieces, in which each code has a short tag.

    known: text whose short tags are used for equal codes, as far as it has them
    """
    pieces = _match_pairs(list(pieces))
    if not any(isinstance(piece, Code) for piece in pieces):
        return TaggedText("".join(piece for piece in pieces if isinstance(piece, str)))
    free: dict[tuple[str, str], deque[str]] = {}
    is_message = known is not None and has_branches(known.text)
    for tag, code in known.codes.items() if known else ():
        if not code.is_end:
            free.setdefault((code.kind, code.markup), deque()).append(tag.strip("</>").partition(" ")[0])
    number = sum(not code.is_end for code in known.codes.values()) if known else 0
    output: list[str] = []
    codes: dict[str, Code] = {}
    open_names: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            output.append(escape_xml(piece))
            continue
        if piece.is_end:
            tag = f"</{open_names.pop()}>"
        else:
            names = free.get((piece.kind, piece.markup))
            if not names:
                number += 1
            letters = "g" if piece.is_start else piece.separator or "x"
            name = (names[0] if is_message else names.popleft()) if names else f"{letters}{number}"
            if piece.is_start:
                open_names.append(name)
            language = re.sub(r"[^\w-]", "", piece.language) if piece.language else ""
            tag = f"<{name}/>" if not piece.depth_change else f'<{name} lang="{language}">' if language else f"<{name}>"
        codes[tag] = piece
        check_codes(len(codes))
        output.append(tag)
    return TaggedText("".join(output), codes)


def _match_pairs(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with points for starts and ends that have no partner or would cross the tags of an element."""
    open_starts: list[tuple[int, str]] = []
    open_keys: list[defaultdict[str, int]] = [
        defaultdict(int)
    ]  # of the starts inside each open element, whose tags cannot be crossed
    for index, piece in enumerate(pieces):
        if not isinstance(piece, Code) or not piece.depth_change:
            continue
        if piece.is_start:
            open_starts.append((index, piece.key))
            if piece.key:
                open_keys[-1][piece.key] += 1
            else:
                open_keys.append(defaultdict(int))
        elif open_keys[-1][piece.key] if piece.key else len(open_keys) > 1:
            while open_starts[-1][1] != piece.key:
                crossed, key = open_starts.pop()
                pieces[crossed] = _to_point(pieces[crossed])
                open_keys[-1][key] -= 1
            open_starts.pop()
            if piece.key:
                open_keys[-1][piece.key] -= 1
            else:
                open_keys.pop()
        else:
            pieces[index] = _to_point(piece)
    for index, _ in open_starts:
        pieces[index] = _to_point(pieces[index])
    return pieces


def _to_point(piece: Piece) -> Piece:
    return replace(piece, kind="point") if isinstance(piece, Code) else piece


def read_parts(
    source: XmlSource,
    parts: Iterable[XmlElement | XmlText | XmlMarkup],
    read_element: Callable[[XmlElement], list[Piece]],
) -> list[Piece]:
    """Return the pieces of parts of an element: texts, points for comments, and those that `read_element` makes."""
    pieces: list[Piece] = []
    for part in parts:
        if isinstance(part, XmlText):
            pieces.append(part.text)
        elif isinstance(part, XmlElement):
            pieces += read_element(part)
        elif not (point := make_point(source, part)).markup.startswith(("<![CDATA[", "]]>")):
            pieces.append(point)
    joined: list[Piece] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        neighbors = list(group)
        joined += ["".join(cast(list[str], neighbors))] if is_text else neighbors
    return joined


def make_pair(source: XmlSource, element: XmlElement, content: list[Piece], language: str = "") -> list[Piece]:
    """Return the codes of an element around the pieces of its content.

    language: code that the element states, if it is not that of the text around it
    """
    if element.is_empty_tag:
        return [make_point(source, element)]
    return [
        Code("start", source.get_tag(element), language=language),
        *content,
        Code("end", source.get_markup(element.content_end, element.end)),
    ]


def make_point(source: XmlSource, element: XmlElement | XmlMarkup) -> Code:
    """Return one code for a whole element."""
    return Code("point", source.get_markup(element.start, element.end))


def make_break(source: XmlSource, element: XmlElement) -> Code:
    """Return the code of a line break, or of a tab by the name of its element."""
    return replace(make_point(source, element), separator="tab" if element.name.endswith("tab") else "br")


def write_pieces(
    pieces: Sequence[Piece],
    span: tuple[int, int],
    source: XmlSource,
    write_text: Callable[[str, str], str] = lambda text, properties: escape_xml(text),
    properties: str = "",
) -> list[Edit]:
    """Return the edits that put pieces into a span, around the codes with a fixed place.

    write_text: function from a text and its formatting to XML
    properties: formatting outside all codes
    """
    fixed_places = sorted(piece.fixed for piece in pieces if isinstance(piece, Code) and piece.fixed)
    stack = [properties]
    outputs: list[list[str]] = [[]]
    for piece in pieces:
        if isinstance(piece, str):
            outputs[-1].append(write_text(piece, stack[-1]))
        elif piece.fixed:
            outputs.append([])
        else:
            outputs[-1].append(piece.markup)
            if piece.is_start:
                stack.append(stack[-1] if piece.properties is None else piece.properties)
            elif piece.is_end:
                stack.pop()
    starts = [span[0], *(end for _, end in fixed_places)]
    ends = [*(start for start, _ in fixed_places), span[1]]
    return [source.edit(start, end, "".join(output)) for start, end, output in zip(starts, ends, outputs, strict=True)]


def write_content(element: XmlElement, text: str) -> str:
    """Return a plain text as the content of an element: in a CDATA section if the element has its whole text in one."""
    texts = [part for part in element.parts if isinstance(part, XmlText)]
    if texts and all(part.is_cdata or not part.text.strip() for part in texts) and any(part.is_cdata for part in texts):
        escape_xml(text)
        return "<![CDATA[" + text.replace("]]>", "]]]]><![CDATA[>") + "]]>"
    return escape_xml(text)


def write_text(source: XmlSource, element: XmlElement, translation: UnitTranslation) -> list[Edit]:
    """Return the edit that gives an element a plain translation."""
    markup = write_content(element, translation.text)
    if not element.is_empty_tag:
        return [source.edit(element.content_start, element.content_end, markup)]
    tag = source.get_start_tag(element)
    return source.edit_tag(element, f"{tag}{markup}</{get_tag_name(tag)}>")


def set_attributes(start_tag: str, attributes: Mapping[str, str]) -> str:
    """Return a start tag with these attributes, as `set_attribute` sets one."""
    for name, value in attributes.items():
        start_tag = set_attribute(start_tag, name, value)
    return start_tag


def write_element(
    source: XmlSource,
    present: XmlElement | None,
    name: str,
    attributes: Mapping[str, str],
    markup: str,
    place: int,
    indent: str = "",
) -> Edit:
    """Return the edit that writes an element with this content.

    present: element that gets it; without one, a new one stands at a place, behind white space such as an indent
    """
    tag = f"{indent}<{name}>" if present is None else source.get_start_tag(present)
    span = (place, place) if present is None else (present.start, present.end)
    return source.edit(*span, f"{set_attributes(tag, attributes)}{markup}</{name}>")


@dataclass(frozen=True, slots=True)
class _EmptyTag(Edit):
    """Element that is one tag. opening, closing: its tags around a value"""

    opening: bytes
    closing: bytes

    def fill(self, content: bytes) -> Edit:
        return Edit(self.start, self.end, self.opening + content + self.closing)


def find_values(source: XmlSource, elements: Iterable[tuple[str, XmlElement]], unit_keys: Collection[str]) -> dict[str, Edit]:
    """Return the contents of elements that are no units, by their keys, as edits that change nothing."""
    values: dict[str, Edit] = {}
    for key, element in elements:
        if key not in unit_keys:
            start, end = element.content_start, element.content_end
            values[key] = Edit(start, end, source.content[start:end])
            if element.is_empty_tag:
                tag = source.get_start_tag(element)
                around = source.encode(tag), source.encode(f"</{get_tag_name(tag)}>")
                values[key] = _EmptyTag(element.start, element.end, b"", *around)
    return values


Writer = Callable[[UnitTranslation], Sequence[Edit]]
MAX_ID = 200
"""Most characters of the id that a file gives a unit."""
MAX_KEPT_BYTES = 3 * 2**22
"""Memory of the writers that stay, with their elements. The elements behind them are read again to write them."""
_WRITER_BYTES = 1000
"""Memory of a writer beside its element, measured with 8,000 paragraphs of three runs"""


@dataclass(frozen=True, eq=False, slots=True)
class _ElementReading:
    """Element whose units are read again to write them.

    Attributes:
        add: function that adds its units to a list
        name, start, end, parents: its place
    """

    source: XmlSource
    add: Callable[[UnitList, XmlElement], object]
    name: str
    start: int
    end: int
    parents: tuple[tuple[int, int], ...]

    def list_units(self) -> UnitList:
        """Return the units of the element."""
        units = UnitList()
        self.add(units, self.source.read_element(XmlPlace(self.name, self.start, self.end, self.parents)))
        return units


class UnitList:
    """Units of a document that is being read, and how each is written. num_bytes: size of the file, which limits the units"""

    def __init__(self, num_bytes: int = 0) -> None:
        self.units: list[Unit] = []
        self._num_bytes = num_bytes
        self._writers: dict[str, Writer | _ElementReading] = {}
        self._remarks: dict[str, Callable[[], Remarks]] = {}
        self._numbers: dict[str, int] = {}  # of the units behind the first of their element
        self._counts: dict[str, int] = {}
        self._last: tuple[_ElementReading, UnitList] | None = None  # of the element that was written last
        self._kept_bytes = 0

    def add(self, unit: Unit, write: Writer, list_remarks: Callable[[], Remarks] = dict) -> None:
        """Add a unit. If another has its id, it gets a number behind it. Raises DataError if there are too many."""
        self._remarks[self._add(unit, write)] = list_remarks

    def _add(self, unit: Unit, writer: Writer | _ElementReading, number: int = 0) -> str:
        short_id = unit.id[:MAX_ID]
        name = short_id
        while name in self._writers:
            count = self._counts[short_id] = self._counts.get(short_id, 1) + 1
            name = f"{short_id}#{count}"
        self.units.append(unit if name == unit.id else replace(unit, id=name))
        self._writers[name] = writer
        if number:
            self._numbers[name] = number
        check_texts(len(self.units), self._num_bytes)
        return name

    def read(
        self, source: XmlSource, element: XmlElement, add: Callable[[UnitList, XmlElement], _T], *, keep_writers: bool = False
    ) -> _T:
        """Add the units of an element that `iter_elements` yields. Memory keeps its place, and writing reads it again.

        add: function that adds the units of the element to a list
        keep_writers: the writers of the units need no part of the element, so they stay, up to `MAX_KEPT_BYTES`

        Returns what the function returns.
        """
        if keep_writers and self._kept_bytes <= MAX_KEPT_BYTES:
            num_before = len(self.units)
            result = add(self, element)
            self._kept_bytes += element.end - element.start + _WRITER_BYTES * (len(self.units) - num_before)
            return result
        own_units = UnitList()
        result = add(own_units, element)
        place = source.get_place(element)
        reading = _ElementReading(source, add, place.name, place.start, place.end, place.parents)
        for number, unit in enumerate(own_units.units):
            self._add(unit, reading, number)
        return result

    def make_edits(self, unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        """Return the edits that write a translation."""
        writer = self._writers[unit.id]
        if not isinstance(writer, _ElementReading):
            return writer(translation)
        own_units = self._read_again(writer)
        return own_units.make_edits(own_units.units[self._numbers.get(unit.id, 0)], translation)

    def list_remarks(self, name: str) -> Remarks:
        """Return what is written beside the unit of an id."""
        if not isinstance(writer := self._writers.get(name), _ElementReading):
            return self._remarks[name]() if name in self._remarks else {}
        own_units = self._read_again(writer)
        return own_units.list_remarks(own_units.units[self._numbers.get(name, 0)].id)

    def _read_again(self, writer: _ElementReading) -> UnitList:
        """Return the units of an element, which is read again unless it is the last one."""
        if self._last is None or self._last[0] is not writer:
            if self._last is not None and self._last[0].source is not writer.source:
                self._last[0].source.end_reading()
            self._last = writer, writer.list_units()
        return self._last[1]

    def settle_language(self, language: str) -> str:
        """Return the language of most characters of the units, and take it from the units that state it themselves.

        language: code of the document's own language, which units without a code have
        """
        counts: Counter[str] = Counter()
        for unit in self.units:
            counts[unit.language] += len(unit.source)
        main = max(counts, key=counts.__getitem__, default="") or language
        if not is_same_language(main, language):
            codes = {unit.language: "" if is_same_language(unit.language, main) else unit.language for unit in self.units}
            self.units = [replace(unit, language=codes[unit.language] if unit.language else language) for unit in self.units]
        return main

    def make_document(
        self, content: bytes, format_name: str, *, skipped: Mapping[str, int] = MappingProxyType({}), **attributes: Any
    ) -> Document:
        """Return the document with these units, and with other attributes."""
        texts, others = (self.units, []) if format_name in _NAMED_FORMATS else divide_units(self.units)
        return Document(
            content,
            texts,
            format_name,
            self.make_edits,
            other_units=others,
            list_remarks=self.list_remarks,
            skipped={name: number for name, number in skipped.items() if number},
            **attributes,
        )
