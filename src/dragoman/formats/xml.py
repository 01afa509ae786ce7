"""Streaming reader of the units of an XML file and their text. It never opens external entities."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dragoman.errors import DataError, MissingDependencyError
from dragoman.formats.text import MAX_LINE_BYTES, READ_ERRORS, describe_path, format_reason, open_bytes, to_data_error

if TYPE_CHECKING:
    from lxml.etree import _Element

_CHUNK_BYTES = 2**16
# Elements with native codes of other programs. The names have the same meaning in TMX, XLIFF 1.2 and XLIFF 2.
_INLINE_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_ILLEGAL_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERROR_POSITION = re.compile(r"(?<!\s)\s*+,? line \d+, column \d+.*", re.DOTALL)


def read_units(
    path: Path | None, root_name: str, get_unit_tag: Callable[[_Element], str], unit_names: tuple[str, ...]
) -> Iterator[_Element]:
    """Yield the unit elements of a file. Memory holds one unit, which is cleared when the next one is read.

    root_name: expected local name of the root element
    get_unit_tag: returns the full tag of a unit, with its namespace, from the root element
    unit_names: local names that a unit may have

    Raises DataError if the file is not XML, declares entities, or has more than MAX_LINE_BYTES without the end of a unit.
    """
    name = describe_path(path)
    parser, syntax_error = _make_parser([f"{{*}}{local}" for local in (root_name, *unit_names)])
    unit_tag = ""
    num_units = bytes_since_unit = 0
    try:
        with open_bytes(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                parser.feed(chunk)
                for entry in parser.feed_error_log:
                    # The parser raises some errors only at the end of the file, and with another message.
                    if entry.level_name != "WARNING":
                        raise _make_syntax_error(name, entry.message, entry.line)
                bytes_since_unit += len(chunk)
                if bytes_since_unit > MAX_LINE_BYTES:
                    raise DataError(
                        f"{name}: no unit ends within {MAX_LINE_BYTES >> 20} MiB after {num_units} units", code="input-too-long"
                    )
                for event, element in parser.read_events():
                    if not unit_tag:
                        unit_tag = _read_unit_tag(element, root_name, get_unit_tag, name)
                    elif event == "end" and element.tag == unit_tag:
                        if next(element.iterancestors(unit_tag), None) is not None:
                            raise DataError(
                                f"{name}, unit {num_units + 1}: one unit stands within another", code="invalid-format"
                            )
                        num_units += 1
                        bytes_since_unit = 0
                        yield element
                        _release_unit(element)
            root_element = parser.close()
    except syntax_error as error:
        raise _make_syntax_error(name, error.msg or "", error.lineno) from None
    except READ_ERRORS as error:
        raise to_data_error(path, error, last_position=f"unit {num_units}" if num_units else "") from None
    if not unit_tag:
        raise DataError(
            f"{name}: its first element is {get_local_name(root_element)[:40]!r}; expected {root_name!r}", code="invalid-format"
        )


def _make_parser(names: list[str]) -> tuple[Any, type[Any]]:
    """Return a parser that reports elements with these names and resolves no entities, and its exception type."""
    try:
        from lxml import etree
    except ImportError:
        raise MissingDependencyError("lxml", "formats", "reading TMX and XLIFF") from None
    parser = etree.XMLPullParser(
        events=("start", "end"),
        tag=names,
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    return parser, etree.XMLSyntaxError


def _make_syntax_error(name: str, message: str, line: int | None) -> DataError:
    reason = format_reason(_ERROR_POSITION.sub("", message)) or "broken"
    return DataError(f"{name}{f', line {line}' if line else ''}: not XML that can be read: {reason}", code="invalid-format")


def _read_unit_tag(element: _Element, root_name: str, get_unit_tag: Callable[[_Element], str], name: str) -> str:
    """Return the tag of a unit. Raises DataError if the root element has another name or the file declares entities."""
    document = cast(Any, element.getroottree())
    if (internal_dtd := document.docinfo.internalDTD) is not None and (
        entity := next(internal_dtd.iterentities(), None)
    ) is not None:
        raise DataError(
            f"{name}: declares the entity {str(entity.name)[:40]!r}, and is not read: write the text itself in its place",
            code="invalid-format",
        )
    if element.getparent() is not None or get_local_name(element) != root_name:
        raise DataError(
            f"{name}: its first element is {get_local_name(document.getroot())[:40]!r}; expected {root_name!r}",
            code="invalid-format",
        )
    return get_unit_tag(element)


def _release_unit(unit: _Element) -> None:
    """Clear a unit, and remove the elements before it on each level of the tree."""
    unit.clear(keep_tail=True)
    node: _Element | None = unit
    while node is not None:
        parent = node.getparent()
        while parent is not None and (previous_node := node.getprevious()) is not None:
            parent.remove(previous_node)
        node = parent


def get_local_name(element: _Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def get_namespace_prefix(element: _Element) -> str:
    """Return the namespace of an element in braces, or an empty text."""
    return str(element.tag)[: -len(get_local_name(element))]


def extract_text(element: _Element, location: str) -> str:
    """Return the text of an element without native codes. Text between paired codes and in <sub> is kept.

    A named character of HTML is a character. Raises DataError for a reference to another entity, which would be lost, and for a
    <cp> without a valid character.
    """
    return "".join(_iter_texts(element, location, is_in_code=False))


def _iter_texts(element: _Element, location: str, *, is_in_code: bool) -> Iterator[str]:
    if element.text and not is_in_code:
        yield element.text
    for child in element:
        if isinstance(child.tag, str):
            name = get_local_name(child)
            if name == "cp" and not is_in_code:
                yield _decode_cp(child, location)
            yield from _iter_texts(child, location, is_in_code=name in _INLINE_CODES or (is_in_code and name != "sub"))
        elif not is_in_code:
            yield _decode_entity(str(child.text), location)
        if child.tail and not is_in_code:
            yield child.tail


def _decode_entity(reference: str, location: str) -> str:
    """Return the character of a reference such as `&nbsp;`, which only a DTD outside would declare."""
    if (character := html.unescape(reference)) == reference:
        raise DataError(
            f"{location}: refers to the entity {reference[:40]!r}, which is not declared; write the text itself",
            code="invalid-format",
        )
    return character


def _decode_cp(element: _Element, location: str) -> str:
    """Return the character of an XLIFF 2 element such as `<cp hex="0001"/>`, which XML cannot hold directly."""
    digits = element.get("hex", "")
    code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]{1,8}", digits) else -1
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise DataError(f"{location}: <cp hex={digits[:20]!r}> is not a character", code="invalid-format")
    return chr(code)


def escape_xml(text: str, origin: str) -> str:
    """Return a text with XML escapes. Raises DataError, which names `origin`, for characters that XML cannot hold."""
    if (illegal := _ILLEGAL_CHARACTER.search(text)) is not None:
        raise DataError(
            f"{origin}: holds the character U+{ord(illegal.group()):04X}, which XML cannot; clean the pairs with "
            "control_characters = true, or write another format",
            code="invalid-format",
        )
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
