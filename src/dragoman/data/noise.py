# ruff: noqa: RUF001  (the punctuation of many scripts looks like that of English)
"""Changes made to training pairs as they are served: which pairs, and how, is a function of (seed, epoch, index) alone.

    merged → placeholders → drop_final_punctuation → title_case → upper_case → typos → copy_source

Each is drawn for itself, so a pair may get several, in this order: what is merged is changed as one, and what is copied is what
the encoder reads. Case and typing mistakes leave placeholders, tags and addresses as they are. Nothing here knows languages:
letters become capitals as Unicode has it (ß becomes SS, and i is I in Turkish as well).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt

from dragoman.config import NoiseConfig
from dragoman.data.counter_rng import Words, mixed, uniform

ORDER = ("concat_next", "placeholders", "drop_final_punctuation", "title_case", "upper_case", "typos", "copy_source")
# Sets these draws apart from all others that are made with the same seed; one number a modifier, in their order.
_PURPOSES = 2000 + np.arange(len(ORDER))

# Han, Kana and what goes with them: written without spaces, and not typed letter by letter.
_HAN = r"\u2e80-\u303f\u3040-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_ACCENT = r"\u0300-\u036f"  # those that stand for themselves, behind their letter
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
_KEPT = re.compile(f"{_PLACEHOLDER}|{_ADDRESS}")
_TOKEN = re.compile(
    rf"(?P<placeholder>{_PLACEHOLDER})|(?P<address>{_ADDRESS})"
    rf"|(?P<number>\d++(?:[.,:/-]\d++)*+(?!{_LETTER_OR_DIGIT}))"
    rf"|(?P<word>{_LETTER_OR_DIGIT}++(?:-{_LETTER_OR_DIGIT}++)*+(?![{_ACCENT}]))"
)

_HAN_LETTER = re.compile(rf"(?=[^\W\d_])[{_HAN}]")
_ANY_LETTER = re.compile(r"[^\W\d_]")
_LONG_WORD = re.compile(rf"(?<![\w{_ACCENT}]){_LETTER}{{4,}}+(?![\d_{_ACCENT}])")
_INITIAL = re.compile(rf"(?<![\w{_ACCENT}])(?<!\w['’]){_LETTER}")  # a word goes on after an apostrophe: don't, l'été

_SPACES = " \t\u00a0\u2009\u202f\u3000"
_FINAL = ".!?…‥‽。！？．｡؟۔।॥։።"
_PAUSE = ",;:、，；：،؛"
_CLOSING = "\"'”’“‘»«›‹)]）］」』】》〉〕"
_FINAL_MARKS = re.compile(rf"(?<![{_SPACES}])[{_SPACES}]*+[{re.escape(_FINAL)}]++")

LETTERS_PER_TYPO = 16


def _beside(rows: Sequence[str]) -> dict[str, str]:
    """The keys that touch each key, of rows that stand half a key further to the right one below the other."""
    beside = {key: row[max(0, place - 1) : place] + row[place + 1 : place + 2] for row in rows for place, key in enumerate(row)}
    for upper, lower in pairwise(rows):
        for place, key in enumerate(lower):
            for above in upper[place : place + 2]:
                beside[key] += above
                beside[above] += key
    return beside


# Languages that move some letters about make most of these mistakes as well.
_BESIDE = _beside(("qwertyuiop", "asdfghjkl", "zxcvbnm")) | _beside(("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"))

# As software and translation tools write them: {i} counts on from 0 and {n} from 1 within a pair, {name} is drawn.
_FAMILIES = (
    "{{{i}}}", "{{{i}}}", "{{{name}}}", "{{{{{name}}}}}", "${{{name}}}", "%({name})s", "%{n}$s", "%s", "%d",
    '<x id="{n}"/>', '<ph id="{i}"/>', "__PH{n}__", "[[{n}]]",
)  # fmt: skip
_NAMES = ("name", "count", "user", "file", "value", "title", "date", "path", "number", "version", "total", "item", "url")
MOST_PLACEHOLDERS = 3
_TRIES = 20

Pair = tuple[str, str]


class Modifiers:
    """The recipe's modifiers. `index` is a pair's number; the same numbers give the same change in any process and order."""

    def __init__(self, config: NoiseConfig, *, seed: int) -> None:
        self.seed = seed
        self.shares = np.array([getattr(config, name) for name in ORDER])

    def __bool__(self) -> bool:
        return bool(self.shares.any())

    def changed(self, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the pairs any modifier touches."""
        return np.asarray(self._touched(self._words(epoch, indices)).any(axis=0))

    def apply(self, epoch: int, index: int, source: str, target: str, neighbour: Callable[[], Pair]) -> Pair:
        """The pair as it is served in this epoch; `neighbour` gives the next pair, and is called only to merge with it.

        A side that is not empty stays so, and where no side held a line break none does.
        """
        words = self._words(epoch, np.array([index]))
        for place in np.flatnonzero(self._touched(words)[:, 0]).tolist():
            random = Random(int(words[place, 0]))
            match ORDER[place]:
                case "concat_next":
                    source, target = merged((source, target), neighbour())
                case "placeholders":
                    source, target = with_placeholders(source, target, random)
                case "drop_final_punctuation":
                    source, target = without_final_punctuation(source, target)
                case "title_case":
                    source, target = in_title_case(source), in_title_case(target)
                case "upper_case":
                    source, target = in_capitals(source), in_capitals(target)
                case "typos":
                    source = with_typos(source, random)
                case "copy_source":
                    target = source
        return source, target

    def _words(self, epoch: int, indices: npt.NDArray[np.int64]) -> Words:
        """64 bits for each modifier and each pair."""
        return mixed(self.seed, epoch, _PURPOSES[:, None], indices[None, :])

    def _touched(self, words: Words) -> npt.NDArray[np.bool_]:
        return np.asarray(uniform(words) < self.shares[:, None])


