"""Checks of a translation against its source, without a model.

The names of the checks are those of the Translate Toolkit's pofilter where it has the check, because translators know them.
On 3,415 annotated outputs, repeated blocks are nearly free of false alarms, and the ratio of lengths is weak evidence
(Guerreiro et al. 2023, "Looking for a Needle in a Haystack").
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from dragoman.languages import get_language, is_spaced_language
from dragoman.text.length_ratios import ANY_PAIR, MIN_LENGTH, LengthRatios
from dragoman.text.placeholders import find_placeholders
from dragoman.text.projection import divide_translation

Check = Literal[
    "numbers", "urls", "emails", "repetition", "length", "endpunc", "untranslated", "script", "low_score", "terminology",
    "xmltags", "printf", "variables",
]  # fmt: skip
"""Name of a check. `check_translation` never returns those from "low_score" on: they need a model, a glossary, or codes."""

NGRAM = 4
MAX_NGRAM_EXCESS = 2
"""A translation repeats itself if its most frequent 4-gram is this much more frequent than the source's."""
MAX_BLOCK_EXCESS = 3
"""Or if a block is repeated at once, over this many units more than in the source."""
MIN_COPIED_WORDS = 4
COUNTED_UNITS = 10_000
"""Units that are counted by one call, which holds the interpreter."""
MAX_FOUND_NUMBERS = 10
"""Most numbers of a source that are looked for in a translation one by one, as they are written, which is fast."""
MAX_CACHED_CHARACTERS = 4000

_NUMBER = re.compile(r"\d(?:[.,'’\u00a0\u202f]?\d)*+")
"""Digits with single separators; a search for one character is fast"""
_CURRENCY = "$\u00a2-\u00a5\u20a0-\u20cf"
_CURRENCY_SIGN = re.compile(f"[{_CURRENCY}]")
# What a number has beside it that is written with digits.
_SIGN_BEFORE = re.compile(rf"[{_CURRENCY}\u00b1]\s?\Z")
_SIGN_BEHIND = re.compile(rf"\s?[{_CURRENCY}%\u2030\u00b0\u00b1\u00b2\u00b3]")
_CURRENCY_BEFORE = re.compile(rf"[{_CURRENCY}]\s?\Z")
_CURRENCY_BEHIND = re.compile(rf"\s?[{_CURRENCY}]")
_UNIT_BEFORE = re.compile(rf"(?:[{_CURRENCY}]|\b[A-Z]{{3}})\s?\Z")
_UNIT_BEHIND = re.compile(rf"(?:,-)?[\s-]?(?:[^\W\d_]|[{_CURRENCY}])")
_CLOSERS = r"[\s\"'”’»›)\]}」』）】〉》]*"
_SENTENCE_END = re.compile(rf"[.!?。！？…؟۔।｡]{_CLOSERS}$")
_WORD_END = re.compile(rf"[\w,、，;；-]{_CLOSERS}$")
# Words that translators write for small numbers count as the number.
MAX_SPELLED = 12
# An English ordinal, as in `2nd`, needs its digits or these letters of its word, for the numbers from 1 on. Of 979 pairs with
# small ordinals, 5 have neither, and all 5 have lost the number.
_ORDINAL_END = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_SPELLED = {
    "de": "erst|eins zw[eo]i dritt|drei viert?e fünf sechs sieb acht neun zehn elf zwölf",
    "fr": "premi|un second|deux trois|tier quatr|quart cinq six sept huit neu dix onz douz",
    "zh": "[一头頭首] [二两兩] 三 四 五 六 七 八 九 十 十一 十二",
}
MAX_NUMBER_PART = 20
"""Digits of a number that are looked for together; a longer one is looked for in parts."""
SCRIPTS = {
    language: frozenset(scripts.split())
    for languages, scripts in (
        ("ar fa ur", "ARABIC"), ("bg ru uk", "CYRILLIC"), ("el", "GREEK"), ("he", "HEBREW"), ("hi", "DEVANAGARI"),
        ("hy", "ARMENIAN"), ("ja", "CJK HIRAGANA KATAKANA HALFWIDTH"), ("ka", "GEORGIAN"), ("ko", "HANGUL CJK"), ("th", "THAI"),
        ("zh", "CJK"),
        ("ca cs da de en es et eu fi fr ga gl hr hu id is it lt lv nb nl nn no pl pt ro sk sl sv tr vi", "LATIN"),
    )
    for language in languages.split()
}  # fmt: skip
"""Scripts of a language, as the names of their letters begin."""
MIN_SCRIPT_SHARE = 0.5
BROKEN = "\ufffd"
"""What stands for bytes that are no character."""


