"""RESX files of .NET: the texts among their data. Names, types, files and the layout of forms stay."""

from __future__ import annotations

import re
from functools import partial

from dragoman.documents.document import Document, Edit, Unit, UnitState, UnitTranslation
from dragoman.documents.xml_spans import XmlElement, XmlSource
from dragoman.documents.xml_units import TaggedText, UnitList, write_element_content
from dragoman.errors import DataError
from dragoman.text.inline_rules import InlineRules

_LOCK = re.compile(r"\{(?:Locked|Placeholder)(?:=([^{}]*+))?\}", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*+)"')


def parse_resx(content: bytes) -> Document:
    """Return the document of a RESX file. Raises DataError for other files."""
    source = XmlSource(content, has_entities=True)
    units = UnitList(len(content))
    is_root = False

    def read_start(element: XmlElement) -> None:
        nonlocal is_root
        is_root = is_root or element.name == "root"
        if not is_root:
            raise DataError(f"its first element is {element.name[:40]!r}; expected 'root'", code="invalid-format")

    add = partial(_add_data, source)
    for element in source.iter_elements(("data",), read_start):
        units.read(source, element, add)
    return units.make_document(content, "resx")


def _add_data(source: XmlSource, units: UnitList, element: XmlElement) -> None:
    """Add the text of an element `data`, if it has one."""
    name = element.attributes.get("name", "")
    value = element.find("value")
    has_type = "type" in element.attributes or "mimetype" in element.attributes
    if value is None or has_type or name.startswith((">>", "$this.Name")) or not value.text.strip():
        return
    comment = element.find("comment")
    note = comment.text if comment is not None else ""
    state, rules = _read_locks(note)
    text = TaggedText(value.text)

    def write(translation: UnitTranslation) -> list[Edit]:
        return write_element_content(source, value, translation.text)

    units.add(Unit(name, text.text, text.markup, state=state, context=note or name, rules=rules, key=name), write)


def _read_locks(comment: str) -> tuple[UnitState, InlineRules]:
    """Return the state of a text and the rules for it, as its comment declares: `{Locked}` alone, or with words that stay."""
    words: list[str] = []
    state: UnitState = "untranslated"
    for match in _LOCK.finditer(comment):
        if match[1] is None:
            state = "locked"
        else:
            words += _QUOTED.findall(match[1])
    return state, InlineRules(kept=tuple(filter(None, words)))
