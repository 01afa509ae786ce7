"""Texts that an output has from an earlier run or from a human, which a new translation of the file keeps.

A file of one language, such as JSON, HTML or DOCX, states no sources. The texts of its translation belong to those of the file
that was translated: by their key in formats with keys, else by their place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from dragoman.documents.document import Document, Edit, Unit, UnitState, UnitTranslation, list_all_units, write_document
from dragoman.errors import DataError

MAX_RENUMBERED = 5
"""Most numbered tags of a text that are tried in each order, 120 in all."""
_FORMATS_WITH_HIDDEN_CODES = frozenset(("markdown", "rst", "asciidoc"))
_TAG = re.compile(r"<[gx][0-9]+/?>")
_LINE_STARTS = re.compile(rb"\n([ \t>]*)")
_ANY_TAG = re.compile(r"</?[a-z]+[0-9]+/?>")
_ANCHOR = re.compile(rb'^<a id="|\{#[^{}]*\}$')
_ITEM = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.|$)")
_NUMBERED_TAG = re.compile(r"(?<=<g)[0-9]+(?=>)|(?<=</g)[0-9]+(?=>)|(?<=<x)[0-9]+(?=/>)")


@dataclass(frozen=True)
class EarlierTexts:
    """Texts of an earlier output.

    Attributes:
        texts: translation of a unit, by the id of the unit
        unused: keys, or sources, of the texts of the output that have no place in the new file
        contents: what the output has for texts with codes that the texts do not show, such as targets of links
    """

    texts: Mapping[str, str]
    unused: Sequence[str] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def keep_codes(self, document: Document) -> Document:
        """Return a document that writes these contents, unless their lines begin otherwise or the own one gets an anchor."""

        def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
            edits = document.make_edits(unit, translation)
            content = self.contents.get(unit.id, b"")
            if not content or translation.text != self.texts[unit.id] or len(edits) != 1:
                return edits
            own = edits[0].content
            begins_alike = {*_LINE_STARTS.findall(content)} <= {b"", *_LINE_STARTS.findall(own)}
            has_anchor = _ANCHOR.search(own) is not None  # of a heading, in front of its text or behind it
            return [replace(edits[0], content=content)] if begins_alike and not has_anchor else edits

        return replace(document, make_edits=make_edits) if self.contents else document


def match_texts(document: Document, output: Document, original: Document | None = None) -> EarlierTexts:
    """Return the texts of an output that are translations of units of a document of one language.

    A text of the output counts if its source in the original is the text that the document has now.

    document: file to translate
    output: translation of the original
    original: earlier version of the file; None if it is the document itself

    Raises DataError if the original has other places than the output, so that nobody can tell which text is which.
    """
    hides_codes = document.format in _FORMATS_WITH_HIDDEN_CODES and _is_utf8(document.content) and _is_utf8(output.content)
    pairs = pair_units(original or document, output)
    by_key = {get_key(original or document, pair[0]): pair for pair in pairs if pair[0].key}
    by_source: dict[str, list[tuple[Unit, Unit]]] = {}
    for source_unit, other in pairs:
        by_source.setdefault(source_unit.source, []).append((source_unit, other))
    places: Counter[str] = Counter()
    is_keyed = has_keys(document)
    texts: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    units = list_all_units(document)
    for unit in units:
        pair = by_key.get(get_key(document, unit))
        if (pair is None or pair[0].source != unit.source) and (original is not None or not is_keyed):
            # Of equal sources, each has the translation of its own place.
            others = by_source.get(unit.source, [])
            pair = others[min(places[unit.source], len(others) - 1)] if others else None
            places[unit.source] += 1
        if pair is not None and pair[0].source == unit.source:
            texts[unit.id] = _read_text(document, unit, output, pair[1])
            if not (hides_codes and _TAG.search(unit.source)):
                continue
            if original is None or _write(original, pair[0], unit.source) == _write(document, unit, unit.source):
                edits = output.make_edits(pair[1], UnitTranslation(pair[1].source))
                contents[unit.id] = b"".join(output.content[edit.start : edit.end] for edit in edits)
    if is_keyed:
        keys = {get_key(document, unit) for unit in units}
        unused = [unit.key for unit in output.units if get_key(output, unit) not in keys]
    else:
        sources = {unit.source for unit in units}
        unused = [unit.source for unit, _ in pairs if unit.source not in sources]
    return EarlierTexts(texts, unused, contents)


def _is_utf8(content: bytes) -> bool:
    try:
        return bool(content.decode())
    except UnicodeDecodeError:
        return False


def _write(document: Document, unit: Unit, text: str) -> bytes:
    return b"".join(edit.content for edit in document.make_edits(unit, UnitTranslation(text)))


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

    Units without language are among them. Raises DataError if neither keys nor places belong together.
    """
    if has_keys(original) and has_keys(output):
        _check_lists(original, output)
        others = _index_by_key(output)
        return [(unit, others[key]) for key, unit in _index_by_key(original).items() if key in others]
    units, all_others = list_all_units(original), list_all_units(output)
    if len(units) != len(all_others):
        raise DataError(
            f"it has {len(all_others):,} texts, and the file that it is a translation of has {len(units):,}, so nobody can "
            "tell which is which",
            code="length-mismatch",
        )
    return list(zip(units, all_others, strict=True))


def _check_lists(original: Document, output: Document) -> None:
    """Raise DataError if a list has other items than in the output, because the key of an item is its place."""
    sides = [_find_lists(document) for document in (original, output)]
    for key in sides[0].keys() & sides[1].keys():
        numbers, others = (side[key] for side in sides)
        if len(numbers) != len(others) and all(sorted(side) == list(range(len(side))) for side in (numbers, others)):
            raise DataError(
                f"has {len(others):,} items in the list {key!r}, and the file that it is a translation of has "
                f"{len(numbers):,}, so nobody can tell which is which",
                code="length-mismatch",
            )


def _find_lists(document: Document) -> dict[str, set[int]]:
    """Return the numbers of the items of each list, by the key of the list."""
    lists: dict[str, set[int]] = {}
    for unit in list_all_units(document):
        key = get_key(document, unit)
        for match in _ITEM.finditer(key):
            lists.setdefault(key[: match.start()], set()).add(int(match[1]))
    return lists


def has_keys(document: Document) -> bool:
    """Return whether each text has a key that names it."""
    return all(unit.key for unit in document.units)


def _index_by_key(document: Document) -> dict[str, Unit]:
    """Return the units by their keys. A key that several units have is left out, since it does not tell them apart."""
    units = list_all_units(document)
    counts = Counter(unit.key for unit in units)
    return {get_key(document, unit): unit for unit in units if counts[unit.key] == 1}


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
    written, tags = _write(output, other, text), sorted(_ANY_TAG.findall(unit.source))
    for order in permutations(numbers):
        renumbered = _renumber(text, dict(zip(numbers, order, strict=True)))
        if _write(document, unit, renumbered) == written:
            return renumbered
        if sorted(_ANY_TAG.findall(renumbered)) == tags:  # with other codes, such as the target of a link
            text = text if sorted(_ANY_TAG.findall(text)) == tags else renumbered
    return text


def _renumber(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other numbers in its tags."""
    return _NUMBERED_TAG.sub(lambda match: names[match[0]], text)
