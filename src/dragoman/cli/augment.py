"""More to learn from: `augment back-translate`, `self-train`, `distil`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from dragoman.cli.options import end_as_if_interrupted, refuse_old

if TYPE_CHECKING:
    from dragoman.config import TaskConfig
    from dragoman.formats.pair import Pair
    from dragoman.tasks.synthetic_data import Augmentation, Form

PATH = click.Path(path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])
DROPPED = {
    "blank": "without text",
    "truncated": "cut",
    "looped": "that went round in circles",
    "copied": "that came out as they went in",
    "empty": "of which nothing came",
    "refused": "longer than the model reads",
}
TAG = click.option("--tag", default="", help="A word that stands before each source, such as <BT>.")


def common(command: Command) -> Command:
    """What all three take."""
    for option in reversed(
        [
            click.option("-o", "--output", type=PATH, required=True, help="Write here: a .tsv or a .jsonl."),
            click.option("--overwrite", is_flag=True, help="Replace what is there, and what was begun with other settings."),
            click.option("--with", "others", multiple=True, type=PATH, help="One more bundle for an ensemble."),
            click.option(
                "--keep",
                multiple=True,
                type=click.Choice(["truncated", "looped", "copied"]),
                help="Write such pairs, too; they are dropped otherwise.",
            ),
            click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, …"),
            click.option("--precision", default="auto", show_default=True, help="float32, bfloat16, int8."),
            click.option("--json", "as_json", is_flag=True, help="Print what became of the lines as JSON."),
        ]
    ):
        command = option(command)
    return command


@click.group()
def augment() -> None:
    """Make more to learn from with models that are there, as a corpus for a recipe's mixture. Each has --json.

    Lines are read as a stream; interrupted, the same command goes on where it stopped. Every line is written, or counted with
    the reason why not; the exit code is 3 where no line gave a pair. A .jsonl also tells the origin of each pair, and how sure
    the model was.

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
              dragoman augment distil runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5
    """


@augment.command("back-translate")
@click.argument("bundle", type=PATH)
@click.argument("words", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@TAG
@common
def back_translate(bundle: Path, words: tuple[str, ...], tag: str, keep: tuple[str, ...], **rest: Any) -> None:
    """Pairs of the lines of FILE, in the target language, and sources that BUNDLE writes for them.

    BUNDLE translates from the target language into the source language. KEY=VALUE changes a knob of its recipe's [decoding].

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split(words, 1)
    how = Augmentation("back-translate", tag=_word(tag), kept=frozenset(keep))
    _run(how, bundle, files, decoding, **rest)


