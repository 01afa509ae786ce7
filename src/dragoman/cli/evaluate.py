"""How good is it: `score`, `evaluate`, `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from dragoman.cli.line_report import Remarks
from dragoman.cli.options import DEVICE, WITH, refuse_old, text_sink
from dragoman.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Score

PATH = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
LANGUAGE = click.option("--language", default="", help="Target language, for Moses tokens and the paper's compound split.")
TOKENISED = click.option("--tokenised", is_flag=True, help="The text is tokenised: count its tokens as they stand.")
LOWERCASE = click.option("--lowercase", is_flag=True, help="Let case not count in BLEU.")
REFERENCES = click.option("--ref", "references", multiple=True, type=PATH, help="A reference file; give several for several.")


@click.command()
@click.argument("hypotheses", type=PATH)
@REFERENCES
@click.option("--bundle", type=PATH, help="Score by this model (forced); needs --src.")
@click.option("--src", "source", type=PATH, help="What was translated; goes with --bundle.")
@LANGUAGE
@TOKENISED
@LOWERCASE
@JSON
def score(
    hypotheses: Path,
    references: tuple[Path, ...],
    bundle: Path | None,
    source: Path | None,
    language: str,
    tokenised: bool,
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
        scores = all_scores(lines, _read_beside(hypotheses, lines, references), language, tokenised, lowercase)
        result["scores"] = [asdict(one) for one in scores]
        if not as_json:
            _print_scores(f"{hypotheses} against {', '.join(map(str, references))}", scores)
    if bundle is not None and source is not None:
        result["model"] = _force(bundle, _read_beside(hypotheses, lines, [source])[0], lines, as_json)
    if as_json:
        from dragoman.cli.console import print_json

        print_json(result)


def _read_beside(first: Path, lines: list[str], others: Sequence[Path]) -> list[list[str]]:
    """The lines of files that belong to those of the first, line by line. Raises DataError where one has more or fewer."""
    from dragoman.formats.text import read_lines

    if not lines:
        raise DataError(f"{first}: is empty")
    found = []
    for path in others:
        found.append(list(read_lines(path)))
        if len(found[-1]) != len(lines):
            raise DataError(
                f"{first} has {len(lines)} lines but {path} has {len(found[-1])}: line n of one belongs to line n of the other"
            )
    return found


def _force(bundle: Path, sources: list[str], lines: list[str], as_json: bool) -> dict[str, Any]:
    import math

    from dragoman.inference.translator import load

    scored = load(bundle, precision="float32").score(sources, lines)
    tokens = sum(len(one.token_log_probs) for one in scored)
    nll = -sum(sum(one.token_log_probs) for one in scored) / tokens
    if not as_json:
        for one in scored:
            click.echo(f"{one.score:.4f}")
        click.echo(f"perplexity {math.exp(nll):.4f} over {tokens} tokens", err=True)
    return {"scores": [one.score for one in scored], "nll": nll, "perplexity": math.exp(nll), "tokens": tokens}


def all_scores(
    hypotheses: list[str], references: list[list[str]], language: str, tokenised: bool, lowercase: bool
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
        splits_compounds,
        ter,
        tokenised_bleu,
    )

    scores = [] if tokenised else [bleu(hypotheses, references, lowercase=lowercase)]
    if tokenised:
        scores.append(tokenised_bleu(hypotheses, references, lowercase=lowercase))
        if splits_compounds(language):
            scores.append(paper_bleu(hypotheses, references, language, tokenised=True, lowercase=lowercase))
    elif language:
        try:
            scores.append(moses_bleu(hypotheses, references, language, lowercase=lowercase))
            if splits_compounds(language):
                scores.append(compound_split_bleu(hypotheses, references, language, lowercase=lowercase))
        except MissingExtraError as error:
            click.echo(f"dragoman: left out: {error}", err=True)
    scores += [chrf(hypotheses, references), ter(hypotheses, references), exact_match(hypotheses, references)]
    return scores


def _print_scores(title: str, scores: list[Score]) -> None:
    from dragoman.cli.console import print_table

    print_table(title, ["metric", "value", "signature"], [(one.name, f"{one.value:.2f}", one.signature) for one in scores])


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--src", "source", type=PATH, required=True, help="The test set's source.")
@REFERENCES
@WITH
@click.option("-o", "--output", type=PATH, help="Keep the translations here.")
@click.option("--overwrite", is_flag=True, help="Replace an output file that exists.")
@DEVICE
@click.option("--precision", default="float32", show_default=True, help="float32, bfloat16, int8; auto takes the fastest here.")
@LANGUAGE
@TOKENISED
@LOWERCASE
@JSON
def evaluate(
    bundle: Path,
    changes: tuple[str, ...],
    source: Path,
    references: tuple[Path, ...],
    others: tuple[Path, ...],
    output: Path | None,
    overwrite: bool,
    device: str,
    precision: str,
    language: str,
    tokenised: bool,
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
    from dragoman.cli.console import counting_bar, people, print_json
    from dragoman.config import parse_setting
    from dragoman.formats.text import read_lines
    from dragoman.inference.translator import load
    from dragoman.tasks.translation import Status, longest_source

    if not references:
        raise click.UsageError("give --ref FILE", ctx=click.get_current_context())
    refuse_old(output, overwrite=overwrite, read=[source, *references, bundle, *others])
    lines = list(read_lines(source))
    targets = _read_beside(source, lines, references)
    translator = load(bundle, *others, device=device, precision=precision)
    decoding = {key.removeprefix("decoding."): value for key, value in map(parse_setting, changes)}
    config = translator.check(decoding)
    sink: AbstractContextManager[IO[str] | None] = nullcontext()
    if output is not None:
        sink = text_sink(output, overwrite=overwrite)
    with sink as stream, counting_bar(people(), "translating", len(lines)) as bar:
        results = translator.translate(lines, advance=lambda count: bar.advance(bar.task_ids[0], count), **decoding)
        texts = [one.text for one in results]
        if stream is not None:
            stream.writelines(text + "\n" for text in texts)
    task = translator.recipe.task
    scores = all_scores(texts, targets, language or task.target_language, tokenised or task.tokenized, lowercase)
    remarks = Remarks()
    for line, result in zip(lines, results, strict=True):
        remarks.add(line, result)
    if as_json:
        voting = [str(other) for other in others]
        where = {"bundle": str(bundle), "with": voting, "device": str(translator.device), "precision": translator.precision}
        counts = {status: len(remarks.numbers.get(status, ())) for status in get_args(Status) if status != "ok"}
        print_json({**where, "sentences": len(lines), "scores": [asdict(one) for one in scores], **counts})
        return
    names = " + ".join(map(str, (bundle, *others)))
    _print_scores(f"{names} on {source} ({len(lines)} sentences, {translator.precision})", scores)
    for sentence in remarks.sentences(longest_source(translator.speaker.positions, config), config.max_extra_tokens):
        click.echo(sentence, err=True)


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@REFERENCES
@click.option("--metric", default="bleu", type=click.Choice(["bleu", "chrf", "ter"]), help="What to compare by.")
@click.option(
    "--resamples",
    type=click.IntRange(max=1_000_000),
    default=1000,
    show_default=True,
    help="Bootstrap resamples (at least 40).",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the resampling.")
@TOKENISED
@JSON
def compare(
    first: Path,
    second: Path,
    references: tuple[Path, ...],
    metric: str,
    resamples: int,
    seed: int,
    tokenised: bool,
    as_json: bool,
) -> None:
    """Tell whether the translations in FIRST are better than those in SECOND, by paired bootstrap (Koehn 2004).

    \b
    Example:  dragoman compare base.de big.de --ref test.de
    """
    from dragoman.cli.console import print_json
    from dragoman.evaluation.bootstrap import FEW, paired_bootstrap
    from dragoman.formats.text import read_lines

    if not references:
        raise click.UsageError("give --ref FILE", ctx=click.get_current_context())
    lines = list(read_lines(first))
    others, *targets = _read_beside(first, lines, [second, *references])
    comparison = paired_bootstrap(
        lines,
        others,
        targets,
        metric=metric,
        tokenize="none" if tokenised else "13a",
        resamples=resamples,
        seed=seed,
    )
    if len(lines) < FEW:
        click.echo(f"{len(lines)} sentences: of fewer than {FEW}, a bootstrap is surer than it should be", err=True)
    if as_json:
        print_json({**asdict(comparison), "significant": comparison.significant})
        return
    _print_scores("compared", [comparison.a, comparison.b])
    click.echo(comparison.verdict(str(first), str(second)))
