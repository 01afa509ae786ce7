"""Recipe for the files of a user: what a survey of their pairs proposes, as commented TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import CorpusConfig
from dragoman.data.corpus_survey import MAX_RATIO, MAX_WORDS, CorpusSurvey
from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import SUFFIX_FORMATS, get_format_suffix, read_pairs
from dragoman.languages import is_spaced_language

SCHEMA_FILE = "recipe.schema.json"
"""File beside a new recipe that editors read to complete and check its keys."""


@dataclass(frozen=True)
class UserCorpus:
    """Files of a corpus as a recipe names them: one file for each side, or one file that holds both."""

    files: tuple[Path, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.files))

    def to_config(self) -> CorpusConfig:
        """Return the corpus of a recipe whose data.root is the working directory."""
        names = [str(path) for path in self.files]
        return CorpusConfig(file=names[0]) if len(names) == 1 else CorpusConfig(source=names[0], target=names[1])

    def read(self, languages: tuple[str, str]) -> Iterator[Pair]:
        """Yield the pairs. Raises DataError, which names file and position."""
        return read_pairs(self.to_config(), Path(), source_language=languages[0], target_language=languages[1])

    def to_toml(self) -> str:
        keys = ["file"] if len(self.files) == 1 else ["source", "target"]
        return "{ " + ", ".join(f"{key} = {_quote(path)}" for key, path in zip(keys, self.files, strict=True)) + " }"


def read_user_corpus(files: Sequence[Path]) -> UserCorpus:
    """Return the corpus of one file or of two. Raises DataError for another number, or for two equal names."""
    if len(files) not in (1, 2) or len(set(files)) != len(files):
        names = " ".join(map(str, files)) or "none"
        raise DataError(f"{names}: give one file that holds both sides, or the file of the source and that of the target")
    for path in files if len(files) == 2 else ():
        if get_format_suffix(path) in SUFFIX_FORMATS:
            raise DataError(f"{path}: holds both sides of each pair; give it alone, or two files with one side each")
    for path in files:
        if str(path) == "-" or ":/" in str(path):
            raise DataError(f"{path}: cannot be read twice, as a recipe needs it; give the name of a file")
    return UserCorpus(tuple(files))


def format_recipe(
    survey: CorpusSurvey,
    *,
    path: Path,
    languages: tuple[str, str],
    train: UserCorpus,
    sets: Sequence[UserCorpus],
    choice: str = "",
) -> str:
    """Return a recipe with cleaning for the pairs of a survey.

    path: file of the recipe; the recipe and the run have its name
    sets: validation set, and a test set if there is one
    choice: the settings that follow from the corpus, for a comment
    """
    lines = [
        f"#:schema {SCHEMA_FILE}",
        "# Recipe for the corpus below. Each setting that is left out follows from the corpus, or is that of the preset.",
        f"# Train it:  dragoman train {path}",
        "",
        'preset = "modern"',
        f"name = {_quote(path.stem)}",
        f"run = {_quote(Path('runs') / path.stem)}",
        f"task = {{ source_language = {_quote(languages[0])}, target_language = {_quote(languages[1])} }}",
        "",
        *([f"# {choice}", '# size = "small"   # or tiny, base, big', ""] if choice else []),
        "[data]",
        f"train = {train.to_toml()}",
        *(f"{key} = {corpus.to_toml()}" for key, corpus in zip(("valid", "test"), sets, strict=False)),
        "",
        *_format_cleaning(survey, languages),
    ]
    return "\n".join(lines) + "\n"


def _format_cleaning(survey: CorpusSurvey, languages: tuple[str, str]) -> list[str]:
    """Return the section of the filters. A filter that would drop a tenth of the pairs stays off, with the reason."""
    have_spaces = all(map(is_spaced_language, languages))
    filters = [
        ("duplicate_pairs", "true", survey.repeated, "the same pair again"),
        ("source_equals_target", "true", survey.equal, "text that is not translated"),
        ("max_ratio", f"{MAX_RATIO:g}", survey.uneven if have_spaces else survey.pairs, "sides of very different length"),
        ("max_words", str(MAX_WORDS), survey.long, "paragraphs"),
    ]
    lines = ["# dragoman clean shows what each filter drops, with examples.", "[data.cleaning]"]
    for key, value, number, meaning in filters:
        is_off = number > 0.1 * survey.pairs and key != "duplicate_pairs"
        reason = "off: it would drop too many pairs" if have_spaces or key != "max_ratio" else "off: a side has no spaces"
        comment = f"{meaning}: {number:,} of {survey.pairs:,} pairs" if not is_off else f"{meaning}; {reason}"
        lines.append(f"{'# ' if is_off else ''}{key} = {value}   # {comment}")
    lines += [
        "control_characters = true   # damaged characters",
        "markup = true               # remains of HTML and of wikis",
        "eval_overlap = true         # sentences of the validation and test sets",
    ]
    return lines


def _quote(value: str | Path) -> str:
    """Return a basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
