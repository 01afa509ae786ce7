"""Command `translate-file`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    INCOMPLETE_LINES,
    PATH_TYPE,
    REFUSED_FILES,
    add_languages,
    argument,
    check_output_paths,
    device_options,
    from_option,
    glossary_options,
    json_option,
    option,
    overwrite_option,
    parse_decoding_overrides,
    placeholders_option,
    shared,
    to_option,
    treat_termination_as_interrupt,
    usage_error,
    with_options,
)
from dragoman.errors import OutputError
from dragoman.io.storage import atomic_write

if TYPE_CHECKING:
    from dragoman.documents.file_report import FileReport, OnProgress
    from dragoman.documents.folder_files import InputFiles
    from dragoman.documents.translate_file import FileOptions, FileTranslator
    from dragoman.documents.unit_selection import Scope
    from dragoman.inference.text_options import PlaceholderMethod
    from dragoman.runtime.device_options import DeviceOptions


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose the texts of a file, of which the last one counts."""
    for scope_option in (
        click.option("--redo-all", "scope", flag_value="all", help="Translate all texts that are not locked."),
        click.option(
            "--redo-fuzzy",
            "scope",
            flag_value="fuzzy",
            help="Also translate texts whose translation is fuzzy, or is equal to its source.",
        ),
        click.option(
            "--only-empty",
            "scope",
            flag_value="empty",
            default="empty",
            help="Translate texts without a translation. [default]",
        ),
    ):
        command = scope_option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class TranslateFileOptions:
    """Options of `dragoman translate-file`."""

    arguments: tuple[str, ...] = argument(
        "arguments", nargs=-1, required=True, metavar="[BUNDLE] FILE|FOLDER... [KEY=VALUE]..."
    )
    output: Path | None = option(
        "-o",
        "--output",
        type=PATH_TYPE,
        help="File for the translation of one FILE, if it has FILE's ending; else a folder for all, under the same names.",
    )
    project_names: bool = option(
        "--project-names",
        is_flag=True,
        help="Write where the program of a project looks: de.json for en.json, values-de/strings.xml, locales/de/app.yml.",
    )
    overwrite: bool = shared(overwrite_option("Complete an output that exists: its texts stay, unless --redo-all."))
    scope: Scope = shared(scope_options)
    accept: bool = option(
        "--accept", is_flag=True, help="Mark translations without a flag as good. Else a human has to accept them."
    )
    check: bool = option(
        "--check", is_flag=True, help="Check the translations that the files have, without a bundle. Write nothing."
    )
    translation_of: Path | None = option(
        "--translation-of",
        type=PATH_TYPE,
        help="File that an output is a translation of, if FILE has changed since; with --check, the source of FILE.",
    )
    memory: Path | None = option(
        "--memory", type=PATH_TYPE, help="Translation memory, TMX or TSV. Its translations are taken first."
    )
    fuzzy: float | None = option(
        "--fuzzy",
        type=click.FloatRange(0.5, 1),
        help="Also take translations of similar texts from the memory, down to this similarity, such as 0.85. They are marked "
        "for review.",
    )
    line_length: int = option(
        "--line-length",
        type=click.IntRange(min=8),
        default=42,
        show_default=True,
        help="Most characters of a line of subtitles.",
    )
    reading_speed: float = option(
        "--reading-speed",
        type=click.FloatRange(min=1),
        default=20.0,
        show_default=True,
        help="Most characters a second of subtitles.",
    )
    any_language: bool = option(
        "--any-language", is_flag=True, help="Also translate files that state another language than the source's."
    )
    no_language_check: bool = option(
        "--no-language-check", is_flag=True, help="Also translate sentences that are in the target language already."
    )
    keys: tuple[str, ...] = option(
        "--keys",
        multiple=True,
        metavar="GLOB",
        help="Translate only the values of these keys, such as 'app.*.title', also those that look like data. May be repeated.",
    )
    skip_keys: tuple[str, ...] = option(
        "--skip-keys",
        multiple=True,
        metavar="GLOB",
        help="Leave the values of these keys, such as 'routes.*'. May be repeated.",
    )
    strict_terms: bool
    glossary: Path | None = shared(glossary_options)
    placeholders: PlaceholderMethod = shared(placeholders_option)
    target_language: str | None = shared(to_option)
    source_language: str | None = shared(from_option)
    report: Path | None = option(
        "--report", type=PATH_TYPE, metavar="FILE.html", help="Write a page of the texts to check, with reasons and places."
    )
    ensemble: tuple[Path, ...]
    device_options: DeviceOptions = shared(device_options)
    as_json: bool = shared(json_option("Print one JSON object a file, with its flagged texts."))
    verbose: bool = option("-v", "--verbose", is_flag=True, help="Print the traceback of an unexpected error.")


