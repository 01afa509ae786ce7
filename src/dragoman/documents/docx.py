"""DOCX files: body, headers, footers, notes and comments of a text document."""

from __future__ import annotations

from dragoman.documents.document import Document
from dragoman.documents.office_package import list_parts
from dragoman.documents.run_paragraphs import add_paragraphs
from dragoman.documents.xml_units import UnitList
from dragoman.documents.zip_document import ZipMembers

_PART_TYPES = tuple(
    f"wordprocessingml.{name}+xml"
    for name in ("document.main", "template.main", "header", "footer", "footnotes", "endnotes", "comments")
)


def parse_docx(content: bytes) -> Document:
    """Return the document of a DOCX file. Raises DataError for another, a damaged, encrypted or signed one, and macros."""
    members = ZipMembers(content, "docx")
    units = UnitList()
    for name in list_parts(members, _PART_TYPES):
        add_paragraphs(units, members, name)
    return units.make_document(content, "docx", assemble=members.assemble)
