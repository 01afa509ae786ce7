"""Command `translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.cli.exit_statuses import INCOMPLETE_LINES
from dragoman.cli.line_report import LineWarnings
from dragoman.cli.options import (
    PATH_TYPE,
    bundle_argument,
    check_output_paths,
    count_lines,
    device_options,
    input_arguments,
    json_option,
    open_text_output,
    output_option,
    overwrite_option,
    parse_file_and_settings,
    window_option,
)
from dragoman.cli.windows import is_interactive_input, is_live_input, read_windows

if TYPE_CHECKING:
    from dragoman.inference.session import DeviceOptions
    from dragoman.inference.translation_constraints import TranslationConstraints
    from dragoman.inference.translation_result import Translation


@click.command()
@bundle_argument
@input_arguments
@output_option
@overwrite_option()
@click.option(
    "--constraints", type=PATH_TYPE, help="Constraints of each translation: one JSON object a line (see the guide to search)."
)
@click.option("--alignments", type=PATH_TYPE, help="Write word alignments to this file: `i-j` from 0, line by line.")
@click.option("--shortlist", type=PATH_TYPE, help="Compute only likely tokens: a folder of `dragoman shortlist`.")
@window_option
@device_options
@json_option("Print one JSON object a line, with score, tokens, status and alternatives.")
def translate(
    bundle: Path,
    arguments: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    ensemble: tuple[Path, ...],
    constraints: Path | None,
    alignments: Path | None,
    shortlist: Path | None,
    window: int | None,
    device_options: DeviceOptions,
    as_json: bool,
) -> None:
    """Translate FILE line by line with BUNDLE. Without FILE, or for `-`, translate standard input.

    The output has as many lines as the input, in the same order. A line without text comes back unchanged. KEY=VALUE changes a
    key of the recipe's [decoding] section. A line that is longer than the model reads is translated in segments. If a line
    is incomplete, standard error names it and the exit status is 3. Only --json prints the alternatives of nbest=N. Lines
    from a terminal or a pipe are translated as they arrive.

    \b
    Example:  dragoman translate runs/multi30k-ende/bundle test.en -o test.de beam_size=5
              echo "March 3, 2025" | dragoman translate runs/quickstart-de/bundle
    """
    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import load_translator
    from dragoman.tasks.translation import get_source_limit

    source, decoding = parse_file_and_settings(arguments)
    if output is not None and alignments is not None and output.resolve() == alignments.resolve():
        raise click.UsageError(f"-o and --alignments both name {output}; give two names", ctx=click.get_current_context())
    check_output_paths(output, alignments, overwrite=overwrite, input_paths=[source, constraints, bundle, *ensemble, shortlist])
    line_count = count_lines(source)
    translator = load_translator(bundle, *ensemble, shortlist=shortlist, **device_options)
    config = translator.resolve_decoding(decoding)
    line_constraints = None if constraints is None else _read_constraints(constraints, line_count)
    console = stderr_console()
    alignment_sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if alignments is not None:
        alignment_sink = open_text_output(alignments, overwrite=overwrite)
    line_warnings = LineWarnings()
    with (
        open_text_output(output, overwrite=overwrite) as stream,
        alignment_sink as links,
        progress_bar(console, "translating", line_count, hidden=is_interactive_input(source)) as bar,
    ):

        def translate_windows() -> Iterator[tuple[str, Translation]]:
            start_index = 0
            for lines in read_windows(read_lines(source), source, window):
                results = translator.translate(
                    lines,
                    start_index=start_index,
                    constraints=_select_constraints(constraints, line_constraints, start_index, len(lines)),
                    attention=alignments is not None,
                    on_progress=bar.advance,
                    **decoding,
                )
                yield from zip(lines, results, strict=True)
                start_index += len(lines)
            _check_all_constraints_used(constraints, line_constraints, start_index)

        flush_lines = is_live_input(source)
        for line_number, (line, result) in enumerate(translate_windows(), start=1):
            _write_translation(stream, links, line_number, line, result, as_json=as_json)
            line_warnings.add(line, result)
            if flush_lines:
                stream.flush()
        stream.flush()
    for warning in line_warnings.format_messages(
        get_source_limit(translator.inference_model.max_positions, config), config.max_extra_tokens
    ):
        console.print(warning, markup=False)
    if line_warnings.has_errors:
        sys.exit(INCOMPLETE_LINES)


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
    if line_count is not None and len(constraints) != line_count:
        raise DataError(f"{path}: has {len(constraints)} constraints for {line_count} lines; give one for each line")
    return constraints


def _select_constraints(
    path: Path | None, constraints: Sequence[TranslationConstraints] | None, start_index: int, count: int
) -> Sequence[TranslationConstraints] | None:
    """Return the constraints of the next lines. Raises DataError if there are too few."""
    from dragoman.errors import DataError

    if constraints is None:
        return None
    selected = constraints[start_index : start_index + count]
    if len(selected) < count:
        raise DataError(f"{path}: has {len(constraints)} constraints, fewer than the input has lines; give one for each line")
    return selected


def _check_all_constraints_used(path: Path | None, constraints: Sequence[Any] | None, line_count: int) -> None:
    """Raise DataError if there are more constraints than lines."""
    from dragoman.errors import DataError

    if constraints is not None and len(constraints) > line_count:
        raise DataError(f"{path}: has {len(constraints)} constraints for {line_count} lines; give one for each line")


def _write_translation(
    stream: IO[str], links: IO[str] | None, line_number: int, line: str, result: Translation, *, as_json: bool
) -> None:
    from dragoman.formats.pharaoh import format_pharaoh

    stream.write((_to_json_line(line_number, line, result) if as_json else result.text) + "\n")
    if links is not None:
        links.write(format_pharaoh(result.alignment or ()) + "\n")


def _to_json_line(line_number: int, line: str, result: Translation) -> str:
    import json

    from dragoman.cli.json_outputs import TranslationAlternative, TranslationLine, to_json_dict

    def get_fields(translation: Translation) -> dict[str, Any]:
        return {
            "text": translation.text,
            "score": translation.score,
            "status": translation.status,
            "tokens": translation.tokens,
            "token_log_probs": translation.token_log_probs,
            "unmet_constraints": translation.unmet_constraints,
            "mbr_score": translation.mbr_score,
        }

    alternatives = [TranslationAlternative(**get_fields(alternative)) for alternative in result.alternatives]
    output = TranslationLine(
        line=line_number,
        source=line,
        num_segments=result.num_segments,
        alternatives=alternatives,
        **get_fields(result),
    )
    return json.dumps(to_json_dict(output), ensure_ascii=False)
