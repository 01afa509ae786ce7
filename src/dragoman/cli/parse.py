"""Sentences in, trees out: `parse`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from dragoman.engine import Parse

DRAWN = 5
"""Trees in a picture."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of standard output.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--with", "others", multiple=True, type=click.Path(path_type=Path), help="One more bundle for an ensemble.")
@click.option("--tokens", "tokenise", flag_value="no", default="no", help="White space parts the words; so it is by default.")
@click.option("--tokenise", "tokenise", flag_value="kept", help="Part words as the Penn treebank does; well-known is one.")
@click.option("--tokenise-hyphens", "tokenise", flag_value="split", help="Likewise, as OntoNotes and CRAFT do: well - known.")
@click.option("--tags", type=click.Path(path_type=Path), help="The words' tags, line by line, instead of predicted ones.")
@click.option("--tagged", is_flag=True, help="Words come with their tags: the_DT cat_NN.")
@click.option("--nbest", type=click.IntRange(min=1), help="Print the N best as line, rank, score and tree, tabs between them.")
@click.option("--unconstrained", is_flag=True, help="Let the model say anything, mend it, and tell how much was no tree.")
@click.option("--min-score", type=float, metavar="X", help="Leave a line empty whose tokens' mean log-probability is below X.")
@click.option("--svg", type=click.Path(path_type=Path), help=f"Write a picture of the first {DRAWN} trees here, too.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, …")
@click.option("--precision", default="auto", show_default=True, help="float32, bfloat16, int8; auto takes the fastest here.")
@click.option("--threads", type=int, help="Of a processor, for each replica; measured when not given.")
@click.option("--replicas", type=int, help="Batches computed side by side; measured when not given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with words, tags, brackets, score and status.")
def parse(
    bundle: Path,
    rest: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    others: tuple[Path, ...],
    tokenise: Literal["no", "kept", "split"],
    tags: Path | None,
    tagged: bool,
    nbest: int | None,
    unconstrained: bool,
    min_score: float | None,
    svg: Path | None,
    device: str,
    precision: str,
    threads: int | None,
    replicas: int | None,
    as_json: bool,
) -> None:
    """Parse FILE (or standard input), a sentence a line, with BUNDLE: brackets, a tree a line and in order.

    The output has exactly as many lines as the input, unless --nbest asks for more; a line without words stays empty. Every
    tree is well-formed and holds exactly the words of its line. KEY=VALUE changes a knob of the recipe's [decoding] section.
    Lines that were not parsed are empty, and named on standard error; the exit code is then 3. --min-score keeps what the model
    is sure of, to learn from beside gold trees.

    \b
    Example:  dragoman parse runs/parsing-craft/bundle test.txt -o test.mrg beam_size=10
              echo "It doesn't work." | dragoman parse runs/parsing-craft/bundle --tokenise-hyphens --svg tree.svg
              dragoman parse runs/parsing-craft/bundle raw.txt --min-score -0.05 -o silver.mrg
    """
    from dragoman.cli.arguments import count_lines, file_and_settings
    from dragoman.cli.screen import counting_bar, people
    from dragoman.engine.parser import WINDOW, load_parser
    from dragoman.storage import new_file, refuse_existing
    from dragoman.tasks.confident import Confidence
    from dragoman.tasks.translation import longest_source

    source, decoding = file_and_settings(rest)
    _refuse_together({"--tagged": tagged, "--tags": tags is not None, "--tokenise": tokenise != "no"})
    _refuse_together({"--nbest": nbest is not None, "--json": as_json}, why="; give --json nbest=N")
    _refuse_together({"--min-score": min_score is not None, "--nbest": nbest is not None})
    _refuse_together({"--min-score": min_score is not None, "--json": as_json}, why=": JSON has the token_log_probs of all")
    if nbest is not None:
        decoding["nbest"] = nbest
    if output is not None and svg is not None and output.resolve() == svg.resolve():
        raise click.UsageError(f"-o and --svg are one file, {svg}: give two", ctx=click.get_current_context())
    for path in (output, svg):
        if path is not None and not overwrite:
            refuse_existing(path)
    count = count_lines(source)
    parser = load_parser(bundle, *others, device=device, precision=precision, threads=threads, replicas=replicas)
    config = parser.check(decoding)
    console, typed = people(), source is None and sys.stdin.isatty()
    sink: AbstractContextManager[IO[str]] = nullcontext(sys.stdout) if output is None else new_file(output, overwrite=overwrite)
    numbers: dict[str, list[int]] = {}
    first: list[tuple[int, Parse]] = []
    kept = 0
    with sink as stream, counting_bar(console, "parsing", count, hidden=typed) as bar:
        given, own_tags = tee(_lines(source, tags, tagged=tagged, tokenise=tokenise))
        results = parser.stream(
            (words for words, _ in given),
            tags=(own for _, own in own_tags),
            constrained=not unconstrained,
            window=1 if typed else WINDOW,
            advance=lambda done: bar.advance(bar.task_ids[0], done),
            **decoding,
        )
        for number, result in enumerate(results, start=1):
            if min_score is not None and Confidence(min_score).doubt(result):
                stream.write("\n")
            else:
                kept += 1
                stream.write(_output(number, result, as_json=as_json, ranked=nbest is not None))
            numbers.setdefault("refused" if result.tree is None and result.words else result.status, []).append(number)
            if svg is not None and result.tree is not None and len(first) < DRAWN:
                first.append((number, result))
            if typed:
                stream.flush()
        stream.flush()
    longest = longest_source(parser.speaker.positions, config)
    for remark in _remarks(numbers, longest, config.extra_length, unconstrained=unconstrained):
        console.print(remark, markup=False)
    if min_score is not None:
        console.print(f"kept {kept} of {sum(map(len, numbers.values()))} lines", markup=False)
    if svg is not None and (first or "refused" not in numbers):
        _draw(svg, first, overwrite=overwrite)
    if "refused" in numbers:
        sys.exit(3)


