"""Commands `score`, `evaluate` and `compare`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, get_args

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    add_languages,
    argument,
    bleu_tokenizer_option,
    bundle_argument,
    check_output_paths,
    device_option,
    ensemble_option,
    format_line_numbers,
    from_option,
    json_option,
    open_text_output,
    option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    references_option,
    shared,
    to_option,
    tokenized_option,
    usage_error,
    with_options,
)
from dragoman.errors import DataError, MissingDependencyError
from dragoman.evaluation.bootstrap import SystemComparison
from dragoman.evaluation.metrics import Score
from dragoman.inference.commands.line_report import LineWarnings
from dragoman.io.json_fields import OPTIONAL
from dragoman.runtime.counts import format_count, format_perplexity

if TYPE_CHECKING:
    from dragoman.config import DecodingConfig
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator

language_option = click.option(
    "--language", default="", help="Target language, for the tokens of BLEU and TER, and compound splitting."
)
comet_option = click.option(
    "--comet", type=PATH_TYPE, help="Also score with this COMET model: a folder on this machine. Needs the extra comet."
)
lowercase_option = click.option("--lowercase", is_flag=True, help="Ignore case in BLEU.")


@dataclass(frozen=True)
class ModelScores:
    """Scores of a model by forced decoding: one score for each line, and nats per token of all.

    scores: null for a line that the model cannot score, because it has no text or is too long
    """

    scores: Sequence[float | None]
    nll: float
    perplexity: float
    tokens: int


@dataclass(frozen=True)
class ScoreOutput:
    """Output of `dragoman score --json`."""

    scores: Annotated[Sequence[Score] | None, OPTIONAL] = None
    model: Annotated[ModelScores | None, OPTIONAL] = None


@dataclass(frozen=True)
class PairEvaluation:
    """Scores of one pair of languages in `dragoman evaluate --json`."""

    source_language: str
    target_language: str
    sentences: int
    scores: Sequence[Score]


@dataclass(frozen=True)
class EvaluateOutput:
    """Output of `dragoman evaluate --json`. The statuses count the lines that have them.

    scores: scores of the test set; the means over the pairs of languages with --pair
    pairs: scores of each pair of languages, with --pair
    """

    bundle: str
    ensemble: Sequence[str]
    device: str
    precision: str
    sentences: int
    scores: Sequence[Score]
    truncated: int
    short: int
    repetition: int
    copied: int
    empty: int
    too_long: int
    pairs: Annotated[Sequence[PairEvaluation] | None, OPTIONAL] = None


@dataclass(frozen=True)
class CompareOutput(SystemComparison):
    """Output of `dragoman compare --json`."""

    significant: bool


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `dragoman score`."""

    hypotheses: Path = argument("hypotheses", type=PATH_TYPE)
    references: tuple[Path, ...] = shared(references_option)
    bundle: Path | None = option("--bundle", type=BUNDLE_TYPE, help="Score with this model by forced decoding. Needs --src.")
    source: Path | None = option("--src", "source", type=PATH_TYPE, help="Source of the translations. Needs --bundle.")
    target_language: str | None = shared(to_option)
    source_language: str | None = shared(from_option)
    language: str = shared(language_option)
    tokenized: bool = shared(tokenized_option)
    bleu_tokenizer: str = shared(bleu_tokenizer_option)
    lowercase: bool = shared(lowercase_option)
    as_json: bool = shared(json_option())


