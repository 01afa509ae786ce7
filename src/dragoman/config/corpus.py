"""Where a corpus lies and how it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from dragoman.config.fields import FileName, RuleName, Section, Weight
from dragoman.config.validation import show

_ONE = TypeAdapter[str](FileName)
_MANY = TypeAdapter[list[str]](Annotated[list[FileName], Field(min_length=1)])


def _one_or_many(given: Any) -> Any:
    """One file's name or a list of them. A union would tell of a mistake twice, and by the names of its types."""
    match given:
        case str():
            return _ONE.validate_python(given, strict=True)
        case list():
            return _MANY.validate_python(given, strict=True)
        case _:
            raise PydanticCustomError("name_or_list", "Input should be a text, in quotes, or a list of them")


def _corpus_name(given: str) -> str:
    """What can be part of a key and of a file's name, and stands for no other part of the data."""
    if given in ("valid", "test"):
        raise ValueError(f"data.{given} is another part of the data")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", given) is None:
        raise ValueError("use letters from a to z, digits, - and _, 64 at most, with a letter or a digit first")
    return given


FileNames = Annotated[str | list[str], PlainValidator(_one_or_many)]
CorpusName = Annotated[str, AfterValidator(_corpus_name)]
Format = Literal["auto", "lines", "tsv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets"]
STANDARD_INPUT = "-"


def listed(names: str | list[str] | None) -> list[str]:
    """One file's name or many, as a list."""
    return [] if names is None else [names] if isinstance(names, str) else names


class CorpusConfig(Section):
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
    skip_filters: list[RuleName] = []
    """Cleaning rules that are not applied to this corpus."""

    @model_validator(mode="before")
    @classmethod
    def _tsv(cls, given: Any) -> Any:
        """`tsv = "a.tsv"` is short for `file` and `format`, and how recipes of version 0.1 spelled it."""
        if not isinstance(given, Mapping) or "tsv" not in given:
            return given
        rest = {key: value for key, value in given.items() if key != "tsv"}
        if given["tsv"] is None:
            return rest
        if rest.get("file") is not None:
            raise ValueError("tsv is short for file with format = 'tsv', but file is given as well; drop one of the two")
        if rest.get("format") not in (None, "auto", "tsv"):
            raise ValueError(f"tsv is given, but format = {show(rest['format'])}: give file instead of tsv")
        return rest | {"file": given["tsv"], "format": "tsv"}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        sides = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if sides not in (["source", "target"], ["file"], ["source", "target", "file"]):
            raise ValueError(f"give source and target, or file, or all three; given: {' and '.join(sides) or 'none of them'}")
        if self.format != "auto" and len(sides) == 3:
            raise ValueError(f"format = {self.format!r} cannot hold of source and target and of file; leave it to the endings")
        if self.source is not None:
            self._two_files()
        return self._one_file() if self.file is not None else self

    def _two_files(self) -> Self:
        sources, targets = listed(self.source), listed(self.target)
        if len(sources) != len(targets):
            raise ValueError(f"files go in pairs, but source names {len(sources)} of them and target {len(targets)}")
        if self.format not in ("auto", "lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds both sides in one file: give file, not source and target")
        if self.columns is not None and self.file is None:
            raise ValueError("columns is for a file that holds both sides; drop it, or give file instead of source and target")
        if self.reads_standard_input:
            raise ValueError("standard input (-) has to hold both sides: give file = '-', with its format")
        return self

    def _one_file(self) -> Self:
        if self.format in ("lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds one side: give source and target instead of file")
        if self.columns is not None and self.format not in ("auto", "tsv", "jsonl", "parquet"):
            raise ValueError(
                f"columns is for tsv, jsonl and parquet; format = {self.format!r} says by itself where both sides stand"
            )
        if (
            self.columns is not None
            and self.format == "tsv"
            and not all(re.fullmatch("[1-9][0-9]*", at) for at in self.columns)
        ):
            raise ValueError(f"columns = {show(self.columns)}: the columns of a TSV go by number, such as ['1', '2']")
        if self.reads_standard_input and listed(self.file) != [STANDARD_INPUT]:
            raise ValueError("standard input (-) cannot be one of several files: give file = '-' alone")
        if self.reads_standard_input and self.format == "auto":
            raise ValueError("file = '-' needs format: standard input has no ending to go by")
        return self

    @property
    def reads_standard_input(self) -> bool:
        return STANDARD_INPUT in [name for side in (self.source, self.target, self.file) for name in listed(side)]
