"""What one translation looked at and why it says what it says, as plain numbers: the argument of the attention page.

Dimensions: L layers, H heads, T places that look, S places that are looked at, K and U a head's key and value width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
Fate = Literal["kept", "pruned", "finished"]

SPACE = "▁"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
LEVELS = 255


@dataclass(frozen=True)
class Heads:
    """All heads of one kind of attention.

    window: r of restricted self-attention, which sees r places on each side; none where it sees all
    """

    weights_LHTS: Numbers
    query_LHTK: Numbers
    key_LHSK: Numbers
    value_LHSU: Numbers
    window: int | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """L, H, T, S."""
        layers, heads, rows, columns = self.weights_LHTS.shape
        return layers, heads, rows, columns


@dataclass(frozen=True)
class Candidate:
    """What might have been said, and its natural log-probability."""

    token: str
    log_prob: float


@dataclass(frozen=True)
class Choice:
    """What was said at one place, its rank among all tokens (1 is the likeliest), and the likeliest ones."""

    said: Candidate
    rank: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Branch:
    """One hypothesis that the beam considered.

    parent: the place in the list of branches of the hypothesis that it continues; none at the first step
    step: counted from 0; rank: its place among all that were considered at this step, from 0
    score: sum of log-probabilities, over the length penalty where it is finished
    won: it is the translation, or a beginning of it
    """

    parent: int | None
    step: int
    rank: int
    token: str
    score: float
    fate: Fate
    won: bool = False


@dataclass(frozen=True)
class Focus:
    """The layer and the heads to look at first, counted from 0."""

    layer: int
    heads: tuple[int, ...]


@dataclass(frozen=True)
class Bracketed:
    """The tree of a parse, whose words are those of the source.

    brackets: label, first word and the word behind the last, those around others before them
    openers: the place in what was said of the token that opened each
    points: the decoder is shown the word that comes next, which a bracket begins with
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    brackets: tuple[tuple[str, int, int], ...]
    openers: tuple[int, ...]
    points: bool = False


@dataclass(frozen=True)
class Explanation:
    """One sentence on its way through a model.

    source_tokens: as the encoder reads them, an end token included
    said: what the decoder said, place by place, its end token last if it came to it
    read: what the decoder had read last at each of these places: the start token, then `said` without its last
    source_words, said_words: the number of the word that each token belongs to
    choices: one for each of `said`
    beam: all that the search considered; empty where there is nothing to show, and `notes` tell why
    tree: of a parse
    """

    model: str
    source: str
    target: str
    source_tokens: tuple[str, ...]
    said: tuple[str, ...]
    read: tuple[str, ...]
    source_words: tuple[int, ...]
    said_words: tuple[int, ...]
    encoder: Heads
    decoder: Heads
    cross: Heads
    focus: dict[Kind, Focus]
    choices: tuple[Choice, ...]
    beam: tuple[Branch, ...] = ()
    forced: bool = False
    notes: tuple[str, ...] = ()
    tree: Bracketed | None = None

    def heads(self, kind: Kind) -> Heads:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def looking(self, kind: Kind) -> tuple[str, ...]:
        """The tokens of the T places."""
        return self.source_tokens if kind == "encoder" else self.said

    def looked_at(self, kind: Kind) -> tuple[str, ...]:
        """The tokens of the S places."""
        return self.read if kind == "decoder" else self.source_tokens

    def sees(self, kind: Kind, row: int, column: int) -> bool:
        """Whether a mask lets this place look at that one."""
        window = self.heads(kind).window
        return not (kind == "decoder" and column > row) and (window is None or abs(row - column) <= window)


def word_texts(tokens: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """The words as people write them. Tokens that are bytes become the letters that they spell."""
    words = [""] * (numbers[-1] + 1 if numbers else 0)
    for index, group in groupby(zip(tokens, numbers, strict=True), key=lambda pair: pair[1]):
        for spelled, some in groupby((token for token, _ in group), key=lambda token: _BYTE.fullmatch(token) is not None):
            if spelled:
                words[index] += bytes(int(token[3:5], 16) for token in some).decode(errors="replace")
            else:
                words[index] += "".join(some).replace(SPACE, "")
    return words


def word_weights(weights_TS: Numbers, rows: Sequence[int], columns: Sequence[int]) -> list[list[float]]:
    """Sub-words merged: the sum over the tokens of a word that is looked at, the mean over those of one that looks."""
    sums = [[0.0] * (columns[-1] + 1) for _ in range(rows[-1] + 1)]
    for row, weights in zip(rows, weights_TS.tolist(), strict=True):
        for column, weight in zip(columns, weights, strict=True):
            sums[row][column] += weight / rows.count(row)
    return sums
