"""Texts that an output has from an earlier run or from a human, which a new translation of the file keeps.

A file of one language, such as JSON, HTML or DOCX, states no sources. The texts of its translation belong to those of the file
that was translated: by their key in formats with keys, else by their place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from dragoman.documents.document import (
    Document,
    Edit,
    Remarks,
    Unit,
    UnitState,
    UnitTranslation,
    list_all_units,
    write_document,
)
from dragoman.errors import DataError

MAX_RENUMBERED = 5
"""Most numbered tags of a text that are tried in each order, 120 in all."""
_FORMATS_WITH_HIDDEN_CODES = frozenset(("markdown", "rst", "asciidoc"))
_TAG = re.compile(r"<[gx][0-9]+/?>")
_LINE_STARTS = re.compile(rb"\n([ \t>]*)")
_ANY_TAG = re.compile(r"</?[a-z]+[0-9]+/?>")
_ANCHOR = re.compile(rb'^<a id="|\{#[^{}]*\}$')
_ITEM = re.compile(r"(?:^|(?<=[./]))(0|[1-9][0-9]{0,5})(?=[./]|$)")
_DIGITS = re.compile("[0-9]+")
_NAME = re.compile(r"(?<![^\W\d_])[^\W\d_]*+\d[\w.]*+|[A-Z]\w{2,}")
_BLANKS = frozenset((b"", b'""', b"''", b"null", b"Null", b"NULL", b"~"))
"""Values that state no text, so that the source's own one is taken."""
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


def keep_values(
    document: Document, parse: Callable[[bytes], Document], output: Document, original: Document | None = None
) -> Document:
    """Return a document with the values of an output that are no texts, such as numbers, or that its source leaves empty.

    Cells that share a text have one of their own where the output has several.

    original: earlier version of the document; its values are no human's, and what has changed since is the document's

    Raises DataError for an output with cues at other times.
    """
    _check_times(original or document, output)
    document = _divide_cells(document, parse, output)
    sides = [document, output, *([original] if original else [])]
    values = [{_get_key(side, key): edit for key, edit in side.find_values().items()} for side in sides]
    names = values[0].keys() | values[1].keys()
    if not names:
        return document
    for side, places in zip(sides, values, strict=True):
        for unit in list_all_units(side):
            if (name := _get_key(side, unit.key)) in names:
                places[name] = side.make_edits(unit, UnitTranslation(unit.source))[0]
    other_lists = {name for name, *_ in _find_other_lists(*values[:2])}
    edits = {
        name: edit.fill(b" " + content if document.content.endswith(b":", 0, edit.end) else content)
        for name, edit in values[0].items()
        if name in values[1]
        and (content := values[1][name].content) not in (edit.content, *_BLANKS)
        and (original is None or name not in values[2] or content != values[2][name].content == edit.content)
        and not any(name[: match.start()] in other_lists for match in _ITEM.finditer(name))
    }
    try:
        merged = parse(document.assemble(document.content, edits.values())) if edits else document
    except DataError:  # a human has changed more than the value
        return document
    # They are no texts of the source language.
    units = [replace(unit, state="locked") if _get_key(merged, unit.key) in edits else unit for unit in merged.units]
    return replace(merged, boundaries=document.boundaries, units=units)


