"""Confidence of a translation: the place of the model's own signals among those of a calibration set.

Three signals come from forced decoding of the output:

    mean log-probability     the length-normalized log-probability, the best signal of those that need no reference
                             (Guerreiro, Voita and Martins 2023)
    lowest log-probability   that of the least likely token; one wrong word hardly changes the mean
    coverage                 attention that the words of the source receive, at most 1 each; omissions lower it

`calibrate` stores their quantiles over the model's translations of a validation set. The confidence of another translation is
the share of the calibration set that is no better. Thus about 1 % of good outputs have a confidence below 0.01.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import refuse_steps
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.generation import OnProgress
from dragoman.tasks.translation import LineSearch, decode_best

if TYPE_CHECKING:
    from dragoman.tasks.forced_decoding import ForcedDecoder

MIN_CALIBRATION_SENTENCES = 100
"""Fewest translations of a calibration; the 1 % quantile of fewer would mean nothing."""
MAX_CALIBRATION_SENTENCES = 500
"""Most validation sentences that the end of a training translates for the calibration."""
NUM_LENGTH_BUCKETS = 4
LOW_SCORE_LEVEL = 0.005
"""Share of the calibration set whose mean log-probability counts as a low score; one of `QUANTILE_LEVELS`."""
GUARD_FACTOR = 8.0
"""Factor on the ranks of the lowest log-probability and the coverage: each lowers the confidence in its lowest eighth alone."""
QUANTILE_LEVELS = (0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, *(step / 20 for step in range(2, 20)), 0.975, 1)
QUANTILE_DIGITS = 6
WORD_CHARACTER = re.compile(r"\w")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class OutputSignals:
    """Signals of one output.

    source_length: tokens of the source, the end token included
    mean_log_prob, min_log_prob: mean and minimum of the token log-probabilities, in nats
    coverage: mean over the source tokens with a letter or digit of the attention that each receives, at most 1 each
    """

    source_length: int
    mean_log_prob: float
    min_log_prob: float
    coverage: float


@dataclass(frozen=True)
class SignalQuantiles:
    """Distribution of one signal over the calibration set.

    A signal that depends on the length is standardized within buckets of sources of similar length.

    max_source_tokens: longest source of each bucket but the last
    means: mean of the signal in each bucket
    deviations: standard deviation of the signal in each bucket
    quantiles: quantiles of the standardized signal at `QUANTILE_LEVELS`
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    max_source_tokens: list[int]
    means: list[float]
    deviations: list[float]
    quantiles: list[float]

    def __post_init__(self) -> None:
        """Raise ValueError for lists that do not fit together."""
        num_buckets = len(self.max_source_tokens) + 1
        if not num_buckets == len(self.means) == len(self.deviations) or min(self.deviations, default=0.0) <= 0:
            raise ValueError("each length bucket has one mean and one positive deviation")
        _check_quantiles(self.quantiles)

    @classmethod
    def measure(cls, values: FloatArray, source_lengths: FloatArray, *, num_buckets: int) -> SignalQuantiles:
        """Return the distribution of these values. (N,), (N,)"""
        bounds = np.unique(np.quantile(source_lengths, np.arange(1, num_buckets) / num_buckets, method="lower"))
        max_source_tokens = [int(bound) for bound in bounds if bound < source_lengths.max()]
        buckets = np.searchsorted(max_source_tokens, source_lengths)
        bucket_values = [values[buckets == bucket] for bucket in range(len(max_source_tokens) + 1)]
        means = [float(subset.mean()) for subset in bucket_values]
        deviations = [max(float(subset.std()), 1e-6) for subset in bucket_values]
        standardized = (values - np.take(means, buckets)) / np.take(deviations, buckets)
        return cls(max_source_tokens, means, deviations, _compute_quantiles(standardized))

    def rank(self, value: float, source_length: int) -> float:
        """Return the share of the calibration set whose signal is no higher."""
        bucket = int(np.searchsorted(self.max_source_tokens, source_length))
        return _rank(self.quantiles, (value - self.means[bucket]) / self.deviations[bucket])


@dataclass(frozen=True)
class ConfidenceCalibration:
    """Distributions of all signals over the calibration set.

    sentences: number of translations in the calibration set
    mean_log_prob: mean log-probability, regardless of the length
    min_log_prob: lowest log-probability
    coverage: attention that the words of the source receive
    combined: quantiles of the combined rank at `QUANTILE_LEVELS`
    chrf_correlation: Spearman's rank correlation of the confidence with sentence chrF, on the calibration set itself
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    sentences: int
    mean_log_prob: SignalQuantiles
    min_log_prob: SignalQuantiles
    coverage: SignalQuantiles
    combined: list[float]
    chrf_correlation: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for quantiles that do not fit."""
        _check_quantiles(self.combined)

    def compute_confidence(self, signals: OutputSignals) -> float:
        """Return the share of the calibration set that is no better, from 0 to 1."""
        return _rank(self.combined, _combine(self.mean_log_prob, self.min_log_prob, self.coverage, signals))

    @property
    def low_score(self) -> float:
        """Mean log-probability of the tokens below which an output has a low score: that of `LOW_SCORE_LEVEL`."""
        signal = self.mean_log_prob
        # The mean log-probability has one bucket, because it hardly depends on the length.
        return signal.means[0] + signal.deviations[0] * signal.quantiles[QUANTILE_LEVELS.index(LOW_SCORE_LEVEL)]


def _combine(mean: SignalQuantiles, minimum: SignalQuantiles, coverage: SignalQuantiles, signals: OutputSignals) -> float:
    """Return the rank by the mean log-probability, or less if one of the other signals is unusually low."""
    length = signals.source_length
    return min(
        mean.rank(signals.mean_log_prob, length),
        GUARD_FACTOR * minimum.rank(signals.min_log_prob, length),
        GUARD_FACTOR * coverage.rank(signals.coverage, length),
    )


