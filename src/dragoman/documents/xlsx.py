"""XLSX files: texts in the cells of a workbook, its notes, charts, headers and prompts. Numbers, formulas and names stay.

A text with which a formula, a list, a filter, a format or a table compares is not translated, because it would no longer be
equal.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import count

from dragoman.documents.code_formatting import FontStyles
from dragoman.documents.compared_texts import COMPARED, ComparedTexts
from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.office_languages import CORE_TYPE, edit_stated, read_core_language
from dragoman.documents.office_package import list_parts
from dragoman.documents.office_texts import (
    ALTERNATIVE_TEXTS,
    CHART_TYPES,
    DIAGRAM_TYPES,
    add_attributes,
    add_chart_titles,
    add_elements,
    add_properties,
)
from dragoman.documents.run_paragraphs import add_paragraphs, read_runs
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, set_attribute
from dragoman.documents.xml_units import Code, Piece, TaggedText, UnitList, name_codes, write_pieces
from dragoman.documents.zip_document import ZipMembers
from dragoman.languages import is_right_to_left

_STRINGS_TYPE = "spreadsheetml.sharedStrings+xml"
_SHEET_TYPE = "spreadsheetml.worksheet+xml"
_NOTES_TYPE = "spreadsheetml.comments+xml"
_NUMBER = re.compile("[0-9]{1,9}")
_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_WORKBOOK_TYPE = "spreadsheetml.sheet.main+xml"
_DRAWING_TYPE = "officedocument.drawing+xml"
_PROMPTS = {"promptTitle": 32, "prompt": 255, "errorTitle": 32, "error": 255}
_HEADERS = ("oddHeader", "oddFooter", "evenHeader", "evenFooter", "firstHeader", "firstFooter")
# Codes of headers and footers: the left, middle or right part, a font, a size, a color, and a field such as a number of pages.
_HEADER_CODE = re.compile(r'&(?:([LCR])|"[^"]*+"|\d++|K[0-9A-Fa-f]{6}|.)', re.DOTALL)


def parse_xlsx(content: bytes) -> Document:
    """Return the document of an XLSX file. Raises DataError for another, and for a damaged, encrypted or signed one."""
    members = ZipMembers(content, "xlsx")
    compared = ComparedTexts.read(members, (_SHEET_TYPE, _WORKBOOK_TYPE))
    skipped: Counter[str] = Counter({"texts in formulas": compared.num_literals})
    units = UnitList()
    for name in list_parts(members, [_STRINGS_TYPE, _SHEET_TYPE, _NOTES_TYPE]):
        source = members.read_xml(name)
        add = partial(_add_string, source, name, count(1), compared, skipped)
        add_header = partial(_add_header, source, name)
        for element in source.iter_elements(("si", "is", "text", *_HEADERS)):
            units.read(source, element, add_header if element.name in _HEADERS else add)
    add_elements(units, members, list_parts(members, ["threadedcomments+xml"]), ("text",))
    add_attributes(
        units, members, list_parts(members, [_SHEET_TYPE]), {"dataValidation": _PROMPTS, "hyperlink": {"tooltip": 255}}
    )
    drawings = list_parts(members, [_DRAWING_TYPE])
    for name in (*drawings, *list_parts(members, [*CHART_TYPES, *DIAGRAM_TYPES])):
        add_paragraphs(units, members, name, FontStyles())
    add_chart_titles(units, members)
    add_attributes(units, members, drawings, {"cNvPr": ALTERNATIVE_TEXTS})
    add_properties(units, members)
    workbooks = map(members.read_xml, list_parts(members, [_WORKBOOK_TYPE]))
    sheets = [element.attributes.get("name", "") for source in workbooks for element in source.iter_elements(("sheet",))]
    skipped["names of sheets"] = sum(any(map(str.isalpha, name)) for name in sheets)

    def edit_languages(translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
        yield from edit_stated({CORE_TYPE: ("language",)}, members, translations, language)
        for name in list_parts(members, [_SHEET_TYPE]) if language else []:
            yield from _turn_sheet(members.read_xml(name), language)

    return units.make_document(
        content,
        "xlsx",
        source_language=read_core_language(members),
        make_document_edits=edit_languages,
        assemble=members.assemble,
        skipped=skipped,
        find_cells=lambda: _find_cells(members),
        divide_cells=partial(_divide_cells, members),
    )


def _find_cells(members: ZipMembers) -> dict[str, list[str]]:
    """Return the cells with each text by the id of its unit. A cell begins with the number of its sheet."""
    cells: dict[str, list[str]] = {}
    shared = list_parts(members, [_STRINGS_TYPE])
    all_notes = set(list_parts(members, [_NOTES_TYPE]))
    for name in shared:
        cells |= {f"{name}/{number}": [] for number, _ in enumerate(members.read_xml(name).iter_elements(("si",)), start=1)}
    for name, place in _list_places(members).items():
        numbers = count(1)
        for address, element in _iter_cells(members.read_xml(name), place):
            value = element.find("v")
            for _ in element.find_all("is"):
                cells[f"{name}/{next(numbers)}"] = [address]
            if element.attributes.get("t") == "s" and value is not None and _NUMBER.fullmatch(value.text):
                cells.setdefault(f"{shared[0] if shared else ''}/{int(value.text) + 1}", []).append(address)
        for notes in all_notes.intersection(_read_targets(members, name).values()):
            for number, element in enumerate(members.read_xml(notes).iter_elements(("text",)), start=1):
                reference = "" if element.parent is None else element.parent.attributes.get("ref", "")
                cells[f"{notes}/{number}"] = [f"{place}!{reference}!note"]
    return cells


def _list_places(members: ZipMembers) -> dict[str, str]:
    """Return the names of sheets, and the numbers that they have in their workbook."""
    books = list_parts(members, [_WORKBOOK_TYPE])
    places = {name: str(number) for book in books for number, name in enumerate(_list_sheets(members, book))}
    return {name: places.get(name, name) for name in list_parts(members, [_SHEET_TYPE])}


def _iter_cells(source: XmlSource, place: str) -> Iterator[tuple[str, XmlElement]]:
    """Yield the cells of a sheet with their addresses, which a cell need not state."""
    for index, element in enumerate(source.iter_elements(("c",))):
        yield f"{place}!{element.attributes.get('r') or index}", element


def _divide_cells(members: ZipMembers, addresses: Collection[str]) -> Iterator[Edit]:
    """Yield the edits that give each of these cells a text of its own, equal to the one that it shares."""
    source = members.read_xml(list_parts(members, [_STRINGS_TYPE])[0])
    texts = [source.get_markup(element.content_start, element.content_end) for element in source.iter_elements(("si",))]
    for name, place in _list_places(members).items():
        sheet = members.read_xml(name)
        for address, cell in _iter_cells(sheet, place):
            if address in addresses and cell.attributes.get("t") == "s" and (value := cell.find("v")) is not None:
                tag = set_attribute(sheet.get_tag(cell), "t", "inlineStr")
                prefix = sheet.get_prefix(cell)
                markup = f"{tag}<{prefix}is>{texts[int(value.text)]}</{prefix}is>"
                yield sheet.edit(cell.start, cell.content_end, markup)


def _list_sheets(members: ZipMembers, workbook: str) -> list[str]:
    """Return the members with the sheets of a workbook, in its order."""
    targets = _read_targets(members, workbook)
    return [
        targets.get(element.attributes.get(":id", ""), "") for element in members.read_xml(workbook).iter_elements(("sheet",))
    ]


def _read_targets(members: ZipMembers, name: str) -> dict[str, str]:
    """Return the members to which one refers, by the ids of the relationships."""
    folder, _, file = name.rpartition("/")
    relationships = f"{folder}/_rels/{file}.rels"
    if relationships not in members.members:
        return {}
    return {
        element.attributes.get("Id", ""): posixpath.normpath(posixpath.join("/", folder, element.attributes.get("Target", "")))[
            1:
        ]
        for element in members.read_xml(relationships).iter_elements(("Relationship",))
    }


def _turn_sheet(source: XmlSource, language: str) -> list[Edit]:
    """Return the edits that give a sheet the direction of a language, in its views or in a new one."""
    direction = "1" if is_right_to_left(language) else ""
    edits: list[Edit] = []
    place, has_view = 0, False
    for element in source.iter_elements(("sheetPr", "dimension", "sheetView", "row")):
        if element.name == "row":  # the views are before the cells
            break
        if element.name == "sheetView":
            has_view = True
            edits += source.edit_tag(element, set_attribute(source.get_tag(element), "rightToLeft", direction))
        else:
            place = element.end
    if has_view or not direction:
        return edits
    place = place or source.root.content_start
    added = f'<sheetViews xmlns="{_NAMESPACE}"><sheetView rightToLeft="1" workbookViewId="0"/></sheetViews>'
    return [source.edit(place, place, added)]


def _add_string(
    source: XmlSource,
    name: str,
    numbers: Iterator[int],
    compared: ComparedTexts,
    skipped: Counter[str],
    units: UnitList,
    element: XmlElement,
) -> None:
    """Add the text of a cell. Runs of one formatting are one text; the reading aids of Japanese stay behind the runs."""
    number = next(numbers)
    runs = element.find_all("r")
    texts = element.find_all("t")
    parts = runs or texts
    plain = "".join(text.text for part in parts for text in (part.find_all("t") if runs else [part]))
    if not plain.strip() or any(part.is_empty_tag for part in parts):
        return
    if element.name != "text" and compared.has(plain):
        skipped[COMPARED] += any(map(str.isalpha, plain))
        return
    prefix = source.get_prefix(element)
    formatted = [(_read_properties(source, run), "".join(text.text for text in run.find_all("t"))) for run in runs]
    text, base = read_runs(formatted) if runs else (TaggedText(plain), "")
    span = (parts[0].start, parts[-1].end)

    def write_run(content: str, properties: str) -> str:
        space = ' xml:space="preserve"' if content != content.strip() or "\n" in content else ""
        markup = f"<{prefix}t{space}>{escape_xml(content)}</{prefix}t>"
        return f"<{prefix}r>{properties}{markup}</{prefix}r>" if runs else markup

    def write(translation: UnitTranslation) -> list[Edit]:
        return write_pieces(text.split(translation.text), span, source, write_run, base)

    units.add(Unit(f"{name}/{number}", text.text, text.markup), write)


def _add_header(source: XmlSource, name: str, units: UnitList, element: XmlElement) -> None:
    """Add the texts of a header or footer, each part of which is one."""
    pieces: list[Piece] = []
    position = 0
    for match in _HEADER_CODE.finditer(element.text):
        pieces.append(element.text[position : match.start()])
        code = Code("point", escape_xml(match[0]), separator="br" if match[1] else "")
        pieces.append("&" if match[0] == "&&" else code)
        position = match.end()
    text = name_codes([piece for piece in (*pieces, element.text[position:]) if piece])
    span = element.content_start, element.content_end

    def write(translation: UnitTranslation) -> list[Edit]:
        pieces = text.split(translation.text)
        return write_pieces(pieces, span, source, lambda piece, properties: escape_xml(piece.replace("&", "&&")))

    if text.text.strip() and not element.is_empty_tag:
        units.add(Unit(f"{name}/{element.name}", text.text, text.markup, context=element.name), write)


def _read_properties(source: XmlSource, run: XmlElement) -> str:
    properties = run.find("rPr")
    return source.get_markup(properties.start, properties.end) if properties is not None else ""
