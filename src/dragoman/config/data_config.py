"""Recipe section `data`: corpora, mixtures, curriculum, cleaning filters and noise."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from dragoman.config.fields import (
    FileName,
    FilterName,
    Fraction,
    PositiveInt,
    Temperature,
    Weight,
)
from dragoman.config.section import BeforeValidator, Limits, RecipeSection, list_fields, model_validator
from dragoman.config.section_validation import format_value, suggest_or_list_names


def _check_corpus_name(name: str) -> None:
    """Raise ValueError unless a name can be part of a recipe key and of a file name, and is not another key of the section."""
    if name in ("valid", "test"):
        raise ValueError(f"data.{name} is another part of the data")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) is None:
        raise ValueError("use letters from a to z, digits, - and _, 64 at most, with a letter or a digit first")


FileNames = FileName | Annotated[list[FileName], Limits(min_length=1)]
CorpusName = Annotated[str, _check_corpus_name]
Format = Literal["auto", "lines", "tsv", "csv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets"]
STANDARD_INPUT = "-"
LanguagePair = tuple[str, str]
"""Codes of the source and the target language."""


def as_list(names: str | list[str] | None) -> list[str]:
    """Return the value of a file key as a list."""
    return [] if names is None else [names] if isinstance(names, str) else names


class CorpusConfig(RecipeSection):
    """Files of one corpus and how to read them."""

    source: FileNames | None = None
    """Text file of the source side, or a list of files: one sentence a line, plain, .gz, .xz, .bz2 or .zst, or WMT's SGM."""
    target: FileNames | None = None
    """Text file of the target side, or a list with as many files as `source`; line n translates line n of the source."""
    file: FileNames | None = None
    """File that holds both sides, or a list; `*` matches any characters of a name, and `-` reads standard input."""
    format: Format = "auto"
    """Format of the files; `auto` takes it from the file name's ending."""
    columns: Annotated[list[FileName], Limits(min_length=2, max_length=2)] | None = None
    """Source and target column: counted from "1" in TSV and CSV, or keys of a CSV's first row, JSON lines and Parquet,
    where "a.b" is b in a."""
    weight: Annotated[Weight, Limits(gt=0.0)] | None = None
    """Share of an epoch's pairs that come from this corpus, relative to the weights of the other corpora."""
    source_language: str = ""
    """Language code of the source, by default task.source_language; corpora of several pairs make a multilingual model."""
    target_language: str = ""
    """Language code of the target; by default task.target_language."""
    both_directions: bool = False
    """Whether the corpus also serves from the target to the source language; each direction counts as a pair of languages."""
    alignments: FileNames | None = None
    """Word alignment file for guided alignment, or a list: one line a pair in Pharaoh format, `0-0 1-2`, counted from 0."""
    skip_filters: list[FilterName] = []
    """Cleaning filters that this corpus skips."""

    @model_validator
    def _check_files(self) -> None:
        file_options = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if file_options not in (["source", "target"], ["file"], ["source", "target", "file"]):
            raise ValueError(
                f"give source and target, or file, or all three; given: {' and '.join(file_options) or 'none of them'}"
            )
        if self.format != "auto" and len(file_options) == 3:
            raise ValueError(
                f"format = {self.format!r} fits either source and target or file, not both; drop format to use the endings"
            )
        if self.source is not None:
            self._check_parallel_files()
        if self.file is not None:
            self._check_combined_file()

    def _check_parallel_files(self) -> None:
        sources, targets = as_list(self.source), as_list(self.target)
        if len(sources) != len(targets):
            raise ValueError(f"files go in pairs, but source names {len(sources)} of them and target {len(targets)}")
        if self.format not in ("auto", "lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds both sides in one file: give file, not source and target")
        if self.columns is not None and self.file is None:
            raise ValueError("columns is for a file that holds both sides; drop it, or give file instead of source and target")
        if self.reads_standard_input:
            raise ValueError("standard input (-) has to hold both sides: give file = '-', with its format")

    def _check_combined_file(self) -> None:
        if self.format in ("lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds one side: give source and target instead of file")
        if self.columns is not None and self.format not in ("auto", "tsv", "csv", "jsonl", "parquet"):
            raise ValueError(
                f"columns is for tsv, csv, jsonl and parquet, but format = {self.format!r} names its sides; drop columns"
            )
        if (
            self.columns is not None
            and self.format == "tsv"
            and not all(re.fullmatch("[1-9][0-9]*", column) for column in self.columns)
        ):
            raise ValueError(f"columns = {format_value(self.columns)}: a TSV has columns by number; write such as ['1', '2']")
        if self.reads_standard_input and as_list(self.file) != [STANDARD_INPUT]:
            raise ValueError("standard input (-) cannot be one of several files: give file = '-' alone")
        if self.reads_standard_input and self.format == "auto":
            raise ValueError("file = '-' needs format: standard input has no file name ending; give it, such as format = 'tsv'")

    @property
    def reads_standard_input(self) -> bool:
        """Return whether one of the files is standard input."""
        return STANDARD_INPUT in [name for side in (self.source, self.target, self.file) for name in as_list(side)]


