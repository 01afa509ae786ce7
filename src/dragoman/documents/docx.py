"""DOCX files: body, headers, footers, notes and comments of a text document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from dragoman.documents.code_formatting import FontStyle, FontStyles
from dragoman.documents.document import Document, Unit, UnitTranslation, has_same_tags
from dragoman.documents.office_languages import CORE_TYPE, edit_stated, find_languages, read_core_language
from dragoman.documents.office_package import list_parts
from dragoman.documents.office_texts import (
    CHART_DATA,
    CHART_TYPES,
    DIAGRAM_TYPES,
    add_chart_titles,
    add_properties,
    count_attributes,
    count_chart_data,
)
from dragoman.documents.reading import check_parts
from dragoman.documents.run_paragraphs import add_paragraphs
from dragoman.documents.script_languages import ScriptLanguages
from dragoman.documents.xml_spans import XmlElement, XmlSource, check_well_formed, escape_xml
from dragoman.documents.xml_units import UnitList
from dragoman.documents.zip_document import ZipMembers
from dragoman.errors import DataError

_PART_TYPES = tuple(
    f"wordprocessingml.{name}+xml"
    for name in ("document.main", "template.main", "document.glossary", "header", "footer", "footnotes", "endnotes", "comments")
)
# What is written anew or left out with a run: it changes neither texts nor their order.
_RUN_NOTES = tuple(
    map(re.compile, (r' w:rsid\w*+="[^"<>]*+"', r"<w:(?:lang|noProof|proofErr|lastRenderedPageBreak)\b[^<>]*+/>"))
)
_READ_BY_TEXT = re.compile(r"<w:(?:vertAlign|framePr)\b")
"""Properties with which a run or a paragraph is read by its letters."""
_SKIPPED = {
    "choices of lists": {"listItem": ":displayText", "listEntry": ":val"},
    "tooltips of links": {"hyperlink": ":tooltip"},
    "texts of form fields": dict.fromkeys(("default", "helpText", "statusText", "alias"), ":val"),
}
_STYLES_TYPE, _SETTINGS_TYPE = "wordprocessingml.styles+xml", "wordprocessingml.settings+xml"


def parse_docx(content: bytes) -> Document:
    """Return the document of a DOCX file. Raises DataError for another, and for a damaged, encrypted or signed one."""
    members = ZipMembers(content, "docx")
    names = list_parts(members, _PART_TYPES)
    styles = _read_styles(members)
    languages, language = find_languages(members, names, styles.languages)
    styles = replace(styles, languages=languages, language=language)
    units = UnitList()
    for name in names:
        add_paragraphs(units, members, name, styles)
    for name in list_parts(members, (*CHART_TYPES, *DIAGRAM_TYPES)):
        add_paragraphs(units, members, name, styles)
    add_chart_titles(units, members)
    add_properties(units, members)
    ordered = list(units.units)
    stating: dict[str, tuple[str, ...]] = dict.fromkeys(_PART_TYPES, ("sectPr", "tblPr"))
    stating |= {_STYLES_TYPE: ("lang",), _SETTINGS_TYPE: ("themeFontLang",), CORE_TYPE: ("language",)}
    return units.make_document(
        content,
        "docx",
        source_language=units.settle_language(styles.language or read_core_language(members)),
        make_document_edits=lambda translations, language: edit_stated(stating, members, translations, language),
        assemble=members.assemble,
        keeps_tags=lambda content, translations: _keeps_tags(members, ordered, content, translations),
        skipped={CHART_DATA: count_chart_data(members)}
        | {kind: count_attributes(members, names, attributes) for kind, attributes in _SKIPPED.items()},
    )


def _keeps_tags(
    members: ZipMembers, units: Sequence[Unit], content: bytes, translations: Mapping[str, UnitTranslation]
) -> bool:
    """Return whether a written file has the tags of a document, with the texts of the units or their translations."""
    texts: dict[str, list[str]] = {}
    for unit in units:
        name, _, number = unit.id.rpartition("/")
        if name not in members.members or not number.partition("#")[0].isdecimal():
            return False
        text = translations[unit.id].text if unit.id in translations else unit.source
        texts.setdefault(name, []).append(text if unit.markup == "xml" else escape_xml(text))
    written = ZipMembers(content, "docx")
    with suppress(DataError):
        return all(_keeps_member(members.read_xml(name), written.read_xml(name), texts[name]) for name in texts)
    return False


def _keeps_member(source: XmlSource, written: XmlSource, texts: Sequence[str]) -> bool:
    if not has_same_tags(_iter_plain(source), _iter_plain(written), texts):
        return False
    check_well_formed(written)
    return True


def _iter_plain(source: XmlSource) -> Iterator[str]:
    """Yield the markup of a member, in parts that end behind a tag, without what a program notes in runs.

    Raises DataError for a run or a paragraph that is read by its letters.
    """
    for markup in source.iter_markup():
        if _READ_BY_TEXT.search(markup):
            raise DataError("a run or a paragraph is read by its letters", code="invalid-data")
        plain = markup.replace(' xml:space="preserve"', "")
        for pattern in _RUN_NOTES:
            plain = pattern.sub("", plain)
        yield plain.replace("<w:rPr></w:rPr>", "")


def _read_styles(members: ZipMembers) -> FontStyles:
    """Return the styles of characters and paragraphs."""
    styles: dict[str, FontStyle] = {}
    default = font = ""
    languages = ScriptLanguages()
    for name in list_parts(members, (_STYLES_TYPE,)):
        for element in members.read_xml(name).iter_elements(("style", "rPrDefault")):
            if element.name == "rPrDefault":
                font, languages = _get_font(element), _get_languages(element)
                continue
            style_id, parent = element.attributes.get(":styleId", ""), _get_value(element, "basedOn")
            check_parts(len(styles))
            styles[style_id] = FontStyle(_get_value(element, "name"), parent, _get_font(element), _get_languages(element))
            if element.attributes.get(":type") == "paragraph" and element.attributes.get(":default") in ("1", "true", "on"):
                default = style_id
    return FontStyles(styles, default, font, languages)


def _get_value(element: XmlElement, name: str) -> str:
    child = element.find(name)
    return "" if child is None else child.attributes.get(":val", "")


def _get_font(element: XmlElement) -> str:
    properties = element.find("rPr")
    fonts = None if properties is None else properties.find("rFonts")
    return "" if fonts is None else fonts.attributes.get(":ascii", "")


def _get_languages(element: XmlElement) -> ScriptLanguages:
    properties = element.find("rPr")
    stated = None if properties is None else properties.find("lang")
    if stated is None:
        return ScriptLanguages()
    return ScriptLanguages(*(stated.attributes.get(f":{name}", "") for name in ("val", "eastAsia", "bidi")))
