"""Reports of `dragoman translate-file`: of a translated file, of a checked one, and of one that was refused."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from dragoman.documents.formats import read_document
from dragoman.documents.output_names import find_original
from dragoman.documents.reasons import describe_flags
from dragoman.documents.translate_document import (
    DocumentOptions,
    TermCount,
    UnitResult,
    check_document,
    check_terms,
    count_terms,
)
from dragoman.documents.translate_file import FileTranslation
from dragoman.documents.unit_selection import count_texts
from dragoman.errors import DataError, DragomanError, OutOfMemoryError, is_out_of_memory
from dragoman.io.json_fields import OPTIONAL
from dragoman.runtime.counts import format_count
from dragoman.text.glossary import Glossary

OnProgress = Callable[[int, int], None]

OTHER_LANGUAGE = "unsupported-language"
"""Code of a file of a folder that is skipped because it is a translation. The summary alone counts it."""
MAX_MESSAGES = 10
"""Flagged texts of a file that are named on standard error."""
_REVIEW_MARKS = {"po": "fuzzy, which msgfmt leaves out (see --accept)", "ts": "unfinished"}
"""Marks of translations for a human, by the name of the format."""


@dataclass(frozen=True)
class FlaggedText:
    """Text that needs a check.

    id, context: place in the file
    text: the translation; empty if the source stays
    flags: names of the failed checks
    note: sentence about what is wrong
    """

    id: str
    context: str
    source: str
    text: str
    flags: Sequence[str]
    note: str


@dataclass(frozen=True)
class TermReport:
    """Term of a glossary that translated texts have.

    source, targets: the term, and the forms of its translation; without forms for a term that is not translated
    texts: number of texts with the term
    used: number of those whose translation has a form
    """

    source: str
    targets: Sequence[str]
    texts: int
    used: int


@dataclass(frozen=True)
class FileReport:
    """Output of `dragoman translate-file --json` for a file.

    status: "ok", "flagged", "refused", or "skipped" for what a folder has beside files to translate
    error, code: the reason why the file is refused or skipped
    texts: number of texts in the file
    translated, from_memory: number of new translations, and of those that the memory had
    fuzzy_matches: number of those in the memory whose source is only similar, which a human has to check
    terms: use of the terms of the glossary, with --glossary
    kept: number of texts whose translation was there already, and stays
    for_review: number of new translations that the file marks for a human, such as fuzzy ones
    left: number of other texts that stay as they are: those without words, those of other keys, and those that fail a check
    unused: keys, or sources, of the texts of the earlier output that have no place in the new one
    skipped: numbers of texts that readers see and that are not among the texts, by what they are, such as "names of sheets"
    """

    file: str
    status: str
    output: str | None = None
    format: str | None = None
    texts: int = 0
    translated: int = 0
    from_memory: int = 0
    fuzzy_matches: int = 0
    flagged: Sequence[FlaggedText] = ()
    terms: Annotated[Sequence[TermReport] | None, OPTIONAL] = None
    kept: int = 0
    for_review: int = 0
    left: int = 0
    unused: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    error: Annotated[str | None, OPTIONAL] = None
    code: Annotated[str | None, OPTIONAL] = None


def report_file(
    path: Path, translate: Callable[[Path, OnProgress], FileReport], on_progress: OnProgress, *, verbose: bool = False
) -> FileReport:
    """Return the report of a file, also of one that cannot be read or written. No exception of a file costs the next ones.

    verbose: print the traceback of an unexpected exception
    """
    try:
        return translate(path, on_progress)
    except DragomanError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        return FileReport(str(path), "refused", error=message, code=error.code)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        if is_out_of_memory(error):
            message = f"{path}: the memory does not hold it; divide it"
            return FileReport(str(path), "refused", error=message, code=OutOfMemoryError.code)
        hint = "report it, with the file if you can" + ("" if verbose else "; --verbose shows where it comes from")
        message = f"{path}: an unexpected {type(error).__name__}; {hint}"
        return FileReport(str(path), "refused", error=message, code=DragomanError.code)


def report_check(path: Path, options: DocumentOptions, original: Path | None) -> FileReport:
    """Return the report about the translations that a file has.

    original: the source of a file of one language; by default the file that `find_original` finds

    Raises DataError if a file of one language has no source to compare it with.
    """
    document = read_document(path)
    if original is None and not document.is_bilingual:
        original = find_original(path, options.source_language, options.target_language)
        if original is None and all(unit.seconds is None for unit in document.units):
            raise DataError(
                f"{path}: holds no sources to compare its texts with; name its source with --translation-of",
                code="file-not-found",
            )
    results = check_document(document, options, None if original is None else read_document(original))
    flagged = _list_flagged(results, options.glossary)
    num_texts = count_texts(document)
    return FileReport(
        str(path),
        "flagged" if flagged else "ok",
        None,
        document.format,
        num_texts,
        flagged=flagged,
        kept=len(results),
        left=max(num_texts - len(results), 0),
        terms=None if options.glossary is None else _report_terms(count_terms(results, options.glossary)),
    )


def report_translation(translation: FileTranslation) -> FileReport:
    """Return the report of a file that was translated."""
    num_translated = sum(
        result.text != "" and result.origin != "file" and "target_language" not in result.flags
        for result in translation.results
    )
    matches = [result.match for result in translation.results if result.match is not None]
    flagged = _list_flagged(translation.results, translation.glossary)
    return FileReport(
        str(translation.path),
        "flagged" if flagged else "ok",
        str(translation.output),
        translation.format,
        translation.num_texts,
        num_translated,
        len(matches),
        sum(1 for match in matches if not match.is_exact),
        flagged,
        None if translation.terms is None else _report_terms(translation.terms),
        translation.num_kept,
        translation.num_for_review,
        max(translation.num_texts - num_translated - translation.num_kept, 0),
        translation.unused,
        translation.skipped,
    )


def _report_terms(counts: Sequence[TermCount]) -> list[TermReport]:
    return [TermReport(count.entry.source, count.entry.targets, count.num_texts, count.num_used) for count in counts]


def _list_flagged(results: Sequence[UnitResult], glossary: Glossary | None) -> list[FlaggedText]:
    flagged = []
    for result in results:
        if result.flags:
            unit, text = result.unit, result.text
            uses = check_terms(result, glossary) if glossary is not None and "terminology" in result.flags else ()
            lacking = list(dict.fromkeys(use.entry for use in uses if use.form is None))
            note = result.note or describe_flags(unit, text, result.flags, lacking)
            flagged.append(FlaggedText(unit.id, unit.context, unit.source, text, result.flags, note))
    return flagged


def describe(report: FileReport) -> list[str]:
    """Return the messages about a file."""
    if report.status == "skipped" and report.code == OTHER_LANGUAGE:
        return []
    if report.error is not None:
        return [f"{report.error} ({report.status})"]
    lines = []
    for text in report.flagged[:MAX_MESSAGES]:
        place = f" ({text.context})" if text.context else ""
        lines.append(f"{report.file}: {' '.join(text.source.split())[:60]!r}{place}: {text.note}")
    if len(report.flagged) > MAX_MESSAGES:
        lines.append(f"{report.file}: {len(report.flagged) - MAX_MESSAGES:,} more texts are flagged; --report shows them")
    counts = format_count(report.texts, "text")
    if report.output is not None:
        counts = f"{report.translated:,} of {counts} translated into {report.output}"
        if report.for_review:
            counts += f", {report.for_review:,} {_REVIEW_MARKS.get(report.format or '', 'marked for review')}"
        if report.kept:
            counts += f", {report.kept:,} kept"
        if report.unused:
            names = ", ".join(name[:40] for name in report.unused[:3])
            counts += f", {len(report.unused)} of the earlier output left out ({names}{', …' if report.unused[3:] else ''})"
    if report.left:
        counts += f", {report.left:,} {'left' if report.output is not None else 'without a translation'}"
    if report.terms is not None:
        num_used, num_texts = (sum(getattr(term, name) for term in report.terms) for name in ("used", "texts"))
        counts += f", {num_used:,} of {format_count(num_texts, 'term')} used"
    if report.skipped:
        counts += f", not translated: {', '.join(f'{name} ({number})' for name, number in report.skipped.items())}"
    return [*lines, f"{report.file}: {counts}, {len(report.flagged):,} flagged"]


def summarize(reports: Sequence[FileReport]) -> str:
    """Return one line about all files of a command."""
    numbers = Counter(report.status for report in reports)
    num_other = sum(report.status == "skipped" and report.code == OTHER_LANGUAGE for report in reports)
    others = f" ({num_other} in other languages)" if num_other else ""
    num_good = numbers["ok"] + numbers["flagged"]
    translated, kept, left, flagged = (
        sum(counts)
        for counts in zip(
            *((report.translated, report.kept, report.left, len(report.flagged)) for report in reports), strict=True
        )
    )
    counts = f"{format_count(translated, 'text')} translated, {kept:,} kept, {left:,} left"
    if num_good and all(report.output is None for report in reports):  # of --check
        counts = f"{format_count(kept, 'translation')} checked, {format_count(left, 'text')} without one"
    return (
        f"{format_count(num_good, 'file')} done, {numbers['refused']} refused, {numbers['skipped']} skipped{others}; "
        f"{counts}, {flagged:,} flagged"
    )
