"""Glossary: terms with the forms that their translations may have, their places in a text, and their use in a translation.

A term is a row of words. Words of scripts without spaces, such as kana and Han, are single characters, so a term is found
anywhere in such a text. Where simplemma is installed, a term is also found by the dictionary forms of its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dragoman.errors import DataError
from dragoman.languages import UNSPACED, get_language, is_same_language
from dragoman.text.placeholders import find_placeholders
from dragoman.text.unicode_forms import normalize_form

MAX_ENTRIES = 100_000
MAX_TERM_CHARACTERS = 1000
MAX_CACHED_CHARACTERS = 2000
Lemmatize = Callable[[str], str]
"""Function that returns the dictionary form of a word."""

_SPACED_WORD = re.compile(rf"[^\W{UNSPACED}]+")
_TOKEN = re.compile(rf"\s+|[{UNSPACED}]|{_SPACED_WORD.pattern}|[^\w\s]")
# Languages that simplemma has under another code.
_SIMPLEMMA_CODES = {"bs": "hbs", "hr": "hbs", "sr": "hbs"}


@dataclass(frozen=True)
class GlossaryEntry:
    """Term of a glossary.

    Attributes:
        source: the term in the source language
        targets: forms of its translation, the preferred one first; a translation has one of them
        case_sensitive: the term is found, and its form accepted, only in this spelling of capital and small letters
        do_not_translate: the term stays as the source writes it; such an entry has no targets
        origin: place in a file, for messages

    Raises:
        DataError: a term is empty or too long, or holds a tab, a line break or another control character.
    """

    source: str
    targets: tuple[str, ...] = ()
    case_sensitive: bool = False
    do_not_translate: bool = False
    origin: str = field(default="the glossary", compare=False)

    def __post_init__(self) -> None:
        for name, term in (("source", self.source), *(("target", target) for target in self.targets)):
            problem = _find_problem(term)
            if problem:
                raise DataError(f"{self.origin}: the {name} term {_quote(term)} {problem}; correct it", code="invalid-glossary")
        if self.do_not_translate and self.targets:
            problem = f"is not to be translated, but has the target term {_quote(self.targets[0])}; remove one of the two"
            raise DataError(f"{self.origin}: {_quote(self.source)} {problem}", code="invalid-glossary")
        if not self.do_not_translate and not self.targets:
            raise DataError(
                f"{self.origin}: {_quote(self.source)} has no target term; add one, or mark the term as not to be translated",
                code="invalid-glossary",
            )

    def list_phrases(self) -> tuple[str, ...]:
        """Return the phrases of which a search has to place one: the forms, also with a capital letter at the start."""
        phrases = dict.fromkeys(self.targets)
        if not self.case_sensitive:
            phrases |= dict.fromkeys(target[:1].upper() + target[1:] for target in self.targets)
        return tuple(phrases)


def _find_problem(term: str) -> str:
    """Return the reason why a text cannot be a term, or an empty text."""
    if not any(character.isalnum() for character in term):
        return "is empty or has neither letter nor digit"
    if len(term) > MAX_TERM_CHARACTERS:
        return f"has {len(term)} characters, more than {MAX_TERM_CHARACTERS}"
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in term):
        return "holds a tab, a line break or another control character"
    return ""


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


@dataclass(frozen=True)
class TermMatch:
    """Term in a source text. start, end: its characters"""

    start: int
    end: int
    entry: GlossaryEntry


@dataclass(frozen=True)
class TermUse:
    """Term of a source text, and its use in a translation.

    source: the term as the text writes it
    form: the form that the translation has, or None if it has none of the entry's
    """

    entry: GlossaryEntry
    source: str
    form: str | None


@dataclass(frozen=True)
class _TermToken:
    """Word, mark or white space.

    text: in NFC; white space is one space
    key, lemma: the word and its dictionary form, without case
    """

    text: str
    key: str
    lemma: str
    start: int
    end: int


@dataclass(frozen=True)
class _Term:
    """Entry with the words of its term, as the term writes them and without case."""

    entry: GlossaryEntry
    texts: tuple[str, ...]
    keys: tuple[str, ...]

    def compare_spelling(self, tokens: Sequence[_TermToken]) -> int | None:
        """Return 0 for the spelling of the term, 1 for another case, 2 for other forms; None for what the entry excludes."""
        if _get_texts(tokens) == self.texts:
            return 0
        if self.entry.case_sensitive:
            return None
        if _get_keys(tokens) == self.keys:
            return 1
        return None if self.entry.do_not_translate else 2


_Spelling = Callable[[Sequence[_TermToken]], tuple[str, ...]]


@dataclass
class _TermNode:
    """Node of the trie of terms. terms: those that end here"""

    children: dict[str, _TermNode] = field(default_factory=dict)
    terms: list[_Term] = field(default_factory=list)


class _Candidate(NamedTuple):
    """Place of a term in a text. Longer ones sort first, then those with more exact spelling, then earlier ones."""

    negative_length: int
    rank: int
    first: int
    end: int
    entry: GlossaryEntry


class Glossary:
    """Terms of one pair of languages.

    entries: terms in the order of the file, each once

    Raises DataError for two entries that contradict each other, and for more than `MAX_ENTRIES`.
    """

    def __init__(
        self,
        entries: Iterable[GlossaryEntry],
        source_language: str = "",
        target_language: str = "",
        *,
        lemmatize_source: Lemmatize | None = None,
        lemmatize_target: Lemmatize | None = None,
    ) -> None:
        """Index the entries.

        source_language, target_language: codes of the pair; an empty code fits any language
        lemmatize_source, lemmatize_target: by default those of simplemma, if it is installed and has the language
        """
        self.source_language, self.target_language = source_language, target_language
        self.entries = _remove_duplicates(entries)
        self._lemmatize_source = lemmatize_source or get_lemmatizer(source_language)
        self._lemmatize_target = lemmatize_target or get_lemmatizer(target_language)
        self._root = _TermNode()
        for entry in self.entries:
            self._add(entry)

    def _add(self, entry: GlossaryEntry) -> None:
        tokens = _split(entry.source, self._lemmatize_source)
        term = _Term(entry, _get_texts(tokens), _get_keys(tokens))
        for keys in dict.fromkeys((term.keys, _get_lemmas(tokens))):
            node = self._root
            for key in keys:
                node = node.children.setdefault(key, _TermNode())
            node.terms.append(term)

    def check_pair(self, source_language: str, target_language: str) -> None:
        """Raise DataError if the glossary is of another pair of languages; an unknown language fits any."""
        pairs = ((self.source_language, source_language), (self.target_language, target_language))
        if any(own and language and not is_same_language(own, language) for own, language in pairs):
            raise DataError(
                f"the glossary is from {self.source_language!r} to {self.target_language!r}, and the translation from "
                f"{source_language!r} to {target_language!r}; choose another glossary",
                code="unsupported-language",
            )

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text in order. Of terms that overlap, the longest counts; placeholders hold no terms."""
        if not self.entries:
            return []
        tokens = _split(text, self._lemmatize_source)
        is_taken = bytearray(len(text))
        for start, end in find_placeholders(text):
            is_taken[start:end] = b"\1" * (end - start)
        candidates = [term for first in range(len(tokens)) for term in self._find_longest(tokens, first, len(text))]
        heapify(candidates)
        matches: list[TermMatch] = []
        while candidates:
            candidate = heappop(candidates)
            start, end = tokens[candidate.first].start, candidate.end
            limit = is_taken.find(1, start, end)
            if limit < 0:
                is_taken[start:end] = b"\1" * (end - start)
                matches.append(TermMatch(start, end, candidate.entry))
            elif limit > start:
                for shorter in self._find_longest(tokens, candidate.first, limit):
                    heappush(candidates, shorter)
        return sorted(matches, key=lambda match: match.start)

    def _find_longest(self, tokens: Sequence[_TermToken], first: int, limit: int) -> list[_Candidate]:
        """Return the longest term that begins with a token and ends at most at `limit`, or none."""
        nodes = [self._root]
        ends: list[list[_TermNode]] = []
        for number in range(first, len(tokens)):
            token = tokens[number]
            keys = (token.key,) if token.key == token.lemma else (token.key, token.lemma)
            nodes = [node.children[key] for node in nodes for key in keys if key in node.children]
            if not nodes or token.end > limit:
                break
            ends.append(nodes)
        for length in range(len(ends), 0, -1):
            terms = [term for node in ends[length - 1] for term in node.terms]
            words = tokens[first : first + length] if terms else ()
            ranks = [(rank, number) for number, term in enumerate(terms) if (rank := term.compare_spelling(words)) is not None]
            if ranks:
                (rank, number), end = min(ranks), words[-1].end
                return [_Candidate(tokens[first].start - end, rank, first, end, terms[number].entry)]
        return []

    def check(self, source: str, translation: str) -> tuple[TermUse, ...]:
        """Return the use of each term of a source in its translation, each entry once."""
        matches = {match.entry: match for match in reversed(self.find(source))}
        if not matches:
            return ()
        tokens = _split(translation, self._lemmatize_target)
        spellings: tuple[_Spelling, ...] = (_get_texts, _get_keys, _get_lemmas)
        words = {spelling: _join(spelling(tokens)) for spelling in spellings}
        return tuple(
            TermUse(entry, source[match.start : match.end], self._find_form(entry, source[match.start : match.end], words))
            for entry, match in sorted(matches.items(), key=lambda item: item[1].start)
        )

    def _find_form(self, entry: GlossaryEntry, term: str, words: Mapping[_Spelling, str]) -> str | None:
        """Return the first form that a translation has, or None. A kept term has its own form.

        words: the joined words of the translation, by the function that spells them
        """
        forms = [(form, _split(form, self._lemmatize_target)) for form in entry.targets or (term,)]
        is_exact = entry.case_sensitive or entry.do_not_translate
        for spelling in (_get_texts,) if is_exact else (_get_keys, _get_lemmas):
            for form, tokens in forms:
                if _join(spelling(tokens)) in words[spelling]:
                    return form
        return None


