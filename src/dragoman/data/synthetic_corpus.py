"""Synthetic demonstration corpus: phrases in English and one other language, generated without a download.

A phrase expresses a value twice. The value is an integer: a day, a minute, an amount in cents. A form, such as the long date
or the price in words, expresses it in English and in the target language. The patterns come from CLDR through `babel`, or from
`num2words`: March 3, 2025 is 3. März 2025. `make_phrases` shuffles the values of each kind. A tenth goes to test, a tenth to
valid and the rest to train, so training never contains a value of valid or test in any form. Then the kinds alternate: each
adds its next value in its next form until the split is full. A kind ends when each value has every form.

Each English phrase is unique: no form expresses two values alike, and no two forms express one value alike. Therefore there
are no medium dates: "May 3, 2025" is both the medium and the long form. No-break spaces become plain spaces.
"""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from dragoman.errors import DataError, MissingDependencyError
from dragoman.formats.pair import Pair
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES: tuple[str, ...] = ("ca", "cs", "de", "es", "fi", "fr", "id", "lt", "nl", "pl", "pt", "ro", "ru", "uk")
"""Target languages for which CLDR has every form and num2words spells every number up to 9,999 correctly.

Italian, Swedish and Hungarian are missing because num2words misspells numbers: centoventitre, etttusen, százkét."""

_Unit = Literal["second", "minute", "hour", "day", "week", "month", "year"]

# One century of days as ordinals of datetime.date, so that a year of two digits is unambiguous.
_FIRST_DAY, _LAST_DAY = datetime.date(1950, 1, 1).toordinal(), datetime.date(2049, 12, 31).toordinal()
_DAY_MINUTES = 24 * 60

_UNIT_SECONDS: dict[_Unit, int] = {
    "second": 1,
    "minute": 60,
    "hour": 60 * 60,
    "day": 24 * 60 * 60,
    "week": 7 * 24 * 60 * 60,
    "month": 30 * 24 * 60 * 60,
    "year": 365 * 24 * 60 * 60,
}

_LONG_MEASURE_UNITS = (
    "length-centimeter",
    "length-meter",
    "length-kilometer",
    "mass-gram",
    "mass-kilogram",
    "volume-liter",
    "temperature-celsius",
    "speed-kilometer-per-hour",
)
# For the other units, Babel's short form uses long plurals: "5 litry" in Polish.
_SHORT_MEASURE_UNITS = (
    "length-centimeter",
    "length-kilometer",
    "mass-kilogram",
    "temperature-celsius",
    "speed-kilometer-per-hour",
)

_MAX_VALUES = 40_000  # values of one kind in a corpus, so that shuffling stays quick
_SPACE_TABLE = str.maketrans("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}", "  ")


