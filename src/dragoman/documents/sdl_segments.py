"""Segments of SDLXLIFF, the XLIFF 1.2 of Trados Studio: each `mrk` of `seg-source` is a text with a state of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby

from dragoman.documents.document import Edit, UnitState, UnitTranslation
from dragoman.documents.xml_spans import XmlElement, XmlPlace, XmlSource, get_tag_name
from dragoman.documents.xml_units import TaggedText, get_indent, set_attributes, write_content


def find_definitions(unit: XmlElement) -> XmlElement | None:
    """Return the element with the states of the segments of a `trans-unit`; None without segments."""
    if unit.find("seg-source") is None:
        return None
    return next((child for child in unit.children if child.name == "seg-defs" and "sdl.com" in child.namespace), None)


def list_marks(element: XmlElement | None) -> dict[str, XmlElement]:
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


def is_partly_translated(unit: XmlElement) -> bool:
    """Return whether the target of a `trans-unit` has a segment with text and an empty one whose source has text."""
    sources, targets = list_marks(unit.find("seg-source")), list_marks(unit.find("target"))
    texts = {bool(mark.text.strip()) for number, mark in targets.items() if number in sources and sources[number].text.strip()}
    return len(texts) == 2


def read_state(segment: XmlElement | None) -> UnitState:
    """Return the state of a translation by the element with the state of its segment, which may be missing."""
    if segment is not None and segment.attributes.get("locked", "").lower() == "true":
        return "locked"
    confirmation = "" if segment is None else segment.attributes.get("conf", "")
    return "translated" if confirmation.startswith(("Translated", "Approved")) else "fuzzy"


def write_state(source: XmlSource, segment: XmlElement | None, translation: UnitTranslation) -> list[Edit]:
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


def write_mark(source: XmlSource, mark: XmlElement, text: TaggedText, translation: str) -> str:
    """Return a segment with a translation. mark: the segment whose tag is written"""
    tag = source.get_start_tag(mark)
    markup = text.write(translation) if text.codes else write_content(mark, translation)
    return f"{tag}{markup}</{get_tag_name(tag)}>"


def add_targets(
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
        for number, mark in list_marks(segmented).items():
            text, translation = texts.get(number, (TaggedText(""), ""))
            markup += source.get_markup(position, mark.start) + write_mark(source, mark, text, translation)
            position = mark.end
        markup += source.get_markup(position, segmented.content_end)
        name = f"{source.get_prefix(segmented)}target"
        indent = get_indent(source, segmented)
        yield source.edit(segmented.end, segmented.end, f"{indent}<{name}>{markup}</{name}>")
