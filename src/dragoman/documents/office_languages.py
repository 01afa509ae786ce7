"""Languages and directions of Office Open XML: what runs, paragraphs and tables state, and how a translation states its own.

New elements stand where the schema has them (ECMA-376, part 1: 17.3.1.26 `pPr`, 17.3.2.28 `rPr`, 17.6.17 `sectPr`, 17.4.60
`tblPr`), because Word refuses a file with another order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from dragoman.documents.document import Edit, UnitTranslation, get_source_language
from dragoman.documents.office_package import list_parts
from dragoman.documents.script_languages import NO_LANGUAGES, ScriptCounts, ScriptLanguages
from dragoman.documents.xml_spans import XmlElement, XmlSource, escape_xml, get_attribute, set_attribute
from dragoman.documents.zip_document import ZipMembers
from dragoman.languages import is_foreign, is_right_to_left, is_same_language

_BEHIND_RTL = frozenset(("cs", "em", "lang", "eastAsianLayout", "specVanish", "oMath", "rPrChange"))
_BEHIND_BIDI = {
    "pPr": frozenset(
        (
            "adjustRightInd", "snapToGrid", "spacing", "ind", "contextualSpacing", "mirrorIndents", "suppressOverlap", "jc",
            "textDirection", "textAlignment", "textboxTightWrap", "outlineLvl", "divId", "cnfStyle", "rPr", "sectPr",
            "pPrChange",
        )
    ),
    "sectPr": frozenset(("rtlGutter", "docGrid", "printerSettings", "sectPrChange")),
    "tblPr": frozenset(
        (
            "tblStyleRowBandSize", "tblStyleColBandSize", "tblW", "jc", "tblCellSpacing", "tblInd", "tblBorders", "shd",
            "tblLayout", "tblCellMar", "tblLook", "tblCaption", "tblDescription", "tblPrChange",
        )
    ),
}  # fmt: skip
"""Elements behind the one with the direction, for each kind of properties of Word."""
_DIRECTIONS = {"pPr": "bidi", "sectPr": "bidi", "tblPr": "bidiVisual"}
_CHILD = re.compile(r"<w:(\w+)\b[^<>]*>")
_RTL = re.compile(r"<w:rtl\b[^<>]*/>(?:</w:rtl>)?")
_TAG = re.compile("<[^<>]*>")
_RUN = re.compile(r"<[wa]:r[ >]")
_WORD_LANGUAGE = re.compile(r"<w:lang\b[^<>]*>")
_DRAWING_LANGUAGE = re.compile(r"""<a:rPr\b[^<>]*?\slang=["']([^"']*)""")
_COMPLEX = re.compile(r"<w:(b|i)/>(?!<w:\1Cs\b)|<w:sz (w:val=\"\d+\")/>(?!<w:szCs\b)")
"""Bold, italics and size that are stated for left-to-right scripts alone."""

MIN_RUN_SHARE = 0.1
"""Smallest share of runs that state a language from which on it is that of runs without one."""
CORE_TYPE = "core-properties+xml"
"""Type of the part that states the title, the author and the language of a document."""


@lru_cache(maxsize=16)
def read_run_languages(properties: str) -> ScriptLanguages:
    """Return the codes of the languages that the properties of a run state."""
    if not properties:
        return NO_LANGUAGES
    if match := _WORD_LANGUAGE.search(properties):
        return ScriptLanguages(*(get_attribute(match[0], f"w:{name}") for name in ("val", "eastAsia", "bidi")))
    match = _DRAWING_LANGUAGE.search(properties)
    return ScriptLanguages(*[match[1]] * 3) if match else NO_LANGUAGES


def find_languages(
    members: ZipMembers, names: Sequence[str], default: ScriptLanguages = NO_LANGUAGES
) -> tuple[ScriptLanguages, str]:
    """Return the languages of texts without one, and that of most texts.

    default: the languages that the styles state; without one, it is the one that most runs state, if these are not a few
    """
    counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    scripts, num_runs = ScriptCounts(), 0
    for markup in chain.from_iterable(members.read_xml(name).iter_markup() for name in names):
        scripts.count(_TAG.sub("", markup))
        num_runs += len(_RUN.findall(markup))
        for pattern in (_WORD_LANGUAGE, _DRAWING_LANGUAGE):
            for match in pattern.finditer(markup):
                for count, code in zip(counts, read_run_languages(match[0]), strict=True):
                    count[code] += bool(code)
    codes = (max(count, key=count.__getitem__, default="") for count in counts)
    usual = (code if count[code] >= MIN_RUN_SHARE * num_runs else "" for code, count in zip(codes, counts, strict=True))
    languages = ScriptLanguages(*(stated or code for stated, code in zip(default, usual, strict=True)))
    return languages, scripts.select(languages)


def state_run(text: str, properties: str, translation: UnitTranslation, *, is_word: bool, has_language: bool) -> str:
    """Return the properties of a run with the direction of a translation and, if the source states a language, its language.

    properties: `rPr` of Word or of DrawingML, without a language unless it is not that of the unit; or nothing
    """
    language = translation.language
    if not language or is_foreign(read_run_languages(properties).select(text), translation.source_language or language):
        return properties
    return _state_language(properties, language, is_word, has_language)


@lru_cache(maxsize=16)
def _state_language(properties: str, language: str, is_word: bool, has_language: bool) -> str:
    if not is_word:
        start = properties.find(">") + 1
        tag = properties[:start] or "<a:rPr/>"
        return set_attribute(tag, "lang", language) + properties[start:] if has_language else properties
    is_turned = is_right_to_left(language)
    properties = _RTL.sub("", properties)
    properties = _COMPLEX.sub(_add_complex, properties) if is_turned else properties
    added = "<w:rtl/>" if is_turned else ""
    if has_language:
        properties = re.sub(r"<w:lang\b[^<>]*/>", "", properties)
        added += f'<w:lang w:{"bidi" if is_turned else "val"}="{escape_xml(language)}"/>'
    if not added:
        return "" if re.fullmatch(r"<w:rPr>\s*</w:rPr>", properties) else properties
    properties = properties or "<w:rPr></w:rPr>"
    places = (match.start() for match in _CHILD.finditer(properties) if match[1] in _BEHIND_RTL)
    end = next(places, properties.rindex("</"))
    return properties[:end] + added + properties[end:]


def _add_complex(match: re.Match[str]) -> str:
    return f"{match[0]}<w:{match[1]}Cs/>" if match[1] else f"{match[0]}<w:szCs {match[2]}/>"


def turn_paragraph(source: XmlSource, paragraph: XmlElement, language: str) -> list[Edit]:
    """Return the edits that give a paragraph of Word or DrawingML the direction of a language; none for an unknown one."""
    if not language:
        return []
    properties = paragraph.find("pPr")
    if "wordprocessingml" not in paragraph.namespace:
        if properties is not None:
            return turn_drawing_tag(source, properties, language)
        added = '<{0}pPr rtl="1"/>'
    else:
        if properties is not None:
            return turn_properties(source, properties, language)
        added = "<{0}pPr><{0}bidi/></{0}pPr>"
    if not is_right_to_left(language):
        return []
    markup = added.format(source.get_prefix(paragraph))
    return [source.edit(paragraph.content_start, paragraph.content_start, markup)]


def turn_properties(source: XmlSource, properties: XmlElement, language: str) -> list[Edit]:
    """Return the edits that give properties of a paragraph, a section or a table of Word the direction of a language."""
    child_name = _DIRECTIONS[properties.name]
    edits = [source.edit(child.start, child.end, "") for child in properties.find_all(child_name)]
    if not is_right_to_left(language):
        return edits
    prefix = source.get_prefix(properties)
    added = f"<{prefix}{child_name}/>"
    if properties.is_empty_tag:
        return source.edit_tag(properties, f"{source.get_start_tag(properties)}{added}</{prefix}{properties.name}>")
    behind = (child.start for child in properties.children if child.name in _BEHIND_BIDI[properties.name])
    place = next(behind, properties.content_end)
    return [*edits, source.edit(place, place, added)]


def turn_drawing_tag(source: XmlSource, properties: XmlElement, language: str) -> list[Edit]:
    """Return the edit that gives properties of paragraphs or of a table of DrawingML the direction of a language.

    Their alignment, if they have one, is at the start of the line.
    """
    tag = source.get_tag(properties)
    was_turned = properties.attributes.get("rtl") in ("1", "true")
    if is_right_to_left(language):
        tag = set_attribute(tag, "rtl", "1")
        tag = set_attribute(tag, "algn", "r") if properties.attributes.get("algn") == "l" else tag
    elif was_turned:
        tag = set_attribute(tag, "rtl", "")
        tag = set_attribute(tag, "algn", "l") if properties.attributes.get("algn") == "r" else tag
    return source.edit_tag(properties, tag)


def edit_property(source: XmlSource, element: XmlElement, source_language: str, language: str) -> list[Edit]:
    """Return the edits that make an element state the language of the translation, or its direction."""
    if element.name in ("lang", "themeFontLang"):
        tag = source.get_tag(element)
        prefix = source.get_prefix(element)
        if is_same_language(get_attribute(tag, f"{prefix}val"), source_language):
            tag = set_attribute(tag, f"{prefix}val", language)
            tag = set_attribute(tag, f"{prefix}bidi", language) if is_right_to_left(language) else tag
        return source.edit_tag(element, tag)
    if element.name == "language":
        is_stated = is_same_language(element.text.strip(), source_language)
        return [source.edit(element.content_start, element.content_end, escape_xml(language))] if is_stated else []
    if "wordprocessingml" in element.namespace:
        return turn_properties(source, element, language)
    return turn_drawing_tag(source, element, language)


def read_stated(
    members: ZipMembers, part_types: Mapping[str, tuple[str, ...]], new_language: str = ""
) -> Iterator[tuple[XmlSource, XmlElement]]:
    """Yield the elements of parts that state a language or a direction, and belong to no single text.

    part_types: names of elements by type of content
    new_language: leave out parts of Word whose elements this language does not change, which are not read again
    """
    for part_type, names in part_types.items():
        for name in list_parts(members, (part_type,)):
            source = members.read_xml(name)
            is_word = bool(new_language) and _DIRECTIONS.keys() >= set(names)
            if is_word and not is_right_to_left(new_language) and not any("bidi" in part for part in source.iter_markup()):
                continue
            for element in source.iter_elements(names):
                yield source, element


def read_core_language(members: ZipMembers) -> str:
    """Return the language of the document by the part about its title and author, or an empty text."""
    return next((element.text.strip() for _, element in read_stated(members, {CORE_TYPE: ("language",)})), "")


def edit_stated(
    part_types: Mapping[str, tuple[str, ...]],
    members: ZipMembers,
    translations: Mapping[str, UnitTranslation],
    language: str,
) -> Iterator[Edit]:
    """Yield the edits of all such elements; none without a language. part_types: as in `read_stated`"""
    source_language = get_source_language(translations)
    for source, element in read_stated(members, part_types, language) if language else ():
        yield from edit_property(source, element, source_language, language)
