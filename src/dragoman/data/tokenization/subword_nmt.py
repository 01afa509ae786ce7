"""Subwords of subword-nmt and fastBPE: merges from a codes file, and `@@` at the end of each piece that a word continues after.

The segmentation equals that of `subword-nmt apply-bpe` and of `fastbpe applybpe` without a vocabulary (Sennrich et al. 2016).
Text that holds such pieces already, as in published corpora, is joined first: `foo@@ bar` is read as `foobar`. Without codes,
text must hold its pieces, and tokens are what spaces separate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from heapq import heappop, heappush
from pathlib import Path
from typing import ClassVar

from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import MAX_CACHED_WORD_LENGTH
from dragoman.errors import DataError
from dragoman.formats.text import read_lines

CONTINUATION = "@@"
END_OF_WORD = "</w>"
MAX_MERGES = 2**24
# A continuation mark between two parts of a word; `@@` alone is a word.
_INNER_MARK = re.compile(rf"(?<=[^ ]){CONTINUATION} +")

Merge = tuple[str, str]


class SubwordNmtScheme:
    """Scheme of subword-nmt and fastBPE.

    merges: pairs of symbols, the first merge first; None if the text holds its pieces already
    end_is_separate: the end of a word is a symbol of its own, as in codes of subword-nmt before version 0.2
    """

    kind: ClassVar[str] = "subword-nmt"
    has_word_tokens: ClassVar[bool] = True
    unknown_piece: ClassVar[str] = SPECIAL_PIECES[UNKNOWN_ID] + METASPACE

    def __init__(self, merges: Sequence[Merge] | None, *, end_is_separate: bool = False) -> None:
        self.merges = None if merges is None else tuple(merges)
        self.end_is_separate = end_is_separate
        self._ranks: dict[Merge, int] = {}
        for rank, merge in enumerate(merges or ()):
            self._ranks.setdefault(merge, rank)
        self._cached_split = lru_cache(maxsize=2**16)(self._split_word)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the arguments of a copy, because a cache cannot be sent to another process."""
        return partial(SubwordNmtScheme, end_is_separate=self.end_is_separate), (self.merges,)

    def split(self, text: str) -> list[str]:
        """Return the pieces of the words between spaces; a piece that does not end a word ends with `@@`."""
        if self.merges is None:
            return [token for token in text.split(" ") if token]
        tokens: list[str] = []
        for word in join_pieces(text).split(" "):
            if word:
                tokens += (self._cached_split if len(word) <= MAX_CACHED_WORD_LENGTH else self._split_word)(word)
        return tokens

    def join(self, tokens: Sequence[str]) -> str:
        """Return the words; a piece after `@@` continues its word."""
        return "".join(_strip_mark(token) if _is_continued(token) else f"{token} " for token in tokens).rstrip(" ")

    def to_piece(self, token: str) -> str:
        """Return the token without `@@` if its word continues; otherwise the token with ▁ behind it, for the space."""
        return _strip_mark(token) if _is_continued(token) else token + METASPACE

    def _split_word(self, word: str) -> list[str]:
        symbols = self._merge(word) if len(word) > 1 else [word]
        return [*(symbol + CONTINUATION for symbol in symbols[:-1]), symbols[-1]]

    def _merge(self, word: str) -> list[str]:
        """Return the symbols of a word after all merges. Each merge is applied to the whole word, from left to right."""
        symbols = [*word, END_OF_WORD] if self.end_is_separate else [*word[:-1], word[-1] + END_OF_WORD]
        return _remove_end(apply_merges(symbols, self._ranks, waits=True))


def apply_merges(symbols: list[str], ranks: Mapping[Merge, int], *, waits: bool) -> list[str]:
    """Return symbols after all merges, the lowest rank first and from left to right, in O(n log n).

    symbols: symbols of a word, which change
    ranks: rank of each merge
    waits: whether new pairs wait until a merge is applied to the whole word, even if they have a lower rank
    """
    previous, following = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
    queue: list[tuple[int, int]] = []
    pair_ranks: dict[int, int] = {}  # rank of the merge of a position with its successor, while there is one

    def push_merge(left: int) -> None:
        right = following[left]
        rank = ranks.get((symbols[left], symbols[right])) if right >= 0 else None
        pair_ranks[left] = -1 if rank is None else rank
        if rank is not None:
            heappush(queue, (rank, left))

    for left in range(len(symbols) - 1):
        push_merge(left)
    while queue:
        rank = queue[0][0]
        changed: list[int] = []
        while queue and queue[0][0] == rank:
            _, left = heappop(queue)
            if pair_ranks.get(left) != rank:
                continue
            right = following[left]
            symbols[left] += symbols[right]
            following[left] = following[right]
            if following[right] >= 0:
                previous[following[right]] = left
            for position in (previous[left], left, right):
                pair_ranks[position] = -1
            changed += [previous[left], left] if previous[left] >= 0 else [left]
            symbols[right] = ""
            if not waits:
                break
        for left in dict.fromkeys(changed):
            if symbols[left]:
                push_merge(left)
    return [symbol for symbol in symbols if symbol]


def join_pieces(text: str) -> str:
    """Return a text with its pieces joined: `foo@@ bar` becomes `foobar`."""
    return _INNER_MARK.sub("", text)


def _remove_end(symbols: list[str]) -> list[str]:
    """Return the symbols without the mark of the word's end."""
    if symbols[-1] == END_OF_WORD:
        return symbols[:-1]
    return [*symbols[:-1], symbols[-1].removesuffix(END_OF_WORD)]


def _is_continued(token: str) -> bool:
    return token.endswith(CONTINUATION) and token != CONTINUATION


def _strip_mark(token: str) -> str:
    return token.removesuffix(CONTINUATION)


def read_codes(path: Path, key: str) -> SubwordNmtScheme:
    """Return the scheme of a codes file of subword-nmt (with or without a version line) or fastBPE (with counts).

    key: the recipe key that names it, for error messages

    Raises DataError: the file cannot be read, or a line is not a merge.
    """
    return parse_codes(read_lines(path), f"{path} (tokenizer.{key})")


def parse_codes(lines: Iterable[str], location: str) -> SubwordNmtScheme:
    """Return the scheme of the lines of a codes file. Raise DataError, which names `location` and the line."""
    merges: list[Merge] = []
    version, num_columns = "", 0
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version:"):
            version = line.removeprefix("#version:").strip()
            if version not in ("0.1", "0.2"):
                raise DataError(
                    f"{location}, line 1: version {version[:20]!r} of the codes is unknown; use 0.1 or 0.2",
                    code="invalid-format",
                )
            continue
        columns = line.strip("\r\n ").split(" ")
        if columns == [""]:  # an empty line at the end
            continue
        num_columns = num_columns or (2 if version or len(columns) == 2 else 3)
        has_count = num_columns == 2 or columns[-1].isdecimal()
        if len(columns) != num_columns or not has_count or not all(columns):
            raise DataError(
                f"{location}, line {number}: {line[:40]!r} is not a merge; a line holds two symbols, and a count in fastBPE",
                code="invalid-format",
            )
        merges.append((columns[0], columns[1]))
        if len(merges) > MAX_MERGES:
            raise DataError(f"{location}: has more than {MAX_MERGES:,} merges; give a codes file", code="input-too-long")
    if not merges:
        raise DataError(f"{location}: holds no merges; give a codes file of subword-nmt or fastBPE", code="empty-data")
    return SubwordNmtScheme(merges, end_is_separate=version != "0.2" and num_columns != 3)