def get_lemmatizer(language: str) -> Lemmatize | None:
    """Return simplemma's function for a language, or None if simplemma is not installed or lacks the language."""
    code = get_language(language)
    code = _SIMPLEMMA_CODES.get(code, code)
    if not code:
        return None
    try:
        import simplemma

        simplemma.lemmatize("a", lang=code)
    except (ImportError, ValueError):
        return None
    return lambda word: str(simplemma.lemmatize(word, lang=code))


def _remove_duplicates(entries: Iterable[GlossaryEntry]) -> tuple[GlossaryEntry, ...]:
    """Return the entries, equal ones once. Raises DataError for two entries of one term that differ."""
    by_term: dict[tuple[str, bool], GlossaryEntry] = {}
    for entry in entries:
        tokens = _split(entry.source)
        term = "".join(_get_texts(tokens) if entry.case_sensitive else _get_keys(tokens))
        first = by_term.setdefault((term, entry.case_sensitive), entry)
        if (first.targets, first.do_not_translate) != (entry.targets, entry.do_not_translate):
            raise DataError(
                f"{entry.origin}: {_quote(entry.source)} {_describe_targets(entry)}, but {first.origin} "
                f"{_describe_targets(first)}; write the forms of a term in one entry, with | between them",
                code="invalid-glossary",
            )
        if len(by_term) > MAX_ENTRIES:
            raise DataError(
                f"{entry.origin}: the glossary has more than {MAX_ENTRIES} terms; divide it", code="invalid-glossary"
            )
    return tuple(by_term.values())


