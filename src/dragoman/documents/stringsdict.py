"""Files of forms of Apple (.stringsdict): the text of each plural, width or device, and formats that have words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dragoman.documents.document import Document, Edit, Unit
from dragoman.documents.plural_forms import CATEGORIES, list_missing_categories
from dragoman.documents.reading import MAX_CONTEXT
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml
from dragoman.documents.xml_units import UnitList, write_text
from dragoman.errors import DataError

_FORMAT_KEY = "NSStringLocalizedFormatKey"
_RULES = frozenset(("NSStringVariableWidthRuleType", "NSStringDeviceSpecificRuleType"))
"""Keys of texts by width or device"""
_VARIABLE = re.compile(r"%(?:\d+\$)?#@\w+@")


@dataclass(frozen=True)
class _Value:
    """Text of a dictionary. path: keys. key_start: place of the last key. indent: white space before it"""

    path: tuple[str, ...]
    key_start: int
    indent: str
    element: XmlElement
    text: str


def parse_stringsdict(content: bytes) -> Document:
    """Return the document of a .stringsdict file. Raises DataError for another file."""
    source = XmlSource(content)
    values = [value for root in source.iter_elements(("dict",)) for value in _list_values(source, root, ())]
    forms: dict[tuple[str, ...], dict[str, _Value]] = {}
    for value in values:
        forms.setdefault(value.path[:-1], {})[value.path[-1]] = value
    if not any("NSStringFormatSpecTypeKey" in names or _RULES.intersection(path) for path, names in forms.items()):
        raise DataError("the file has no plural forms, so it is no .stringsdict file", code="invalid-format")
    units = UnitList(len(content))
    for value in values:
        *parents, name = value.path
        is_plural = name in CATEGORIES and "NSStringFormatSpecTypeKey" in forms[tuple(parents)]
        is_form = is_plural or bool(_RULES.intersection(parents[-1:]))
        if is_form or (name == _FORMAT_KEY and any(map(str.isalpha, _VARIABLE.sub("", value.text)))):
            key = ".".join(value.path if is_form else parents)[:MAX_CONTEXT]
            unit = Unit(key, value.text, context=key, key=key, plural_form=name if is_plural else "")
            units.add(unit, partial(write_text, source, value.element))

    def make_plural_edits(language: str) -> Sequence[Edit]:
        """Return the edits that add the missing forms before the key of `other`."""
        edits = []
        for names in forms.values():
            other = names.get("other")
            missing = list_missing_categories(language, names.keys() & set(CATEGORIES)) if other else []
            if other is not None and missing and "NSStringFormatSpecTypeKey" in names:
                added = "".join(
                    f"<key>{name}</key>{other.indent}<string>{escape_xml(other.text)}</string>{other.indent}"
                    for name in missing
                )
                edits.append(source.edit(other.key_start, other.key_start, added))
        return edits

    return units.make_document(content, "stringsdict", make_plural_edits=make_plural_edits)


def _list_values(source: XmlSource, element: XmlElement, path: tuple[str, ...]) -> Iterator[_Value]:
    """Yield the texts of a dictionary and of those in it, four deep at most, which is what the format has."""
    key: XmlElement | None = None
    for child in element.children:
        if child.name == "key":
            key = child
        elif key is not None:
            own_path = (*path, key.text)
            if child.name == "string":
                yield _Value(own_path, key.start, source.get_indent(key), child, child.text)
            elif child.name == "dict" and len(path) < 4:
                yield from _list_values(source, child, own_path)
            key = None