def check_translation(
    source: str, translation: str, target_language: str = "", length_ratios: LengthRatios | None = None
) -> list[Check]:
    """Return the names of the checks that a translation fails, in a fixed order; empty if it passes all.

    source, translation: texts without markup
    target_language: code that selects the script of the translation; an empty code leaves that check out
    length_ratios: usual lengths for the pair of languages; by default those of any pair
    """
    run = _run_checks if len(source) + len(translation) > MAX_CACHED_CHARACTERS else _run_checks_once
    return list(run(source, translation, target_language, length_ratios))


def _run_checks(source: str, translation: str, target_language: str, length_ratios: LengthRatios | None) -> tuple[Check, ...]:
    failed: list[Check] = []
    numbers = _NUMBER.findall(source)
    is_repeated = len(numbers) <= MAX_FOUND_NUMBERS and all("1" <= item[0] <= "9" and item in translation for item in numbers)
    if (not is_repeated and _misses_number(source, translation, target_language)) or (
        numbers and _CURRENCY_SIGN.search(source) and _misses_currency(source, translation)
    ):
        failed.append("numbers")
    if "://" in source and _list_addresses(source, "://") - _list_addresses(translation, "://"):
        failed.append("urls")
    if "@" in source and _list_addresses(source, "@") - _list_addresses(translation, "@"):
        failed.append("emails")
    if repeats_itself(source, translation):
        failed.append("repetition")
    if len(source) >= MIN_LENGTH:
        ratios = length_ratios or ANY_PAIR
        if not ratios.is_usual(len(source), len(translation)):
            failed.append("length")
        # Without limits of its own, a language without spaces has short translations only.
        can_be_short = length_ratios is not None or is_spaced_language(target_language)
        if can_be_short and ratios.is_short(len(source), len(translation)) and _ends_early(source, translation):
            failed.append("endpunc")
    if _is_copied(source, translation):
        failed.append("untranslated")
    if _has_other_script(source, translation, target_language):
        failed.append("script")
    return tuple(failed)


# A document is checked by sentences and then by texts, most of which are one sentence.
_run_checks_once = lru_cache(maxsize=1024)(_run_checks)


def _misses_number(source: str, translation: str, target_language: str) -> bool:
    """Return whether the digits of a number of the source, above those that may be spelled out, are not in the translation.

    The digits of all numbers of the translation count as one row, because languages group them in different ways.
    """
    missing = {
        digits[start : start + MAX_NUMBER_PART]
        for digits, match in _find_numbers(source)
        if len(digits) > 2
        or int(digits) > MAX_SPELLED
        or _has_sign(match)
        or _lacks_ordinal(match, int(digits), translation, target_language)
        for start in range(0, len(digits), MAX_NUMBER_PART)
    }
    row = "".join(digits for digits, _ in _find_numbers(translation)) if missing else ""
    for length in {len(number) for number in missing}:
        missing.difference_update(row[start : start + length] for start in range(len(row) - length + 1))
    return bool(missing)


def _lacks_ordinal(match: re.Match[str], number: int, translation: str, language: str) -> bool:
    """Return whether a small number is an English ordinal, and the translation has no word for it, if such words are known."""
    spelled = _SPELLED.get(get_language(language))
    if not number or spelled is None or _ORDINAL_END.match(match.string, match.end()) is None:
        return False
    return re.search(spelled.split()[number - 1], translation, re.IGNORECASE) is None


def _has_sign(match: re.Match[str]) -> bool:
    """Return whether a number has decimals, or a sign beside it such as that of percent."""
    return not match[0].isdecimal() or _is_beside(match, _SIGN_BEFORE, _SIGN_BEHIND)


def _is_beside(match: re.Match[str], before: re.Pattern[str], behind: re.Pattern[str]) -> bool:
    text, start, end = match.string, match.start(), match.end()
    return before.search(text[max(start - 5, 0) : start]) is not None or behind.match(text, end) is not None


