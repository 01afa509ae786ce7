"""ODT files: paragraphs and headings of an OpenDocument text, with its headers, footers and notes."""

from __future__ import annotations

from dragoman.documents.document import Document
from dragoman.documents.flowing_text import add_flowing_text
from dragoman.documents.xml_spans import XmlElement, XmlSource
from dragoman.documents.xml_units import Code, Piece, UnitList, make_pair, make_point, read_parts
from dragoman.documents.zip_document import ZipMembers

_TYPE = b"application/vnd.oasis.opendocument.text"
_TEXT_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_PARAGRAPHS = frozenset(("p", "h"))
_PAIRS = frozenset(("span", "a", "meta", "meta-field"))


def parse_odt(content: bytes) -> Document:
    """Return the document of an ODT file. Raises DataError for other, damaged, encrypted and signed files."""
    members = ZipMembers(content, "odt")
    if "mimetype" not in members.members or not members.read("mimetype").startswith(_TYPE):
        raise members.error("holds a document of another kind; give it the name that fits", "unknown-format")
    if "META-INF/documentsignatures.xml" in members.members:
        raise members.error("has a digital signature, which a change breaks; remove the signature first")
    manifest = members.read_xml("META-INF/manifest.xml")
    if any(True for _ in manifest.iter_elements(("encryption-data",))):
        raise members.error("is protected by a password; save it without one")
    units = UnitList()
    for name in ("content.xml", "styles.xml"):
        if name in members.members:
            _add_member(units, members, name)
    return units.make_document(content, "odt", assemble=members.assemble)


def _add_member(units: UnitList, members: ZipMembers, name: str) -> None:
    source = members.read_xml(name)
    number = 0
    for outermost in source.iter_elements((*_PARAGRAPHS, "tracked-changes")):
        if outermost.name == "tracked-changes":
            continue
        for element in outermost.descend():
            if _is_paragraph(element):
                number += 1
                add_flowing_text(
                    units,
                    members,
                    name,
                    source,
                    element.parts,
                    f"{name}/{number}",
                    lambda inner: _read_element(source, inner),
                )


def _is_paragraph(element: XmlElement) -> bool:
    return element.name in _PARAGRAPHS and element.namespace == _TEXT_NAMESPACE


def _read_element(source: XmlSource, element: XmlElement) -> list[Piece]:
    """Return the pieces of an element in a paragraph. One with paragraphs in it, such as a note, keeps its place."""
    if element.namespace == _TEXT_NAMESPACE and element.name in _PAIRS:
        return make_pair(source, element, read_parts(source, element.parts, lambda inner: _read_element(source, inner)))
    if any(_is_paragraph(inner) for inner in element.descend()):
        return [Code("point", "", fixed=(element.start, element.end))]
    return [make_point(source, element)]
