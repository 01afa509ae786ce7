"""Text in, text out: `translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.cli.line_report import LineWarnings
from dragoman.cli.options import (
    OUTPUT_OPTION,
    add_device_options,
    check_output_paths,
    count_lines,
    open_text_output,
    parse_file_and_settings,
)

if TYPE_CHECKING:
    from dragoman.inference.constraints import TranslationConstraints
    from dragoman.inference.session import DeviceOptions
    from dragoman.inference.translation import Translation


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@OUTPUT_OPTION
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@click.option(
    "--wordings",
    type=click.Path(path_type=Path),
    help="What is asked of each translation: JSON, line by line (docs/search.md).",
)
@click.option(
    "--alignments",
    type=click.Path(path_type=Path),
    help="Write here which word came from which, as `i-j` from 0, line by line.",
)
@click.option(
    "--shortlist", type=click.Path(path_type=Path), help="Compute only likely words: a folder of `dragoman shortlist`."
)
@add_device_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with score, tokens, status and alternatives.")
def translate(
    bundle: Path,
    arguments: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    ensemble: tuple[Path, ...],
    constraints: Path | None,
    alignments: Path | None,
    shortlist: Path | None,
    device_options: DeviceOptions,
    as_json: bool,
) -> None:
    """Translate FILE (or standard input, also as `-`) line by line with BUNDLE.

    The output has exactly as many lines as the input, in order; lines without text come back as they are. KEY=VALUE changes a
    knob of the recipe's [decoding] section. A line that is longer than the model reads is translated in parts. Lines that
    were not translated whole are named on standard error, and the exit code is then 3. With nbest=N, the others are in the
    JSON of --json alone.

    \b
    Example:  dragoman translate runs/multi30k-ende/bundle test.en -o test.de beam_size=5
              echo "March 3, 2025" | dragoman translate runs/quickstart-de/bundle
    """
    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import DEFAULT_WINDOW, load_translator
    from dragoman.tasks.translation import get_source_limit

    source, decoding = parse_file_and_settings(arguments)
    if output is not None and alignments is not None and output.resolve() == alignments.resolve():
        raise click.UsageError(f"-o and --alignments both name {output}", ctx=click.get_current_context())
    check_output_paths(output, alignments, overwrite=overwrite, input_paths=[source, constraints, bundle, *ensemble, shortlist])
    line_count = count_lines(source)
    translator = load_translator(bundle, *ensemble, shortlist=shortlist, **device_options)
    config = translator.resolve_decoding(decoding)
    console, is_interactive = stderr_console(), source is None and sys.stdin.isatty()
    alignment_sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if alignments is not None:
        alignment_sink = open_text_output(alignments, overwrite=overwrite)
    output_sink = open_text_output(output, overwrite=overwrite)
    with (
        output_sink as stream,
        alignment_sink as links,
        progress_bar(console, "translating", line_count, hidden=is_interactive) as bar,
    ):
        input_lines, source_lines = tee(read_lines(source))
        results = translator.stream(
            input_lines,
            constraints=None if constraints is None else _read_constraints(constraints, line_count),
            window=1 if is_interactive else DEFAULT_WINDOW,
            attention=alignments is not None,
            advance=lambda translated_lines: bar.advance(bar.task_ids[0], translated_lines),
            **decoding,
        )
        line_warnings = _write_translations(
            stream, links, zip(source_lines, results, strict=True), as_json=as_json, flush_lines=is_interactive
        )
    for warning in line_warnings.format_messages(
        get_source_limit(translator.inference_model.max_positions, config), config.max_extra_tokens
    ):
        console.print(warning, markup=False)
    if line_warnings.has_errors:
        sys.exit(3)


def _write_translations(
    stream: IO[str], links: IO[str] | None, pairs: Iterable[tuple[str, Translation]], *, as_json: bool, flush_lines: bool
) -> LineWarnings:
    """Write what became of each line, and give back what there is to say of them.

    at_once: somebody waits for each
    """
    from dragoman.formats.pharaoh import format_pharaoh

    line_warnings = LineWarnings()
    for line_number, (line, result) in enumerate(pairs, start=1):
        stream.write(_format_translation(line_number, line, result, as_json))
        if links is not None:
            links.write(format_pharaoh(result.alignment or ()) + "\n")
        line_warnings.add(line, result)
        if flush_lines:
            stream.flush()
    stream.flush()
    return line_warnings


def _read_constraints(path: Path, line_count: int | None) -> list[TranslationConstraints]:
    """What the file asks of each line. Raises DataError with its place for what is not an object, or too many or few."""
    import json

    from dragoman.errors import DataError
    from dragoman.formats.text import read_lines
    from dragoman.inference.constraints import parse_constraints

    constraints = []
    for line_number, line in enumerate(read_lines(path), start=1):
        location = f"{path}, line {line_number}"
        try:
            document = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise DataError(f"{location}: is not JSON: {error}") from None
        constraints.append(parse_constraints(document, location=location))
    if line_count is not None and len(constraints) != line_count:
        raise DataError(
            f"{path}: {len(constraints)} wordings for {line_count} lines: line n of one belongs to line n of the other"
        )
    return constraints


def _format_translation(line_number: int, line: str, result: Translation, as_json: bool) -> str:
    if not as_json:
        return result.text + "\n"
    import json

    def translation_to_dict(translation: Translation) -> dict[str, Any]:
        return {
            "text": translation.text,
            "score": translation.score,
            "status": translation.status,
            "tokens": translation.tokens,
            "token_log_probs": translation.token_log_probs,
            "missing": translation.unmet_constraints,
            **({} if translation.mbr_score is None else {"utility": translation.mbr_score}),
        }

    alternatives = [translation_to_dict(alternative) for alternative in result.alternatives]
    fields = {
        "line": line_number,
        "source": line,
        "parts": result.num_segments,
        **translation_to_dict(result),
        "alternatives": alternatives,
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"
