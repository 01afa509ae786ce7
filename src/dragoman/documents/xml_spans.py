"""Reader of XML that gives the place of every element and text in the original bytes.

It opens no external entity, and refuses a file that declares entities. So a file never unpacks to more than it has.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from dragoman.documents.encoded_text import check_encoding
from dragoman.errors import DataError

MAX_BYTES = 2**28
"""Size of the largest XML file that is read."""
MAX_DEPTH = 256
"""Depth of elements in elements."""
MAX_DECLARED_ATTRIBUTES = 64
"""Attributes that a document type inside the file declares."""
_CHUNK_BYTES = 2**16
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
    """Text and its place. It may be a part of a longer text.

    is_cdata: it stands in a CDATA section
    """

    text: str
    start: int
    end: int
    is_cdata: bool = False


@dataclass(slots=True)
class XmlMarkup:
    """Comment, processing instruction, or border of a CDATA section."""

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
        parts: its content; only for an element that `iter_elements` yields, and inside one
    """

    name: str
    namespace: str
    attributes: dict[str, str]
    start: int
    parent: XmlElement | None
    content_start: int = -1
    content_end: int = -1
    end: int = -1
    parts: list[XmlElement | XmlText | XmlMarkup] = field(default_factory=list)

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
        return "".join(part.text for part in self.parts if isinstance(part, XmlText | XmlElement))

    def find(self, name: str) -> XmlElement | None:
        """Return the first element of this name directly inside, of the same namespace."""
        return next((child for child in self.children if child.name == name and child.namespace == self.namespace), None)

    def find_all(self, name: str) -> list[XmlElement]:
        """Return the elements of this name directly inside, of the same namespace."""
        return [child for child in self.children if child.name == name and child.namespace == self.namespace]

    def descend(self) -> Iterator[XmlElement]:
        """Yield this element and all inside, in the order of their start tags."""
        yield self
        for child in self.children:
            yield from child.descend()

    def get_inherited(self, attribute: str) -> str:
        """Return the attribute of this element or of the nearest element around it that has it, or an empty text."""
        element: XmlElement | None = self
        while element is not None:
            if attribute in element.attributes:
                return element.attributes[attribute]
            element = element.parent
        return ""


class XmlSource:
    """Bytes of an XML file and their encoding.

    Raises DataError for an unknown encoding and for a file above MAX_BYTES.
    """

    def __init__(self, content: bytes) -> None:
        if len(content) > MAX_BYTES:
            raise DataError(
                f"the XML file has {len(content):,} bytes, more than {MAX_BYTES:,}; divide it into smaller ones",
                code="input-too-long",
            )
        self.content = content
        self.encoding = _detect_encoding(content)
        self.line_break = "\r\n" if "\r\n".encode(self.encoding) in content else "\n"

    def get_markup(self, start: int, end: int) -> str:
        """Return a part of the file as it stands there."""
        return self.content[start:end].decode(self.encoding)

    def encode(self, markup: str) -> bytes:
        """Return the bytes of new markup: line breaks as the file has them, references for characters that it cannot hold."""
        if self.line_break != "\n":
            markup = markup.replace("\r\n", "\n").replace("\n", self.line_break)
        return markup.encode(self.encoding, "xmlcharrefreplace")

    def iter_elements(
        self, names: Collection[str], on_start: Callable[[XmlElement], None] = lambda element: None
    ) -> Iterator[XmlElement]:
        """Yield each element with one of these local names, outside another of them, with all that is in it.

        on_start: function that reads the attributes of every element, in the order of the file

        Memory holds one such element at a time. Raises DataError for a file that is not well formed, declares entities, or has
        elements deeper than MAX_DEPTH.
        """
        open_elements: list[XmlElement] = []
        outermost: XmlElement | None = None
        for token in _iter_tokens(self.content, self.encoding):
            parent = open_elements[-1] if open_elements else None
            if token.kind == "start":
                if len(open_elements) >= MAX_DEPTH:
                    raise DataError(f"the XML file has elements deeper than {MAX_DEPTH}", code="invalid-format")
                element = XmlElement(token.name, token.namespace, token.attributes, token.start, parent, token.end)
                on_start(element)
                if outermost is None and element.name in names:
                    outermost = element
                elif outermost is not None and parent is not None:
                    parent.parts.append(element)
                open_elements.append(element)
            elif token.kind == "end":
                element = open_elements.pop()
                element.content_end, element.end = token.start, token.end
                if element is outermost:
                    yield element
                    outermost = None
            elif outermost is not None and parent is not None:
                if token.kind == "markup":
                    parent.parts.append(XmlMarkup(token.start, token.end))
                else:
                    parent.parts.append(XmlText(token.name, token.start, token.end, token.kind == "cdata"))


