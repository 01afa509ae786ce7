"""Search of a CTC decoder, without PyTorch: the best path, or a beam of prefixes, of the predictions of a back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.experiments.ctc.path import merge_path
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
            if beam_size is None:
                path = [frame_tokens[0] for frame_tokens in tokens], [frame_log_probs[0] for frame_log_probs in log_probs]
                outputs.append(
                    [
                        merge_path(
                            *path,
                            blank_id=PADDING_ID,
                            max_length=max_length,
                            allow_repetition=allow_repetition,
                            settings=settings,
                        )
                    ]
                )
            else:
                outputs.append(
                    search_prefixes(
                        tokens,
                        log_probs,
                        blank_id=PADDING_ID,
                        beam_size=beam_size,
                        max_length=max_length,
                        allow_repetition=allow_repetition,
                        settings=settings,
                    )
                )
        return outputs
