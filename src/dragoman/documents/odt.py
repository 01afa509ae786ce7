"""ODT, ODP and ODS files: paragraphs and cells, with headers, notes, alternative texts and titles of charts. Code is kept.

In a spreadsheet, a text stays if a formula, a condition or a filter compares with it, and the results of formulas stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from dragoman.documents.code_formatting import FontStyle, FontStyles, is_monospaced
from dragoman.documents.compared_texts import COMPARED, ComparedTexts
from dragoman.documents.document import Document, Edit, UnitTranslation, get_source_language
from dragoman.documents.flowing_text import add_flowing_text, split_at_breaks
from dragoman.documents.odt_languages import edit_languages, read_languages
from dragoman.documents.office_languages import edit_property
from dragoman.documents.office_texts import CHART_DATA, add_element, add_elements, count_attributes
from dragoman.documents.reading import check_parts
from dragoman.documents.script_languages import ScriptCounts, ScriptLanguages
from dragoman.documents.xml_spans import XmlElement, XmlSource, XmlText
from dragoman.documents.xml_units import Code, Piece, UnitList, make_break, make_pair, make_point, read_parts
from dragoman.documents.zip_document import ZipMembers
from dragoman.errors import DataError
from dragoman.languages import is_same_language
from dragoman.text.no_language import is_data
from dragoman.text.word_codes import is_script_mark

_META_MEMBER = "meta.xml"
_TYPE = b"application/vnd.oasis.opendocument."
_TEXT_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_TABLE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:table:1.0"
_STYLE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:style:1.0"
_PROMPTS = ("help-message", "error-message")
_PARAGRAPHS = frozenset(("p", "h"))
_ALTERNATIVE_TEXTS = frozenset(("title", "desc"))
_BREAKS = frozenset(("line-break", "tab"))
_PAIRS = frozenset(("span", "a", "meta", "meta-field"))
_SVG_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"


def parse_odt(content: bytes) -> Document:
    """Return the document of an ODT file. Raises DataError for other, damaged, encrypted and signed files."""
    return _parse(content, "odt", b"text")


def parse_odp(content: bytes) -> Document:
    """Return the document of an ODP file. Raises DataError as `parse_odt` does."""
    return _parse(content, "odp", b"presentation")


def parse_ods(content: bytes) -> Document:
    """Return the document of an ODS file. Raises DataError as `parse_odt` does."""
    return _parse(content, "ods", b"spreadsheet")


def _is_protected(members: ZipMembers) -> bool:
    """Return whether a password protects a document. Manifests of LibreOffice's own templates have a prefix without a name."""
    name = "META-INF/manifest.xml"
    try:
        return any(True for _ in members.read_xml(name).iter_elements(("encryption-data",)))
    except DataError as error:
        if error.code != "invalid-format" or name not in members.members:
            raise
        return b"encryption-data" in members.open(name)[:]


def _parse(content: bytes, format_name: str, kind: bytes) -> Document:
    members = ZipMembers(content, format_name)
    media_type = _TYPE + kind
    if "mimetype" not in members.members or members.open("mimetype")[: len(media_type)] != media_type:
        raise members.error("holds a document of another kind; give it the name that fits", "unknown-format")
    if "META-INF/documentsignatures.xml" in members.members:
        raise members.error("has a digital signature, which a change breaks; remove the signature first")
    if _is_protected(members):
        raise members.error("is protected by a password; save it without one")
    units = UnitList()
    names = [name for name in ("content.xml", "styles.xml") if name in members.members]
    styles_of_members = [_read_styles(members, sorted({name, names[-1]}, reverse=True)) for name in names]
    scripts = ScriptCounts()
    for name in names:
        for element in members.read_xml(name).iter_elements(_PARAGRAPHS):  # with those that are deleted
            scripts.count(element.text)
    language = scripts.select(styles_of_members[-1].languages)
    compared = ComparedTexts.read_opendocument(members, names) if format_name == "ods" else ComparedTexts()
    skipped = Counter({"texts in formulas": compared.num_literals})
    for name, styles in zip(names, styles_of_members, strict=True):
        skipped += _add_member(units, members, name, replace(styles, language=language), compared)
    for chart in _list_charts(members):
        skipped += _add_member(units, members, chart, FontStyles(language=language), ComparedTexts(), is_chart=True)
    skipped["titles of prompts"] = count_attributes(members, names[:1], dict.fromkeys(_PROMPTS, ":title"))
    add_elements(units, members, members.members.keys() & {_META_MEMBER}, ("title", "subject", "description"))
    return units.make_document(
        content,
        format_name,
        source_language=units.settle_language(language),
        make_document_edits=lambda translations, language: chain(
            edit_languages(names, members, translations, language), _edit_metadata(members, translations, language)
        ),
        assemble=members.assemble,
        skipped=skipped,
    )