@dataclass(frozen=True)
class Direction:
    """One direction of a corpus: the pairs as the files hold them, or with their sides exchanged.

    name: name of the direction's files and statistics; that of the corpus, with `.reversed` behind it for the second direction
    corpus_name, corpus: the corpus in the recipe
    source_language, target_language: language codes of the direction; empty if the recipe names none
    """

    name: str
    corpus_name: str
    corpus: CorpusConfig
    source_language: str
    target_language: str
    is_reversed: bool = False

    @property
    def languages(self) -> LanguagePair:
        """Return both language codes."""
        return self.source_language, self.target_language

    @property
    def text_languages(self) -> LanguagePair:
        """Return the language codes of the sides of the files."""
        return (self.target_language, self.source_language) if self.is_reversed else self.languages


def iter_directions(corpora: Mapping[str, CorpusConfig], source_language: str, target_language: str) -> Iterator[Direction]:
    """Yield each direction of the corpora. Corpora without languages have these."""
    for name, corpus in corpora.items():
        source, target = corpus.source_language or source_language, corpus.target_language or target_language
        yield Direction(name, name, corpus, source, target)
        if corpus.both_directions:
            yield Direction(f"{name}.reversed", name, corpus, target, source, is_reversed=True)


class CleaningConfig(RecipeSection):
    """Filters that drop training pairs. All are off by default. Pairs with an empty side are always dropped."""

    max_words: PositiveInt | None = None
    """Filter `length`: most words a side may have; in scripts without spaces each letter counts as a word."""
    max_characters: PositiveInt | None = None
    """Filter `length`: most characters a side may have."""
    max_ratio: Annotated[float, Limits(gt=1.0)] | None = None
    """Filter `ratio`: largest length ratio of the sides in characters; a longer side of at most ten characters passes."""
    source_equals_target: bool = False
    """Filter `source-equals-target`: drop pairs whose sides are equal, ignoring case and spaces."""
    duplicate_pairs: bool = False
    """Filter `duplicate-pair`: keep only the first of equal pairs, within a corpus and across a mixture."""
    duplicate_sources: bool = False
    """Filter `duplicate-source`: keep only the first pair of each source sentence, within a corpus and across a mixture."""
    control_characters: bool = False
    """Filter `control`: drop pairs with control characters, U+FFFD, or unassigned or private code points."""
    mojibake: bool = False
    """Filter `mojibake`: drop pairs in which UTF-8 was decoded with a wrong encoding (needs the extra `cleaning`)."""
    markup: bool = False
    """Filter `markup`: drop pairs with remains of HTML, XML, wiki or template markup."""
    min_script_ratio: Fraction | None = None
    """Filter `script`: smallest share of a side's letters in the script of its language (needs the extra `cleaning`)."""
    min_language_probability: Fraction | None = None
    """Filter `language`: lowest probability of another language that drops a pair (needs the extra `cleaning`)."""
    numbers: bool = False
    """Filter `numbers`: drop pairs whose sides hold different numbers; separators of digits do not count."""
    urls: bool = False
    """Filter `urls`: drop pairs whose sides hold different web and mail addresses."""
    eval_overlap: bool = False
    """Filter `eval-overlap`: drop pairs with a side that is also in data.valid or data.test, ignoring case and punctuation."""


class NoiseConfig(RecipeSection):
    """Changes to training pairs in the data loader. Each applies to a random share of the pairs, drawn anew in every epoch."""

    upper_case: Fraction = 0.0
    """Share of pairs with both sides in capital letters."""
    title_case: Fraction = 0.0
    """Share of pairs with a capital initial at each word of both sides."""
    typos: Fraction = 0.0
    """Share of pairs with typing errors in the source: letters dropped, doubled, swapped or replaced by a keyboard neighbor."""
    drop_final_punctuation: Fraction = 0.0
    """Share of pairs that lose the final punctuation of both sides."""
    concat_next: Fraction = 0.0
    """Share of pairs that are joined with the next pair into one."""
    copy_source: Fraction = 0.0
    """Share of pairs whose target becomes a copy of the source, so that the model learns to copy names and code."""
    placeholders: Fraction = 0.0
    """Share of pairs in which numbers or names of both sides become placeholders, or one is inserted: half of them reserved
    tokens, half text such as {0}."""
    terminology: Fraction = 0.0
    """Share of pairs in which terms of the source are annotated with their translation, so that the model learns to use a
    glossary (needs the extra `terminology`)."""


