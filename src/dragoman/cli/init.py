"""Command `init`: look at the files of a corpus and write a recipe for them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import PATH_TYPE, check_output_paths, json_option, language_option, overwrite_option, usage_error
from dragoman.languages import get_language, to_language_code

if TYPE_CHECKING:
    from dragoman.config import Recipe
    from dragoman.formats.pair import Pair

CODE_HINT = "a language is a code of two or three letters, such as en or pt-BR"
_LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
MAX_IDENTIFIED = 200
"""Pairs whose language is identified."""


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE...]", type=PATH_TYPE)
@language_option("--from", "source_language", "Source language, such as en; by default, the files name it.")
@language_option("--to", "target_language", "Target language.")
@click.option("--valid", nargs=2, type=PATH_TYPE, metavar="SOURCE TARGET", help="Validation set, if you have one.")
@click.option("-o", "--output", type=PATH_TYPE, default=Path("own.toml"), show_default=True, help="Recipe to write.")
@overwrite_option("Replace the recipe and the sets of an earlier init.")
@json_option()
def init(
    files: tuple[Path, ...],
    source_language: str | None,
    target_language: str | None,
    valid: tuple[Path, Path] | None,
    output: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Look at the pairs of FILE and write a recipe for them.

    FILE is the text of the source and that of the target, in lines or SGM, or one file with both: CSV, TSV, TMX, XLIFF, PO,
    JSON lines, Parquet. Without --valid, random pairs become a validation set and a test set. They are written beside the
    recipe, and cleaning drops them from the training data. recipe.schema.json beside it tells editors the keys of a recipe.

    \b
    Example:  dragoman init train.en train.de
              dragoman init memory.tmx --from en --to de -o own.toml
    """
    from dragoman.console.terminal import print_facts, print_json, stderr_console
    from dragoman.data.corpus_survey import survey_pairs
    from dragoman.data.new_recipe import format_recipe, read_user_corpus
    from dragoman.errors import DataError
    from dragoman.formats.readers import check_files_exist
    from dragoman.formats.stated_languages import SWAPPABLE_ORIGINS, find_stated_languages
    from dragoman.formats.writers import write_pairs

    if output.suffix != ".toml" or not output.parent.is_dir():
        raise usage_error(f"-o {output}: give a name that ends in .toml, in a folder that exists")
    files = files or _ask_files()
    corpus = read_user_corpus(files)
    check_files_exist(".", output.stem, [part.to_config() for part in (corpus, *([read_user_corpus(valid)] if valid else []))])
    stated = find_stated_languages(files)
    is_swapped = stated[2] in SWAPPABLE_ORIGINS and (source_language == stated[1] or target_language == stated[0])
    guesses = (stated[1], stated[0]) if is_swapped else stated[:2]
    languages = from_language, to_language = _ask_languages(guesses, source_language, target_language)
    stem = output.with_suffix("")
    set_names = [] if valid else [Path(f"{stem}.valid"), Path(f"{stem}.test")]
    set_files = [tuple(Path(f"{name}.{language}") for language in languages) for name in set_names]
    sets = [read_user_corpus(valid)] if valid else [read_user_corpus(paths) for paths in set_files]
    outputs = [output, *(path for paths in set_files for path in paths)]
    check_output_paths(*outputs, overwrite=overwrite, input_paths=[*files, *(valid or ())])
    survey, held_out = survey_pairs(corpus.read(languages))
    num_held_out = len(held_out) // 2
    for texts, counts in ((corpus, survey), *([(sets[0], survey_pairs(sets[0].read(languages))[0])] if valid else [])):
        if counts.pairs == counts.empty:
            raise DataError(f"{texts}: pairs with text on both sides: none of {counts.pairs:,}; give others", code="empty-data")
    if not valid and not num_held_out:
        raise DataError(
            f"{corpus}: too few pairs to hold some out: {survey.pairs:,}, of which {survey.empty:,} have an empty side, "
            f"{survey.equal:,} equal sides, and {survey.repeated:,} came before; add pairs, or give --valid",
            code="empty-data",
        )
    describe = partial(format_recipe, survey, path=output, languages=languages, train=corpus, sets=sets)
    origin = {"languages": f"from {stated[2]}"} if stated[2] and not (source_language and target_language) else {}
    if not as_json:
        print_facts(f"{corpus}: {from_language} to {to_language}", {**origin, **survey.describe()})
    with _all_or_nothing(outputs):
        for name, part in zip(set_names, (held_out[:num_held_out], held_out[num_held_out:]), strict=False):
            write_pairs(
                name, part, file_format="lines", source_language=from_language, target_language=to_language, overwrite=overwrite
            )
        recipe, choice = _write_recipe(output, describe, overwrite=overwrite)
        minutes = _estimate_minutes(recipe)
        notes = [] if as_json else [_find_wrong_language(held_out, languages), choice]
    if as_json:
        facts = {"recipe": str(output), "languages": list(languages), "size": recipe.size}
        print_json({**facts, "minutes": minutes, "survey": asdict(survey)})
        return
    for note in filter(None, notes):
        stderr_console().print(note, markup=False)
    held = "" if valid else f", and {num_held_out:,} pairs each in {stem}.valid.* and {stem}.test.*"
    click.echo(f"{output}: written{held}")
    _print_next_steps(files, output, languages, minutes)


@contextmanager
def _all_or_nothing(paths: Sequence[Path]) -> Iterator[None]:
    """Remove the new ones of these files if the work in the context ends early, so that the same command can run again."""
    new = [path for path in paths if not path.exists()]
    try:
        yield
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise


