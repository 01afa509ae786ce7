"""XLIFF 1.2 and 2 files, the exchange format of translation tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, make_unit_origin, to_single_line
from dragoman.formats.text import describe_path
from dragoman.formats.xml import extract_text, get_local_name, get_namespace_prefix, read_units
from dragoman.languages import is_same_language

if TYPE_CHECKING:
    from lxml.etree import _Element

VERSIONS = ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2")
_NAMESPACE_VERSION = re.compile(r"(?<![\d.])[\d.]++$")
# States of a target that is not translated yet. A missing state counts as translated, although XLIFF 2 takes it for `initial`.
_UNFINISHED_STATES = frozenset({"new", "needs-translation", "initial"})


def read_xliff(path: Path | None, *, source_language: str = "", target_language: str = "") -> Iterator[Pair]:
    """Yield source and target of each unit, in XLIFF 2 of each segment. Elements `alt-trans` and `ignorable` are skipped.

    A target that is missing or not translated yet gives an empty text. Raises DataError if the file is not XLIFF 1 or 2, or if
    its languages differ.
    """
    name = describe_path(path)
    expected_languages = (source_language, target_language)
    units = read_units(path, "xliff", lambda root: _find_unit_tag(root, name, expected_languages), ("trans-unit", "unit"))
    checked_file: _Element | None = None
    for number, unit in enumerate(units, start=1):
        prefix = get_namespace_prefix(unit)
        origin = make_unit_origin(name, unit.get("id"), number)
        if get_local_name(unit) == "trans-unit":
            file = next(unit.iterancestors(f"{prefix}file"), None)
            if file is not None and file is not checked_file:
                _check_languages((file.get("source-language", ""), file.get("target-language", "")), expected_languages, name)
                checked_file = file
            yield _to_pair(unit, prefix, origin)
            continue
        segments = unit.findall(f"{prefix}segment")
        for segment_number, segment in enumerate(segments, start=1):
            yield _to_pair(
                segment, prefix, make_unit_origin(origin, segment.get("id"), segment_number) if len(segments) > 1 else origin
            )


def read_stated_languages(path: Path) -> list[str]:
    """Return the languages of source and target that a file states, or an empty list. Raises DataError if it is not XLIFF."""
    for unit in read_units(path, "xliff", lambda root: _find_unit_tag(root, str(path), ("", "")), ("trans-unit", "unit")):
        for element in unit.iterancestors():
            for keys in (("source-language", "target-language"), ("srcLang", "trgLang")):
                if all(key in element.attrib for key in keys):
                    return [element.attrib[key] for key in keys]
        break
    return []


def _find_unit_tag(root: _Element, name: str, expected_languages: tuple[str, str]) -> str:
    """Return the tag of units in the file's version, which the root names in an attribute or in its namespace."""
    prefix = get_namespace_prefix(root)
    if find_version(root.get("version", ""), prefix.strip("{}"), f"{name}: ").startswith("1."):
        return f"{prefix}trans-unit"
    _check_languages((root.get("srcLang", ""), root.get("trgLang", "")), expected_languages, name)
    return f"{prefix}unit"


def find_version(stated: str, namespace: str, prefix: str = "") -> str:
    """Return the version of a file: the one that its root states, or else that of the namespace.

    prefix: start of the error message

    Raises DataError for a version that cannot be read.
    """
    namespace_version = _NAMESPACE_VERSION.search(namespace)
    version = stated or (namespace_version[0] if namespace_version else "")
    if version not in VERSIONS:
        raise DataError(
            f"{prefix}is XLIFF of version {version[:20]!r}; 1.0 to 1.2 and 2.0 to 2.2 can be read", code="unknown-format"
        )
    return version


def _check_languages(file_languages: tuple[str, str], expected_languages: tuple[str, str], name: str) -> None:
    for side, file_language, expected_language in zip(("source", "target"), file_languages, expected_languages, strict=True):
        if file_language and expected_language and not is_same_language(file_language, expected_language):
            raise DataError(
                f"{name}: its {side} language is {file_language[:40]!r}, but task.{side}_language is {expected_language!r}",
                code="unknown-column",
            )


def _to_pair(element: _Element, prefix: str, origin: str) -> Pair:
    source, target = element.find(f"{prefix}source"), element.find(f"{prefix}target")
    state = "" if target is None else target.get("state") or element.get("state")
    is_finished = target is not None and state not in _UNFINISHED_STATES
    return Pair(_get_text(source, origin), _get_text(target, origin) if is_finished else "", origin)


def _get_text(element: _Element | None, origin: str) -> str:
    return "" if element is None else to_single_line(extract_text(element, origin))
