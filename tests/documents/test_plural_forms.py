"""Plural forms: categories of CLDR, and expressions of gettext."""

from __future__ import annotations

import gettext

import pytest

from dragoman.documents.plural_forms import _SAMPLES, get_number, insert_number, list_missing_categories, remove_ordinal_ends
from dragoman.documents.plural_rules import NUM_TRIED, find_form_numbers

EXPRESSIONS = [
    "n != 1",
    "(n > 1)",
    "0",
    "(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;".rstrip(";"),
    "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2",
    "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5",
    "!(n == 1)",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_numbers_have_the_forms_that_gettext_gives(expression: str) -> None:
    """The module gettext of Python is an independent reading of the expressions."""
    expected = gettext.c2py(expression)
    numbers = find_form_numbers(expression)
    assert {form: expected(number) for form, number in numbers.items()} == {form: form for form in numbers}
    assert numbers.keys() == {expected(number) for number in range(NUM_TRIED)}


@pytest.mark.parametrize(
    "expression", ["", "EXPRESSION", "n ? 1", "(n", "n n", "n % 0", "__import__('os')", "(" * 2000, "!" * 900]
)
def test_other_expressions_have_no_numbers(expression: str) -> None:
    assert find_form_numbers(expression) == {}


@pytest.mark.parametrize("language", sorted(_SAMPLES))
def test_categories_are_those_of_cldr(language: str) -> None:
    """Babel has the rules of CLDR."""
    babel = pytest.importorskip("babel")
    rule = babel.Locale.parse(language).plural_form
    assert set(_SAMPLES[language]) == set(rule.tags) | {"other"}
    assert all(number is None or rule(number) == name for name, number in _SAMPLES[language].items())


def test_missing_categories_need_a_language_with_more() -> None:
    assert list_missing_categories("pl-PL", {"one", "other"}) == ["few", "many"]
    assert list_missing_categories("de", {"one", "other"}) == []
    assert list_missing_categories("pl", {"one", "few"}) == []
    assert get_number("=12", "de") == 12


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("%d files", "2 pliki", "%d pliki"),
        ("{count} of them", "z 2", "z {count}"),
        ("%d files", "dwa pliki", None),
        ("%d files", "2 z 12", None),
        ("%d files", "2,5 pliki", None),
    ],
)
def test_number_becomes_the_placeholder_again(text: str, translation: str, expected: str | None) -> None:
    numbered = insert_number(text, "few", "pl")
    assert numbered is not None
    assert numbered.restore(translation) == expected


@pytest.mark.parametrize("text", ["files", "%s files", "%d of %d files", "%d files in 3 folders", "<b>%d</b> files"])
def test_texts_without_a_place_for_a_number_stay(text: str) -> None:
    assert insert_number(text, "few", "pl") is None


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("the {#}st place", "der 21. Platz", "der {#}. Platz"),
        ("the {#}th place", "de 24e plaats", "de {#}e plaats"),
        ("the {#}stone", None, None),
    ],
)
def test_ordinal_is_translated_with_a_number_of_its_end(text: str, translation: str | None, expected: str | None) -> None:
    numbered = insert_number(text, "one", "de")
    assert (numbered and translation and numbered.restore(translation)) == expected
    assert remove_ordinal_ends("the {#}nd of {n}") == "the {#} of {n}"
