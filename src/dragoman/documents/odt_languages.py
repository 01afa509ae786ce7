"""Languages and directions that the styles of an ODT file state, and how a translation states its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

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


def edit_languages(
    names: Sequence[str], members: ZipMembers, translations: Mapping[str, UnitTranslation], language: str
) -> Iterator[Edit]:
    """Yield the edits that make the styles of these members state the language and the direction of the translations."""
    source_language = get_source_language(translations)
    for name in names if language else ():
        source = members.read_xml(name)
        groups: dict[str, XmlElement] = {}
        default_styles: list[XmlElement] = []  # of paragraphs without another style
        has_direction = is_in_default_style = False
        for group in source.iter_elements(_GROUPS):
            groups[group.name] = group
            for element in group.descend():
                if element.name.endswith("style"):
                    is_in_default_style = element.name == "default-style" and element.attributes.get(":family") == "paragraph"
                    default_styles += [element] * is_in_default_style
                is_default = is_in_default_style and element.name == "paragraph-properties"
                has_direction |= is_default
                yield from _edit_element(source, element, source_language, language, is_default=is_default)
        if name == "styles.xml" and is_right_to_left(language) and not has_direction:
            place = groups["font-face-decls"].end if "font-face-decls" in groups else source.root.content_start
            yield _turn_default_style(source, default_styles, groups.get("styles"), place)


def _edit_element(
    source: XmlSource, element: XmlElement, source_language: str, language: str, *, is_default: bool
) -> list[Edit]:
    """Return the edit of text properties with the language of the source, and of properties with a direction.

    is_default: the element has the properties of paragraphs without another style
    """
    codes = read_languages(element.attributes) if element.name == "text-properties" else ()
    if any(codes) and any(is_same_language(code, source_language) for code in codes):
        return source.edit_tag(element, _state_language(source.get_tag(element), language))
    mode, new = element.attributes.get(":writing-mode"), ""
    if is_right_to_left(language):
        new = "rl-tb" if is_default or element.name == "page-layout-properties" or mode in _LEFT_TO_RIGHT else ""
    elif is_right_to_left(source_language):
        new = "lr-tb" if mode in _RIGHT_TO_LEFT else ""
    if not new:
        return []
    tag = source.get_tag(element)
    return source.edit_tag(element, set_attribute(tag, get_attribute_name(tag, "writing-mode"), new))


def _turn_default_style(source: XmlSource, default_styles: Sequence[XmlElement], styles: XmlElement | None, place: int) -> Edit:
    """Return the edit that writes paragraphs without another direction from right to left.

    styles: group of the styles with a name; None if the member has none
    place: place of such a group
    """
    properties = '<style:paragraph-properties style:writing-mode="rl-tb"/>'
    style = f'<style:default-style xmlns:style="{_STYLE_NAMESPACE}" style:family="paragraph">{properties}'
    style += "</style:default-style>"
    group = f'<office:styles xmlns:office="{_OFFICE_NAMESPACE}">{style}</office:styles>'
    if default_styles:
        default_style = default_styles[-1]
        if default_style.is_empty_tag:
            return source.edit(default_style.start, default_style.end, style)
        start = default_style.content_start
        return source.edit(start, start, properties.replace(" ", f' xmlns:style="{_STYLE_NAMESPACE}" ', 1))
    if styles is None:
        return source.edit(place, place, group)
    if styles.is_empty_tag:
        return source.edit(styles.start, styles.end, group)
    return source.edit(styles.content_start, styles.content_start, style)


def _state_language(tag: str, language: str) -> str:
    """Return text properties with a language, which is stated for its kind of script also."""
    subtags = re.split("[-_]", language)
    country = next((subtag.upper() for subtag in subtags[1:] if len(subtag) == 2), "none")
    suffixes = [""] + ["-complex"] * is_right_to_left(language) + ["-asian"] * (get_language(language) in _ASIAN)
    for suffix in suffixes:
        name = get_attribute_name(tag, f"language{suffix}")
        tag = set_attribute(set_attribute(tag, name, subtags[0].lower()), name.replace("language", "country"), country)
    return tag
