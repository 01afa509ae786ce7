"""Forced decoding: the scores of given targets, and the cross-attention of given outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig
from dragoman.data.padding import pad_sequences
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.errors import refuse_steps
from dragoman.tasks.generation import batch_by_length

FloatArray = NDArray[np.float32]
IdArray = NDArray[np.int64]


class ForcedDecoder(Protocol):
    """Model that reads given targets: `NumpyTransformer`, or `TorchForcedDecoder` for other layers and for a GPU.

    Sources (B, S), decoder inputs (B, T) and targets (B, T) are padded on the right.
    """

    @property
    def is_autoregressive(self) -> bool:
        """Return whether the model predicts token by token; the methods need that."""
        ...

    def compute_log_probs(self, source_BS: IdArray, inputs_BT: IdArray, targets_BT: IdArray) -> FloatArray:
        """Return the log-probability of each target token after the inputs before it; 0 for padding. → (B, T)"""
        ...

    def compute_cross_attentions(self, source_BS: IdArray, inputs_BT: IdArray) -> FloatArray:
        """Return the cross-attention weights of all decoder layers. → (B, L, H, T, S)

        Raises BundleError for a model without cross-attention.
        """
        ...


def score_pairs(
    decoder: ForcedDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    prompt: Sequence[int] = (),
) -> list[Hypothesis]:
    """Return each target as a scored hypothesis of its source (forced decoding). prompt: see `generate`

    Raises BundleError for a model that predicts all tokens at once.
    """
    if not decoder.is_autoregressive:
        refuse_steps("the score of a given target")
    results: dict[int, Hypothesis] = {}
    penalty = LengthPenalty(config.length_penalty, config.alpha, len(prompt))
    for indices, source_BS, outputs in _iter_batches(sources, targets, prompt, config.batch_tokens):
        log_probs_BT = decoder.compute_log_probs(
            source_BS, pad_sequences(outputs, prefix_id=start_id), pad_sequences(outputs, suffix_id=END_ID)
        )
        for index, log_probs_T in zip(indices, log_probs_BT, strict=True):
            token_log_probs = log_probs_T[len(prompt) : len(prompt) + len(targets[index]) + 1].tolist()
            score = sum(token_log_probs) / penalty(float(len(token_log_probs)))
            results[index] = Hypothesis(tuple(targets[index]), tuple(token_log_probs), score, True)
    return [results[index] for index in range(len(sources))]


def compute_cross_attentions(
    decoder: ForcedDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start_id: int,
    prompt: Sequence[int] = (),
    finished: Sequence[bool],
    batch_tokens: int = 4096,
    transform: Callable[[FloatArray], FloatArray] = lambda weights_LHTS: weights_LHTS,
) -> list[FloatArray]:
    """Return the cross-attention weights of each pair: (layers, heads, T + 1, S), or T rows if the target is unfinished.

    prompt: see `generate`; its tokens have no rows
    finished: whether each target ends with the end token, which then has a row
    transform: applied to the weights of each pair; only its result is kept in memory

    Raises BundleError for a model without cross-attention, and for one that predicts all tokens at once.
    """
    if not decoder.is_autoregressive:
        refuse_steps("an alignment")
    outputs = [target if has_end else target[:-1] for target, has_end in zip(targets, finished, strict=True)]
    results: dict[int, FloatArray] = {}
    for indices, source_BS, batch_outputs in _iter_batches(sources, outputs, prompt, batch_tokens):
        weights_BLHTS = decoder.compute_cross_attentions(source_BS, pad_sequences(batch_outputs, prefix_id=start_id))
        for row, index in enumerate(indices):
            queries = slice(len(prompt), len(batch_outputs[row]) + 1)
            results[index] = transform(weights_BLHTS[row, :, :, queries, : len(sources[index])]).copy()
    return [results[index] for index in range(len(sources))]


def _iter_batches(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], prompt: Sequence[int], batch_tokens: int
) -> Iterator[tuple[list[int], IdArray, list[list[int]]]]:
    """Yield the indices of each batch of pairs, its padded sources, and its targets behind the prompt."""
    lengths = [max(len(source), len(prompt) + len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    for indices in batch_by_length(lengths, batch_tokens):
        yield indices, pad_sequences([sources[index] for index in indices]), [[*prompt, *targets[index]] for index in indices]
