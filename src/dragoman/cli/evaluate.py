"""Commands `score`, `evaluate` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from dragoman.cli.line_report import LineWarnings
from dragoman.cli.options import (
    PATH_TYPE,
    bundle_argument,
    check_output_paths,
    device_option,
    ensemble_option,
    json_option,
    open_text_output,
    output_path_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    references_option,
    tokenized_option,
)
from dragoman.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from dragoman.cli.json_outputs import MetricScore, ModelScores
    from dragoman.evaluation.metrics import Score

language_option = click.option("--language", default="", help="Target language, for Moses tokens and compound splitting.")
lowercase_option = click.option("--lowercase", is_flag=True, help="Ignore case in BLEU.")


@click.command()
@click.argument("hypotheses", type=PATH_TYPE)
@references_option
@click.option("--bundle", type=PATH_TYPE, help="Score with this model by forced decoding. Needs --src.")
@click.option("--src", "source", type=PATH_TYPE, help="Source of the translations. Needs --bundle.")
@language_option
@tokenized_option
@lowercase_option
@json_option()
def score(
    hypotheses: Path,
    references: tuple[Path, ...],
    bundle: Path | None,
    source: Path | None,
    language: str,
    tokenized: bool,
    lowercase: bool,
    as_json: bool,
) -> None:
    """Score the translations in the file HYPOTHESES.

    References (--ref) give BLEU, chrF, TER and exact match, with signatures. A model (--bundle and --src) gives the
    log-probability of each line over the length penalty, and the perplexity of all lines.

    \b
    Example:  dragoman score output.de --ref test.de --language de
              dragoman score output.de --bundle runs/multi30k-ende/bundle --src test.en --json
    """
    from dragoman.cli.console import print_json
    from dragoman.cli.json_outputs import ScoreOutput
    from dragoman.formats.text import read_lines

    if (bundle is None) != (source is None):
        raise click.UsageError("--bundle and --src go together; give both", ctx=click.get_current_context())
    if bundle is None and not references:
        raise click.UsageError("give --ref FILE, or --bundle and --src", ctx=click.get_current_context())
    lines = list(read_lines(hypotheses))
    metric_scores, model_scores = None, None
    if references:
        scores = compute_scores(lines, _read_parallel_lines(hypotheses, lines, references), language, tokenized, lowercase)
        metric_scores = _to_metric_scores(scores)
        if not as_json:
            _print_scores(f"{hypotheses} against {', '.join(map(str, references))}", scores)
    if bundle is not None and source is not None:
        model_scores = _compute_model_scores(bundle, _read_parallel_lines(hypotheses, lines, [source])[0], lines)
        if not as_json:
            for line_score in model_scores.scores:
                click.echo(f"{line_score:.4f}")
            click.echo(f"perplexity {model_scores.perplexity:.4f} over {model_scores.tokens} tokens", err=True)
    if as_json:
        print_json(ScoreOutput(scores=metric_scores, model=model_scores))


def _read_parallel_lines(main_path: Path, lines: list[str], parallel_paths: Sequence[Path]) -> list[list[str]]:
    """Return the lines of the parallel files. Raises DataError if one does not have as many lines as the main file."""
    from dragoman.formats.text import read_lines

    if not lines:
        raise DataError(f"{main_path}: is empty; give a file with text")
    texts = []
    for path in parallel_paths:
        texts.append(list(read_lines(path)))
        if len(texts[-1]) != len(lines):
            raise DataError(f"{main_path} has {len(lines)} lines but {path} has {len(texts[-1])}; give files of equal length")
    return texts


def _compute_model_scores(bundle: Path, sources: list[str], hypotheses: list[str]) -> ModelScores:
    import math

    from dragoman.cli.json_outputs import ModelScores
    from dragoman.inference.translator import load_translator

    scored_pairs = load_translator(bundle, precision="float32").score(sources, hypotheses)
    num_tokens = sum(len(pair.token_log_probs) for pair in scored_pairs)
    nll = -sum(sum(pair.token_log_probs) for pair in scored_pairs) / num_tokens
    return ModelScores([pair.score for pair in scored_pairs], nll=nll, perplexity=math.exp(nll), tokens=num_tokens)


def _to_metric_scores(scores: Sequence[Score]) -> list[MetricScore]:
    from dragoman.cli.json_outputs import MetricScore

    return [MetricScore(**asdict(metric_score)) for metric_score in scores]


def compute_scores(
    hypotheses: list[str], references: list[list[str]], language: str, tokenized: bool, lowercase: bool
) -> list[Score]:
    """Return all metrics that apply: sacreBLEU's, and tokenized BLEU; Moses' tokenizer needs a language.

    For German, compounds are split as in the paper's tables.
    """
    from dragoman.evaluation.metrics import (
        bleu,
        chrf,
        compound_split_bleu,
        exact_match,
        moses_bleu,
        paper_bleu,
        ter,
        tokenized_bleu,
        uses_split_compounds,
    )

    scores = [] if tokenized else [bleu(hypotheses, references, lowercase=lowercase)]
    if tokenized:
        scores.append(tokenized_bleu(hypotheses, references, lowercase=lowercase))
        if uses_split_compounds(language):
            scores.append(paper_bleu(hypotheses, references, language, tokenized=True, lowercase=lowercase))
    elif language:
        try:
            scores.append(moses_bleu(hypotheses, references, language, lowercase=lowercase))
            if uses_split_compounds(language):
                scores.append(compound_split_bleu(hypotheses, references, language, lowercase=lowercase))
        except MissingDependencyError as error:
            click.echo(f"dragoman: Moses BLEU is left out: {error}", err=True)
    scores += [chrf(hypotheses, references), ter(hypotheses, references), exact_match(hypotheses, references)]
    return scores


def _print_scores(title: str, scores: list[Score]) -> None:
    from dragoman.cli.console import print_table

    print_table(
        title,
        ["metric", "value", "signature"],
        [(metric_score.name, f"{metric_score.value:.2f}", metric_score.signature) for metric_score in scores],
    )


@click.command()
@bundle_argument
@overrides_argument
@click.option("--src", "source", type=PATH_TYPE, required=True, help="Source of the test set.")
@references_option
@ensemble_option
@output_path_option("Write the translations to this file.")
@overwrite_option()
@device_option
@precision_option("float32")
@language_option
@tokenized_option
@lowercase_option
@json_option()
def evaluate(
    bundle: Path,
    overrides: tuple[str, ...],
    source: Path,
    references: tuple[Path, ...],
    ensemble: tuple[Path, ...],
    output: Path | None,
    overwrite: bool,
    device: str,
    precision: str,
    language: str,
    tokenized: bool,
    lowercase: bool,
    as_json: bool,
) -> None:
    """Translate a test set with BUNDLE and score the result: sacreBLEU, tokenized and compound-split BLEU, chrF, TER.

    The bundle's recipe gives the defaults of --language and --tokenized. KEY=VALUE changes a key of its [decoding] section.
    The default precision is float32, as in the scores of training. Standard error names incomplete lines. They are scored
    as they are, and the exit status is 0.

    \b
    Example:  dragoman evaluate runs/multi30k-ende/bundle --src test.en --ref test.de beam_size=5 -o out.de
              dragoman evaluate runs/multi30k-ende/bundle --ensemble runs/multi30k-ende-2/bundle --src test.en --ref test.de
    """
    from dragoman.cli.console import print_json, progress_bar, stderr_console
    from dragoman.cli.json_outputs import EvaluateOutput
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import load_translator
    from dragoman.tasks.translation import TranslationStatus, get_source_limit

    if not references:
        raise click.UsageError("give --ref FILE", ctx=click.get_current_context())
    check_output_paths(output, overwrite=overwrite, input_paths=[source, *references, bundle, *ensemble])
    lines = list(read_lines(source))
    targets = _read_parallel_lines(source, lines, references)
    translator = load_translator(bundle, *ensemble, device=device, precision=precision)
    decoding = parse_decoding_overrides(overrides)
    config = translator.resolve_decoding(decoding)
    output_sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if output is not None:
        output_sink = open_text_output(output, overwrite=overwrite)
    with output_sink as stream, progress_bar(stderr_console(), "translating", len(lines)) as bar:
        results = translator.translate(lines, on_progress=bar.advance, **decoding)
        texts = [hypothesis.text for hypothesis in results]
        if stream is not None:
            stream.writelines(text + "\n" for text in texts)
    task = translator.recipe.task
    scores = compute_scores(texts, targets, language or task.target_language, tokenized or task.tokenized, lowercase)
    line_warnings = LineWarnings()
    for line, result in zip(lines, results, strict=True):
        line_warnings.add(line, result)
    if as_json:
        status_counts: dict[str, Any] = {
            status: len(line_warnings.line_numbers.get(status, ())) for status in get_args(TranslationStatus) if status != "ok"
        }
        print_json(
            EvaluateOutput(
                bundle=str(bundle),
                ensemble=[str(path) for path in ensemble],
                device=str(translator.device),
                precision=translator.precision,
                sentences=len(lines),
                scores=_to_metric_scores(scores),
                **status_counts,
            )
        )
        return
    bundle_names = " + ".join(map(str, (bundle, *ensemble)))
    _print_scores(f"{bundle_names} on {source} ({len(lines)} sentences, {translator.precision})", scores)
    for warning in line_warnings.format_messages(
        get_source_limit(translator.inference_model.max_positions, config), config.max_extra_tokens
    ):
        click.echo(warning, err=True)


@click.command()
@click.argument("first", type=PATH_TYPE)
@click.argument("second", type=PATH_TYPE)
@references_option
@click.option("--metric", default="bleu", show_default=True, type=click.Choice(["bleu", "chrf", "ter"]), help="Metric.")
@click.option(
    "--resamples",
    type=click.IntRange(max=1_000_000),
    default=1000,
    show_default=True,
    help="Bootstrap resamples, at least 40.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the resampling.")
@tokenized_option
@json_option()
def compare(
    first: Path,
    second: Path,
    references: tuple[Path, ...],
    metric: str,
    resamples: int,
    seed: int,
    tokenized: bool,
    as_json: bool,
) -> None:
    """Compare the translations in FIRST with those in SECOND by paired bootstrap (Koehn 2004).

    The result is the difference, its confidence interval and its p-value.

    \b
    Example:  dragoman compare base.de big.de --ref test.de
    """
    from dragoman.cli.console import print_json
    from dragoman.cli.json_outputs import CompareOutput
    from dragoman.evaluation.bootstrap import SMALL_TEST_SET, paired_bootstrap
    from dragoman.formats.text import read_lines

    if not references:
        raise click.UsageError("give --ref FILE", ctx=click.get_current_context())
    first_lines = list(read_lines(first))
    second_lines, *targets = _read_parallel_lines(first, first_lines, [second, *references])
    comparison = paired_bootstrap(
        first_lines,
        second_lines,
        targets,
        metric=metric,
        tokenize="none" if tokenized else "13a",
        resamples=resamples,
        seed=seed,
    )
    if len(first_lines) < SMALL_TEST_SET:
        click.echo(
            f"{len(first_lines)} sentences: with fewer than {SMALL_TEST_SET}, a bootstrap underestimates the uncertainty",
            err=True,
        )
    if as_json:
        print_json(CompareOutput(**asdict(comparison), significant=comparison.is_significant))
        return
    _print_scores("comparison", [comparison.a, comparison.b])
    click.echo(comparison.describe(str(first), str(second)))