@dataclass(frozen=True)
class PhraseSplit:
    """Three lists of pairs that share no value of a kind, and therefore no source."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


@dataclass(frozen=True)
class _PhraseKind:
    """Values of one kind, and the forms that express such a value in a locale."""

    name: str
    values: Sequence[int]
    forms: tuple[Callable[[int, Locale], str], ...]


_KindValues = tuple[_PhraseKind, list[int]]
"""Kind with those of its values that belong to one split."""


def make_phrases(target_language: str, *, seed: int, train: int, valid: int, test: int) -> PhraseSplit:
    """Return English phrases and their counterparts in `target_language`; the same arguments give the same phrases.

    A larger corpus starts with the smaller one. Another release of Babel may express a phrase differently.

    target_language: one of `LANGUAGES`

    Raises DataError: the language is not in `LANGUAGES`, or a size is above the number of phrases.
    Raises MissingDependencyError: Babel or num2words is not installed.
    """
    if target_language not in LANGUAGES:
        raise DataError(
            f"target language {target_language!r}: has no phrases; choose one of {', '.join(LANGUAGES)}",
            code="unsupported-language",
        )
    try:
        import num2words  # noqa: F401
        from babel import Locale
    except ImportError as error:
        raise MissingDependencyError("Babel and num2words", "demo", "The quickstart corpus") from error

    rng = random.Random(seed)
    split_values: dict[str, list[_KindValues]] = {"train": [], "valid": [], "test": []}
    for kind in _KINDS:
        values = rng.sample(kind.values, min(len(kind.values), _MAX_VALUES))
        tenth = len(values) // 10
        split_values["test"].append((kind, values[:tenth]))
        split_values["valid"].append((kind, values[tenth : 2 * tenth]))
        split_values["train"].append((kind, values[2 * tenth :]))

    locales = Locale("en"), Locale(target_language)
    return PhraseSplit(
        train=_build_split("train", train, split_values["train"], *locales),
        valid=_build_split("valid", valid, split_values["valid"], *locales),
        test=_build_split("test", test, split_values["test"], *locales),
    )


def extract_date_links(pair: Pair) -> list[Link] | None:
    """Return the word links of a date if its words and figures determine them, else None.

    Day and year are the same figures on both sides. If both sides have equally many names, these have the same order, weekday
    before month.
    """
    if not pair.origin.startswith("phrases:date"):
        return None
    sides = [[re.sub(r"\W", "", word) for word in text.split()] for text in (pair.source, pair.target)]
    names, figures = (
        [[index for index, word in enumerate(side) if word.isdigit() == is_figure] for side in sides] for is_figure in (0, 1)
    )
    values = [{side[index]: index for index in indices} for side, indices in zip(sides, figures, strict=True)]
    if len(names[0]) != len(names[1]) or not names[0] or values[0].keys() != values[1].keys() or len(values[0]) != 2:
        return None
    links = [*zip(*names, strict=True), *((values[0][value], values[1][value]) for value in values[0])]
    return sorted(links)


def _build_split(split: str, size: int, kind_values: list[_KindValues], source: Locale, target: Locale) -> list[Pair]:
    """Return the first `size` phrases of a split's values, with alternating kinds."""
    max_size = sum(len(values) * len(kind.forms) for kind, values in kind_values)
    if not 0 <= size <= max_size:
        raise DataError(f"{split}: cannot make {size} phrases; give a size from 0 to {max_size}", code="invalid-argument")
    return list(islice(_interleave(_iter_pairs(kind, values, source, target) for kind, values in kind_values), size))


def _iter_pairs(kind: _PhraseKind, values: list[int], source: Locale, target: Locale) -> Iterator[Pair]:
    """Yield each value once with rotating forms, then each value in its next form, until each value has every form."""
    for round_index in range(len(kind.forms)):
        for index, value in enumerate(values):
            form = kind.forms[(index + round_index) % len(kind.forms)]
            yield Pair(
                source=form(value, source).translate(_SPACE_TABLE),
                target=form(value, target).translate(_SPACE_TABLE),
                origin=f"phrases:{kind.name}#{value}",
            )


def _interleave(streams: Iterable[Iterator[Pair]]) -> Iterator[Pair]:
    """Yield one pair from each stream in turn until all streams end."""
    active_streams = deque(streams)
    while active_streams:
        stream = active_streams.popleft()
        for pair in islice(stream, 1):
            yield pair
            active_streams.append(stream)


def _format_date(day: int, locale: Locale, *, width: Literal["full", "long", "abbreviated", "short"]) -> str:
    from babel.dates import format_date, format_skeleton

    date = datetime.date.fromordinal(day)
    if width == "abbreviated":
        return format_skeleton("yMMMEd", date, locale=locale)
    return format_date(date, width, locale)


def _format_time(minute: int, locale: Locale) -> str:
    from babel.dates import format_time

    return format_time(datetime.time(*divmod(minute, 60)), "short", locale=locale)