def _check_is_corpus(document: Any, *, hint: str) -> None:
    """Raise ValueError for several corpora in the place of one."""
    if isinstance(document, list) and any(isinstance(item, Mapping) for item in document):
        raise ValueError(f"this is one corpus, not a list of them: {hint}")
    tables = [key for key, value in document.items() if isinstance(value, Mapping)] if isinstance(document, Mapping) else []
    if unknown_keys := [key for key in tables if key not in list_fields(CorpusConfig)]:
        raise ValueError(f"{format_value(unknown_keys[0])} is not one of its keys, and this is one corpus: {hint}")


def _check_outside_mixture(corpus: CorpusConfig) -> None:
    """Raise ValueError if a single corpus has a weight."""
    if corpus.weight is not None:
        raise ValueError("weight is for the corpora of a mixture, in data.corpora; drop it")


def _check_evaluation_corpus(corpus: CorpusConfig) -> None:
    """Raise ValueError if a validation or test corpus has a key of training corpora."""
    if corpus.skip_filters:
        raise ValueError("skip_filters is for training corpora, because only those are cleaned; drop it")
    if corpus.alignments is not None:
        raise ValueError("alignments is for training corpora; drop it")
    if corpus.reads_standard_input:
        raise ValueError("file = '-' is for training corpora, because this corpus is read twice; name a file")


def _check_evaluation_corpora(corpora: Mapping[str, CorpusConfig]) -> None:
    """Raise ValueError if one of several validation or test corpora has a key of training corpora."""
    for name, corpus in corpora.items():
        if corpus.weight is not None:
            raise ValueError(f"{name}.weight is for training corpora, in data.corpora; drop it")
        try:
            _check_evaluation_corpus(corpus)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


TrainingCorpus = Annotated[
    CorpusConfig,
    BeforeValidator(partial(_check_is_corpus, hint="name several in data.corpora")),
    _check_outside_mixture,
]
EvaluationCorpus = Annotated[
    CorpusConfig,
    BeforeValidator(partial(_check_is_corpus, hint="give several files as a list")),
    _check_outside_mixture,
    _check_evaluation_corpus,
]
EvaluationCorpora = Annotated[dict[CorpusName, CorpusConfig], _check_evaluation_corpora]


class CurriculumStageConfig(RecipeSection):
    """Mixture weights of a range of epochs."""

    end_epoch: PositiveInt | None = None
    """Epoch, counted from 0, before which the stage ends; the last stage has none."""
    weights: dict[CorpusName, Weight] | None = None
    """Share of each corpus, relative to the others; a corpus that is not named gets no share."""
    temperature: Temperature | None = None
    """Alternative to weights: shares are corpus sizes to the power of 1/temperature."""

    @model_validator
    def _check_weights(self) -> None:
        if self.weights is not None and self.temperature is not None:
            raise ValueError("weights and temperature are given; drop one of the two")
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("weights are 0 for all corpora: give at least one a weight above 0")


