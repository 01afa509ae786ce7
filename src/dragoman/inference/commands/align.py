"""Command `align`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    add_languages,
    argument,
    check_output_paths,
    from_option,
    json_option,
    open_text_output,
    option,
    output_option,
    overwrite_option,
    shared,
    to_option,
    usage_error,
    with_options,
)
from dragoman.runtime.counts import format_count

CHUNK_LINES = 2048


@dataclass(frozen=True)
class AlignmentLine:
    """One line of `dragoman align --json`: links as word numbers from 0, and the linked words."""

    line: int
    links: Sequence[Sequence[int]]
    words: Sequence[Sequence[str]]


@dataclass(frozen=True)
class AlignmentScores:
    """Output of `dragoman align --gold --json`. Rates are between 0 and 1."""

    pairs: int
    predicted_links: int
    gold_links: int
    matched_links: int
    alignment_error_rate: float
    precision: float
    recall: float


@dataclass(frozen=True)
class AlignOptions:
    """Options of `dragoman align`."""

    source: Path = argument("source", type=PATH_TYPE)
    target: Path = argument("target", type=PATH_TYPE)
    bundle: Path | None = option(
        "--bundle", type=BUNDLE_TYPE, help="Align by the attention of this model instead of a lexical aligner."
    )
    target_language: str | None = shared(to_option)
    source_language: str | None = shared(from_option)
    output: Path | None = shared(output_option)
    overwrite: bool = shared(overwrite_option())
    gold: Path | None = option(
        "--gold", type=PATH_TYPE, help="Compare with these links: print error rate, precision and recall, not links."
    )
    as_dictionary: bool = option(
        "--dictionary",
        "as_dictionary",
        is_flag=True,
        help="Print each source word, a tab and the target word that it is linked to most often, not links.",
    )
    min_links: int = option(
        "--min-links", type=click.IntRange(min=1), default=1, show_default=True, help="Fewest links of a word of --dictionary."
    )
    as_json: bool = shared(json_option("Print one JSON object a line, with the linked words."))


@click.command()
@with_options(AlignOptions)
def align(args: AlignOptions) -> None:
    """Align the words of SOURCE with those of TARGET, line by line, as `i-j` counted from 0.

    Spaces separate the words. With --bundle, the attention of its model to the given target makes the links. This works for a
    few lines. Without --bundle, a lexical aligner learns from all pairs. This works for thousands of lines. A bundle of many
    languages takes the languages from --to and --from. The words of a line with its own language token are those behind it.

    \b
    Example:  dragoman align test.en test.de --bundle runs/multi30k-ende/bundle -o test.links
              dragoman align train.en train.de -o train.links
              dragoman align test.en test.de --bundle runs/multi30k-ende/bundle --gold test.links
              dragoman align train.en train.de --dictionary -o dictionary.tsv
    """
    from dragoman.formats.pharaoh import format_pharaoh
    from dragoman.formats.tsv import read_parallel_lines
    from dragoman.word_aligner import build_dictionary

    check_output_paths(args.output, overwrite=args.overwrite, input_paths=[args.source, args.target, args.gold, args.bundle])
    decoding: dict[str, Any] = {}
    add_languages(decoding, args.source_language, args.target_language)
    if decoding and args.bundle is None:
        raise usage_error("--to and --from choose the languages of --bundle; give it as well")
    if args.as_dictionary and (args.as_json or args.gold is not None):
        raise usage_error(f"--dictionary and {'--json' if args.as_json else '--gold'} print other things; drop one of the two")
    if args.min_links > 1 and not args.as_dictionary:
        raise usage_error("--min-links is for --dictionary; give it as well")
    sources, targets = read_parallel_lines(args.source, args.target)
    gold_links = None if args.gold is None else _read_gold_links(args.gold, sources, targets)
    if args.bundle is None:
        predicted_links = _align_lexically(sources, targets)
    else:
        predicted_links, sources = _align_with_model(args.bundle, sources, targets, decoding)
    if gold_links is not None:
        _print_alignment_scores(predicted_links, gold_links, as_json=args.as_json)
        if args.output is None:
            return
    with open_text_output(args.output, overwrite=args.overwrite) as stream:
        if args.as_dictionary:
            source_words, target_words = ([line.split() for line in lines] for lines in (sources, targets))
            dictionary = build_dictionary(source_words, target_words, predicted_links, min_count=args.min_links)
            stream.writelines(f"{word}\t{translation}\n" for word, translation in dictionary.items())
            return
        pairs = zip(sources, targets, predicted_links, strict=True)
        for line_number, (source_line, target_line, links) in enumerate(pairs, start=1):
            line = _to_json_line(line_number, source_line, target_line, links) if args.as_json else format_pharaoh(links)
            stream.write(f"{line}\n")


def _read_gold_links(gold: Path, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    """Return the links of a gold file. Raises DataError if its lines or its links do not fit the texts."""
    from dragoman.errors import DataError
    from dragoman.formats.pharaoh import check_links, read_pharaoh

    gold_links = list(read_pharaoh(gold))
    if len(gold_links) != len(sources):
        counts = f"has links on {format_count(len(gold_links), 'line')} for {format_count(len(sources), 'pair')}"
        raise DataError(f"{gold}: {counts}; line n belongs to pair n")
    for line_number, (links, source_line, target_line) in enumerate(zip(gold_links, sources, targets, strict=True), start=1):
        check_links(links, len(source_line.split()), len(target_line.split()), location=f"{gold}, line {line_number}")
    return gold_links


def _print_alignment_scores(
    predicted_links: list[list[tuple[int, int]]], gold_links: list[list[tuple[int, int]]], *, as_json: bool
) -> None:
    from dragoman.console.terminal import print_json
    from dragoman.evaluation.aer import score_alignments

    scores = score_alignments(predicted_links, gold_links)
    if as_json:
        print_json(
            AlignmentScores(
                pairs=len(gold_links),
                predicted_links=scores.num_predicted,
                gold_links=scores.num_gold,
                matched_links=scores.num_matched,
                alignment_error_rate=scores.error_rate,
                precision=scores.precision,
                recall=scores.recall,
            )
        )
        return
    click.echo(f"alignment error rate {scores.error_rate:.4f}, precision {scores.precision:.4f}, recall {scores.recall:.4f}")
    click.echo(f"{scores.num_matched} of {scores.num_predicted} links are gold links, of {scores.num_gold}")


def _align_lexically(sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.word_aligner import NUM_ITERATIONS, align_pairs

    with progress_bar(stderr_console(), "learning", 2 * NUM_ITERATIONS * len(sources), unit="pairs") as bar:
        source_words, target_words = ([text.split() for text in texts] for texts in (sources, targets))
        return align_pairs(source_words, target_words, on_progress=bar.advance)


def _align_with_model(
    bundle: Path, sources: list[str], targets: list[str], decoding: dict[str, Any]
) -> tuple[list[list[tuple[int, int]]], list[str]]:
    """Return the links, and the sources without their own language tokens, whose words the links count."""
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.inference.load import load

    translator = load(bundle, task="translation", precision="float32")
    links: list[list[tuple[int, int]]] = []
    with progress_bar(stderr_console(), "aligning", len(sources)) as bar:
        for start in range(0, len(sources), CHUNK_LINES):
            chunk = slice(start, start + CHUNK_LINES)
            links += translator.align(sources[chunk], targets[chunk], **decoding)
            bar.advance(len(sources[chunk]))
    tokenizer = translator.select_tokenizer(translator.resolve_decoding(decoding))
    return links, [tokenizer.strip_language_token(line) for line in sources]


def _to_json_line(line_number: int, source_line: str, target_line: str, links: list[tuple[int, int]]) -> str:
    from dragoman.io.json_fields import to_json_line

    source, target = source_line.split(), target_line.split()
    words = [[source[i], target[j]] for i, j in links if i < len(source) and j < len(target)]
    return to_json_line(AlignmentLine(line_number, links, words))
