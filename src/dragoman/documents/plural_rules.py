"""Plural forms of catalogs: the rule of gettext for a language, and a number of each form of Qt.

The rules are those of the table in GNU gettext's manual, "Plural forms". For Arabic, Welsh, Gaelic and Sorbian they are those
of CLDR. Qt's lupdate writes as many forms, unless a language stands in a list of Qt below.
"""

from __future__ import annotations

from functools import lru_cache

from dragoman.documents.plural_expression import find_form_numbers
from dragoman.languages import get_language

_SLAVIC = "n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_RULES = {
    "bo dz id ja km ko lo ms my th vi yo zh": (1, "0"),
    "fr": (2, "n > 1"),
    "be bs hr ru sr uk": (3, f"n%10==1 && n%100!=11 ? 0 : {_SLAVIC}"),
    "pl": (3, f"n==1 ? 0 : {_SLAVIC}"),
    "cs sk": (3, "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2"),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2"),
    "dsb hsb sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "gd": (4, "n==1 || n==11 ? 0 : n==2 || n==12 ? 1 : n>2 && n<20 ? 2 : 3"),
    "mt": (4, "n==1 ? 0 : n==0 || (n%100>=1 && n%100<=10) ? 1 : n%100>10 && n%100<20 ? 2 : 3"),
    "ga": (5, "n==1 ? 0 : n==2 ? 1 : n>=3 && n<=6 ? 2 : n>=7 && n<=10 ? 3 : 4"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
    "cy": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n==3 ? 3 : n==6 ? 4 : 5"),
}
_BY_LANGUAGE = {language: rule for languages, rule in _RULES.items() for language in languages.split()}
_DEFAULT = (2, "n != 1")
_QT_FORMS = {
    language: tuple(numbers.split())
    for languages, numbers in {
        "dsb fa gn hsb hu ig jv om su tr tt": "=1",
        "br km lo": "=1 =2",
        "ga mk": "=1 =2 =3",
        "cy": "=0 =1 =2 =6 =7",
    }.items()
    for language in languages.split()
}
"""Numbers of forms in Qt that are others than those of gettext, as lrelease writes their rules."""


def get_plural_rule(language: str) -> tuple[int, str]:
    """Return the number of plural forms of a language and gettext's expression for them; `n != 1` for most languages."""
    if language.replace("_", "-").lower() == "pt-br":
        return _BY_LANGUAGE["fr"]
    return _BY_LANGUAGE.get(get_language(language), _DEFAULT)


@lru_cache(maxsize=64)
def list_qt_forms(language: str) -> tuple[str, ...]:
    """Return a number of each form that Qt has for a language, such as `=1`; none for a language without a known rule."""
    if not language:
        return ()
    if forms := _QT_FORMS.get(get_language(language)):
        return forms
    numbers = find_form_numbers(get_plural_rule(language)[1])
    return tuple(f"={numbers[form]}" for form in sorted(numbers))
