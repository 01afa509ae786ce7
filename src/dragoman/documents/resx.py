"""RESX files of .NET: the texts among their data. Names, types, files and the layout of forms stay.

A comment may have rules for a translation in braces, as Microsoft's tools read them: `{Locked}`, `{Locked="word", "words"}`,
`{Locked=de,qps-ploc}`, `{Placeholder="{0}"}`, `{ValidStrings="left", "right"}` and `{MaxLength=20}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from locale import windows_locale

from dragoman.documents.document import Document, Edit, Unit, UnitState
from dragoman.documents.xml_spans import XmlElement, XmlMarkup, XmlSource
from dragoman.documents.xml_units import UnitList, find_values, write_text
from dragoman.text.inline_rules import InlineRules

# Quotes of one kind hold none of the other between single ones, so that no text is read from many starts to its end.
_VALUE = r"""(?:"[^"]*+"|'[^'"]*+'|[^"'{}])*+"""
_RULE = re.compile(rf"\{{\s*+(Locked|Placeholder|ValidStrings|MaxLength)\s*+(?:=({_VALUE}))?\}}", re.IGNORECASE)
_QUOTED = re.compile(r"""("[^"]*+"|'[^'"]*+')""")
_DESIGNER_NAMES = (">>", "$this.Name")
_CODE = re.compile(r"[A-Za-z0-9_-]+")
_LENGTH = re.compile("[0-9]{1,6}")


def parse_resx(content: bytes) -> Document:
    """Return the document of a RESX file. Raises DataError for other files."""
    source = XmlSource(content, has_entities=True)
    units = UnitList(len(content))
    num_with_elements = 0
    add = partial(_add_data, source)
    for element in source.iter_elements(("data",), root_name="root"):
        units.read(source, element, add)
        value = element.find("value")
        num_with_elements += value is not None and _has_codes(source, value)

    def list_values() -> dict[str, Edit]:
        """Return the values that are no units, such as sizes and colors, but for those about the designer's own objects."""
        data = ((element.attributes.get("name", ""), element.find("value")) for element in source.iter_elements(("data",)))
        values = [(name, value) for name, value in data if value is not None and not name.startswith(_DESIGNER_NAMES)]
        return find_values(source, values, {unit.key for unit in units.units})

    skipped = {"values with elements": num_with_elements}
    return units.make_document(content, "resx", skipped=skipped, find_values=list_values)


def _add_data(source: XmlSource, units: UnitList, element: XmlElement) -> None:
    """Add the text of an element `data`, if it has one."""
    name = element.attributes.get("name", "")
    value = element.find("value")
    has_type = "type" in element.attributes or "mimetype" in element.attributes
    if value is None or _has_codes(source, value) or has_type or name.startswith(_DESIGNER_NAMES) or not value.text.strip():
        return
    comment = element.find("comment")
    note = comment.text if comment is not None else ""
    rules = _read_rules(note)
    unit = Unit(
        name,
        value.text,
        state=rules.state,
        locked_languages=rules.locked_languages,
        context=note or name,
        max_length=rules.max_length,
        rules=InlineRules(kept=rules.kept),
        key=name,
    )
    units.add(unit, partial(write_text, source, value))


def _has_codes(source: XmlSource, value: XmlElement) -> bool:
    """Return whether a value has elements or references to entities."""
    markup = (source.get_markup(part.start, part.end) for part in value.parts if isinstance(part, XmlMarkup))
    return any(value.children) or any(part.startswith("&") for part in markup)


@dataclass(frozen=True)
class _TextRules:
    """Rules for a text, which its comment declares.

    kept: words that stay
    locked_languages: codes of the languages into which the text is not translated
    """

    state: UnitState = "untranslated"
    kept: tuple[str, ...] = ()
    locked_languages: tuple[str, ...] = ()
    max_length: int | None = None


def _read_rules(comment: str) -> _TextRules:
    """Return the rules of a comment. A text stays if it may have named values alone, or is locked for all but named languages.

    Values in quotes are words, and those without quotes are codes of languages, or numbers of Windows for them.
    """
    rules = _TextRules()
    for match in _RULE.finditer(comment):
        name, value = match[1].lower(), (match[2] or "").strip()
        words = tuple(filter(None, (quoted[1:-1] for quoted in _QUOTED.findall(value))))
        if name == "maxlength":
            number = value.strip("\"'")
            rules = replace(rules, max_length=int(number) if _LENGTH.fullmatch(number) else None)
        elif name == "validstrings" or (name == "locked" and (not value or value.startswith("!"))):
            rules = replace(rules, state="locked")
        elif words:
            rules = replace(rules, kept=rules.kept + words)
        elif name == "locked":
            codes = (code.strip() for code in value.split(","))
            named = tuple(_name_language(code) for code in codes if _CODE.fullmatch(code))
            rules = replace(rules, locked_languages=rules.locked_languages + named)
    return rules


def _name_language(code: str) -> str:
    """Return the code of a language for its number of Windows, such as 1031 for German; other codes as they are."""
    return windows_locale.get(int(code), code) if _LENGTH.fullmatch(code) else code