def _compute_quantiles(values: FloatArray) -> list[float]:
    return [round(float(value), QUANTILE_DIGITS) for value in np.quantile(values, QUANTILE_LEVELS)]


def _rank(quantiles: Sequence[float], value: float) -> float:
    """Return the share of values that are no higher; the value is rounded as the quantiles are."""
    return float(np.interp(round(value, QUANTILE_DIGITS), quantiles, QUANTILE_LEVELS, left=0.0))


def _check_quantiles(quantiles: Sequence[float]) -> None:
    """Raise ValueError unless there is an ascending, finite value for each level."""
    if len(quantiles) != len(QUANTILE_LEVELS) or not np.isfinite(quantiles).all() or (np.diff(quantiles) < 0).any():
        raise ValueError(f"quantiles are {len(QUANTILE_LEVELS)} finite numbers in ascending order")


def calibrate(signals: Sequence[OutputSignals]) -> ConfidenceCalibration | None:
    """Return the calibration by these outputs; None for fewer than `MIN_CALIBRATION_SENTENCES`."""
    if len(signals) < MIN_CALIBRATION_SENTENCES:
        return None
    lengths = np.array([output.source_length for output in signals], dtype=np.float64)
    mean, minimum, coverage = (
        SignalQuantiles.measure(np.array([getattr(output, name) for output in signals]), lengths, num_buckets=num_buckets)
        for name, num_buckets in (("mean_log_prob", 1), ("min_log_prob", NUM_LENGTH_BUCKETS), ("coverage", NUM_LENGTH_BUCKETS))
    )
    combined = np.array([_combine(mean, minimum, coverage, output) for output in signals])
    return ConfidenceCalibration(len(signals), mean, minimum, coverage, _compute_quantiles(combined))


def compute_signals(
    decoder: ForcedDecoder,
    tokenizer: PairTokenizer,
    outputs: Sequence[tuple[Sequence[int], Sequence[int], bool]],
    decoding: DecodingConfig,
    *,
    start_id: int,
    head: AlignmentHead,
) -> list[OutputSignals]:
    """Return the signals of each output by forced decoding.

    outputs: source ids, target ids, and whether the target ends with the end token; neither side is empty
    head: attention head that coverage comes from
    """
    sources, targets = [source for source, _, _ in outputs], [target for _, target, _ in outputs]
    finished = [has_end for _, _, has_end in outputs]
    from dragoman.tasks.forced_decoding import compute_cross_attentions, score_pairs  # few translations have a confidence

    scored = score_pairs(decoder, sources, targets, decoding, start_id=start_id, prompt=tokenizer.decoder_prompt)
    received = compute_cross_attentions(
        decoder,
        sources,
        targets,
        start_id=start_id,
        prompt=tokenizer.decoder_prompt,
        finished=finished,
        batch_tokens=decoding.batch_tokens,
        transform=lambda weights_LHTS: head.select_weights(weights_LHTS).sum(0),
    )
    return [
        OutputSignals(
            len(source),
            sum(log_probs) / len(log_probs),
            min(log_probs),
            _compute_coverage(received_S, tokenizer.source.ids_to_pieces(source), source),
        )
        for source, hypothesis, has_end, received_S in zip(sources, scored, finished, received, strict=True)
        for log_probs in [hypothesis.token_log_probs if has_end else hypothesis.token_log_probs[:-1]]
    ]


def _compute_coverage(received_S: NDArray[np.float32], pieces: Sequence[str], source: Sequence[int]) -> float:
    """Return the mean attention of the tokens with a letter or digit, at most 1 each; 1 if there is no such token."""
    is_word = [token != END_ID and bool(WORD_CHARACTER.search(piece)) for token, piece in zip(source, pieces, strict=True)]
    return float(received_S[is_word].clip(max=1.0).mean()) if any(is_word) else 1.0


def calibrate_model(
    search: LineSearch,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    head: AlignmentHead | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ConfidenceCalibration | None:
    """Translate a validation set, and return the calibration by these translations.

    search: search with a forced decoder, which computes the signals
    references: for the rank correlation with sentence chrF
    head: attention head that coverage comes from; by default the mean of the last layer
    Return None if fewer than `MIN_CALIBRATION_SENTENCES` lines have a translation. Raise BundleError for a model that predicts
    all tokens at once.
    """
    decoder, tokenizer = search.forced_decoder, search.tokenizer
    assert decoder is not None, "the calibration needs a forced decoder"
    if not decoder.is_autoregressive:
        refuse_steps("the calibration of the confidence")
    if len(sources) < MIN_CALIBRATION_SENTENCES:
        return None
    translated = search.translate(sources, on_progress=on_progress)
    indices = [index for index, line in enumerate(translated) if line.hypotheses and line.hypotheses[0].tokens]
    best = [(translated[index].source, translated[index].hypotheses[0]) for index in indices]
    signals = compute_signals(
        decoder,
        tokenizer,
        [(source, hypothesis.tokens, hypothesis.finished) for source, hypothesis in best],
        search.decoding,
        start_id=search.start_id,
        head=head or AlignmentHead(),
    )
    calibration = calibrate(signals)
    if calibration is None or references is None:
        return calibration
    from dragoman.evaluation.correlation import spearman_correlation  # translation has no scores
    from dragoman.evaluation.metrics import sentence_chrf

    texts = decode_best([translated[index] for index in indices], tokenizer)
    correlation = spearman_correlation(
        [calibration.compute_confidence(output) for output in signals],
        sentence_chrf(texts, [references[index] for index in indices]),
    )
    return ConfidenceCalibration(**{**vars(calibration), "chrf_correlation": round(correlation, 4)})
