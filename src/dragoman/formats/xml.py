"""The units of an XML file, one after the other, and the text in them; nothing outside the file is ever looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dragoman.errors import DataError, MissingExtraError
from dragoman.formats.text import LONGEST, UNREADABLE, name_of, open_bytes, reason_of, unreadable

if TYPE_CHECKING:
    from lxml.etree import _Element

_CHUNK = 2**16
# Elements that stand for a program's own codes: TMX, XLIFF 1.2 and 2 agree on what the names mean.
_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLACE = re.compile(r"\s*,? line \d+, column \d+.*", re.DOTALL)


def read_units(path: Path | None, root: str, unit_of: Callable[[_Element], str], names: tuple[str, ...]) -> Iterator[_Element]:
    """The elements that are units, each of which is emptied when the next one is asked for.

    `root` is what the file's first element is to be called; `unit_of` is shown it and tells the full name of a unit, one of
    `names` in some namespace. Memory is of one unit. Raises DataError for what is not XML, declares entities, or goes on for
    more than `LONGEST` bytes without a unit's end.
    """
    name = name_of(path)
    parser, syntax_error = _parser([f"{{*}}{local}" for local in (root, *names)])
    unit = ""
    count = waiting = 0
    try:
        with open_bytes(path) as stream:
            while chunk := stream.read(_CHUNK):
                parser.feed(chunk)
                for entry in parser.feed_error_log:
                    # Not every error is raised before the end, as which it is then told.
                    if entry.level_name != "WARNING":
                        raise _broken(name, entry.message, entry.line)
                waiting += len(chunk)
                if waiting > LONGEST:
                    raise DataError(f"{name}: no unit ends within {LONGEST >> 20} MiB after {count} units")
                for event, element in parser.read_events():
                    if not unit:
                        unit = _first_element(element, root, unit_of, name)
                    elif event == "end" and element.tag == unit:
                        if next(element.iterancestors(unit), None) is not None:
                            raise DataError(f"{name}, unit {count + 1}: one unit stands within another")
                        count += 1
                        waiting = 0
                        yield element
                        _free(element)
            top = parser.close()
    except syntax_error as error:
        raise _broken(name, error.msg or "", error.lineno) from None
    except UNREADABLE as error:
        raise unreadable(path, error, after=f"unit {count}" if count else "") from None
    if not unit:
        raise DataError(f"{name}: its first element is {local_name(top)[:40]!r}; expected {root!r}")


def _parser(names: list[str]) -> tuple[Any, type[Any]]:
    """A parser that tells of elements with these names and leaves entities and the world alone, and what it raises."""
    try:
        from lxml import etree
    except ImportError:
        raise MissingExtraError("lxml", "formats", "reading TMX and XLIFF") from None
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


def _broken(name: str, message: str, line: int | None) -> DataError:
    reason = reason_of(_PLACE.sub("", message)) or "broken"
    return DataError(f"{name}{f', line {line}' if line else ''}: not XML that can be read: {reason}")


def _first_element(element: _Element, root: str, unit_of: Callable[[_Element], str], name: str) -> str:
    """What a unit is called, by the file's first element."""
    top = cast(Any, element.getroottree())
    if (declared := top.docinfo.internalDTD) is not None and (entity := next(declared.iterentities(), None)) is not None:
        raise DataError(
            f"{name}: declares the entity {str(entity.name)[:40]!r}, and is not read: write the text itself in its place"
        )
    if element.getparent() is not None or local_name(element) != root:
        raise DataError(f"{name}: its first element is {local_name(top.getroot())[:40]!r}; expected {root!r}")
    return unit_of(element)


def _free(unit: _Element) -> None:
    """Give up a unit's content and whatever stands before it, on each level of the tree."""
    unit.clear(keep_tail=True)
    node: _Element | None = unit
    while node is not None:
        parent = node.getparent()
        while parent is not None and (before := node.getprevious()) is not None:
            parent.remove(before)
        node = parent


def local_name(element: _Element) -> str:
    """An element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def namespace(element: _Element) -> str:
    """What stands before the local name of an element and its kin: {namespace}, or nothing."""
    return str(element.tag)[: -len(local_name(element))]


def text_within(element: _Element, where: str) -> str:
    """An element's text without native codes; the text between paired codes, and that within a code's <sub>, is kept.

    Raises DataError for a reference to an entity, which would otherwise vanish, and for a <cp> that is no character.
    """
    return "".join(_texts(element, where, coded=False))


def _texts(element: _Element, where: str, *, coded: bool) -> Iterator[str]:
    if element.text and not coded:
        yield element.text
    for child in element:
        if not isinstance(child.tag, str):
            raise DataError(
                f"{where}: refers to the entity {str(child.text)[:40]!r}, which is not declared; write the text itself"
            )
        name = local_name(child)
        if name == "cp" and not coded:
            yield _character(child, where)
        yield from _texts(child, where, coded=name in _CODES or (coded and name != "sub"))
        if child.tail and not coded:
            yield child.tail


def _character(element: _Element, where: str) -> str:
    """The character that XML cannot hold and XLIFF 2 spells `<cp hex="0001"/>`."""
    digits = element.get("hex", "")
    code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]{1,8}", digits) else -1
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise DataError(f"{where}: <cp hex={digits[:20]!r}> is no character")
    return chr(code)


def same_language(one: str, other: str) -> bool:
    """Whether two language codes have the same primary subtag: en-GB and EN_us do."""
    return _primary(one) == _primary(other)


def _primary(language: str) -> str:
    """A language code's first subtag, in small letters."""
    return re.split("[-_]", language.lower(), maxsplit=1)[0]


def escape(text: str, origin: str) -> str:
    """A text as XML spells it. Raises DataError for characters that it cannot hold."""
    if (illegal := _ILLEGAL.search(text)) is not None:
        raise DataError(
            f"{origin}: holds the character U+{ord(illegal.group()):04X}, which XML cannot; clean the pairs with "
            "control_characters = true, or write another format"
        )
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
