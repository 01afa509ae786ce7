"""DocBook files, of version 4 and 5: paragraphs, titles, terms and cells. Code stays, and so does what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

from dragoman.documents.android_strings import parse_android_strings
from dragoman.documents.document import Document, Edit, UnitTranslation
from dragoman.documents.flowing_text import add_flowing_text
from dragoman.documents.xml_languages import edit_root, find_language, get_stated_language
from dragoman.documents.xml_spans import XmlElement, XmlSource
from dragoman.documents.xml_units import Code, Piece, UnitList, make_pair, make_point, read_parts
from dragoman.errors import DataError
from dragoman.languages import is_same_language

_ROOTS = frozenset(
    ("book", "article", "chapter", "part", "set", "section", "sect1", "appendix", "preface", "glossary", "reference",
     "refentry", "topic", "bookinfo", "articleinfo", "legalnotice", "abstract")
)  # fmt: skip
_BLOCKS = frozenset(
    ("para", "simpara", "title", "titleabbrev", "subtitle", "term", "entry", "td", "th", "member", "refpurpose", "bridgehead",
     "attribution", "glossterm", "phrase", "caption", "releaseinfo", "alt", "seg", "segtitle", "contrib")
)  # fmt: skip
_PAIRS = frozenset(
    ("emphasis", "phrase", "link", "ulink", "quote", "citetitle", "firstterm", "foreignphrase", "subscript", "superscript",
     "guilabel", "guibutton", "guimenu", "guimenuitem", "guisubmenu", "glossterm", "acronym", "wordasword",
     "olink")
)  # fmt: skip
_KEPT = frozenset(
    ("programlisting", "screen", "literallayout", "synopsis", "cmdsynopsis", "funcsynopsis", "classsynopsis",
     "informalequation", "equation", "imageobject")
)  # fmt: skip
_MENUS = "menuchoice"
"""Element of labels, between which stands no text"""
_FIXED = (_BLOCKS - _PAIRS) | _KEPT | {"mediaobject", _MENUS}
_START_TAG = re.compile(r"""<(?:[^<>"']|"[^"]*+"|'[^']*+')++>""")
_FIRST_TAG = re.compile(rb"<(?:[a-z]+:)?([a-zA-Z][\w-]*)")
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_MAX_PROLOG = 2**12
_MAX_START_TAG = 2**16
_INDEX = "terms of the index"


def parse_xml(content: bytes) -> Document:
    """Return the document of an XML file: DocBook by its first element, and Android resources otherwise."""
    name = _FIRST_TAG.search(_COMMENT.sub(b"", content[:_MAX_PROLOG]))
    return (parse_docbook if name and name[1].decode("latin-1") in _ROOTS else parse_android_strings)(content)


def parse_docbook(content: bytes) -> Document:
    """Return the document of a DocBook file. Raises DataError for XML of another kind."""
    source = XmlSource(content, has_entities=True)
    units = UnitList(len(content))
    language = ""
    num_index_terms = 0
    restated: list[XmlElement] = []  # parts that state the language of the document

    def read_start(element: XmlElement) -> None:
        nonlocal language, num_index_terms
        if element.parent is None:
            language = get_stated_language(element)
            if element.name not in _ROOTS:
                problem = f"its first element is {element.name[:40]!r}"
                raise DataError(f"{problem}; expected one of DocBook, such as 'book'", code="invalid-format")
        elif (stated := get_stated_language(element)) and is_same_language(stated, language) and not _is_in_text(element):
            restated.append(element)
        num_index_terms += element.name == "indexterm"

    numbers = count(1)
    for element in source.iter_elements((*_BLOCKS, *_KEPT), read_start):
        if element.name in _BLOCKS and element.get_inherited("translate") != "no":
            units.read(source, element, partial(_add_blocks, source, numbers, language))

    def edit_language(translations: Mapping[str, UnitTranslation], new: str) -> list[Edit]:
        if not new:
            return []
        return [
            edit
            for element in (source.root, *restated)
            if (match := _START_TAG.match(source.get_markup(element.start, min(element.start + _MAX_START_TAG, len(content)))))
            for edit in edit_root(
                source, replace(element, content_start=element.start + len(source.encode(match[0]))), language, new
            )
        ]

    return units.make_document(
        content, "docbook", source_language=language, make_document_edits=edit_language, skipped={_INDEX: num_index_terms}
    )


def _add_blocks(
    source: XmlSource, numbers: Iterator[int], document_language: str, units: UnitList, element: XmlElement
) -> None:
    """Add the texts of an element, and of the blocks in it."""
    if element.name in _KEPT or _is_protected(element):
        return
    is_label = element.parent is not None and element.parent.name == _MENUS and element.name in _PAIRS
    if element.name in _BLOCKS or is_label:
        language = find_language(element, document_language)
        add_flowing_text(units, source, element.parts, str(next(numbers)), partial(_read_inline, source), language)
    for child in element.children:
        if element.name not in _BLOCKS or _is_fixed(child):
            _add_blocks(source, numbers, document_language, units, child)


def _is_in_text(element: XmlElement) -> bool:
    return element.parent is not None and any(parent.name in _BLOCKS for parent in element.parent.ascend())


def _is_protected(element: XmlElement) -> bool:
    return element.attributes.get("translate") == "no"


def _is_fixed(element: XmlElement) -> bool:
    """Return whether an element in a text is a block, or holds one."""
    return element.name in _FIXED or any(inner.name in _FIXED for inner in element.descend())


def _read_inline(source: XmlSource, element: XmlElement) -> list[Piece]:
    """Return the pieces of an element in a text. A block in it keeps its place."""
    if _is_fixed(element):
        return [Code("point", "", fixed=(element.start, element.end))]
    if element.name not in _PAIRS or _is_protected(element):
        return [make_point(source, element)]
    return make_pair(source, element, read_parts(source, element.parts, partial(_read_inline, source)))
