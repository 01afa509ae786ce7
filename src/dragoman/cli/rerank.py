"""Command `rerank`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import (
    PATH_TYPE,
    bleu_tokenizer_option,
    bundle_argument,
    check_output_paths,
    device_option,
    json_option,
    open_text_output,
    output_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    usage_error,
)

if TYPE_CHECKING:
    from dragoman.inference.reranking import RerankWeights, ScoredCandidate


@click.command()
@bundle_argument
@click.argument("source", type=PATH_TYPE)
@overrides_argument
@click.option("--reverse", type=PATH_TYPE, help="Bundle that translates from the target language to the source language.")
@click.option("--right-to-left", type=PATH_TYPE, help="Bundle that was trained on targets with their words in reverse order.")
@click.option("--weights", "weights_path", type=PATH_TYPE, required=True, help="JSON file of the weights; --tune writes it.")
@click.option("--tune", "reference", type=PATH_TYPE, help="Tune the weights on SOURCE and this reference, and write them.")
@click.option(
    "--metric", default="bleu", show_default=True, type=click.Choice(["bleu", "chrf", "ter"]), help="Metric of the tuning."
)
@bleu_tokenizer_option
@output_option
@overwrite_option()
@device_option
@precision_option("float32")
@json_option("Print one JSON object a line, with all candidates and their scores.")
def rerank(
    bundle: Path,
    source: Path,
    overrides: tuple[str, ...],
    reverse: Path | None,
    right_to_left: Path | None,
    weights_path: Path,
    reference: Path | None,
    metric: str,
    bleu_tokenizer: str,
    output: Path | None,
    overwrite: bool,
    device: str,
    precision: str,
    as_json: bool,
) -> None:
    """Translate SOURCE with BUNDLE, and choose from the n best outputs of each line with the help of other bundles.

    The score is log p(y|x) + λ1 log p(x|y) + λ2 |y|, with log p(x|y) from the bundle of the reverse direction. A
    right-to-left bundle adds one more term. First tune the weights on a validation set with --tune. KEY=VALUE changes a key
    of the recipe's [decoding] section. The whole beam is reranked unless nbest=N is set.

    \b
    Example:  dragoman rerank BUNDLE valid.en --reverse REVERSE --tune valid.de --weights weights.json beam_size=10
              dragoman rerank BUNDLE test.en --reverse REVERSE --weights weights.json beam_size=10 -o test.de
    """
    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.formats.text import read_lines, read_parallel_lines

    if reverse is None and right_to_left is None:
        raise usage_error("give --reverse BUNDLE, or --right-to-left BUNDLE, or both")
    references: list[str] = []
    inputs = [source, reference, bundle, reverse, right_to_left]
    if reference is None:
        check_output_paths(output, overwrite=overwrite, input_paths=[*inputs, weights_path])
        sources = list(read_lines(source))
    else:
        if output is not None:
            raise usage_error("--tune writes weights and no translations; leave -o out")
        check_output_paths(weights_path, overwrite=overwrite, input_paths=inputs)
        sources, references = read_parallel_lines(source, reference)
    decoding = parse_decoding_overrides(overrides)
    with (
        open_text_output(output, overwrite=overwrite) as stream,
        progress_bar(stderr_console(), "translating", len(sources)) as bar,
    ):
        from dragoman.inference.load import load  # the import of torch takes seconds, in which the bar is shown
        from dragoman.inference.reranking import Reranker, choose_candidate, read_weights, write_weights

        weights = read_weights(weights_path) if reference is None else None
        translators = [
            None if path is None else load(path, task="translation", device=device, precision=precision)
            for path in (bundle, reverse, right_to_left)
        ]
        forward = translators[0]
        assert forward is not None
        reranker = Reranker(forward, *translators[1:])
        candidates = reranker.make_candidates(sources, bar.advance, **decoding)
        if weights is not None:
            for line_number, (line, line_candidates) in enumerate(zip(sources, candidates, strict=True), start=1):
                best = choose_candidate(line_candidates, weights)
                stream.write(
                    (_to_json_line(line_number, line, line_candidates, best, weights) if as_json else best.text) + "\n"
                )
            return
    from dragoman.evaluation.bleu_tokenizer import choose_bleu_tokenizer

    task = forward.recipe.task
    requested = task.bleu_tokenizer if bleu_tokenizer == "auto" else bleu_tokenizer
    tokenize = choose_bleu_tokenizer(task.target_language, tokenized=task.tokenized, requested=requested)
    tuned_weights, tuned = reranker.tune(candidates, references, metric=metric, tokenize=tokenize)
    write_weights(weights_path, tuned_weights, overwrite=overwrite)
    click.echo(f"{weights_path}: {tuned_weights}")
    click.echo(f"{metric} on {source}: {tuned.first_score:.2f} before, {tuned.score:.2f} with these weights")


def _to_json_line(
    line_number: int, source: str, candidates: Sequence[ScoredCandidate], best: ScoredCandidate, weights: RerankWeights
) -> str:
    from dragoman.cli.json_outputs import RerankCandidate, RerankLine, copy_fields, to_json_line

    ranked = sorted(candidates, key=lambda candidate: -candidate.compute_score(weights))
    outputs = [copy_fields(RerankCandidate, candidate, score=candidate.compute_score(weights)) for candidate in ranked]
    return to_json_line(RerankLine(line_number, source, best.text, outputs))
