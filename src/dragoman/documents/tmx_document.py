"""TMX files: units of a translation memory with a source language and one or more target languages, each with units of its own.

A translation that a human has to check has `creationid="MT!"`, as Okapi writes and reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from dragoman.documents.document import Document, Edit, Remarks, Unit, UnitState, UnitTranslation
from dragoman.documents.reading import check_parts
from dragoman.documents.xml_spans import XmlElement, XmlSource, set_attribute
from dragoman.documents.xml_units import (
    Code,
    Piece,
    TaggedText,
    UnitList,
    make_pair,
    make_point,
    name_codes,
    read_parts,
    set_attributes,
)
from dragoman.errors import DataError
from dragoman.formats.tmx import choose_variants
from dragoman.languages import get_language, is_same_language

_MACHINE = "MT!"


@dataclass(frozen=True)
class _TmxPlace:
    """Elements of one unit. source, target: `tuv` of both languages"""

    source: XmlElement
    target: XmlElement | None
    text: TaggedText


def parse_tmx(content: bytes) -> Document:
    """Return the document of a TMX file. Raises DataError for other files."""
    source = XmlSource(content)
    source_language = ""

    def read_start(element: XmlElement) -> None:
        nonlocal source_language
        if element.name == "header":
            source_language = element.attributes.get("srclang", "").replace("*all*", "")

    languages: dict[str, None] = {}
    for element in source.iter_elements(("tu",), read_start, root_name="tmx"):
        languages |= dict.fromkeys(map(_get_language, element.find_all("tuv")))
        check_parts(len(languages))
    source_language = source_language or next(iter(languages), "")
    named = {get_language(name): name for name in reversed(languages) if not is_same_language(name, source_language)}
    targets = list(reversed(named.values())) or [""]
    units = UnitList(len(content))
    for number, element in enumerate(source.iter_elements(("tu",)), start=1):
        units.read(source, element, partial(_add_units, source, number, source_language, targets))
    target_language = targets[0] if len(targets) == 1 else ""
    return units.make_document(content, "tmx", source_language=source_language, target_language=target_language)


def _get_language(element: XmlElement) -> str:
    return element.attributes.get("xml:lang") or element.attributes.get("lang", "")


def _find_variants(element: XmlElement, languages: tuple[str, str]) -> tuple[XmlElement | None, XmlElement | None]:
    """Return the `tuv` of both languages."""
    variants = element.find_all("tuv")
    source, target = choose_variants(list(map(_get_language, variants)), languages)
    return None if source is None else variants[source], None if target is None else variants[target]


def _make_place(source: XmlSource, element: XmlElement, languages: tuple[str, str]) -> _TmxPlace | None:
    """Return the elements of a unit; None for one without a text of the source language."""
    original, target = _find_variants(element, languages)
    segment = original.find("seg") if original is not None else None
    if original is None or segment is None or not segment.text.strip():
        return None
    return _TmxPlace(original, target, name_codes(_read(source, segment)))


def _add_units(
    source: XmlSource, number: int, source_language: str, targets: Sequence[str], units: UnitList, element: XmlElement
) -> None:
    """Add a unit for each target language. With several, each has its language behind its id."""
    name = element.attributes.get("tuid", str(number))
    for language in targets:
        if (place := _make_place(source, element, (source_language, language))) is None:
            return
        unit = _make_unit(source, name, place)
        if len(targets) > 1:
            unit = replace(unit, id=f"{name}/{language}", target_language=language)
        units.add(unit, partial(_write, source, place, language), partial(_list_remarks, source, element, place))


def _list_remarks(source: XmlSource, element: XmlElement, place: _TmxPlace) -> Remarks:
    """Return the notes and dates of a unit and of its translation."""
    notes = [child for child in element.children if child.name in ("note", "prop")]
    remarks = source.read_notes(notes, notes[-1].end if notes else element.content_start)
    remarks |= {(f"state {name}", ""): source.read_attribute(element, name) for name in ("changedate", "changeid")}
    target, end = place.target, place.source.end
    remarks["target", ""] = source.read_remark(end, end) if target is None else source.read_indented(target)
    if target is not None and (segment := target.find("seg")) is not None:
        remarks["state", ""] = source.read_remark(target.start, segment.start)
    return remarks


def _make_unit(source: XmlSource, name: str, place: _TmxPlace) -> Unit:
    text, target = place.text, place.target
    target_segment = target.find("seg") if target is not None else None
    present = name_codes(_read(source, target_segment), text).text if target_segment is not None else ""
    is_machine = target is not None and target.attributes.get("creationid") == _MACHINE
    state: UnitState = "untranslated" if not present else "fuzzy" if is_machine else "translated"
    return Unit(name, text.text, text.markup, present, state)


def _read(source: XmlSource, element: XmlElement) -> list[Piece]:
    def read_code(code: XmlElement) -> list[Piece]:
        if code.name == "hi":
            return make_pair(source, code, read_parts(source, code.parts, read_code))
        if code.name in ("bpt", "ept") and "i" in code.attributes:
            markup = source.get_markup(code.start, code.end)
            return [Code("start" if code.name == "bpt" else "end", markup, f"code {code.attributes['i']}")]
        return [make_point(source, code)]

    return read_parts(source, element.parts, read_code)


def _write(source: XmlSource, place: _TmxPlace, language: str, translation: UnitTranslation) -> list[Edit]:
    """Return the edits that write a translation: into the present `tuv`, or a new one behind that of the source.

    Raises DataError for a new one whose language is not known.
    """
    markup = place.text.write(translation.text)
    segment = f"<seg>{markup}</seg>"
    machine = "" if translation.state == "translated" else _MACHINE
    target = place.target
    if target is None:
        if not (language := language or translation.language):
            raise DataError("the TMX file names no target language; state it", code="unsupported-language")
        tag = set_attributes("<tuv>", {"xml:lang": language, "creationid": machine})
        end = place.source.end
        return [source.edit(end, end, f"{source.get_indent(place.source)}{tag}{segment}</tuv>")]
    is_machine = target.attributes.get("creationid") == _MACHINE
    tag = source.get_start_tag(target)
    tag = set_attribute(tag, "creationid", machine) if machine or is_machine else tag
    present = target.find("seg")
    if target.is_empty_tag:
        return source.edit_tag(target, f"{tag}{segment}</tuv>")
    start, end = (present.start, present.end) if present is not None else (target.content_end, target.content_end)
    return [*source.edit_tag(target, tag), source.edit(start, end, segment)]
