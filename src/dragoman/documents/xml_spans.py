"""Reader of XML that gives the place of every element and text in the original bytes.

It opens no external entity, and refuses a file that declares default values of attributes, or entities where the format has
none. A short entity stays a reference. So a file never unpacks to much more than it has.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from xml.parsers import expat

from dragoman.documents.document import Edit, Remark, Sliceable
from dragoman.documents.encoded_text import check_encoding
from dragoman.documents.reading import MAX_PARTS, TEXT_ELEMENTS, check_elements, check_goes_on, check_parts
from dragoman.errors import DataError

MAX_BYTES = 2**28
"""Size of the largest XML file that is read."""
MAX_DEPTH = 256
"""Depth of elements in elements."""
MAX_DECLARED_ATTRIBUTES = 64
"""Attributes that a document type inside the file declares."""
MAX_ENTITY = 100
"""Characters of the text of a declared entity, which expat inserts in values of attributes."""
MAX_NAMES = 20_000
"""Most names of elements, attributes and namespaces, which stay in memory until the file is read."""
MAX_ELEMENT_BYTES = 2**23
"""Size of the largest element that is read as a whole, such as a paragraph or a chapter, and of the largest comment."""
_CHUNK_BYTES = 2**16
_MAX_TAG = 2**20
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})
_XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
_DECLARED_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']([A-Za-z][\w.-]*)")
_ATTRIBUTE = re.compile(r"""(?<!\s)\s++([^\s=<>/"']++)\s*+=\s*+("[^"]*+"|'[^']*+')""")
_TAG_END = re.compile(r"(?<!\s)\s*+/?>$")
_ENCODING_STARTS = (
    ((codecs.BOM_UTF16_LE + b"<\0", b"<\0"), "utf-16-le"),
    ((codecs.BOM_UTF16_BE + b"\0<", b"\0<"), "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
_TAG_NAME = re.compile(r"<([^\s<>/]+)")
_NAMED_CHARACTER = re.compile(r"&[A-Za-z][A-Za-z0-9]*;")
# Characters that XML 1.0 cannot hold, see https://www.w3.org/TR/xml/#charsets
_ILLEGAL_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class XmlText:
    """Text between two other parts, and its place.

    is_cdata: it stands in a CDATA section
    """

    text: str
    start: int
    end: int
    is_cdata: bool = False


@dataclass(slots=True)
class XmlMarkup:
    """Comment, processing instruction, reference to a declared entity, or border of a CDATA section."""

    start: int
    end: int


@dataclass(slots=True)
class XmlElement:
    """Element and its place.

    Attributes:
        name: local name, without a prefix
        namespace: address of the namespace, or empty
        attributes: values by name; "xml:NAME" for those of XML, and ":NAME" for those of other namespaces
        start, end: place of the whole element, in bytes
        content_start, content_end: place of what is between its tags; both are `end` if it is one empty tag
        parent: element around it
        parts: its content; only for an element that `iter_elements` yields, until it yields the next one, and inside one
    """

    name: str
    namespace: str
    attributes: Mapping[str, str]
    start: int
    parent: XmlElement | None
    content_start: int = -1
    content_end: int = -1
    end: int = -1
    parts: Sequence[XmlElement | XmlText | XmlMarkup] = ()

    @property
    def children(self) -> Iterator[XmlElement]:
        """Elements directly inside."""
        return (part for part in self.parts if isinstance(part, XmlElement))

    @property
    def is_empty_tag(self) -> bool:
        """Return whether it is one tag, such as `<target/>`."""
        return self.content_start == self.end

    @property
    def text(self) -> str:
        """Text of the element and of those inside."""
        return "".join([part.text for part in self.parts if not isinstance(part, XmlMarkup)])

    def find(self, name: str) -> XmlElement | None:
        """Return the first element of this name directly inside, of the same namespace."""
        for part in self.parts:
            if isinstance(part, XmlElement) and part.name == name and part.namespace == self.namespace:
                return part
        return None

    def find_all(self, name: str) -> list[XmlElement]:
        """Return the elements of this name directly inside, of the same namespace."""
        return [child for child in self.children if child.name == name and child.namespace == self.namespace]

    def descend(self) -> Iterator[XmlElement]:
        """Yield this element and all inside, in the order of their start tags."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            if element.parts:
                waiting += [part for part in reversed(element.parts) if isinstance(part, XmlElement)]

    def release(self) -> None:
        """Drop the content of this element and of all inside, which a full garbage collection would otherwise have to find."""
        waiting = [self]
        for element in waiting:
            if element.parts:
                waiting += [part for part in element.parts if isinstance(part, XmlElement)]
                element.parts = ()

    def copy(self, parts: Sequence[XmlElement] = ()) -> XmlElement:
        """Return the element without its parent, and with these parts alone."""
        places = self.content_start, self.content_end, self.end
        return XmlElement(self.name, self.namespace, self.attributes, self.start, None, *places, parts)

    def ascend(self) -> Iterator[XmlElement]:
        """Yield this element and those around it, the outermost last."""
        element: XmlElement | None = self
        while element is not None:
            yield element
            element = element.parent

    def get_inherited(self, attribute: str) -> str:
        """Return the attribute of this element or of the nearest element around it that has it, or an empty text."""
        return next((element.attributes[attribute] for element in self.ascend() if attribute in element.attributes), "")


class XmlSource:
    """Bytes of an XML file and their encoding.

    has_entities: whether the file may declare short texts as entities; a reference to one in a text is an `XmlMarkup`
    offset: place of the file in what edits are spans of, such as that of a member among those of an archive

    Raises DataError for an unknown encoding and for a file above MAX_BYTES.
    """

    def __init__(self, content: Sliceable, *, has_entities: bool = False, offset: int = 0) -> None:
        if len(content) > MAX_BYTES:
            raise DataError(
                f"the XML file has {len(content):,} bytes, more than {MAX_BYTES:,}; divide it into smaller ones",
                code="input-too-long",
            )
        self.content, self._offset = content, offset
        self._has_entities = has_entities
        self._entities: set[str] = set()
        start = content[:_CHUNK_BYTES]
        self.encoding = _detect_encoding(start)
        self._root: XmlElement | None = None
        self._parent_start = -1
        self._parents: tuple[tuple[int, int], ...] = ()
        self._fragments: _FragmentReader | None = None
        self.line_break = "\r\n" if "\r\n".encode(self.encoding) in start else "\n"

    def get_markup(self, start: int, end: int) -> str:
        """Return a part of the file as it stands there."""
        return self.content[start:end].decode(self.encoding)

    def encode(self, markup: str) -> bytes:
        """Return the bytes of new markup: line breaks as the file has them, references for characters that it cannot hold."""
        if self.line_break != "\n":
            markup = markup.replace("\r\n", "\n").replace("\n", self.line_break)
        return markup.encode(self.encoding, "xmlcharrefreplace")

    def edit(self, start: int, end: int, markup: str) -> Edit:
        """Return the replacement of a part of the file."""
        return Edit(start + self._offset, end + self._offset, self.encode(markup))

    def get_tag(self, element: XmlElement) -> str:
        """Return the start tag of an element, which may be its only one, as it stands there."""
        return self.get_markup(element.start, element.content_start)

    def get_prefix(self, element: XmlElement) -> str:
        """Return what stands before the local name of an element, with the colon."""
        return get_tag_name(self.get_tag(element)).removesuffix(element.name)

    def get_start_tag(self, element: XmlElement) -> str:
        """Return the start tag that an element gets with content; that of an empty one loses its slash."""
        tag = self.get_tag(element)
        return tag.removesuffix("/>").rstrip() + ">" if element.is_empty_tag else tag

    def edit_tag(self, element: XmlElement, tag: str) -> list[Edit]:
        """Return the edit that gives an element another start tag; none if it has this one."""
        return [] if tag == self.get_tag(element) else [self.edit(element.start, element.content_start, tag)]

    def get_indent(self, element: XmlElement) -> str:
        """Return the line break and the spaces before an element, or nothing if other text is there."""
        start = element.start
        for part in element.parent.parts if element.parent else []:
            if part is element:
                break
            if not isinstance(part, XmlText):
                start = element.start
            elif start == element.start:
                start = part.start
        before = self.get_markup(start, element.start)
        return before[before.rfind("\n") :] if "\n" in before and not before.strip() else ""

    def get_indented_start(self, element: XmlElement) -> int:
        """Return the start of the line break and the spaces before an element."""
        return element.start - len(self.encode(self.get_indent(element)))

    def read_remark(self, start: int, end: int) -> Remark:
        """Return a part of the file as a remark, or a place in it."""
        return Remark(self.get_markup(start, end), lambda text: self.edit(start, end, text))

    def read_indented(self, element: XmlElement) -> Remark:
        """Return an element and the line break and spaces before it as a remark."""
        return self.read_remark(self.get_indented_start(element), element.end)

    def read_attribute(self, element: XmlElement, name: str) -> Remark:
        """Return an attribute of an element as a remark."""
        tag = self.get_tag(element)
        try:
            start, end = find_attribute(tag, name)
            start = len(tag[:start].rstrip("= \t\r\n").removesuffix(name).rstrip())
        except KeyError:
            start = end = len(tag.removesuffix(">").removesuffix("/").rstrip())
        return self.read_remark(*(element.start + len(self.encode(tag[:position])) for position in (start, end)))

    def read_notes(self, notes: Iterable[XmlElement], place: int) -> dict[tuple[str, str], Remark]:
        """Return elements such as notes as remarks, and the place for more of them."""
        remarks = {("note", self.get_markup(note.start, note.end)): self.read_indented(note) for note in notes}
        return {**remarks, ("note", ""): self.read_remark(place, place)}

    def iter_markup(self) -> Iterator[str]:
        """Yield the file as it stands, in parts that end behind a tag unless one is very long; damaged bytes are marked."""
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        rest = ""
        for start in range(0, len(self.content), _CHUNK_BYTES):
            check_goes_on()
            rest += decoder.decode(self.content[start : start + _CHUNK_BYTES])
            end = rest.rfind(">") + 1 or (len(rest) if len(rest) > _MAX_TAG else 0)
            if end:
                yield rest[:end]
                rest = rest[end:]
        yield rest

    def iter_elements(
        self,
        names: Collection[str],
        on_start: Callable[[XmlElement], None] | None = None,
        *,
        root_name: str = "",
        max_parts: int = MAX_PARTS,
    ) -> Iterator[XmlElement]:
        """Yield each element with one of these local names, outside another of them, with all that is in it.

        on_start: function that reads the attributes of every element, in the order of the file
        root_name: local name that the first element has to have; empty for any
        max_parts: most elements, attributes and texts within such an element

        Memory holds one such element at a time: its content goes when the next one is asked for. Raises DataError for a file
        that is not well formed, declares entities, has elements deeper than MAX_DEPTH, or has more names or parts of an element
        than the limits allow.
        """
        reader = _TreeReader(self.encoding, names, on_start, max_parts, self._entities, has_entities=self._has_entities)
        start = 0
        while start < len(self.content):
            check_goes_on()
            limit = reader.get_open_start() + MAX_ELEMENT_BYTES
            if start > limit:
                raise DataError(
                    f"the XML file has an element or a comment of more than {MAX_ELEMENT_BYTES >> 20} MiB; divide it",
                    code="input-too-long",
                )
            # What expat has not read yet, it reads again: a chunk of that length at least keeps the time linear.
            end = min(start + max(_CHUNK_BYTES, start - reader.get_token_start()), limit + 1)
            reader.read(self.content[start:end])
            self._root = reader.root
            if self._root is not None and root_name and self._root.name != root_name:
                raise DataError(f"its first element is {self._root.name[:40]!r}; expected {root_name!r}", code="invalid-format")
            check_elements(reader.num_elements, len(self.content))
            for element in reader.take_complete():
                yield element
                element.release()
            start = end
        reader.read(b"", is_last=True)
        reader.end_last(len(self.content))
        yield from reader.take_complete()

    @property
    def root(self) -> XmlElement:
        """Attributes and start tag of the first element, once `iter_elements` has yielded another one, or ended."""
        assert self._root is not None  # a file without an element is not XML
        return self._root

    def get_place(self, element: XmlElement) -> XmlPlace:
        """Return the place of an element that `iter_elements` yields."""
        parent_start = -1 if element.parent is None else element.parent.start
        if parent_start != self._parent_start:
            self._parent_start = parent_start
            around = [(parent.start, parent.content_start) for parent in element.ascend()]
            self._parents = tuple(around[:0:-1])
        return XmlPlace(element.name, element.start, element.end, self._parents)

    def read_element(self, place: XmlPlace) -> XmlElement:
        """Return the element at a place, as `iter_elements` yielded it. Places in the order of the file take linear time."""
        if self._fragments is None or not place.parents:
            self._fragments = _FragmentReader(self.content, self.encoding, self._entities)
        return self._fragments.read(place)

    def end_reading(self) -> None:
        """Release what `read_element` keeps for the next element."""
        self._fragments = None


@dataclass(frozen=True, slots=True)
class XmlPlace:
    """Place of an element. parents: start and end of the start tag of each element around it, the outermost first"""

    name: str
    start: int
    end: int
    parents: tuple[tuple[int, int], ...]


class _FragmentReader:
    """Reader of single elements of a file that was read before."""

    def __init__(self, content: Sliceable, encoding: str, entities: set[str]) -> None:
        self._content = content
        self._encoding = encoding
        self._reader = _TreeReader(encoding.replace("utf-16-", "utf-16"), (), entities=entities)
        self._reader.parser.UseForeignDTD(True)  # named characters, which the file's own DTD outside would declare, are texts
        self._parents: list[tuple[int, int]] = []
        self._num_fed = 0

    def read(self, place: XmlPlace) -> XmlElement:
        """Return the element at a place, after the start tags of those around it."""
        common = 0
        while self._parents[common : common + 1] == list(place.parents[common : common + 1]) != []:
            common += 1
        while len(self._parents) > common:
            start, end = self._parents.pop()
            tag = f"</{get_tag_name(self._content[start:end].decode(self._encoding))}>"
            self._feed(tag.encode(self._encoding), start, end)
        for start, end in place.parents[common:]:
            self._feed(self._content[start:end], start, end)
            self._parents.append((start, end))
        self._reader.names = (place.name,)
        self._feed(self._content[place.start : place.end], place.start, place.end)
        self._reader.names = ()
        (element,) = self._reader.take_complete()
        return element

    def _feed(self, markup: bytes, start: int, end: int) -> None:
        """Read markup whose place in the file is this one."""
        self._reader.offset = start - self._num_fed
        self._reader.read(markup)
        self._reader.end_last(end)
        self._num_fed += len(markup)


def _detect_encoding(content: bytes) -> str:
    """Return the encoding by the first bytes, or else the one that the file states."""
    for starts, name in _ENCODING_STARTS:
        if content.startswith(starts):
            return name
    declared = _DECLARED_ENCODING.search(content[:512])
    return check_encoding(declared[1].decode() if declared else "utf-8")


class _TreeReader:
    """Handlers of an expat parser, which build elements. expat gives the start of each token, where the one before it ends.

    names: local names of the elements to build, with all that is in them
    on_start: called with every element
    """

    def __init__(
        self,
        encoding: str,
        names: Collection[str],
        on_start: Callable[[XmlElement], None] | None = None,
        max_parts: int = MAX_PARTS,
        entities: set[str] | None = None,
        *,
        has_entities: bool = False,
    ) -> None:
        # expat reads the order of the bytes of UTF-16 itself.
        self.parser = expat.ParserCreate(None if encoding.startswith("utf-16-") else encoding, " ")
        self.names = names
        self.offset = 0  # of the place in the file from the place in what the parser was given
        self.root: XmlElement | None = None
        self._on_start = on_start
        self._max_parts = max_parts
        self._has_entities = has_entities
        self._entities = set() if entities is None else entities  # names of those that the file declares
        self._open: list[tuple[XmlElement, list[XmlElement | XmlText | XmlMarkup]]] = []
        self._outermost: XmlElement | None = None
        self._num_parts = 0
        self.num_elements = 0  # an element to build counts as several
        self._events: list[tuple[bool, XmlElement]] = []  # starts of elements, and ends of elements to build
        self._last_start: XmlElement | None = None  # its content begins where the next token does
        self._last: XmlElement | XmlMarkup | None = None  # its end is the start of the next token
        self._texts: list[str] = []
        self._text_start = 0
        self._is_in_cdata = False
        self.parser.StartElementHandler = self._start_element
        self.parser.EndElementHandler = self._end_element
        self.parser.CharacterDataHandler = self._add_text
        self.parser.StartCdataSectionHandler = lambda: self._mark_cdata(is_start=True)
        self.parser.EndCdataSectionHandler = lambda: self._mark_cdata(is_start=False)
        self.parser.CommentHandler = lambda text: self._add_markup()
        self.parser.DefaultHandler = self._read_other
        self.parser.ProcessingInstructionHandler = lambda target, text: self._add_markup()
        self.parser.EntityDeclHandler = self._read_entity
        self.parser.AttlistDeclHandler = self._read_declaration
        self._num_declared = 0
        self._names: dict[str, tuple[str, str]] = {}

    def read(self, content: bytes, *, is_last: bool = False) -> None:
        """Read the next bytes. Raises DataError for what is not well formed or beyond the limits."""
        try:
            self.parser.Parse(content, is_last)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise DataError(f"line {error.lineno}: not XML that can be read: {reason}", code="invalid-format") from None
        except (ValueError, LookupError) as error:
            raise DataError(f"not XML that can be read: {error}; save it as UTF-8", code="invalid-encoding") from None
        if len(self.parser.intern) > MAX_NAMES:
            raise DataError(f"the XML file has more than {MAX_NAMES:,} different names", code="input-too-long")

    def get_token_start(self) -> int:
        """Return the place of the first token that is not read."""
        return max(self.parser.CurrentByteIndex, 0)

    def get_open_start(self) -> int:
        """Return the start of the element to build that has no end yet, or else of the first token that is not read."""
        return self.get_token_start() if self._outermost is None else self._outermost.start

    def end_last(self, position: int = -1) -> int:
        """End the last token at a place in the file, by default where the present one starts, and return the place."""
        if position < 0:
            position = self.parser.CurrentByteIndex + self.offset
        if self._texts:
            texts, self._texts = self._texts, []
            if self._outermost is not None:
                self._add_part(XmlText("".join(texts), self._text_start, position, self._is_in_cdata))
        if self._last_start is not None:
            self._last_start.content_start = position
            self._last_start = None
        elif self._last is not None:
            self._last.end = position
            self._last = None
        return position

    def take_complete(self) -> Iterator[XmlElement]:
        """Yield the elements to build that have an end, each once, and call `on_start` in the order of the file."""
        events, self._events = self._events, []
        for number, (is_start, element) in enumerate(events):
            if is_start:
                assert self._on_start is not None
                self._on_start(element)
            elif element.end >= 0:
                yield element
            else:  # the next token, which is not read yet, ends it
                self._events = events[number:]

    def _add_part(self, part: XmlElement | XmlText | XmlMarkup, num_parts: int = 1) -> None:
        """Add a part to the innermost element, if it is in an element to build."""
        if self._outermost is not None:
            self._num_parts += num_parts
            if self._num_parts > self._max_parts:
                check_parts(self._num_parts, self._outermost.name, self._max_parts)
            self._open[-1][1].append(part)

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        position = self.end_last()
        if len(self._open) >= MAX_DEPTH:
            raise DataError(f"the XML file has elements deeper than {MAX_DEPTH}", code="invalid-format")
        namespace, local_name = self._names.get(name) or self._names.setdefault(name, _split_name(name))
        parent = self._open[-1][0] if self._open else None
        element = XmlElement(local_name, namespace, _read_attributes(attributes), position, parent)
        if parent is None:
            self.root = element
        if self._on_start is not None:
            self._events.append((True, element))
        if self._outermost is not None:
            self._add_part(element, 1 + len(attributes))
        elif local_name in self.names:
            self._outermost, self._num_parts = element, len(attributes)
            self.num_elements += TEXT_ELEMENTS
        self.num_elements += 1
        self._open.append((element, []))
        self._last_start = element

    def _end_element(self, name: str) -> None:
        position = self.end_last()
        element, parts = self._open.pop()
        element.content_end, element.parts = position, tuple(parts)
        self._last = element
        if element is self._outermost:
            self._events.append((False, element))
            self._outermost = None

    def _add_text(self, text: str) -> None:
        if not self._texts:
            self._text_start = self.end_last()
        self._texts.append(text)

    def _add_markup(self) -> None:
        position = self.end_last()
        self._last = markup = XmlMarkup(position, position)
        self._add_part(markup)

    def _mark_cdata(self, *, is_start: bool) -> None:
        self._add_markup()
        self._is_in_cdata = is_start

    def _read_other(self, text: str) -> None:
        """Add what has no other handler. A named character, which a DTD outside would declare, is text."""
        is_character = _NAMED_CHARACTER.fullmatch(text) and text[1:-1] not in self._entities
        character = html.unescape(text) if is_character else text
        if character != text:
            self._add_text(character)
        else:
            self._add_markup()

    def _read_entity(self, name: str, is_parameter: bool, value: str | None, *rest: object) -> None:
        """Refuse an entity, but for a short text without references where the format has such entities."""
        if not self._has_entities:
            raise DataError(
                f"the XML file declares the entity {name[:40]!r}, and is not read: write the text itself in its place",
                code="invalid-format",
            )
        if is_parameter or value is None or len(value) > MAX_ENTITY or re.search("[&%<]", value):
            raise DataError(
                f"the XML file declares the entity {name[:40]!r}, which is no text of at most {MAX_ENTITY} characters without "
                "tags and references: write the text itself in its place",
                code="invalid-format",
            )
        self._entities.add(name)

    def _read_declaration(self, element: str, name: str, kind: str, default: str | None, required: bool) -> None:
        """Refuse more declared attributes than documents have, and values that each element would get."""
        self._num_declared += 1
        if self._num_declared > MAX_DECLARED_ATTRIBUTES:
            raise DataError(
                f"the XML file declares more than {MAX_DECLARED_ATTRIBUTES} attributes; leave the declarations out",
                code="invalid-format",
            )
        if default is not None:
            raise DataError(
                f"the XML file declares a default value of the attribute {name[:40]!r}, and is not read: write it in the tags",
                code="invalid-format",
            )


def _split_name(name: str) -> tuple[str, str]:
    """Return the namespace and the local name of an element."""
    namespace, _, local_name = name.rpartition(" ")
    return namespace, local_name


def _read_attributes(attributes: dict[str, str]) -> Mapping[str, str]:
    """Return the attributes by their names; see `XmlElement`."""
    if not attributes:
        return _NO_ATTRIBUTES
    values = {}
    for key, value in attributes.items():
        namespace, _, name = key.rpartition(" ")
        prefix = "xml:" if namespace == _XML_NAMESPACE else ":" if namespace else ""
        values[prefix + name] = value
    return values


def check_well_formed(source: XmlSource) -> None:
    """Raise DataError for a file that is not well formed."""
    encoding = source.encoding
    parser = expat.ParserCreate(None if encoding.startswith("utf-16-") else encoding)
    try:
        for start in range(0, len(source.content), _CHUNK_BYTES):
            parser.Parse(source.content[start : start + _CHUNK_BYTES], False)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise DataError(f"not XML that can be read: {error}", code="invalid-format") from None


def escape_xml(text: str) -> str:
    """Return a text as XML. Raises DataError for a character that XML cannot hold."""
    if not text.isprintable() and (illegal := _ILLEGAL_CHARACTER.search(text)) is not None:
        raise DataError(f"a text holds the character U+{ord(illegal[0]):04X}, which XML cannot", code="invalid-data")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def get_attribute(start_tag: str, name: str) -> str:
    """Return an attribute of a start tag as it stands there, with references; empty if the tag has none of this name."""
    return next((match[2][1:-1] for match in _ATTRIBUTE.finditer(start_tag) if match[1] == name), "")


def find_attribute(start_tag: str, name: str) -> tuple[int, int]:
    """Return the place of the value of an attribute in a start tag, with its quotation marks. Raises KeyError without one."""
    for match in _ATTRIBUTE.finditer(start_tag):
        if match[1] == name:
            return match.span(2)
    raise KeyError(name)


def set_attribute(start_tag: str, name: str, value: str) -> str:
    """Return a start tag with this attribute; an empty value removes it.

    name: as it stands in the tag, with a prefix
    """
    escaped = escape_xml(value).replace('"', "&quot;")
    written = f' {name}="{escaped}"' if value else ""
    for match in _ATTRIBUTE.finditer(start_tag):
        if match[1] == name:
            return start_tag[: match.start()] + written + start_tag[match.end() :]
    end = _TAG_END.search(start_tag)
    position = end.start() if end else len(start_tag)
    return start_tag[:position] + written + start_tag[position:]


def get_tag_name(start_tag: str) -> str:
    """Return the name of a start tag as it stands there, with its prefix."""
    match = _TAG_NAME.match(start_tag)
    return match[1] if match else ""
