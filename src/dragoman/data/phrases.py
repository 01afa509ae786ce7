"""The demonstration corpus: phrases in English and one other language, made on the spot, with nothing to download.

A phrase is a value said twice. The value is a day, a minute, a price, a number; a form (the long date, the price in
words) says it in English and in the target language, with CLDR's patterns through `babel` or with `num2words`: March 3,
2025 is 3. März 2025. Each kind counts its values from zero. `make_phrases` shuffles them and gives a tenth to test, a
tenth to valid and the rest to train before anything is said, so that a held-out value is never seen in training,
whatever its form. Then the kinds take turns, each saying its next value in its next form, until the split is full; a
kind that has said every value in every form drops out.

No English phrase is made twice: a form never says two values alike, and no two forms say one value alike. (Hence no
medium dates: "May 3, 2025" is both the medium and the long form.) No-break spaces become plain ones.
"""

from __future__ import annotations

import datetime
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from dragoman.data.pair import Pair
from dragoman.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES: tuple[str, ...] = ("ca", "cs", "de", "es", "fi", "fr", "id", "lt", "nl", "pl", "pt", "ro", "ru", "uk")
"""Target languages in which CLDR has every form and num2words spells every number up to 9,999 right.

Italian, Swedish and Hungarian are missing for their numbers: centoventitre, etttusen, százkét."""

_FIRST_DAY = datetime.date(1950, 1, 1)
_DAYS = (datetime.date(2050, 1, 1) - _FIRST_DAY).days  # one century: a year of two digits has one reading
_MINUTES_A_DAY = 24 * 60
_SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 60 * 60,
    "day": 24 * 60 * 60,
    "week": 7 * 24 * 60 * 60,
    "month": 30 * 24 * 60 * 60,
    "year": 365 * 24 * 60 * 60,
}
_POOL = 40_000  # values of one kind at most: more than a demonstration needs, and quick to shuffle
_PLAIN_SPACES = str.maketrans("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}", "  ")


@dataclass(frozen=True)
class PhraseSplit:
    """Three lists that share no value of a kind, and therefore no source."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


@dataclass(frozen=True)
class _Kind:
    """The values 0 to `values` - 1, and the forms that say one of them in a locale."""

    name: str
    values: int
    forms: tuple[Callable[[int, Locale], str], ...]


def make_phrases(target_language: str, *, seed: int, train: int, valid: int, test: int) -> PhraseSplit:
    """English phrases and their counterpart in `target_language`; the same arguments give the same phrases.

    Raises:
        DataError: the language is not in `LANGUAGES`, or a size is beyond what there is to say.
        MissingExtraError: Babel or num2words is not installed.
    """
    if target_language not in LANGUAGES:
        raise DataError(f"no phrases in {target_language!r}: the target language is one of {', '.join(LANGUAGES)}")
    try:
        import num2words  # noqa: F401
        from babel import Locale
    except ImportError as error:
        raise MissingExtraError("Babel and num2words", "demo", "The quickstart corpus") from error

    generator = random.Random(seed)
    shares: dict[str, list[_Share]] = {"train": [], "valid": [], "test": []}
    for kind in _KINDS:
        values = generator.sample(range(kind.values), min(kind.values, _POOL))
        tenth = len(values) // 10
        shares["test"].append((kind, values[:tenth]))
        shares["valid"].append((kind, values[tenth : 2 * tenth]))
        shares["train"].append((kind, values[2 * tenth :]))

    source, target = Locale("en"), Locale(target_language)
    sizes = {"train": train, "valid": valid, "test": test}
    return PhraseSplit(**{split: _fill(split, sizes[split], shares[split], source, target) for split in sizes})


def _fill(split: str, size: int, shares: list[_Share], source: Locale, target: Locale) -> list[Pair]:
    most = sum(len(values) * len(kind.forms) for kind, values in shares)
    if not 0 <= size <= most:
        raise DataError(f"{split}={size}: the {split} phrases can be 0 to {most} in number")
    return list(islice(_in_turn(_pairs(kind, values, source, target) for kind, values in shares), size))


def _in_turn(streams: Iterable[Iterator[Pair]]) -> Iterator[Pair]:
    waiting = deque(streams)
    while waiting:
        stream = waiting.popleft()
        for pair in islice(stream, 1):
            yield pair
            waiting.append(stream)


def _pairs(kind: _Kind, values: list[int], source: Locale, target: Locale) -> Iterator[Pair]:
    """Each value in one form, the forms in turn; then each value in its next form, until it has had them all."""
    for lap in range(len(kind.forms)):
        for place, value in enumerate(values):
            form = kind.forms[(place + lap) % len(kind.forms)]
            source_text, target_text = (form(value, locale).translate(_PLAIN_SPACES) for locale in (source, target))
            yield Pair(source_text, target_text, f"phrases:{kind.name}#{value}")


def _date(day: int, locale: Locale, *, width: Literal["full", "long", "abbreviated", "short"]) -> str:
    from babel.dates import format_date, format_skeleton

    date = _FIRST_DAY + datetime.timedelta(days=day)
    if width == "abbreviated":
        return format_skeleton("yMMMEd", date, locale=locale)
    return format_date(date, width, locale)


def _time(minute: int, locale: Locale) -> str:
    from babel.dates import format_time

    return format_time(datetime.time(*divmod(minute, 60)), "short", locale=locale)


def _moment(minute: int, locale: Locale, *, width: Literal["full", "long", "short"]) -> str:
    # format_datetime would say the time of day in full too, with seconds and a time zone.
    day, minute_of_day = divmod(minute, _MINUTES_A_DAY)
    pattern = str(locale.datetime_formats[width]).replace("'", "")
    return pattern.format(_time(minute_of_day, locale), _date(day, locale, width=width))


def _span(count: int, unit: str, locale: Locale, *, toward: Literal["future", "past"] | None = None) -> str:
    from babel.dates import format_timedelta

    seconds = -count * _SECONDS[unit] if toward == "past" else count * _SECONDS[unit]
    return format_timedelta(seconds, unit, threshold=math.inf, add_direction=toward is not None, locale=locale)


def _duration(value: int, locale: Locale, *, large: str, small: str) -> str:
    from babel.lists import format_list

    counts = divmod(value + 60, 60)
    spans = [_span(count, unit, locale) for count, unit in zip(counts, (large, small), strict=True) if count > 0]
    return format_list(spans, locale=locale)


def _relative(value: int, locale: Locale, *, unit: str, toward: Literal["future", "past"]) -> str:
    return _span(value + 1, unit, locale, toward=toward)


def _price(value: int, locale: Locale, *, currency: str, style: Literal["standard", "name"]) -> str:
    from babel.numbers import format_currency

    amount = Decimal(value + 100).scaleb(-2)
    return format_currency(amount, currency, locale=locale, format_type=style)


def _measure(value: int, locale: Locale, *, unit: str, width: Literal["long", "short"]) -> str:
    from babel.units import format_unit

    return format_unit(_MEASURES[value], unit, width, locale=locale)


def _number(value: int, locale: Locale) -> str:
    from num2words import num2words

    # Plain Portuguese is that of Brazil in CLDR, that of Portugal in num2words.
    language = "pt_BR" if locale.language == "pt" else locale.language
    return str(num2words(value, lang=language))
