"""Languages and directions that the tags of XHTML and its like state, and how a translation states its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dragoman.documents.document import Edit, UnitTranslation
from dragoman.documents.xml_spans import XmlElement, XmlSource, get_attribute, get_tag_name, set_attribute
from dragoman.documents.xml_units import Code, Piece
from dragoman.languages import get_direction, is_right_to_left, is_same_language

LANGUAGE_ATTRIBUTES = ("xml:lang", "lang")

STATING_ATTRIBUTES = frozenset((*LANGUAGE_ATTRIBUTES, "dir"))


def get_stated_language(element: XmlElement) -> str:
    """Return the language that an element states, or an empty text."""
    return next((value for name in LANGUAGE_ATTRIBUTES if (value := element.attributes.get(name, ""))), "")


def find_language(element: XmlElement | None, document_language: str) -> str:
    """Return the language that an element or the nearest one around it states; empty if it is that of the document."""
    around = () if element is None else element.ascend()
    stated = next(filter(None, map(get_stated_language, around)), "")
    return "" if is_same_language(stated, document_language) else stated


def restate_tag(tag: str, source_language: str, language: str, direction: str) -> str:
    """Return a start tag that states the language of the translation instead of that of the source, and its direction.

    direction: that of the document, "ltr" or "rtl"; a tag that states this one gets that of the translation
    """
    for name in LANGUAGE_ATTRIBUTES:
        stated = get_attribute(tag, name)
        if language and stated and is_same_language(stated, source_language) and not is_same_language(stated, language):
            tag = set_attribute(tag, name, language)
    if get_direction(language) not in ("", direction) and get_attribute(tag, "dir").lower() == direction:
        tag = set_attribute(tag, "dir", "rtl" if get_direction(language) == "rtl" else "")
    return tag


def restate_pieces(pieces: Sequence[Piece], translation: UnitTranslation, direction: str) -> list[Piece]:
    """Return the pieces of a translation, whose tags state its language and direction as `restate_tag` says."""
    return [
        replace(piece, markup=restate_tag(piece.markup, translation.source_language, translation.language, direction))
        if isinstance(piece, Code) and piece.is_start
        else piece
        for piece in pieces
    ]


def edit_tag(source: XmlSource, element: XmlElement, source_language: str, language: str, direction: str) -> list[Edit]:
    """Return the edit of a start tag as `restate_tag` says; none if it stays."""
    return source.edit_tag(element, restate_tag(source.get_tag(element), source_language, language, direction))


def edit_root(source: XmlSource, root: XmlElement, source_language: str, language: str) -> list[Edit]:
    """Return the edit that makes the first element of XHTML state the language, and a direction from right to left."""
    new = source.get_tag(root)
    for name in LANGUAGE_ATTRIBUTES:
        if root.attributes.get(name) and not is_same_language(root.attributes[name], language):
            new = set_attribute(new, name, language)
    if get_direction(language) == "rtl":
        new = set_attribute(new, "dir", "rtl")
    elif is_right_to_left(source_language) and root.attributes.get("dir") == "rtl":
        new = set_attribute(new, "dir", "")
    return source.edit_tag(root, new)


def get_attribute_name(start_tag: str, local_name: str) -> str:
    """Return the name of an attribute as it stands in a tag, with its prefix; with that of the tag if the tag has none such."""
    match = re.search(rf"\s([\w.-]+:{re.escape(local_name)})\s*=", start_tag)
    return match[1] if match else f"{get_tag_name(start_tag).rpartition(':')[0]}:{local_name}".lstrip(":")
