"""Predicates of the cleaning filters: each returns whether a pair of texts is faulty.

No predicate depends on which side is the source, so a corpus loses the same pairs in both directions.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from html.entities import html5

from dragoman.errors import MissingDependencyError


def is_empty(source: str, target: str) -> bool:
    """Return whether a side holds only white space."""
    return not source or source.isspace() or not target or target.isspace()


# Letters of Thai, Lao, Myanmar, Khmer, Hiragana, Katakana and Han, the last with its iteration marks.
_UNSPACED_LETTERS = re.compile(
    "[\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"
    "\ua9e0-\ua9e4\ua9e6-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa76\uaa7a\uaa7e\uaa7f\u1780-\u17b3\u17d7\u17dc"
    "\u3005\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00016fe3\U00016ff2\U00016ff3\U0001aff0-\U0001b168\U00020000-\U0003ffff]"
)


def count_words(text: str) -> int:
    """Return the number of words between white space. In scripts without spaces each letter counts as a word."""
    if text.isascii():
        return len(text.split())
    spaced_text, num_letters = _UNSPACED_LETTERS.subn(" ", text)
    words = spaced_text.split()
    return num_letters + sum(any(map(str.isalnum, word)) for word in words) if num_letters else len(words)


def is_too_long(source: str, target: str, max_words: int | None, max_characters: int | None) -> bool:
    """Return whether a side has more words or characters than the limits. None sets no limit."""
    longest_length = max(len(source), len(target))
    if max_characters is not None and longest_length > max_characters:
        return True
    # A text has no more words than characters.
    return max_words is not None and longest_length > max_words and max(count_words(source), count_words(target)) > max_words


def is_out_of_ratio(source: str, target: str, max_ratio: float) -> bool:
    """Return whether the longer side has over ten characters and more than `max_ratio` times those of the shorter side."""
    shorter_length, longer_length = sorted((len(source), len(target)))
    return longer_length > 10 and longer_length > max_ratio * shorter_length


def is_identical(source: str, target: str) -> bool:
    """Return whether the sides are equal, ignoring case and spaces."""
    return source == target or "".join(source.split()).casefold() == "".join(target.split()).casefold()


# Control, surrogate, private, and not assigned in the Unicode version of this Python.
_DISALLOWED_CATEGORIES = {"Cc", "Cs", "Co", "Cn"}


def has_control_characters(source: str, target: str) -> bool:
    """Return whether a side holds control characters other than tab and line break, U+FFFD, or code points without meaning.

    Code points without meaning are unassigned ones, surrogate halves and private ones. Joiners, soft hyphens and direction
    marks are ordinary text.
    """
    return _has_control_characters(source) or _has_control_characters(target)


def _has_control_characters(text: str) -> bool:
    if "\ufffd" in text:
        return True
    if text.isprintable():
        return False
    return any(
        unicodedata.category(character) in _DISALLOWED_CATEGORIES for character in set(text) if character not in "\t\n\r"
    )


def make_mojibake_filter() -> Callable[[str, str], bool]:
    """Return a predicate: a side holds UTF-8 that was decoded with a wrong encoding, by ftfy's heuristic.

    On a million lines of English, German, French, Czech, Vietnamese, Chinese and Japanese it had three false positives. It
    misses up to one in twenty lines decoded as Latin-1 or Windows-1252, and up to half of those decoded as Windows-1250.

    Raises MissingDependencyError if ftfy is not installed.
    """
    try:
        from ftfy.badness import is_bad
    except ImportError as error:
        raise MissingDependencyError("ftfy", "cleaning", "data.cleaning.mojibake") from error

    def has_mojibake(source: str, target: str) -> bool:
        return (not source.isascii() and bool(is_bad(source))) or (not target.isascii() and bool(is_bad(target)))

    return has_mojibake


# Elements of HTML and of wikis. Any other tag needs an attribute or a slash, because <file> and <Ctrl> are ordinary text.
_HTML_ELEMENTS = (
    "a abbr acronym address article aside audio b base big blockquote body br button caption center cite code col colgroup dd "
    "del dfn dir div dl dt em embed fieldset figure font footer form frame frameset h[1-6] head header hr html i iframe img "
    "input ins kbd label legend li link main map mark math meta nav noscript nowiki object ol optgroup option p param pre q "
    "ref s samp script section select small source span strike strong style sub sup svg table tbody td textarea tfoot th "
    "thead title tr tt u ul var video wbr"
).replace(" ", "|")
_TAG_NAME = r"[a-z][\w:.-]{0,40}"
# Each alternative begins with a plain character, so the search skips text without them. Repetitions are bounded, so the time is
# linear in the length of the line.
_MARKUP = re.compile(
    r"<(?:"
    rf"/{_TAG_NAME}\s{{0,9}}>"
    rf"|{_TAG_NAME}\s{{0,9}}/>"
    rf"|{_TAG_NAME}\s{{1,9}}[\w:.-]{{1,40}}\s{{0,9}}=\s{{0,9}}[\"']"
    rf"|{_TAG_NAME}(?:\s{{1,9}}[\w:.-]{{1,40}}=[^\s\"'<>]{{1,200}}){{1,20}}\s{{0,9}}>"
    rf"|(?:{_HTML_ELEMENTS})>"
    r"|!--|!doctype\b|!\[cdata\[|\?xml\b|%[=@\s]"
    r")"
    r"|\[\[(?=\S)[^\[\]]{1,300}\]\]"
    r"|'''"
    r"|==(?<!===)={0,4}(?!=)[^=\n]{1,200}={2,6}\s{0,9}$"
    r"|\{\{[^{}]{1,300}\}\}"
    r"|\{%[^{}]{1,300}%\}"
    r"|\{\|\s{0,9}(?:class|style|border|align|width|cellpadding)\b",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});", re.IGNORECASE)


def has_markup(source: str, target: str) -> bool:
    """Return whether a side holds a tag, comment or entity of HTML or XML, or markup of a wiki or a template.

    Tags that both sides share count as well; a corpus with intended tags should skip this filter.
    """
    return _has_markup(source) or _has_markup(target)


def _has_markup(text: str) -> bool:
    if _MARKUP.search(text) is not None:
        return True
    return "&" in text and any(name[0] == "#" or f"{name};" in html5 for name in _ENTITY.findall(text))


_DIGIT = re.compile(r"\d")
_DIGITS = re.compile(r"[0-9]+")
_NON_ASCII_DIGIT = re.compile(r"(?![0-9])\d")
_NUMBER_SPACE = "[ \u00a0\u2009\u202f]"
# Groups of three digits after spaces, or any digits after a point, comma or apostrophe: 3 000,50 and 3,000.50 and 3'000.50.
_NUMBER = re.compile(
    rf"[0-9]{{1,3}}(?:{_NUMBER_SPACE}[0-9]{{3}}(?![0-9]))+(?:[.,\u066b][0-9]+)?|[0-9]+(?:[.,'\u2019\u066b\u066c][0-9]+)*"
)


def has_number_mismatch(source: str, target: str) -> bool:
    """Return whether the sides hold different numbers in digits of any script, regardless of order.

    3,000.50, 3.000,50, 3 000,50 and 3000.50 are equal, and so are 2:30 and 2.30. Different are 2 and "two", 2 and 二, 14:30 and
    2:30 pm, 05 and 5, 3.50 and 3.5, 3 million and 3,000,000. A corpus that spells numbers out loses its pairs.
    """
    if _DIGIT.search(source) is None and _DIGIT.search(target) is None:
        return False
    ascii_source, ascii_target = _to_ascii_digits(source), _to_ascii_digits(target)
    # Compared as strings of digits between any separators, and as numbers without digit grouping. One match is enough.
    return Counter(_DIGITS.findall(ascii_source)) != Counter(_DIGITS.findall(ascii_target)) and _count_numbers(
        ascii_source
    ) != _count_numbers(ascii_target)


def _to_ascii_digits(text: str) -> str:
    return text if text.isascii() else _NON_ASCII_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def _count_numbers(text: str) -> Counter[str]:
    return Counter("".join(_DIGITS.findall(number)) for number in _NUMBER.findall(text))


_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.(?=\w))[a-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+|[a-z0-9._%+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,9}",
    re.IGNORECASE | re.ASCII,
)


def has_address_mismatch(source: str, target: str) -> bool:
    """Return whether the sides hold different web and mail addresses, regardless of case, order and repetition.

    A web address begins with http:// or https://, which are equal, with ftp:// or with www. A localized address, such as
    https://de.example.org for https://en.example.org, is different.
    """
    return _find_addresses(source) != _find_addresses(target)


def _find_addresses(text: str) -> set[str]:
    if "@" not in text and "://" not in text and "www." not in text.lower():
        return set()
    return {_normalize_address(address) for address in _ADDRESS.findall(text)}


def _normalize_address(address: str) -> str:
    """Return an address without the sentence's punctuation and without a closing bracket that was opened before it."""
    trimmed = address.rstrip(".,;:!?'*_~")
    while trimmed and trimmed[-1] in ")]" and trimmed.count(trimmed[-1]) > trimmed.count("(" if trimmed[-1] == ")" else "["):
        trimmed = trimmed[:-1].rstrip(".,;:!?'*_~")
    return trimmed.rstrip("/").lower().removeprefix("http://").removeprefix("https://")
