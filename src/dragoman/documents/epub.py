"""EPUB files: the chapters of a book, its contents, and its title."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from dragoman.documents.document import Document, Edit, UnitTranslation
from dragoman.documents.flowing_text import Part, add_flowing_text
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, set_attribute
from dragoman.documents.xml_units import Piece, UnitList, make_pair, make_point, read_parts
from dragoman.documents.zip_document import ZipMembers
from dragoman.errors import DataError
from dragoman.languages import is_same_language
from dragoman.text.inline_codes import BLOCK_TAGS, OPAQUE_TAGS

_TYPE = b"application/epub+zip"
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_CHAPTER_TYPE, _CONTENTS_TYPE = "application/xhtml+xml", "application/x-dtbncx+xml"
_SKIPPED = OPAQUE_TAGS | {"pre", "textarea", "template"}


def parse_epub(content: bytes) -> Document:
    """Return the document of an EPUB file. Raises DataError for other, damaged and encrypted files."""
    members = ZipMembers(content, "epub")
    if "mimetype" not in members.members or not members.read("mimetype").startswith(_TYPE):
        raise members.error("holds a document of another kind; give it the name that fits", "unknown-format")
    package_name = _find_package(members)
    package = members.read_xml(package_name)
    texts: dict[str, str] = {}
    languages: list[XmlElement] = []
    titles: list[XmlElement] = []
    for element in package.iter_elements(("item", "language", "title")):
        if element.name == "item":
            path = unquote(element.attributes.get("href", ""))
            texts[posixpath.normpath(posixpath.join(posixpath.dirname(package_name), path))] = element.attributes.get(
                "media-type", ""
            )
        else:
            (languages if element.name == "language" else titles).append(element)
    chapters = [name for name, kind in texts.items() if kind == _CHAPTER_TYPE and name in members.members]
    encrypted = _list_encrypted(members)
    if encrypted.intersection(chapters):
        raise members.error("is encrypted, as books with copy protection are")
    units = UnitList()
    for number, element in enumerate(titles, start=1):
        add_flowing_text(
            units,
            members,
            package_name,
            package,
            element.parts,
            f"{package_name}/{number}",
            lambda inner: [make_point(package, inner)],
        )
    roots = {}
    for name in chapters:
        reader = _ChapterReader(units, members, name)
        reader.read()
        roots[name] = (reader.source, reader.root)
    for name, kind in texts.items():
        if kind == _CONTENTS_TYPE and name in members.members:
            _add_contents(units, members, name)

    def edit_languages(translations: Mapping[str, UnitTranslation], language: str) -> list[Edit]:
        edits: list[Edit] = []
        if not language or not translations:
            return edits
        for element in languages[:1]:
            if not is_same_language(element.text.strip(), language):
                new = Edit(element.content_start, element.content_end, package.encode(escape_xml(language)))
                edits += members.shift_edits(package_name, [new])
        for name, (source, root) in roots.items():
            edits += members.shift_edits(name, _edit_language(source, root, language))
        return edits

    return units.make_document(
        content,
        "epub",
        source_language=languages[0].text.strip() if languages else "",
        make_document_edits=edit_languages,
        assemble=members.assemble,
    )


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


def _add_contents(units: UnitList, members: ZipMembers, name: str) -> None:
    """Add the texts of the contents in the format of EPUB 2."""
    source = members.read_xml(name)
    for number, element in enumerate(source.iter_elements(("text",)), start=1):
        add_flowing_text(
            units, members, name, source, element.parts, f"{name}/{number}", lambda inner: [make_point(source, inner)]
        )


def _edit_language(source: XmlSource, root: XmlElement, language: str) -> list[Edit]:
    """Return the edit that makes a chapter state the language, if it states another."""
    old = tag = source.get_markup(root.start, root.content_start)
    for name in ("xml:lang", "lang"):
        present = root.attributes.get(name, "")
        if present and not is_same_language(present, language):
            tag = set_attribute(tag, name, language)
    return [Edit(root.start, root.content_start, source.encode(tag))] if tag != old else []


class _ChapterReader:
    """Reader of one XHTML file."""

    def __init__(self, units: UnitList, members: ZipMembers, name: str) -> None:
        self.units = units
        self.members = members
        self.name = name
        self.source = members.read_xml(name)
        self.root: XmlElement
        self.number = 0

    def read(self) -> None:
        """Add the title and the texts of the body."""
        starts: list[XmlElement] = []
        for element in self.source.iter_elements(("title", "body"), starts.append):
            self._read_block(element)
        self.root = starts[0]
        if self.root.name != "html":
            raise DataError(
                f"{self.name[:80]}: its first element is {self.root.name[:40]!r}; expected 'html'", code="invalid-format"
            )

    def _read_block(self, element: XmlElement) -> None:
        """Add the texts of an element between the blocks in it, and those of the blocks."""
        if element.name in _SKIPPED or element.attributes.get("translate") == "no":
            return
        for block, parts in _divide(element):
            if block is not None:
                self._read_block(block)
            else:
                self.number += 1
                add_flowing_text(
                    self.units, self.members, self.name, self.source, parts, f"{self.name}/{self.number}", self._read_inline
                )

    def _read_inline(self, element: XmlElement) -> list[Piece]:
        if element.name in _SKIPPED or element.attributes.get("translate") == "no":
            return [make_point(self.source, element)]
        return make_pair(self.source, element, read_parts(self.source, element.parts, self._read_inline))


def _divide(element: XmlElement) -> Iterator[tuple[XmlElement | None, list[Part]]]:
    """Yield the blocks of an element, and the parts between them (with None)."""
    parts: list[Part] = []
    for part in element.parts:
        if isinstance(part, XmlElement) and any(inner.name in BLOCK_TAGS for inner in part.descend()):
            if parts:
                yield None, parts
            yield part, []
            parts = []
        else:
            parts.append(part)
    if parts:
        yield None, parts