def _describe_targets(entry: GlossaryEntry) -> str:
    return "is not translated" if entry.do_not_translate else f"has the target {_quote('|'.join(entry.targets))}"


def _split(text: str, lemmatize: Lemmatize | None = None) -> tuple[_TermToken, ...]:
    """Return the words, marks and white space of a text. A combining mark belongs to the word before it."""
    return (_split_anew if len(text) > MAX_CACHED_CHARACTERS else _split_once)(text, lemmatize)


def _split_anew(text: str, lemmatize: Lemmatize | None) -> tuple[_TermToken, ...]:
    spans: list[tuple[int, int]] = []
    is_open = False
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        is_mark = unicodedata.category(text[start]).startswith("M")
        if spans and (is_mark or (is_open and _SPACED_WORD.match(match[0]))):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
        is_open = is_mark
    tokens: list[_TermToken] = []
    for start, end in spans:
        surface = text[start:end]
        word = " " if surface.isspace() else normalize_form("NFC", surface)
        key = word.casefold()
        lemma = lemmatize(word).casefold() if lemmatize and word.isalpha() else key
        tokens.append(_TermToken(word, key, lemma, start, end))
    return tuple(tokens)


# The terms of a sentence are looked for as it is read and at each check of its translation.
_split_once = lru_cache(maxsize=256)(_split_anew)


def _get_texts(tokens: Sequence[_TermToken]) -> tuple[str, ...]:
    return tuple(token.text for token in tokens)


def _get_keys(tokens: Sequence[_TermToken]) -> tuple[str, ...]:
    return tuple(token.key for token in tokens)


def _get_lemmas(tokens: Sequence[_TermToken]) -> tuple[str, ...]:
    return tuple(token.lemma for token in tokens)


def _join(words: Iterable[str]) -> str:
    """Return words with a mark around each, so that a phrase is found as a part of it in time in proportion to both."""
    return "\0" + "".join(f"{word}\0" for word in words)
