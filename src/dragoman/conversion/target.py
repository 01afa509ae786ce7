"""Result of reading a source: a recipe, a tokenizer and streams of weights, which become a bundle.

A format names each weight of the bundle and the source tensor that it comes from. `WeightBuilder` makes the streams, so that no
weight is in memory as a whole: each is written part by part from the mapped source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dragoman.bundle import ModelOrigin, SpeechTokens
from dragoman.config import Recipe, make_recipe
from dragoman.conversion.mapped_arrays import Array, damaged
from dragoman.conversion.vocabulary_order import UNREACHABLE_LOGIT, VocabularyOrder
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import BundleError, RecipeError
from dragoman.io.bfloat16 import cast, widen
from dragoman.io.safetensors import TensorStream, is_floating_point
from dragoman.shortlist import Shortlist
from dragoman.tasks.attention_alignment import AlignmentHead

CHUNK_VALUES = 2**20
"""Values of a weight that are in memory at once."""


class RowSource(Protocol):
    """Array whose rows are read part by part: of NumPy, or a `MappedArray`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class ConversionOptions:
    """Choices of the caller, which win over what the source states; None leaves the choice to the source.

    Attributes:
        name: name of the source in messages and in the bundle's metadata
        source_language, target_language: language codes; the default languages of a model of many languages
    """

    name: str
    source_language: str | None = None
    target_language: str | None = None

    def choose_languages(self, source: object = "", target: object = "") -> tuple[str, str]:
        """Return the languages of both sides: those of the caller, else those that a source states; empty for neither."""
        stated = [language if isinstance(language, str) else "" for language in (source, target)]
        return self.source_language or stated[0], self.target_language or stated[1]