@augment.command("self-train")
@click.argument("bundle", type=PATH)
@click.argument("words", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@TAG
@common
def self_train(bundle: Path, words: tuple[str, ...], tag: str, keep: tuple[str, ...], **rest: Any) -> None:
    """Pairs of the lines of FILE, in the source language, and targets that BUNDLE writes for them.

    \b
    Example:  dragoman augment self-train runs/multi30k-ende/bundle news.en -o news.jsonl beam_size=5
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split(words, 1)
    how = Augmentation("self-train", tag=_word(tag), kept=frozenset(keep))
    _run(how, bundle, files, decoding, **rest)


@augment.command()
@click.argument("bundle", type=PATH)
@click.argument("words", nargs=-1, required=True, metavar="SOURCE TARGET [KEY=VALUE]...")
@click.option("--best-of", type=click.IntRange(1, 1000), help="Of so many outputs, take the one most like the pair's target.")
@click.option("--by", type=click.Choice(["bleu", "chrf"]), default="bleu", show_default=True, help="With --best-of.")
@click.option("--original", is_flag=True, help="Where no output can be used, write the pair as it was.")
@common
def distil(
    bundle: Path,
    words: tuple[str, ...],
    best_of: int | None,
    by: str,
    original: bool,
    keep: tuple[str, ...],
    **rest: Any,
) -> None:
    """The pairs of SOURCE and TARGET (or of one file that holds both) with the targets that BUNDLE, the teacher, writes.

    \b
    Example:  dragoman augment distil runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5 --original
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split(words, 2)
    context = click.get_current_context()
    if best_of is None and context.get_parameter_source("by") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--by {by} says how --best-of chooses, which is not given", ctx=context)
    if best_of is not None and "nbest" in decoding:
        raise click.UsageError(f"--best-of {best_of} and nbest={decoding['nbest']} both say how many: give one", ctx=context)
    how = Augmentation("distil", kept=frozenset(keep), by=cast("Any", by), original=original)
    _run(how, bundle, files, decoding, best_of=best_of, **rest)


def _run(
    how: Augmentation,
    bundle: Path,
    files: Sequence[Path],
    decoding: dict[str, Any],
    *,
    output: Path,
    overwrite: bool,
    others: tuple[Path, ...],
    device: str,
    precision: str,
    as_json: bool,
    best_of: int | None = None,
) -> None:
    """Translate and write."""
    from dataclasses import replace

    from dragoman.cli.console import counting_bar, people
    from dragoman.errors import DataError, Interrupted, RecipeError
    from dragoman.formats.resumable import growing_file
    from dragoman.inference.translator import load
    from dragoman.tasks.synthetic_data import augment as write_pairs
    from dragoman.tasks.synthetic_data import request_of

    form = _form(output)
    refuse_old(output, overwrite=overwrite, read=[*files, bundle, *others])
    translator = load(bundle, *others, device=device, precision=precision)
    task = translator.recipe.task
    if best_of is not None:
        decoding = {"nbest": best_of, **decoding}
        if translator.check({**decoding, "nbest": 1}).method == "beam":
            decoding = {"beam_size": max(best_of, translator.recipe.decoding.beam_size), **decoding}
    try:
        config = translator.check(decoding)
    except RecipeError as error:
        raise error if best_of is None else RecipeError(f"--best-of {best_of} asks for nbest = {best_of}: {error}") from None
    how = replace(how, tokenised=task.tokenized)
    request = request_of(how, form, [bundle, *others], files, config, precision=str(translator.precision))
    total = sum(1 for _ in _given(how, files, task))
    if not total:
        raise DataError(f"{files[0]}: is empty; there is nothing to make pairs of")
    started = time.monotonic()
    end_as_if_interrupted()
    with growing_file(output, request, overwrite=overwrite) as growing, counting_bar(people(), "translating", total) as bar:
        before = growing.read
        try:
            fates = write_pairs(
                _given(how, files, task),
                how,
                lambda lines, first: translator.translate(lines, first=first, **decoding),
                growing,
                form=form,
                advance=lambda count: bar.advance(bar.task_ids[0], count),
            )
        except KeyboardInterrupt:
            kept = f"{growing.read:,} of {total:,} lines are kept in {growing.folder}; the same command goes on from there"
            raise Interrupted(f"interrupted: {kept}") from None
    told = {"output": str(output), "from_before": before, "seconds": time.monotonic() - started}
    _tell(f"{bundle} ({task.source_language} → {task.target_language})", total, fates, told, as_json=as_json)
    if not fates.get("written", 0) + fates.get("original", 0):
        sys.exit(3)


def _tell(by: str, total: int, fates: Mapping[str, int], told: dict[str, Any], *, as_json: bool) -> None:
    """What became of the lines, and nothing of those of which there are none."""
    from dragoman.cli.console import print_json
    from dragoman.tasks.synthetic_data import TABS

    original, tabs = fates.get("original", 0), fates.get(TABS, 0)
    written = fates.get("written", 0) + original
    dropped = {fate: count for fate, count in fates.items() if fate in DROPPED}
    if as_json:
        counts = {"pairs": written, "original": original, "tabs_replaced": tabs, "dropped": dropped}
        print_json({**told, "lines": total, **counts})
        return
    click.echo(f"{told['output']}: {written:,} pairs of {total:,} lines, by {by}")
    if original:
        click.echo(f"pairs written as they were: {original:,}", err=True)
    if tabs:
        click.echo(f"pairs whose tabs are spaces now, since a .tsv has them between its columns: {tabs:,}", err=True)
    for fate, count in dropped.items():
        click.echo(f"lines {DROPPED[fate]}, dropped: {count:,}", err=True)


def _form(output: Path) -> Form:
    if output.suffix not in (".tsv", ".jsonl"):
        raise click.UsageError(f"{output}: its ending has to be .tsv or .jsonl", ctx=click.get_current_context())
    return "tsv" if output.suffix == ".tsv" else "jsonl"


def _split(words: Sequence[str], most: int) -> tuple[list[Path], dict[str, Any]]:
    """The files and the decoding knobs, told apart by their equals sign."""
    from dragoman.config import parse_setting

    files = [Path(word) for word in words if "=" not in word or Path(word).exists()]
    settings = map(parse_setting, (word for word in words if Path(word) not in files))
    if not 1 <= len(files) <= most:
        allowed = "one file" if most == 1 else "SOURCE and TARGET, or one file that holds both"
        raise click.UsageError(f"{len(files)} files are given; allowed: {allowed}", ctx=click.get_current_context())
    return files, {key.removeprefix("decoding."): value for key, value in settings}


def _word(tag: str) -> str:
    if any(letter.isspace() for letter in tag):
        raise click.UsageError(f"--tag {tag!r}: has to be one word", ctx=click.get_current_context())
    return tag


def _given(how: Augmentation, files: Sequence[Path], task: TaskConfig) -> Iterator[Pair]:
    """What there is: lines of one language, or the pairs of two files, or those of one that holds both sides."""
    from dragoman.errors import DataError
    from dragoman.formats.pair import Pair
    from dragoman.formats.readers import ENDINGS, ending_of, format_of, read_file, read_sides
    from dragoman.formats.text import read_lines

    if how.kind != "distil":
        return (Pair(line, "", f"{files[0]}:{number}") for number, line in enumerate(read_lines(files[0]), start=1))
    if len(files) == 2:
        return read_sides(files[0], files[1])
    if ending_of(files[0]) not in ENDINGS:
        raise DataError(f"{files[0]}: holds one side; give SOURCE and TARGET, or one file that holds both, such as a .tsv")
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    return read_file(files[0], format_of(files[0]), **languages)