@click.command()
@with_options(TranslateFileOptions)
def translate_file(args: TranslateFileOptions) -> None:
    """Translate each FILE, and the files in each FOLDER, with BUNDLE. All bytes but those of the texts stay as they are.

    The ending of a name selects the format. Catalogs: PO, XLIFF, TMX, JSON, JSON5, YAML, properties, strings, stringsdict,
    xcstrings, Android, RESX, TS, Fluent. Documents: HTML, Markdown, reStructuredText, AsciiDoc, DocBook, DOCX, PPTX, XLSX, ODT,
    ODP, ODS, EPUB, SRT, VTT, ASS, CSV, text. A translation is written beside its file, as NAME.de.po for German, or into the
    folder of -o. A text that fails a check is named on standard error, and the exit status is 3. A file that cannot be
    translated or written is left out, and the exit status is 4. The other files are translated.

    \b
    Example:  dragoman translate-file en-de letter.docx messages.po -o out
              dragoman translate-file en-de en.json --keys 'app.*' --skip-keys '*.url' -o out
              dragoman translate-file en-de docs/en -o docs/de
              dragoman translate-file --check messages.po
    """
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.documents.file_report import OTHER_LANGUAGE, FileReport, describe, report_file, summarize
    from dragoman.documents.folder_files import list_files

    settings = [argument for argument in args.arguments if "=" in argument and not Path(argument).exists()]
    paths = [Path(argument) for argument in args.arguments if argument not in settings]
    _check_options(args, paths, settings)
    files = list_files(paths if args.check else paths[1:], [path for path in (args.output, args.report) if path is not None])
    _check_folders(args, files)
    if args.report is not None:
        check_output_paths(args.report, overwrite=args.overwrite, input_paths=paths)
    translate = _build_check(args) if args.check else _build_translate(args, paths[0], files, settings)
    console = stderr_console()
    reports: list[FileReport] = []

    def add_report(report: FileReport) -> None:
        reports.append(report)
        if args.as_json:
            print_json(report)
        for line in describe(report):
            console.print(line, markup=False)

    for path, reason in files.skipped.items():
        add_report(FileReport(str(path), "skipped", error=f"{path}: {reason}", code="unknown-format"))
    for path, language in files.other_languages.items():
        error = f"{path}: is in the language {language!r}, beside a file of the source's"
        add_report(FileReport(str(path), "skipped", error=error, code=OTHER_LANGUAGE))
    if files.folders:
        sizes = {path: path.stat().st_size if path.is_file() else 0 for path in files.places}
        num_done = 0
        with progress_bar(console, f"{len(sizes)} files", sum(sizes.values()), unit="bytes", hidden=args.check) as bar:
            for path, size in sizes.items():

                def advance(done: int, total: int, start: int = num_done, size: int = size) -> None:
                    bar.set_done(start + size * done // max(total, 1))

                report = report_file(path, translate, advance, verbose=args.verbose)
                has_no_source = args.check and report.code == "file-not-found"
                add_report(replace(report, status="skipped") if has_no_source else report)
                num_done += size
                bar.set_done(num_done)
        console.print(summarize(reports), markup=False)
    else:
        for path in files.places:
            with progress_bar(console, path.name, None, unit="texts", hidden=args.check) as bar:
                report = report_file(path, translate, bar.set_done, verbose=args.verbose)
            add_report(report)
    _finish(reports, args.report)


def _finish(reports: Sequence[FileReport], page: Path | None) -> None:
    """Write the page for a reviewer, and exit with the status of the files."""
    from dragoman.documents.review_page import render_review

    if page is not None:
        with atomic_write(page, overwrite=True) as stream:
            stream.write(render_review(reports))
    statuses = {report.status for report in reports}
    if "refused" in statuses:
        sys.exit(REFUSED_FILES)
    if "flagged" in statuses:
        sys.exit(INCOMPLETE_LINES)


def _check_options(args: TranslateFileOptions, paths: Sequence[Path], settings: Sequence[str]) -> None:
    """Raise UsageError for options that do not go together."""
    if not args.check and len(paths) < 2:
        example = (
            f"such as: dragoman translate-file en-de {paths[0]}" if paths and paths[0].is_file() else "and at least one file"
        )
        raise usage_error(f"give the name of a model or a bundle first, {example}")
    if args.output == Path("-"):
        raise usage_error("-o -: the translation of a file cannot be standard output; give the name of a file or a folder")
    if args.check and (settings or args.memory is not None or args.output is not None or args.ensemble):
        raise usage_error("--check uses no bundle, so it goes without KEY=VALUE, --memory, --ensemble and -o")
    if args.translation_of is not None and len(paths) != (1 if args.check else 2):
        raise usage_error("--translation-of is for one file; translate or check it alone")
    if args.project_names and args.output is not None:
        raise usage_error("-o names the folder of all outputs, and --project-names one for each; give one of them")
    if args.fuzzy is not None and args.memory is None:
        raise usage_error("--fuzzy looks for similar texts in a translation memory; give --memory FILE")


def _check_folders(args: TranslateFileOptions, files: InputFiles) -> None:
    """Raise UsageError for options that do not go with folders, and for folders without a file."""
    if not files.folders:
        return
    if args.translation_of is not None:
        raise usage_error("--translation-of is for one file, and not for a folder")
    if not (args.check or args.project_names or args.output is not None):
        raise usage_error("a folder needs a place for its translations; give -o DIR, or --project-names")
    for folder in files.folders:
        if args.output is not None and args.output.resolve() == folder.resolve():
            raise usage_error(f"{folder}: is also the folder of -o; give another one")
        if not any(path.is_relative_to(folder) for path in files.places):
            raise usage_error(f"{folder}: holds no file that can be translated")


def _build_check(args: TranslateFileOptions) -> Callable[[Path, OnProgress], FileReport]:
    """Return the function that checks a file."""
    from dragoman.documents.file_report import report_check
    from dragoman.documents.subtitles import SubtitleLimits
    from dragoman.documents.translate_document import DocumentOptions
    from dragoman.formats.glossary_file import resolve_glossary

    languages = args.source_language or "", args.target_language or ""
    options = DocumentOptions(
        *languages,
        subtitles=SubtitleLimits(args.line_length, args.reading_speed),
        glossary=resolve_glossary(args.glossary, *languages),
    )
    return lambda path, on_progress: report_check(path, options, args.translation_of)


def _build_translate(
    args: TranslateFileOptions, model: Path, files: InputFiles, settings: Sequence[str]
) -> Callable[[Path, OnProgress], FileReport]:
    """Load a bundle, and return the function that translates a file and writes it beside the original or into a folder.

    model: the bundle, or the name of a listed model
    settings: keys of the section [decoding], as KEY=VALUE
    """
    from dragoman.catalog.by_name import fetch_if_listed
    from dragoman.documents.file_garbage import FileGarbage
    from dragoman.documents.file_report import report_translation
    from dragoman.documents.folder_links import NO_ANCHORS, find_linked_anchors
    from dragoman.documents.translate_file import FileTranslator
    from dragoman.inference.load import load

    bundle = fetch_if_listed(BUNDLE_TYPE.convert(model, None, None))
    decoding = parse_decoding_overrides(settings)
    add_languages(decoding, args.source_language, args.target_language)
    options = _make_options(args)
    translator = FileTranslator(load(bundle, *args.ensemble, task="translation", **args.device_options), options, **decoding)
    outputs = _name_outputs(args.output, files, translator)
    _check_outputs([*outputs.values(), *([args.report] if args.report is not None else [])])
    inputs = {Path(os.path.realpath(path)) for path in files.places}  # a link may lead to itself
    linked_anchors = find_linked_anchors(files.places)
    garbage = FileGarbage()

    def translate(path: Path, on_progress: OnProgress) -> FileReport:
        output = outputs[path]
        check_output_paths(output, overwrite=True, input_paths=[bundle, path])
        if output.resolve() in inputs:
            raise OutputError(
                f"{output}: is an input of this command, which stays; give another output", code="output-is-input"
            )
        treat_termination_as_interrupt()
        with garbage.without_full_collections():
            return report_translation(
                translator.translate(
                    path,
                    output,
                    overwrite=args.overwrite,
                    original=args.translation_of,
                    anchors=linked_anchors.get(path, NO_ANCHORS),
                    on_progress=on_progress,
                )
            )

    return translate


def _make_options(args: TranslateFileOptions) -> FileOptions:
    """Return the options of a file that the command line states."""
    from dragoman.documents.translate_file import FileOptions

    return FileOptions(
        memory=args.memory,
        min_similarity=1.0 if args.fuzzy is None else args.fuzzy,
        scope=args.scope,
        accept=args.accept,
        line_length=args.line_length,
        reading_speed=args.reading_speed,
        glossary=args.glossary,
        strict_terms=args.strict_terms,
        placeholders=args.placeholders,
        any_language=args.any_language,
        language_check=not args.no_language_check,
        keys=args.keys,
        skip_keys=args.skip_keys,
        project_names=args.project_names,
    )


def _name_outputs(output: Path | None, files: InputFiles, translator: FileTranslator) -> dict[Path, Path]:
    """Return the output of each file. A file of a folder without a name of its project is moved to the skipped ones."""
    from dragoman.documents.output_names import find_other_language, get_output_suffix

    source = translator.options.source_language
    outputs: dict[Path, Path] = {}
    for path, place in list(files.places.items()):
        root = next((folder for folder in files.folders if path.is_relative_to(folder)), None)
        if root is not None and source and (code := find_other_language(path, root, source)):
            files.other_languages[path] = code
            del files.places[path]
        elif output is not None:
            outputs[path] = output if _names_one_file(output, files) else output / place.with_suffix(get_output_suffix(path))
        elif files.folders and not translator.has_project_name(path):
            files.skipped[path] = "has no name that says where the project looks for its translation"
            del files.places[path]
        else:
            outputs[path] = translator.name_output(path)
    return outputs


def _names_one_file(output: Path, files: InputFiles) -> bool:
    """Return whether -o is the file of the only translation: no folder, and with the ending of that file."""
    from dragoman.documents.output_names import get_output_suffix

    suffixes = [get_output_suffix(path).lower() for path in files.places]
    return not files.folders and not output.is_dir() and output.suffix != "" and suffixes == [output.suffix.lower()]


def _check_outputs(outputs: Sequence[Path]) -> None:
    """Raise UsageError if two files would be written under one name."""
    counts = Counter(path.resolve() for path in outputs)
    twice = [path.name for path, count in counts.items() if count > 1]
    if twice:
        raise usage_error(
            f"two files would be written as {twice[0]}; translate them into two folders, or name the report otherwise"
        )
