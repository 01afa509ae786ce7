"""Texts of office packages outside of paragraphs: in attributes, such as alternative texts, and in elements, such as titles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

from dragoman.documents.document import Edit, Unit, UnitTranslation
from dragoman.documents.office_languages import CORE_TYPE
from dragoman.documents.office_package import list_parts
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, find_attribute
from dragoman.documents.xml_units import UnitList, write_text
from dragoman.documents.zip_document import ZipMembers
from dragoman.text.no_language import is_data

CHART_TYPES = ("drawingml.chart+xml", "ms-office.chartex+xml")
"""Charts, and those of the kinds that came with Office 2016, such as a waterfall"""
DIAGRAM_TYPES = ("drawingml.diagramData+xml", "drawingml.diagramDrawing+xml")
"""Parts of a SmartArt: its texts, and the shapes that were drawn for them last, which programs show"""
ALTERNATIVE_TEXTS = {"descr": 0, "title": 0}
"""Attributes with the alternative text of a picture or a shape. They have no limit."""
CHART_DATA = "texts in the data of charts"


def add_attributes(
    units: UnitList, members: ZipMembers, names: Iterable[str], attributes: Mapping[str, Mapping[str, int]]
) -> None:
    """Add the texts of attributes of elements in members.

    attributes: by the name of their element, the attributes and their most characters, or 0 without a limit
    """
    for name in names:
        source = members.read_xml(name)
        add = partial(add_attributes_of, source, name, attributes)
        for element in source.iter_elements(attributes):
            units.read(source, element, add)


def add_attributes_of(
    source: XmlSource, name: str, attributes: Mapping[str, Mapping[str, int]], units: UnitList, element: XmlElement
) -> None:
    """Add the texts of attributes of one element. A value for programs, such as the name of a file, is none."""
    for attribute, max_length in attributes[element.name].items():
        value = element.attributes.get(attribute, "")
        if value.strip() and not is_data(value):
            unit = Unit(f"{name}/{attribute}", value, context=attribute, max_length=max_length or None, keep_line_breaks=False)
            units.add(unit, partial(_write_attribute, source, element, attribute))


def _write_attribute(source: XmlSource, element: XmlElement, attribute: str, translation: UnitTranslation) -> list[Edit]:
    tag = source.get_tag(element)
    start, end = find_attribute(tag, attribute)
    first = element.start + len(source.encode(tag[:start]))
    value = escape_xml(translation.text).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")
    return [source.edit(first, first + len(source.encode(tag[start:end])), f'"{value}"')]


def add_elements(units: UnitList, members: ZipMembers, names: Iterable[str], elements: Collection[str]) -> None:
    """Add the texts of elements that hold nothing else, in members."""
    for name in names:
        source = members.read_xml(name)
        add = partial(_add_element, source, name, count(1))
        for element in source.iter_elements(elements):
            units.read(source, element, add)


def _add_element(source: XmlSource, name: str, numbers: Iterator[int], units: UnitList, element: XmlElement) -> None:
    add_element(units, source, element, f"{name}/{element.name}/{next(numbers)}")


def add_element(units: UnitList, source: XmlSource, element: XmlElement, unit_id: str) -> None:
    """Add the text of an element, if it holds nothing else."""
    if element.text.strip() and not any(element.children):
        unit = Unit(unit_id, element.text, context=element.name, keep_line_breaks=False)
        units.add(unit, partial(write_text, source, element))


def add_properties(units: UnitList, members: ZipMembers) -> None:
    """Add the title, the subject and the description of a package."""
    add_elements(units, members, list_parts(members, (CORE_TYPE,)), ("title", "subject", "description"))


def add_chart_titles(units: UnitList, members: ZipMembers) -> None:
    """Add the titles of charts that stand outside of paragraphs and are no copy of a cell."""
    for name in list_parts(members, (CHART_TYPES[1],)):
        source = members.read_xml(name)
        add = partial(_add_chart_title, source, name, count(1))
        for element in source.iter_elements(("txData",)):
            units.read(source, element, add)


def _add_chart_title(source: XmlSource, name: str, numbers: Iterator[int], units: UnitList, element: XmlElement) -> None:
    value = element.find("v")
    if value is not None and element.find("f") is None:
        add_element(units, source, value, f"{name}/v/{next(numbers)}")


def count_chart_data(members: ZipMembers) -> int:
    """Return the number of texts that charts show and copy from their own table, which stays."""
    return sum(
        any(map(str.isalpha, element.text))
        for name in list_parts(members, CHART_TYPES)
        for cache in members.read_xml(name).iter_elements(("strCache", "lvl", "txData"))
        for element in _list_chart_texts(cache)
    )


def _list_chart_texts(copy: XmlElement) -> Sequence[XmlElement]:
    if copy.name == "txData":
        return () if copy.find("f") is None else copy.find_all("v")
    return copy.find_all("pt")


def count_attributes(members: ZipMembers, names: Iterable[str], attributes: Mapping[str, str]) -> int:
    """Return the number of texts in attributes of members, which stay. attributes: that of each element, by its name"""
    starts = [f"{mark}{name}" for name in attributes for mark in ("<", ":")]
    return sum(
        any(map(str.isalpha, element.attributes.get(attributes[element.name], "")))
        for source in map(members.read_xml, names)
        if any(start in markup for markup in source.iter_markup() for start in starts)
        for element in source.iter_elements(attributes)
    )
