"""Android resources (strings.xml): strings, plurals and string arrays, with the escapes of Android inside XML.

The rules are those of https://developer.android.com/guide/topics/resources/string-resource: a backslash escapes quotes, `@`,
`?` and control characters, white space outside double quotes is one space, and `xliff:g` marks what is not translated.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation
from dragoman.documents.plural_forms import list_missing_categories
from dragoman.documents.xml_spans import XmlElement, XmlPlace, XmlSource, escape_xml, set_attribute
from dragoman.documents.xml_units import (
    Code,
    Piece,
    UnitList,
    find_values,
    make_break,
    make_pair,
    make_point,
    name_codes,
    read_parts,
    write_content,
)
from dragoman.text.unicode_forms import join_surrogates

_TAG = r"""<[A-Za-z][^<>"'\\]*["'][^<>\\]*>"""  # of HTML, with quotation marks that need no backslash
_MARK = re.compile(rf"""{_TAG}|[\\'"]""")
_TOKEN = re.compile(rf"""({_TAG})|\\u([0-9A-Fa-f]{{4}})|\\(.)|(")|([ \t\r\n]+)|([^\\" \t\r\n<]+|<)|(\\)""", re.DOTALL)
_CHARACTERS = {"n": "\n", "t": "\t"}
_VALUES = ("bool", "integer", "dimen", "color", "fraction", "integer-array", "array")
_REFERENCE = re.compile(r"[ \t\r\n]*[@?][\w.+*:/-]+[ \t\r\n]*")


def parse_android_strings(content: bytes) -> Document:
    """Return the document of a resource file. Raises DataError for other files."""
    source = XmlSource(content, has_entities=True)
    units = UnitList(len(content))
    plurals: list[XmlPlace] = []
    add = partial(_add_strings, source)
    for element in source.iter_elements(("string", "string-array", "plurals"), root_name="resources"):
        if element.get_inherited("translatable") == "false":
            continue
        if element.name == "plurals":
            plurals.append(source.get_place(element))
        units.read(source, element, add)
    return units.make_document(
        content,
        "android",
        make_plural_edits=lambda language: [
            edit for place in plurals for edit in _add_items(source, source.read_element(place), language)
        ],
        find_values=lambda: _find_values(source, {unit.key for unit in units.units}),
    )


def _find_values(source: XmlSource, keys: Collection[str]) -> dict[str, Edit]:
    """Return the values for programs, and the strings without a unit. keys: those of the units"""
    values: dict[str, Edit] = {}
    for element in source.iter_elements(("string", *_VALUES)):
        name = element.attributes.get("name", "")
        name = name if element.name == "string" else f"{element.name}/{name}"
        items = [(f"{name}/{number}", item) for number, item in enumerate(element.find_all("item"))]
        values |= find_values(source, items or [(name, element)], keys)
    return values


def _add_strings(source: XmlSource, units: UnitList, element: XmlElement) -> None:
    """Add the texts of a string, or of the items of a plural or an array."""
    name = element.attributes.get("name", "")
    items = [element] if element.name == "string" else element.find_all("item")
    for number, item in enumerate(items):
        quantity = item.attributes.get("quantity", "")
        suffix = "" if item is element else "/" + (quantity or str(number))
        _add_string(units, source, item, name + suffix, quantity)


def _add_items(source: XmlSource, plurals: XmlElement, language: str) -> list[Edit]:
    """Return the edit that adds the items of the categories which a language has and an element lacks."""
    items = {item.attributes.get("quantity", ""): item for item in plurals.find_all("item")}
    other = items.get("other")
    missing = list_missing_categories(language, set(items))
    if other is None or other.is_empty_tag or not missing:
        return []
    tag, rest = source.get_tag(other), source.get_markup(other.content_start, other.end)
    indent = source.get_indent(other)
    added = "".join(f"{set_attribute(tag, 'quantity', category)}{rest}{indent}" for category in missing)
    return [source.edit(other.start, other.start, added)]


def _add_string(units: UnitList, source: XmlSource, element: XmlElement, name: str, quantity: str) -> None:
    pieces = _read(source, element)
    text = name_codes(_decode(pieces))
    tags = frozenset(tag for piece in pieces if isinstance(piece, str) for tag in re.findall(_TAG, piece))
    if not text.text.strip() or _REFERENCE.fullmatch(element.text):
        return

    def write(translation: UnitTranslation) -> list[Edit]:
        pieces = text.split(translation.text)
        if text.codes:
            written = [
                piece.markup
                if isinstance(piece, Code)
                else escape_xml(_encode(piece, tags, is_first=index == 0, is_last=index == last))
                for index, piece in enumerate(pieces)
                for last in [len(pieces) - 1]
            ]
            markup = "".join(written)
        else:
            markup = write_content(element, _encode(translation.text, tags, is_first=True, is_last=True))
        return [source.edit(element.content_start, element.content_end, markup)]

    units.add(Unit(name, text.text, text.markup, context=name, plural_form=quantity, key=name), write)


def _read(source: XmlSource, element: XmlElement) -> list[Piece]:
    """Return the pieces of a string. `xliff:g` stands for a placeholder, and is kept whole."""

    def read_element(inner: XmlElement) -> list[Piece]:
        if inner.namespace.startswith("urn:oasis:names:tc:xliff:"):
            return [make_point(source, inner)]
        if inner.name == "br":
            return [make_break(source, inner)]
        return make_pair(source, inner, read_parts(source, inner.parts, read_element))

    return read_parts(source, element.parts, read_element)


def _decode(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces as a user sees them. A double quote may start in one text and end in another."""
    output: list[Piece] = []
    is_quoted = False
    is_after_space = True
    for piece in pieces:
        if isinstance(piece, Code):
            output.append(piece)
            is_after_space = False
            continue
        characters = []
        for tag, code, escaped, quote, spaces, other, _ in _TOKEN.findall(piece):
            if tag:
                characters.append(tag)
                is_after_space = False
            elif quote:
                is_quoted = not is_quoted
            elif spaces and not is_quoted:
                characters += [] if is_after_space else [" "]
                is_after_space = True
            else:
                characters.append(chr(int(code, 16)) if code else _CHARACTERS.get(escaped, escaped) or spaces or other)
                is_after_space = False
        output.append("".join(characters))
    if output and isinstance(output[-1], str) and is_after_space:
        output[-1] = output[-1].removesuffix(" ")
    return [join_surrogates(piece) if isinstance(piece, str) else piece for piece in output]


def _encode(text: str, tags: Collection[str], *, is_first: bool, is_last: bool) -> str:
    """Return a text with the escapes of Android. Spaces that would be lost are written as their code.

    tags: tags that get none
    """

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0] in tags else re.sub(r"""[\\'"]""", r"\\\g<0>", match[0])

    text = _MARK.sub(escape, text)
    text = re.sub("^([@?])", r"\\\1", text) if is_first else text
    text = re.sub(" (?= )|^ " if is_first else " (?= )", r"\\u0020", text)
    text = re.sub(" $", r"\\u0020", text) if is_last else text
    return text.replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\u000d")
