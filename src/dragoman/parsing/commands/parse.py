"""Command `parse`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from dragoman.console.input_windows import is_live_input, is_shown_as_it_comes, read_windows
from dragoman.console.options import (
    INCOMPLETE_LINES,
    PATH_TYPE,
    FiniteNumber,
    bundle_argument,
    check_output_paths,
    count_lines,
    device_options,
    format_line_numbers,
    input_arguments,
    json_option,
    open_text_output,
    option,
    output_option,
    overwrite_option,
    parse_file_and_settings,
    shared,
    usage_error,
    window_option,
    with_options,
)
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.config import DecodingConfig
    from dragoman.parsing.parse_result import Parse
    from dragoman.parsing.parser import Parser
    from dragoman.runtime.device_options import DeviceOptions

MAX_DRAWN_TREES = 5
"""Trees in a drawing."""
EXCLUSIVE_OPTIONS = {
    ("--tagged", "--tags", "--tokenize"): "",
    ("--nbest", "--json"): "; give --json nbest=N",
    ("--min-score", "--nbest"): "",
    ("--min-score", "--json"): ": JSON has the token_log_probs of all",
}
"""Groups of exclusive options, and the advice for a second one."""
TokenizeMode = Literal["none", "ptb", "ontonotes"]


@dataclass(frozen=True)
class LabeledSpan:
    """One bracket: its label, its first word, and the word after its last one. Words count from 0."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ParseAlternative:
    """One tree of `dragoman parse --json`.

    status: ok, repaired, truncated, empty or too_long
    repairs: what was repaired in an unconstrained output, one sentence each
    """

    tree: str
    tags: Sequence[str | None]
    brackets: Sequence[LabeledSpan]
    score: float
    status: str
    repairs: Sequence[str]
    tokens: Sequence[str]
    token_log_probs: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ParseLine(ParseAlternative):
    """One line of `dragoman parse --json`. Lines count from 1."""

    line: int
    words: Sequence[str]
    alternatives: Sequence[ParseAlternative]


@dataclass(frozen=True, kw_only=True)
class ParseOptions:
    """Options of `dragoman parse`."""

    bundle: Path = shared(bundle_argument)
    arguments: tuple[str, ...] = shared(input_arguments)
    output: Path | None = shared(output_option)
    overwrite: bool = shared(overwrite_option("Replace files that exist."))
    tokenize: TokenizeMode = option(
        "--tokenize",
        type=click.Choice(["none", "ptb", "ontonotes"]),
        default="none",
        show_default=True,
        help="none: spaces separate the words. ptb: split words as the Penn treebank does. ontonotes: also split at hyphens.",
    )
    tags: Path | None = option("--tags", type=PATH_TYPE, help="Part-of-speech tags line by line, instead of predicted ones.")
    tagged: bool = option("--tagged", is_flag=True, help="The words have tags: the_DT cat_NN.")
    nbest: int | None = option(
        "--nbest", type=click.IntRange(min=1), help="Print the N best trees as line, rank, score and tree, with tabs."
    )
    unconstrained: bool = option(
        "--unconstrained", is_flag=True, help="Do not constrain the output to trees. Repair it, and count the repairs."
    )
    min_score: float | None = option(
        "--min-score",
        type=FiniteNumber(),
        metavar="X",
        help="Leave a line empty if the mean log-probability of its tokens is below X.",
    )
    svg: Path | None = option("--svg", type=PATH_TYPE, help=f"Also draw the first {MAX_DRAWN_TREES} trees to this file.")
    window: int | None = shared(window_option)
    ensemble: tuple[Path, ...]
    device_options: DeviceOptions = shared(device_options)
    as_json: bool = shared(json_option("Print one JSON object a line, with words, tags, brackets, score and status."))


