"""Best path of connectionist temporal classification: repeated predictions are merged and blanks are removed.

It is the greedy search of a model that predicts all tokens at once (Graves et al. 2006, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.repetition import contains_repetition


def merge_path(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    *,
    blank_id: int,
    max_length: int,
    allow_repetition: bool,
    settings: SearchSettings,
) -> Hypothesis:
    """Return the output of the predictions of all positions of one sentence.

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
