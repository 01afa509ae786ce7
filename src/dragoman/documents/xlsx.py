"""XLSX files: texts in the cells of a workbook. Numbers, formulas, and names that formulas refer to stay.

A table names its columns by the texts of its header. So a text that is the name of a column is not translated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.office_languages import CORE_TYPE, edit_stated, read_core_language
from dragoman.documents.office_package import list_parts
from dragoman.documents.reading import check_parts
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, get_tag_name, set_attribute
from dragoman.documents.xml_units import Code, Piece, TaggedText, UnitList, name_codes
from dragoman.documents.zip_document import ZipMembers
from dragoman.languages import is_right_to_left

_STRINGS_TYPE = "spreadsheetml.sharedStrings+xml"
_SHEET_TYPE = "spreadsheetml.worksheet+xml"
_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_TABLE_TYPE = "spreadsheetml.table+xml"


def parse_xlsx(content: bytes) -> Document:
    """Return the document of an XLSX file. Raises DataError for another, a damaged, encrypted or signed one, and macros."""
    members = ZipMembers(content, "xlsx")
    columns = set()
    for name in list_parts(members, [_TABLE_TYPE]):
        tables = members.read_xml(name).iter_elements(("tableColumn",))
        columns |= {element.attributes.get("name", "") for element in tables}
        check_parts(len(columns))
    units = UnitList()
    for name in list_parts(members, [_STRINGS_TYPE, _SHEET_TYPE]):
        source = members.read_xml(name)
        add = partial(_add_string, members, source, name, count(1), columns)
        for element in source.iter_elements(("si", "is")):
            units.read(source, element, add)

    def edit_languages(translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        yield from edit_stated({CORE_TYPE: ("language",)}, members, translations, language)
        for name in list_parts(members, [_SHEET_TYPE]) if language and translations else []:
            yield from members.shift_edits(name, _SheetDirection.read(members, name).turn(language))

    return units.make_document(
        content,
        "xlsx",
        source_language=read_core_language(members),
        make_document_edits=edit_languages,
        assemble=members.assemble,
    )


@dataclass(frozen=True)
class _SheetDirection:
    """Direction of a sheet. views: the elements that can state it. place: of the element with views, if there is none"""

    source: XmlSource
    views: Sequence[XmlElement]
    place: int

    @classmethod
    def read(cls, members: ZipMembers, name: str) -> _SheetDirection:
        """Return that of a member."""
        source = members.read_xml(name)
        roots: list[XmlElement] = []
        views: list[XmlElement] = []
        place = 0
        elements = source.iter_elements(
            ("sheetPr", "dimension", "sheetView", "row"), lambda element: roots.append(element) if not roots else None
        )
        for element in elements:
            if element.name == "row":  # the views are before the cells
                break
            if element.name == "sheetView":
                views.append(element)
            else:
                place = element.end
        return cls(source, views, place or roots[0].content_start)

    def turn(self, language: str) -> list[Edit]:
        """Return the edits that give the sheet the direction of a language."""
        is_turned = is_right_to_left(language)
        edits = []
        for view in self.views:
            tag = self.source.get_markup(view.start, view.content_start)
            new = set_attribute(tag, "rightToLeft", "1" if is_turned else "")
            edits += [Edit(view.start, view.content_start, self.source.encode(new))] if new != tag else []
        if not self.views and is_turned:
            added = f'<sheetViews xmlns="{_NAMESPACE}"><sheetView rightToLeft="1" workbookViewId="0"/></sheetViews>'
            edits.append(Edit(self.place, self.place, self.source.encode(added)))
        return edits


def _add_string(
    members: ZipMembers,
    source: XmlSource,
    name: str,
    numbers: Iterator[int],
    columns: set[str],
    units: UnitList,
    element: XmlElement,
) -> None:
    """Add the text of a cell. Runs of one formatting are one text; the reading aids of Japanese stay behind the runs."""
    number = next(numbers)
    runs = element.find_all("r")
    texts = element.find_all("t")
    parts = runs or texts
    plain = "".join(text.text for part in parts for text in (part.find_all("t") if runs else [part]))
    if not plain.strip() or plain in columns or any(part.is_empty_tag for part in parts):
        return
    prefix = get_tag_name(source.get_markup(element.start, element.content_start)).rpartition(":")[0]
    prefix = f"{prefix}:" if prefix else ""
    formatted = [(_read_properties(source, run), "".join(text.text for text in run.find_all("t"))) for run in runs]
    base = min((properties for properties, _ in formatted), key=lambda markup: (len(markup), markup), default="")
    text = _read_runs(formatted, base) if runs else TaggedText(plain)
    span = (parts[0].start, parts[-1].end)

    def write_text(content: str) -> str:
        space = ' xml:space="preserve"' if content != content.strip() or "\n" in content else ""
        return f"<{prefix}t{space}>{escape_xml(content)}</{prefix}t>"

    def write(translation: UnitTranslation) -> list[Edit]:
        if not runs:
            return [Edit(*span, source.encode(write_text(translation.text)))]
        markup, properties = "", base
        for piece in text.split(translation.text):
            if isinstance(piece, str):
                markup += f"<{prefix}r>{properties}{write_text(piece)}</{prefix}r>"
            else:
                properties = piece.properties or "" if piece.kind == "start" else base
        return [Edit(*span, source.encode(markup))]

    units.add(Unit(f"{name}/{number}", text.text, text.markup), members.shift(name, write))


def _read_properties(source: XmlSource, run: XmlElement) -> str:
    properties = run.find("rPr")
    return source.get_markup(properties.start, properties.end) if properties is not None else ""


def _read_runs(formatted: list[tuple[str, str]], base: str) -> TaggedText:
    """Return the text of runs, with a pair of tags around those whose formatting is not `base`."""
    pieces: list[Piece] = []
    current = base
    for properties, text in formatted:
        if properties != current:
            pieces += [Code("end", "")] if current != base else []
            pieces += [Code("start", "", properties=properties)] if properties != base else []
            current = properties
        pieces.append(text)
    return name_codes([*pieces, *([Code("end", "")] if current != base else [])])