class DataConfig(RecipeSection):
    """Corpora to train on, to validate on and to test on, and what happens to their pairs."""

    root: str = "."
    """Folder that the corpus paths start from, relative to the working directory."""
    train: TrainingCorpus | None = None
    """Training corpus, if there is only one."""
    corpora: dict[CorpusName, CorpusConfig] = {}
    """Training corpora by name, if there are several."""
    temperature: Temperature | None = None
    """Sampling temperature of a mixture: a corpus is drawn by its size to the power of 1/temperature; 1 keeps the sizes."""
    pair_temperature: Temperature | None = None
    """Sampling temperature of language pairs: a pair is drawn by its size to the power of 1/pair_temperature."""
    curriculum: list[CurriculumStageConfig] = []
    """Stages of a mixture whose weights change with the epochs; excludes weights and temperatures."""
    valid: EvaluationCorpus | None = None
    """Validation corpus, if there is only one."""
    valid_corpora: EvaluationCorpora = {}
    """Validation corpora by name, such as one for each pair of languages; each pair has its own scores."""
    test: EvaluationCorpus | None = None
    """Test corpus, if there is only one; it is scored once at the end of the run."""
    test_corpora: EvaluationCorpora = {}
    """Test corpora by name, such as one for each pair of languages; each pair has its own scores."""
    max_length: Annotated[PositiveInt, Limits(ge=2)] = 256
    """Longest side of a training pair in tokens, the end-of-sentence token included."""
    overlong_pairs: Literal["drop", "truncate", "error"] = "drop"
    """Treatment of training pairs longer than max_length; their number and first lines are reported."""
    cleaning: CleaningConfig = CleaningConfig()
    noise: NoiseConfig = NoiseConfig()
    term_file: FileName | None = None
    """Glossary (CSV, TSV or TBX) with the terms of noise.terminology; by default, the word aligner finds phrases in pairs."""
    preprocessing_workers: Annotated[int, Limits(ge=1, le=1024)] | None = None
    """Processes that clean and encode, by default one for each core; the result does not depend on the number."""
    num_workers: Annotated[int, Limits(ge=0, le=1024)] = 0
    """Data loader processes; 0 makes batches in the training process, and the result does not depend on the number."""

    @model_validator
    def _check_consistency(self) -> None:
        if self.term_file is not None and not self.noise.terminology:
            raise ValueError("term_file has no effect without noise.terminology: set that, such as 0.1, or drop term_file")
        if self.train is not None and self.corpora:
            raise ValueError("train and corpora are given: name one corpus in train, or each of several in corpora")
        for key in ("valid", "test"):
            if getattr(self, key) is not None and getattr(self, f"{key}_corpora"):
                raise ValueError(f"{key} and {key}_corpora are given: name one corpus in {key}, or several in {key}_corpora")
        weighted_names = [name for name, corpus in self.corpora.items() if corpus.weight is not None]
        if weighted_names and len(weighted_names) < len(self.corpora):
            unweighted_name = next(name for name in self.corpora if name not in weighted_names)
            raise ValueError(
                f"corpora.{unweighted_name} has no weight, though corpora.{weighted_names[0]} has; give each a weight, or none"
            )
        mixture_options = [
            name
            for name, value in (
                ("weights", weighted_names),
                ("temperature", self.temperature),
                ("pair_temperature", self.pair_temperature),
                ("curriculum", self.curriculum),
            )
            if value
        ]
        if len(mixture_options) > 1:
            raise ValueError(f"{' and '.join(mixture_options)} are given; the mixture can follow one of them only")
        if mixture_options and not self.corpora and not (self.pair_temperature and self.train and self.train.both_directions):
            raise ValueError(f"{mixture_options[0]} is for a mixture: name its corpora in data.corpora")
        stdin_names = [name for name, corpus in self.corpora.items() if corpus.reads_standard_input]
        if len(stdin_names) > 1:
            raise ValueError(
                f"corpora.{stdin_names[0]} and corpora.{stdin_names[1]} have file = '-', but standard input can be read once "
                "only; put their pairs together"
            )
        self._check_curriculum()

    def _check_curriculum(self) -> None:
        start_epoch = 0
        for index, stage in enumerate(self.curriculum):
            is_last = index == len(self.curriculum) - 1
            if is_last and stage.end_epoch is not None:
                raise ValueError(f"curriculum[{index}].end_epoch = {stage.end_epoch}, but the last stage has no end; drop it")
            if not is_last and stage.end_epoch is None:
                raise ValueError(f"curriculum[{index}] needs end_epoch: only the last stage has no end")
            if stage.end_epoch is not None and stage.end_epoch <= start_epoch:
                raise ValueError(
                    f"curriculum[{index}].end_epoch = {stage.end_epoch} must be more than {start_epoch}, where the stage begins"
                )
            start_epoch = stage.end_epoch or start_epoch
            if unknown_names := [name for name in stage.weights or {} if name not in self.corpora]:
                suggestion = suggest_or_list_names(unknown_names[0], self.corpora)
                raise ValueError(f"curriculum[{index}].weights.{unknown_names[0]} is not in corpora{suggestion}")

    def training_corpora(self) -> dict[str, CorpusConfig]:
        """Return the training corpora by name. A single corpus is named train."""
        return {"train": self.train} if self.train is not None else dict(self.corpora)

    def evaluation_corpora(self, split: Literal["valid", "test"]) -> dict[str, CorpusConfig]:
        """Return the validation or test corpora by name. A single corpus is named as its key; without one, none is returned."""
        corpus, corpora = (self.valid, self.valid_corpora) if split == "valid" else (self.test, self.test_corpora)
        return {split: corpus} if corpus is not None else dict(corpora)
