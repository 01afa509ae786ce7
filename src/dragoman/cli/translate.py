"""Text in, text out: `translate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.errors import RecipeError

if TYPE_CHECKING:
    from dragoman.config import DecodingConfig
    from dragoman.engine import Translation, Translator

CHUNK = 2048
NAMED_LINES = 5


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of standard output.")
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@click.option("--with", "others", multiple=True, type=click.Path(path_type=Path), help="One more bundle for an ensemble.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with score, tokens, status and alternatives.")
def translate(
    bundle: Path, rest: tuple[str, ...], output: Path | None, overwrite: bool, others: tuple[Path, ...], as_json: bool
) -> None:
    """Translate FILE (or standard input) line by line with BUNDLE.

    The output has exactly as many lines as the input, in order, empty lines included. KEY=VALUE changes a knob of the recipe's
    [decoding] section. Lines that could not be translated whole are named on standard error, and the exit code is then 3.
    With nbest=N, the others are in the JSON of --json alone.

    \b
    Example:  dragoman translate runs/multi30k-ende/bundle test.en -o test.de beam_size=5
              echo "March 3, 2025" | dragoman translate runs/quickstart-de/bundle
    """
    from dragoman.cli.screen import counting_bar, people
    from dragoman.engine import load
    from dragoman.formats.lines import read_lines
    from dragoman.storage import new_file, refuse_existing

    source, decoding = _split(rest)
    if output is not None and not overwrite:
        refuse_existing(output)
    count = _count(source)
    translator = load(bundle, *others)
    config = translator.check(decoding)
    lines = read_lines(source)
    sink: AbstractContextManager[IO[str]] = nullcontext(sys.stdout) if output is None else new_file(output, overwrite=overwrite)
    console = people()
    remarks: dict[str, list[int]] = {}
    typed = source is None and sys.stdin.isatty()
    with sink as stream, counting_bar(console, "translating", count, hidden=typed) as bar:
        first = 0
        for chunk in _chunks(lines, 1 if typed else CHUNK):
            results = translator.translate(
                chunk, first=first, advance=lambda done: bar.advance(bar.task_ids[0], done), **decoding
            )
            for number, (line, result) in enumerate(zip(chunk, results, strict=True), start=first + 1):
                stream.write(_output(number, line, result, as_json))
                if result.status in ("unfinished", "too long"):
                    remarks.setdefault(result.status, []).append(number)
            first += len(chunk)
            stream.flush()
    for status, numbers in remarks.items():
        console.print(_remark(status, numbers, translator, config), markup=False)
    if remarks:
        sys.exit(3)


def _split(rest: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """FILE and the decoding knobs, told apart by their equals sign."""
    from dragoman.config import parse_setting

    decoding: dict[str, Any] = {}
    files = []
    for word in rest:
        if "=" in word and not os.path.exists(word):
            key, value = parse_setting(word)
            decoding[key.removeprefix("decoding.")] = value
        else:
            files.append(Path(word))
    if len(files) > 1:
        raise RecipeError(f"{files[1]}: one file at a time; settings are written key=value")
    return (files[0] if files else None), decoding


def _count(source: Path | None) -> int | None:
    """How many lines there are to do, where a file can tell; a mistake in one of them comes out before any work is done."""
    from dragoman.formats.lines import read_lines

    if source is None or (source.exists() and not source.is_file()):
        return None
    return sum(1 for _ in read_lines(source))


def _chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(lines, size)):
        yield chunk


def _output(number: int, line: str, result: Translation, as_json: bool) -> str:
    if not as_json:
        return result.text + "\n"
    import json

    def entry(one: Translation) -> dict[str, Any]:
        return {
            "text": one.text,
            "score": one.score,
            "status": one.status,
            "tokens": one.tokens,
            "token_log_probs": one.token_log_probs,
        }

    whole = {"line": number, "source": line, **entry(result), "alternatives": [entry(one) for one in result.alternatives]}
    return json.dumps(whole, ensure_ascii=False) + "\n"


def _remark(status: str, numbers: list[int], translator: Translator, decoding: DecodingConfig) -> str:
    from dragoman.tasks.translation import longest_source

    places = ", ".join(map(str, numbers[:NAMED_LINES])) + (", …" if len(numbers) > NAMED_LINES else "")
    if status == "too long":
        most = longest_source(translator.models, decoding)
        return f"lines left empty, since they have more than {most} tokens: {len(numbers)} ({places})"
    return (
        f"lines cut, since their translation did not end within the input's length + {decoding.extra_length} tokens: "
        f"{len(numbers)} ({places})"
    )
