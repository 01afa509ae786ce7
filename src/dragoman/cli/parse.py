"""Sentences in, trees out: `parse`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from dragoman.cli.options import (
    OUTPUT_OPTION,
    FiniteNumber,
    add_device_options,
    check_output_paths,
    count_lines,
    format_line_numbers,
    open_text_output,
    parse_file_and_settings,
)

if TYPE_CHECKING:
    from dragoman.inference.parse import Parse
    from dragoman.inference.session import DeviceOptions

MAX_DRAWN_TREES = 5
"""Trees in a picture."""
EXCLUSIVE_OPTIONS = {
    ("--tagged", "--tags", "--tokenise", "--tokenise-hyphens"): "",
    ("--nbest", "--json"): "; give --json nbest=N",
    ("--min-score", "--nbest"): "",
    ("--min-score", "--json"): ": JSON has the token_log_probs of all",
}
"""Options of which one alone can be given, and what to do instead."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("rest", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@OUTPUT_OPTION
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
@click.option("--svg", type=click.Path(path_type=Path), help=f"Write a picture of the first {MAX_DRAWN_TREES} trees here, too.")
@add_device_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with words, tags, brackets, score and status.")
def parse(
    bundle: Path,
    arguments: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    ensemble: tuple[Path, ...],
    tokenize: Literal["no", "kept", "split"],
    tags: Path | None,
    tagged: bool,
    nbest: int | None,
    unconstrained: bool,
    min_score: float | None,
    svg: Path | None,
    device_options: DeviceOptions,
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
    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.inference.parser import DEFAULT_WINDOW, load_parser
    from dragoman.tasks.translation import get_source_limit

    source, decoding = parse_file_and_settings(arguments)
    used_options = {"--tagged": tagged, "--tags": tags is not None, "--json": as_json}
    used_options |= {"--tokenise": tokenize == "kept", "--tokenise-hyphens": tokenize == "split"}
    _check_exclusive_options({**used_options, "--nbest": nbest is not None, "--min-score": min_score is not None})
    if nbest is not None:
        decoding["nbest"] = nbest
    if output is not None and svg is not None and output.resolve() == svg.resolve():
        raise click.UsageError(f"-o and --svg are one file, {svg}: give two", ctx=click.get_current_context())
    check_output_paths(output, svg, overwrite=overwrite, input_paths=[source, tags, bundle, *ensemble])
    line_count = count_lines(source)
    parser = load_parser(bundle, *ensemble, **device_options)
    config = parser.resolve_decoding(decoding)
    console, is_interactive = stderr_console(), source is None and sys.stdin.isatty()
    with (
        open_text_output(output, overwrite=overwrite) as stream,
        progress_bar(console, "parsing", line_count, hidden=is_interactive) as bar,
    ):
        lines, tagged_lines = tee(_read_sentences(source, tags, tagged=tagged, tokenize=tokenize))
        results = parser.stream(
            (words for words, _ in lines),
            tags=(line_tags for _, line_tags in tagged_lines),
            constrained=not unconstrained,
            window=1 if is_interactive else DEFAULT_WINDOW,
            advance=lambda parsed_lines: bar.advance(bar.task_ids[0], parsed_lines),
            **decoding,
        )
        summary = _write_parses(
            stream, results, min_score, as_json=as_json, with_ranks=nbest is not None, flush_lines=is_interactive
        )
    max_source_tokens = get_source_limit(parser.inference_model.max_positions, config)
    for warning in summary.format_warnings(max_source_tokens, config.max_extra_tokens, unconstrained=unconstrained):
        console.print(warning, markup=False)
    if min_score is not None:
        console.print(f"kept {summary.kept_count} of {sum(map(len, summary.line_numbers.values()))} lines", markup=False)
    if svg is not None and (summary.first_parses or "refused" not in summary.line_numbers):
        _draw_trees(svg, summary.first_parses, overwrite=overwrite)
    if "refused" in summary.line_numbers:
        sys.exit(3)


@dataclass
class ParseSummary:
    """What became of the lines.

    numbers: of those that came to each status, or were refused
    first: the first that have a tree, which a picture shows
    """

    line_numbers: dict[str, list[int]] = field(default_factory=dict)
    first_parses: list[tuple[int, Parse]] = field(default_factory=list)
    kept_count: int = 0

    def add(self, line_number: int, result: Parse, *, is_kept: bool) -> None:
        self.line_numbers.setdefault("refused" if result.tree is None and result.words else result.status, []).append(
            line_number
        )
        if result.tree is not None and len(self.first_parses) < MAX_DRAWN_TREES:
            self.first_parses.append((line_number, result))
        self.kept_count += is_kept

    def format_warnings(self, max_source_tokens: int, max_extra_tokens: int, *, unconstrained: bool) -> Iterator[str]:
        """What people are told of them."""
        if unparsed_lines := self.line_numbers.get("refused"):
            reason = f"more than {max_source_tokens} tokens, or decoding.max_extra_tokens = {max_extra_tokens} leaves no room for a tree"
            yield f"lines left unparsed ({reason}): {format_line_numbers(unparsed_lines)}"
        if unconstrained:
            malformed_lines = sorted(self.line_numbers.get("mended", []) + self.line_numbers.get("truncated", []))
            parsed_count = len(malformed_lines) + len(self.line_numbers.get("ok", []))
            malformed_share = f"{len(malformed_lines) / parsed_count:.2%}" if parsed_count else "none"
            yield f"malformed and mended: {malformed_share} of {parsed_count} lines" + (
                f": {format_line_numbers(malformed_lines)}" if malformed_lines else ""
            )


def _write_parses(
    stream: IO[str], results: Iterable[Parse], min_score: float | None, *, as_json: bool, with_ranks: bool, flush_lines: bool
) -> ParseSummary:
    """Write what became of each line; nothing of one that is less certain than `least`.

    at_once: somebody waits for each
    """
    from dragoman.tasks.parse_confidence import ConfidenceFilter

    summary = ParseSummary()
    for line_number, result in enumerate(results, start=1):
        is_rejected = min_score is not None and ConfidenceFilter(min_score).find_rejection(result) is not None
        stream.write("\n" if is_rejected else _format_parse(line_number, result, as_json=as_json, with_ranks=with_ranks))
        summary.add(line_number, result, is_kept=not is_rejected)
        if flush_lines:
            stream.flush()
    stream.flush()
    return summary


def _check_exclusive_options(used_options: dict[str, bool]) -> None:
    for options, advice in EXCLUSIVE_OPTIONS.items():
        if len(names := [name for name in options if used_options[name]]) > 1:
            raise click.UsageError(f"{names[0]} and {names[1]} do not go together{advice}", ctx=click.get_current_context())


def _read_sentences(
    source: Path | None, tags: Path | None, *, tagged: bool, tokenize: Literal["no", "kept", "split"]
) -> Iterator[tuple[list[str], list[str] | None]]:
    """The words of each line, and their tags if they are given. Raises DataError naming file and line."""
    from dragoman.errors import DataError
    from dragoman.formats.text import describe_path, read_lines
    from dragoman.trees.ptb import split_words
    from dragoman.trees.ptb_tokenizer import tokenize_ptb

    source_name, tag_lines = describe_path(source), None if tags is None else read_lines(tags)
    line_number = 0
    for line_number, line in enumerate(read_lines(source), start=1):
        words = split_words(line) if tokenize == "no" else tokenize_ptb(line, hyphens=tokenize)
        line_tags: list[str] | None = None
        if tagged:
            words, line_tags = _split_tagged_words(words, f"{source_name}, line {line_number}")
        elif tag_lines is not None:
            if (tag_line := next(tag_lines, None)) is None:
                raise DataError(
                    f"{tags}: has {line_number - 1} lines, fewer than {source_name}: line n of one belongs to line n of the other"
                )
            line_tags = split_words(tag_line)
            if len(line_tags) != len(words):
                raise DataError(
                    f"{tags}, line {line_number}: {len(line_tags)} tags for the {len(words)} words of {source_name}"
                )
        yield words, line_tags
    if tag_lines is not None and next(tag_lines, None) is not None:
        raise DataError(
            f"{tags}: has more than the {line_number} lines of {source_name}: line n of one belongs to line n of the other"
        )


def _split_tagged_words(tokens: Sequence[str], location: str) -> tuple[list[str], list[str]]:
    """Words and tags of `the_DT cat_NN`. Raises DataError for what has no tag."""
    from dragoman.errors import DataError

    parts = [token.rpartition("_") for token in tokens]
    for token, (word, _, tag) in zip(tokens, parts, strict=True):
        if not word or not tag:
            raise DataError(f"{location}: {token[:40]!r} is no word with its tag; write word_TAG, such as cat_NN")
    return [word for word, _, _ in parts], [tag for _, _, tag in parts]


def _format_parse(line_number: int, result: Parse, *, as_json: bool, with_ranks: bool) -> str:
    if as_json:
        import json

        fields = {"line": line_number, "words": result.words, **_parse_to_dict(result)}
        return (
            json.dumps(
                {**fields, "alternatives": [_parse_to_dict(alternative) for alternative in result.alternatives]},
                ensure_ascii=False,
            )
            + "\n"
        )
    if not with_ranks:
        return result.brackets + "\n"
    ranked_parses = enumerate((result, *result.alternatives) if result.tree is not None else (), start=1)
    return "".join(
        f"{line_number}\t{rank}\t{ranked_parse.score:.4f}\t{ranked_parse.brackets}\n" for rank, ranked_parse in ranked_parses
    )


def _parse_to_dict(result: Parse) -> dict[str, Any]:
    return {
        "tree": result.brackets,
        "tags": result.tags,
        "brackets": [{"label": label, "start": start, "end": end} for label, start, end in result.spans],
        "score": result.score,
        "status": result.status,
        "mended": result.repairs,
        "tokens": result.tokens,
        "token_log_probs": result.token_log_probs,
    }


def _draw_trees(path: Path, first_parses: Sequence[tuple[int, Parse]], *, overwrite: bool) -> None:
    from dragoman.errors import DataError
    from dragoman.io.storage import atomic_write
    from dragoman.viz.tree_diagram import TreeDrawing, render_trees

    if not first_parses:
        raise DataError(f"{path}: no line has a tree, so there is nothing to draw")
    drawings = [
        TreeDrawing(result.words, result.spans, result.tags, f"line {line_number}" if len(first_parses) > 1 else "")
        for line_number, result in first_parses
    ]
    with atomic_write(path, overwrite=overwrite) as stream:
        stream.write(render_trees(drawings))
