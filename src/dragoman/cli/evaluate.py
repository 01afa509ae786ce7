"""How good is it: `score`, `evaluate`, `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from dragoman.cli.line_report import LineWarnings
from dragoman.cli.options import DEVICE_OPTION, ENSEMBLE_OPTION, check_output_paths, open_text_output
from dragoman.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Score

PATH_TYPE = click.Path(path_type=Path)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
LANGUAGE_OPTION = click.option(
    "--language", default="", help="Target language, for Moses tokens and the paper's compound split."
)
TOKENIZED_OPTION = click.option("--tokenised", is_flag=True, help="The text is tokenised: count its tokens as they stand.")
LOWERCASE_OPTION = click.option("--lowercase", is_flag=True, help="Let case not count in BLEU.")
REFERENCES_OPTION = click.option(
    "--ref", "references", multiple=True, type=PATH_TYPE, help="A reference file; give several for several."
)


@click.command()
@click.argument("hypotheses", type=PATH_TYPE)
@REFERENCES_OPTION
@click.option("--bundle", type=PATH_TYPE, help="Score by this model (forced); needs --src.")
@click.option("--src", "source", type=PATH_TYPE, help="What was translated; goes with --bundle.")
@LANGUAGE_OPTION
@TOKENIZED_OPTION
@LOWERCASE_OPTION
@JSON_OPTION
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

    Against references (--ref): BLEU, chrF, TER, exact match, with signatures. By a model (--bundle and --src): the
    log-probability of each line over the length penalty, and the perplexity of all.

    \b
    Example:  dragoman score output.de --ref test.de --language de
              dragoman score output.de --bundle runs/multi30k-ende/bundle --src test.en --json
    """
    from dragoman.formats.text import read_lines

    if (bundle is None) != (source is None):
        raise click.UsageError("--bundle and --src go together", ctx=click.get_current_context())
    if bundle is None and not references:
        raise click.UsageError("give --ref FILE, or --bundle and --src", ctx=click.get_current_context())
    lines = list(read_lines(hypotheses))
    result: dict[str, Any] = {}
    if references:
        scores = compute_scores(lines, _read_parallel_lines(hypotheses, lines, references), language, tokenized, lowercase)
        result["scores"] = [asdict(metric_score) for metric_score in scores]
        if not as_json:
            _print_scores(f"{hypotheses} against {', '.join(map(str, references))}", scores)
    if bundle is not None and source is not None:
        result["model"] = _print_model_scores(bundle, _read_parallel_lines(hypotheses, lines, [source])[0], lines, as_json)
    if as_json:
        from dragoman.cli.console import print_json

        print_json(result)


def _read_parallel_lines(main_path: Path, lines: list[str], parallel_paths: Sequence[Path]) -> list[list[str]]:
    """The lines of files that belong to those of the first, line by line. Raises DataError where one has more or fewer."""
    from dragoman.formats.text import read_lines

    if not lines:
        raise DataError(f"{main_path}: is empty")
    texts = []
    for path in parallel_paths:
        texts.append(list(read_lines(path)))
        if len(texts[-1]) != len(lines):
            raise DataError(
                f"{main_path} has {len(lines)} lines but {path} has {len(texts[-1])}: line n of one belongs to line n of the other"
            )
    return texts


def _print_model_scores(bundle: Path, sources: list[str], hypotheses: list[str], as_json: bool) -> dict[str, Any]:
    import math

    from dragoman.inference.translator import load_translator

    scored_pairs = load_translator(bundle, precision="float32").score(sources, hypotheses)
    num_tokens = sum(len(pair.token_log_probs) for pair in scored_pairs)
    nll = -sum(sum(pair.token_log_probs) for pair in scored_pairs) / num_tokens
    if not as_json:
        for pair in scored_pairs:
            click.echo(f"{pair.score:.4f}")
        click.echo(f"perplexity {math.exp(nll):.4f} over {num_tokens} tokens", err=True)
    return {"scores": [pair.score for pair in scored_pairs], "nll": nll, "perplexity": math.exp(nll), "tokens": num_tokens}