def _edit_metadata(members: ZipMembers, translations: Mapping[str, UnitTranslation], language: str) -> Iterator[Edit]:
    """Yield the edits that make the part about title and author state the language of the translations."""
    if language and _META_MEMBER in members.members:
        source = members.read_xml(_META_MEMBER)
        for element in source.iter_elements(("language",)):
            yield from edit_property(source, element, get_source_language(translations), language)


def _read_styles(members: ZipMembers, names: Sequence[str]) -> FontStyles:
    """Return the styles of these members by family and name, such as `text/Source_20_Text`. Later members go before."""
    styles: dict[str, FontStyle] = {}
    default_font = ""
    default_languages = ScriptLanguages()
    for name in names:
        for element in members.read_xml(name).iter_elements(("style", "default-style")):
            if element.namespace != _STYLE_NAMESPACE:
                continue
            family, style, parent = (element.attributes.get(f":{key}", "") for key in ("family", "name", "parent-style-name"))
            properties = element.find("text-properties")
            values = {} if properties is None else properties.attributes
            font = values.get(":font-name") or values.get(":font-family", "")
            languages = read_languages(values)
            check_parts(len(styles))
            if element.name == "style":
                styles[f"{family}/{style}"] = FontStyle(
                    style.replace("_20_", " "), f"{family}/{parent}", font, languages, values.get(":text-position", "")
                )
            elif family == "paragraph":
                default_font, default_languages = font, languages
    return FontStyles(styles, font=default_font, languages=default_languages)


def _list_charts(members: ZipMembers) -> list[str]:
    """Return the members with a chart, whose titles are paragraphs, and whose table has copies of cells."""
    objects = [name for name in members.members if name.endswith("/content.xml")]
    return [name for name in objects if any("<office:chart>" in markup for markup in members.read_xml(name).iter_markup())]


def _add_member(
    units: UnitList, members: ZipMembers, name: str, styles: FontStyles, compared: ComparedTexts, *, is_chart: bool = False
) -> Counter[str]:
    """Add the paragraphs of a member. Return the numbers of texts of cells that stay, by the reason."""
    source = members.read_xml(name)
    numbers = count(1)

    def add_paragraphs(units: UnitList, outermost: XmlElement) -> None:
        for element in outermost.descend():
            if _is_paragraph(element):
                reader = _OdtInlineReader(source, _find_code(element, styles), styles)
                language = styles.get_language(f"paragraph/{element.attributes.get(':style-name', '')}", element.text)
                if is_same_language(language, styles.language):
                    language = ""
                for line in split_at_breaks(element.parts, _is_break):
                    unit_id = f"{name}/{next(numbers)}"
                    add_flowing_text(units, source, line, unit_id, reader.read_element, language)
            elif _is_alternative_text(element):
                unit_id = f"{name}/{next(numbers)}"
                if not is_data(element.text):
                    add_element(units, source, element, unit_id)

    skipped: Counter[str] = Counter()

    def read_start(element: XmlElement) -> None:
        if element.name == "table" and element.namespace == _TABLE_NAMESPACE:
            skipped["names of sheets"] += any(map(str.isalpha, element.attributes.get(":name", "")))

    is_spreadsheet = members.format_name == "ods" and not is_chart
    for outermost in source.iter_elements(
        (*_PARAGRAPHS, *_ALTERNATIVE_TEXTS, "tracked-changes"), read_start if is_spreadsheet else None
    ):
        reason = (
            _find_reason(outermost, compared) if is_spreadsheet else CHART_DATA if is_chart and _is_in_cell(outermost) else ""
        )
        if reason:
            next(numbers)
            skipped[reason] += any(map(str.isalpha, outermost.text))
        elif outermost.name != "tracked-changes":
            units.read(source, outermost, add_paragraphs)
    return skipped


