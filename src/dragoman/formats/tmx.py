"""TMX files, the exchange format of translation memories, with any number of languages in each unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, make_unit_origin, to_single_line
from dragoman.formats.text import describe_path, quote_names
from dragoman.formats.xml import escape_xml, extract_text, get_local_name, get_namespace_prefix, read_units
from dragoman.languages import is_same_language
from dragoman.version import __version__

if TYPE_CHECKING:
    from lxml.etree import _Element

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: Path | None, *, source_language: str, target_language: str) -> Iterator[Pair]:
    """Yield the first variant in each of the two languages, unit by unit. The code `en` also matches `en-GB`.

    A missing variant gives an empty text. Raises DataError if the file is not TMX, or if no unit has one of the languages.
    """
    name = describe_path(path)
    seen_languages: dict[str, None] = {}
    has_language = [False, False]
    for number, unit in enumerate(_read_tmx_units(path), start=1):
        variants, languages = _list_variants(unit)
        if len(seen_languages) < 100:
            seen_languages.update(dict.fromkeys(language[:50] for language in languages if language))
        if not (source_language and target_language):
            raise DataError(
                f"{name}: holds {quote_names([*seen_languages])}; choose two in task.source_language and task.target_language",
                code="unknown-column",
            )
        source_index, target_index = choose_variants(languages, (source_language, target_language))
        has_language = [has_language[0] or source_index is not None, has_language[1] or target_index is not None]
        origin = make_unit_origin(name, unit.get("tuid"), number)
        source, target = (
            "" if index is None else _get_segment_text(variants[index], origin) for index in (source_index, target_index)
        )
        yield Pair(source, target, origin)
    for language, is_present in zip((source_language, target_language), has_language, strict=True):
        if seen_languages and not is_present:
            raise DataError(
                f"{name}: no unit has the language {language!r}; it holds {quote_names([*seen_languages])}",
                code="unknown-column",
            )


def read_first_languages(path: Path) -> list[str]:
    """Return the languages of the first unit of a file. Raises DataError if the file is not TMX."""
    return next((_list_variants(unit)[1] for unit in _read_tmx_units(path)), [])


def _read_tmx_units(path: Path | None) -> Iterator[_Element]:
    return read_units(path, "tmx", lambda root: f"{get_namespace_prefix(root)}tu", ("tu",))


def _list_variants(unit: _Element) -> tuple[list[_Element], list[str]]:
    """Return the variants of a unit, and their languages."""
    variants = [child for child in unit if isinstance(child.tag, str) and get_local_name(child) == "tuv"]
    return variants, [variant.get(_XML_LANG, variant.get("lang", "")) for variant in variants]


def choose_variants(languages: list[str], expected_languages: tuple[str, str]) -> tuple[int | None, int | None]:
    """Return the indices of source and target: the first equal codes, or else the first of the same language."""
    indices: list[int | None] = [None, None]
    for is_match in (_is_same_code, is_same_language):
        for side in (0, 1):
            if indices[side] is None:
                free_indices = (index for index in range(len(languages)) if index not in indices)
                indices[side] = next(
                    (index for index in free_indices if is_match(languages[index], expected_languages[side])), None
                )
    return indices[0], indices[1]


def _is_same_code(first_code: str, second_code: str) -> bool:
    return first_code.lower().replace("_", "-") == second_code.lower().replace("_", "-")


def _get_segment_text(variant: _Element, origin: str) -> str:
    segment = variant.find(f"{get_namespace_prefix(variant)}seg")
    return "" if segment is None else to_single_line(extract_text(segment, origin))


def format_tmx(pairs: Iterable[Pair], source_language: str, target_language: str) -> Iterator[str]:
    """Yield a TMX 1.4 file in pieces."""
    source_code, target_code = (
        escape_xml(source_language, "the source language"),
        escape_xml(target_language, "the target language"),
    )
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="dragoman" creationtoolversion="{__version__}" segtype="sentence" o-tmf="dragoman" '
        f'adminlang="en" srclang="{source_code}" datatype="plaintext"/>\n<body>\n'
    )
    for number, pair in enumerate(pairs, start=1):
        source, target = escape_xml(pair.source, pair.origin), escape_xml(pair.target, pair.origin)
        yield (
            f'<tu tuid="{number}"><tuv xml:lang="{source_code}"><seg>{source}</seg></tuv>'
            f'<tuv xml:lang="{target_code}"><seg>{target}</seg></tuv></tu>\n'
        )
    yield "</body>\n</tmx>\n"
