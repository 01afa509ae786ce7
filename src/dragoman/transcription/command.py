"""Command `transcribe`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dragoman.console.options import (
    REFUSED_FILES,
    bundle_argument,
    check_output_paths,
    json_option,
    open_text_output,
    option,
    output_path_option,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    print_note,
    shared,
    usage_error,
    with_options,
)
from dragoman.languages import to_language_code

if TYPE_CHECKING:
    from dragoman.transcription.transcript import TranscriptFormat


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """Options of `dragoman transcribe`."""

    bundle: Path = shared(bundle_argument)
    arguments: tuple[str, ...] = shared(click.argument("arguments", nargs=-1, required=True, metavar="FILE... [KEY=VALUE]..."))
    output: Path | None = shared(
        output_path_option("File to write instead of standard output; for several recordings, a folder.")
    )
    overwrite: bool = shared(overwrite_option("Replace files that exist."))
    output_format: TranscriptFormat = option(
        "--to",
        "output_format",
        type=click.Choice(["text", "srt", "vtt", "json"]),
        default="text",
        show_default=True,
        help="text: a line for each segment. srt, vtt: subtitles. json: text, language and segments with times.",
    )
    as_json: bool = shared(json_option("The same as --to json."))
    language: str | None = option(
        "--language",
        metavar="CODE",
        type=to_language_code,
        help="Spoken language, such as de.  [default: detected in each recording]",
    )
    task: Literal["transcribe", "translate"] = option(
        "--task",
        type=click.Choice(["transcribe", "translate"]),
        default="transcribe",
        show_default=True,
        help="transcribe: write the spoken language. translate: write English.",
    )
    prompt: str = option(
        "--prompt", metavar="TEXT", default="", help="Text that each window continues, such as names as they are spelled."
    )
    precision: str = shared(precision_option())


@click.command()
@with_options(TranscribeOptions)
def transcribe(args: TranscribeOptions) -> None:
    """Write what is said in each FILE, with a model of speech such as Whisper that `dragoman convert` has made a BUNDLE.

    WAV, FLAC, OGG, MP3 and AIFF are read at any rate, with any number of channels and of any length. KEY=VALUE changes a key of
    the recipe's [decoding] section. A file that cannot be read is named on standard error, and the exit status is then 4.

    \b
    Example:  dragoman convert openai/whisper-tiny -o whisper-tiny
              dragoman transcribe whisper-tiny interview.mp3 --to srt -o interview.srt
              dragoman transcribe whisper-tiny calls/*.wav --language de --to json -o texts method=beam
    """
    from dragoman.errors import DataError
    from dragoman.io.storage import make_output_dir
    from dragoman.transcription.transcriber import Transcriber

    settings = [argument for argument in args.arguments if "=" in argument and not os.path.exists(argument)]
    files = [Path(argument) for argument in args.arguments if argument not in settings]
    if not files:
        raise usage_error("no FILE is given; name a recording")
    output_format: TranscriptFormat = "json" if args.as_json else args.output_format
    if len(files) > 1 and args.output is None and output_format in ("srt", "vtt"):
        raise usage_error(f"{len(files)} recordings as {output_format} need a folder; give -o FOLDER")
    outputs = dict(_iter_outputs(files, args.output, output_format))
    check_output_paths(*outputs.values(), overwrite=args.overwrite, input_paths=[*files, args.bundle])
    decoding = parse_decoding_overrides(settings)
    transcriber = Transcriber.load(args.bundle, precision=args.precision)
    num_refused = 0
    for path, output in outputs.items():
        try:
            transcript = transcriber.transcribe(path, language=args.language, task=args.task, prompt=args.prompt, **decoding)
        except DataError as error:
            if len(files) == 1 or error.code in ("unsupported-language", "invalid-argument"):
                raise
            print_note(str(error))
            num_refused += 1
            continue
        if not transcript.text:
            print_note(f"{path}: no speech was found in {transcript.duration:.1f} s")
        if output is not None:
            make_output_dir(output.parent)
        with open_text_output(output, overwrite=args.overwrite) as stream:
            stream.write(transcript.format(output_format))
            stream.flush()
    if num_refused:
        sys.exit(REFUSED_FILES)


def _iter_outputs(
    files: list[Path], output: Path | None, output_format: TranscriptFormat
) -> Iterator[tuple[Path, Path | None]]:
    """Yield each recording and its output file. Raise UsageError for two with one name."""
    from dragoman.transcription.transcript import SUFFIXES

    names: dict[str, Path] = {}
    for path in files:
        if output is None or len(files) == 1:
            yield path, output
            continue
        name = path.stem + SUFFIXES[output_format]
        if names.setdefault(name, path) != path:
            raise usage_error(f"{names[name]} and {path} would both become {output / name}; transcribe them one by one")
        yield path, output / name
