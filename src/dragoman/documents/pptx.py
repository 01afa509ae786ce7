"""PPTX files: slides and notes of a presentation, with tables and diagrams."""

from __future__ import annotations

from dragoman.documents.code_formatting import FontStyles
from dragoman.documents.document import Document
from dragoman.documents.office_package import list_parts
from dragoman.documents.run_paragraphs import add_paragraphs
from dragoman.documents.xml_units import UnitList
from dragoman.documents.zip_document import ZipMembers

_PART_TYPES = ("presentationml.slide+xml", "presentationml.notesSlide+xml", "drawingml.diagramData+xml")


def parse_pptx(content: bytes) -> Document:
    """Return the document of a PPTX file. Raises DataError for another, a damaged, encrypted or signed one, and macros."""
    members = ZipMembers(content, "pptx")
    units = UnitList()
    for name in list_parts(members, _PART_TYPES):
        add_paragraphs(units, members, name, FontStyles())
    return units.make_document(content, "pptx", assemble=members.assemble)
