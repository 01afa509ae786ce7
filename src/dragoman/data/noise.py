# ruff: noqa: RUF001  (the punctuation of many scripts looks like that of English)
"""Noise on training pairs at the time of batching. The choice depends on the seed, the epoch and the index of the pair only.

    terminology → concat_next → placeholders → drop_final_punctuation → title_case → upper_case → typos → copy_source

Each noise type is drawn independently, so a pair may get several, in this order. Concatenated pairs are changed as one pair,
and a copied source includes its changes. Case changes and typos leave placeholders, tags, addresses and the translations of
terms unchanged. Only terms depend on the language: letters become capitals by Unicode's rules (ß becomes SS, and i becomes I in
Turkish as well).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt

from dragoman.config import NoiseConfig
from dragoman.data.counter_rng import UInt64Array, hash64, hash_to_uniform
from dragoman.data.term_noise import Term, annotate_source
from dragoman.text.term_annotation import PLACEHOLDER_MARKS, TERM_END, TERM_TRANSLATION, remove_annotations

NOISE_TYPES = (
    "terminology", "concat_next", "placeholders", "drop_final_punctuation", "title_case", "upper_case", "typos", "copy_source",
)  # fmt: skip
# One stream of random numbers for each noise type, distinct from all other streams of the same seed. Terms have the last one.
_STREAM_IDS = 2000 + np.roll(np.arange(len(NOISE_TYPES)), 1)

# Han, Kana and their punctuation: written without spaces, and not typed letter by letter.
_HAN = r"\u2e80-\u303f\u3040-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_ACCENT = r"\u0300-\u036f"  # combining accents, which follow their letter
_LETTER = rf"[^\W\d_{_HAN}]"
_LETTER_OR_DIGIT = rf"[^\W_{_HAN}]"

_PLACEHOLDER = (
    r"\$?\{\{?[^\s{}]{0,40}\}?\}|%\(\w{1,40}\)[a-z]|(?<!\d)%[-+.\d$]{0,6}[sdifu@](?![A-Za-z])|</?[A-Za-z][^<>]{0,200}>"
    r"|__\w{1,40}?__|\[\[\w{1,40}\]\]|&#?\w{1,20};"
)
_ADDRESS = (
    r"(?:https?://|www\.)[^\s<>\"，。）]*[^\s<>\"，。）.,;:!?)»”’]"
    r"|(?<![A-Za-z0-9._+-])[A-Za-z0-9._+-]++@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)++"
)
_TERM_TRANSLATION = rf"{TERM_TRANSLATION}[^⟦⟧]{{0,200}}{TERM_END}"
_MARK = rf"{_TERM_TRANSLATION}|⟦(?:t|[0-9]{{1,2}})⟧"
_PROTECTED = re.compile(f"{_MARK}|{_PLACEHOLDER}|{_ADDRESS}")
_TOKEN = re.compile(
    rf"(?P<mark>{_MARK})|(?P<placeholder>{_PLACEHOLDER})|(?P<address>{_ADDRESS})"
    rf"|(?P<number>\d++(?:[.,:/-]\d++)*+(?!{_LETTER_OR_DIGIT}))"
    rf"|(?P<word>{_LETTER_OR_DIGIT}++(?:-{_LETTER_OR_DIGIT}++)*+(?![{_ACCENT}]))"
)

_HAN_LETTER = re.compile(rf"(?=[^\W\d_])[{_HAN}]")
_ANY_LETTER = re.compile(r"[^\W\d_]")
_LONG_WORD = re.compile(rf"(?<![\w{_ACCENT}]){_LETTER}{{4,}}+(?![\d_{_ACCENT}])")
_INITIAL = re.compile(rf"(?<![\w{_ACCENT}])(?<!\w['’]){_LETTER}")  # a word continues after an apostrophe: don't, l'été

_SPACES = " \t\u00a0\u2009\u202f\u3000"
_FINAL_PUNCTUATION = ".!?…‥‽。！？．｡؟۔।॥։።"
_PAUSE_PUNCTUATION = ",;:、，；：،؛"
_CLOSING_PUNCTUATION = "\"'”’“‘»«›‹)]）］」』】》〉〕"
_FINAL_MARKS = re.compile(rf"(?<![{_SPACES}])[{_SPACES}]*+[{re.escape(_FINAL_PUNCTUATION)}]++")

LETTERS_PER_TYPO = 16


def _build_neighbor_keys(rows: Sequence[str]) -> dict[str, str]:
    """Return the keys that touch each key. Each row is shifted by half a key to the right of the row above."""
    neighbors = {
        key: row[max(0, column - 1) : column] + row[column + 1 : column + 2] for row in rows for column, key in enumerate(row)
    }
    for upper, lower in pairwise(rows):
        for column, key in enumerate(lower):
            for upper_key in upper[column : column + 2]:
                neighbors[key] += upper_key
                neighbors[upper_key] += key
    return neighbors


# Other layouts of these alphabets move few keys, so most of these typos occur there as well.
_NEIGHBOR_KEYS = _build_neighbor_keys(("qwertyuiop", "asdfghjkl", "zxcvbnm")) | _build_neighbor_keys(
    ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю")
)

# Placeholders of software and translation tools: {i} counts from 0 and {n} from 1 within a pair, {name} is random.
_PLACEHOLDER_TEMPLATES = (
    "{{{i}}}", "{{{i}}}", "{{{name}}}", "{{{{{name}}}}}", "${{{name}}}", "%({name})s", "%{n}$s", "%s", "%d",
    '<x id="{n}"/>', '<ph id="{i}"/>', "__PH{n}__", "[[{n}]]",
)  # fmt: skip
_PLACEHOLDER_NAMES = (
    "name",
    "count",
    "user",
    "file",
    "value",
    "title",
    "date",
    "path",
    "number",
    "version",
    "total",
    "item",
    "url",
)
MAX_PLACEHOLDERS = 3
MAX_PLACEHOLDER_MARKS = 4
MARKS_SHARE = 0.5
"""Share of placeholders that are reserved tokens; the others are text, which translation reads without a mask as well."""
_MAX_TRIES = 20

TextPair = tuple[str, str]


class PairNoise:
    """Noise types of a recipe with their probabilities.

    has_marks: whether the vocabulary has reserved tokens for the marks of placeholders
    """

    def __init__(self, config: NoiseConfig, *, seed: int, has_marks: bool = False) -> None:
        self.seed = seed
        self.has_marks = has_marks
        self.probabilities = np.array([getattr(config, name) for name in NOISE_TYPES])

    def __bool__(self) -> bool:
        """Return whether any noise type has a probability above 0."""
        return bool(self.probabilities.any())

    def select_noisy(self, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.asarray(self._select(self._hash_indices(epoch, indices)).any(axis=0))

    def apply(
        self,
        epoch: int,
        index: int,
        source: str,
        target: str,
        get_next_pair: Callable[[], TextPair],
        find_terms: Callable[[], Sequence[Term]] = tuple,
    ) -> TextPair:
        """Return a pair with its noise of an epoch. The same numbers give the same noise in any process and order.

        A side with text keeps some text, and noise adds no line break.

        index: the position of the pair in the epoch
        get_next_pair: returns the pair to concatenate, whose words are also wrong translations of terms; called only for
            these
        find_terms: returns the terms of the pair; called only for `terminology`
        """
        hashes = self._hash_indices(epoch, np.array([index]))
        for noise_index in np.flatnonzero(self._select(hashes)[:, 0]).tolist():
            rng = Random(int(hashes[noise_index, 0]))
            match NOISE_TYPES[noise_index]:
                case "terminology":
                    source = annotate_source(source, target, find_terms(), lambda: get_next_pair()[1], rng)
                case "concat_next":
                    source, target = concat_pairs((source, target), get_next_pair())
                case "placeholders":
                    use_marks = self.has_marks and rng.random() < MARKS_SHARE
                    source, target = insert_placeholders(source, target, rng, use_marks=use_marks)
                case "drop_final_punctuation":
                    source, target = drop_final_punctuation(source, target)
                case "title_case":
                    source, target = to_title_case(source), to_title_case(target)
                case "upper_case":
                    source, target = to_upper_case(source), to_upper_case(target)
                case "typos":
                    source = add_typos(source, rng)
                case "copy_source":
                    source = target = remove_annotations(source)
        return source, target

    def _hash_indices(self, epoch: int, indices: npt.NDArray[np.int64]) -> UInt64Array:
        """Return 64 bits for each noise type and each pair."""
        return hash64(self.seed, epoch, _STREAM_IDS[:, None], indices[None, :])

    def _select(self, hashes: UInt64Array) -> npt.NDArray[np.bool_]:
        return np.asarray(hash_to_uniform(hashes) < self.probabilities[:, None])


def concat_pairs(pair: TextPair, next_pair: TextPair) -> TextPair:
    """Return two pairs as one pair."""
    source, target = (
        first + _get_word_separator(first + second) + second for first, second in zip(pair, next_pair, strict=True)
    )
    return source, target


def _get_word_separator(text: str) -> str:
    """Return the separator of words: a space, or nothing if most letters are Han or Kana."""
    return "" if 2 * len(_HAN_LETTER.findall(text)) > len(_ANY_LETTER.findall(text)) else " "


def to_upper_case(text: str) -> str:
    """Return the text in capitals, with unchanged placeholders, tags and addresses."""
    return _map_unprotected(text, str.upper)


def to_title_case(text: str) -> str:
    """Return the text with a capital at the start of each word; other letters stay unchanged."""
    return _map_unprotected(text, lambda part: _INITIAL.sub(lambda letter: letter[0].title(), part))


def _map_unprotected(text: str, transform: Callable[[str], str]) -> str:
    """Return the text with `transform` applied between placeholders, tags and addresses."""
    parts: list[str] = []
    end = 0
    for protected in _PROTECTED.finditer(text):
        parts += transform(text[end : protected.start()]), protected[0]
        end = protected.end()
    return "".join([*parts, transform(text[end:])])


def drop_final_punctuation(source: str, target: str) -> TextPair:
    """Return both sides without final punctuation, even if only one side has any; closing quotes and brackets stay.

    A pair with a side of punctuation only stays unchanged.
    """
    sides = _strip_final_punctuation(source), _strip_final_punctuation(target)
    return sides if all(side.strip() for side in sides) else (source, target)


def _strip_final_punctuation(text: str) -> str:
    stripped = text.rstrip(_SPACES + _FINAL_PUNCTUATION + _PAUSE_PUNCTUATION)
    body = _strip_closing(text)
    return body + _FINAL_MARKS.sub("", stripped[len(body) :])


def _strip_closing(text: str) -> str:
    """Return a text without final punctuation and closing quotes or brackets; a comma before a bracket is part of a smiley."""
    return text.rstrip(_SPACES + _FINAL_PUNCTUATION + _PAUSE_PUNCTUATION).rstrip(
        _SPACES + _FINAL_PUNCTUATION + _CLOSING_PUNCTUATION
    )


def add_typos(text: str, rng: Random) -> str:
    """Return a text with typos in words of at least four letters: one for every sixteen letters of these words, at least one.

    A typo drops a letter, doubles it, swaps it with the next, or replaces it by a neighbor on an English or Russian keyboard.
    Han and Kana, digits, placeholders, tags and addresses stay unchanged.
    """
    protected_spans = [match.span() for match in _PROTECTED.finditer(text)]
    words = [
        word.span()
        for word in _LONG_WORD.finditer(text)
        if not any(start < word.end() and word.start() < end for start, end in protected_spans)
    ]
    letters = sum(end - start for start, end in words)
    count = min(len(words), max(1, round(letters / LETTERS_PER_TYPO)))
    for start, end in sorted(rng.sample(words, count), reverse=True):
        text = text[:start] + _mistype(text[start:end], rng) + text[end:]
    return text


def _mistype(word: str, rng: Random) -> str:
    position = rng.randrange(len(word))
    before, letter, after = word[:position], word[position], word[position + 1 :]
    candidates = [before + after, before + letter + letter + after]
    if after and after[0] != letter:
        candidates.append(before + after[0] + letter + after[1:])
    if neighbors := _NEIGHBOR_KEYS.get(letter.lower()):
        key = rng.choice(neighbors)
        candidates.append(before + (key.upper() if letter.isupper() else key) + after)
    return rng.choice(candidates)


def insert_placeholders(source: str, target: str, rng: Random, *, use_marks: bool = False) -> TextPair:
    """Replace up to three numbers, addresses or capitalized words that occur equally often on both sides by placeholders.

    A pair without such words gets one placeholder, at the start of both sides or at their ends before the final punctuation.
    A model must copy placeholders at any position, and sentences of plain corpora share few words.

    use_marks: use marks of reserved tokens, with random numbers. They replace up to four words or placeholders of the text,
        because translation replaces placeholders as well.
    """
    counts = [_count_replaceable_tokens(side, with_placeholders=use_marks) for side in (source, target)]
    shared_tokens = sorted(counts[0].items() & counts[1].items())
    limit = rng.randint(1, MAX_PLACEHOLDER_MARKS if use_marks else MAX_PLACEHOLDERS)
    draw = _draw_marks if use_marks else _draw_placeholders
    placeholders = draw(max(1, min(len(shared_tokens), limit)), source + target, rng)
    if not placeholders:
        return source, target
    if shared_tokens:
        replacements = dict(
            zip((token for token, _ in rng.sample(shared_tokens, len(placeholders))), placeholders, strict=True)
        )
        return _replace_tokens(source, replacements), _replace_tokens(target, replacements)
    insert = _prepend if rng.random() < 0.5 else _insert_before_end
    return insert(source, placeholders[0]), insert(target, placeholders[0])


def _count_replaceable_tokens(text: str, *, with_placeholders: bool) -> dict[str, int]:
    """Return the counts of words that a placeholder may replace. Words of two letters are often capitalized by chance."""
    counts: dict[str, int] = {}
    for token in _TOKEN.finditer(text):
        name = token[0]
        is_name = token.lastgroup == "word" and len(name) > 2 and name[0].isupper()
        is_placeholder = with_placeholders and token.lastgroup == "placeholder"
        if token.lastgroup in ("number", "address") or is_name or is_placeholder:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _replace_tokens(text: str, replacements: dict[str, str]) -> str:
    return _TOKEN.sub(lambda token: token[0] if token.lastgroup == "mark" else replacements.get(token[0], token[0]), text)


def _draw_marks(count: int, text: str, rng: Random) -> list[str]:
    """Return `count` different marks of placeholders; none if the text holds one."""
    return [] if any(mark in text for mark in PLACEHOLDER_MARKS) else rng.sample(PLACEHOLDER_MARKS, count)


def _draw_placeholders(count: int, text: str, rng: Random) -> list[str]:
    """Return `count` different placeholders of one kind, or one if the kind has only one; none occurs in the text."""
    for _ in range(_MAX_TRIES):
        template = rng.choice(_PLACEHOLDER_TEMPLATES)
        first_index, names = int(rng.expovariate(1.0)), rng.sample(_PLACEHOLDER_NAMES, count)
        placeholders = dict.fromkeys(
            template.format(i=first_index + offset, n=first_index + offset + 1, name=names[offset]) for offset in range(count)
        )
        if not any(placeholder in text for placeholder in placeholders):
            return list(placeholders)
    return []


def _prepend(text: str, placeholder: str) -> str:
    return placeholder + _get_word_separator(text) + text


def _insert_before_end(text: str, placeholder: str) -> str:
    body = _strip_closing(text)
    return body + _get_word_separator(text) + placeholder + text[len(body) :]