@click.command()
@with_options(ScoreOptions)
def score(args: ScoreOptions) -> None:
    """Score the translations in the file HYPOTHESES: lines of text, or the output of dragoman translate --json.

    References (--ref) give BLEU, chrF, chrF++, TER and exact match, with signatures. A model (--bundle and --src) gives the
    log-probability of each line over the length penalty, and the perplexity of all lines. Lines that translate leaves out,
    blank or too long, have the score nan, and standard error names them. A model of many languages takes the languages from
    --to and --from.

    \b
    Example:  dragoman score output.de --ref test.de --language de
              dragoman score output.de --bundle runs/multi30k-ende/bundle --src test.en --json
    """
    from dragoman.console.terminal import print_json

    if (args.bundle is None) != (args.source is None):
        raise usage_error("--bundle and --src go together; give both")
    if args.bundle is None and not args.references:
        raise usage_error("give --ref FILE, or --bundle and --src")
    decoding: dict[str, Any] = {}
    add_languages(decoding, args.source_language, args.target_language)
    if decoding and args.bundle is None:
        raise usage_error("--to and --from choose the languages of --bundle; give it as well, or --language for --ref")
    lines = _read_translations(args.hypotheses)
    metric_scores, model_scores = None, None
    if args.references:
        targets = _read_references(args.hypotheses, lines, args.references)
        tokenizer = _choose_tokenizer(args.language, args.tokenized, args.bleu_tokenizer, targets[0])
        metric_scores = compute_scores(lines, targets, args.language, tokenizer, args.lowercase)
        if not args.as_json:
            _print_scores(f"{args.hypotheses} against {', '.join(map(str, args.references))}", metric_scores)
    if args.bundle is not None and args.source is not None:
        model_scores = _compute_model_scores(
            args.bundle, _read_sources(args.hypotheses, lines, [args.source])[0], lines, decoding
        )
        if not args.as_json:
            for line_score in model_scores.scores:
                click.echo("nan" if line_score is None else f"{line_score:.4f}")
            perplexity = format_perplexity(model_scores.perplexity, ".4f")
            click.echo(f"perplexity {perplexity} over {format_count(model_scores.tokens, 'token')}", err=True)
    if args.as_json:
        print_json(ScoreOutput(scores=metric_scores, model=model_scores))


def _read_lines(path: Path) -> list[str]:
    from dragoman.formats.text import read_lines

    return list(read_lines(path))


def _read_translations(path: Path) -> list[str]:
    """Return the translations of a file: its lines, or the texts in the output of `dragoman translate --json`.

    Raises DataError for a line of such an output that is cut or missing.
    """
    lines = _read_lines(path)
    if not lines or _parse_json_line(lines[0]) is None:
        return lines
    texts: list[str] = []
    for number, line in enumerate(lines, start=1):
        fields = _parse_json_line(line)
        if fields is None or fields["line"] != number:
            raise DataError(
                f"{path}, line {number}: is not line {number} of dragoman translate --json; translate the file again",
                code="invalid-data",
            )
        texts.append(fields["text"])
    return texts


def _parse_json_line(line: str) -> dict[str, Any] | None:
    """Return the fields of a line of `dragoman translate --json`, or None for another line."""
    try:
        fields = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(fields, dict) and fields.keys() >= {"line", "source", "text"} and isinstance(fields["text"], str)
    return fields if is_line else None


def _read_parallel_lines(
    main_path: Path, lines: list[str], parallel_paths: Sequence[Path], *, read: Callable[[Path], list[str]] = _read_lines
) -> list[list[str]]:
    """Return the lines of the parallel files. Raises DataError if one does not have as many lines as the main file."""
    if not lines:
        raise DataError(f"{main_path}: is empty; give a file with text")
    texts = []
    for path in parallel_paths:
        texts.append(read(path))
        if len(texts[-1]) != len(lines):
            num_lines = format_count(len(lines), "line")
            raise DataError(f"{main_path} has {num_lines} but {path} has {len(texts[-1]):,}; give files of equal length")
    return texts


def _read_references(main_path: Path, lines: list[str], paths: Sequence[Path]) -> list[list[str]]:
    """Return the lines of references as `_read_sources` does, and name blank ones on standard error."""
    from dragoman.formats.text import is_blank

    texts = _read_sources(main_path, lines, paths)
    for path, text in zip(paths, texts, strict=True):
        if blank_lines := [number for number, line in enumerate(text, start=1) if is_blank(line)]:
            click.echo(f"{path}: blank references, which count as all others: {format_line_numbers(blank_lines)}", err=True)
    return texts


def _read_sources(main_path: Path, lines: list[str], paths: Sequence[Path]) -> list[list[str]]:
    """Return the lines of parallel files as `_read_parallel_lines` does. Raises DataError if a file has blank lines only."""
    from dragoman.formats.text import is_blank

    texts = _read_parallel_lines(main_path, lines, paths)
    for path, text in zip(paths, texts, strict=True):
        if all(map(is_blank, text)):
            raise DataError(
                f"{path}: all {format_count(len(text), 'line')} are blank; give a file with text", code="empty-data"
            )
    return texts


