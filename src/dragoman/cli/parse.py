"""Sentences in, trees out: `parse`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from dragoman.cli.options import OUTPUT, FiniteNumber, count_lines, file_and_settings, named, placed, refuse_old, text_sink

if TYPE_CHECKING:
    from dragoman.inference.parse import Parse
    from dragoman.inference.session import Placing

DRAWN = 5
"""Trees in a picture."""
APART = {
    ("--tagged", "--tags", "--tokenise", "--tokenise-hyphens"): "",
    ("--nbest", "--json"): "; give --json nbest=N",
    ("--min-score", "--nbest"): "",
    ("--min-score", "--json"): ": JSON has the token_log_probs of all",
}
"""Options of which one alone can be given, and what to do instead."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@OUTPUT
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--tokens", "tokenise", flag_value="no", default="no", help="White space parts the words; so it is by default.")
@click.option("--tokenise", "tokenise", flag_value="kept", help="Part words as the Penn treebank does; well-known is one.")
@click.option("--tokenise-hyphens", "tokenise", flag_value="split", help="Likewise, as OntoNotes and CRAFT do: well - known.")
@click.option("--tags", type=click.Path(path_type=Path), help="The words' tags, line by line, instead of predicted ones.")
@click.option("--tagged", is_flag=True, help="Words come with their tags: the_DT cat_NN.")
@click.option("--nbest", type=click.IntRange(min=1), help="Print the N best as line, rank, score and tree, tabs between them.")
@click.option("--unconstrained", is_flag=True, help="Let the model say anything, mend it, and tell how much was no tree.")
@click.option(
    "--min-score", type=FiniteNumber(), metavar="X", help="Leave a line empty whose tokens' mean log-probability is below X."
)
@click.option("--svg", type=click.Path(path_type=Path), help=f"Write a picture of the first {DRAWN} trees here, too.")
@placed
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
    placing: Placing,
    as_json: bool,
) -> None:
    """Parse FILE (or standard input, also as `-`), a sentence a line, with BUNDLE: brackets, a tree a line and in order.

    The output has exactly as many lines as the input, unless --nbest asks for more; a line without words stays empty. Every
    tree is well-formed and holds exactly the words of its line. KEY=VALUE changes a knob of the recipe's [decoding] section.
    Lines that were not parsed are empty, and named on standard error; the exit code is then 3. --min-score keeps what the model
    is sure of, to learn from beside gold trees.

    \b
    Example:  dragoman parse runs/parsing-craft/bundle test.txt -o test.mrg beam_size=10
              echo "It doesn't work." | dragoman parse runs/parsing-craft/bundle --tokenise-hyphens --svg tree.svg
              dragoman parse runs/parsing-craft/bundle raw.txt --min-score -0.05 -o silver.mrg
    """
    from dragoman.cli.console import counting_bar, people
    from dragoman.inference.parser import WINDOW, load_parser
    from dragoman.tasks.translation import longest_source

    source, decoding = file_and_settings(rest)
    given = {"--tagged": tagged, "--tags": tags is not None, "--json": as_json}
    given |= {"--tokenise": tokenise == "kept", "--tokenise-hyphens": tokenise == "split"}
    _refuse_together({**given, "--nbest": nbest is not None, "--min-score": min_score is not None})
    if nbest is not None:
        decoding["nbest"] = nbest
    if output is not None and svg is not None and output.resolve() == svg.resolve():
        raise click.UsageError(f"-o and --svg are one file, {svg}: give two", ctx=click.get_current_context())
    refuse_old(output, svg, overwrite=overwrite, read=[source, tags, bundle, *others])
    count = count_lines(source)
    parser = load_parser(bundle, *others, **placing)
    config = parser.check(decoding)
    console, typed = people(), source is None and sys.stdin.isatty()
    with text_sink(output, overwrite=overwrite) as stream, counting_bar(console, "parsing", count, hidden=typed) as bar:
        lines, own_tags = tee(_lines(source, tags, tagged=tagged, tokenise=tokenise))
        results = parser.stream(
            (words for words, _ in lines),
            tags=(own for _, own in own_tags),
            constrained=not unconstrained,
            window=1 if typed else WINDOW,
            advance=lambda some: bar.advance(bar.task_ids[0], some),
            **decoding,
        )
        done = _written(stream, results, min_score, as_json=as_json, ranked=nbest is not None, at_once=typed)
    longest = longest_source(parser.speaker.positions, config)
    for remark in done.remarks(longest, config.max_extra_tokens, unconstrained=unconstrained):
        console.print(remark, markup=False)
    if min_score is not None:
        console.print(f"kept {done.kept} of {sum(map(len, done.numbers.values()))} lines", markup=False)
    if svg is not None and (done.first or "refused" not in done.numbers):
        _draw(svg, done.first, overwrite=overwrite)
    if "refused" in done.numbers:
        sys.exit(3)


