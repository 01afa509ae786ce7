"""XLIFF 1.2 and 2, in which translators are given their work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, one_line, unit_origin
from dragoman.formats.text import name_of
from dragoman.formats.xml import escape, local_name, namespace, read_units, same_language, text_within

if TYPE_CHECKING:
    from lxml.etree import _Element

# States in which a target is not a translation yet. None at all says nothing, though XLIFF 2 would have it mean `initial`.
_UNFINISHED = frozenset({"new", "needs-translation", "initial"})
_NAMESPACE = "urn:oasis:names:tc:xliff:document:1.2"


def read_xliff(path: Path | None, *, source_language: str = "", target_language: str = "") -> Iterator[Pair]:
    """Each unit's source with its target, in XLIFF 2 segment by segment. Proposals (`alt-trans`) and `ignorable` are left out.

    A target that is missing, or in a state before translation, gives an empty text. Raises DataError where the file is no
    XLIFF 1 or 2, or is of other languages.
    """
    name = name_of(path)
    wanted = (source_language, target_language)
    units = read_units(path, "xliff", lambda root: _unit_name(root, name, wanted), ("trans-unit", "unit"))
    checked: _Element | None = None
    for number, unit in enumerate(units, start=1):
        kin = namespace(unit)
        origin = unit_origin(name, unit.get("id"), number)
        if local_name(unit) == "trans-unit":
            file = next(unit.iterancestors(f"{kin}file"), None)
            if file is not None and file is not checked:
                _check_languages((file.get("source-language", ""), file.get("target-language", "")), wanted, name)
                checked = file
            yield _pair(unit, kin, origin)
            continue
        segments = unit.findall(f"{kin}segment")
        for place, segment in enumerate(segments, start=1):
            yield _pair(segment, kin, unit_origin(origin, segment.get("id"), place) if len(segments) > 1 else origin)


def _unit_name(root: _Element, name: str, wanted: tuple[str, str]) -> str:
    """What units are called in the version that the root tells, by its attribute or else by its namespace."""
    kin = namespace(root)
    version = root.get("version") or (re.findall(r"[\d.]+$", kin.rstrip("}")) or [""])[0]
    if version.startswith("1."):
        return f"{kin}trans-unit"
    if not version.startswith("2."):
        raise DataError(f"{name}: is XLIFF of version {version[:20]!r}; 1.0 to 1.2 and 2.0 to 2.2 can be read")
    _check_languages((root.get("srcLang", ""), root.get("trgLang", "")), wanted, name)
    return f"{kin}unit"


def _check_languages(held: tuple[str, str], wanted: tuple[str, str], name: str) -> None:
    for side, one, other in zip(("source", "target"), held, wanted, strict=True):
        if one and other and not same_language(one, other):
            raise DataError(f"{name}: its {side} language is {one[:40]!r}, but task.{side}_language is {other!r}")


def _pair(element: _Element, kin: str, origin: str) -> Pair:
    source, target = element.find(f"{kin}source"), element.find(f"{kin}target")
    state = "" if target is None else target.get("state") or element.get("state")
    finished = target is not None and state not in _UNFINISHED
    return Pair(_text(source, origin), _text(target, origin) if finished else "", origin)


def _text(element: _Element | None, origin: str) -> str:
    return "" if element is None else one_line(text_within(element, origin))


def xliff_of(pairs: Iterable[Pair], source_language: str, target_language: str) -> Iterator[str]:
    """An XLIFF 1.2 file, piece by piece, which every tool of the trade reads."""
    one, other = escape(source_language, "the source language"), escape(target_language, "the target language")
    yield (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="1.2" xmlns="{_NAMESPACE}">\n'
        f'<file original="dragoman" source-language="{one}" target-language="{other}" datatype="plaintext">\n<body>\n'
    )
    for number, pair in enumerate(pairs, start=1):
        source, target = escape(pair.source, pair.origin), escape(pair.target, pair.origin)
        translation = f"<target>{target}</target>" if target else ""
        yield f'<trans-unit id="{number}"><source>{source}</source>{translation}</trans-unit>\n'
    yield "</body>\n</file>\n</xliff>\n"