def _compute_model_scores(bundle: Path, sources: list[str], hypotheses: list[str], decoding: dict[str, Any]) -> ModelScores:
    from dragoman.evaluation.metrics import compute_perplexity
    from dragoman.inference.load import load

    translator = load(bundle, task="translation", precision="float32")
    obstacles = translator.find_unscorable(sources, hypotheses, **decoding)
    for reason in dict.fromkeys(obstacles.values()):
        line_numbers = [index + 1 for index, line_reason in obstacles.items() if line_reason == reason]
        click.echo(f"lines without a score, because {reason}: {format_line_numbers(line_numbers)}", err=True)
    indices = [index for index in range(len(sources)) if index not in obstacles]
    if not indices:
        raise DataError("no line can be scored; give sources with text that the model can read", code="empty-data")
    scored_pairs = translator.score([sources[index] for index in indices], [hypotheses[index] for index in indices], **decoding)
    scores: list[float | None] = [None] * len(sources)
    for index, pair in zip(indices, scored_pairs, strict=True):
        scores[index] = pair.score
    num_tokens = sum(len(pair.token_log_probs) for pair in scored_pairs)
    nll = -sum(sum(pair.token_log_probs) for pair in scored_pairs) / num_tokens
    return ModelScores(scores, nll=nll, perplexity=compute_perplexity(nll), tokens=num_tokens)


def compute_scores(
    hypotheses: list[str], references: list[list[str]], language: str, tokenizer: str, lowercase: bool
) -> list[Score]:
    """Return all metrics that apply: sacreBLEU's, and tokenized BLEU; Moses' tokenizer needs a language with spaces.

    For German, compounds are split as in the paper's tables. TER of a large test set takes minutes, so progress is shown.
    """
    from dragoman.console.terminal import progress_bar, stderr_console

    scores = []
    console = stderr_console()
    notify = partial(console.print, markup=False)  # above the bar
    with progress_bar(console, "scoring", None, unit="metrics") as bar:
        for metric_score in _iter_scores(hypotheses, references, language, tokenizer, lowercase, notify):
            scores.append(metric_score)
            bar.advance(1)
    return scores


def _iter_scores(
    hypotheses: list[str],
    references: list[list[str]],
    language: str,
    tokenizer: str,
    lowercase: bool,
    notify: Callable[[str], None],
) -> Iterator[Score]:
    from dragoman.evaluation.bleu_tokenizer import bleu_with_tokenizer, find_ter_obstacle, splits_ter_characters
    from dragoman.evaluation.metrics import (
        character_error_rate,
        chrf,
        exact_match,
        moses_bleu,
        paper_bleu,
        ter,
        uses_split_compounds,
    )
    from dragoman.languages import is_spaced_language

    yield bleu_with_tokenizer(hypotheses, references, tokenizer, lowercase=lowercase)
    if tokenizer == "none":
        if uses_split_compounds(language):
            yield paper_bleu(hypotheses, references, language, tokenized=True, lowercase=lowercase)
    elif language and is_spaced_language(language):
        try:
            yield moses_bleu(hypotheses, references, language, lowercase=lowercase)
            if uses_split_compounds(language):
                yield moses_bleu(hypotheses, references, language, split_hyphens=True, lowercase=lowercase)
        except MissingDependencyError as error:
            notify(f"dragoman: Moses BLEU is left out: {error}")
    yield chrf(hypotheses, references)
    yield chrf(hypotheses, references, word_order=2)
    is_tokenized = tokenizer == "none"
    if obstacle := find_ter_obstacle(language, references[0], tokenized=is_tokenized):
        notify(f"dragoman: TER is left out: {obstacle}")
    else:
        yield ter(hypotheses, references, splits_characters=splits_ter_characters(language, tokenized=is_tokenized))
    yield exact_match(hypotheses, references)
    if any(map(any, references)):
        yield character_error_rate(hypotheses, references)


def _choose_tokenizer(language: str, tokenized: bool, requested: str, reference: Sequence[str]) -> str:
    """Return the tokenizer of BLEU, after a check that it can run. Warn if it splits text without spaces at spaces.

    reference: lines in the target language
    """
    from dragoman.evaluation.bleu_tokenizer import choose_bleu_tokenizer, find_bleu_problem
    from dragoman.evaluation.metrics import bleu_metric

    tokenizer = choose_bleu_tokenizer(language, tokenized=tokenized, requested=requested)
    bleu_metric(tokenizer)
    if requested == "auto" and (problem := find_bleu_problem(language, tokenizer, reference)):
        click.echo(problem, err=True)
    return tokenizer


def _print_scores(title: str, scores: list[Score]) -> None:
    from dragoman.console.terminal import print_table

    print_table(
        title,
        ["metric", "value", "signature"],
        [(metric_score.name, f"{metric_score.value:.2f}", metric_score.signature) for metric_score in scores],
    )
    _print_notes(scores)