def _print_next_steps(files: Sequence[Path], output: Path, languages: tuple[str, str], minutes: float | None) -> None:
    """Print the commands that clean and train, the time of the training, and a model of the pair that is here."""
    from dragoman.model_packages import list_models

    click.echo(f"Try next:\n  dragoman clean {output} -o cleaned\n  dragoman train {output}")
    if minutes is not None:
        from dragoman.training.time_estimate import describe_minutes

        click.echo(describe_minutes(minutes))
    if (model := f"{languages[0]}-{languages[1]}") in list_models() and len(files) == 1:
        click.echo(f"The model {model} is here. Adapting it takes less time:\n  dragoman adapt {model} {files[0]}")


def _find_wrong_language(pairs: Sequence[Pair], languages: tuple[str, str]) -> str:
    """Return a sentence if most texts of a side are in the language of the other one, or in letters that its own lacks."""
    from dragoman.text.guards import SCRIPTS, get_script

    if _are_swapped(pairs, languages):
        return f"most sources are in {languages[1]}: --from and --to may be swapped"
    texts = zip(*((pair.source, pair.target) for pair in pairs[:MAX_IDENTIFIED]), strict=True)
    for side, option, language, side_texts in zip(("sources", "targets"), ("--from", "--to"), languages, texts, strict=False):
        scripts = Counter(get_script(letter) for letter in "".join(side_texts) if letter.isalpha())
        known = SCRIPTS.get(get_language(language))
        script, count = scripts.most_common(1)[0] if scripts else ("", 0)
        if known and script not in known and 2 * count > scripts.total():
            return f"most {side} are in {script.capitalize()} letters, in which {language} is not written: check {option}"
    return ""


def _are_swapped(pairs: Sequence[Pair], languages: tuple[str, str]) -> bool:
    """Return whether most sources are in the target language. Without py3langid, only languages of other scripts are told."""
    from dragoman.text.target_language import find_target_language

    sources = [pair.source for pair in pairs[:MAX_IDENTIFIED]]
    return 2 * sum(find_target_language(sources, *languages)) > len(sources)


def _write_recipe(path: Path, describe: Callable[..., str], *, overwrite: bool) -> tuple[Recipe, str | None]:
    """Write the recipe and its schema. Return the recipe, and why it has its size, which the recipe says too."""
    from dragoman.data.data_defaults import read_training_recipe
    from dragoman.data.new_recipe import SCHEMA_FILE

    _write_schema(path.with_name(SCHEMA_FILE), overwrite=overwrite)
    _write_text(path, describe(choice=""), overwrite=overwrite)
    recipe, choice, _ = read_training_recipe(path)
    _write_text(path, describe(choice=(choice or "").partition("; ")[0]), overwrite=True)
    return recipe, choice


def _write_schema(path: Path, *, overwrite: bool) -> None:
    """Write the schema of recipes, unless there is one and `overwrite` is false."""
    from dragoman.config.recipe_schema import make_recipe_schema

    if overwrite or not path.exists():
        _write_text(path, json.dumps(make_recipe_schema(), indent=1, ensure_ascii=False), overwrite=overwrite)


def _write_text(path: Path, text: str, *, overwrite: bool) -> None:
    from dragoman.io.storage import atomic_write

    with atomic_write(path, overwrite=overwrite) as file:
        file.write(text)


def _estimate_minutes(recipe: Recipe) -> float | None:
    """Return the minutes of the steps of a training on this machine; None without PyTorch."""
    try:
        from dragoman.training.time_estimate import estimate_recipe_minutes
    except ModuleNotFoundError:
        return None
    return estimate_recipe_minutes(recipe)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _ask_files() -> tuple[Path, ...]:
    """Return the files that the user of a terminal names: one with both sides, or one for each side."""
    from dragoman.formats.readers import SUFFIX_FORMATS, get_format_suffix

    if not _is_terminal():
        raise usage_error("FILE is missing; give the text of the source and that of the target, or one file with both sides")
    first = click.prompt("File of the source, or with both sides", err=True)
    if get_format_suffix(Path(first)) in SUFFIX_FORMATS:
        return (Path(first),)
    return Path(first), Path(click.prompt("File of the target", err=True))


def _ask_languages(guesses: tuple[str, str], source: str | None, target: str | None) -> tuple[str, str]:
    """Return the languages of both sides, which differ."""
    languages = _ask_language("source", "--from", source, guesses[0]), _ask_language("target", "--to", target, guesses[1])
    if languages[0] == languages[1]:
        raise usage_error(f"--from and --to are both {languages[0]!r}; give two languages")
    return languages


def _ask_language(side: str, option: str, code: str | None, guess: str) -> str:
    """Return the language of a side: that of the option, the one that the files state, or the answer of a terminal."""
    if code is not None and not _LANGUAGE_CODE.fullmatch(code):
        raise usage_error(f"{option} {code!r}: {CODE_HINT}")
    if code or guess:
        return code or guess
    if not _is_terminal():
        raise usage_error(f"the files do not state the {side} language: give {option}, such as {option} en")

    def check(answer: str) -> str:
        code = to_language_code(answer)
        if not _LANGUAGE_CODE.fullmatch(code):
            raise click.UsageError(CODE_HINT)  # the question comes again
        return code

    answer: str = click.prompt(f"{side.capitalize()} language, such as en", err=True, value_proc=check)
    return answer
