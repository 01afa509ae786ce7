"""XLIFF 1.2 and 2.0 to 2.2: units with source and target, whose inline codes are kept.

A target that does not exist is put behind its source. The state of a translation is written as Okapi, OmegaT and Weblate read
it. A unit of XLIFF 1.2 gets a note with the checks that fail and the similarity of a match; in XLIFF 2 they are in `subState`.
There, a match of a similar text also stands in the module for matches, with the text and its translation.

In SDLXLIFF, the XLIFF 1.2 of Trados Studio, each `mrk` of `seg-source` is a text with a state of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from dragoman.documents.document import Document, Edit, Remark, Remarks, Unit, UnitState, UnitTranslation, list_all_units
from dragoman.documents.reading import check_parts
from dragoman.documents.xml_spans import XmlElement, XmlPlace, XmlSource, escape_xml, get_tag_name, set_attribute
from dragoman.documents.xml_units import (
    Code,
    Piece,
    TaggedText,
    UnitList,
    make_break,
    make_pair,
    make_point,
    name_codes,
    read_parts,
    set_attributes,
    write_content,
    write_element,
)
from dragoman.formats.xliff import find_version
from dragoman.languages import get_language, is_same_language

TOOL = "dragoman"
MATCHES = "urn:oasis:names:tc:xliff:matches:2.0"
"""Namespace of the module for matches of XLIFF 2."""
_UNTRANSLATED_STATES = frozenset(("new", "needs-translation"))
_STATES_1 = {
    "translated": {"state": "translated", "state-qualifier": ""},
    "fuzzy": {"state": "needs-review-translation", "state-qualifier": "leveraged-mt"},
}
_STARTS = frozenset(("bx", "bpt", "sc", "sm"))
_ENDS = frozenset(("ex", "ept", "ec", "em"))


@dataclass(frozen=True)
class _XliffPlace:
    """Elements of one unit.

    holder: `trans-unit` or `segment`
    source: element whose content is translated
    target: present target
    text: source with short tags
    """

    holder: XmlElement
    source: XmlElement
    target: XmlElement | None
    text: TaggedText


def parse_xliff(content: bytes) -> Document:
    """Return the document of an XLIFF file. Raises DataError for other files and other versions."""
    divided: set[int] = set()

    def is_divided(number: int, element: XmlElement) -> bool:
        if _is_partly_translated(element):
            divided.add(number)
        return number in divided

    document = _parse(content, is_divided)
    return replace(document, iter_units=lambda written: list_all_units(_parse(written, lambda number, _: number in divided)))


def _parse(content: bytes, is_divided: Callable[[int, XmlElement], bool]) -> Document:
    """Return the document. is_divided: function that tells by the number of an element whether its segments are units"""
    source = XmlSource(content, has_entities=True)
    version = ""
    files: list[XmlElement] = []

    def read_start(element: XmlElement) -> None:
        nonlocal version
        if element.parent is None:
            version = find_version(element.attributes.get("version", ""), element.namespace)
        if element.name == "file":
            files.append(element)
            check_parts(len(files))

    def add(number: int, units: UnitList, element: XmlElement) -> None:
        add_units = _add_segments if element.name != "trans-unit" else _add_trans_unit
        if _find_definitions(element) is not None or is_divided(number, element):
            add_units = _add_marked_segments
        add_units(source, _get_file_name(files), units, element)
        languages = _get_languages(files[-1]) if files else ("", "")
        units.units = [replace(unit, language=languages[0], target_language=languages[1]) for unit in units.units]

    units = UnitList(len(content))
    segments: dict[str, tuple[XmlPlace, int]] = {}
    without_target: dict[str, tuple[XmlPlace, str, TaggedText]] = {}
    for index, element in enumerate(source.iter_elements(("trans-unit", "unit"), read_start, root_name="xliff")):
        if element.get_inherited("translate") == "no":
            continue
        num_before = len(units.units)
        units.read(source, element, partial(add, index))
        if element.name == "unit":
            place = source.get_place(element)
            segments |= {unit.id: (place, number) for number, unit in enumerate(units.units[num_before:])}
        elif _find_definitions(element) is not None and element.find("target") is None:
            place, marks = source.get_place(element), _list_marks(element.find("seg-source"))
            for unit, (number, mark) in zip(units.units[num_before:], marks.items(), strict=True):
                without_target[unit.id] = place, number, name_codes(_read(source, mark))
    root = source.root
    languages = [root.attributes.get(name, "") for name in ("srcLang", "trgLang")]
    if not any(languages) and files:
        # Files of several languages in one have no common one, and each text states its own.
        stated = zip(*map(_get_languages, files), strict=True)
        languages = [codes[0] if len(set(map(get_language, codes))) == 1 else "" for codes in stated]

    def edit_file(translations: Mapping[str, UnitTranslation], language: str) -> list[Edit]:
        holders, name = (files, "target-language") if version.startswith("1.") else ([root], "trgLang")
        is_mixed = len({get_language(code) for file in files if (code := _get_languages(file)[1])}) > 1
        edits = [
            edit
            for holder in holders
            if not is_mixed or not holder.attributes.get(name)
            for edit in _edit_language(source, holder, name, language)
        ]
        return [*edits, *_write_matches(source, segments, translations), *_add_targets(source, without_target, translations)]

    return units.make_document(
        content, "xliff", source_language=languages[0], target_language=languages[1], make_document_edits=edit_file
    )


def _get_languages(file: XmlElement) -> tuple[str, str]:
    """Return the languages that an element `file` of XLIFF 1.2 states for its sources and its translations."""
    return file.attributes.get("source-language", ""), file.attributes.get("target-language", "")


def _edit_language(source: XmlSource, element: XmlElement, name: str, language: str) -> list[Edit]:
    """Return the edit that makes an element state the language, unless it states the same."""
    present = element.attributes.get(name, "")
    if not language or (present and is_same_language(present, language)):
        return []
    return source.edit_tag(element, set_attribute(source.get_tag(element), name, language))


def _get_file_name(files: list[XmlElement]) -> str:
    """Return a name for the present file of several; the first has none."""
    if len(files) < 2:
        return ""
    attributes = files[-1].attributes
    return (attributes.get("id") or attributes.get("original") or str(len(files))) + "/"


def _add_trans_unit(source: XmlSource, file_name: str, units: UnitList, element: XmlElement) -> None:
    """Add the unit of XLIFF 1.2. If its source is segmented, the marks of the segments are codes."""
    original, segmented, target = (element.find(name) for name in ("source", "seg-source", "target"))
    if original is None:
        return
    chosen = original if segmented is None else segmented
    place = _XliffPlace(element, chosen, target, name_codes(_read(source, chosen)))
    max_width = element.attributes.get("maxwidth", "")
    is_in_characters = element.attributes.get("size-unit", "char") == "char"
    note = next((note.text for note in element.find_all("note") if note.attributes.get("from") != TOOL), "")
    unit = _make_unit(
        source,
        place,
        name=file_name + element.attributes.get("id", ""),
        state=_get_state_1(element, target),
        context=element.attributes.get("resname") or note,
        max_length=int(max_width) if is_in_characters and re.fullmatch("[0-9]{1,6}", max_width) else None,
    )

    def list_remarks() -> Remarks:
        notes = [note for note in element.find_all("note") if note.attributes.get("from") != "developer"]
        last = max(child.end for child in (*notes, target or chosen))
        remarks = {**source.read_notes(notes, last), ("state of unit", ""): source.read_attribute(element, "approved")}
        if target is not None:
            remarks["state", ""] = source.read_remark(target.start, target.content_start)
        return {**remarks, ("target", ""): _read_target(source, chosen, target)}

    units.add(unit, lambda translation: _write_trans_unit(source, place, translation), list_remarks)


def _add_marked_segments(source: XmlSource, file_name: str, units: UnitList, element: XmlElement) -> None:
    """Add the segments of a unit of Trados Studio, or of one with empty and other segments.

    A segment that a target lacks stays; `_add_targets` adds a missing target.
    """
    target, definitions = element.find("target"), _find_definitions(element)
    targets = _list_marks(target)
    first_empty = next((mark for mark in targets.values() if not mark.text.strip()), None)
    states = {} if definitions is None else {child.attributes.get("id", ""): child for child in definitions.children}
    for number, mark in _list_marks(element.find("seg-source")).items():
        if target is not None and number not in targets:
            continue
        place = _XliffPlace(element, mark, targets.get(number), name_codes(_read(source, mark)))
        segment = states.get(number)
        state = _get_state_1(element, target) if definitions is None else _read_segment_state(segment)
        unit = _make_unit(
            source, place, name=f"{file_name}{element.attributes.get('id', '')}/{number}", state=state, context=""
        )

        def write(translation: UnitTranslation, place: _XliffPlace = place, segment: XmlElement | None = segment) -> list[Edit]:
            edits = _write_segment_state(source, segment, translation)
            if definitions is None and target is not None and place.target is first_empty:
                edits = source.edit_tag(target, set_attributes(source.get_tag(target), _STATES_1[translation.state]))
            if place.target is None:
                return edits
            markup = _write_mark(source, place.target, place.text, translation.text)
            return [*edits, source.edit(place.target.start, place.target.end, markup)]

        units.add(unit, write, partial(_list_state, source, segment, place.target))


def _list_state(source: XmlSource, segment: XmlElement | None, target: XmlElement | None) -> Remarks:
    """Return the tag with the state of a segment of Trados Studio, and its translation."""
    remarks = {} if segment is None else {("state", ""): source.read_remark(segment.start, segment.content_start)}
    return remarks if target is None else {**remarks, ("target", ""): source.read_remark(target.start, target.end)}


def _get_state_1(element: XmlElement, target: XmlElement | None) -> UnitState:
    if element.attributes.get("approved") == "yes" or "read-only" in element.attributes.get("weblate-flags", ""):
        return "locked"
    state = target.attributes.get("state", "") if target is not None else ""
    if state in _UNTRANSLATED_STATES:
        return "untranslated"
    return "fuzzy" if state.startswith("needs-") else "translated"


def _add_segments(source: XmlSource, file_name: str, units: UnitList, element: XmlElement) -> None:
    """Add the segments of a unit of XLIFF 2."""
    segments = element.find_all("segment")
    for number, segment in enumerate(segments, start=1):
        original, target = segment.find("source"), segment.find("target")
        if original is None:
            continue
        place = _XliffPlace(segment, original, target, name_codes(_read(source, original)))
        name = file_name + element.attributes.get("id", "")
        if len(segments) > 1:
            name += "/" + segment.attributes.get("id", str(number))
        state = segment.attributes.get("state", "")
        unit = _make_unit(
            source,
            place,
            name=name,
            state="locked" if state == "final" else "fuzzy" if state == "initial" else "translated",
            context=element.attributes.get("name", ""),
        )
        units.add(
            unit,
            lambda translation, place=place: _write_segment(source, place, translation),  # type: ignore[misc]
            partial(_list_remarks_2, source, element, segment),
        )


def _read_target(source: XmlSource, original: XmlElement, target: XmlElement | None) -> Remark:
    """Return a translation as a remark, or its place behind its source."""
    return source.read_remark(original.end, original.end) if target is None else source.read_indented(target)


def _list_remarks_2(source: XmlSource, unit: XmlElement, segment: XmlElement) -> Remarks:
    """Return the state of a segment of XLIFF 2, and the notes of its unit."""
    remarks = {(f"state {name}", ""): source.read_attribute(segment, name) for name in ("state", "subState")}
    if (original := segment.find("source")) is not None:
        remarks["target", ""] = _read_target(source, original, segment.find("target"))
    if (notes := unit.find("notes")) is not None:
        all_notes = notes.find_all("note")
        remarks |= source.read_notes(all_notes, all_notes[-1].end if all_notes else notes.content_end)
        return {**remarks, ("notes", source.get_markup(notes.start, notes.end)): source.read_indented(notes)}
    first = next(child for child in unit.children if child.name in ("originalData", "segment", "ignorable"))
    place = source.get_indented_start(first)
    return {**remarks, ("notes", ""): source.read_remark(place, place)}


def _make_unit(
    source: XmlSource, place: _XliffPlace, *, name: str, state: UnitState, context: str, max_length: int | None = None
) -> Unit:
    """Return the unit of a place. Without a target, or with one of codes alone, it is untranslated."""
    present = TaggedText("") if place.target is None else name_codes(_read(source, place.target), place.text)
    text = present.text if present.has_words or not place.text.has_words else ""
    return Unit(
        name,
        place.text.text,
        place.text.markup,
        target=text,
        state=state if text or state == "locked" else "untranslated",
        context=context,
        max_length=max_length,
        keep_line_breaks=place.source.get_inherited("xml:space") == "preserve",
    )


def _read(source: XmlSource, element: XmlElement) -> list[Piece]:
    """Return the pieces of a source or target. Elements with native codes are points with their content."""

    def read_code(code: XmlElement) -> list[Piece]:
        is_protected = code.attributes.get("translate") == "no" or code.attributes.get("mtype") == "protected"
        if code.name in ("g", "pc", "mrk") and not is_protected:
            return make_pair(source, code, read_parts(source, code.parts, read_code))
        key = next((code.attributes[name] for name in ("startRef", "rid", "id") if name in code.attributes), "")
        markup = source.get_markup(code.start, code.end)
        family = "mark" if code.name in ("sm", "em") else "code"
        if key and code.name in _STARTS:
            return [Code("start", markup, f"{family} {key}")]
        if key and code.name in _ENDS:
            return [Code("end", markup, f"{family} {key}")]
        is_break = code.attributes.get("ctype") == "lb" or code.attributes.get("subType") == "xlf:lb"
        return [make_break(source, code) if is_break else make_point(source, code)]

    return read_parts(source, element.parts, read_code)


def _write_target(source: XmlSource, place: _XliffPlace, translation: UnitTranslation, attributes: dict[str, str]) -> Edit:
    """Return the edit that writes the target: in the place of the present one, or on a new line behind the source."""
    if place.target is None and place.source.attributes.get("xml:space") == "preserve":
        attributes = {"xml:space": "preserve", **attributes}
    name, text = f"{source.get_prefix(place.source)}target", translation.text
    markup = place.text.write(text) if place.text.codes else write_content(place.source, text)
    return write_element(source, place.target, name, attributes, markup, place.source.end, source.get_indent(place.source))


def _write_trans_unit(source: XmlSource, place: _XliffPlace, translation: UnitTranslation) -> list[Edit]:
    attributes = dict(_STATES_1[translation.state])
    if translation.match is not None:
        attributes["state-qualifier"] = "fuzzy-match"
    edits = [_write_target(source, place, translation, attributes)]
    new_note = ""
    if translation.comment:
        name = f"{source.get_prefix(place.source)}note"
        new_note = f'<{name} from="{TOOL}">{escape_xml(translation.comment)}</{name}>'
    old_notes = [note for note in place.holder.find_all("note") if note.attributes.get("from") == TOOL]
    if old_notes:
        start = old_notes[0].start
        if not new_note:
            start -= len(source.encode(source.get_indent(old_notes[0])))
        edits.append(source.edit(start, old_notes[0].end, new_note))
    elif new_note:
        indent = source.get_indent(place.source)
        end = (place.target or place.source).end
        edits.append(source.edit(end, end, indent + new_note))
    return edits


def _write_segment(source: XmlSource, place: _XliffPlace, translation: UnitTranslation) -> list[Edit]:
    segment = place.holder
    remarks = ",".join(translation.remarks)
    old_sub_state = segment.attributes.get("subState", "")
    is_final = translation.state == "translated"
    tag = set_attribute(source.get_tag(segment), "state", "translated" if is_final else "initial")
    if not is_final or remarks:
        tag = set_attribute(tag, "subState", f"{TOOL}:{remarks or 'mt'}")
    elif old_sub_state:
        tag = set_attribute(tag, "subState", "")
    return [_write_target(source, place, translation, {}), *source.edit_tag(segment, tag)]


def _write_matches(
    source: XmlSource, segments: Mapping[str, tuple[XmlPlace, int]], translations: Mapping[str, UnitTranslation]
) -> list[Edit]:
    """Return the edits of the element `matches` of each unit: new matches of similar texts, and no old ones of this program.

    A match refers to its segment, so a segment without an id has none.

    segments: for each unit of the document, the place of its element and its number among the sources of that element
    """
    edits: list[Edit] = []
    translated = (name for name in segments if name in translations)
    for place, names in groupby(translated, lambda name: segments[name][0]):
        unit = source.read_element(place)
        holders = [segment for segment in unit.find_all("segment") if segment.find("source") is not None]
        matches: list[str] = []
        segment_ids: set[str] = set()
        for name in names:
            segment_id = holders[segments[name][1]].attributes.get("id", "")
            if not segment_id:
                continue
            segment_ids.add(segment_id)
            if (match := translations[name].match) is not None:
                reference = set_attribute("<mtc:match>", "ref", f"#{segment_id}")
                attributes = f' type="tm" origin="{TOOL}" similarity="{100 * match.similarity:.1f}"'
                core = source.get_prefix(unit)
                texts = "".join(
                    f"<{core}{tag}>{escape_xml(text)}</{core}{tag}>"
                    for tag, text in (("source", match.source), ("target", match.text))
                )
                matches.append(f"{reference.removesuffix('>')}{attributes}>{texts}</mtc:match>")
        edits += _edit_matches(source, unit, matches, segment_ids)
    return edits


def _edit_matches(source: XmlSource, unit: XmlElement, matches: list[str], segment_ids: set[str]) -> list[Edit]:
    """Return the edits that replace the matches of this program for these segments of a unit."""
    markup = "".join(matches)
    container = next((child for child in unit.children if child.namespace == MATCHES and child.name == "matches"), None)
    if container is None:
        start = unit.content_start
        content = f'<mtc:matches xmlns:mtc="{MATCHES}">{markup}</mtc:matches>'
        return [source.edit(start, start, content)] if markup else []
    old = [
        child
        for child in container.children
        if child.attributes.get("origin") == TOOL and child.attributes.get("ref", "").removeprefix("#") in segment_ids
    ]
    if len(old) == sum(1 for _ in container.children) and not markup:  # the element has one match at least
        return [source.edit(container.start, container.end, "")]
    edits = [source.edit(child.start, child.end, "") for child in old]
    prefix = source.get_prefix(container)
    markup = re.sub("(</?)mtc:", rf"\1{prefix}", markup)
    return [*edits, source.edit(container.content_end, container.content_end, markup)] if markup else edits


def _find_definitions(unit: XmlElement) -> XmlElement | None:
    """Return the element with the states of the segments of a `trans-unit`; None without segments."""
    if unit.find("seg-source") is None:
        return None
    return next((child for child in unit.children if child.name == "seg-defs" and "sdl.com" in child.namespace), None)


def _list_marks(element: XmlElement | None) -> dict[str, XmlElement]:
    """Return the segments of `seg-source` or `target` by their number. None is inside another one.

    Equal and missing numbers are counted, so that source and target agree: `1`, `1#2`.
    """
    marks: dict[str, XmlElement] = {}
    counts: Counter[str] = Counter()
    waiting = [element] if element is not None else []
    while waiting:
        inner = waiting.pop()
        if inner.attributes.get("mtype") == "seg":
            number = inner.attributes.get("mid", "")
            counts[number] += 1
            marks[number if counts[number] == 1 else f"{number}#{counts[number]}"] = inner
        else:
            waiting += reversed(list(inner.children))
    return marks


def _is_partly_translated(unit: XmlElement) -> bool:
    """Return whether the target of a `trans-unit` has a segment with text and an empty one whose source has text."""
    sources, targets = _list_marks(unit.find("seg-source")), _list_marks(unit.find("target"))
    texts = {bool(mark.text.strip()) for number, mark in targets.items() if number in sources and sources[number].text.strip()}
    return len(texts) == 2


def _read_segment_state(segment: XmlElement | None) -> UnitState:
    """Return the state of a translation by the element with the state of its segment, which may be missing."""
    if segment is not None and segment.attributes.get("locked", "").lower() == "true":
        return "locked"
    confirmation = "" if segment is None else segment.attributes.get("conf", "")
    return "translated" if confirmation.startswith(("Translated", "Approved")) else "fuzzy"


def _write_segment_state(source: XmlSource, segment: XmlElement | None, translation: UnitTranslation) -> list[Edit]:
    """Return the edit that states where a translation comes from, and that it is a draft or good."""
    if segment is None:
        return []
    match = translation.match
    attributes = {
        "conf": "Translated" if translation.state == "translated" else "Draft",
        "origin": "mt" if match is None else "tm",
        "percent": "" if match is None else str(match.percent),
        "text-match": "",
    }
    return source.edit_tag(segment, set_attributes(source.get_tag(segment), attributes))


def _write_mark(source: XmlSource, mark: XmlElement, text: TaggedText, translation: str) -> str:
    """Return a segment with a translation. mark: the segment whose tag is written"""
    tag = source.get_start_tag(mark)
    markup = text.write(translation) if text.codes else write_content(mark, translation)
    return f"{tag}{markup}</{get_tag_name(tag)}>"


def _add_targets(
    source: XmlSource,
    places: Mapping[str, tuple[XmlPlace, str, TaggedText]],
    translations: Mapping[str, UnitTranslation],
) -> Iterator[Edit]:
    """Yield the edits that add a target to each `trans-unit` without one: its source with the translated segments.

    places: for the id of each text, the place of its `trans-unit`, its number in it, and its text
    """
    translated = (name for name in places if name in translations)
    for place, names in groupby(translated, lambda name: places[name][0]):
        unit = source.read_element(place)
        segmented = unit.find("seg-source")
        assert segmented is not None  # the reader found it
        texts = {places[name][1]: (places[name][2], translations[name].text) for name in names}
        markup, position = "", segmented.content_start
        for number, mark in _list_marks(segmented).items():
            text, translation = texts.get(number, (TaggedText(""), ""))
            markup += source.get_markup(position, mark.start) + _write_mark(source, mark, text, translation)
            position = mark.end
        markup += source.get_markup(position, segmented.content_end)
        name = f"{source.get_prefix(segmented)}target"
        indent = source.get_indent(segmented)
        yield source.edit(segmented.end, segmented.end, f"{indent}<{name}>{markup}</{name}>")
