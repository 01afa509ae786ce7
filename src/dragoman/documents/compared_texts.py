"""Texts that a workbook compares with those of cells: in formulas, lists, filters, formats, tables and pivot tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from dragoman.documents.office_package import list_parts
from dragoman.documents.reading import check_parts
from dragoman.documents.xml_spans import XmlElement
from dragoman.documents.zip_document import ZipMembers

_LITERAL = re.compile(
    r"""(\b(?:(?:SEARCH|FIND|SEARCHB|FINDB|contains-text|begins-with|ends-with)\(
    |(?:SUBSTITUTE|TEXTBEFORE|TEXTAFTER|REGEX[A-Z]*+)\([^()"]*+)\s*+)?"((?:[^"]|"")*+)\"""",
    re.IGNORECASE | re.VERBOSE,
)
# Functions that take a part of a text, with the pattern of the texts that have it.
_CUTS = {"LEFT": "{}*", "RIGHT": "*{}", "MID": "*{}*"}
_CHOICE = re.compile(r"SWITCH|MATCH|LOOKUP", re.IGNORECASE)
_SHEET_ELEMENTS = ("f", "cfRule", "filter", "customFilter", "formula1", "formula2")
# Elements of other parts, with the attribute that holds the text.
_NAMING_PARTS = {
    "spreadsheetml.table+xml": {"tableColumn": "name"},
    "spreadsheetml.pivotCacheDefinition+xml": {"cacheField": "name", "s": "v"},
}
_OPERATOR = re.compile(r"<>|[<>]?=|[<>]")
MAX_PATTERNS = 100
"""Most texts that a cell may contain, or patterns with `*` and `?`, that are looked for."""
MAX_PATTERN = 255
"""Most characters of a pattern, as in the formulas of Excel."""
COMPARED = "texts that formulas, lists, filters or tables compare with"


@dataclass
class ComparedTexts:
    """Texts that stay because something compares with them. Case does not count, as in a spreadsheet.

    texts: whole texts of cells
    parts, patterns: texts in cells, and patterns of texts
    num_literals: number of texts in formulas with a letter
    has_indirect: a formula makes references of texts, so that a cell may name a range or a sheet
    """

    texts: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    num_literals: int = 0
    has_indirect: bool = False

    @classmethod
    def read(cls, members: ZipMembers, sheet_types: tuple[str, ...]) -> ComparedTexts:
        """Return those of a workbook."""
        compared = cls()
        for part_type, attributes in _NAMING_PARTS.items():
            for name in list_parts(members, (part_type,)):
                for element in members.read_xml(name).iter_elements(("tableColumn", "cacheField")):
                    for inner in element.descend():
                        compared._add(inner.attributes.get(attributes.get(inner.name, ""), ""))
        names: list[str] = []
        for name in list_parts(members, sheet_types):
            for element in members.read_xml(name).iter_elements((*_SHEET_ELEMENTS, "definedName", "sheet")):
                if element.name in ("definedName", "sheet"):
                    names.append(element.attributes.get("name", ""))
                compared._add_element(element)
        compared._add_names(names)
        compared.parts = set(sorted(compared.parts)[:MAX_PATTERNS])
        compared.patterns = set(sorted(compared.patterns)[:MAX_PATTERNS])
        return compared

    @classmethod
    def read_opendocument(cls, members: ZipMembers, names: Sequence[str]) -> ComparedTexts:
        """Return those of a spreadsheet of OpenDocument, whose formulas, conditions and filters are attributes."""
        compared = cls()
        range_names: list[str] = []

        def add(element: XmlElement) -> None:
            values = element.attributes
            if element.name in ("named-range", "table"):
                range_names.append(values.get(":name", ""))
            for attribute in (":formula", ":condition", ":expression"):
                compared._add_formula(values.get(attribute, ""), is_list=False)
            if element.name in ("filter-condition", "filter-set-item"):
                compared._add(values.get(":value", ""))
            elif element.name == "condition":
                compared._add_formula(values.get(":value", ""), is_list=False)
            elif element.name == "data-pilot-member":
                compared._add(values.get(":name", ""))

        for name in names:
            for _ in members.read_xml(name).iter_elements((), add):
                pass
        compared._add_names(range_names)
        return compared

    def _add_element(self, element: XmlElement) -> None:
        for inner in element.descend():
            if inner.name in ("filter", "customFilter"):
                self._add(inner.attributes.get("val", ""))
            elif inner.name == "cfRule":
                self._add_part(inner.attributes.get("text", ""))
            else:
                self._add_formula(inner.text, is_list=inner.name == "formula1")

    def _add_names(self, names: Sequence[str]) -> None:
        """Add the names of ranges and sheets, in which `_` may stand for a space, if a formula looks for them."""
        for name in names if self.has_indirect else ():
            self._add(name)
            self._add(name.replace("_", " "))

    def _add_formula(self, formula: str, *, is_list: bool) -> None:
        upper = formula.upper()
        self.has_indirect |= "INDIRECT(" in upper
        cuts = [pattern for name, pattern in _CUTS.items() if f"{name}(" in upper or f"{name}B(" in upper]
        has_choice = _CHOICE.search(upper) is not None
        for match in _LITERAL.finditer(formula):
            text = match[2].replace('""', '"')
            self.num_literals += any(map(str.isalpha, text))
            if match[1]:
                self._add_part(text)
            if cuts and any(map(str.isalnum, text)) and (has_choice or _is_operand(formula, match.start(), match.end())):
                for pattern in cuts:
                    self._add(pattern.format(re.sub("[*?]", "?", text)))
            self._add(text)
            self._add(_OPERATOR.sub("", text, count=1) if _OPERATOR.match(text) else "")
            for item in text.split(",") if is_list else ():
                self._add(item)

    def _add(self, text: str) -> None:
        folded = text.strip().casefold()
        if "*" not in folded and "?" not in folded:
            self.texts.add(folded)
        elif len(folded) <= MAX_PATTERN:
            self.patterns.add(folded.replace("[", "[[]"))  # `fnmatch` reads a set of characters behind a bracket
        self._check_number()

    def _add_part(self, text: str) -> None:
        if any(map(str.isalnum, text)):
            self.parts.add(text.casefold())
            self._check_number()

    def _check_number(self) -> None:
        check_parts(len(self.texts) + len(self.parts) + len(self.patterns))

    def has(self, text: str) -> bool:
        """Return whether something compares with the text of a cell."""
        folded = text.strip().casefold()
        return (
            folded in self.texts
            or any(part in folded for part in self.parts)
            or any(fnmatchcase(folded, pattern) for pattern in self.patterns)
        )


def _is_operand(formula: str, start: int, end: int) -> bool:
    """Return whether a part of a formula stands beside an operator that compares."""
    before, after = formula[max(start - 2, 0) : start].rstrip(), formula[end : end + 2].lstrip()
    return before.endswith(("=", "<>")) or after.startswith(("=", "<>"))
