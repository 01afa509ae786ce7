"""TMX, in which translation memories are exchanged: any number of languages in each unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, one_line, unit_origin
from dragoman.formats.text import name_of, shown
from dragoman.formats.xml import escape, local_name, namespace, read_units, same_language, text_within
from dragoman.version import __version__

if TYPE_CHECKING:
    from lxml.etree import _Element

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: Path | None, *, source_language: str, target_language: str) -> Iterator[Pair]:
    """The first variant in each of the two languages, unit by unit; `en` takes `en-GB` where a unit has nothing nearer.

    A unit that lacks one gives an empty text. Raises DataError where the file is no TMX or never has one of the languages.
    """
    name = name_of(path)
    seen: dict[str, None] = {}
    found = [False, False]
    for number, unit in enumerate(read_units(path, "tmx", lambda root: f"{namespace(root)}tu", ("tu",)), start=1):
        variants = [child for child in unit if isinstance(child.tag, str) and local_name(child) == "tuv"]
        languages = [variant.get(_XML_LANG, variant.get("lang", "")) for variant in variants]
        if len(seen) < 100:
            seen.update(dict.fromkeys(language[:50] for language in languages if language))
        if not (source_language and target_language):
            raise DataError(f"{name}: holds {shown([*seen])}; say which to take in task.source_language and target_language")
        one, other = _choose(languages, (source_language, target_language))
        found = [found[0] or one is not None, found[1] or other is not None]
        origin = unit_origin(name, unit.get("tuid"), number)
        source, target = ("" if place is None else _segment(variants[place], origin) for place in (one, other))
        yield Pair(source, target, origin)
    for language, was_found in zip((source_language, target_language), found, strict=True):
        if seen and not was_found:
            raise DataError(f"{name}: no unit has the language {language!r}; it holds {shown([*seen])}")


def _choose(languages: list[str], wanted: tuple[str, str]) -> tuple[int | None, int | None]:
    """The places of source and target: first what is written as wanted, then what has the same primary subtag."""
    places: list[int | None] = [None, None]
    for alike in (_same_code, same_language):
        for side in (0, 1):
            if places[side] is None:
                free = (place for place in range(len(languages)) if place not in places)
                places[side] = next((place for place in free if alike(languages[place], wanted[side])), None)
    return places[0], places[1]


def _same_code(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _segment(variant: _Element, origin: str) -> str:
    segment = variant.find(f"{namespace(variant)}seg")
    return "" if segment is None else one_line(text_within(segment, origin))


def tmx_of(pairs: Iterable[Pair], source_language: str, target_language: str) -> Iterator[str]:
    """A TMX 1.4 file, piece by piece."""
    one, other = escape(source_language, "the source language"), escape(target_language, "the target language")
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="dragoman" creationtoolversion="{__version__}" segtype="sentence" o-tmf="dragoman" '
        f'adminlang="en" srclang="{one}" datatype="plaintext"/>\n<body>\n'
    )
    for number, pair in enumerate(pairs, start=1):
        source, target = escape(pair.source, pair.origin), escape(pair.target, pair.origin)
        yield (
            f'<tu tuid="{number}"><tuv xml:lang="{one}"><seg>{source}</seg></tuv>'
            f'<tuv xml:lang="{other}"><seg>{target}</seg></tuv></tu>\n'
        )
    yield "</body>\n</tmx>\n"
