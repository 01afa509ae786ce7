"""Where a corpus lies and how it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from dragoman.config.fields import FileName, FilterName, RecipeSection, Weight
from dragoman.config.validation import format_value

_FILE_NAME_ADAPTER = TypeAdapter[str](FileName)
_FILE_NAMES_ADAPTER = TypeAdapter[list[str]](Annotated[list[FileName], Field(min_length=1)])


def _validate_file_names(value: Any) -> Any:
    """One file's name or a list of them. A union would tell of a mistake twice, and by the names of its types."""
    match value:
        case str():
            return _FILE_NAME_ADAPTER.validate_python(value, strict=True)
        case list():
            return _FILE_NAMES_ADAPTER.validate_python(value, strict=True)
        case _:
            raise PydanticCustomError("name_or_list", "Input should be a text, in quotes, or a list of them")


def _validate_corpus_name(name: str) -> str:
    """What can be part of a key and of a file's name, and stands for no other part of the data."""
    if name in ("valid", "test"):
        raise ValueError(f"data.{name} is another part of the data")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) is None:
        raise ValueError("use letters from a to z, digits, - and _, 64 at most, with a letter or a digit first")
    return name


FileNames = Annotated[str | list[str], PlainValidator(_validate_file_names)]
CorpusName = Annotated[str, AfterValidator(_validate_corpus_name)]
Format = Literal["auto", "lines", "tsv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets"]
STANDARD_INPUT = "-"


def as_list(names: str | list[str] | None) -> list[str]:
    """One file's name or many, as a list."""
    return [] if names is None else [names] if isinstance(names, str) else names


class CorpusConfig(RecipeSection):
    source: FileNames | None = None
    """A text file (or a list of them), one sentence a line, plain, .gz, .xz, .bz2 or .zst; or WMT's SGM. Goes with `target`."""
    target: FileNames | None = None
    """As many files with the same number of lines in the other language."""
    file: FileNames | None = None
    """Instead or besides: a file that holds both sides (or a list; * stands for any name), or - for standard input."""
    format: Format = "auto"
    """How the files are to be read; `auto` goes by their endings."""
    columns: Annotated[list[FileName], Field(min_length=2, max_length=2)] | None = None
    """Where source and target stand: columns of a TSV from "1", or keys of JSON lines and Parquet, "a.b" for b within a."""
    weight: Annotated[Weight, Field(gt=0.0)] | None = None
    """This corpus's share of what an epoch draws from a mixture, relative to the others' weights."""
    alignments: FileNames | None = None
    """For guided alignment: a file (or a list of them) with a line of word links for each pair, `0-0 1-2`, counted from 0."""
    skip_filters: list[FilterName] = []
    """Cleaning rules that are not applied to this corpus."""

    @model_validator(mode="before")
    @classmethod
    def _expand_tsv(cls, document: Any) -> Any:
        """`tsv = "a.tsv"` is short for `file` and `format`, and how recipes of version 0.1 spelled it."""
        if not isinstance(document, Mapping) or "tsv" not in document:
            return document
        remaining = {key: value for key, value in document.items() if key != "tsv"}
        if document["tsv"] is None:
            return remaining
        if remaining.get("file") is not None:
            raise ValueError("tsv is short for file with format = 'tsv', but file is given as well; drop one of the two")
        if remaining.get("format") not in (None, "auto", "tsv"):
            raise ValueError(f"tsv is given, but format = {format_value(remaining['format'])}: give file instead of tsv")
        return remaining | {"file": document["tsv"], "format": "tsv"}

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        file_options = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if file_options not in (["source", "target"], ["file"], ["source", "target", "file"]):
            raise ValueError(
                f"give source and target, or file, or all three; given: {' and '.join(file_options) or 'none of them'}"
            )
        if self.format != "auto" and len(file_options) == 3:
            raise ValueError(f"format = {self.format!r} cannot hold of source and target and of file; leave it to the endings")
        if self.source is not None:
            self._check_parallel_files()
        return self._check_combined_file() if self.file is not None else self

    def _check_parallel_files(self) -> Self:
        sources, targets = as_list(self.source), as_list(self.target)
        if len(sources) != len(targets):
            raise ValueError(f"files go in pairs, but source names {len(sources)} of them and target {len(targets)}")
        if self.format not in ("auto", "lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds both sides in one file: give file, not source and target")
        if self.columns is not None and self.file is None:
            raise ValueError("columns is for a file that holds both sides; drop it, or give file instead of source and target")
        if self.reads_standard_input:
            raise ValueError("standard input (-) has to hold both sides: give file = '-', with its format")
        return self

    def _check_combined_file(self) -> Self:
        if self.format in ("lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds one side: give source and target instead of file")
        if self.columns is not None and self.format not in ("auto", "tsv", "jsonl", "parquet"):
            raise ValueError(
                f"columns is for tsv, jsonl and parquet; format = {self.format!r} says by itself where both sides stand"
            )
        if (
            self.columns is not None
            and self.format == "tsv"
            and not all(re.fullmatch("[1-9][0-9]*", column) for column in self.columns)
        ):
            raise ValueError(f"columns = {format_value(self.columns)}: the columns of a TSV go by number, such as ['1', '2']")
        if self.reads_standard_input and as_list(self.file) != [STANDARD_INPUT]:
            raise ValueError("standard input (-) cannot be one of several files: give file = '-' alone")
        if self.reads_standard_input and self.format == "auto":
            raise ValueError("file = '-' needs format: standard input has no ending to go by")
        return self

    @property
    def reads_standard_input(self) -> bool:
        return STANDARD_INPUT in [name for side in (self.source, self.target, self.file) for name in as_list(side)]
