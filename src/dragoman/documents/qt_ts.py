"""TS files of Qt Linguist: messages with one translation, or with one for each grammatical number.

A translation that a human has to check is `type="unfinished"`, and a new comment of the translator states the failed checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dragoman.documents.document import Document, Edit, Remarks, Unit, UnitState, UnitTranslation
from dragoman.documents.plural_rules import list_qt_forms
from dragoman.documents.xml_spans import XmlElement, XmlPlace, XmlSource, escape_xml, set_attribute
from dragoman.documents.xml_units import (
    MAX_ID,
    Piece,
    TaggedText,
    UnitList,
    make_point,
    name_codes,
    read_parts,
    write_element,
)
from dragoman.languages import is_same_language
from dragoman.text.inline_rules import COMMON_RULES

_RULES = COMMON_RULES.enable("&")
_COMMENT_START = "dragoman: "


def parse_qt_ts(content: bytes) -> Document:
    """Return the document of a TS file. Raises DataError for other files."""
    source = XmlSource(content, has_entities=True)
    units = UnitList(len(content))
    context = ""
    numerus: list[XmlPlace] = []

    def read_start(element: XmlElement) -> None:
        nonlocal context
        if element.name == "context":
            context = ""

    for element in source.iter_elements(("name", "message"), read_start, root_name="TS"):
        if element.name == "name":
            context = element.text[:MAX_ID]
        else:
            language = source.root.attributes.get("language", "")
            units.read(source, element, partial(_add_message, source, context, list_qt_forms(language)))
            if element.attributes.get("numerus") == "yes":
                numerus.append(source.get_place(element))
    root = source.root
    language = root.attributes.get("language", "")

    def edit_language(translations: Mapping[str, UnitTranslation], new: str) -> list[Edit]:
        if not new or (language and is_same_language(language, new)):
            return []
        return source.edit_tag(root, set_attribute(source.get_tag(root), "language", new))

    def make_plural_edits(new: str) -> list[Edit]:
        """Return the edits that add the missing forms of each message with a number."""
        num_forms = len(list_qt_forms(language or new))
        return [edit for place in numerus for edit in _add_forms(source, source.read_element(place), num_forms)]

    return units.make_document(
        content,
        "ts",
        make_plural_edits=make_plural_edits,
        source_language=root.attributes.get("sourcelanguage", ""),
        target_language=language,
        make_document_edits=edit_language,
    )


def _add_forms(source: XmlSource, message: XmlElement, num_forms: int) -> list[Edit]:
    """Return the edit that adds empty forms to a message with a number, up to the number of forms of its language."""
    target = message.find("translation")
    if target is not None and target.attributes.get("type") in ("vanished", "obsolete"):
        return []
    forms = target.find_all("numerusform") if target is not None else []
    added = "<numerusform></numerusform>" * max(num_forms - len(forms), 0)
    if not added:
        return []
    if forms:
        return [source.edit(forms[-1].end, forms[-1].end, added)]
    start, end = (target.start, target.end) if target is not None else (message.content_end, message.content_end)
    return [source.edit(start, end, f'<translation type="unfinished">{added}</translation>')]


def _add_message(source: XmlSource, context: str, numbers: Sequence[str], units: UnitList, message: XmlElement) -> None:
    original, target = message.find("source"), message.find("translation")
    kind = target.attributes.get("type", "") if target is not None else ""
    if original is None or not original.text.strip() or kind in ("vanished", "obsolete"):
        return
    text = name_codes(_read(source, original))
    comment = message.find("comment")
    name = message.attributes.get("id") or f"{context}/{original.text}"
    name += f"/{comment.text}" if comment is not None and "id" not in message.attributes else ""
    forms = target.find_all("numerusform") if target is not None else []
    if message.attributes.get("numerus") == "yes" and not forms:
        return  # the number of forms depends on the language; `make_plural_edits` adds them
    first = next((number for number, form in enumerate(forms) if not form.text.strip()), 0)  # its state is that of all
    for number, form in enumerate(forms or [target]):
        present = name_codes(_read(source, form), text).text if form is not None else ""
        state: UnitState = "untranslated" if not present else "fuzzy" if kind == "unfinished" else "translated"

        def write(translation: UnitTranslation, form: XmlElement | None = form, is_first: bool = number == first) -> list[Edit]:
            edits = _write_state(source, message, translation) if is_first and forms else []
            return edits + _write_form(source, message, form, text, translation, is_numerus=bool(forms))

        form_name = f"{name}/{number}" if forms else name
        note = comment.text if comment else context
        plural_form = numbers[number] if forms and len(numbers) == len(forms) else ""
        unit = Unit(form_name, text.text, text.markup, present, state, note, plural_form=plural_form, rules=_RULES)
        units.add(unit, write, partial(_list_remarks, source, message, target))


def _list_remarks(source: XmlSource, message: XmlElement, target: XmlElement | None) -> Remarks:
    """Return the comment of the translator, and the state."""
    comment = message.find("translatorcomment")
    place = message.content_end if target is None else source.get_indented_start(target)
    note = source.read_remark(place, place) if comment is None else source.read_indented(comment)
    remarks = {("note", ""): note, ("target", ""): source.read_remark(place, place)}
    if target is not None:
        remarks |= {("target", ""): source.read_indented(target), ("state", ""): source.read_attribute(target, "type")}
    return remarks


def _read(source: XmlSource, element: XmlElement) -> list[Piece]:
    return read_parts(source, element.parts, lambda inner: [make_point(source, inner)])


def _write_form(
    source: XmlSource,
    message: XmlElement,
    form: XmlElement | None,
    text: TaggedText,
    translation: UnitTranslation,
    *,
    is_numerus: bool,
) -> list[Edit]:
    """Return the edits that write the translation of a message, or one of its forms, whose state is written apart."""
    edits = [] if is_numerus else _write_comment(source, message, translation)
    name = "numerusform" if is_numerus else "translation"
    attributes = {} if is_numerus else {"type": "" if translation.state == "translated" else "unfinished"}
    markup, place = text.write(translation.text), message.content_end
    return [*edits, write_element(source, form, name, attributes, markup, place)]


def _write_state(source: XmlSource, message: XmlElement, translation: UnitTranslation) -> list[Edit]:
    """Return the edits that write the state of a message with forms."""
    target = message.find("translation")
    assert target is not None
    tag = set_attribute(source.get_tag(target), "type", "" if translation.state == "translated" else "unfinished")
    return source.edit_tag(target, tag) + _write_comment(source, message, translation)


def _write_comment(source: XmlSource, message: XmlElement, translation: UnitTranslation) -> list[Edit]:
    """Return the edit of the comment with remarks, if there is no comment of a human."""
    present = message.find("translatorcomment")
    comment = escape_xml(_COMMENT_START + translation.comment)
    markup = f"<translatorcomment>{comment}</translatorcomment>" if translation.comment else ""
    if present is not None:
        is_own = present.text.startswith(_COMMENT_START)
        return [source.edit(present.start, present.end, markup)] if is_own else []
    target = message.find("translation")
    start = target.start if target is not None else message.content_end
    return [source.edit(start, start, markup)] if markup else []
