"""Plural forms: the categories of a language, and a number for each, with which a model translates the form.

`%d files` says nothing about the number, so a model can give one form alone. The line `2 files` has the Polish form `2 pliki`,
in which the number becomes the placeholder again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.documents.plural_rules import find_form_numbers, get_plural_rule
from dragoman.languages import get_language
from dragoman.text.placeholders import find_placeholders

CATEGORIES = ("zero", "one", "two", "few", "many", "other")
"""Names of the categories of CLDR, in its order."""
_ALL_CATEGORIES = frozenset(CATEGORIES)

# Languages with more categories than `one` and `other`, and a whole number of each category; a category of fractions alone has
# none. French and its relatives are left out, because their third category is that of millions.
_SAMPLE_TABLE = {
    "ar": "zero 0 one 1 two 2 few 3 many 11 other 100",
    "be pl ru uk": "one 1 few 2 many 5 other -",
    "br": "one 1 two 2 few 3 many - other 5",
    "bs hr sr": "one 1 few 2 other 5",
    "cs sk": "one 1 few 2 many - other 5",
    "cy": "zero 0 one 1 two 2 few 3 many 6 other 4",
    "dsb hsb sl": "one 1 two 2 few 3 other 5",
    "ga": "one 1 two 2 few 3 many 7 other 11",
    "gd": "one 1 two 2 few 3 other 20",
    "he": "one 1 two 2 other 3",
    "lt": "one 1 few 2 many - other 10",
    "lv": "zero 10 one 1 other 2",
    "mt": "one 1 two 2 few 3 many 11 other 20",
    "ro": "one 1 few 2 other 20",
}
_SAMPLES: dict[str, dict[str, int | None]] = {
    language: {name: None if number == "-" else int(number) for name, number in zip(*[iter(text.split())] * 2, strict=True)}
    for languages, text in _SAMPLE_TABLE.items()
    for language in languages.split()
}
_LIKE_ONE = {
    language: number
    for languages, number in {"be br bs hr is lt lv mk ru sr uk": 21, "dsb hsb sl": 101, "gd": 11}.items()
    for language in languages.split()
}
_EXACT = re.compile(r"=(\d{1,4})")
_NUMBER_CODE = re.compile(
    r"%(?:\d+\$)?[-+#0']*(?:hh?|ll?|[Lzjtq])?[diun]|%\(\w+\)[dius]|%L?n|%\{\w+\}|\{\{?\s*\$?[\w#]+\s*\}?\}"
)

_ORDINAL_END = re.compile(r"(?<=\})(st|nd|rd|th)\b")
_ORDINALS = {"st": 21, "nd": 22, "rd": 23, "th": 24}


class KeyTree:
    """Keys of the texts of a file, each with those of the objects around it.

    paths: path of each text
    """

    def __init__(self, paths: Iterable[tuple[str, ...]]) -> None:
        self._paths: set[tuple[str, ...]] = set()
        self._names: dict[tuple[str, ...], set[str]] = {}
        for path in paths:
            self._paths.add(path)
            self._names.setdefault(path[:-1], set()).update(path[-1:])

    def __contains__(self, path: tuple[str, ...]) -> bool:
        return path in self._paths

    def has_forms_only(self, parent: tuple[str, ...]) -> bool:
        """Return whether the texts of an object are plural forms: `one`, `other`, and no other names than such."""
        names = self._names.get(parent, set())
        return {"one", "other"} <= names <= _ALL_CATEGORIES


def find_plural_form(path: tuple[str, ...], keys: KeyTree) -> str:
    """Return the category of CLDR that the key of a text names, or an empty text.

    It is the whole key, as in Rails (`one` beside `other`), or its end, as in i18next (`file_one` beside `file_other`). In
    i18next 3, `file_2` beside `file_plural` is the form `#2`, by its number.
    """
    if not path:
        return ""
    if path[-1] in _ALL_CATEGORIES:
        return path[-1] if len(path) > 1 and keys.has_forms_only(path[:-1]) else ""
    stem, _, category = path[-1].rpartition("_")
    if category.isdecimal() and (*path[:-1], f"{stem}_plural") in keys:
        return f"#{category}"
    is_plural = category in _ALL_CATEGORIES and not stem.endswith("_ordinal")
    return category if is_plural and all((*path[:-1], f"{stem}_{name}") in keys for name in ("one", "other")) else ""


def list_missing_categories(language: str, present: set[str]) -> list[str]:
    """Return the categories that a language has and a text lacks, in the order of CLDR; none if its languages has no others.

    present: categories of the text; without `other`, it is not one of CLDR's and misses none
    """
    samples = _SAMPLES.get(get_language(language), {})
    return [name for name in CATEGORIES if name in samples and name not in present] if "other" in present else []


def list_i18next_ends(language: str) -> list[str]:
    """Return the ends of the keys of plural forms in i18next 3; none for a language whose numbers are not those of gettext.

    Source: https://github.com/i18next/i18next/blob/v19.9.2/src/PluralResolver.js
    """
    if get_language(language) in ("cy", "dsb", "he", "hsb", "sl"):
        return []
    count = get_plural_rule(language)[0]
    return ["", "_plural"] if count == 2 else [f"_{number}" for number in range(count)]


def get_number_like_one(language: str) -> int | None:
    """Return a number beside 1 that has the form `one` in a language; None if there is none, or 0 at most."""
    return _LIKE_ONE.get(get_language(language))


def lacks_number(singular: str, plural: str) -> bool:
    """Return whether a text has a placeholder less than its plural, such as `One file` beside `{n} files`."""
    return bool(count_placeholders(plural) - count_placeholders(singular))


def count_placeholders(text: str) -> Counter[str]:
    """Return the placeholders of a text and how often it has each."""
    return Counter(text[start:end] for start, end in find_placeholders(text))


def get_number(form: str, language: str) -> int | None:
    """Return a number of a plural form, or None.

    form: category such as `few`, a number such as `=2`, or the number of a form such as `#2`
    language: code of the language; one with `one` and `other` alone needs no numbers
    """
    if form.startswith("#"):
        return find_form_numbers(get_plural_rule(language)[1]).get(int(form[1:]))
    exact = _EXACT.fullmatch(form)
    return int(exact[1]) if exact else _SAMPLES.get(get_language(language), {}).get(form)


@dataclass(frozen=True)
class NumberedText:
    """Text with a number in the place of its placeholder.

    text: the text with the number
    number: the number, in digits
    code: the placeholder
    """

    text: str
    number: str
    code: str

    def restore(self, translation: str) -> str | None:
        """Return the translation with the placeholder again; None if the number does not stand there exactly once."""
        matches = list(re.finditer(rf"(?<![\d.,]){self.number}(?!\d|[.,]\d)", translation))
        if len(matches) != 1 or sum(map(str.isdigit, translation)) != len(self.number):
            return None
        return translation[: matches[0].start()] + self.code + translation[matches[0].end() :]


def insert_number(text: str, form: str, language: str) -> NumberedText | None:
    """Return a text with a number of its form; None if it has another placeholder than one of a number, or other digits.

    The number before the end of an English ordinal, such as `{#}th`, is one with this end.
    """
    spans = find_placeholders(text)
    ordinals = [match for _, end in spans if (match := _ORDINAL_END.match(text, end))]
    number = _ORDINALS[ordinals[0][1]] if ordinals else get_number(form, language)
    if number is None or len(spans) != 1:
        return None
    start, end = spans[0]
    before, code, after = text[:start], text[start:end], text[end:]
    if not _NUMBER_CODE.fullmatch(code) or any(map(str.isdigit, before + after)) or "<" in text:
        return None
    return NumberedText(f"{before}{number}{after}", str(number), code)


def remove_ordinal_ends(text: str) -> str:
    """Return a text without the ends of English ordinals behind placeholders, which other languages write in other ways."""
    return _ORDINAL_END.sub("", text)
