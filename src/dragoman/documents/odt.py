"""ODT files: paragraphs and headings of an OpenDocument text, with its headers, footers and notes. Spans of code are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from dragoman.documents.code_formatting import FontStyle, FontStyles, is_monospaced
from dragoman.documents.document import Document
from dragoman.documents.flowing_text import add_flowing_text
from dragoman.documents.xml_spans import XmlElement, XmlSource, XmlText
from dragoman.documents.xml_units import Code, Piece, UnitList, make_pair, make_point, read_parts
from dragoman.documents.zip_document import ZipMembers

_TYPE = b"application/vnd.oasis.opendocument.text"
_TEXT_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_STYLE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:style:1.0"
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
    names = [name for name in ("content.xml", "styles.xml") if name in members.members]
    for name in names:
        _add_member(units, members, name, _read_styles(members, sorted({name, names[-1]}, reverse=True)))
    return units.make_document(content, "odt", assemble=members.assemble)


def _read_styles(members: ZipMembers, names: Sequence[str]) -> FontStyles:
    """Return the styles of these members by family and name, such as `text/Source_20_Text`. Later members go before."""
    styles: dict[str, FontStyle] = {}
    default_font = ""
    for name in names:
        for element in members.read_xml(name).iter_elements(("style", "default-style")):
            if element.namespace != _STYLE_NAMESPACE:
                continue
            family, style, parent = (element.attributes.get(f":{key}", "") for key in ("family", "name", "parent-style-name"))
            properties = element.find("text-properties")
            values = {} if properties is None else properties.attributes
            font = values.get(":font-name") or values.get(":font-family", "")
            if element.name == "style":
                styles[f"{family}/{style}"] = FontStyle(style.replace("_20_", " "), f"{family}/{parent}", font)
            elif family == "paragraph":
                default_font = font
    return FontStyles(styles, font=default_font)


def _add_member(units: UnitList, members: ZipMembers, name: str, styles: FontStyles) -> None:
    source = members.read_xml(name)
    number = 0
    for outermost in source.iter_elements((*_PARAGRAPHS, "tracked-changes")):
        if outermost.name == "tracked-changes":
            continue
        for element in outermost.descend():
            if _is_paragraph(element):
                number += 1
                code = _find_code(element, styles)
                add_flowing_text(
                    units,
                    members,
                    name,
                    source,
                    element.parts,
                    f"{name}/{number}",
                    partial(_read_element, source, code),
                )


def _is_paragraph(element: XmlElement) -> bool:
    return element.name in _PARAGRAPHS and element.namespace == _TEXT_NAMESPACE


def _find_code(paragraph: XmlElement, styles: FontStyles) -> Collection[int]:
    """Return the Python ids of the spans of a paragraph that are code."""
    font = styles.get_font(f"paragraph/{paragraph.attributes.get(':style-name', '')}") or styles.font
    code: set[int] = set()
    monospaced: set[int] = set()
    for element in paragraph.descend():
        if element.namespace == _TEXT_NAMESPACE and element.name == "span":
            style = f"text/{element.attributes.get(':style-name', '')}"
            if styles.is_code(style):
                code.add(id(element))
            elif is_monospaced(styles.get_font(style)) and not is_monospaced(font):
                monospaced.add(id(element))
    has_other_words = any(map(str.isalpha, "".join(_read_texts(paragraph, code | monospaced)))) if monospaced else False
    return code | monospaced if has_other_words else code


def _read_texts(element: XmlElement, skipped: Collection[int]) -> Iterator[str]:
    """Yield the texts of an element, without those of skipped elements, by their Python ids, and of paragraphs inside."""
    for part in element.parts:
        if isinstance(part, XmlText):
            yield part.text
        elif isinstance(part, XmlElement) and id(part) not in skipped and not _is_paragraph(part):
            yield from _read_texts(part, skipped)


def _read_element(source: XmlSource, code: Collection[int], element: XmlElement) -> list[Piece]:
    """Return the pieces of an element in a paragraph. One with paragraphs in it, such as a note, keeps its place.

    code: Python ids of the elements that are kept whole
    """
    if element.namespace == _TEXT_NAMESPACE and element.name in _PAIRS and id(element) not in code:
        return make_pair(source, element, read_parts(source, element.parts, lambda inner: _read_element(source, code, inner)))
    if any(_is_paragraph(inner) for inner in element.descend()):
        return [Code("point", "", fixed=(element.start, element.end))]
    return [make_point(source, element)]
