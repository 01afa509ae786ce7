"""Types of recipe values, with their limits."""

from __future__ import annotations

from typing import Annotated, Literal

from dragoman.config.section import Limits

# Counts end at 32 bits, because SentencePiece, which also takes the seed, counts no further.
PositiveInt = Annotated[int, Limits(ge=1, lt=2**31)]
# Larger values fit no machine, and some would take hours to fail.
SmallPositiveInt = Annotated[int, Limits(ge=1, le=1_000)]
Dimension = Annotated[int, Limits(ge=1, le=2**20)]
VocabSize = Annotated[PositiveInt, Limits(ge=5, lt=2**24)]
NonNegativeInt = Annotated[int, Limits(ge=0, lt=2**31)]
Probability = Annotated[float, Limits(ge=0.0, lt=1.0)]
NonNegativeFloat = Annotated[float, Limits(ge=0.0)]  # for the keys of packages, as docs/how-to/extend.md shows
PositiveFloat = Annotated[float, Limits(gt=0.0)]
Fraction = Annotated[float, Limits(ge=0.0, le=1.0)]
# A sum of weights, and a corpus size to the power of 1/temperature, stays within the range of a float.
Weight = Annotated[float, Limits(ge=0.0, le=1e9)]
Temperature = Annotated[float, Limits(ge=0.1, le=1e4)]

FilterName = Literal[
    "length", "ratio", "source-equals-target", "duplicate-pair", "duplicate-source", "control", "mojibake", "markup", "script",
    "language", "numbers", "urls", "eval-overlap",
]  # fmt: skip

BleuTokenizer = Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "flores101", "flores200", "none"]

FileName = Annotated[str, Limits(min_length=1)]
