"""Command `shortlist`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from dragoman.console.options import (
    PATH_TYPE,
    bundle_argument,
    check_output_paths,
    from_option,
    json_option,
    output_path_option,
    overwrite_option,
    to_option,
)
from dragoman.runtime.counts import format_count

TOKENS = click.IntRange(1, 100_000)


@dataclass(frozen=True)
class ShortlistOutput:
    """Output of `dragoman model shortlist --json`."""

    shortlist: str
    pairs: int
    skipped_pairs: int
    source_tokens: int
    frequent_tokens: int


@click.command()
@bundle_argument
@click.argument("source", type=PATH_TYPE)
@click.argument("target", type=PATH_TYPE)
@to_option
@from_option
@output_path_option("Folder to write.", required=True)
@overwrite_option("Replace a shortlist that exists.")
@click.option(
    "--per-token", type=TOKENS, default=48, show_default=True, help="Target tokens kept for each source token, at most."
)
@click.option(
    "--frequent", type=TOKENS, default=512, show_default=True, help="Most frequent target tokens, which are always computed."
)
@json_option()
def shortlist(
    bundle: Path,
    source: Path,
    target: Path,
    target_language: str | None,
    source_language: str | None,
    output: Path,
    overwrite: bool,
    per_token: int,
    frequent: int,
    as_json: bool,
) -> None:
    """Learn from the pairs of SOURCE and TARGET the likely target tokens of each source token of BUNDLE.

    Translation with the shortlist computes only these tokens. This is faster and may cost quality, so evaluate with and
    without it. For a bundle of many languages, --to and --from name the languages of the pairs.

    \b
    Example:  dragoman model shortlist runs/general-ende/bundle train.en train.de -o shortlist
              dragoman translate runs/general-ende/bundle news.en --shortlist shortlist
    """
    from dragoman.bundle import load_bundle
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.errors import BundleError
    from dragoman.formats.tsv import read_parallel_lines
    from dragoman.inference.backends.trained_model import TrainedModel
    from dragoman.inference.forced_decoder import build_forced_decoder
    from dragoman.inference.lexical_shortlist import build_shortlist

    check_output_paths(output, overwrite=overwrite, input_paths=[source, target, bundle])
    sources, targets = read_parallel_lines(source, target)
    loaded_bundle = load_bundle(bundle)
    if loaded_bundle.recipe.task.kind != "translation":
        raise BundleError(f"{bundle}: is no translator, and only translation uses a shortlist; drop it", code="wrong-task")
    tokenizer = loaded_bundle.select_languages(source_language, target_language)
    loaded_bundle = replace(loaded_bundle, tokenizer=tokenizer)
    decoder = build_forced_decoder(TrainedModel.from_bundle(loaded_bundle))
    with progress_bar(stderr_console(), "counting", len(sources), unit="pairs") as bar:
        learned_shortlist, skipped_pairs = build_shortlist(
            loaded_bundle, decoder, sources, targets, per_token=per_token, num_frequent=frequent, on_progress=bar.advance
        )
    learned_shortlist.save(output, overwrite=overwrite)
    covered_tokens = int((learned_shortlist.candidates_VK[:, 0] > 0).sum())
    if as_json:
        print_json(
            ShortlistOutput(
                shortlist=str(output),
                pairs=len(sources),
                skipped_pairs=skipped_pairs,
                source_tokens=covered_tokens,
                frequent_tokens=len(learned_shortlist.frequent_F),
            )
        )
    else:
        num_tokens, num_pairs = format_count(covered_tokens, "source token"), len(sources) - skipped_pairs
        click.echo(f"{output}: target tokens for {num_tokens}, from {format_count(num_pairs, 'pair')}")
        if skipped_pairs:
            count = format_count(skipped_pairs, "pair")
            click.echo(f"skipped, because they are longer than the training pairs: {count}", err=True)
