"""The units of an XML file, one after the other, and the text in them; nothing outside the file is ever looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dragoman.errors import DataError, MissingDependencyError
from dragoman.formats.text import MAX_LINE_BYTES, READ_ERRORS, describe_path, format_reason, open_bytes, to_data_error

if TYPE_CHECKING:
    from lxml.etree import _Element

_CHUNK_BYTES = 2**16
# Elements that stand for a program's own codes: TMX, XLIFF 1.2 and 2 agree on what the names mean.
_INLINE_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_ILLEGAL_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERROR_POSITION = re.compile(r"\s*,? line \d+, column \d+.*", re.DOTALL)


def read_units(
    path: Path | None, root_name: str, get_unit_tag: Callable[[_Element], str], unit_names: tuple[str, ...]
) -> Iterator[_Element]:
    """The elements that are units, each of which is emptied when the next one is asked for.

    `root` is what the file's first element is to be called; `unit_of` is shown it and tells the full name of a unit, one of
    `names` in some namespace. Memory is of one unit. Raises DataError for what is not XML, declares entities, or goes on for
    more than `LONGEST` bytes without a unit's end.
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
                    # Not every error is raised before the end, as which it is then told.
                    if entry.level_name != "WARNING":
                        raise _make_syntax_error(name, entry.message, entry.line)
                bytes_since_unit += len(chunk)
                if bytes_since_unit > MAX_LINE_BYTES:
                    raise DataError(f"{name}: no unit ends within {MAX_LINE_BYTES >> 20} MiB after {num_units} units")
                for event, element in parser.read_events():
                    if not unit_tag:
                        unit_tag = _read_unit_tag(element, root_name, get_unit_tag, name)
                    elif event == "end" and element.tag == unit_tag:
                        if next(element.iterancestors(unit_tag), None) is not None:
                            raise DataError(f"{name}, unit {num_units + 1}: one unit stands within another")
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
        raise DataError(f"{name}: its first element is {get_local_name(root_element)[:40]!r}; expected {root_name!r}")


def _make_parser(names: list[str]) -> tuple[Any, type[Any]]:
    """A parser that tells of elements with these names and leaves entities and the world alone, and what it raises."""
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
    return DataError(f"{name}{f', line {line}' if line else ''}: not XML that can be read: {reason}")


def _read_unit_tag(element: _Element, root_name: str, get_unit_tag: Callable[[_Element], str], name: str) -> str:
    """What a unit is called, by the file's first element."""
    document = cast(Any, element.getroottree())
    if (internal_dtd := document.docinfo.internalDTD) is not None and (
        entity := next(internal_dtd.iterentities(), None)
    ) is not None:
        raise DataError(
            f"{name}: declares the entity {str(entity.name)[:40]!r}, and is not read: write the text itself in its place"
        )
    if element.getparent() is not None or get_local_name(element) != root_name:
        raise DataError(f"{name}: its first element is {get_local_name(document.getroot())[:40]!r}; expected {root_name!r}")
    return get_unit_tag(element)


def _release_unit(unit: _Element) -> None:
    """Give up a unit's content and whatever stands before it, on each level of the tree."""
    unit.clear(keep_tail=True)
    node: _Element | None = unit
    while node is not None:
        parent = node.getparent()
        while parent is not None and (previous_node := node.getprevious()) is not None:
            parent.remove(previous_node)
        node = parent


def get_local_name(element: _Element) -> str:
    """An element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def get_namespace_prefix(element: _Element) -> str:
    """What stands before the local name of an element and its kin: {namespace}, or nothing."""
    return str(element.tag)[: -len(get_local_name(element))]


def extract_text(element: _Element, location: str) -> str:
    """An element's text without native codes; the text between paired codes, and that within a code's <sub>, is kept.

    Raises DataError for a reference to an entity, which would otherwise vanish, and for a <cp> that is no character.
    """
    return "".join(_iter_texts(element, location, is_in_code=False))


def _iter_texts(element: _Element, location: str, *, is_in_code: bool) -> Iterator[str]:
    if element.text and not is_in_code:
        yield element.text
    for child in element:
        if not isinstance(child.tag, str):
            raise DataError(
                f"{location}: refers to the entity {str(child.text)[:40]!r}, which is not declared; write the text itself"
            )
        name = get_local_name(child)
        if name == "cp" and not is_in_code:
            yield _decode_cp(child, location)
        yield from _iter_texts(child, location, is_in_code=name in _INLINE_CODES or (is_in_code and name != "sub"))
        if child.tail and not is_in_code:
            yield child.tail


def _decode_cp(element: _Element, location: str) -> str:
    """The character that XML cannot hold and XLIFF 2 spells `<cp hex="0001"/>`."""
    digits = element.get("hex", "")
    code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]{1,8}", digits) else -1
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise DataError(f"{location}: <cp hex={digits[:20]!r}> is no character")
    return chr(code)


def is_same_language(first_code: str, second_code: str) -> bool:
    """Whether two language codes have the same primary subtag: en-GB and EN_us do."""
    return _get_primary_subtag(first_code) == _get_primary_subtag(second_code)


def _get_primary_subtag(language: str) -> str:
    """A language code's first subtag, in small letters."""
    return re.split("[-_]", language.lower(), maxsplit=1)[0]


def escape_xml(text: str, origin: str) -> str:
    """A text as XML spells it. Raises DataError for characters that it cannot hold."""
    if (illegal := _ILLEGAL_CHARACTER.search(text)) is not None:
        raise DataError(
            f"{origin}: holds the character U+{ord(illegal.group()):04X}, which XML cannot; clean the pairs with "
            "control_characters = true, or write another format"
        )
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
