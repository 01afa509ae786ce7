"""Sentences of a source that a translation would damage, because they are in the target language already.

Letters decide where the languages have different scripts. Otherwise py3langid decides, restricted to the two languages. Names
and quotations say little about the language of a sentence. So it also reads the sentence without its quotations and brackets,
and the words in small letters outside them. It is unsure about a sentence with a clause in the source language.
A text about which py3langid is unsure has the language of the texts beside it; without them, it is translated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from dragoman.errors import WriteError
from dragoman.languages import UNSPACED, get_language
from dragoman.text.guards import SCRIPTS, get_script
from dragoman.text.language_identifier import make_identifier

logger = logging.getLogger("dragoman.text")

MIN_MARGIN = 10.0
"""Smallest difference of the log-probabilities of a sentence in the two languages, in nats, that decides without neighbors."""
MIN_UNSURE_MARGIN = -3.0
"""Margin up to which a sentence is in the source language, whatever its neighbors are, as "File" is, but not "Name"."""
UNSURE_MARGIN = 1.0
"""Margin of a sentence in the target language with a clause in the source's, in nats."""
MIN_CLAUSE_MARGIN = -2.5
"""The same for the words in small letters of a clause."""
NUM_NEIGHBORS = 10
"""Texts before and behind a text that decide about it."""
MIN_NEIGHBOR_RATIO = 9
"""Fewest neighbors in the target language for each that is in the source language."""
MIN_UNITS = 3
"""Fewest words, or characters of a script without spaces, that letters decide."""
MIN_UNIT_RATIO = 3
"""Fewest of them for each word in Latin letters, such as a name, beside them."""
MAX_CHARACTERS = 1000
"""Characters of a sentence that are read. The library's time grows with the square of a run of marks."""

_UNIT = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+")
_WORD = re.compile(r"[^\W\d_]+")
_CLAUSE = re.compile(r"[^:;–—]+")
_QUOTATION = re.compile(
    r"""\"[^"]*"|“[^”]*”|„[^“”"]*[“”"]|«[^»]*»|»[^«]*«|‘[^’]*’(?!\w)|‚[^‘’]*[‘’](?!\w)|(?<!\w)'[^']*'(?!\w)"""
    r"""|\([^()]*\)|\[[^][]*\]"""
)


def find_target_language(texts: Sequence[str], source_language: str, target_language: str) -> list[bool]:
    """Return for each text whether it is in the target language; false without py3langid, or for a language it does not know.

    texts: sentences without codes, in the order of their document; up to NUM_NEIGHBORS on each side decide about an unsure one
    """
    source, target = get_language(source_language), get_language(target_language)
    texts = [text[:MAX_CHARACTERS] for text in texts]
    if not source or not target or source == target:
        return [False] * len(texts)
    source_scripts, target_scripts = SCRIPTS.get(source, frozenset()), SCRIPTS.get(target, frozenset())
    if source_scripts and target_scripts and not source_scripts & target_scripts:
        return [_has_script(text, source_scripts, target_scripts) for text in texts]
    if load_identifier(source, target) is None:
        return [False] * len(texts)
    margins = [_judge(text, source, target) for text in texts]
    return [
        margin >= MIN_MARGIN or (margin > MIN_UNSURE_MARGIN and _has_target_neighbors(margins, index))
        for index, margin in enumerate(margins)
    ]


def _has_target_neighbors(margins: Sequence[float], index: int) -> bool:
    neighbors = margins[max(index - NUM_NEIGHBORS, 0) : index + NUM_NEIGHBORS + 1]
    num_target = sum(margin >= MIN_MARGIN for margin in neighbors)
    num_source = sum(margin <= -MIN_MARGIN for margin in neighbors)
    return num_target > 0 and num_target >= MIN_NEIGHBOR_RATIO * num_source


def _judge(text: str, source: str, target: str) -> float:
    """Return the largest margin of the readings of a text; if a clause is of the source, one at which neighbors decide."""
    outside = _QUOTATION.sub(" ", text)
    small_words = _find_small_words(outside)
    readings = [_read(text, source, target)]
    if len(small_words) > 1:
        readings += [_read(outside, source, target), _compute_margin(" ".join(small_words), source, target)]
    margin = max(readings)
    for clause in _CLAUSE.findall(outside):
        words = _find_small_words(clause)
        if words and len(_WORD.findall(clause)) > 1 and _compute_margin(" ".join(words), source, target) < MIN_CLAUSE_MARGIN:
            return min(margin, UNSURE_MARGIN)
    return margin


def _read(text: str, source: str, target: str) -> float:
    """Return the mean of the margins of a text and of its words in small letters, so that capitals say less."""
    words = _WORD.findall(text)
    if not words:
        return 0.0
    return (_compute_margin(text.strip(), source, target) + _compute_margin(" ".join(words).lower(), source, target)) / 2


def _find_small_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if word == word.lower()]


def _has_script(text: str, source_scripts: frozenset[str], target_scripts: frozenset[str]) -> bool:
    """Return whether the words of a text are in the target's scripts, but for a few in Latin letters."""
    scripts = [get_script(unit[0]) for unit in _UNIT.findall(text)]
    num_target = sum(script in target_scripts for script in scripts)
    num_other = len(scripts) - num_target
    is_pure = num_other == 0 or (source_scripts == {"LATIN"} and num_target >= MIN_UNIT_RATIO * num_other)
    return num_target >= MIN_UNITS and is_pure


def _compute_margin(text: str, source: str, target: str) -> float:
    """Return the log-probability of words in the target language, less that in the source language, in nats."""
    log_probs = dict(load_identifier(source, target).rank(f" {text} "))
    return float(log_probs[target] - log_probs[source])


@lru_cache(maxsize=64)
def load_identifier(source: str, target: str) -> Any:
    """Return the language identifier for two languages, or None. The first call takes a second."""
    try:
        identifier = make_identifier((source, target), norm_probs=False)
    except ImportError:
        return None
    except WriteError as error:
        logger.warning("sentences in the target language are translated, too, until a new start: %s", error)
        return None
    return identifier if {source, target} <= set(identifier.labels) else None
