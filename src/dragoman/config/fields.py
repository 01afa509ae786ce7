"""What knobs are made of: numbers and texts with their limits, and the section that refuses what it does not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _whole(value: Any) -> Any:
    """1e5 as the whole number that is meant; in TOML whatever has an exponent is a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Counts end where 32 bits do: the subword library, which takes the seed as well, counts no further. With some two thousand
# million pieces to learn, it never ends.
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1, lt=2**31)]
# Beyond these no machine has room, and some would try for hours.
Rows = Annotated[Whole, Field(ge=1, le=1_000)]
Width = Annotated[Whole, Field(ge=1, le=2**20)]
Pieces = Annotated[Count, Field(ge=5, lt=2**24)]
Natural = Annotated[Whole, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
# So that no sum of weights, and no size to the power of 1/temperature, is more than a float holds.
Weight = Annotated[float, Field(ge=0.0, le=1e9)]
Temperature = Annotated[float, Field(ge=0.1, le=1e4)]

RuleName = Literal[
    "length", "ratio", "source-equals-target", "duplicate-pair", "duplicate-source", "control", "mojibake", "markup", "script", "language",
    "numbers", "urls", "eval-overlap",
]  # fmt: skip


class Section(BaseModel):
    """A frozen group of knobs that refuses keys it does not know, and true, "5" or infinity where it wants a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=Section)


def _text(given: str) -> str:
    """A command line holds any bytes; those that are no text come as halves of surrogate pairs, which no file of ours holds."""
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ValueError("is not UTF-8; give another name")
    return given


Text = Annotated[str, AfterValidator(_text)]
FileName = Annotated[str, Field(min_length=1)]