def _format_datetime(minute: int, locale: Locale, *, width: Literal["full", "long", "short"]) -> str:
    """Return a date of any width with a short time. Babel's `format_datetime` would add seconds and a time zone."""
    day, minute_of_day = divmod(minute, _DAY_MINUTES)
    pattern = str(locale.datetime_formats[width]).replace("'", "")
    return pattern.format(_format_time(minute_of_day, locale), _format_date(day, locale, width=width))


def _format_timespan(count: int, locale: Locale, *, unit: _Unit, direction: Literal["future", "past"] | None = None) -> str:
    from babel.dates import format_timedelta

    seconds = count * _UNIT_SECONDS[unit] * (-1 if direction == "past" else 1)
    # With an infinite threshold, 90 minutes never become an hour.
    return format_timedelta(seconds, unit, threshold=math.inf, add_direction=direction is not None, locale=locale)


def _format_duration(value: int, locale: Locale, *, large_unit: _Unit, small_unit: _Unit) -> str:
    """Return a duration in two units. `value` counts the small unit; sixty of them make a large one."""
    from babel.lists import format_list

    counts = zip(divmod(value, 60), (large_unit, small_unit), strict=True)
    return format_list([_format_timespan(count, locale, unit=unit) for count, unit in counts if count], locale=locale)


def _format_price(cents: int, locale: Locale, *, currency: str, style: Literal["standard", "name"]) -> str:
    from babel.numbers import format_currency

    return format_currency(Decimal(cents).scaleb(-2), currency, locale=locale, format_type=style)


def _format_measure(tenths: int, locale: Locale, *, unit: str, width: Literal["long", "short"]) -> str:
    from babel.units import format_unit

    return format_unit(Decimal(tenths) / 10, unit, width, locale=locale)


def _spell_number(number: int, locale: Locale) -> str:
    from num2words import num2words

    # The code "pt" means Brazil in CLDR and Portugal in num2words.
    return str(num2words(number, lang="pt_BR" if locale.language == "pt" else locale.language))


_KINDS = (
    _PhraseKind(
        "date",
        range(_FIRST_DAY, _LAST_DAY + 1),
        (
            partial(_format_date, width="full"),
            partial(_format_date, width="long"),
            partial(_format_date, width="abbreviated"),
            partial(_format_date, width="short"),
        ),
    ),
    _PhraseKind("time", range(_DAY_MINUTES), (_format_time,)),
    _PhraseKind(
        "moment",
        range(_FIRST_DAY * _DAY_MINUTES, (_LAST_DAY + 1) * _DAY_MINUTES),
        (
            partial(_format_datetime, width="full"),
            partial(_format_datetime, width="long"),
            partial(_format_datetime, width="short"),
        ),
    ),
    _PhraseKind(
        "duration",
        range(60, 100 * 60),
        (
            partial(_format_duration, large_unit="hour", small_unit="minute"),
            partial(_format_duration, large_unit="minute", small_unit="second"),
        ),
    ),
    _PhraseKind(
        "relative",
        range(1, 1_000),
        (
            *(partial(_format_timespan, unit=unit, direction="future") for unit in _UNIT_SECONDS),
            *(partial(_format_timespan, unit=unit, direction="past") for unit in _UNIT_SECONDS),
        ),
    ),
    _PhraseKind(
        "price",
        range(1_00, 1_000_00),
        (
            *(partial(_format_price, currency=currency, style="standard") for currency in ("EUR", "USD", "GBP")),
            *(partial(_format_price, currency=currency, style="name") for currency in ("EUR", "USD", "GBP", "CHF")),
        ),
    ),
    _PhraseKind(
        "measure",
        (*range(11, 1_000), *range(1_000, 10_000, 10)),
        (
            *(partial(_format_measure, unit=unit, width="long") for unit in _LONG_MEASURE_UNITS),
            *(partial(_format_measure, unit=unit, width="short") for unit in _SHORT_MEASURE_UNITS),
        ),
    ),
    _PhraseKind("number", range(10_000), (_spell_number,)),
)