def _divide_cells(document: Document, parse: Callable[[bytes], Document], output: Document) -> Document:
    """Return a document in which cells that share a text, and that have several in an output, have one of their own."""
    other_units = {unit.id: unit.source for unit in list_all_units(output)}
    texts = {cell: other_units.get(name, "") for name, cells in output.find_cells().items() for cell in cells}
    divided: set[str] = set()
    for cells in document.find_cells().values():
        usual = Counter(texts.get(cell, "") for cell in cells).most_common(1)
        divided.update(cell for cell in cells if texts.get(cell, "") != usual[0][0])
    edits = [*document.divide_cells(divided)] if divided else []
    return replace(parse(document.assemble(document.content, edits)), boundaries=document.boundaries) if edits else document


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
    original_names, names = name_units(original or document), name_units(document)
    by_key = {original_names[pair[0].id]: pair for pair in pairs if pair[0].id in original_names}
    by_source: dict[str, list[tuple[Unit, Unit]]] = {}
    for source_unit, other in pairs:
        by_source.setdefault(source_unit.source, []).append((source_unit, other))
    places: Counter[str] = Counter()
    is_keyed = has_keys(document)
    texts: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    units = _list_in_order(document)
    for unit in units:
        pair = by_key.get(names.get(unit.id, ""))
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
        keys = {_get_key(document, unit.key) for unit in units}
        unused = [unit.key for unit in output.units if _get_key(output, unit.key) not in keys]
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

    A translation belongs to the text with the same source and context, of several to that with the same id, or to the only
    one with the same source. A good one in the document stays if the output has a fuzzy one. What a human wrote beside a
    translation, such as its state and notes, stays, too.

    parse: function that reads the format
    """
    sides: list[dict[tuple[str, ...], list[Unit]]] = [{}, {}]
    for side, units in zip(sides, (document.units, output.units), strict=True):
        for unit in units:
            side.setdefault(_get_place(unit), []).append(unit)
    counts = [Counter(place[1:] for place in side) for side in sides]
    others_by_source = {place[1:]: place for place in sides[1]}
    for place in sides[0].keys() - sides[1].keys():  # with another context
        if counts[0][place[1:]] == counts[1][place[1:]] == 1:
            sides[1][place] = sides[1].pop(others_by_source[place[1:]])
    pairs: dict[str, Unit] = {}
    as_stored: set[str] = set()
    translations: dict[str, UnitTranslation] = {}
    for place, units in sides[0].items():
        others = sides[1].get(place, [])
        by_id = {other.id: other for other in others}
        for number, unit in enumerate(units):
            if not others or unit.state == "locked":
                continue
            pairs[unit.id] = other = by_id.get(unit.id, others[min(number, len(others) - 1)])
            is_worse = (other.state == "fuzzy" and unit.state == "translated") or (
                other.state == "untranslated" and other.target in (unit.source, unit.target)
            )
            if other.target and not is_worse and (other.target, other.state) != (unit.target, unit.state):
                state: UnitState = "fuzzy" if other.state == "fuzzy" else "translated"
                translations[unit.id] = UnitTranslation(other.target, state, language=output.target_language)
                if _lacks_codes(document, unit, translations[unit.id]) and ("target", "") in document.list_remarks(unit.id):
                    del translations[unit.id]
                    as_stored.add(unit.id)
    unused = {place: units for place, units in sides[1].items() if units[0].target and place not in sides[0]}
    sources = [units[0].source for units in unused.values()]
    merged = document
    if translations:
        written = write_document(document, translations, output.target_language)
        merged = replace(parse(written), boundaries=document.boundaries)
    left_out = {name: remark for units in unused.values() for name, remark in output.list_remarks(units[0].id).items()}
    remarks = {name: remark for name, remark in left_out.items() if name[0] == "obsolete"} | dict(output.list_remarks(""))
    return _add_remarks(merged, parse, output, pairs, as_stored, remarks), sources


def _lacks_codes(document: Document, unit: Unit, translation: UnitTranslation) -> bool:
    """Return whether a translation has other codes than its source, so that it cannot be written."""
    texts = unit.source, translation.text
    if unit.markup == "xml" and len({frozenset(_ANY_TAG.findall(text)) for text in texts}) > 1:
        return True
    try:
        document.make_edits(unit, translation)
    except DataError as error:
        return error.code == "invalid-data"
    return False


def _add_remarks(
    document: Document,
    parse: Callable[[bytes], Document],
    output: Document,
    pairs: Mapping[str, Unit],
    as_stored: Collection[str],
    file_remarks: Remarks,
) -> Document:
    """Return a document with what a human wrote beside the translations of an output.

    pairs: units of the output by the ids of units. as_stored: ids of those whose translation is copied
    file_remarks: remarks of the output that belong to no unit
    """
    edits: dict[tuple[int, int, str], Edit] = {}

    def add(places: Remarks, remarks: Remarks, others: Sequence[str] = ()) -> None:
        for name, remark in remarks.items():
            place = places.get(name, places.get((name[0], "")))
            if place is not None and place.text.strip() != remark.text.strip() and name[0].split()[0] not in others:
                edit = place.write(remark.text)
                edits[edit.start, edit.end, remark.text] = edit

    try:
        add(document.list_remarks(""), file_remarks)
        for unit in document.units:
            if (other := pairs.get(unit.id)) is not None:
                is_kept = unit.target == other.target != "" and other.state != "untranslated"
                others = ["state"] if unit.id in as_stored else ["target"] if is_kept else ["state", "target"]
                add(document.list_remarks(unit.id), output.list_remarks(other.id), others)
        merged = parse(document.assemble(document.content, edits.values())) if edits else document
    except DataError as error:
        if error.code != "invalid-encoding" or document.convert is None:
            raise
        return _add_remarks(document.convert(), parse, output, pairs, as_stored, file_remarks)
    return replace(merged, boundaries=document.boundaries)


def _get_place(unit: Unit) -> tuple[str, ...]:
    return unit.context, unit.source, unit.plural_form, unit.target_language


def pair_units(original: Document, output: Document) -> list[tuple[Unit, Unit]]:
    """Return each unit of an original with the unit that a translation of it has under the same key or in the same place.

    Units without language are among them. Raises DataError if neither keys nor places belong together.
    """
    units, others = _list_in_order(original), _list_in_order(output)
    if has_keys(original) and has_keys(output):
        names, other_names = name_units(original), name_units(output)
        for name, num_items, num_others in _find_other_lists(names.values(), other_names.values()):
            raise DataError(
                f"has {num_others:,} items in the list {name!r}, and the file that it is a translation of has "
                f"{num_items:,}, so nobody can tell which is which",
                code="length-mismatch",
            )
        by_name = {other_names[unit.id]: unit for unit in others if unit.id in other_names}
        pairs = [(unit, by_name[name]) for unit in units if (name := names.get(unit.id, "")) in by_name]
        _check_order([(unit, other) for unit, other in pairs if _ITEM.search(unit.key)])
        return pairs
    cells, other_cells = original.find_cells(), output.find_cells()
    if any(cells.values()) and any(other_cells.values()):
        return _pair_cells(units, others, cells, other_cells)
    if len(units) != len(others):
        by_time = {output.times[other.id]: other for other in others if other.id in output.times}
        times = {unit.id: original.times[unit.id] for unit in units if unit.id in original.times}
        if len(by_time) == len(others) and len(set(times.values())) == len(units) and by_time.keys() <= set(times.values()):
            return [(unit, by_time[times[unit.id]]) for unit in units if times[unit.id] in by_time]
        raise DataError(
            f"it has {len(others):,} texts, and the file that it is a translation of has {len(units):,}, so nobody can "
            "tell which is which",
            code="length-mismatch",
        )
    pairs = list(zip(units, others, strict=True))
    if not original.sentence_groups:  # whose numbers may go into the next text
        _check_order(pairs)
    return pairs


def _pair_cells(
    units: Sequence[Unit], others: Sequence[Unit], cells: Mapping[str, Sequence[str]], other_cells: Mapping[str, Sequence[str]]
) -> list[tuple[Unit, Unit]]:
    """Return the units of a table with those of the same cells, and its titles and other texts with those in the same place."""
    by_cell = {cell: other for other in others for cell in other_cells.get(other.id, ())}
    named = [(cell, unit) for unit in units for cell in cells.get(unit.id, ())]
    pairs = {unit.id: by_cell.get(cell) for cell, unit in reversed(named)}  # of several cells, the first one counts
    is_same = by_cell.keys() == {cell for cell, _ in named}
    groups: list[dict[str, list[Unit]]] = [{}, {}]  # of texts outside of cells, by the parts of the file
    for side, own_units, own_cells in zip(groups, (units, others), (cells, other_cells), strict=True):
        for unit in own_units:
            if not own_cells.get(unit.id):
                side.setdefault(_DIGITS.sub("", unit.id), []).append(unit)
    for name, own in groups[0].items():
        same = groups[1].get(name, [])
        if len(same) == len(own):
            pairs |= {unit.id: other for unit, other in zip(own, same, strict=True)}
        elif own[0].id not in cells:  # texts that no cell shows are not stored again
            is_same = is_same and not same
    if not is_same:
        raise DataError(
            "it has texts in other cells than the file that it is a translation of, so nobody can tell which is which",
            code="length-mismatch",
        )
    in_cells = [(unit, other) for unit in units if (other := pairs.get(unit.id)) is not None]
    _check_order(in_cells, has_ids=False)
    return in_cells


def _check_times(document: Document, output: Document) -> None:
    """Raise DataError if cues in the same places are shown at different times, so that they are others."""
    sides = [[side.times[unit.id] for unit in _list_in_order(side)] for side in (document, output) if side.times]
    if len(sides) == 2 and len(sides[0]) == len(sides[1]):
        for (begin, end), (other_begin, other_end) in zip(*sides, strict=True):
            if begin != other_begin and (end <= other_begin or other_end <= begin):
                raise DataError(
                    f"it has a subtitle at {other_begin:.3f} s where the file that it is a translation of has one at "
                    f"{begin:.3f} s, so nobody can tell which is which",
                    code="length-mismatch",
                )


def _list_in_order(document: Document) -> list[Unit]:
    """Return all units in an order that does not depend on which of them hold language."""
    return sorted(list_all_units(document), key=lambda unit: _DIGITS.sub(lambda match: match[0].zfill(9), unit.id))


def _check_order(pairs: Sequence[tuple[Unit, Unit]], *, has_ids: bool = True) -> None:
    """Raise DataError if texts are in other parts of a file, or numbers and names of single texts have changed places."""
    places: list[dict[str, int]] = [{}, {}]
    for number, pair in enumerate(pairs):
        for unit, side in zip(pair, places, strict=True):
            for name in set(_NAME.findall(_ANY_TAG.sub(" ", unit.source))):
                side[name] = -1 if name in side else number
    moves: dict[int, set[int]] = {}
    for name in places[0].keys() & places[1].keys():
        if min(number := places[0][name], goal := places[1][name]) >= 0:
            moves.setdefault(number, set()).add(goal)
    moved = {number: goals for number, goals in moves.items() if number not in goals}
    for number, (unit, other) in enumerate(pairs):
        is_elsewhere = has_ids and _DIGITS.sub("", unit.id) != _DIGITS.sub("", other.id)
        if is_elsewhere or moved.get(number, set()) & moved.keys():
            raise DataError(
                f"its texts have other places than those of the file that it is a translation of, such as {unit.source[:40]!r}",
                code="length-mismatch",
            )


def _find_other_lists(keys: Iterable[str], other_keys: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each list with its numbers of items if they differ, because the key of an item is its place."""
    sides: list[dict[str, set[int]]] = [{}, {}]
    for side, own_keys in zip(sides, (keys, other_keys), strict=True):
        for key in own_keys:
            for match in _ITEM.finditer(key):
                side.setdefault(key[: match.start()], set()).add(int(match[1]))
    for name in sides[0].keys() & sides[1].keys():
        numbers = [side[name] for side in sides]
        if len(numbers[0]) != len(numbers[1]) and all(sorted(items) == list(range(len(items))) for items in numbers):
            yield name, len(numbers[0]), len(numbers[1])


def has_keys(document: Document) -> bool:
    """Return whether each text has a key that names it."""
    return not document.has_numbered_keys and all(unit.key for unit in document.units)


def name_units(document: Document) -> dict[str, str]:
    """Return the key of each unit by its id, with its number if several units have the key; empty if keys are places."""
    if document.has_numbered_keys:
        return {}
    names = {unit.id: _get_key(document, unit.key) for unit in _list_in_order(document) if unit.key}
    counts, numbers = Counter(names.values()), Counter[str]()
    for name, key in names.items():
        if counts[key] > 1:
            numbers[key] += 1
            names[name] = f"{key}\0{numbers[key]}/{counts[key]}"
    return names


def _get_key(document: Document, key: str) -> str:
    """Return a key without the language of the document, with which the keys of Rails begin."""
    language = document.source_language
    return key.removeprefix(f"{language}.") if language else key


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
