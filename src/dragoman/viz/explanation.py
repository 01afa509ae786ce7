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

    FloatArray = NDArray[np.float32]

AttentionKind = Literal["encoder", "decoder", "cross"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = ("encoder", "decoder", "cross")
NodeStatus = Literal["kept", "pruned", "finished"]

WHITESPACE_SYMBOL = "▁"
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
WEIGHT_LEVELS = 255


@dataclass(frozen=True)
class AttentionHeads:
    """All heads of one kind of attention.

    window: r of restricted self-attention, which sees r places on each side; none where it sees all
    """

    weights_LHTS: FloatArray
    query_LHTK: FloatArray
    key_LHSK: FloatArray
    value_LHSU: FloatArray
    window: int | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """L, H, T, S."""
        layers, heads, rows, columns = self.weights_LHTS.shape
        return layers, heads, rows, columns


@dataclass(frozen=True)
class TokenCandidate:
    """What might have been said, and its natural log-probability."""

    token: str
    log_prob: float


@dataclass(frozen=True)
class TokenPrediction:
    """What was said at one place, its rank among all tokens (1 is the likeliest), and the likeliest ones."""

    output: TokenCandidate
    rank: int
    candidates: tuple[TokenCandidate, ...]


@dataclass(frozen=True)
class BeamNode:
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
    status: NodeStatus
    is_best: bool = False


@dataclass(frozen=True)
class HeadSelection:
    """The layer and the heads to look at first, counted from 0."""

    layer: int
    heads: tuple[int, ...]


@dataclass(frozen=True)
class ExplanationTree:
    """The tree of a parse, whose words are those of the source.

    brackets: label, first word and the word behind the last, those around others before them
    openers: the place in what was said of the token that opened each
    points: the decoder is shown the word that comes next, which a bracket begins with
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    brackets: tuple[tuple[str, int, int], ...]
    opener_positions: tuple[int, ...]
    has_pointer: bool = False


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
    output_tokens: tuple[str, ...]
    decoder_input: tuple[str, ...]
    source_word_ids: tuple[int, ...]
    output_word_ids: tuple[int, ...]
    encoder: AttentionHeads
    decoder: AttentionHeads
    cross: AttentionHeads
    selections: dict[AttentionKind, HeadSelection]
    predictions: tuple[TokenPrediction, ...]
    beam: tuple[BeamNode, ...] = ()
    teacher_forced: bool = False
    notes: tuple[str, ...] = ()
    tree: ExplanationTree | None = None

    def heads(self, kind: AttentionKind) -> AttentionHeads:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def query_tokens(self, kind: AttentionKind) -> tuple[str, ...]:
        """The tokens of the T places."""
        return self.source_tokens if kind == "encoder" else self.output_tokens

    def key_tokens(self, kind: AttentionKind) -> tuple[str, ...]:
        """The tokens of the S places."""
        return self.decoder_input if kind == "decoder" else self.source_tokens

    def is_visible(self, kind: AttentionKind, row: int, column: int) -> bool:
        """Whether a mask lets this place look at that one."""
        window = self.heads(kind).window
        return not (kind == "decoder" and column > row) and (window is None or abs(row - column) <= window)


def merge_tokens(tokens: Sequence[str], word_ids: Sequence[int]) -> list[str]:
    """The words as people write them. Tokens that are bytes become the letters that they spell."""
    words = [""] * (word_ids[-1] + 1 if word_ids else 0)
    for index, group in groupby(zip(tokens, word_ids, strict=True), key=lambda pair: pair[1]):
        for is_byte, run in groupby((token for token, _ in group), key=lambda token: _BYTE_TOKEN.fullmatch(token) is not None):
            if is_byte:
                words[index] += bytes(int(token[3:5], 16) for token in run).decode(errors="replace")
            else:
                words[index] += "".join(run).replace(WHITESPACE_SYMBOL, "")
    return words


def merge_weights(weights_TS: FloatArray, row_word_ids: Sequence[int], column_word_ids: Sequence[int]) -> list[list[float]]:
    """Sub-words merged: the sum over the tokens of a word that is looked at, the mean over those of one that looks."""
    merged = [[0.0] * (column_word_ids[-1] + 1) for _ in range(row_word_ids[-1] + 1)]
    for row, weights in zip(row_word_ids, weights_TS.tolist(), strict=True):
        for column, weight in zip(column_word_ids, weights, strict=True):
            merged[row][column] += weight / row_word_ids.count(row)
    return merged
