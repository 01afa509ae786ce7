"""EPUB files: the chapters of a book, its contents, and its title."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from urllib.parse import unquote

from dragoman.documents.document import PICTURES, Document, Edit, UnitTranslation, get_source_language
from dragoman.documents.flowing_text import Part, add_flowing_text, split_at_breaks
from dragoman.documents.reading import MAX_CHAPTER_PARTS, check_parts
from dragoman.documents.xml_languages import (
    STATING_ATTRIBUTES,
    edit_root,
    edit_tag,
    find_language,
    get_stated_language,
    restate_pieces,
)
from dragoman.documents.xml_spans import XmlElement, XmlMarkup, XmlSource, escape_xml, get_attribute, set_attribute
from dragoman.documents.xml_units import Piece, UnitList, make_break, make_pair, make_point, read_parts
from dragoman.documents.zip_document import ZipMembers
from dragoman.errors import DataError
from dragoman.languages import get_direction, is_foreign, is_right_to_left, is_same_language
from dragoman.text.inline_codes import BLOCK_TAGS, OPAQUE_TAGS
from dragoman.text.no_language import is_data
from dragoman.text.word_codes import is_note_mark

_TYPE = b"application/epub+zip"
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_CHAPTER_TYPE, _CONTENTS_TYPE = "application/xhtml+xml", "application/x-dtbncx+xml"
_PROGRESSION = "page-progression-direction"
_READ = ("title", "body")
_SKIPPED = OPAQUE_TAGS | {"pre", "textarea", "template"}


def parse_epub(content: bytes) -> Document:
    """Return the document of an EPUB file. Raises DataError for other, damaged and encrypted files."""
    members = ZipMembers(content, "epub")
    if "mimetype" not in members.members or members.open("mimetype")[: len(_TYPE)] != _TYPE:
        raise members.error("holds a document of another kind; give it the name that fits", "unknown-format")
    package = _read_package(members)
    chapters = [name for name, kind in package.texts.items() if kind == _CHAPTER_TYPE and name in members.members]
    encrypted = _list_encrypted(members)
    if encrypted.intersection(chapters):
        raise members.error("is encrypted, as books with copy protection are")
    units = UnitList()
    for number, element in enumerate(package.titles, start=1):
        name, language = f"{package.name}/{number}", find_language(element, package.language)
        add_flowing_text(units, package.source, element.parts, name, partial(_keep_element, package.source), language)
    readers = [_ChapterReader(members, name, package.language) for name in chapters]
    for reader in readers:
        reader.read(units)
    contents = [name for name, kind in package.texts.items() if kind == _CONTENTS_TYPE and name in members.members]
    contents_sources = [_add_contents(units, members, name, package.language) for name in contents]

    def edit_languages(translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        if not language:
            return
        source_language = get_source_language(translations) or package.language
        yield from package.edit_language(source_language, language)
        for reader in readers:
            yield from reader.edit_language(source_language, language)
        for source in contents_sources:
            yield from edit_root(source, source.root, source_language, language)

    return units.make_document(
        content,
        "epub",
        source_language=package.language or next((reader.language for reader in readers if reader.language), ""),
        make_document_edits=edit_languages,
        assemble=members.assemble,
        skipped={PICTURES: sum(reader.num_pictures for reader in readers)},
    )


@dataclass(frozen=True)
class _Package:
    """Package file of a book.

    texts: type of each file by its path
    titles: titles and descriptions of the book
    spine: the order of the chapters
    """

    name: str
    source: XmlSource
    texts: Mapping[str, str]
    languages: Sequence[XmlElement]
    titles: Sequence[XmlElement]
    spine: XmlElement | None

    @property
    def language(self) -> str:
        """Language of the book."""
        return self.languages[0].text.strip() if self.languages else ""

    def edit_language(self, source_language: str, language: str) -> list[Edit]:
        """Return the edits that make the package state the language and the direction of its pages."""
        edits = []
        for element in self.languages[:1]:
            if not is_same_language(self.language, language):
                edits.append(self.source.edit(element.content_start, element.content_end, escape_xml(language)))
        if self.spine is not None:
            tag = self.source.get_tag(self.spine)
            if is_right_to_left(language):
                tag = set_attribute(tag, _PROGRESSION, "rtl")
            elif is_right_to_left(source_language) and get_attribute(tag, _PROGRESSION) == "rtl":
                tag = set_attribute(tag, _PROGRESSION, "")
            edits += self.source.edit_tag(self.spine, tag)
        direction = get_direction(source_language) or "ltr"
        for stated in (self.source.root, *self.titles):
            edits += edit_tag(self.source, stated, source_language, language, direction)
        return edits


def _read_package(members: ZipMembers) -> _Package:
    """Return the package file, with the elements that are read."""
    name = _find_package(members)
    source = members.read_xml(name)
    texts: dict[str, str] = {}
    elements: dict[str, list[XmlElement]] = {"language": [], "title": [], "spine": []}
    for element in source.iter_elements(("item", "description", *elements)):
        check_parts(len(texts) + sum(map(len, elements.values())))
        if element.name == "item":
            path = unquote(element.attributes.get("href", ""))
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            texts[path] = element.attributes.get("media-type", "")
        else:
            kind = "title" if element.name == "description" else element.name
            elements[kind].append(replace(element))  # the copy keeps its parts
    spine = elements["spine"][0] if elements["spine"] else None
    return _Package(name, source, texts, elements["language"], elements["title"], spine)


def _find_package(members: ZipMembers) -> str:
    """Return the name of the package file."""
    container = members.read_xml(_CONTAINER)
    for element in container.iter_elements(("rootfile",)):
        return element.attributes.get("full-path", "")
    raise members.error(f"names no package in {_CONTAINER}")


def _list_encrypted(members: ZipMembers) -> set[str]:
    """Return the names of encrypted members."""
    if _ENCRYPTION not in members.members:
        return set()
    references = members.read_xml(_ENCRYPTION).iter_elements(("CipherReference",))
    return {unquote(element.attributes.get("URI", "")) for element in references}


def _add_contents(units: UnitList, members: ZipMembers, name: str, book_language: str) -> XmlSource:
    """Add the texts of the contents in the format of EPUB 2, and return the file."""
    source = members.read_xml(name)
    numbers, keep = count(1), partial(_keep_element, source)

    def add(units: UnitList, element: XmlElement) -> None:
        language = find_language(element, book_language)
        add_flowing_text(units, source, element.parts, f"{name}/{next(numbers)}", keep, language)

    for element in source.iter_elements(("text",)):
        units.read(source, element, add)
    return source


def _keep_element(source: XmlSource, element: XmlElement) -> list[Piece]:
    return [make_point(source, element)]


class _ChapterReader:
    """Reader of one XHTML file. book_language: that of the book"""

    def __init__(self, members: ZipMembers, name: str, book_language: str) -> None:
        self.name = name
        self.source = members.read_xml(name)
        self.number = self.num_pictures = 0
        self.direction = "ltr"
        self._book_language = book_language

    @property
    def language(self) -> str:
        """Language that the chapter states; empty if it states none."""
        return get_stated_language(self.source.root)

    def read(self, units: UnitList) -> None:
        """Add the title and the texts of the body."""
        for element in self.source.iter_elements(_READ, max_parts=MAX_CHAPTER_PARTS):
            self.direction = self.source.root.attributes.get("dir") or element.attributes.get("dir") or "ltr"
            pictures = (inner for inner in element.descend() if inner.name == "img")
            self.num_pictures += sum(any(map(str.isalpha, picture.attributes.get("alt", ""))) for picture in pictures)
            add_texts = self._add_texts
            for part in _iter_readings(element, _list_divided(element)):
                units.read(self.source, part, add_texts)
        root = self.source.root
        if root.name != "html":
            raise DataError(
                f"{self.name[:80]}: its first element is {root.name[:40]!r}; expected 'html'", code="invalid-format"
            )

    def _add_texts(self, units: UnitList, element: XmlElement) -> None:
        """Add the texts of an element between the blocks in it, and those of the blocks. A title may be the name of a file."""
        if element.name != "title" or not is_data(element.text.strip()):
            self._add_block(units, element, _list_divided(element))

    def _add_block(self, units: UnitList, element: XmlElement, divided: Collection[int]) -> None:
        if _is_skipped(element):
            return
        language = find_language(element, self._book_language)
        for block, parts in _divide(element, divided):
            if block is not None:
                self._add_block(units, block, divided)
                continue
            for line in split_at_breaks(parts, lambda inner: inner.name == "br"):
                self.number += 1
                add_flowing_text(
                    units,
                    self.source,
                    line,
                    f"{self.name}/{self.number}",
                    self._read_inline,
                    language,
                    lambda pieces, translation: restate_pieces(pieces, translation, self.direction),
                )

    def _read_inline(self, element: XmlElement) -> list[Piece]:
        if _is_skipped(element):
            return [make_point(self.source, element)]
        if is_note_mark(element.name, self.source.get_tag(element), element.text):
            return [make_point(self.source, element)]
        if element.name == "br":
            return [make_break(self.source, element)]
        language = find_language(element, self._book_language) if get_stated_language(element) else ""
        return make_pair(self.source, element, read_parts(self.source, element.parts, self._read_inline), language)

    def edit_language(self, source_language: str, language: str) -> list[Edit]:
        """Return the edits that make the chapter and its blocks state the language and its direction."""
        if is_foreign(find_language(self.source.root, self._book_language), source_language):
            return []
        edits = edit_root(self.source, self.source.root, source_language, language)
        for part in self.source.iter_elements(_READ):
            for element in _iter_blocks(part, _list_divided(part)):
                is_stating = bool(element.attributes.keys() & STATING_ATTRIBUTES)
                if is_stating and not is_foreign(find_language(element.parent, source_language), source_language):
                    edits += edit_tag(self.source, element, source_language, language, self.direction)
        return edits


def _is_skipped(element: XmlElement) -> bool:
    return element.name in _SKIPPED or element.attributes.get("translate") == "no"


def _list_divided(element: XmlElement) -> set[int]:
    """Return the Python ids of the elements inside an element that are blocks, or have blocks inside."""
    divided: set[int] = set()
    for inner in element.descend():
        if inner.name in BLOCK_TAGS:
            around: XmlElement | None = inner
            while around is not element.parent and around is not None and id(around) not in divided:
                divided.add(id(around))
                around = around.parent
    return divided


def _iter_blocks(element: XmlElement, divided: Collection[int]) -> Iterator[XmlElement]:
    """Yield an element and the blocks in it, without those that are not translated."""
    if not _is_skipped(element):
        yield element
        for block, _ in _divide(element, divided):
            if block is not None:
                yield from _iter_blocks(block, divided)


def _iter_readings(element: XmlElement, divided: Collection[int]) -> Iterator[XmlElement]:
    """Yield the element, or the blocks in it if all texts are in blocks, so that each is written by itself."""
    parts = [part for _, parts in _divide(element, divided) for part in parts]
    if id(element) not in divided or any(part.text.strip() for part in parts if not isinstance(part, XmlMarkup)):
        yield element
    elif not _is_skipped(element):
        for block, _ in _divide(element, divided):
            if block is not None:
                yield from _iter_readings(block, divided)


def _divide(element: XmlElement, divided: Collection[int]) -> Iterator[tuple[XmlElement | None, list[Part]]]:
    """Yield the elements inside an element that are divided, and the parts between them (with None)."""
    parts: list[Part] = []
    for part in element.parts:
        if isinstance(part, XmlElement) and id(part) in divided:
            if parts:
                yield None, parts
            yield part, []
            parts = []
        else:
            parts.append(part)
    if parts:
        yield None, parts
