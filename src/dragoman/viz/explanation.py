"""Explanation of one output as numbers: attention, predictions and beam. It is the input of the attention page.

Dimensions: L layers, H heads, T query positions, S key positions, K and U key and value width of a head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

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

    window: r of restricted self-attention, which attends to r positions on each side; None without a restriction
    """

    weights_LHTS: FloatArray
    query_LHTK: FloatArray
    key_LHSK: FloatArray
    value_LHSU: FloatArray
    window: int | None = None

    @classmethod
    def without_layers(cls, num_rows: int, num_columns: int) -> AttentionHeads:
        """Return the heads of an attention that the model has not, such as the self-attention of a recurrent encoder."""
        import numpy as np

        empty = np.zeros((0, 0, num_rows, num_columns), np.float32)
        rows, columns = (np.zeros((0, 0, count, 0), np.float32) for count in (num_rows, num_columns))
        return cls(empty, rows, columns, columns)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (L, H, T, S)."""
        layers, heads, rows, columns = self.weights_LHTS.shape
        return layers, heads, rows, columns


@dataclass(frozen=True)
class TokenCandidate:
    """Possible output token with its natural log-probability."""

    token: str
    log_prob: float


@dataclass(frozen=True)
class TokenPrediction:
    """Output token of one step, its rank among all tokens (1 is the most probable), and the most probable tokens."""

    output: TokenCandidate
    rank: int
    candidates: tuple[TokenCandidate, ...]


@dataclass(frozen=True)
class BeamNode:
    """One hypothesis that the search considered.

    parent: index of the node that it continues; None at the first step
    step: step of the search, counted from 0
    rank: rank among all hypotheses of this step, counted from 0
    score: sum of log-probabilities, over the length penalty if finished
    is_best: whether it is the output or a prefix of it
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
    """Layer and heads to show first, counted from 0."""

    layer: int
    heads: tuple[int, ...]


@dataclass(frozen=True)
class ExplanationTree:
    """Tree of a parse over the words of the source.

    brackets: label, first word, and the word after the last; outer brackets come before inner ones
    opener_positions: output position of the token that opens each bracket
    has_pointer: whether the decoder gets the next word as an input
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    brackets: tuple[tuple[str, int, int], ...]
    opener_positions: tuple[int, ...]
    has_pointer: bool = False


@dataclass(frozen=True)
class SourceImage:
    """Sound or picture as the encoder reads it: an image whose columns are frames.

    pixels_YT: darkness of each number of a frame, from 0 to 255; the top row first
    frames_per_vector: frames from one vector of the front end to the next; vector n is centered on frame n · frames_per_vector
    unit, units_per_frame: unit of the axis of the frames, such as "s", and its number for a frame
    top_label, bottom_label: labels of the other axis
    """

    pixels_YT: NDArray[np.uint8]
    frames_per_vector: int
    unit: str
    units_per_frame: float
    top_label: str = ""
    bottom_label: str = ""

    @classmethod
    def from_numbers(cls, numbers_YT: FloatArray, lowest: float, highest: float, **fields: Any) -> SourceImage:
        """Return the image in which `lowest` is white and `highest` is black; `fields` are the other fields."""
        shares_YT = (numbers_YT - lowest) / max(highest - lowest, 1e-9)
        return cls((shares_YT.clip(0, 1) * WEIGHT_LEVELS).round().astype("u1"), **fields)

    def list_labels(self) -> tuple[str, ...]:
        """Return the name of each vector: the place of the frame on which it is centered."""
        step = self.frames_per_vector
        return tuple(f"{frame * self.units_per_frame:g} {self.unit}" for frame in range(0, self.pixels_YT.shape[1], step))


@dataclass(frozen=True)
class Explanation:
    """One output of a model with its attention and its search.

    source_tokens: encoder input, with the end token, or the places of its vectors in the image of the source
    output_tokens: decoder output, with the end token if the output has it
    decoder_input: decoder input: the start token, the language token of some models, then the output tokens without the last
    source_word_ids, output_word_ids: number of the word of each token
    selections: layer and heads to show first, for each kind of attention that the model has
    predictions: one for each output token
    beam: all hypotheses that the search considered; if it is empty, `notes` has the reason
    teacher_forced: whether the caller gave the output
    tree: tree of a parse
    image: image of a source that is no text
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
    image: SourceImage | None = None

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """Return the kinds of attention that the model has."""
        return tuple(kind for kind in ATTENTION_KINDS if self.heads(kind).shape[0])

    def heads(self, kind: AttentionKind) -> AttentionHeads:
        """Return the heads of this kind of attention."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def query_tokens(self, kind: AttentionKind) -> tuple[str, ...]:
        """Return the tokens of the T query positions."""
        return self.source_tokens if kind == "encoder" else self.output_tokens

    def key_tokens(self, kind: AttentionKind) -> tuple[str, ...]:
        """Return the tokens of the S key positions."""
        return self.decoder_input if kind == "decoder" else self.source_tokens

    def is_visible(self, kind: AttentionKind, row: int, column: int) -> bool:
        """Return whether the mask allows this query (row) to attend to this key (column)."""
        window, position = self.heads(kind).window, row
        if kind == "decoder":
            position += len(self.decoder_input) - len(self.output_tokens)
        return not (kind == "decoder" and column > position) and (window is None or abs(position - column) <= window)


def merge_tokens(tokens: Sequence[str], word_ids: Sequence[int]) -> list[str]:
    """Return the words as text. Byte tokens become the characters that they encode."""
    words = [""] * (word_ids[-1] + 1 if word_ids else 0)
    for index, group in groupby(zip(tokens, word_ids, strict=True), key=lambda pair: pair[1]):
        for is_byte, run in groupby((token for token, _ in group), key=lambda token: _BYTE_TOKEN.fullmatch(token) is not None):
            if is_byte:
                words[index] += bytes(int(token[3:5], 16) for token in run).decode(errors="replace")
            else:
                words[index] += "".join(run).replace(WHITESPACE_SYMBOL, "")
    return words


def merge_weights(weights_TS: FloatArray, row_word_ids: Sequence[int], column_word_ids: Sequence[int]) -> list[list[float]]:
    """Return the weights between words: the sum over the key tokens of a word, the mean over its query tokens."""
    merged = [[0.0] * (column_word_ids[-1] + 1) for _ in range(row_word_ids[-1] + 1)]
    for row, weights in zip(row_word_ids, weights_TS.tolist(), strict=True):
        for column, weight in zip(column_word_ids, weights, strict=True):
            merged[row][column] += weight / row_word_ids.count(row)
    return merged