@dataclass
class Done:
    """What became of the lines.

    numbers: of those that came to each status, or were refused
    first: the first that have a tree, which a picture shows
    """

    numbers: dict[str, list[int]] = field(default_factory=dict)
    first: list[tuple[int, Parse]] = field(default_factory=list)
    kept: int = 0

    def add(self, number: int, result: Parse, *, kept: bool) -> None:
        self.numbers.setdefault("refused" if result.tree is None and result.words else result.status, []).append(number)
        if result.tree is not None and len(self.first) < DRAWN:
            self.first.append((number, result))
        self.kept += kept

    def remarks(self, longest: int, extra: int, *, unconstrained: bool) -> Iterator[str]:
        """What people are told of them."""
        if refused := self.numbers.get("refused"):
            why = f"more than {longest} tokens, or decoding.max_extra_tokens = {extra} leaves no room for a tree"
            yield f"lines left unparsed ({why}): {named(refused)}"
        if unconstrained:
            malformed = sorted(self.numbers.get("mended", []) + self.numbers.get("truncated", []))
            parsed = len(malformed) + len(self.numbers.get("ok", []))
            share = f"{len(malformed) / parsed:.2%}" if parsed else "none"
            yield f"malformed and mended: {share} of {parsed} lines" + (f": {named(malformed)}" if malformed else "")


def _written(
    stream: IO[str], results: Iterable[Parse], least: float | None, *, as_json: bool, ranked: bool, at_once: bool
) -> Done:
    """Write what became of each line; nothing of one that is less certain than `least`.

    at_once: somebody waits for each
    """
    from dragoman.tasks.parse_confidence import Confidence

    done = Done()
    for number, result in enumerate(results, start=1):
        doubted = least is not None and Confidence(least).doubt(result) is not None
        stream.write("\n" if doubted else _output(number, result, as_json=as_json, ranked=ranked))
        done.add(number, result, kept=not doubted)
        if at_once:
            stream.flush()
    stream.flush()
    return done


def _refuse_together(given: dict[str, bool]) -> None:
    for options, why in APART.items():
        if len(names := [name for name in options if given[name]]) > 1:
            raise click.UsageError(f"{names[0]} and {names[1]} do not go together{why}", ctx=click.get_current_context())


def _lines(
    source: Path | None, tags: Path | None, *, tagged: bool, tokenise: Literal["no", "kept", "split"]
) -> Iterator[tuple[list[str], list[str] | None]]:
    """The words of each line, and their tags if they are given. Raises DataError naming file and line."""
    from dragoman.errors import DataError
    from dragoman.formats.text import name_of, read_lines
    from dragoman.trees.ptb import split_words
    from dragoman.trees.ptb_tokenizer import penn_words

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
    from dragoman.io.storage import new_file
    from dragoman.viz.tree_diagram import Drawing, trees_picture

    if not first:
        raise DataError(f"{path}: no line has a tree, so there is nothing to draw")
    drawings = [Drawing(one.words, one.spans, one.tags, f"line {number}" if len(first) > 1 else "") for number, one in first]
    with new_file(path, overwrite=overwrite) as stream:
        stream.write(trees_picture(drawings))