@click.command()
@with_options(ParseOptions)
def parse(args: ParseOptions) -> None:
    """Parse the sentences of FILE with BUNDLE, one a line. Without FILE, or for `-`, parse standard input.

    The output has one tree in brackets for each line, in order, unless --nbest asks for more. A line without words stays empty.
    Every tree is well-formed and holds exactly the words of its line. KEY=VALUE changes a key of the recipe's [decoding]
    section. Lines that are not parsed stay empty; standard error names them and the exit status is 3. --min-score keeps the
    trees that the model is confident of, for self-training.

    \b
    Example:  dragoman parse runs/parsing-craft/bundle test.txt -o test.mrg beam_size=10
              echo "It doesn't work." | dragoman parse runs/parsing-craft/bundle --tokenize ontonotes --svg tree.svg
              dragoman parse runs/parsing-craft/bundle raw.txt --min-score -0.05 -o silver.mrg
    """
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.inference.load import load

    source, decoding = parse_file_and_settings(args.arguments)
    used_options = {
        "--tagged": args.tagged,
        "--tags": args.tags is not None,
        "--tokenize": args.tokenize != "none",
        "--json": args.as_json,
    }
    _check_exclusive_options({**used_options, "--nbest": args.nbest is not None, "--min-score": args.min_score is not None})
    if args.nbest is not None:
        decoding["nbest"] = args.nbest
    check_output_paths(
        args.output, args.svg, overwrite=args.overwrite, input_paths=[source, args.tags, args.bundle, *args.ensemble]
    )
    line_count = count_lines(source)
    console, flush_lines = stderr_console(), is_live_input(source)
    with (
        open_text_output(args.output, overwrite=args.overwrite) as stream,
        progress_bar(console, "parsing", line_count, hidden=is_shown_as_it_comes(source, args.output)) as bar,
    ):
        parser = load(args.bundle, *args.ensemble, task="parsing", **args.device_options)
        config = parser.resolve_decoding(decoding)
        sentences = _read_sentences(source, args.tags, tagged=args.tagged, tokenize=args.tokenize)
        windows = bar.iter_input(read_windows(sentences, source, args.window), is_live=flush_lines)
        options = {"constrained": not args.unconstrained, "on_progress": bar.advance, **decoding}
        parses = _parse_windows(parser, windows, options)
        summary = _write_parses(
            stream,
            parses,
            as_json=args.as_json,
            with_ranks=args.nbest is not None,
            min_score=args.min_score,
            flush_lines=flush_lines,
        )
    for message in summary.format_messages(
        parser.inference_model.max_positions,
        config,
        unconstrained=args.unconstrained,
        with_kept_count=args.min_score is not None,
    ):
        console.print(message, markup=False)
    if args.svg is not None and (summary.first_parses or "too_long" not in summary.line_numbers):
        _draw_trees(args.svg, summary.first_parses, overwrite=args.overwrite)
    if "too_long" in summary.line_numbers:
        sys.exit(INCOMPLETE_LINES)


def _parse_windows(
    parser: Parser, windows: Iterable[list[tuple[list[str], list[str] | None]]], options: dict[str, Any]
) -> Iterator[Parse]:
    """Yield the parse of each line, from windows of words and tags."""
    start_index = 0
    for lines in windows:
        words, tags = [words for words, _ in lines], [line_tags for _, line_tags in lines]
        yield from parser.parse(words, tags=tags, start_index=start_index, **options)
        start_index += len(lines)


def _write_parses(
    stream: IO[str],
    parses: Iterator[Parse],
    *,
    as_json: bool,
    with_ranks: bool,
    min_score: float | None,
    flush_lines: bool,
) -> ParseSummary:
    """Write a line for each parse, which is empty below the lowest score. Return the summary of all lines."""
    from dragoman.parsing.parse_confidence import is_confident

    summary = ParseSummary()
    for line_number, result in enumerate(parses, start=1):
        is_kept = min_score is None or is_confident(result, min_score)
        stream.write(_format_parse(line_number, result, as_json=as_json, with_ranks=with_ranks) if is_kept else "\n")
        summary.add(line_number, result, is_kept=is_kept)
        if flush_lines:
            stream.flush()
    stream.flush()
    return summary


@dataclass
class ParseSummary:
    """Result of all lines.

    line_numbers: lines of each status
    first_parses: first lines that have a tree, for the drawing
    kept_count: lines that `--min-score` kept
    """

    line_numbers: dict[str, list[int]] = field(default_factory=dict)
    first_parses: list[tuple[int, Parse]] = field(default_factory=list)
    kept_count: int = 0

    def add(self, line_number: int, result: Parse, *, is_kept: bool) -> None:
        """Record a line. A line with words but without a tree counts as too long."""
        status = "too_long" if result.tree is None and result.words else result.status
        self.line_numbers.setdefault(status, []).append(line_number)
        if result.tree is not None and len(self.first_parses) < MAX_DRAWN_TREES:
            self.first_parses.append((line_number, result))
        self.kept_count += is_kept

    def format_messages(
        self, max_positions: int | None, config: DecodingConfig, *, unconstrained: bool, with_kept_count: bool
    ) -> Iterator[str]:
        """Yield the warnings about lines that are not parsed or are repaired, and the number of lines that are kept."""
        from dragoman.tasks.translation import get_source_limit

        if unparsed_lines := self.line_numbers.get("too_long"):
            max_source_tokens, max_extra_tokens = get_source_limit(max_positions, config), config.max_extra_tokens
            reason = f"more than {max_source_tokens} tokens, or a tree over decoding.max_extra_tokens = {max_extra_tokens}"
            yield f"lines left unparsed ({reason}): {format_line_numbers(unparsed_lines)}"
        if unconstrained:
            malformed_lines = sorted(self.line_numbers.get("repaired", []) + self.line_numbers.get("truncated", []))
            parsed_count = len(malformed_lines) + len(self.line_numbers.get("ok", []))
            malformed_share = f"{len(malformed_lines) / parsed_count:.2%}" if parsed_count else "none"
            line_list = f": {format_line_numbers(malformed_lines)}" if malformed_lines else ""
            yield f"malformed and repaired: {malformed_share} of {format_count(parsed_count, 'line')}{line_list}"
        if with_kept_count:
            line_count = sum(map(len, self.line_numbers.values()))
            yield f"kept {self.kept_count:,} of {format_count(line_count, 'line')}"


