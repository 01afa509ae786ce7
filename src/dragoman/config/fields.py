"""Types of recipe values, with their limits, and the base class of sections."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _to_integer(value: Any) -> Any:
    """Return 1e5 as a whole number, since TOML makes every number with an exponent a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Counts end at 32 bits, because SentencePiece, which also takes the seed, counts no further.
Integer = Annotated[int, BeforeValidator(_to_integer)]
PositiveInt = Annotated[Integer, Field(ge=1, lt=2**31)]
# Larger values fit no machine, and some would take hours to fail.
SmallPositiveInt = Annotated[Integer, Field(ge=1, le=1_000)]
Dimension = Annotated[Integer, Field(ge=1, le=2**20)]
VocabSize = Annotated[PositiveInt, Field(ge=5, lt=2**24)]
NonNegativeInt = Annotated[Integer, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# A sum of weights, and a corpus size to the power of 1/temperature, stays within the range of a float.
Weight = Annotated[float, Field(ge=0.0, le=1e9)]
Temperature = Annotated[float, Field(ge=0.1, le=1e4)]

FilterName = Literal[
    "length", "ratio", "source-equals-target", "duplicate-pair", "duplicate-source", "control", "mojibake", "markup", "script",
    "language", "numbers", "urls", "eval-overlap",
]  # fmt: skip

BleuTokenizer = Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "flores101", "flores200", "none"]


class RecipeSection(BaseModel):
    """Frozen section of a recipe. It refuses unknown keys, and true, "5" or infinity in place of a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=RecipeSection)


def _check_utf8(text: str) -> str:
    """Return the text. Raises ValueError for the surrogate halves that Python makes of invalid bytes on a command line."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not UTF-8; give another name")
    return text


Utf8Text = Annotated[str, AfterValidator(_check_utf8)]
FileName = Annotated[str, Field(min_length=1)]