def _misses_currency(source: str, translation: str) -> bool:
    """Return whether an amount of the source is a number without a unit in the translation."""
    amounts = {digits for digits, match in _find_numbers(source) if _is_beside(match, _CURRENCY_BEFORE, _CURRENCY_BEHIND)}
    bare, whole = set[str](), set[str]()
    for digits, match in _find_numbers(translation) if amounts else ():
        (whole if _is_beside(match, _UNIT_BEFORE, _UNIT_BEHIND) else bare).add(digits)
    return bool(amounts & bare - whole)


def _find_numbers(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each number without separators and leading zeros, in ASCII digits, with its match in the text in such digits."""
    ascii_text = text if text.isascii() else "".join(str(unicodedata.decimal(character, character)) for character in text)
    for match in _NUMBER.finditer(ascii_text):
        number = match[0]
        yield (number if number.isdecimal() else re.sub(r"\D", "", number)).lstrip("0") or "0", match


def _list_addresses(text: str, mark: str) -> Counter[str]:
    return Counter(text[start:end] for start, end in find_placeholders(text) if mark in text[start:end])


def repeats_itself(source: str, translation: str) -> bool:
    """Return whether a translation repeats words that its source does not repeat."""
    units = _list_units(translation)
    # A repeated 4-gram has three units in a row that are there twice, and so has a block repeated over three units.
    num_rows = max(len(units) - 2, 0)
    if len(units) <= COUNTED_UNITS and len(set(zip(units, units[1:], units[2:], strict=False))) == num_rows:
        return False
    for count, excess in ((_count_top_ngram, MAX_NGRAM_EXCESS), (_count_repeated, MAX_BLOCK_EXCESS)):
        if (num_repeated := count(units)) >= excess and num_repeated - count(_list_units(source)) >= excess:
            return True
    return False


def _list_units(text: str) -> list[str]:
    return list(map(str.casefold, divide_translation(text).words))


def _count_top_ngram(units: Sequence[str]) -> int:
    ngrams: Counter[tuple[str, ...]] = Counter()
    for start in range(0, len(units), COUNTED_UNITS):
        part = units[start : start + COUNTED_UNITS + NGRAM - 1]
        ngrams.update(zip(*(part[first:] for first in range(NGRAM)), strict=False))
    return max(ngrams.values(), default=0)


def _count_repeated(units: Sequence[str]) -> int:
    """Return how many units in a row repeat the block right before them, for the block of up to four units that gives most."""
    longest = 0
    for size in range(1, NGRAM + 1):
        run = 0
        for unit, before in zip(units[size:], units, strict=False):
            if unit == before:
                run += 1
                longest = max(longest, run // size * size)
            else:
                run = 0
    return longest


def _ends_early(source: str, translation: str) -> bool:
    """Return whether a source ends as a sentence does, and its translation with a word or a comma."""
    return _SENTENCE_END.search(source) is not None and _WORD_END.search(translation) is not None


def _is_copied(source: str, translation: str) -> bool:
    first, other = source[:1].casefold(), translation[:1].casefold()
    if first.isalpha() and other.isalpha() and first[0] != other[0]:  # so begin most
        return False
    sides = ((word.casefold() for word in text.split() if any(map(str.isalpha, word))) for text in (source, translation))
    num_words = 0
    for word, other in zip_longest(*sides):
        if word != other:
            return False
        num_words += 1
    return num_words >= MIN_COPIED_WORDS


def _has_other_script(source: str, translation: str, language: str) -> bool:
    """Return whether most letters are of another script than the language's, and more than in the source would explain.

    A language that is not listed has no check but for characters that the bytes of an output do not give.
    """
    if translation.count(BROKEN) > source.count(BROKEN):
        return True
    scripts = SCRIPTS.get(get_language(language))
    if scripts is None or len(translation) < MIN_LENGTH or ("LATIN" in scripts and translation.isascii()):
        return False
    letters = Counter(character for character in translation if character.isalpha())
    total = letters.total()
    num_expected = sum(count for character, count in letters.items() if get_script(character) in scripts)
    return total >= MIN_LENGTH and num_expected < MIN_SCRIPT_SHARE * total and not _is_quoted(source, translation)


@lru_cache(maxsize=4096)
def get_script(character: str) -> str:
    """Return the first word of the name of a letter, which is its script, as in LATIN SMALL LETTER A."""
    return unicodedata.name(character, "").partition(" ")[0]


def _is_quoted(source: str, translation: str) -> bool:
    """Return whether most words of the translation stand in the source, as names of programs and commands do."""
    words = translation.split()
    known = set(source.split())
    return sum(word in known for word in words) > MIN_SCRIPT_SHARE * len(words)
