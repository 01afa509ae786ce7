"""Command `rerank`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    argument,
    bleu_tokenizer_option,
    bundle_argument,
    check_output_paths,
    device_option,
    json_option,
    open_text_output,
    option,
    output_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    shared,
    usage_error,
    with_options,
)
from dragoman.io.json_fields import OPTIONAL

if TYPE_CHECKING:
    from dragoman.experiments.reranking.reranking import RerankWeights, ScoredCandidate


@dataclass(frozen=True)
class RerankCandidate:
    """One candidate of `dragoman rerank --json`, with the log-probabilities of all models.

    score: weighted sum
    length: tokens of the forward model, the end token included
    """

    text: str
    score: float
    forward: float
    length: int
    reverse: Annotated[float | None, OPTIONAL] = None
    right_to_left: Annotated[float | None, OPTIONAL] = None


@dataclass(frozen=True)
class RerankLine:
    """One line of `dragoman rerank --json`. Lines count from 1, and the best candidate comes first."""

    line: int
    source: str
    text: str
    candidates: Sequence[RerankCandidate]


@dataclass(frozen=True)
class RerankOptions:
    """Options of `dragoman rerank`."""

    bundle: Path = shared(bundle_argument)
    source: Path = argument("source", type=PATH_TYPE)
    overrides: tuple[str, ...] = shared(overrides_argument)
    reverse: Path | None = option(
        "--reverse", type=BUNDLE_TYPE, help="Bundle that translates from the target language to the source language."
    )
    right_to_left: Path | None = option(
        "--right-to-left", type=BUNDLE_TYPE, help="Bundle that was trained on targets with their words in reverse order."
    )
    weights_path: Path = option(
        "--weights", "weights_path", type=PATH_TYPE, required=True, help="JSON file of the weights; --tune writes it."
    )
    reference: Path | None = option(
        "--tune", "reference", type=PATH_TYPE, help="Tune the weights on SOURCE and this reference, and write them."
    )
    metric: str = option(
        "--metric", default="bleu", show_default=True, type=click.Choice(["bleu", "chrf", "ter"]), help="Metric of the tuning."
    )
    bleu_tokenizer: str = shared(bleu_tokenizer_option)
    output: Path | None = shared(output_option)
    overwrite: bool = shared(overwrite_option())
    device: str = shared(device_option)
    precision: str = shared(precision_option("float32"))
    as_json: bool = shared(json_option("Print one JSON object a line, with all candidates and their scores."))


@click.command()
@with_options(RerankOptions)
def rerank(args: RerankOptions) -> None:
    """Translate SOURCE with BUNDLE, and choose from the n best outputs of each line with the help of other bundles.

    The score is log p(y|x) + λ1 log p(x|y) + λ2 |y|, with log p(x|y) from the bundle of the reverse direction. A
    right-to-left bundle adds one more term. First tune the weights on a validation set with --tune. KEY=VALUE changes a key
    of the recipe's [decoding] section. The whole beam is reranked unless nbest=N is set.

    \b
    Example:  dragoman rerank BUNDLE valid.en --reverse REVERSE --tune valid.de --weights weights.json beam_size=10
              dragoman rerank BUNDLE test.en --reverse REVERSE --weights weights.json beam_size=10 -o test.de
    """
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.formats.text import read_lines
    from dragoman.formats.tsv import read_parallel_lines

    if args.reverse is None and args.right_to_left is None:
        raise usage_error("give --reverse BUNDLE, or --right-to-left BUNDLE, or both")
    references: list[str] = []
    inputs = [args.source, args.reference, args.bundle, args.reverse, args.right_to_left]
    if args.reference is None:
        check_output_paths(args.output, overwrite=args.overwrite, input_paths=[*inputs, args.weights_path])
        sources = list(read_lines(args.source))
    else:
        if args.output is not None:
            raise usage_error("--tune writes weights and no translations; leave -o out")
        check_output_paths(args.weights_path, overwrite=args.overwrite, input_paths=inputs)
        sources, references = read_parallel_lines(args.source, args.reference)
    decoding = parse_decoding_overrides(args.overrides)
    with (
        open_text_output(args.output, overwrite=args.overwrite) as stream,
        progress_bar(stderr_console(), "translating", len(sources)) as bar,
    ):
        from dragoman.experiments.reranking.reranking import Reranker, choose_candidate, read_weights, write_weights
        from dragoman.inference.load import load  # the import of torch takes seconds, in which the bar is shown

        weights = read_weights(args.weights_path) if args.reference is None else None
        translators = [
            None if path is None else load(path, task="translation", device=args.device, precision=args.precision)
            for path in (args.bundle, args.reverse, args.right_to_left)
        ]
        forward = translators[0]
        assert forward is not None
        reranker = Reranker(forward, *translators[1:])
        candidates = reranker.make_candidates(sources, bar.advance, **decoding)
        if weights is not None:
            for line_number, (line, line_candidates) in enumerate(zip(sources, candidates, strict=True), start=1):
                best = choose_candidate(line_candidates, weights)
                stream.write(
                    (_to_json_line(line_number, line, line_candidates, best, weights) if args.as_json else best.text) + "\n"
                )
            return
    from dragoman.evaluation.bleu_tokenizer import choose_bleu_tokenizer

    task = forward.recipe.task
    requested = task.bleu_tokenizer if args.bleu_tokenizer == "auto" else args.bleu_tokenizer
    tokenize = choose_bleu_tokenizer(task.target_language, tokenized=task.tokenized, requested=requested)
    tuned_weights, tuned = reranker.tune(candidates, references, metric=args.metric, tokenize=tokenize)
    write_weights(args.weights_path, tuned_weights, overwrite=args.overwrite)
    click.echo(f"{args.weights_path}: {tuned_weights}")
    click.echo(f"{args.metric} on {args.source}: {tuned.first_score:.2f} before, {tuned.score:.2f} with these weights")


def _to_json_line(
    line_number: int, source: str, candidates: Sequence[ScoredCandidate], best: ScoredCandidate, weights: RerankWeights
) -> str:
    from dragoman.io.json_fields import copy_fields, to_json_line

    ranked = sorted(candidates, key=lambda candidate: -candidate.compute_score(weights))
    outputs = [copy_fields(RerankCandidate, candidate, score=candidate.compute_score(weights)) for candidate in ranked]
    return to_json_line(RerankLine(line_number, source, best.text, outputs))