def compute_scores(
    hypotheses: list[str], references: list[list[str]], language: str, tokenized: bool, lowercase: bool
) -> list[Score]:
    """Every metric that applies: the tokenised flavours beside sacreBLEU's, Moses' where its language is known.

    Compounds are split where that is German, as in the paper's tables.
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
            click.echo(f"dragoman: left out: {error}", err=True)
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
@click.argument("bundle", type=PATH_TYPE)
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--src", "source", type=PATH_TYPE, required=True, help="The test set's source.")
@REFERENCES_OPTION
@ENSEMBLE_OPTION
@click.option("-o", "--output", type=PATH_TYPE, help="Keep the translations here.")
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@DEVICE_OPTION
@click.option("--precision", default="float32", show_default=True, help="float32, bfloat16, int8; auto takes the fastest here.")
@LANGUAGE_OPTION
@TOKENIZED_OPTION
@LOWERCASE_OPTION
@JSON_OPTION
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
    """Translate a test set with BUNDLE and score the result: sacreBLEU, tokenised and compound-split BLEU, chrF, TER.

    Language and --tokenised are taken from the bundle's recipe where they are not given. Products are computed in float32, as
    training's own scores are, unless another --precision is asked for. Lines that were not translated whole are named on
    standard error and scored as they came out, so that the exit code is 0 where `translate` has 3.

    \b
    Example:  dragoman evaluate runs/multi30k-ende/bundle --src test.en --ref test.de beam_size=5 -o out.de
              dragoman evaluate runs/multi30k-ende/bundle --with runs/multi30k-ende-2/bundle --src test.en --ref test.de
    """
    from dragoman.cli.console import print_json, progress_bar, stderr_console
    from dragoman.config import parse_setting
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import load_translator
    from dragoman.tasks.translation import TranslationStatus, get_source_limit

    if not references:
        raise click.UsageError("give --ref FILE", ctx=click.get_current_context())
    check_output_paths(output, overwrite=overwrite, input_paths=[source, *references, bundle, *ensemble])
    lines = list(read_lines(source))
    targets = _read_parallel_lines(source, lines, references)
    translator = load_translator(bundle, *ensemble, device=device, precision=precision)
    decoding = {key.removeprefix("decoding."): value for key, value in map(parse_setting, overrides)}
    config = translator.resolve_decoding(decoding)
    output_sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if output is not None:
        output_sink = open_text_output(output, overwrite=overwrite)
    with output_sink as stream, progress_bar(stderr_console(), "translating", len(lines)) as bar:
        results = translator.translate(lines, on_progress=lambda count: bar.advance(bar.task_ids[0], count), **decoding)
        texts = [hypothesis.text for hypothesis in results]
        if stream is not None:
            stream.writelines(text + "\n" for text in texts)
    task = translator.recipe.task
    scores = compute_scores(texts, targets, language or task.target_language, tokenized or task.tokenized, lowercase)
    line_warnings = LineWarnings()
    for line, result in zip(lines, results, strict=True):
        line_warnings.add(line, result)
    if as_json:
        ensemble_names = [str(path) for path in ensemble]
        run_fields = {
            "bundle": str(bundle),
            "with": ensemble_names,
            "device": str(translator.device),
            "precision": translator.precision,
        }
        status_counts = {
            status: len(line_warnings.line_numbers.get(status, ())) for status in get_args(TranslationStatus) if status != "ok"
        }
        print_json(
            {
                **run_fields,
                "sentences": len(lines),
                "scores": [asdict(metric_score) for metric_score in scores],
                **status_counts,
            }
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
@REFERENCES_OPTION
@click.option("--metric", default="bleu", type=click.Choice(["bleu", "chrf", "ter"]), help="What to compare by.")
@click.option(
    "--resamples",
    type=click.IntRange(max=1_000_000),
    default=1000,
    show_default=True,
    help="Bootstrap resamples (at least 40).",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the resampling.")
@TOKENIZED_OPTION
@JSON_OPTION
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
    """Tell whether the translations in FIRST are better than those in SECOND, by paired bootstrap (Koehn 2004).

    \b
    Example:  dragoman compare base.de big.de --ref test.de
    """
    from dragoman.cli.console import print_json
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
            f"{len(first_lines)} sentences: of fewer than {SMALL_TEST_SET}, a bootstrap is surer than it should be", err=True
        )
    if as_json:
        print_json({**asdict(comparison), "significant": comparison.is_significant})
        return
    _print_scores("compared", [comparison.a, comparison.b])
    click.echo(comparison.describe(str(first), str(second)))