@dataclass(frozen=True)
class ConvertedModel:
    """Model of a source in the terms of a bundle.

    Attributes:
        recipe: architecture, tokenizer and decoding options
        tokenizer: tokenizers of both sides
        weights: a stream for each name of `dragoman.bundle.collect_weights`, and the steps of int8 matrices
        origin: format, name, license and languages of the source
        notes: differences to the source, one sentence each
        shortlist: likely target tokens of each source token; None without one
        alignment: head that was trained to align words; None if the source names none
        speech: tokens that direct the transcription of speech; None for other models
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    weights: Mapping[str, TensorStream]
    origin: ModelOrigin
    notes: tuple[str, ...] = ()
    shortlist: Shortlist | None = None
    alignment: AlignmentHead | None = None
    speech: SpeechTokens | None = None


def build_model(
    origin: ModelOrigin,
    path: Path,
    languages: tuple[str, str],
    sections: Mapping[str, Mapping[str, Any]],
    tokenizer: PairTokenizer,
    weights: Mapping[str, TensorStream],
    **properties: Any,
) -> ConvertedModel:
    """Return the model in the terms of a bundle.

    Args:
        origin: format, name and license of the source; its languages, if they are others than `languages`
        path: file of the source that has the settings, which an error names
        languages: languages of source and target; empty for one that is unknown
        sections: recipe sections `model` and `decoding`, and further keys of `task` and `tokenizer`
        tokenizer: tokenizers of both sides
        weights: a stream for each weight of the bundle
        properties: other attributes of `ConvertedModel`

    Raises:
        DataError: no model can have these settings.
    """
    model, described = sections["model"], describe_tokenizer(tokenizer)
    stated = {"source_language": languages[0], "target_language": languages[1]}
    tokenized = {"tokenized": True} if described.get("model_type") == "subword-nmt" else {}
    limits = {"max_length": min(256, model["max_positions"])} if model.get("position_encoding") == "learned" else {}
    document = {
        "name": origin.name,
        "task": {**stated, **tokenized, **sections.get("task", {})},
        "tokenizer": {**described, **sections.get("tokenizer", {})},
        "model": model,
        "decoding": sections["decoding"],
    }
    try:
        recipe = make_recipe({"data": limits, **document})
    except RecipeError as error:
        raise damaged(path, f"describes a model of impossible settings ({error})") from None
    source, target = ([language] if language else None for language in languages)
    origin = replace(
        origin,
        source_languages=origin.source_languages or source,
        target_languages=origin.target_languages or target,
    )
    return ConvertedModel(recipe, tokenizer, weights, origin, **properties)


def describe_tokenizer(tokenizer: PairTokenizer) -> dict[str, Any]:
    """Return the recipe section `tokenizer`."""
    source, is_shared = tokenizer.source, tokenizer.shares_vocabulary
    kind: dict[str, Any] = {}
    if isinstance(source, TokenListTokenizer):
        kind = {"model_type": source.scheme.kind, "normalization": source.normalization, "lowercase": source.lowercase}
    return kind | {
        "joint": is_shared,
        "vocab_size": len(source),
        **({} if is_shared else {"target_vocab_size": len(tokenizer.target)}),
        "byte_fallback": False,
        "prepend_bos": tokenizer.prepend_bos,
    }


def describe_beam(beam_size: int) -> dict[str, Any]:
    """Return the keys of the recipe section `decoding` for a beam; a beam of 1 is greedy search."""
    return {"method": "beam", "beam_size": beam_size} if beam_size > 1 else {"method": "greedy", "beam_size": 4}


def check_language(folder: Path, side: str, language: str, languages: Sequence[str]) -> None:
    """Raise BundleError if a model of many languages does not have one that is chosen. language: empty for none"""
    if language and languages and language not in languages:
        raise BundleError(
            f"{folder}: has no token for the {side} language {str(language)!r:.40}; its languages are "
            f"{', '.join(languages[:20])}{', …' if len(languages) > 20 else ''}",
            code="conversion-unsupported",
        )


class WeightBuilder:
    """Streams of weights from the tensors of a source.

    Args:
        tensors: tensors of the source by name
        release: releases the mapped memory of the source
    """

    def __init__(self, tensors: Mapping[str, RowSource], release: Callable[[], None]) -> None:
        self.tensors = tensors
        self.release = release

    def copy(self, name: str) -> TensorStream:
        """Return the stream of one tensor."""
        return self.concat([self.tensors[name]])

    def concat(self, parts: Sequence[RowSource], *, scale: float = 1.0) -> TensorStream:
        """Return the stream of several tensors, one behind the other in their first dimension."""
        parts = [part.reshape(1) if isinstance(part, np.ndarray) and not part.ndim else part for part in parts]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])

        def iter_chunks() -> Iterator[Array]:
            for part in parts:
                for chunk in _iter_rows(part):
                    yield chunk if scale == 1.0 else cast(widen(chunk) * scale, chunk.dtype)

        return TensorStream(shape, parts[0].dtype, iter_chunks, self.release)

    def reorder_rows(self, tensor: RowSource, order: VocabularyOrder, *, missing: float = 0.0) -> TensorStream:
        """Return the stream of a matrix or vector of the vocabulary in the bundle's order.

        Args:
            tensor: (number of the source's tokens, …)
            order: order of the bundle's tokens
            missing: value of a row that the source does not have

        Raises:
            IndexError: the tensor has fewer rows than the vocabulary.
        """
        rows = order.rows
        if max(row for row in rows if row is not None) >= len(tensor):
            raise IndexError(f"{len(tensor)} rows")

        def iter_chunks() -> Iterator[Array]:
            start = 0
            while start < len(rows):
                first, end = rows[start], start + 1
                if first is None:
                    yield cast(np.full((1, *tensor.shape[1:]), missing, np.float32), tensor.dtype)
                else:  # neighbors stay neighbors, except for the special tokens
                    while end < len(rows) and rows[end] == first + (end - start):
                        end += 1
                    yield from _iter_rows(tensor, first, first + (end - start))
                start = end

        return TensorStream((len(rows), *tensor.shape[1:]), tensor.dtype, iter_chunks, self.release)

    def output_bias(self, tensor: Array | None, order: VocabularyOrder, dtype: np.dtype[Any]) -> TensorStream:
        """Return the stream of the output bias: that of the source or zeros, and `UNREACHABLE_LOGIT` for missing tokens.

        Negative infinity, with which a source excludes a token from all outputs, becomes `UNREACHABLE_LOGIT` too.
        """
        bias = np.zeros(order.num_source_rows - order.num_padding_rows, dtype) if tensor is None else tensor
        if is_floating_point(bias):
            values = widen(bias)
            bias = cast(np.where(values == -np.inf, np.float32(UNREACHABLE_LOGIT), values), bias.dtype)
        return self.reorder_rows(bias.reshape(-1), order, missing=UNREACHABLE_LOGIT)


def _iter_rows(tensor: RowSource, start: int = 0, stop: int | None = None) -> Iterator[Array]:
    """Yield the rows from `start` to `stop` in parts of at most `CHUNK_VALUES` values, but at least one row."""
    stop = len(tensor) if stop is None else stop
    step = max(1, CHUNK_VALUES // max(1, tensor.size // max(1, len(tensor))))
    for first in range(start, stop, step):
        yield tensor[first : min(first + step, stop)]
