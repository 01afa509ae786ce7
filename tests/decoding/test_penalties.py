"""Repetition penalty against the formula of Keskar et al. (2019), step by step and over all outputs."""

from __future__ import annotations

import itertools
import math

import pytest
from test_beam_search import END, START, Table

from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.constraints import SentenceConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.hypothesis import LengthPenalty
from dragoman.decoding.interface import SearchSettings

PENALTY = 1.7
pytestmark = pytest.mark.usefixtures("one_core")


def penalized_log_probs(table: Table, sentence: int, tokens: tuple[int, ...], penalty: float = PENALTY) -> list[float]:
    """Return log p of the next token: softmax of x_i / θ for tokens that occurred, x_i · θ if x_i is negative."""
    context = sentence * 31
    for token in (START, *tokens):
        context = table.after(context, token)
    logits = table.logits_CV[context].double().tolist()
    penalized = [
        (logit / penalty if logit > 0 else logit * penalty) if token in tokens else logit for token, logit in enumerate(logits)
    ]
    total = math.log(sum(map(math.exp, penalized)))
    return [logit - total for logit in penalized]


def make_settings(penalty: float = PENALTY) -> SearchSettings:
    return SearchSettings(start_id=START, end_id=END, length_penalty=LengthPenalty("power", 1.0), repetition_penalty=penalty)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wide_beam_finds_best_penalized_output(seed: int) -> None:
    table, limit = Table.random(seed, vocabulary=4), 4
    words = [token for token in range(4) if token != END]
    expected = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(words, repeat=length - 1):
            log_prob = sum(
                penalized_log_probs(table, 0, tokens[:position])[token] for position, token in enumerate((*tokens, END))
            )
            expected.append((log_prob / length, tokens))
    best_score, best_tokens = max(expected)
    [hypotheses] = beam_search(
        table.step,
        table.start(1, 64),
        max_lengths=[limit],
        settings=make_settings(),
        options=BeamSearchOptions(beam_size=64),
        arrays=table.arrays,
    )
    assert hypotheses[0].tokens == best_tokens
    assert hypotheses[0].score == pytest.approx(best_score, abs=1e-5)


@pytest.mark.parametrize("seed", [4, 5])
def test_penalty_leaves_token_log_probs_of_model(seed: int) -> None:
    table, limits = Table.random(seed), [8, 6, 8]
    outputs = decode_tokens(table.step, table.start(3), max_lengths=limits, settings=make_settings(), arrays=table.arrays)
    beams = beam_search(
        table.step,
        table.start(3, 4),
        max_lengths=limits,
        settings=make_settings(),
        options=BeamSearchOptions(beam_size=4, nbest=4),
        arrays=table.arrays,
    )
    for sentence in range(3):
        for hypothesis in (outputs[sentence], *beams[sentence]):
            tokens = (*hypothesis.tokens, END) if hypothesis.finished else hypothesis.tokens
            model = [table.log_probs(sentence, tokens[:position])[token] for position, token in enumerate(tokens)]
            assert hypothesis.token_log_probs == pytest.approx(model, abs=1e-5)


@pytest.mark.parametrize("penalty", [1.0, 1.7, 100.0])
def test_greedy_search_takes_best_penalized_token(penalty: float) -> None:
    table = Table.random(6, vocabulary=12)
    settings = make_settings(penalty)
    outputs = decode_tokens(table.step, table.start(3), max_lengths=[7] * 3, settings=settings, arrays=table.arrays)
    for sentence, output in enumerate(outputs):
        for position, token in enumerate(output.tokens):
            row = penalized_log_probs(table, sentence, output.tokens[:position], penalty)
            assert token == max(range(len(row)), key=row.__getitem__)


def test_prefix_is_kept_and_counts_as_output() -> None:
    table, prefix = Table.random(7), (3, 4)
    (output,) = decode_tokens(
        table.step,
        table.start(1),
        max_lengths=[6],
        settings=make_settings(),
        arrays=table.arrays,
        constraints=[SentenceConstraints(prefix=prefix)],
    )
    assert output.tokens[:2] == prefix
    row = penalized_log_probs(table, 0, prefix)
    expected = max(range(len(row)), key=row.__getitem__)
    assert (*output.tokens, END)[2] == expected
