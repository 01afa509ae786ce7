"""Texts that an output has from an earlier run or from a human, which a new translation of the file keeps.

A file of one language, such as JSON, HTML or DOCX, states no sources. The texts of its translation belong to those of the file
that was translated: by their key in formats with keys, else by their place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from dragoman.documents.document import Document, Unit, UnitState, UnitTranslation, list_all_units, write_document
from dragoman.errors import DataError

MAX_RENUMBERED = 5
"""Most numbered tags of a text that are tried in each order, 120 in all."""
_NUMBERED_TAG = re.compile(r"(?<=<g)[0-9]+(?=>)|(?<=</g)[0-9]+(?=>)|(?<=<x)[0-9]+(?=/>)")


@dataclass(frozen=True)
class EarlierTexts:
    """Texts of an earlier output.

    Attributes:
        texts: translation of a unit, by the id of the unit
        unused: keys, or sources, of the texts of the output that have no place in the new file
    """

    texts: Mapping[str, str]
    unused: Sequence[str] = ()


def match_texts(document: Document, output: Document, original: Document | None = None) -> EarlierTexts:
    """Return the texts of an output that are translations of units of a document of one language.

    A text of the output counts if its source in the original is the text that the document has now.

    document: file to translate
    output: translation of the original
    original: earlier version of the file; None if it is the document itself

    Raises DataError if the original has other places than the output, so that nobody can tell which text is which.
    """
    pairs = pair_units(original or document, output)
    by_key = {get_key(original or document, unit): (unit.source, other) for unit, other in pairs if unit.key}
    by_source: dict[str, list[Unit]] = {}
    for unit, other in pairs:
        by_source.setdefault(unit.source, []).append(other)
    places: Counter[str] = Counter()
    is_keyed = has_keys(document)
    texts: dict[str, str] = {}
    for unit in document.units:
        source, earlier = by_key.get(get_key(document, unit), ("", None))
        if source != unit.source and unit.source in by_source and (original is not None or not is_keyed):
            # Of equal sources, each has the translation of its own place.
            others, source = by_source[unit.source], unit.source
            earlier = others[min(places[source], len(others) - 1)]
            places[source] += 1
        if earlier is not None and source == unit.source:
            texts[unit.id] = _read_text(document, unit, output, earlier)
    if is_keyed:
        keys = {get_key(document, unit) for unit in document.units}
        return EarlierTexts(texts, [unit.key for unit in output.units if get_key(output, unit) not in keys])
    sources = {unit.source for unit in document.units}
    return EarlierTexts(texts, [unit.source for unit, _ in pairs if unit.source not in sources])


def merge_translations(
    document: Document, parse: Callable[[bytes], Document], output: Document
) -> tuple[Document, Sequence[str]]:
    """Return a bilingual document with the translations that an output has, and the sources of those that have no place in it.

    A translation belongs to the text with the same source and context. A good one in the document stays.

    parse: function that reads the format
    """
    earlier: dict[tuple[str, ...], list[Unit]] = {}
    for other in output.units:
        earlier.setdefault(_get_place(other), []).append(other)
    places: Counter[tuple[str, ...]] = Counter()
    translations: dict[str, UnitTranslation] = {}
    for unit in document.units:
        place = _get_place(unit)
        others = earlier.get(place, [])
        if others and unit.state not in ("translated", "locked"):
            other = others[min(places[place], len(others) - 1)]
            if other.target and (other.target, other.state) != (unit.target, unit.state):
                state: UnitState = "fuzzy" if other.state == "fuzzy" else "translated"
                translations[unit.id] = UnitTranslation(other.target, state)
        places[place] += 1
    unused = [units[0].source for place, units in earlier.items() if units[0].target and place not in places]
    if not translations:
        return document, unused
    written = write_document(document, translations, output.target_language)
    merged = replace(parse(written), boundaries=document.boundaries)
    return merged, unused


def _get_place(unit: Unit) -> tuple[str, ...]:
    return unit.context, unit.source, unit.plural_form, unit.target_language


def pair_units(original: Document, output: Document) -> list[tuple[Unit, Unit]]:
    """Return each unit of an original with the unit that a translation of it has under the same key or in the same place.

    Raises DataError if neither keys nor places belong together.
    """
    if has_keys(original) and has_keys(output):
        others = _index_by_key(output)
        return [(unit, others[key]) for key, unit in _index_by_key(original).items() if key in others]
    units, all_others = list_all_units(original), list_all_units(output)
    if len(units) != len(all_others):
        raise DataError(
            f"it has {len(all_others):,} texts, and the file that it is a translation of has {len(units):,}, so nobody can "
            "tell which is which",
            code="length-mismatch",
        )
    own = {unit.id for unit in original.units}
    return [(unit, other) for unit, other in zip(units, all_others, strict=True) if unit.id in own]


def has_keys(document: Document) -> bool:
    """Return whether each text has a key that names it."""
    return all(unit.key for unit in document.units)


def _index_by_key(document: Document) -> dict[str, Unit]:
    """Return the units by their keys. A key that several units have is left out, since it does not tell them apart."""
    counts = Counter(unit.key for unit in document.units)
    return {get_key(document, unit): unit for unit in document.units if counts[unit.key] == 1}


def get_key(document: Document, unit: Unit) -> str:
    """Return the key of a unit without the language of the document, with which the keys of Rails begin."""
    language = document.source_language
    return unit.key.removeprefix(f"{language}.") if language else unit.key


def _read_text(document: Document, unit: Unit, output: Document, other: Unit) -> str:
    """Return a text of an output as the translation of a unit of a document.

    Numbered tags count the formats of a text in its own order. The output may have them in another order than the document, so
    they get the numbers with which both write the same bytes.
    """
    text = other.lines or other.source
    numbers = sorted(set(_NUMBERED_TAG.findall(text)))
    if unit.markup == "html" or not 1 < len(numbers) <= MAX_RENUMBERED:
        return text
    written = [edit.content for edit in output.make_edits(other, UnitTranslation(text))]
    for order in permutations(numbers):
        renumbered = _renumber(text, dict(zip(numbers, order, strict=True)))
        if [edit.content for edit in document.make_edits(unit, UnitTranslation(renumbered))] == written:
            return renumbered
    return text


def _renumber(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other numbers in its tags."""
    return _NUMBERED_TAG.sub(lambda match: names[match[0]], text)
