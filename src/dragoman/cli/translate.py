"""Text in, text out: `translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.cli.line_report import Remarks
from dragoman.cli.options import OUTPUT, count_lines, file_and_settings, placed, refuse_old, text_sink

if TYPE_CHECKING:
    from dragoman.inference.constraints import Wording
    from dragoman.inference.session import Placing
    from dragoman.inference.translation import Translation


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@OUTPUT
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
@placed
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with score, tokens, status and alternatives.")
def translate(
    bundle: Path,
    rest: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    others: tuple[Path, ...],
    wordings: Path | None,
    alignments: Path | None,
    shortlist: Path | None,
    placing: Placing,
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
    from dragoman.cli.console import counting_bar, people
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import WINDOW, load
    from dragoman.tasks.translation import longest_source

    source, decoding = file_and_settings(rest)
    if output is not None and alignments is not None and output.resolve() == alignments.resolve():
        raise click.UsageError(f"-o and --alignments both name {output}", ctx=click.get_current_context())
    refuse_old(output, alignments, overwrite=overwrite, read=[source, wordings, bundle, *others, shortlist])
    count = count_lines(source)
    translator = load(bundle, *others, shortlist=shortlist, **placing)
    config = translator.check(decoding)
    console, typed = people(), source is None and sys.stdin.isatty()
    beside: AbstractContextManager[IO[str] | None] = nullcontext()
    if alignments is not None:
        beside = text_sink(alignments, overwrite=overwrite)
    sink = text_sink(output, overwrite=overwrite)
    with sink as stream, beside as links, counting_bar(console, "translating", count, hidden=typed) as bar:
        given, kept = tee(read_lines(source))
        results = translator.stream(
            given,
            wordings=None if wordings is None else _wordings(wordings, count),
            window=1 if typed else WINDOW,
            attention=alignments is not None,
            advance=lambda done: bar.advance(bar.task_ids[0], done),
            **decoding,
        )
        remarks = _written(stream, links, zip(kept, results, strict=True), as_json=as_json, at_once=typed)
    for sentence in remarks.sentences(longest_source(translator.speaker.positions, config), config.max_extra_tokens):
        console.print(sentence, markup=False)
    if remarks.grave:
        sys.exit(3)


def _written(
    stream: IO[str], links: IO[str] | None, pairs: Iterable[tuple[str, Translation]], *, as_json: bool, at_once: bool
) -> Remarks:
    """Write what became of each line, and give back what there is to say of them.

    at_once: somebody waits for each
    """
    from dragoman.formats.pharaoh import pharaoh

    remarks = Remarks()
    for number, (line, result) in enumerate(pairs, start=1):
        stream.write(_output(number, line, result, as_json))
        if links is not None:
            links.write(pharaoh(result.alignment or ()) + "\n")
        remarks.add(line, result)
        if at_once:
            stream.flush()
    stream.flush()
    return remarks


def _wordings(path: Path, count: int | None) -> list[Wording]:
    """What the file asks of each line. Raises DataError with its place for what is not an object, or too many or few."""
    import json

    from dragoman.errors import DataError
    from dragoman.formats.text import read_lines
    from dragoman.inference.constraints import wording_from_json

    found = []
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            document = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: is not JSON: {error}") from None
        found.append(wording_from_json(document, where=where))
    if count is not None and len(found) != count:
        raise DataError(f"{path}: {len(found)} wordings for {count} lines: line n of one belongs to line n of the other")
    return found


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
            "missing": one.missing,
            **({} if one.utility is None else {"utility": one.utility}),
        }

    others = [entry(one) for one in result.alternatives]
    whole = {"line": number, "source": line, "parts": result.parts, **entry(result), "alternatives": others}
    return json.dumps(whole, ensure_ascii=False) + "\n"