def _find_reason(paragraph: XmlElement, compared: ComparedTexts) -> str:
    """Return what a paragraph of a cell is that stays as it is; empty for all others."""
    cell = paragraph.parent
    if cell is None or not _is_in_cell(paragraph):
        return ""
    if ":formula" in cell.attributes or ":string-value" in cell.attributes:
        return "results of formulas"
    if cell.attributes.get(":value-type", "string") != "string":
        return "numbers and dates"  # programs show the value of the cell, and not the text
    return COMPARED if compared.has(paragraph.text) else ""


def _is_in_cell(paragraph: XmlElement) -> bool:
    return paragraph.parent is not None and paragraph.parent.name in ("table-cell", "covered-table-cell")


def _is_paragraph(element: XmlElement) -> bool:
    return element.name in _PARAGRAPHS and element.namespace == _TEXT_NAMESPACE


def _is_alternative_text(element: XmlElement) -> bool:
    return element.name in _ALTERNATIVE_TEXTS and element.namespace == _SVG_NAMESPACE


def _is_break(element: XmlElement) -> bool:
    return element.name in _BREAKS and element.namespace == _TEXT_NAMESPACE


def _find_code(paragraph: XmlElement, styles: FontStyles) -> Collection[int]:
    """Return the Python ids of the spans of a paragraph that are code."""
    font = styles.get_font(f"paragraph/{paragraph.attributes.get(':style-name', '')}") or styles.font
    code: set[int] = set()
    monospaced: set[int] = set()
    for element in paragraph.descend():
        if element.namespace == _TEXT_NAMESPACE and element.name == "span":
            style = f"text/{element.attributes.get(':style-name', '')}"
            if styles.is_code(style):
                code.add(id(element))
            elif is_monospaced(styles.get_font(style)) and not is_monospaced(font):
                monospaced.add(id(element))
    has_other_words = any(map(str.isalpha, "".join(_read_texts(paragraph, code | monospaced)))) if monospaced else False
    return code | monospaced if has_other_words else code


def _read_texts(element: XmlElement, skipped: Collection[int]) -> Iterator[str]:
    """Yield the texts of an element, without those of skipped elements, by their Python ids, and of paragraphs inside."""
    for part in element.parts:
        if isinstance(part, XmlText):
            yield part.text
        elif isinstance(part, XmlElement) and id(part) not in skipped and not _is_paragraph(part):
            yield from _read_texts(part, skipped)


@dataclass(frozen=True)
class _OdtInlineReader:
    """Reader of what is in a paragraph. code: Python ids of the elements that are kept whole"""

    source: XmlSource
    code: Collection[int]
    styles: FontStyles

    def read_element(self, element: XmlElement) -> list[Piece]:
        """Return the pieces of an element in a paragraph. One with texts of its own in it, such as a note, keeps its place."""
        if element.namespace == _TEXT_NAMESPACE and element.name in _PAIRS and id(element) not in self.code:
            style = f"text/{element.attributes.get(':style-name', '')}"
            if self.styles.get_position(style) and is_script_mark(element.text):
                return [make_point(self.source, element)]
            language = self.styles.get_language(style, element.text)
            language = "" if is_same_language(language, self.styles.language) else language
            return make_pair(self.source, element, read_parts(self.source, element.parts, self.read_element), language)
        if _is_break(element):
            return [make_break(self.source, element)]
        if any(_is_paragraph(inner) or _is_alternative_text(inner) for inner in element.descend()):
            return [Code("point", "", fixed=(element.start, element.end))]
        return [make_point(self.source, element)]
