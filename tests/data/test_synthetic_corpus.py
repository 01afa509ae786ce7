"""Tests of the synthetic corpus: sizes, seeds, held-out values, and known phrases of CLDR."""

from __future__ import annotations

import datetime
import sys
from functools import cache

import pytest

from dragoman.data.synthetic_corpus import _KINDS, PhraseSplit, _iter_pairs, make_phrases
from expected_errors import raises_code


@cache
def make_german() -> PhraseSplit:
    return make_phrases("de", seed=11, train=4_000, valid=500, test=600)


def test_seed_determines_the_phrases() -> None:
    sizes = {"train": 40, "valid": 8, "test": 8}
    assert make_phrases("fr", seed=5, **sizes) == make_phrases("fr", seed=5, **sizes)
    assert make_phrases("fr", seed=5, **sizes) != make_phrases("fr", seed=6, **sizes)


@pytest.mark.slow
def test_larger_corpus_starts_with_smaller_one() -> None:
    small = make_phrases("de", seed=11, train=100, valid=20, test=20)
    assert (small.train, small.valid, small.test) == (
        make_german().train[:100],
        make_german().valid[:20],
        make_german().test[:20],
    )


def test_no_value_is_in_two_splits() -> None:
    train, valid, test = (
        {pair.origin for pair in pairs} for pairs in (make_german().train, make_german().valid, make_german().test)
    )
    assert not train & valid
    assert not train & test
    assert not valid & test


def list_forms(kind: str, value: int, language: str) -> set[tuple[str, str]]:
    """Return the English and the target text of a value in each form of its kind."""
    from babel import Locale

    phrase_kind = next(candidate for candidate in _KINDS if candidate.name == kind)
    return {(pair.source, pair.target) for pair in _iter_pairs(phrase_kind, [value], Locale("en"), Locale(language))}


# The texts are CLDR's, checked by hand; the numbers in words follow dictionaries.
DAY = datetime.date(2025, 3, 3).toordinal()


@pytest.mark.slow
def test_phrases_equal_known_translations(subtests: pytest.Subtests) -> None:
    for language, kind, value, english, target in [
        ("de", "date", DAY, "Monday, March 3, 2025", "Montag, 3. März 2025"),
        ("de", "date", DAY, "March 3, 2025", "3. März 2025"),
        ("pl", "date", DAY, "March 3, 2025", "3 marca 2025"),
        ("de", "time", 0, "12:00 AM", "00:00"),
        ("de", "moment", DAY * 1_440 + 990, "Monday, March 3, 2025, 4:30 PM", "Montag, 3. März 2025, 16:30"),
        ("de", "duration", 12 * 60 + 1, "12 hours and 1 minute", "12 Stunden und 1 Minute"),
        ("nl", "duration", 90, "1 hour and 30 minutes", "1 uur en 30 minuten"),
        ("de", "relative", 3, "in 3 days", "in 3 Tagen"),
        ("pl", "relative", 5, "5 hours ago", "5 godzin temu"),
        ("de", "price", 342_50, "€342.50", "342,50 €"),
        ("nl", "price", 342_50, "£342.50", "£ 342,50"),
        ("de", "measure", 35, "3.5 kilometers per hour", "3,5 Kilometer pro Stunde"),
        ("pl", "measure", 50, "5 kilograms", "5 kilogramów"),
        ("de", "number", 342, "three hundred and forty-two", "dreihundertzweiundvierzig"),
        ("fr", "number", 1_080, "one thousand and eighty", "mille quatre-vingts"),
    ]:
        with subtests.test(language=language, kind=kind, value=value, english=english, target=target):
            assert (english, target) in list_forms(kind, value, language)


def test_unknown_language_error_lists_languages() -> None:
    with raises_code("unsupported-language", "tlh", "ca, cs, de"):
        make_phrases("tlh", seed=1, train=1, valid=1, test=1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train": 10**9, "valid": 1, "test": 1}, "train: cannot make 1000000000 phrases"),
        ({"train": 1, "valid": 10**6, "test": 1}, "valid: cannot make 1000000 phrases"),
        ({"train": 1, "valid": 1, "test": -1}, "test: cannot make -1 phrases"),
    ],
)
def test_too_large_size_error_names_limit(sizes: dict[str, int], message: str) -> None:
    with raises_code("invalid-argument", message):
        make_phrases("de", seed=1, **sizes)


@pytest.mark.parametrize("missing", ["babel", "num2words"])
def test_missing_library_error_names_install_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with raises_code("missing-dependency", "Babel and num2words", "dragoman[demo]"):
        make_phrases("de", seed=1, train=1, valid=1, test=1)