def _detect_encoding(content: bytes) -> str:
    """Return the encoding by the first bytes, or else the one that the file states."""
    for starts, name in _ENCODING_STARTS:
        if content.startswith(starts):
            return name
    declared = _DECLARED_ENCODING.search(content[:512])
    return check_encoding(declared[1].decode() if declared else "utf-8")


@dataclass(slots=True)
class _XmlToken:
    """Start tag, end tag, text or other markup. name: name of an element, or the text"""

    kind: str
    start: int
    name: str = ""
    namespace: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    end: int = -1


def _iter_tokens(content: bytes, encoding: str) -> Iterator[_XmlToken]:
    """Yield the tokens of a file. A token ends where the next one starts, because expat gives the place of starts alone."""
    reader = _TokenReader(encoding)
    start = 0
    try:
        while start < len(content):
            # What expat has not read yet, it reads again: a chunk of that length at least keeps the time linear.
            end = start + max(_CHUNK_BYTES, start - max(reader.parser.CurrentByteIndex, 0))
            reader.parser.Parse(content[start:end], False)
            yield from reader.take_complete()
            start = end
        reader.parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"line {error.lineno}: not XML that can be read: {reason}", code="invalid-format") from None
    except (ValueError, LookupError) as error:
        raise DataError(f"not XML that can be read: {error}; save it as UTF-8", code="invalid-encoding") from None
    reader.add("markup", start=len(content))
    yield from reader.take_complete()


class _TokenReader:
    """Handlers of an expat parser that collect tokens."""

    def __init__(self, encoding: str) -> None:
        # expat reads the order of the bytes of UTF-16 itself.
        self.parser = expat.ParserCreate(None if encoding.startswith("utf-16") else encoding, " ")
        self.tokens: list[_XmlToken] = []
        self.is_in_cdata = False
        self.parser.StartElementHandler = self._start_element
        self.parser.EndElementHandler = lambda name: self.add("end")
        self.parser.CharacterDataHandler = lambda text: self.add("cdata" if self.is_in_cdata else "text", text)
        self.parser.StartCdataSectionHandler = lambda: self._mark_cdata(is_start=True)
        self.parser.EndCdataSectionHandler = lambda: self._mark_cdata(is_start=False)
        self.parser.CommentHandler = lambda text: self.add("markup")
        self.parser.DefaultHandler = self._read_other
        self.parser.ProcessingInstructionHandler = lambda target, text: self.add("markup")
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.AttlistDeclHandler = self._count_attribute
        self._num_declared = 0

    def add(self, kind: str, name: str = "", *, start: int = -1) -> _XmlToken:
        """Add a token, and end the one before it."""
        start = self.parser.CurrentByteIndex if start < 0 else start
        if self.tokens:
            self.tokens[-1].end = start
        self.tokens.append(_XmlToken(kind, start, name))
        return self.tokens[-1]

    def take_complete(self) -> Iterator[_XmlToken]:
        """Yield the tokens that have an end."""
        complete, self.tokens = self.tokens[:-1], self.tokens[-1:]
        yield from complete

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        token = self.add("start")
        token.namespace, _, token.name = name.rpartition(" ")
        for key, value in attributes.items():
            namespace, _, local = key.rpartition(" ")
            prefix = "xml:" if namespace == _XML_NAMESPACE else ":" if namespace else ""
            token.attributes[prefix + local] = value

    def _mark_cdata(self, *, is_start: bool) -> None:
        self.is_in_cdata = is_start
        self.add("markup")

    def _read_other(self, text: str) -> None:
        """Add what has no other handler. A named character, which a DTD outside would declare, is text."""
        character = html.unescape(text) if _NAMED_CHARACTER.fullmatch(text) else text
        if character != text:
            self.add("text", character)
        else:
            self.add("markup")

    def _count_attribute(self, *declaration: object) -> None:
        """Refuse more declared attributes than documents have, because each element gets the values of all of them."""
        self._num_declared += 1
        if self._num_declared > MAX_DECLARED_ATTRIBUTES:
            raise DataError(
                f"the XML file declares more than {MAX_DECLARED_ATTRIBUTES} attributes; leave the declarations out",
                code="invalid-format",
            )

    def _refuse_entity(self, name: str, *rest: object) -> None:
        raise DataError(
            f"the XML file declares the entity {name[:40]!r}, and is not read: write the text itself in its place",
            code="invalid-format",
        )


def escape_xml(text: str) -> str:
    """Return a text as XML. Raises DataError for a character that XML cannot hold."""
    if (illegal := _ILLEGAL_CHARACTER.search(text)) is not None:
        raise DataError(f"a text holds the character U+{ord(illegal[0]):04X}, which XML cannot", code="invalid-data")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def get_attribute(start_tag: str, name: str) -> str:
    """Return an attribute of a start tag as it stands there, with references; empty if the tag has none of this name."""
    return next((match[2][1:-1] for match in _ATTRIBUTE.finditer(start_tag) if match[1] == name), "")


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
