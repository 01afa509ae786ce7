"""Coverage penalty against equation 14 of Wu et al. (2016), computed by hand and over the hypotheses of a beam."""

from __future__ import annotations

import math

import pytest
import torch

from dragoman import Translation, Translator
from dragoman.tasks.coverage_penalty import compute_coverage_penalty
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")
SOURCES = ["red one ten", "big blue four", "seven", "one two three four five"]
OPTIONS = {"beam_size": 4, "nbest": 4, "early_stopping": "exhaustive"}


def test_penalty_is_sum_of_logarithms() -> None:
    # Tokens receive 0.5, 1.25 and 0.25; the second counts as 1: 2 · (log 0.5 + log 1 + log 0.25) = −6 log 2.
    weights_TS = torch.tensor([[0.25, 0.625, 0.125], [0.25, 0.625, 0.125]])
    assert compute_coverage_penalty(weights_TS, 2.0) == pytest.approx(-6 * math.log(2))


def test_token_without_attention_has_finite_penalty() -> None:
    assert compute_coverage_penalty(torch.tensor([[1.0, 0.0]]), 1.0) == pytest.approx(math.log(1e-9))


def compute_score(translation: Translation, beta: float) -> float:
    """Return log P / lp + β Σ_i log(min(Σ_j p_ij, 1)) by the attention that the translation shows."""
    assert translation.attention is not None
    coverage = [min(sum(column), 1.0) for column in zip(*translation.attention, strict=True)]
    length = len(translation.token_log_probs)
    length_penalty: float = ((5 + length) / 6) ** 0.6
    return sum(translation.token_log_probs) / length_penalty + beta * sum(map(math.log, coverage))


@pytest.mark.parametrize("beta", [0.2, 5.0])
def test_hypotheses_are_ranked_by_penalized_score(translator: Translator, beta: float) -> None:
    free = translator.translate(SOURCES, attention=True, **OPTIONS)  # type: ignore[arg-type]
    penalized = translator.translate(SOURCES, attention=True, coverage_penalty=beta, **OPTIONS)  # type: ignore[arg-type]
    for before, after in zip(free, penalized, strict=True):
        candidates = [before, *before.alternatives]
        expected = sorted(candidates, key=lambda item: (item.status == "truncated", -compute_score(item, beta)))
        ranked = [after, *after.alternatives]
        assert [item.tokens for item in ranked] == [item.tokens for item in expected]
        assert [item.score for item in ranked] == pytest.approx([compute_score(item, beta) for item in expected], abs=1e-4)


@pytest.mark.parametrize("options", [{"method": "greedy"}, {"method": "sample"}, {"mbr": "chrf"}])
def test_penalty_needs_a_beam_of_its_own(translator: Translator, options: dict[str, str]) -> None:
    with raises_code("invalid-recipe"):
        translator.translate(SOURCES, coverage_penalty=0.2, **options)  # type: ignore[arg-type]