def _check_exclusive_options(used_options: dict[str, bool]) -> None:
    for options, advice in EXCLUSIVE_OPTIONS.items():
        if len(names := [name for name in options if used_options[name]]) > 1:
            raise usage_error(f"{names[0]} and {names[1]} do not go together{advice}")


def _read_sentences(
    source: Path | None, tags: Path | None, *, tagged: bool, tokenize: TokenizeMode
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Yield the words of each line, and their tags if the caller gives them. Raises DataError with file and line."""
    from dragoman.errors import DataError
    from dragoman.formats.text import describe_path, read_lines
    from dragoman.parsing.trees.ptb import split_words
    from dragoman.parsing.trees.ptb_tokenizer import tokenize_ptb

    source_name, tag_lines = describe_path(source), None if tags is None else read_lines(tags)
    advice = "line n of one file belongs to line n of the other"
    line_number = 0
    for line_number, line in enumerate(read_lines(source), start=1):
        words = split_words(line) if tokenize == "none" else tokenize_ptb(line, style=tokenize)
        line_tags: list[str] | None = None
        if tagged:
            words, line_tags = _split_tagged_words(words, f"{source_name}, line {line_number}")
        elif tag_lines is not None:
            if (tag_line := next(tag_lines, None)) is None:
                num_lines = format_count(line_number - 1, "line")
                raise DataError(f"{tags}: has {num_lines}, fewer than {source_name}; {advice}")
            line_tags = split_words(tag_line)
            if len(line_tags) != len(words):
                counts = f"{format_count(len(line_tags), 'tag')} for the {format_count(len(words), 'word')} of {source_name}"
                raise DataError(f"{tags}, line {line_number}: has {counts}; give one tag for each word")
        yield words, line_tags
    if tag_lines is not None and next(tag_lines, None) is not None:
        num_lines = format_count(line_number, "line")
        raise DataError(f"{tags}: has more than the {num_lines} of {source_name}; {advice}")


def _split_tagged_words(tokens: Sequence[str], location: str) -> tuple[list[str], list[str]]:
    """Return the words and the tags of `the_DT cat_NN`. Raises DataError for a word without a tag."""
    from dragoman.errors import DataError

    parts = [token.rpartition("_") for token in tokens]
    for token, (word, _, tag) in zip(tokens, parts, strict=True):
        if not word or not tag:
            raise DataError(f"{location}: {token[:40]!r} is not a word with a tag; write word_TAG, such as cat_NN")
    return [word for word, _, _ in parts], [tag for _, _, tag in parts]


def _format_parse(line_number: int, result: Parse, *, as_json: bool, with_ranks: bool) -> str:
    if as_json:
        return _to_json_line(line_number, result) + "\n"
    if not with_ranks:
        return result.brackets + "\n"
    ranked_parses = enumerate((result, *result.alternatives) if result.tree is not None else (), start=1)
    return "".join(
        f"{line_number}\t{rank}\t{ranked_parse.score:.4f}\t{ranked_parse.brackets}\n" for rank, ranked_parse in ranked_parses
    )


def _to_json_line(line_number: int, result: Parse) -> str:
    from dragoman.io.json_fields import copy_fields, to_json_line

    def get_tree_fields(tree_parse: Parse) -> dict[str, Any]:
        return {"tree": tree_parse.brackets, "brackets": [LabeledSpan(*span) for span in tree_parse.spans]}

    alternatives = [copy_fields(ParseAlternative, other, **get_tree_fields(other)) for other in result.alternatives]
    output = copy_fields(ParseLine, result, line=line_number, alternatives=alternatives, **get_tree_fields(result))
    return to_json_line(output)


def _draw_trees(path: Path, first_parses: Sequence[tuple[int, Parse]], *, overwrite: bool) -> None:
    from dragoman.errors import DataError
    from dragoman.io.storage import atomic_write
    from dragoman.viz.tree_diagram import TreeDrawing, render_trees

    if not first_parses:
        raise DataError(f"{path}: no line has a tree, so there is nothing to draw; give a sentence")
    drawings = [
        TreeDrawing(result.words, result.spans, result.tags, f"line {line_number}" if len(first_parses) > 1 else "")
        for line_number, result in first_parses
    ]
    with atomic_write(path, overwrite=overwrite) as stream:
        stream.write(render_trees(drawings))
