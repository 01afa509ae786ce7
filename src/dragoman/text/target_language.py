"""Sentences of a source that are in the target language already, and that a translation would damage.

Letters decide where the languages have different scripts. Otherwise py3langid decides, restricted to the two languages. The
sentence must be far likelier in the target language. None of its words in small letters, or few in a long sentence, may be
likelier in the source language. Names and quotations in an English sentence are then no reason to keep it. A text that is too
short is translated.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from dragoman.languages import UNSPACED, get_language
from dragoman.text.guards import SCRIPTS, get_script
from dragoman.text.language_identifier import make_identifier

MIN_WORDS = 5
"""Fewest words of a sentence that py3langid decides."""
MIN_SMALL_WORDS = 3
"""Fewest of them in small letters."""
MIN_MARGIN = 20.0
"""Smallest difference of the log-probabilities of a sentence in the two languages, in nats."""
MIN_SMALL_MARGIN = 5.0
"""The same for the words in small letters together."""
MIN_WORD_MARGIN = -2.5
"""The same for each of them; words such as `in` and `war` are of both languages."""
MIN_SURE_MARGIN = 40.0
"""The margin of a sentence that may have a word in small letters below MIN_WORD_MARGIN, in MIN_WORDS_PER_ODD_WORD of them."""
MIN_SURE_SMALL_MARGIN = 30.0
"""The margin of the small words of such a sentence together."""
MIN_WORDS_PER_ODD_WORD = 6
MIN_ODD_WORD_MARGIN = -12.0
"""The margin of such a word."""
MIN_SMALL_WORDS_OF_PART = 2
"""Small words of a part between quotation marks, brackets, colons and dashes that must be likelier in the target language; each
part must if a small word is not."""
MIN_UNITS = 3
"""Fewest words, or characters of a script without spaces, that letters decide."""
MIN_UNIT_RATIO = 3
"""Fewest of them for each word in Latin letters, such as a name, beside them."""
MAX_CHARACTERS = 1000
"""Characters of a sentence that are read. The library's time grows with the square of a run of marks."""

_UNIT = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+")
_WORD = re.compile(r"[^\W\d_]+")
_PART = re.compile(r"""[^"“”„«»‹›‘’'`:;()\[\]{}<>*_=–—-]+""")


def is_in_target_language(text: str, source_language: str, target_language: str) -> bool:
    """Return whether a sentence is surely in the target language; false without py3langid, or for a language it does not know.

    text: the sentence without codes
    """
    source, target = get_language(source_language), get_language(target_language)
    text = text[:MAX_CHARACTERS]
    if not source or not target or source == target:
        return False
    source_scripts, target_scripts = SCRIPTS.get(source, frozenset()), SCRIPTS.get(target, frozenset())
    if source_scripts and target_scripts and not source_scripts & target_scripts:
        return _has_script(text, source_scripts, target_scripts)
    words = _WORD.findall(text)
    small_words = list(filter(_is_small, words))
    if len(words) < MIN_WORDS or len(small_words) < MIN_SMALL_WORDS or load_identifier(source, target) is None:
        return False
    margin = _compute_margin(text, source, target)
    small_margin = _compute_margin(f" {' '.join(small_words)} ", source, target)
    if margin < MIN_MARGIN or small_margin < MIN_SMALL_MARGIN:
        return False
    odd_margins = [value for word in small_words if (value := _compute_word_margin(word, source, target)) < MIN_WORD_MARGIN]
    if odd_margins and not (
        margin >= MIN_SURE_MARGIN
        and small_margin >= MIN_SURE_SMALL_MARGIN
        and min(odd_margins) >= MIN_ODD_WORD_MARGIN
        and len(odd_margins) * MIN_WORDS_PER_ODD_WORD <= len(small_words)
    ):
        return False
    fewest = 0 if odd_margins else MIN_SMALL_WORDS_OF_PART
    parts = [part for part in _PART.findall(text) if (words := _WORD.findall(part)) and sum(map(_is_small, words)) >= fewest]
    return all(_compute_margin(f" {part.strip()} ", source, target) > 0 for part in parts)


def _is_small(word: str) -> bool:
    return word == word.lower()


def _has_script(text: str, source_scripts: frozenset[str], target_scripts: frozenset[str]) -> bool:
    """Return whether the words of a text are in the target's scripts, but for a few in Latin letters."""
    scripts = [get_script(unit[0]) for unit in _UNIT.findall(text)]
    num_target = sum(script in target_scripts for script in scripts)
    num_other = len(scripts) - num_target
    is_pure = num_other == 0 or (source_scripts == {"LATIN"} and num_target >= MIN_UNIT_RATIO * num_other)
    return num_target >= MIN_UNITS and is_pure


def _compute_margin(text: str, source: str, target: str) -> float:
    """Return the log-probability of a text in the target language, less that in the source language, in nats."""
    log_probs = dict(load_identifier(source, target).rank(text))
    return float(log_probs[target] - log_probs[source])


@lru_cache(maxsize=1 << 14)
def _compute_word_margin(word: str, source: str, target: str) -> float:
    return _compute_margin(f" {word} ", source, target)


@lru_cache(maxsize=64)
def load_identifier(source: str, target: str) -> Any:
    """Return the language identifier for two languages, or None. The first call takes a second."""
    try:
        identifier = make_identifier(norm_probs=False)
    except ImportError:
        return None
    if not {source, target} <= set(identifier.labels):
        return None
    identifier.set_languages([source, target])
    return identifier
