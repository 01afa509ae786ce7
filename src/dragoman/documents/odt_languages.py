"""Languages and directions that the styles of an ODT file state, and how a translation states its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.documents.document import Edit, UnitTranslation, get_source_language
from dragoman.documents.script_languages import ScriptLanguages
from dragoman.documents.xml_languages import get_attribute_name
from dragoman.documents.xml_spans import XmlElement, XmlSource, set_attribute
from dragoman.documents.zip_document import ZipMembers
from dragoman.languages import get_language, is_right_to_left, is_same_language

_STYLE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:style:1.0"
_OFFICE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
_GROUPS = ("font-face-decls", "styles", "automatic-styles", "master-styles")
_LEFT_TO_RIGHT, _RIGHT_TO_LEFT = ("lr-tb", "lr"), ("rl-tb", "rl")
_ASIAN = {"ja", "ko", "yue", "zh"}
_NOT_CHECKED = ("none", "zxx")


def read_languages(attributes: Mapping[str, str]) -> ScriptLanguages:
    """Return the codes of the languages that text properties state; empty for text that is only not checked for spelling."""
    codes: list[str] = []
    for suffix in ("", "-asian", "-complex"):
        language, country = attributes.get(f":language{suffix}", ""), attributes.get(f":country{suffix}", "")
        code = f"{language}-{country}" if language and country not in ("", "none") else language
        codes.append("" if language in _NOT_CHECKED else code)
    return ScriptLanguages(*codes)


@dataclass
class StatedLanguages:
    """Elements of a member that state a language or a direction, and the places where a direction can be stated.

    Attributes:
        languages, directions: text properties with a language, and properties with a direction
        page_layouts: properties of pages
        default_style: style of paragraphs without another one; None if the member has none
        styles: group of the styles with a name; None if the member has none
        place: place of such a group
    """

    name: str
    source: XmlSource
    languages: list[XmlElement] = field(default_factory=list)
    directions: list[XmlElement] = field(default_factory=list)
    page_layouts: list[XmlElement] = field(default_factory=list)
    default_style: XmlElement | None = None
    styles: XmlElement | None = None
    place: int = 0

    @classmethod
    def read(cls, members: ZipMembers, name: str) -> StatedLanguages:
        """Return those of a member."""
        stated = cls(name, members.read_xml(name))
        for group in stated.source.iter_elements(_GROUPS):
            if group.name == "styles":
                stated.styles = group
            elif group.name == "font-face-decls":
                stated.place = group.end
            for element in group.descend():
                stated._add(element)
        stated.place = stated.place or stated.source.root.content_start
        return stated

    def _add(self, element: XmlElement) -> None:
        if element.name == "text-properties" and any(read_languages(element.attributes)):
            self.languages.append(element)
        if element.name == "page-layout-properties":
            self.page_layouts.append(element)
        elif ":writing-mode" in element.attributes:
            self.directions.append(element)
        if element.name == "default-style" and element.attributes.get(":family") == "paragraph":
            self.default_style = element

    def edit(self, source_language: str, language: str) -> Iterator[Edit]:
        """Yield the edits of the member."""
        for element in self.languages:
            if any(is_same_language(code, source_language) for code in read_languages(element.attributes)):
                yield from self.source.edit_tag(element, _state_language(self.source.get_tag(element), language))
        if is_right_to_left(language):
            for element in self.directions:
                if element.attributes[":writing-mode"] in _LEFT_TO_RIGHT:
                    yield from self._turn(element, "rl-tb")
            for element in self.page_layouts:
                yield from self._turn(element, "rl-tb")
            if self.name == "styles.xml":
                yield from self._turn_default_style()
        elif is_right_to_left(source_language):
            for element in (*self.directions, *self.page_layouts):
                if element.attributes.get(":writing-mode") in _RIGHT_TO_LEFT:
                    yield from self._turn(element, "lr-tb")

    def _turn_default_style(self) -> Iterator[Edit]:
        """Yield the edit that writes paragraphs without another direction from right to left."""
        properties = '<style:paragraph-properties style:writing-mode="rl-tb"/>'
        style = f'<style:default-style xmlns:style="{_STYLE_NAMESPACE}" style:family="paragraph">{properties}'
        style += "</style:default-style>"
        group = f'<office:styles xmlns:office="{_OFFICE_NAMESPACE}">{style}</office:styles>'
        if self.default_style is None and self.styles is None:
            yield self.source.edit(self.place, self.place, group)
        elif self.default_style is None and self.styles is not None:
            is_empty = self.styles.is_empty_tag
            start = self.styles.start if is_empty else self.styles.content_start
            yield self.source.edit(start, self.styles.end if is_empty else start, group if is_empty else style)
        elif self.default_style is not None and self.default_style.is_empty_tag:
            yield self.source.edit(self.default_style.start, self.default_style.end, style)
        elif self.default_style is not None and (present := self.default_style.find("paragraph-properties")) is None:
            start = self.default_style.content_start
            properties = properties.replace(" ", f' xmlns:style="{_STYLE_NAMESPACE}" ', 1)
            yield self.source.edit(start, start, properties)
        elif present is not None and present.attributes.get(":writing-mode") not in _LEFT_TO_RIGHT:
            yield from self._turn(present, "rl-tb")

    def _turn(self, element: XmlElement, mode: str) -> list[Edit]:
        tag = self.source.get_tag(element)
        return self.source.edit_tag(element, set_attribute(tag, get_attribute_name(tag, "writing-mode"), mode))


def _state_language(tag: str, language: str) -> str:
    """Return text properties with a language, which is stated for its kind of script also."""
    subtags = re.split("[-_]", language)
    country = next((subtag.upper() for subtag in subtags[1:] if len(subtag) == 2), "none")
    suffixes = [""] + ["-complex"] * is_right_to_left(language) + ["-asian"] * (get_language(language) in _ASIAN)
    for suffix in suffixes:
        name = get_attribute_name(tag, f"language{suffix}")
        tag = set_attribute(set_attribute(tag, name, subtags[0].lower()), name.replace("language", "country"), country)
    return tag


def edit_languages(
    names: Sequence[str], members: ZipMembers, translations: Mapping[str, UnitTranslation], language: str
) -> Iterator[Edit]:
    """Yield the edits that make the styles of these members state the language and the direction of the translations."""
    for name in names if language else ():
        yield from StatedLanguages.read(members, name).edit(get_source_language(translations), language)
