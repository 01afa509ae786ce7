"""Command `translate-file`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from dragoman.cli.exit_statuses import INCOMPLETE_LINES, REFUSED_FILES
from dragoman.cli.options import (
    PATH_TYPE,
    add_languages,
    check_output_paths,
    device_options,
    from_option,
    json_option,
    overwrite_option,
    parse_decoding_overrides,
    to_option,
    treat_termination_as_interrupt,
    usage_error,
)
from dragoman.errors import DataError, DragomanError, OutputError
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.documents.document import Document
    from dragoman.documents.translate_document import DocumentOptions, Scope, UnitResult
    from dragoman.inference.session import DeviceOptions
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator
    from dragoman.inference.whole_texts import LineRequest


@dataclass(frozen=True)
class FlaggedText:
    """Text that needs a check. id, context: place in the file. flags: names of the failed checks"""

    id: str
    context: str
    source: str
    text: str
    flags: Sequence[str]


@dataclass(frozen=True)
class FileReport:
    """Output of `dragoman translate-file --json` for a file.

    status: "ok", "flagged" or "refused"
    error, code: the reason for a refusal
    texts: number of texts in the file
    translated, from_memory: number of new translations, and of those that the memory had
    """

    file: str
    status: str
    output: str | None = None
    format: str | None = None
    texts: int = 0
    translated: int = 0
    from_memory: int = 0
    flagged: Sequence[FlaggedText] = ()
    error: str | None = field(default=None, metadata={"optional": True})
    code: str | None = field(default=None, metadata={"optional": True})


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="[BUNDLE] FILE... [KEY=VALUE]...")
@click.option("-o", "--output", type=PATH_TYPE, metavar="DIR", help="Folder for the translated files, under the same names.")
@overwrite_option()
@click.option(
    "--only-empty", "scope", flag_value="empty", default="empty", help="Translate texts without a translation. [default]"
)
@click.option("--redo-fuzzy", "scope", flag_value="fuzzy", help="Also translate texts whose translation is fuzzy.")
@click.option("--redo-all", "scope", flag_value="all", help="Translate all texts that are not locked.")
@click.option("--accept", is_flag=True, help="Mark translations without a flag as good. Else a human has to accept them.")
@click.option("--check", is_flag=True, help="Check the translations that the files have, without a bundle. Write nothing.")
@click.option("--memory", type=PATH_TYPE, help="Translation memory, TMX or TSV. Its translations are taken first.")
@to_option
@from_option
@device_options
@json_option("Print one JSON object a file, with its flagged texts.")
def translate_file(
    arguments: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    scope: Scope,
    accept: bool,
    check: bool,
    memory: Path | None,
    target_language: str | None,
    source_language: str | None,
    ensemble: tuple[Path, ...],
    device_options: DeviceOptions,
    as_json: bool,
) -> None:
    """Translate each FILE with BUNDLE. Everything but the texts stays as it is, byte for byte.

    The ending of a name selects the format: PO, XLIFF, TMX, HTML, Markdown, SRT, VTT, JSON, YAML, properties, strings, Android,
    RESX, TS, DOCX, PPTX, XLSX, ODT, EPUB, text. A translation is written beside its file, as NAME.de.po for German, or into the
    folder of -o. A text that fails a check is named on standard error, and the exit status is 3. A file that cannot be
    translated is left as it is, and the exit status is 4.

    \b
    Example:  dragoman translate-file runs/general-ende/bundle messages.po index.html -o out
              dragoman translate-file --check messages.po
    """
    from dragoman.cli.console import print_json, progress_bar, stderr_console

    settings = [argument for argument in arguments if "=" in argument and not Path(argument).exists()]
    paths = [Path(argument) for argument in arguments if argument not in settings]
    if not check and len(paths) < 2:
        raise usage_error("give a bundle and at least one file")
    if check and (settings or memory is not None or output is not None or ensemble):
        raise usage_error("--check uses no bundle, so it goes without KEY=VALUE, --memory, --ensemble and -o")
    console = stderr_console()
    worker: _Worker | None = None
    files = paths
    if not check:
        bundle, *files = paths
        decoding = parse_decoding_overrides(settings)
        add_languages(decoding, source_language, target_language)
        worker = _Worker.load(bundle, ensemble, decoding, memory, scope, accept, device_options)
        _check_names(files, output)
    statuses: Counter[str] = Counter()
    for path in files:
        with progress_bar(console, path.name, None, unit="texts", hidden=check) as bar:
            try:
                document = _read(path)
                if worker is None:
                    report = _check(path, document, target_language or "")
                else:
                    bar.set_done(0, sum(1 for unit in document.units if worker.is_selected(unit)))
                    report = worker.translate(path, document, output, overwrite, bar.advance)
            except OutputError:
                raise
            except DragomanError as error:
                message = str(error) if str(path) in str(error) else f"{path}: {error}"
                report = FileReport(str(path), "refused", error=message, code=error.code)
        statuses[report.status] += 1
        if as_json:
            print_json(report)
        for line in _describe(report):
            console.print(line, markup=False)
    if statuses["refused"]:
        sys.exit(REFUSED_FILES)
    if statuses["flagged"]:
        sys.exit(INCOMPLETE_LINES)


def _check_names(files: Sequence[Path], output: Path | None) -> None:
    """Raise UsageError if two files would be written under one name."""
    names = Counter(path.name for path in files)
    twice = [name for name, count in names.items() if count > 1]
    if output is not None and twice:
        raise usage_error(f"-o: two files have the name {twice[0]}; translate them into two folders")


def _read(path: Path) -> Document:
    """Return the document of a file. Raises DataError if it cannot be read."""
    from dragoman.documents.formats import MAX_FILE_BYTES, get_parser, parse_document

    get_parser(str(path))
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist", code="file-not-found") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", code="file-unreadable") from None
    return parse_document(str(path), content)


def _check(path: Path, document: Document, target_language: str) -> FileReport:
    from dragoman.documents.translate_document import check_document

    return _report(path, document, check_document(document, target_language), None)


def _report(path: Path, document: Document, results: Sequence[UnitResult], output: Path | None) -> FileReport:
    flagged = [
        FlaggedText(result.unit.id, result.unit.context, result.unit.source, result.text, result.flags)
        for result in results
        if result.flags
    ]
    origins = Counter(result.origin for result in results if result.text)
    return FileReport(
        str(path),
        "flagged" if flagged else "ok",
        None if output is None else str(output),
        document.format,
        len(document.units),
        origins["model"] + origins["memory"],
        origins["memory"],
        flagged,
    )


def _describe(report: FileReport) -> list[str]:
    """Return the messages about a file."""
    if report.error is not None:
        return [f"{report.error} (refused)"]
    lines = []
    for text in report.flagged[:MAX_MESSAGES]:
        place = f" ({text.context})" if text.context else ""
        lines.append(f"{report.file}: {', '.join(text.flags)}: {' '.join(text.source.split())[:60]!r}{place}")
    if len(report.flagged) > MAX_MESSAGES:
        lines.append(f"{report.file}: {len(report.flagged) - MAX_MESSAGES} more texts are flagged; --json lists them")
    counts = format_count(report.texts, "text")
    if report.output is not None:
        counts = f"{report.translated} of {counts} translated into {report.output}"
    return [*lines, f"{report.file}: {counts}, {len(report.flagged)} flagged"]


MAX_MESSAGES = 10
"""Flagged texts of a file that are named on standard error."""


@dataclass(frozen=True)
class _Worker:
    """Loaded bundle with the options for every file."""

    translator: Translator
    decoding: Mapping[str, Any]
    options: DocumentOptions
    bundle: Path

    @classmethod
    def load(
        cls,
        bundle: Path,
        ensemble: Sequence[Path],
        decoding: dict[str, Any],
        memory: Path | None,
        scope: Scope,
        accept: bool,
        device_options: DeviceOptions,
    ) -> _Worker:
        from dragoman.documents.translate_document import DocumentOptions
        from dragoman.inference.load import load

        translator = load(bundle, *ensemble, task="translation", **device_options)
        translator.resolve_decoding(decoding)
        task = translator.recipe.task
        source = decoding.get("source_language") or task.source_language or ""
        target = decoding.get("target_language") or task.target_language or ""
        options = DocumentOptions(source, target, scope, accept, _read_memory(memory, source, target) if memory else {})
        return cls(translator, decoding, options, bundle)

    def is_selected(self, unit: Any) -> bool:
        from dragoman.documents.translate_document import is_selected

        return is_selected(unit, self.options.scope)

    def translate(self, path: Path, document: Document, folder: Path | None, overwrite: bool, on_progress: Any) -> FileReport:
        """Translate a document and write it. Raises OutputError if the output exists or is an input."""
        from dragoman.documents.formats import get_parser
        from dragoman.documents.translate_document import translate_document
        from dragoman.io.storage import atomic_write, make_dirs

        language = self.options.target_language
        output = path.with_suffix(f".{language or 'translated'}{path.suffix}") if folder is None else folder / path.name
        check_output_paths(output, overwrite=overwrite, input_paths=[path, self.bundle])
        treat_termination_as_interrupt()
        result = translate_document(document, get_parser(str(path)), self._translate_lines, self.options, on_progress)
        make_dirs(output.parent)
        with atomic_write(output, overwrite=overwrite) as stream:
            cast(TextIO, stream).buffer.write(result.content)
        return _report(path, document, result.results, output)

    def _translate_lines(self, request: LineRequest) -> Sequence[Translation]:
        from dragoman.inference.whole_texts import RETRY_DECODING

        decoding: dict[str, Any] = {**self.decoding, **(RETRY_DECODING if request.is_retry else {})}
        return self.translator.translate(request.lines, attention=request.attention, **decoding)


def _read_memory(path: Path, source_language: str, target_language: str) -> dict[str, str]:
    """Return the translations of a TMX or TSV file. The first translation of a source counts."""
    from dragoman.formats.tmx import read_tmx
    from dragoman.formats.tsv import read_tsv

    match path.suffix.lower():
        case ".tmx":
            pairs = read_tmx(path, source_language=source_language, target_language=target_language)
        case ".tsv" | ".txt":
            pairs = read_tsv(path)
        case suffix:
            raise DataError(f"{path}: a translation memory is a .tmx or .tsv file, not {suffix!r}", code="unknown-format")
    memory: dict[str, str] = {}
    for pair in pairs:
        if pair.source and pair.target:
            memory.setdefault(pair.source, pair.target)
    return memory
