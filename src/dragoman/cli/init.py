"""Command `init`: look at the files of a corpus and write a recipe for them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from dragoman.console.options import PATH_TYPE, check_output_paths, json_option, overwrite_option, usage_error


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PATH_TYPE)
@click.option("--from", "source_language", metavar="CODE", help="Source language, such as en; by default, the files name it.")
@click.option("--to", "target_language", metavar="CODE", help="Target language.")
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

    FILE is the text of the source and that of the target, line by line, or one file with both: TSV, TMX, XLIFF, PO, JSON
    lines, Parquet. Without --valid, random pairs become a validation set and a test set. They are written beside the recipe,
    and cleaning drops them from the training data.

    \b
    Example:  dragoman init train.en train.de
              dragoman init memory.tmx --from en --to de -o own.toml
    """
    from dragoman.console.terminal import print_facts, print_json, stderr_console
    from dragoman.data.corpus_survey import survey_pairs
    from dragoman.data.data_defaults import read_training_recipe
    from dragoman.data.new_recipe import UserCorpus, format_recipe, read_user_corpus
    from dragoman.errors import DataError
    from dragoman.formats.readers import read_pairs
    from dragoman.formats.writers import write_pairs
    from dragoman.io.storage import atomic_write

    if output.suffix != ".toml":
        raise usage_error(f"-o {output}: a recipe is TOML; give a name that ends in .toml")
    corpus = read_user_corpus(files)
    guesses = corpus.guess_languages()
    languages = (
        _ask_language("source", "--from", source_language, guesses[0]),
        _ask_language("target", "--to", target_language, guesses[1]),
    )
    check_output_paths(output, overwrite=overwrite, input_paths=[*files, *(valid or ())])
    pairs = read_pairs(corpus.to_config(), Path(), source_language=languages[0], target_language=languages[1])
    survey, held_out = survey_pairs(pairs)
    run = Path("runs") / output.stem
    num_held_out = 0 if valid else len(held_out) // 2
    if not valid and not num_held_out:
        raise DataError(f"{' and '.join(map(str, files))}: {survey.pairs:,} pairs are too few to hold some out; give --valid")
    sets: list[UserCorpus] = []
    for name, part in (("valid", held_out[:num_held_out]), ("test", held_out[num_held_out:])):
        if not valid:
            written = write_pairs(
                output.with_name(f"{output.stem}.{name}"),
                part,
                file_format="lines",
                source_language=languages[0],
                target_language=languages[1],
                overwrite=overwrite,
            )
            sets.append(UserCorpus(written.files))

    def write(choice: str = "", *, overwrite: bool) -> None:
        with atomic_write(output, overwrite=overwrite) as file:
            valid_set, test_set = (UserCorpus(valid), None) if valid else sets
            file.write(
                format_recipe(survey, run=run, languages=languages, train=corpus, valid=valid_set, test=test_set, choice=choice)
            )

    write(overwrite=overwrite)
    recipe, choice = read_training_recipe(output)
    write((choice or "").partition("; ")[0], overwrite=True)
    if as_json:
        print_json({"recipe": str(output), "languages": list(languages), "size": recipe.size, "survey": asdict(survey)})
        return
    print_facts(f"{' and '.join(map(str, files))}: {languages[0]} to {languages[1]}", survey.describe())
    console = stderr_console()
    if choice:
        console.print(choice, markup=False)
    held = "" if valid else f", and {num_held_out:,} pairs each in {output.stem}.valid.* and {output.stem}.test.*"
    click.echo(f"{output}: written{held}")
    click.echo(f"Try next:\n  dragoman clean {output} -o cleaned\n  dragoman train {output}")


def _ask_language(side: str, option: str, code: str | None, guess: str) -> str:
    """Return the language of a side: that of the option, that of the file's name, or the answer of a terminal."""
    if code or guess:
        return code or guess
    if not sys.stdin.isatty():
        raise usage_error(f"the names of the files do not state the {side} language: give {option}, such as {option} en")
    answer: str = click.prompt(f"{side.capitalize()} language, such as en", err=True)
    return answer
