"""XLSX files: texts in the cells of a workbook. Numbers, formulas, and names that formulas refer to stay.

A table names its columns by the texts of its header. So a text that is the name of a column is not translated.
"""

from __future__ import annotations

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.office_package import list_parts
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, get_tag_name
from dragoman.documents.xml_units import Code, Piece, TaggedText, UnitList, name_codes
from dragoman.documents.zip_document import ZipMembers

_STRINGS_TYPE = "spreadsheetml.sharedStrings+xml"
_SHEET_TYPE = "spreadsheetml.worksheet+xml"
_TABLE_TYPE = "spreadsheetml.table+xml"


def parse_xlsx(content: bytes) -> Document:
    """Return the document of an XLSX file. Raises DataError for another, a damaged, encrypted or signed one, and macros."""
    members = ZipMembers(content, "xlsx")
    columns = set()
    for name in list_parts(members, [_TABLE_TYPE]):
        tables = members.read_xml(name).iter_elements(("tableColumn",))
        columns |= {element.attributes.get("name", "") for element in tables}
    units = UnitList()
    for name in list_parts(members, [_STRINGS_TYPE, _SHEET_TYPE]):
        source = members.read_xml(name)
        for number, element in enumerate(source.iter_elements(("si", "is")), start=1):
            _add_string(units, members, source, element, name, number, columns)
    return units.make_document(content, "xlsx", assemble=members.assemble)


def _add_string(
    units: UnitList,
    members: ZipMembers,
    source: XmlSource,
    element: XmlElement,
    name: str,
    number: int,
    columns: set[str],
) -> None:
    """Add the text of a cell. Runs of one formatting are one text; the reading aids of Japanese stay behind the runs."""
    runs = element.find_all("r")
    texts = element.find_all("t")
    parts = runs or texts
    plain = "".join(text.text for part in parts for text in (part.find_all("t") if runs else [part]))
    if not any(map(str.isalpha, plain)) or plain in columns or any(part.is_empty_tag for part in parts):
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
