"""Reranking of n-best lists by other models: a noisy channel, and a model that reads the target from right to left.

    score(y) = log p(y|x) + λ_reverse · log p(x|y) + λ_right_to_left · log p_r2l(y|x) + λ_length · |y|

p(x|y) is a model of the reverse direction (Yee, Dauphin and Auli 2019; Ng et al. 2019). p_r2l is a model that was trained on
targets with their words in reverse order (Liu et al. 2016). |y| counts the tokens of the output and its end token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.experiments.reranking.tuning import FloatArray, TunedWeights, select_best, tune_weights
from dragoman.inference.translator import Translator
from dragoman.io.storage import write_lines
from dragoman.languages import is_same_language

MODEL_GRID = tuple(step / 20 for step in range(41))
"""Values of a model's weight that tuning tries: 0 to 2."""
LENGTH_GRID = tuple(step / 10 for step in range(-20, 41))
"""Values of the weight of the length that tuning tries: −2 to 4."""


@dataclass(frozen=True)
class RerankWeights:
    """Weights of the scores beside that of the forward model, whose weight is 1."""

    reverse: float = 0.0
    right_to_left: float = 0.0
    length: float = 0.0


@dataclass(frozen=True)
class ScoredCandidate:
    """One hypothesis with the log-probabilities of all models; None for a model that is not there.

    length: tokens of the forward model, the end token included
    """

    text: str
    forward: float
    length: int
    reverse: float | None = None
    right_to_left: float | None = None

    def compute_score(self, weights: RerankWeights) -> float:
        """Return the weighted sum."""
        return float(_get_features(self) @ np.array([1.0, *_to_list(weights)]))


def reverse_words(text: str) -> str:
    """Return the text with its words in reverse order, as a right-to-left model reads it."""
    return " ".join(reversed(text.split()))


@dataclass(frozen=True)
class Reranker:
    """Forward model with the models that rerank its hypotheses.

    reverse: model from the target language to the source language
    right_to_left: model of the forward direction whose targets have their words in reverse order
    """

    forward: Translator
    reverse: Translator | None = None
    right_to_left: Translator | None = None

    def __post_init__(self) -> None:
        """Raise RecipeError without a second model, and BundleError for a model of the wrong direction."""
        if self.reverse is None and self.right_to_left is None:
            raise RecipeError("rerank: needs a second model; give a reverse or a right-to-left bundle", code="missing-key")
        task = self.forward.recipe.task
        for model, kind, languages in (
            (self.reverse, "reverse", (task.target_language, task.source_language)),
            (self.right_to_left, "right-to-left", (task.source_language, task.target_language)),
        ):
            if model is None:
                continue
            actual = (model.recipe.task.source_language, model.recipe.task.target_language)
            if any(
                first and second and not is_same_language(first, second)
                for first, second in zip(actual, languages, strict=True)
            ):
                raise BundleError(
                    f"{model.recipe.name}: translates from {actual[0]} to {actual[1]}, but the {kind} model must translate "
                    f"from {languages[0]} to {languages[1]}; give another bundle",
                    code="wrong-task",
                )

    def make_candidates(
        self, sources: Sequence[str], on_progress: Callable[[int], None] = lambda _: None, **decoding: Any
    ) -> list[list[ScoredCandidate]]:
        """Return the distinct hypotheses of each line with the scores of all models, the forward model's best first.

        The whole beam is used unless `nbest` is among the decoding options. A line without text, and a line that the forward
        model cannot translate, has one candidate, with the score 0.
        """
        if "nbest" not in decoding:
            config = self.forward.resolve_decoding(decoding)
            if config.method == "beam":
                decoding["nbest"] = config.beam_size
        translations = self.forward.translate(sources, on_progress=on_progress, **decoding)
        forward: list[dict[str, tuple[float, int]]] = []
        for translation in translations:
            line: dict[str, tuple[float, int]] = {}
            for hypothesis in (translation, *translation.alternatives):
                if hypothesis.text.strip() and hypothesis.token_log_probs:
                    line.setdefault(hypothesis.text, (sum(hypothesis.token_log_probs), len(hypothesis.token_log_probs)))
            forward.append(line)
        pairs = [(source, text) for source, line in zip(sources, forward, strict=True) for text in line]
        reverse = _score(self.reverse, [(text, source) for source, text in pairs])
        right_to_left = _score(self.right_to_left, [(source, reverse_words(text)) for source, text in pairs])
        scores = iter(zip(reverse, right_to_left, strict=True))
        return [
            [ScoredCandidate(text, log_prob, length, *next(scores)) for text, (log_prob, length) in line.items()]
            or [ScoredCandidate(translation.text, 0.0, 0)]
            for line, translation in zip(forward, translations, strict=True)
        ]

    def tune(
        self, candidates: Sequence[Sequence[ScoredCandidate]], references: Sequence[str], *, metric: str, tokenize: str
    ) -> tuple[RerankWeights, TunedWeights]:
        """Return the weights with the highest corpus score on these lines, and the scores; see `tune_weights`."""
        grids = [
            MODEL_GRID if self.reverse is not None else (0.0,),
            MODEL_GRID if self.right_to_left is not None else (0.0,),
            LENGTH_GRID,
        ]
        tuned = tune_weights(
            [[candidate.text for candidate in line] for line in candidates],
            [_stack_features(line) for line in candidates],
            references,
            grids,
            metric=metric,
            tokenize=tokenize,
        )
        return RerankWeights(*tuned.weights), tuned


def choose_candidate(candidates: Sequence[ScoredCandidate], weights: RerankWeights) -> ScoredCandidate:
    """Return the candidate with the highest score; the forward model's first of equal ones."""
    return candidates[select_best(_stack_features(candidates), _to_list(weights))]


def _to_list(weights: RerankWeights) -> list[float]:
    return [weights.reverse, weights.right_to_left, weights.length]


def _get_features(candidate: ScoredCandidate) -> FloatArray:
    return np.array([candidate.forward, candidate.reverse or 0.0, candidate.right_to_left or 0.0, float(candidate.length)])


def _stack_features(candidates: Sequence[ScoredCandidate]) -> FloatArray:
    return np.stack(list(map(_get_features, candidates)))


def _score(translator: Translator | None, pairs: Sequence[tuple[str, str]]) -> Sequence[float | None]:
    """Return the log-probability of each target, or None for each without a model."""
    if translator is None or not pairs:
        return [None] * len(pairs)
    scored = translator.score([source for source, _ in pairs], [target for _, target in pairs])
    return [sum(translation.token_log_probs) for translation in scored]


def write_weights(path: Path, weights: RerankWeights, *, overwrite: bool = False) -> None:
    """Write weights as JSON. Raises OutputError if the file exists and `overwrite` is false."""
    write_lines(path, [json.dumps(asdict(weights))], overwrite=overwrite)


def read_weights(path: Path) -> RerankWeights:
    """Return the weights of a JSON file. Raises DataError if it does not hold finite numbers under the names of the weights."""
    names = [field.name for field in fields(RerankWeights)]
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist; make it with --tune", code="file-not-found") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON: {error}; make it again with --tune", code="invalid-format") from None
    is_valid = (
        isinstance(document, dict)
        and document.keys() <= set(names)
        and all(type(value) in (int, float) and math.isfinite(value) for value in document.values())
    )
    if not is_valid:
        raise DataError(
            f"{path}: does not hold weights; give a JSON object with numbers for {', '.join(names)}", code="invalid-format"
        )
    return RerankWeights(**document)
