"""What knobs are made of: numbers and texts with their limits, and the section that refuses what it does not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _to_integer(value: Any) -> Any:
    """1e5 as the whole number that is meant; in TOML whatever has an exponent is a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Counts end where 32 bits do: the subword library, which takes the seed as well, counts no further. With some two thousand
# million pieces to learn, it never ends.
Integer = Annotated[int, BeforeValidator(_to_integer)]
PositiveInt = Annotated[Integer, Field(ge=1, lt=2**31)]
# Beyond these no machine has room, and some would try for hours.
SmallPositiveInt = Annotated[Integer, Field(ge=1, le=1_000)]
Dimension = Annotated[Integer, Field(ge=1, le=2**20)]
VocabSize = Annotated[PositiveInt, Field(ge=5, lt=2**24)]
NonNegativeInt = Annotated[Integer, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# So that no sum of weights, and no size to the power of 1/temperature, is more than a float holds.
Weight = Annotated[float, Field(ge=0.0, le=1e9)]
Temperature = Annotated[float, Field(ge=0.1, le=1e4)]

FilterName = Literal[
    "length", "ratio", "source-equals-target", "duplicate-pair", "duplicate-source", "control", "mojibake", "markup", "script", "language",
    "numbers", "urls", "eval-overlap",
]  # fmt: skip


class RecipeSection(BaseModel):
    """A frozen group of knobs that refuses keys it does not know, and true, "5" or infinity where it wants a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=RecipeSection)


def _check_utf8(text: str) -> str:
    """A command line holds any bytes; those that are no text come as halves of surrogate pairs, which no file of ours holds."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not UTF-8; give another name")
    return text


Utf8Text = Annotated[str, AfterValidator(_check_utf8)]
FileName = Annotated[str, Field(min_length=1)]