def _refuse_together(given: dict[str, bool], why: str = "") -> None:
    if len(names := [name for name, there in given.items() if there]) > 1:
        raise click.UsageError(f"{names[0]} and {names[1]} do not go together{why}", ctx=click.get_current_context())


def _lines(
    source: Path | None, tags: Path | None, *, tagged: bool, tokenise: Literal["no", "kept", "split"]
) -> Iterator[tuple[list[str], list[str] | None]]:
    """The words of each line, and their tags if they are given. Raises DataError naming file and line."""
    from dragoman.cleaning.words import penn_words
    from dragoman.errors import DataError
    from dragoman.formats.lines import name_of, read_lines
    from dragoman.trees.penn import split_words

    name, beside = name_of(source), None if tags is None else read_lines(tags)
    number = 0
    for number, line in enumerate(read_lines(source), start=1):
        words = split_words(line) if tokenise == "no" else penn_words(line, hyphens=tokenise)
        own: list[str] | None = None
        if tagged:
            words, own = _parted(words, f"{name}, line {number}")
        elif beside is not None:
            if (told := next(beside, None)) is None:
                raise DataError(
                    f"{tags}: has {number - 1} lines, fewer than {name}: line n of one belongs to line n of the other"
                )
            own = split_words(told)
            if len(own) != len(words):
                raise DataError(f"{tags}, line {number}: {len(own)} tags for the {len(words)} words of {name}")
        yield words, own
    if beside is not None and next(beside, None) is not None:
        raise DataError(f"{tags}: has more than the {number} lines of {name}: line n of one belongs to line n of the other")


def _parted(tokens: Sequence[str], where: str) -> tuple[list[str], list[str]]:
    """Words and tags of `the_DT cat_NN`. Raises DataError for what has no tag."""
    from dragoman.errors import DataError

    parts = [token.rpartition("_") for token in tokens]
    for token, (word, _, tag) in zip(tokens, parts, strict=True):
        if not word or not tag:
            raise DataError(f"{where}: {token[:40]!r} is no word with its tag; write word_TAG, such as cat_NN")
    return [word for word, _, _ in parts], [tag for _, _, tag in parts]


def _output(number: int, result: Parse, *, as_json: bool, ranked: bool) -> str:
    if as_json:
        import json

        whole = {"line": number, "words": result.words, **_entry(result)}
        return json.dumps({**whole, "alternatives": [_entry(one) for one in result.alternatives]}, ensure_ascii=False) + "\n"
    if not ranked:
        return result.brackets + "\n"
    ranks = enumerate((result, *result.alternatives) if result.tree is not None else (), start=1)
    return "".join(f"{number}\t{rank}\t{one.score:.4f}\t{one.brackets}\n" for rank, one in ranks)


def _entry(one: Parse) -> dict[str, Any]:
    return {
        "tree": one.brackets,
        "tags": one.tags,
        "brackets": [{"label": label, "start": start, "end": end} for label, start, end in one.spans],
        "score": one.score,
        "status": one.status,
        "mended": one.mended,
        "tokens": one.tokens,
        "token_log_probs": one.token_log_probs,
    }


def _draw(path: Path, first: Sequence[tuple[int, Parse]], *, overwrite: bool) -> None:
    from dragoman.errors import DataError
    from dragoman.storage import new_file
    from dragoman.views.tree import Drawing, trees_picture

    if not first:
        raise DataError(f"{path}: no line has a tree, so there is nothing to draw")
    drawings = [Drawing(one.words, one.spans, one.tags, f"line {number}" if len(first) > 1 else "") for number, one in first]
    with new_file(path, overwrite=overwrite) as stream:
        stream.write(trees_picture(drawings))


def _remarks(numbers: dict[str, list[int]], longest: int, extra: int, *, unconstrained: bool) -> Iterator[str]:
    from dragoman.cli.arguments import named

    if "refused" in numbers:
        why = f"more than {longest} tokens, or decoding.extra_length = {extra} leaves no room for a tree"
        yield f"lines left unparsed ({why}): {named(numbers['refused'])}"
    if unconstrained:
        malformed = sorted(numbers.get("mended", []) + numbers.get("truncated", []))
        parsed = len(malformed) + len(numbers.get("ok", []))
        share = f"{len(malformed) / parsed:.2%}" if parsed else "none"
        yield f"malformed and mended: {share} of {parsed} lines" + (f": {named(malformed)}" if malformed else "")
