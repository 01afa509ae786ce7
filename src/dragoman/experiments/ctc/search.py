"""Search of a CTC decoder, without PyTorch: the best path, or a beam of prefixes, of the predictions of a back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.repetition import contains_repetition
from dragoman.experiments.ctc.prefix_search import search_prefixes


class FramePredictions(NamedTuple):
    """Likeliest predictions (F, K) at the positions of one sentence, best first, and their natural log-probabilities.

    A prediction with the log-probability −∞ fills a place that no token takes.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]


class PredictFn(Protocol):
    """Forward pass of a back end."""

    def __call__(self, source_BS: NDArray[np.int64], suppressed: Sequence[int], count: int) -> list[FramePredictions]:
        """Return the `count` likeliest predictions at each position, for each source. suppressed: ids without a place"""
        ...


@dataclass(frozen=True)
class CtcSearch:
    """Greedy search merges the likeliest predictions. Beam search adds up the paths of each output.

    A beam of R prefixes reads the 2R likeliest predictions at each position.
    """

    predict: PredictFn

    def __call__(
        self,
        source_BS: NDArray[np.int64],
        *,
        limits: Sequence[int],
        settings: SearchSettings,
        may_repeat: Sequence[bool],
        beam_size: int | None,
    ) -> list[list[Hypothesis]]:
        """Return the outputs of each source; see `dragoman.tasks.inference_model.OwnSearch`."""
        suppressed = [BEGIN_ID, END_ID, *settings.decoding_constraints.suppress_tokens]
        predictions = self.predict(source_BS, suppressed, 1 if beam_size is None else 2 * beam_size)
        outputs = []
        for (tokens, log_probs), max_length, allow_repetition in zip(predictions, limits, may_repeat, strict=True):
            options: dict[str, Any] = {
                "blank_id": PADDING_ID, "max_length": max_length, "allow_repetition": allow_repetition, "settings": settings
            }  # fmt: skip
            if beam_size is None:
                path = [frame_tokens[0] for frame_tokens in tokens], [frame_log_probs[0] for frame_log_probs in log_probs]
                outputs.append([merge_path(*path, **options)])
            else:
                outputs.append(search_prefixes(tokens, log_probs, beam_size=beam_size, **options))
        return outputs


def merge_path(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    *,
    blank_id: int,
    max_length: int,
    allow_repetition: bool,
    settings: SearchSettings,
) -> Hypothesis:
    """Return the output of the best path of one sentence (Graves et al. 2006, section 3.2): repeated predictions are merged.

    tokens, log_probs: the prediction at each position, which may be the blank, and its natural log-probability
    blank_id: the prediction that adds no token
    max_length: maximum output length in tokens, the end token included; a longer output is cut and not finished
    allow_repetition: whether the output may contain a degenerate repetition

    The log-probability of a token is the sum over the positions that were merged into it. That of the end is the sum over all
    blanks. So the sum of both is the log-probability of the path.
    """
    runs = [
        (token, sum(log_prob for _, log_prob in run))
        for token, run in groupby(zip(tokens, log_probs, strict=True), key=itemgetter(0))
    ]
    output = tuple(token for token, _ in runs if token != blank_id)
    output_log_probs = tuple(log_prob for token, log_prob in runs if token != blank_id)
    is_finished = len(output) < max_length
    if is_finished:
        output_log_probs += (sum(log_prob for token, log_prob in runs if token == blank_id),)
    output, output_log_probs = output[:max_length], output_log_probs[:max_length]
    window = settings.decoding_constraints.repetition_window
    return Hypothesis(
        tokens=output,
        token_log_probs=output_log_probs,
        score=sum(output_log_probs) / settings.length_penalty(float(max(len(output_log_probs), 1))),
        finished=is_finished,
        has_repetition=bool(window) and not allow_repetition and contains_repetition(output, window),
    )
