"""Added tokens of Hugging Face: texts that a tokenizer finds before it splits the rest into pieces, such as `<sep>`.

The rules are those of two programs, which differ beside spaces and inside words: the tokenizers in Python of `transformers`
(MarianMT and M2M-100), and the library `tokenizers` (NLLB).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

SplitRules = Literal["transformers", "marian", "tokenizers", "tokenizers-strip", "tokenizers-spaces", "tokenizers-words"]
"""Program whose rules hold. `marian` is `transformers` with the language code of MarianMT at the start of a part. With
`tokenizers`, a part keeps a space at its end. With `tokenizers-strip`, as transformers 4 had it, a text loses its last spaces,
and several spaces become ▁, which no token strips. With `tokenizers-spaces`, several spaces stay. With `tokenizers-words`, each
word is split by itself, and spaces of all kinds only divide words."""


@dataclass(frozen=True)
class AddedToken:
    """Token that text holds and that is never split.

    text: the token
    id: its id in the vocabulary
    special: the token is left out of decoded text
    lstrip, rstrip: the token includes the spaces before or behind it
    single_word: the token counts only where no word touches it
    normalized: the token is found after the normalization of the text, with the rules of `tokenizers`
    """

    text: str
    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON, those that are false left out."""
        return {name: value for name, value in asdict(self).items() if value is not False}


def read_added_tokens(entries: Any) -> tuple[AddedToken, ...]:
    """Return the tokens of the dictionaries of `to_dict`. Raise ValueError, TypeError or KeyError for anything else."""
    tokens = tuple(AddedToken(**entry) for entry in entries)
    if not all(isinstance(token.text, str) and type(token.id) is int for token in tokens):
        raise ValueError
    return tokens


class AddedTokenSplitter:
    """Split of a text into added tokens and the parts between them.

    rules: program whose rules hold
    normalize: normalization of a text, for the rules of `tokenizers`
    """

    def __init__(self, tokens: Sequence[AddedToken], rules: SplitRules, normalize: Callable[[str], str]) -> None:
        self._normalize = normalize
        self._has_two_steps = rules.startswith("tokenizers")
        late = [token for token in tokens if self._has_two_steps and token.normalized]
        self._raw = _TokenPattern([(token.text, token) for token in tokens if token not in late])
        self._normalized = _TokenPattern([(normalize(token.text), token) for token in late])

    def split(self, text: str) -> Iterator[str | AddedToken]:
        """Yield the added tokens and the parts between them, in order; with the rules of `tokenizers`, parts are normalized."""
        if not self._has_two_steps:
            yield from self._raw.split_like_transformers(text)
            return
        for part in self._raw.split_like_tokenizers(text):
            if isinstance(part, AddedToken):
                yield part
            else:
                yield from self._normalized.split_like_tokenizers(self._normalize(part))


class _TokenPattern:
    """Search of added tokens in a text: the leftmost, and the longest of those that start there."""

    def __init__(self, tokens: Sequence[tuple[str, AddedToken]]) -> None:
        self.tokens = {text: token for text, token in tokens if text}
        texts = sorted(self.tokens, key=lambda text: -len(text))
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def split_like_transformers(self, text: str) -> Iterator[str | AddedToken]:
        parts: list[str] = []
        end = 0
        for match in self._pattern.finditer(text):
            parts += [text[end : match.start()], match[0]]
            end = match.end()
        parts = [part for part in [*parts, text[end:]] if part]
        for index, part in enumerate(parts):
            if (token := self.tokens.get(part)) is None:
                continue
            left = parts[index - 1] if index else ""
            right = parts[index + 1] if index + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[index + 1] = right.lstrip()
            if token.lstrip and left:
                parts[index - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[index - 1 : index + 1] = [parts[index - 1] + part, ""]
            elif token.single_word and right and right[0] != " ":
                parts[index : index + 2] = ["", part + parts[index + 1]]
        yield from (self.tokens.get(part, part) for part in parts if part)

    def split_like_tokenizers(self, text: str) -> Iterator[str | AddedToken]:
        end = 0
        for match in self._pattern.finditer(text):
            token, start, stop = self.tokens[match[0]], match.start(), match.end()
            if token.single_word and _touches_word(text, start, stop):
                continue
            if token.lstrip:
                while start > end and _is_space(text[start - 1]):
                    start -= 1
                start = max(start, end)
            if token.rstrip:
                while stop < len(text) and _is_space(text[stop]):
                    stop += 1
            if start > end:
                yield text[end:start]
            if start < stop:  # the token before may have taken all of a token of spaces
                yield token
            end = stop
        if end < len(text):
            yield text[end:]


def _touches_word(text: str, start: int, stop: int) -> bool:
    """Return whether a character of a word stands directly before `start` or behind `stop`."""
    return any(_is_word(neighbor) for neighbor in text[max(start - 1, 0) : start] + text[stop : stop + 1])


def _is_word(character: str) -> bool:
    """Return whether Rust's regular expressions have this character in `\\w`: `Alphabetic`, marks, digits, `_` and joiners."""
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d" or "Ⓐ" <= character <= "ⓩ"


def _is_space(character: str) -> bool:
    """Return whether Unicode has this character as `White_Space`, which the separators U+001C to U+001F are not."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def split_marian_code(text: str) -> tuple[str, str]:
    """Return the language code at the start of a text, as MarianMT's tokenizer finds it or an empty text, and the rest."""
    end = text.find("<<") + 2 if text.startswith(">>") else 1
    return ("", text) if end == 1 else (text[:end], text[end:])