def merged(pair: Pair, following: Pair) -> Pair:
    """Two pairs as one."""
    source, target = (first + _space(first + second) + second for first, second in zip(pair, following, strict=True))
    return source, target


def _space(text: str) -> str:
    """What stands between words: nothing where most letters are Han or Kana."""
    return "" if 2 * len(_HAN_LETTER.findall(text)) > len(_ANY_LETTER.findall(text)) else " "


def in_capitals(text: str) -> str:
    """All letters as capitals; placeholders, tags and addresses as they are."""
    return _elsewhere(text, str.upper)


def in_title_case(text: str) -> str:
    """The first letter of each word as a capital, the others as they are."""
    return _elsewhere(text, lambda part: _INITIAL.sub(lambda letter: letter[0].title(), part))


def _elsewhere(text: str, change: Callable[[str], str]) -> str:
    """Change what stands between placeholders, tags and addresses."""
    parts: list[str] = []
    end = 0
    for kept in _KEPT.finditer(text):
        parts += change(text[end : kept.start()]), kept[0]
        end = kept.end()
    return "".join([*parts, change(text[end:])])


def without_final_punctuation(source: str, target: str) -> Pair:
    """Both sides without the marks at their end, even if only one has any; closing quotes and brackets stay.

    A pair with a side of nothing but marks stays as it is.
    """
    sides = _without_end(source), _without_end(target)
    return sides if all(side.strip() for side in sides) else (source, target)


def _without_end(text: str) -> str:
    unmarked = text.rstrip(_SPACES + _FINAL + _PAUSE)
    body = _body(text)
    return body + _FINAL_MARKS.sub("", unmarked[len(body) :])


def _body(text: str) -> str:
    """A text without its final marks and the quotes and brackets among them; a pause before a bracket is part of a smiley."""
    return text.rstrip(_SPACES + _FINAL + _PAUSE).rstrip(_SPACES + _FINAL + _CLOSING)


def with_typos(text: str, random: Random) -> str:
    """A typing mistake in as many words of over three letters as there are sixteens of letters in them, but in one at least.

    A letter is dropped, doubled, swapped with the next, or replaced by its neighbour on an English or Russian keyboard. Han and
    Kana, which are not typed letter by letter, are left alone, and so are digits, placeholders, tags and addresses.
    """
    kept = [place.span() for place in _KEPT.finditer(text)]
    words = [
        word.span()
        for word in _LONG_WORD.finditer(text)
        if not any(start < word.end() and word.start() < end for start, end in kept)
    ]
    letters = sum(end - start for start, end in words)
    count = min(len(words), max(1, round(letters / LETTERS_PER_TYPO)))
    for start, end in sorted(random.sample(words, count), reverse=True):
        text = text[:start] + _mistyped(text[start:end], random) + text[end:]
    return text


def _mistyped(word: str, random: Random) -> str:
    place = random.randrange(len(word))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    ways = [before + after, before + letter + letter + after]
    if after and after[0] != letter:
        ways.append(before + after[0] + letter + after[1:])
    if beside := _BESIDE.get(letter.lower()):
        key = random.choice(beside)
        ways.append(before + (key.upper() if letter.isupper() else key) + after)
    return random.choice(ways)


def with_placeholders(source: str, target: str, random: Random) -> Pair:
    """Up to three numbers, addresses or capitalised words that stand equally often on both sides become placeholders there.

    A pair that shares none is given one placeholder, in front of both sides or at their ends before the final marks: models
    must pass them through wherever they stand, and corpora of plain sentences share little.
    """
    shared = sorted(_tokens(source).items() & _tokens(target).items())
    drawn = _placeholders(max(1, min(len(shared), random.randint(1, MOST_PLACEHOLDERS))), source + target, random)
    if not drawn:
        return source, target
    if shared:
        names = dict(zip((token for token, _ in random.sample(shared, len(drawn))), drawn, strict=True))
        return _renamed(source, names), _renamed(target, names)
    add = _before if random.random() < 0.5 else _before_end
    return add(source, drawn[0]), add(target, drawn[0])


def _tokens(text: str) -> dict[str, int]:
    """What could become a placeholder, and how often it stands there. Words of two letters are capitals by chance too often."""
    counts: dict[str, int] = {}
    for token in _TOKEN.finditer(text):
        name = token[0]
        if token.lastgroup in ("number", "address") or (token.lastgroup == "word" and len(name) > 2 and name[0].isupper()):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _renamed(text: str, names: dict[str, str]) -> str:
    return _TOKEN.sub(lambda token: token[0] if token.lastgroup == "placeholder" else names.get(token[0], token[0]), text)


def _placeholders(count: int, text: str, random: Random) -> list[str]:
    """So many different placeholders of one family, fewer where it has but one; none that the text holds already."""
    for _ in range(_TRIES):
        family = random.choice(_FAMILIES)
        first, names = int(random.expovariate(1.0)), random.sample(_NAMES, count)
        drawn = dict.fromkeys(family.format(i=first + place, n=first + place + 1, name=names[place]) for place in range(count))
        if not any(placeholder in text for placeholder in drawn):
            return list(drawn)
    return []


def _before(text: str, placeholder: str) -> str:
    return placeholder + _space(text) + text


def _before_end(text: str, placeholder: str) -> str:
    body = _body(text)
    return body + _space(text) + placeholder + text[len(body) :]
