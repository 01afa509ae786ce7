"""Command `translate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.cli.translation_output import write_translations
from dragoman.console.input_windows import is_interactive_input, is_live_input, is_shown_as_it_comes, read_windows
from dragoman.console.options import (
    BUNDLE_TYPE,
    INCOMPLETE_LINES,
    PATH_TYPE,
    add_languages,
    bundle_argument,
    check_output_paths,
    cluster_option,
    count_lines,
    device_options,
    from_option,
    glossary_options,
    input_arguments,
    json_option,
    open_text_output,
    option,
    output_option,
    overwrite_option,
    parse_file_and_settings,
    placeholders_option,
    print_note,
    shared,
    to_option,
    treat_termination_as_interrupt,
    usage_error,
    window_option,
    with_options,
)
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.cli.translation_output import TranslatedLine
    from dragoman.config import DecodingConfig
    from dragoman.inference.commands.line_report import LineWarnings
    from dragoman.inference.pivot import PivotTranslator
    from dragoman.inference.text_options import PlaceholderMethod
    from dragoman.inference.translation_constraints import TranslationConstraints
    from dragoman.inference.translator import Translator
    from dragoman.runtime.device_options import DeviceOptions
    from dragoman.text.glossary import Glossary


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """Options of `dragoman translate`."""

    bundle: Path = shared(bundle_argument)
    arguments: tuple[str, ...] = shared(input_arguments)
    output: Path | None = shared(output_option)
    overwrite: bool = shared(overwrite_option())
    target_language: str | None = shared(to_option)
    source_language: str | None = shared(from_option)
    via: str | None = option("--via", metavar="CODE", help="Translate in two steps, over this pivot language.")
    second_bundle: Path | None = option(
        "--then", "second_bundle", type=BUNDLE_TYPE, help="Translate the output of BUNDLE with this bundle, as a pivot."
    )
    constraints: Path | None = option(
        "--constraints",
        type=PATH_TYPE,
        help="Constraints of each translation: one JSON object a line (see the guide to search).",
    )
    alignments: Path | None = option(
        "--alignments", type=PATH_TYPE, help="Write word alignments to this file: `i-j` from 0, line by line."
    )
    adapter: Path | None = option(
        "--adapter", type=PATH_TYPE, help="Low-rank adapter of the bundle: the folder `adapter` of a run."
    )
    confidence: bool = option("--confidence", is_flag=True, help="Add the confidence of each translation to --json.")
    shortlist: Path | None = option(
        "--shortlist", type=PATH_TYPE, help="Compute only likely tokens: a folder of `dragoman model shortlist`."
    )
    split_sentences: bool | None = option(
        "--split-sentences/--no-split-sentences",
        default=None,
        help="Translate each sentence of a line by itself, and keep placeholders and addresses. By default, lines whose "
        "translation lost a number, an address, a sign or its end are translated again in that way.",
    )
    placeholders: PlaceholderMethod = shared(placeholders_option)
    strict_terms: bool
    glossary: Path | None = shared(glossary_options)
    window: int | None = shared(window_option)
    cluster: str | None = shared(cluster_option)
    ensemble: tuple[Path, ...]
    device_options: DeviceOptions = shared(device_options)
    as_json: bool = shared(json_option("Print one JSON object a line, with score, tokens, status and alternatives."))

    def __post_init__(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.confidence and not self.as_json:
            raise usage_error("--confidence is a part of --json; give both")
        if self.is_pivot and (self.ensemble or self.alignments or self.adapter or self.confidence or self.shortlist):
            raise usage_error("--via and --then go without --ensemble, --alignments, --adapter, --confidence and --shortlist")
        if self.has_whole_texts and (self.is_pivot or self.constraints or self.alignments or self.confidence):
            name = "--split-sentences" if self.split_sentences else "--glossary"
            raise usage_error(f"{name} goes without --via, --then, --constraints, --alignments and --confidence")
        if self.placeholders != "auto" and not self.has_whole_texts:
            raise usage_error("--placeholders is about whole texts; add --split-sentences or --glossary")
        others = self.is_pivot, self.constraints, self.alignments, self.adapter, self.confidence, self.shortlist
        if self.cluster is not None and (any(others) or self.has_whole_texts):
            raise usage_error(
                "--cluster goes with --ensemble, --to, --from, --window, --json and the options of the device alone"
            )

    @property
    def is_pivot(self) -> bool:
        """Return whether the translation is in two steps."""
        return self.via is not None or self.second_bundle is not None

    @property
    def has_whole_texts(self) -> bool:
        """Return whether each line is a text of several sentences."""
        return bool(self.split_sentences) or self.glossary is not None

    @property
    def retries_lines(self) -> bool:
        """Return whether a line that lost something is translated again, which leaves only its text and score."""
        needs_tokens = self.is_pivot or self.constraints or self.alignments or self.confidence
        return self.split_sentences is None and not needs_tokens


@click.command()
@with_options(TranslateOptions)
def translate(args: TranslateOptions) -> None:
    """Translate FILE line by line with BUNDLE. Without FILE, or for `-`, translate standard input.

    The output has as many lines as the input, in the same order. A line without text comes back unchanged. KEY=VALUE changes a
    key of the recipe's [decoding] section. A line that is longer than the model reads is translated in segments. If a line
    is incomplete, standard error names it and the exit status is 3. Only --json prints the alternatives of nbest=N. Lines
    from a terminal or a pipe are translated as they arrive.

    A bundle of many languages takes the language of the output from --to, and that of the text from --from if several fit.
    --via and --then translate in two steps. The status of a line is then the worse one of both, and the score is their sum.

    With --glossary, a line whose translation lacks a term is translated again, with its terms required.

    With --cluster, FILE and -o may also be URLs of an object store, such as s3://bucket/name. The same command continues after
    an interruption.

    \b
    Example:  dragoman translate en-de letter.txt -o letter.de.txt beam_size=5
              dragoman translate runs/multi30k-ende/bundle test.de --from de --to fr --via en
              echo "March 3, 2025" | dragoman translate runs/quickstart-de/bundle
    """
    from dragoman.catalog.by_name import fetch_if_listed
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.formats.text import read_lines

    if args.cluster is not None:
        _translate_on_cluster(args, args.cluster)
        return
    source, decoding = parse_file_and_settings(args.arguments)
    add_languages(decoding, args.source_language, args.target_language)
    input_paths = [source, args.constraints, args.bundle, *args.ensemble, args.adapter, args.shortlist, args.glossary]
    check_output_paths(args.output, args.alignments, overwrite=args.overwrite, input_paths=input_paths)
    if source is not None and (note := _describe_document(source)):
        print_note(note)
    line_count = count_lines(source)
    bundles = [fetch_if_listed(path) for path in (args.bundle, *([args.second_bundle] if args.second_bundle else []))]
    console, flush_lines = stderr_console(), is_live_input(source)
    alignment_sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if args.alignments is not None:
        alignment_sink = open_text_output(args.alignments, overwrite=args.overwrite)
    with (
        open_text_output(args.output, overwrite=args.overwrite) as stream,  # first, because a bar replaces sys.stdout
        alignment_sink as links,
        progress_bar(console, "translating", line_count, hidden=is_shown_as_it_comes(source, args.output)) as bar,
    ):
        translator, pivot = _load_translators(args, bundles)  # takes seconds, in which the bar is shown
        if is_interactive_input(source):
            purpose = translator.recipe.card.purpose
            console.print(f"{f'{purpose}. ' if purpose else ''}Type a line; Ctrl-D ends.", markup=False)
        config = translator.resolve_decoding(decoding)
        windows = bar.iter_input(read_windows(read_lines(source), source, args.window), is_live=flush_lines)
        translated_lines: Iterable[TranslatedLine]
        if args.has_whole_texts:
            translated_lines = _translate_sentences(args, translator, windows, bar.advance, decoding)
        else:
            line_constraints = None if args.constraints is None else _read_constraints(args.constraints, line_count)
            retries = args.retries_lines and config.nbest == 1 and config.method != "sample"
            translated_lines = _translate_windows(
                args, translator, pivot, windows, line_constraints, bar.advance, decoding, retries=retries
            )
        line_warnings = write_translations(stream, links, translated_lines, as_json=args.as_json, flush_lines=flush_lines)
    _print_warnings(line_warnings, translator, config)


def _describe_document(path: Path) -> str | None:
    """Return a note for a file in a format that has more than lines of text, such as Markdown.

    Raises UsageError for an archive, such as DOCX.
    """
    from dragoman.documents.formats import SUFFIXES, is_archive

    suffix = path.suffix.lower()
    if suffix not in SUFFIXES or suffix in (".txt", ".csv", ".tsv"):
        return None
    if is_archive(suffix):
        raise usage_error(f"{path}: a {suffix} file has no lines of text; translate it with dragoman translate-file")
    return f"{path}: its lines are read as plain text; dragoman translate-file keeps the format of {suffix} files"


def _load_translators(args: TranslateOptions, bundles: Sequence[Path]) -> tuple[Translator, PivotTranslator | None]:
    """Return the translator of the first bundle, and the one that translates in two steps if there is one."""
    from dragoman.inference.load import load, load_pivot

    if args.is_pivot:
        pivot = load_pivot(bundles[0], bundles[-1] if bundles[1:] else None, via=args.via or "", **args.device_options)
        return pivot.first, pivot
    adapters = {} if args.adapter is None else {str(args.adapter): args.adapter}
    options: dict[str, Any] = {"shortlist": args.shortlist, "adapters": adapters, **args.device_options}
    translator = load(bundles[0], *args.ensemble, task="translation", **options)
    return translator.with_adapter(None if args.adapter is None else str(args.adapter)), None


def _print_warnings(line_warnings: LineWarnings, translator: Translator, config: DecodingConfig) -> None:
    """Print the warnings about lines, and exit if a line is incomplete."""
    from dragoman.console.terminal import stderr_console

    console = stderr_console()
    task, max_positions = translator.recipe.task, translator.inference_model.max_positions
    has_two_languages = task.source_language != task.target_language
    for warning in line_warnings.format_messages(max_positions, config, name_similar=has_two_languages):
        console.print(warning, markup=False)
    if line_warnings.has_errors:
        sys.exit(INCOMPLETE_LINES)


def _translate_on_cluster(args: TranslateOptions, address: str) -> None:
    """Translate a file on a cluster, and print the warnings about its lines."""
    from dragoman.cli.cluster_translate import split_urls, translate_on_cluster
    from dragoman.cluster.ray_executor import connect
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.inference.load import load

    bundles = [args.bundle, *args.ensemble]
    urls, other_arguments = split_urls(args.arguments)
    path, decoding = parse_file_and_settings(other_arguments)
    add_languages(decoding, args.source_language, args.target_language)
    files = [*urls, *([] if path is None else [str(path)])]
    if len(files) != 1 or args.output is None:
        raise usage_error("--cluster reads one file and writes one file; give FILE and -o")
    if not urls:
        check_output_paths(args.output, overwrite=True, input_paths=[path, *bundles])
    treat_termination_as_interrupt()
    translator = load(bundles[0], *bundles[1:], task="translation", **args.device_options)
    config = translator.resolve_decoding(decoding)  # a wrong setting is an error before any work
    with progress_bar(stderr_console(), "translating", None) as bar, connect(address) as executor:
        line_warnings = translate_on_cluster(
            bundles,
            files[0],
            args.output,
            executor,
            decoding=decoding,
            on_progress=bar.set_done,
            device_options=args.device_options,
            as_json=args.as_json,
            window=args.window,
            overwrite=args.overwrite,
        )
    _print_warnings(line_warnings, translator, config)


def _read_constraints(path: Path, line_count: int | None) -> list[TranslationConstraints]:
    """Return the constraints of each line. Raises DataError, with the line, for a wrong object or a wrong number of lines."""
    import json

    from dragoman.errors import DataError
    from dragoman.formats.text import read_lines
    from dragoman.inference.translation_constraints import parse_constraints

    constraints = []
    for line_number, line in enumerate(read_lines(path), start=1):
        location = f"{path}, line {line_number}"
        try:
            document = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise DataError(f"{location}: is not JSON: {error}") from None
        constraints.append(parse_constraints(document, location=location))
    if line_count is not None:
        _check_constraint_count(path, len(constraints), line_count)
    return constraints


def _translate_windows(
    args: TranslateOptions,
    translator: Translator,
    pivot: PivotTranslator | None,
    windows: Iterable[list[str]],
    constraints: Sequence[TranslationConstraints] | None,
    on_progress: Callable[[int], None],
    decoding: dict[str, Any],
    *,
    retries: bool,
) -> Iterator[TranslatedLine]:
    """Yield each line with its translation. Raises DataError if the input ends and the constraints do not, or the reverse.

    retries: translate lines that lost something again
    """
    from dragoman.errors import DataError
    from dragoman.inference.faulty_lines import translate_faulty_lines

    options: dict[str, Any] = {"on_progress": on_progress, **decoding}
    if pivot is None:
        options |= {"attention": args.alignments is not None, "confidence": args.confidence}
    start, end, window_constraints = 0, 0, None
    for lines in windows:
        start, end = end, end + len(lines)
        if constraints is not None:
            window_constraints = constraints[start:end]
            if len(constraints) < end:
                problem = f"has {format_count(len(constraints), 'constraint')}, fewer than the input has lines"
                raise DataError(f"{args.constraints}: {problem}; give one for each line", code="invalid-constraints")
        results = (pivot or translator).translate(lines, start_index=start, constraints=window_constraints, **options)
        if retries:
            results = translate_faulty_lines(translator, lines, results, decoding)
        yield from zip(lines, results, repeat(None), strict=False)
    if constraints is not None:
        _check_constraint_count(args.constraints, len(constraints), end)


def _translate_sentences(
    args: TranslateOptions,
    translator: Translator,
    windows: Iterable[list[str]],
    on_progress: Callable[[int], None],
    decoding: dict[str, Any],
) -> Iterator[TranslatedLine]:
    """Return each line with its translation, made of the translations of its sentences, and the use of its terms."""
    from dragoman.formats.glossary_file import read_glossary

    glossary = None
    if args.glossary is not None:
        config, task = translator.resolve_decoding(decoding), translator.recipe.task
        languages = config.source_language or task.source_language, config.target_language or task.target_language
        glossary = read_glossary(args.glossary, *languages)
    options = {
        "split_sentences": bool(args.split_sentences),
        "placeholders": args.placeholders,
        "strict_terms": args.strict_terms,
        **decoding,
    }
    return _iter_sentences(translator, windows, on_progress, glossary, options)


def _iter_sentences(
    translator: Translator,
    windows: Iterable[list[str]],
    on_progress: Callable[[int], None],
    glossary: Glossary | None,
    options: dict[str, Any],
) -> Iterator[TranslatedLine]:
    for lines in windows:
        results = translator.translate_texts(lines, glossary=glossary, **options)
        on_progress(len(lines))
        for line, result in zip(lines, results, strict=True):
            terms = None if glossary is None else [use for segment in result.segments for use in segment.terms]
            yield line, result.to_line(), terms


def _check_constraint_count(path: Path | None, num_constraints: int, num_lines: int) -> None:
    from dragoman.errors import DataError

    if num_constraints != num_lines:
        problem = f"has {format_count(num_constraints, 'constraint')} for {format_count(num_lines, 'line')}"
        raise DataError(f"{path}: {problem}; give one for each line")
