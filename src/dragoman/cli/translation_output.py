"""Output of translated lines: as text, as JSON, and as word alignments beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated

from dragoman.inference.commands.line_report import LineWarnings
from dragoman.inference.translation_result import Translation
from dragoman.io.json_fields import OPTIONAL, copy_fields, to_json_line

if TYPE_CHECKING:
    from dragoman.text.glossary import TermUse

    TranslatedLine = tuple[str, Translation, Sequence[TermUse] | None]


@dataclass(frozen=True)
class TermOutput:
    """Term of a glossary in a source, with --glossary.

    source: the term as the source has it
    targets: forms that its translation may have; empty for a term that is not translated
    form: the form that the translation has; null if it has none
    """

    source: str
    targets: Sequence[str]
    form: str | None


@dataclass(frozen=True, kw_only=True)
class TranslationLine(Translation):
    """One line of `dragoman translate --json`. Lines count from 1.

    terms: those of --glossary
    """

    line: int
    source: str
    terms: Annotated[Sequence[TermOutput] | None, OPTIONAL] = None


def write_translations(
    stream: IO[str],
    links: IO[str] | None,
    translated_lines: Iterable[TranslatedLine],
    *,
    as_json: bool,
    flush_lines: bool = False,
    start_line: int = 1,
) -> LineWarnings:
    """Write each translation, and its word alignment if there is a stream for links. Return the warnings about all lines.

    start_line: number of the first line
    """
    from dragoman.formats.pharaoh import format_pharaoh

    line_warnings = LineWarnings(start_line - 1)
    for line_number, (line, result, terms) in enumerate(translated_lines, start=start_line):
        stream.write((_to_json_line(line_number, line, result, terms) if as_json else result.text) + "\n")
        if links is not None:
            links.write(format_pharaoh(result.alignment or ()) + "\n")
        line_warnings.add(line, result, lacks_term=any(use.form is None for use in terms or ()))
        if flush_lines:
            stream.flush()
    stream.flush()
    return line_warnings


def _to_json_line(line_number: int, line: str, result: Translation, terms: Sequence[TermUse] | None) -> str:
    outputs = None if terms is None else [TermOutput(use.source, use.entry.targets, use.form) for use in terms]
    return to_json_line(copy_fields(TranslationLine, result, line=line_number, source=line, terms=outputs))
