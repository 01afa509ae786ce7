"""Readers of glossary files: CSV and TSV with or without a header, and TBX, version 2 (martif) and version 3."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DataError
from dragoman.formats.pair import make_unit_origin, to_single_line
from dragoman.formats.text import quote_names, read_lines, to_data_error
from dragoman.formats.xml import extract_text, get_local_name, get_namespace_prefix, read_units
from dragoman.languages import is_same_language
from dragoman.text.glossary import Glossary, GlossaryEntry

if TYPE_CHECKING:
    from lxml.etree import _Element

MAX_FILE_BYTES = 2**26
COLUMNS = ("source", "target", "case_sensitive", "do_not_translate", "comment", "source_lang", "target_lang")
"""Names of columns in a header. Without one, the columns are source and target, then a comment, or the two languages."""
FORM_SEPARATOR = "|"
"""Mark between the forms of a target term."""
_YES, _NO = frozenset(("yes", "true", "1")), frozenset(("no", "false", "0", ""))
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_HEAD_BYTES = 2**16


def read_glossary(path: Path, source_language: str = "", target_language: str = "") -> Glossary:
    """Return the glossary of a file: CSV, TSV or TBX by its ending.

    source_language, target_language: codes of the pair; TBX needs them

    Raises DataError, with the file and the line, for a file that cannot be read, is too large or has no term. It also refuses
    another pair of languages, and two entries that contradict each other.
    """
    match path.suffix.lower():
        case ".csv" | ".tsv" | ".txt" | ".tab" as suffix:
            _check_size(path)
            delimiter = "," if suffix == ".csv" else "\t"
            entries = list(parse_table(read_lines(path), delimiter, str(path), source_language, target_language))
        case ".tbx" | ".xml":
            _check_size(path)
            entries = list(_read_tbx(path, source_language, target_language))
        case suffix:
            raise DataError(f"{path}: a glossary is a .csv, .tsv or .tbx file, not {suffix!r}", code="unknown-format")
    if not entries:
        raise DataError(f"{path}: the glossary has no terms; add one, or leave it out", code="empty-data")
    return Glossary(entries, source_language, target_language)


def resolve_glossary(glossary: Glossary | str | Path | None, source_language: str, target_language: str) -> Glossary | None:
    """Return the glossary, or that of a file, for a pair of languages.

    Raises DataError for a glossary of another pair, and see `read_glossary`.
    """
    if isinstance(glossary, str | Path):
        return read_glossary(Path(glossary), source_language, target_language)
    if glossary is not None:
        glossary.check_pair(source_language, target_language)
    return glossary


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise to_data_error(path, error) from None
    if size > MAX_FILE_BYTES:
        raise DataError(f"{path}: has more than {MAX_FILE_BYTES >> 20} MiB; divide the glossary", code="input-too-long")


def parse_table(
    lines: Iterable[str], delimiter: str, name: str, source_language: str = "", target_language: str = ""
) -> Iterator[GlossaryEntry]:
    """Yield the entries of a table. Empty lines are skipped. Forms of a target term have `|` between them.

    delimiter: "," reads quotation marks as CSV does; a tab does not
    name: name of the table in messages

    Raises DataError, with the line, for missing columns, wrong values, and other languages than the given ones.
    """
    # A line break inside quotation marks becomes a part of the term, which is then refused.
    reader = (
        csv.reader((f"{line}\n" for line in lines), strict=True)
        if delimiter == ","
        else map(methodcaller("split", "\t"), lines)
    )
    columns: Sequence[str] | None = None
    number = 0
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{name}, line {number + 1}: is not CSV: {error}", code="invalid-format") from None
        if row is None:
            return
        number += 1
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        origin = f"{name}, line {number}"
        if columns is None and (header := _read_header(cells, origin)):
            columns = header
            continue
        columns = columns or ()
        yield _build_entry(cells, columns or _guess_columns(cells, origin), origin, (source_language, target_language))


def _read_header(cells: Sequence[str], origin: str) -> Sequence[str]:
    """Return the columns that a header names, or none if the line is an entry. Raises DataError for a wrong header."""
    names = [cell.casefold().removeprefix("\ufeff") for cell in cells]
    unknown = [name for name in names if name not in COLUMNS]
    if not {"source", "target"} <= set(names):
        if unknown or not {"source", "target"} & set(names):
            return ()
        missing = "target" if "source" in names else "source"
        raise DataError(
            f"{origin}: the header has no column {missing!r}; it needs 'source' and 'target'", code="unknown-column"
        )
    if unknown or len(set(names)) < len(names):
        raise DataError(
            f"{origin}: the header has the columns {quote_names(names)}; allowed, once each, are {', '.join(COLUMNS)}",
            code="unknown-column",
        )
    return names


def _guess_columns(cells: Sequence[str], origin: str) -> Sequence[str]:
    """Return the columns of a line without a header: two, a comment behind them, or two languages as DeepL writes them."""
    match len(cells):
        case 2 | 3:
            return ("source", "target", "comment")
        case 4:
            return ("source", "target", "source_lang", "target_lang")
    raise DataError(
        f"{origin}: has {len(cells)} columns; without a header, there are 2 to 4: source, target, and a comment or 2 languages",
        code="unknown-column",
    )


def _build_entry(cells: Sequence[str], columns: Sequence[str], origin: str, languages: tuple[str, str]) -> GlossaryEntry:
    if len(cells) > len(columns) or len(cells) < 2:
        raise DataError(f"{origin}: has {len(cells)} columns, and the header has {len(columns)}", code="unknown-column")
    values = dict(zip(columns, cells, strict=False))
    for column, language in zip(("source_lang", "target_lang"), languages, strict=True):
        stated = values.get(column, "")
        if stated and language and not is_same_language(stated, language):
            raise DataError(
                f"{origin}: the term is of the language {stated[:20]!r}, and the translation needs {language!r}; "
                "choose another glossary",
                code="unsupported-language",
            )
    target = values.get("target", "")
    return GlossaryEntry(
        values.get("source", ""),
        split_forms(target) if target else (),
        _read_flag(values, "case_sensitive", origin),
        _read_flag(values, "do_not_translate", origin),
        origin,
    )


def split_forms(target: str) -> tuple[str, ...]:
    """Return the forms of a target term, which `|` divides."""
    return tuple(dict.fromkeys(form.strip() for form in target.split(FORM_SEPARATOR)))


def _read_flag(values: dict[str, str], name: str, origin: str) -> bool:
    value = values.get(name, "").casefold()
    if value not in _YES | _NO:
        raise DataError(f"{origin}: {name} is {value[:20]!r}; write yes or no", code="invalid-glossary")
    return value in _YES


def format_tsv_entries(entries: Iterable[GlossaryEntry]) -> str:
    """Return source and target of each entry, line by line; a term that is not translated is its own target."""
    return "\n".join(f"{entry.source}\t{FORM_SEPARATOR.join(entry.targets) or entry.source}" for entry in entries)


def _read_tbx(path: Path, source_language: str, target_language: str) -> Iterator[GlossaryEntry]:
    """Yield an entry for each source term of a TBX file. A term of several concepts has the target terms of all of them."""
    if not (source_language and target_language):
        raise DataError(
            f"{path}: holds terms of several languages, and the pair is not known; name the languages", code="unknown-column"
        )
    targets_by_source: dict[str, dict[str, bool]] = {}
    origins: dict[str, str] = {}
    seen_languages: dict[str, None] = {}
    root_name, unit_name, section_names = _find_version(path)
    units = read_units(path, root_name, lambda root: f"{get_namespace_prefix(root)}{unit_name}", (unit_name,))
    for number, unit in enumerate(units, start=1):
        origin = make_unit_origin(str(path), unit.get("id"), number)
        terms: tuple[dict[str, bool | None], dict[str, bool | None]] = ({}, {})
        for section in _find_all(unit, section_names):
            language = section.get(_XML_LANG, section.get("lang", ""))
            seen_languages.setdefault(language[:50])
            for side, expected in enumerate((source_language, target_language)):
                if is_same_language(language, expected):
                    terms[side].update(_read_terms(section, origin))
        allowed = {term: is_preferred for term, is_preferred in terms[1].items() if is_preferred is not None}
        for source in terms[0] if allowed else ():
            origins.setdefault(source, origin)
            targets_by_source.setdefault(source, {}).update(allowed)
    if not targets_by_source:
        raise DataError(
            f"{path}: has no term in {source_language!r} with a term in {target_language!r}; "
            f"its languages are {quote_names([*seen_languages])}",
            code="unsupported-language",
        )
    for source, targets in targets_by_source.items():
        preferred_first = sorted(targets, key=lambda target: not targets[target])
        yield GlossaryEntry(source, tuple(preferred_first), origin=origins[source])


def _find_version(path: Path) -> tuple[str, str, tuple[str, ...]]:
    """Return the names of the root, of a concept and of its sections by language."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES).replace(b"\0", b"")  # UTF-16
    except OSError as error:
        raise to_data_error(path, error) from None
    if re.search(rb"<(\w+:)?tbx[\s>]", head):
        return "tbx", "conceptEntry", ("langSec",)
    return "martif", "termEntry", ("langSet",)


def _read_terms(section: _Element, origin: str) -> Iterator[tuple[str, bool | None]]:
    """Yield the terms of a section, and whether each is preferred; None for a term that must not be used."""
    for group in _find_all(section, ("tig", "ntig", "termSec")):
        for term in _find_all(group, ("term",)):
            status = " ".join(_iter_statuses(group, origin))
            is_excluded = "deprecated" in status or "superseded" in status
            yield to_single_line(extract_text(term, origin)).strip(), None if is_excluded else "preferred" in status


def _iter_statuses(group: _Element, origin: str) -> Iterator[str]:
    for note in _find_all(group, ("termNote", "administrativeStatus")):
        if get_local_name(note) == "administrativeStatus" or note.get("type") == "administrativeStatus":
            yield extract_text(note, origin).casefold()


def _find_all(element: _Element, names: tuple[str, ...]) -> Iterator[_Element]:
    """Yield the descendants with these local names."""
    return (child for child in element.iter() if isinstance(child.tag, str) and get_local_name(child) in names)
