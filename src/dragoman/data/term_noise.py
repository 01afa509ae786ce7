"""Terms of training pairs and their translations, for the noise type `terminology`.

A term is a phrase of one to three words that the word aligner links to a phrase of the target, or an entry of a file. Its
translation is the lemma of a single word, and the exact form of a phrase, because a glossary holds dictionary forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from dragoman.config import DataConfig
from dragoman.config.data_config import LanguagePair
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import MissingDependencyError, RecipeError
from dragoman.formats.glossary_file import read_glossary
from dragoman.languages import UNSPACED
from dragoman.text.glossary import Glossary, Lemmatize
from dragoman.text.term_annotation import annotate_terms, has_marks

MAX_TERMS = 3
MAX_WORDS = 3
MIN_LETTERS = 4
"""Letters of the first and last word of a term; most shorter words are articles, prepositions and the like."""
WRONG_SHARE = 0.2
"""Share of terms with a word of another sentence as translation, which the target does not use."""

Term = tuple[int, int, str]
"""Start and end of a term in the source, in characters, and its translation."""

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_PHRASE = re.compile(rf"{_WORD.pattern}(?: {_WORD.pattern})*")
_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")


def check_terminology(data: DataConfig, languages: LanguagePair, tokenizer: PairTokenizer) -> None:
    """Raise RecipeError or MissingDependencyError if the recipe asks for annotated terms, and something for them is missing."""
    if not data.noise.terminology:
        return
    if tokenizer.marked is None:
        raise RecipeError(
            "data.noise.terminology: the vocabulary has no reserved tokens for the marks of terms; drop it, or train a new "
            "tokenizer with tokenizer.reserved_tokens = 64 or more",
            code="tokenizer-mismatch",
        )
    if find_spec("simplemma") is None:  # with and without lemmas, a run would differ
        raise MissingDependencyError("simplemma", "terminology", "data.noise.terminology")
    read_term_file(data, languages)


def read_term_file(data: DataConfig, languages: LanguagePair) -> Glossary | None:
    """Return the terms of the recipe's file, or None if it names none.

    Raises DataError: the file cannot be read, is no glossary, or has no terms.
    """
    if data.term_file is None:
        return None
    return read_glossary(Path(data.root) / data.term_file, *languages)


def find_known_terms(source: str, target: str, glossary: Glossary) -> list[Term]:
    """Return the terms of a source whose translation the target has, in any form, with the translation of the glossary."""
    forms = {use.entry: use.form for use in glossary.check(source, target)}
    terms = ((match.start, match.end, forms.get(match.entry)) for match in glossary.find(source))
    return [(start, end, form) for start, end, form in terms if form is not None and not has_marks(form)]


def find_linked_terms(source: str, target: str, links: npt.NDArray[np.int32], lemmatize: Lemmatize | None) -> list[Term]:
    """Return the phrases whose words have links to the words of one phrase of the target, and to no others.

    links: source word and target word of each link (L, 2); words are separated by one space
    lemmatize: returns the dictionary form of a target word; None keeps the words
    """
    source_words, target_words = _find_words(source), _find_words(target)
    targets_of: dict[int, list[int]] = {}
    sources_of: dict[int, list[int]] = {}
    for source_word, target_word in links.tolist():
        targets_of.setdefault(source_word, []).append(target_word)
        sources_of.setdefault(target_word, []).append(source_word)
    terms: list[Term] = []
    for first in sorted(targets_of):
        linked: list[int] = []
        for last in range(first, min(first + MAX_WORDS, len(source_words))):
            linked += targets_of.get(last, [])
            target_first, target_last = min(linked), max(linked)
            if target_last - target_first >= MAX_WORDS:
                break  # and so is every longer phrase
            linked_back = [word for index in range(target_first, target_last + 1) for word in sources_of.get(index, [])]
            if last not in targets_of or not first <= min(linked_back) <= max(linked_back) <= last:
                continue
            span = _trim(source, source_words[first][0], source_words[last][1])
            target_span = _trim(target, target_words[target_first][0], target_words[target_last][1])
            if span is not None and target_span is not None:
                terms.append((*span, _to_dictionary_form(target[slice(*target_span)], lemmatize)))
    return terms


def _find_words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer("[^ ]+", text)]


def _trim(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the span of a phrase without its outer punctuation; None if an outer word is short, or punctuation is inside."""
    phrase = re.sub(r"^\W+|\W+$", "", text[start:end])
    words = phrase.split(" ")
    if min(sum(map(str.isalpha, word)) for word in (words[0], words[-1])) < MIN_LETTERS:
        return None
    if _UNSPACED_LETTER.search(phrase) or _PHRASE.fullmatch(phrase) is None:
        return None
    start = text.index(phrase, start)
    return start, start + len(phrase)


def _to_dictionary_form(phrase: str, lemmatize: Lemmatize | None) -> str:
    return phrase if " " in phrase or lemmatize is None else lemmatize(phrase)


def annotate_source(source: str, target: str, terms: Sequence[Term], get_other_target: Callable[[], str], rng: Random) -> str:
    """Return the source with one to three of its terms annotated; unchanged without terms, or if it holds marks.

    One in five gets a word of another target instead of its translation, so that the model learns to leave out what does not
    fit.

    get_other_target: returns the target of another pair; called only for a wrong translation
    """
    if not terms or has_marks(source):
        return source
    chosen: list[Term] = []
    for start, end, translation in rng.sample(terms, min(len(terms), 4 * MAX_TERMS)):
        if all(end <= other_start or other_end <= start for other_start, other_end, _ in chosen):
            chosen.append((start, end, translation))
    chosen = chosen[: rng.randint(1, MAX_TERMS)]
    for index, (start, end, _) in enumerate(chosen):
        if rng.random() < WRONG_SHARE:
            used = {word.lower() for word in _WORD.findall(target)}
            words = [word for word in _WORD.findall(get_other_target()) if word.lower() not in used]
            if unused := [word for word in words if len(word) >= MIN_LETTERS and not _UNSPACED_LETTER.search(word)]:
                chosen[index] = start, end, rng.choice(unused)
    return annotate_terms(source, chosen)