def _print_notes(scores: Sequence[Score]) -> None:
    for note in dict.fromkeys(metric_score.note for metric_score in scores):
        if note is not None:
            click.echo(note, err=True)


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `dragoman evaluate`."""

    bundle: Path = shared(bundle_argument)
    overrides: tuple[str, ...] = shared(overrides_argument)
    source: Path | None = option("--src", "source", type=PATH_TYPE, help="Source of the test set.")
    references: tuple[Path, ...] = shared(references_option)
    target_language: str | None = shared(to_option)
    source_language: str | None = shared(from_option)
    pairs: tuple[tuple[str, str, Path, Path], ...] = option(
        "--pair",
        "pairs",
        type=(str, str, PATH_TYPE, PATH_TYPE),
        multiple=True,
        metavar="FROM TO SRC REF",
        help="Test set of one pair of languages: two codes and two files. Repeat it for several pairs.",
    )
    ensemble: tuple[Path, ...] = shared(ensemble_option)
    output: Path | None = shared(output_path_option("Write the translations to this file."))
    overwrite: bool = shared(overwrite_option())
    device: str = shared(device_option)
    precision: str = shared(precision_option("float32"))
    comet: Path | None = shared(comet_option)
    language: str = shared(language_option)
    tokenized: bool = shared(tokenized_option)
    bleu_tokenizer: str = shared(bleu_tokenizer_option)
    lowercase: bool = shared(lowercase_option)
    as_json: bool = shared(json_option())

    def __post_init__(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.pairs and (self.source or self.references or self.output or self.source_language or self.target_language):
            raise usage_error("--pair goes without --src, --ref, --output, --from and --to")
        if not self.pairs and self.source is None:
            raise usage_error("give --src FILE with --ref FILE, or --pair FROM TO SRC REF")
        if not self.pairs and not self.references:
            raise usage_error("give --ref FILE")


@click.command()
@with_options(EvaluateOptions)
def evaluate(args: EvaluateOptions) -> None:
    """Translate a test set with BUNDLE and score the result: sacreBLEU, tokenized and compound-split BLEU, chrF,
    chrF++, TER.

    The bundle's recipe gives the defaults of --language, --tokenized and --bleu-tokenizer. KEY=VALUE changes a key of its
    [decoding] section.
    The default precision is float32, as in the scores of training. Standard error names incomplete lines. They are scored
    as they are, and the exit status is 0.
    A bundle of many languages has scores for each --pair, and their means.

    \b
    Example:  dragoman evaluate en-de --src test.en --ref test.de beam_size=5 -o out.de
              dragoman evaluate runs/multi30k-ende/bundle --pair en de test.en test.de --pair de en test.de test.en
    """
    from dragoman.console.terminal import progress_bar, stderr_console

    decoding = parse_decoding_overrides(args.overrides)
    add_languages(decoding, args.source_language, args.target_language)
    test_sets = [
        _TestSet(pair_source, [pair_reference], {**decoding, "source_language": pair_from, "target_language": pair_to})
        for pair_from, pair_to, pair_source, pair_reference in args.pairs
    ]
    if args.source is not None:
        check_output_paths(
            args.output, overwrite=args.overwrite, input_paths=[args.source, *args.references, args.bundle, *args.ensemble]
        )
        test_sets.append(_TestSet(args.source, args.references, decoding))
    with progress_bar(stderr_console(), "translating", sum(len(test_set.lines) for test_set in test_sets)) as bar:
        from dragoman.inference.load import load  # the import of torch takes seconds, in which the bar is shown

        translator = load(args.bundle, *args.ensemble, task="translation", device=args.device, precision=args.precision)
        for test_set in test_sets:
            test_set.choose_tokenizer(translator, args.language, args.tokenized, args.bleu_tokenizer)
        output_sink: AbstractContextManager[IO[str] | None] = nullcontext()
        if args.output is not None:
            output_sink = open_text_output(args.output, overwrite=args.overwrite)
        with output_sink as stream:
            for test_set in test_sets:
                translator.resolve_decoding(test_set.decoding)
                test_set.results = translator.translate(test_set.lines, on_progress=bar.advance, **test_set.decoding)
            if stream is not None:
                stream.writelines(result.text + "\n" for result in test_sets[0].results)
    _report_scores(args, test_sets, translator, translator.resolve_decoding(decoding))


def _report_scores(
    args: EvaluateOptions, test_sets: Sequence[_TestSet], translator: Translator, decoding: DecodingConfig
) -> None:
    """Score the translations and print the scores, those of each pair of languages and their means."""
    from dragoman.console.terminal import print_json

    scores_by_set = [test_set.score(args.lowercase) for test_set in test_sets]
    if args.comet is not None:
        from dragoman.inference.comet import load_comet

        scorer = load_comet(args.comet, device=str(translator.device))
        for test_set, set_scores in zip(test_sets, scores_by_set, strict=True):
            outputs = [result.text for result in test_set.results]
            set_scores.append(scorer.summarize(scorer.score_reference_sets(test_set.lines, outputs, test_set.targets)))
    line_warnings = LineWarnings()
    for test_set in test_sets:
        for line, result in zip(test_set.lines, test_set.results, strict=True):
            line_warnings.add(line, result)
    scores = _average_scores(scores_by_set)
    if args.as_json:
        pair_outputs = None
        if args.pairs:
            pair_outputs = [
                PairEvaluation(pair_from, pair_to, len(test_set.lines), pair_scores)
                for (pair_from, pair_to, *_), test_set, pair_scores in zip(args.pairs, test_sets, scores_by_set, strict=True)
            ]
        print_json(_make_output([args.bundle, *args.ensemble], translator, scores, line_warnings, pair_outputs))
        return
    bundle_names = " + ".join(map(str, (args.bundle, *args.ensemble)))
    for test_set, set_scores in zip(test_sets, scores_by_set, strict=True):
        num_sentences = format_count(len(test_set.lines), "sentence")
        _print_scores(f"{bundle_names} on {test_set.name} ({num_sentences}, {translator.precision})", set_scores)
    if len(test_sets) > 1:
        _print_scores(f"mean of {len(test_sets)} pairs of languages", scores)
    for warning in line_warnings.format_messages(translator.inference_model.max_positions, decoding):
        click.echo(warning, err=True)


def _average_scores(scores_by_set: Sequence[Sequence[Score]]) -> list[Score]:
    """Return the mean of each metric that all test sets have; the scores themselves if there is one set."""
    from dragoman.evaluation.metrics import mean_score

    if len(scores_by_set) == 1:
        return list(scores_by_set[0])
    by_name = [{score.name: score for score in scores} for scores in scores_by_set]
    names = [name for name in by_name[0] if all(name in scores for scores in by_name)]
    return [mean_score([scores[name] for scores in by_name]) for name in names]


class _TestSet:
    """Test set of one pair of languages: its files, its decoding options and its translations."""

    def __init__(self, source: Path, references: Sequence[Path], decoding: dict[str, Any]) -> None:
        from dragoman.formats.text import read_lines

        self.source = source
        self.decoding = decoding
        self.lines = list(read_lines(source))
        self.targets = _read_references(source, self.lines, references)
        self.language = self.tokenizer = ""
        self.results: list[Translation] = []

    @property
    def name(self) -> str:
        """Return the source file, with the languages of a pair."""
        languages = self.decoding.get("source_language"), self.decoding.get("target_language")
        return f"{self.source} ({languages[0]} → {languages[1]})" if all(languages) else str(self.source)

    def choose_tokenizer(self, translator: Translator, language: str, tokenized: bool, bleu_tokenizer: str) -> None:
        """Choose the tokenizer of BLEU before the translation, by the options and by the recipe of the bundle."""
        task = translator.recipe.task
        self.language = language or self.decoding.get("target_language") or task.target_language
        if bleu_tokenizer == "auto":
            bleu_tokenizer = task.bleu_tokenizer
        self.tokenizer = _choose_tokenizer(self.language, tokenized or task.tokenized, bleu_tokenizer, self.targets[0])

    def score(self, lowercase: bool) -> list[Score]:
        """Return the scores of the translations."""
        return compute_scores([result.text for result in self.results], self.targets, self.language, self.tokenizer, lowercase)


def _make_output(
    bundles: Sequence[Path],
    translator: Translator,
    scores: Sequence[Score],
    line_warnings: LineWarnings,
    pairs: Sequence[PairEvaluation] | None,
) -> EvaluateOutput:
    from dragoman.tasks.translation_status import TranslationStatus

    status_counts: dict[str, Any] = {
        status: line_warnings.counts.get(status, 0) for status in get_args(TranslationStatus) if status != "ok"
    }
    return EvaluateOutput(
        bundle=str(bundles[0]),
        ensemble=list(map(str, bundles[1:])),
        device=str(translator.device),
        precision=translator.precision,
        sentences=line_warnings.line_count,
        scores=scores,
        pairs=pairs,
        **status_counts,
    )


@dataclass(frozen=True)
class CompareOptions:
    """Options of `dragoman compare`."""

    first: Path = argument("first", type=PATH_TYPE)
    second: Path = argument("second", type=PATH_TYPE)
    references: tuple[Path, ...] = shared(references_option)
    metric: str = option(
        "--metric",
        default="bleu",
        show_default=True,
        type=click.Choice(["bleu", "chrf", "chrf++", "ter", "comet"]),
        help="Metric.",
    )
    comet: Path | None = option("--comet", type=PATH_TYPE, help="COMET model for --metric comet: a folder on this machine.")
    source: Path | None = option("--src", "source", type=PATH_TYPE, help="Source of the translations, for --metric comet.")
    resamples: int = option(
        "--resamples",
        type=click.IntRange(max=1_000_000),
        default=1000,
        show_default=True,
        help="Bootstrap resamples, at least 40.",
    )
    seed: int = option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the resampling.")
    language: str = shared(language_option)
    tokenized: bool = shared(tokenized_option)
    bleu_tokenizer: str = shared(bleu_tokenizer_option)
    as_json: bool = shared(json_option())


@click.command()
@with_options(CompareOptions)
def compare(args: CompareOptions) -> None:
    """Compare the translations in FIRST with those in SECOND by paired bootstrap (Koehn 2004).

    The result is the difference, its confidence interval and its p-value.

    \b
    Example:  dragoman compare base.de big.de --ref test.de
    """
    from dragoman.console.terminal import print_json, print_table
    from dragoman.evaluation.bleu_tokenizer import find_ter_obstacle, splits_ter_characters
    from dragoman.evaluation.bootstrap import SMALL_TEST_SET, paired_bootstrap
    from dragoman.io.json_fields import copy_fields

    if not args.references:
        raise usage_error("give --ref FILE")
    if (args.metric == "comet") != (args.comet is not None) or (args.comet is None) != (args.source is None):
        raise usage_error("--metric comet, --comet and --src go together; give all three")
    first_lines = _read_translations(args.first)
    (second_lines,) = _read_parallel_lines(args.first, first_lines, [args.second], read=_read_translations)
    targets = _read_references(args.first, first_lines, args.references)
    if args.comet is not None and args.source is not None:
        (sources,) = _read_sources(args.first, first_lines, [args.source])
        comparison = _compare_by_comet(args.comet, sources, first_lines, second_lines, targets, args.resamples, args.seed)
    else:
        if args.metric == "ter" and (obstacle := find_ter_obstacle(args.language, targets[0], tokenized=args.tokenized)):
            raise usage_error(f"--metric ter: {obstacle}; use chrf, or --tokenized for text with spaces between tokens")
        comparison = paired_bootstrap(
            first_lines,
            second_lines,
            targets,
            metric=args.metric,
            tokenize=_choose_tokenizer(args.language, args.tokenized, args.bleu_tokenizer, targets[0])
            if args.metric == "bleu"
            else "none",
            splits_characters=splits_ter_characters(args.language, tokenized=args.tokenized),
            resamples=args.resamples,
            seed=args.seed,
        )
    if len(first_lines) < SMALL_TEST_SET:
        num_sentences = format_count(len(first_lines), "sentence")
        click.echo(f"{num_sentences}: with fewer than {SMALL_TEST_SET}, a bootstrap underestimates the uncertainty", err=True)
    if args.as_json:
        print_json(copy_fields(CompareOutput, comparison, significant=comparison.is_significant))
        return
    rows = [
        (str(system), f"{system_score.value:.2f}", system_score.signature)
        for system, system_score in ((args.first, comparison.a), (args.second, comparison.b))
    ]
    print_table("comparison", ["system", comparison.a.name, "signature"], rows)
    _print_notes([comparison.a, comparison.b])
    click.echo(comparison.describe(str(args.first), str(args.second)))


def _compare_by_comet(
    comet: Path,
    sources: list[str],
    first: list[str],
    second: list[str],
    targets: list[list[str]],
    resamples: int,
    seed: int,
) -> SystemComparison:
    from dragoman.evaluation.bootstrap import compare_resampled, resample_mean
    from dragoman.inference.comet import load_comet

    scorer = load_comet(comet)
    a, b = (scorer.score_reference_sets(sources, lines, targets) for lines in (first, second))
    return compare_resampled(
        *(
            [resample_mean(scorer.summarize(scores), [100 * score for score in scores], resamples=resamples, seed=seed)]
            for scores in (a, b)
        )
    )
