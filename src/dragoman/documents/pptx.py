"""PPTX files: slides, layouts and notes of a presentation, with tables, diagrams, titles of charts and alternative texts."""

from __future__ import annotations

from dragoman.documents.code_formatting import FontStyles
from dragoman.documents.document import Document
from dragoman.documents.office_languages import CORE_TYPE, edit_stated, find_languages, read_core_language
from dragoman.documents.office_package import list_parts
from dragoman.documents.office_texts import (
    ALTERNATIVE_TEXTS,
    CHART_DATA,
    CHART_TYPES,
    DIAGRAM_TYPES,
    add_attributes,
    add_chart_titles,
    add_elements,
    add_properties,
    count_attributes,
    count_chart_data,
)
from dragoman.documents.run_paragraphs import add_paragraphs
from dragoman.documents.xml_units import UnitList
from dragoman.documents.zip_document import ZipMembers

_LEVELS = tuple(f"lvl{number}pPr" for number in range(1, 10))
_MASTER_TYPES = ("presentationml.slideMaster+xml", "presentationml.slideLayout+xml", "presentationml.presentation.main+xml")
_PART_TYPES = (
    "presentationml.slide+xml",
    "presentationml.notesSlide+xml",
    "presentationml.slideLayout+xml",
    "presentationml.slideMaster+xml",
    "ms-powerpoint.comments+xml",
    *DIAGRAM_TYPES,
    *CHART_TYPES,
)


def parse_pptx(content: bytes) -> Document:
    """Return the document of a PPTX file. Raises DataError for another, and for a damaged, encrypted or signed one."""
    members = ZipMembers(content, "pptx")
    units = UnitList()
    names = list_parts(members, _PART_TYPES)
    languages, language = find_languages(members, names)
    styles = FontStyles(languages=languages, language=language)
    for name in names:
        add_paragraphs(units, members, name, styles)
    add_chart_titles(units, members)
    add_attributes(units, members, list_parts(members, _PART_TYPES[:4]), {"cNvPr": ALTERNATIVE_TEXTS})
    add_elements(units, members, list_parts(members, ("presentationml.comments+xml",)), ("text",))
    add_properties(units, members)
    masters = dict.fromkeys(_MASTER_TYPES, ("defPPr", *_LEVELS))
    stating = {_PART_TYPES[0]: ("tblPr", *_LEVELS), **masters, CORE_TYPE: ("language",)}
    return units.make_document(
        content,
        "pptx",
        source_language=units.settle_language(styles.language or read_core_language(members)),
        make_document_edits=lambda translations, language: edit_stated(stating, members, translations, language),
        assemble=members.assemble,
        skipped={
            CHART_DATA: count_chart_data(members),
            "tooltips of links": count_attributes(members, names, dict.fromkeys(("hlinkClick", "hlinkHover"), "tooltip")),
        },
    )
