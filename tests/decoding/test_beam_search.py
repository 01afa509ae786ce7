"""Searches against exhaustive enumeration, reference implementations with lists, closed forms and teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import random_tensors
from dragoman.config import ModelConfig
from dragoman.decoding.arrays import NUMPY, Array, Arrays
from dragoman.decoding.beam_search import BeamSearchOptions, BeamStep, beam_search
from dragoman.decoding.constraints import (
    NO_DECODING_CONSTRAINTS,
    NO_SENTENCE_CONSTRAINTS,
    DecodingConstraints,
    SentenceConstraints,
)
from dragoman.decoding.greedy import TokenSelector, argmax, decode_tokens, make_sampler
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings, SearchState, StepFn
from dragoman.decoding.native_search import build_request
from dragoman.decoding.topk import BlockTopK
from dragoman.model.factory import build_model
from dragoman.model.transformer import DecoderState, Transformer
from dragoman.torch_engine.arrays import TorchArrays

TORCH = TorchArrays(torch.device("cpu"))
PAD, START, END = 0, 1, 2
pytestmark = pytest.mark.usefixtures("one_core")

PENALTIES = [("gnmt", 0.6), ("gnmt", 2.0), ("power", 0.6), ("power", 1.0), ("none", 1.0)]
EARLY_STOPPING = ["exhaustive", "best"]


# A step without a network: the output so far selects a row of a table of logits


@dataclass(frozen=True)
class TableState:
    """State of a table model. context_N: the row of the table for each hypothesis"""

    context_N: Array
    sentences: int

    def reorder(self, rows_N: Array) -> TableState:
        return TableState(self.context_N[rows_N], self.sentences)

    def select_sentences(self, sentences_B: Array) -> TableState:
        return TableState(self.context_N.reshape(self.sentences, -1)[sentences_B].flatten(), len(sentences_B))


@dataclass
class Table:
    """Model without weights: a table of logits for C contexts.

    arrays: those that the step reads and returns; `test_libraries` compares both libraries
    """

    arrays: ClassVar[Arrays] = NUMPY
    logits_CV: Tensor
    steps: int = 0
    rows: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def random(cls, seed: int, vocabulary: int = 6, *, spread: float = 1.5, contexts: int = 997) -> Table:
        return cls(torch.randn(contexts, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread)

    def after(self, context: Any, token: Any) -> Any:
        contexts, vocabulary = self.logits_CV.shape
        return (context * vocabulary + token + 1) % contexts

    def start(self, sentences: int, beam: int = 1) -> TableState:
        return TableState(self.arrays.repeat(self.arrays.arange(sentences), beam) * 31, sentences)

    def step(self, tokens_N: Array, state: SearchState) -> tuple[Array, TableState]:
        assert isinstance(state, TableState)
        self.steps += 1
        context_N = self.after(state.context_N, tokens_N)
        logits_NV = self.logits_CV[torch.from_numpy(self.arrays.to_numpy(context_N))]
        return self.arrays.asarray(logits_NV.numpy()), TableState(context_N, state.sentences)

    def log_probs(self, sentence: int, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities of the next token in double precision. Later changes of the logits have no effect."""
        context = sentence * 31
        for token in (START, *tokens):
            context = self.after(context, token)
        if context not in self.rows:
            self.rows[context] = self.logits_CV[context].double().log_softmax(0).tolist()
        return self.rows[context]


def divisor(form: str, alpha: float, length: int) -> float:
    """Return the length penalty of Wu et al. 2016, equation 14, or the power."""
    return {"gnmt": math.pow((5 + length) / 6, alpha), "power": math.pow(length, alpha), "none": 1.0}[form]


ScoredOutput = tuple[tuple[int, ...], float, bool]
"""Tokens, score, finished."""


def to_outputs(hypotheses: list[Hypothesis]) -> list[ScoredOutput]:
    return [(hypothesis.tokens, hypothesis.score, hypothesis.finished) for hypothesis in hypotheses]


def assert_outputs(ours: list[Hypothesis], expected: list[ScoredOutput]) -> None:
    assert [(tokens, finished) for tokens, _, finished in to_outputs(ours)] == [
        (tokens, finished) for tokens, _, finished in expected
    ]
    assert [score for _, score, _ in to_outputs(ours)] == pytest.approx([score for _, score, _ in expected], abs=1e-5)


Banned = Callable[[int, tuple[int, ...]], set[int]]
"""(sentence, output so far) → tokens that may not come next."""


def no_tokens(sentence: int, tokens: tuple[int, ...]) -> set[int]:
    return set()


def masked_log_probs(table: Table, sentence: int, tokens: tuple[int, ...], banned: Banned) -> list[float]:
    """Return the model's log-probabilities, with -inf for banned tokens."""
    banned_ids = banned(sentence, tokens)
    return [-math.inf if token in banned_ids else log_prob for token, log_prob in enumerate(table.log_probs(sentence, tokens))]


def reference_beam(
    table: Table,
    sentence: int,
    limit: int,
    beam: int,
    form: str,
    alpha: float,
    *,
    early_stopping: str = "exhaustive",
    nbest: int = 1,
    banned: Banned = no_tokens,
) -> list[ScoredOutput]:
    """Return the outputs of tensor2tensor's beam search for one sentence, with lists, in double precision."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[ScoredOutput] = []
    threshold = {"worst_finished": math.inf, "exhaustive": beam}.get(early_stopping, nbest)
    for length in range(1, limit + 1):
        expanded = [
            (score + log_prob, (*tokens, token))
            for score, tokens in alive
            for token, log_prob in enumerate(masked_log_probs(table, sentence, tokens, banned))
            if log_prob > -math.inf
        ]
        expanded = sorted(expanded, reverse=True)[: 2 * beam]
        ends = [
            (tokens[:-1], score / divisor(form, alpha, length), True)
            for rank, (score, tokens) in enumerate(expanded)
            if tokens[-1] == END and rank < (2 * beam if early_stopping != "beam_full" and beam > 1 else beam)
        ]
        finished = sorted(finished + ends, key=lambda output: -output[1])[:beam]
        alive = [(score, tokens) for score, tokens in expanded if tokens[-1] != END][:beam]
        best = alive[0][0] / divisor(form, alpha, limit) if alive else -math.inf
        if (
            length == limit
            or not alive
            or (len(finished) >= threshold and (beam == 1 or finished[int(threshold) - 1][1] >= best))
        ):
            break
        if early_stopping == "beam_full" and len(finished) == beam:
            break
        if early_stopping == "worst_finished" and finished and finished[-1][1] >= best:
            break
    unfinished = [(tokens, score / divisor(form, alpha, length), False) for score, tokens in alive]
    return [*finished, *unfinished][:beam]


def make_settings(
    form: str = "gnmt",
    alpha: float = 0.6,
    *,
    forbidden_ids: tuple[int, ...] = (),
    decoding_constraints: DecodingConstraints = NO_DECODING_CONSTRAINTS,
    compaction_threshold: float = 0.0,
) -> SearchSettings:
    return SearchSettings(
        start_id=START,
        end_id=END,
        forbidden_ids=forbidden_ids,
        length_penalty=LengthPenalty(form, alpha),
        decoding_constraints=decoding_constraints,
        compaction_threshold=compaction_threshold,
    )


def search(
    table: Table,
    limits: Sequence[int],
    beam: int,
    settings: SearchSettings,
    *,
    constraints: Sequence[SentenceConstraints] = (),
    on_step: Callable[[BeamStep], None] | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    return beam_search(
        table.step,
        table.start(len(limits), beam),
        max_lengths=limits,
        settings=settings,
        options=BeamSearchOptions(beam_size=beam, **options),
        arrays=table.arrays,
        constraints=constraints,
        on_step=on_step,
    )


def decode(
    table: Table,
    limits: Sequence[int],
    settings: SearchSettings | None = None,
    *,
    select_tokens: TokenSelector = argmax,
    constraints: Sequence[SentenceConstraints] = (),
) -> list[Hypothesis]:
    return decode_tokens(
        table.step,
        table.start(len(limits)),
        max_lengths=limits,
        settings=settings or make_settings(),
        arrays=table.arrays,
        select_tokens=select_tokens,
        constraints=constraints,
    )


# A step with a network


def network(seed: int = 0, vocabulary: int = 12, **changes: Any) -> Transformer:
    """Return a small model in double precision, with random weights that are large enough for distinct probabilities."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "tie_embeddings": "none"}
    config = ModelConfig.model_validate({**sizes, **changes})
    torch.manual_seed(seed)
    model = build_model(config, source_vocab_size=vocabulary, target_vocab_size=vocabulary, padding_id=PAD).eval()
    with torch.no_grad():
        model.output.mul_(4.0)
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(3.0)
    return model.double()


def step_of(model: Transformer) -> StepFn:
    def step(tokens_N: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        assert isinstance(state, DecoderState)
        with torch.no_grad():
            return model.step(tokens_N, state)

    return step


def search_with_network(
    model: Transformer, source: Tensor, limits: Sequence[int], beam: int, settings: SearchSettings | None = None
) -> list[list[Hypothesis]]:
    return beam_search(
        step_of(model),
        model.start(source),
        max_lengths=limits,
        settings=settings or make_settings(),
        options=BeamSearchOptions(beam_size=beam),
        arrays=TORCH,
    )


def decode_with_network(
    model: Transformer, source: Tensor, limits: Sequence[int], select_tokens: TokenSelector = argmax
) -> list[Hypothesis]:
    return decode_tokens(
        step_of(model),
        model.start(source),
        max_lengths=limits,
        settings=make_settings(),
        arrays=TORCH,
        select_tokens=select_tokens,
    )


sentences = partial(random_tensors.sentences, low=3, high=12)
MODEL_CHANGES: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "pre", "attention_bias": True},
    {"attention_window": 2},
    {"position_encoding": "learned", "max_positions": 12},
    {"position_encoding": "concatenated", "d_k": 5, "d_v": 3},
    {"decoder_autoregression": "ssru"},
    {"position_encoding": "relative", "norm_type": "rms", "activation": "swiglu", "tie_embeddings": "inputs"},
    {"position_encoding": "rotary", "attention_window": 2},
]


# Length penalties


def test_length_penalty_matches_closed_form() -> None:
    for form, alpha, length, expected in [
        ("gnmt", 0.6, 7, 2**0.6),
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 1.0, 13, 3.0),
        ("gnmt", 0.0, 40, 1.0),
        ("power", 1.0, 7, 7.0),
        ("power", 0.5, 16, 4.0),
        ("power", 0.6, 1, 1.0),
        ("none", 0.6, 7, 1.0),
    ]:
        penalty = LengthPenalty(form, alpha)
        assert penalty(float(length)) == pytest.approx(expected)
        torch.testing.assert_close(penalty(torch.tensor([float(length)])), torch.tensor([expected]))


# The cache


@pytest.mark.parametrize("changes", MODEL_CHANGES)
def test_decoder_state_reorders_rows_and_selects_sentences(changes: dict[str, Any]) -> None:
    """Compare each step with teacher forcing of each hypothesis's own output."""
    model = network(**changes)
    beam, source = 3, sentences(6, 3, 4, 1)
    generator = torch.Generator().manual_seed(3)
    sentence_N = torch.arange(4).repeat_interleave(beam)
    history_NT = torch.empty(4 * beam, 0, dtype=torch.long)
    state = model.start(source)
    for position in range(9):
        if position in {2, 5, 6}:
            rows_N = torch.randint(0, beam, (len(history_NT),), generator=generator)
            rows_N += torch.arange(len(history_NT)) // beam * beam
            history_NT, state = history_NT[rows_N], state.reorder(rows_N)
        if position in {3, 7}:
            kept = torch.tensor([0, 2, 3] if position == 3 else [2, 1])
            rows_N = (kept[:, None] * beam + torch.arange(beam)).flatten()
            history_NT, sentence_N, state = history_NT[rows_N], sentence_N[rows_N], state.select_sentences(kept)
        tokens_N = torch.randint(3, 12, (len(history_NT),), generator=generator)
        history_NT = torch.cat([history_NT, tokens_N[:, None]], dim=1)
        logits, state = model.step(tokens_N, state)
        torch.testing.assert_close(logits, model(source[sentence_N], history_NT)[:, -1], rtol=0, atol=1e-10)
    assert sorted(set(sentence_N.tolist())) == [2, 3]


# Limits and forbidden tokens


def test_beam_returns_only_possible_outputs() -> None:
    """Forbid all tokens but the end token: one output remains for any beam size."""
    table = Table.random(0)
    (hypotheses,) = search(table, [6], 4, make_settings(forbidden_ids=(0, 1, 3, 4, 5)))
    assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in hypotheses] == [((), True)]
    assert hypotheses[0].score == pytest.approx(table.log_probs(0, [])[END], abs=1e-5)
    assert table.steps == 1


# The hook


def test_native_request_merges_or_declines_constraints() -> None:
    settings = make_settings(
        forbidden_ids=(PAD, 4), decoding_constraints=DecodingConstraints(min_length=2, suppress_tokens=(4, 3))
    )
    constraints = [NO_SENTENCE_CONSTRAINTS, SentenceConstraints(allow_repetition=True)]
    request = build_request(settings, constraints, max_lengths=[5, 6])
    assert request is not None
    assert (request.suppress_tokens, request.allow_repetition, request.min_length) == ([PAD, 3, 4], [False, True], 2)
    assert request.select(slice(1, 2)).max_lengths == [6]
    assert build_request(settings, [SentenceConstraints(prefix=(3,))], max_lengths=[5]) is None
    automaton = DecodingConstraints(allowed_tokens_fn=lambda outputs_NT, sentences_N: outputs_NT > 0)
    assert build_request(make_settings(decoding_constraints=automaton), [], max_lengths=[5]) is None


# Sentences do not depend on their batch


def count_ties(ours: list[Hypothesis], theirs: list[Hypothesis]) -> int:
    """Return how many hypotheses differ; they may only if their scores are equal in float32."""
    assert len(ours) == len(theirs)
    count = 0
    for hypothesis, reference in zip(ours, theirs, strict=True):
        assert hypothesis.score == pytest.approx(reference.score, abs=1e-5)
        if (hypothesis.tokens, hypothesis.finished) != (reference.tokens, reference.finished):
            assert abs(hypothesis.score - reference.score) < 1e-6
            count += 1
    return count


@pytest.mark.parametrize(
    ("method", "changes"),
    [*(("beam", changes) for changes in MODEL_CHANGES), ("greedy", MODEL_CHANGES[0]), ("sampling", MODEL_CHANGES[1])],
)
def test_output_does_not_depend_on_the_batch(method: str, changes: dict[str, Any]) -> None:
    lengths, limits, seeds = [7, 2, 1, 5, 3], [12, 7, 12, 4, 9], [11, 5, 8, 900, 3]
    tied = outputs = 0
    finished = set()
    for seed in range(2 if method == "beam" else 4):
        model, source = network(seed, **changes), sentences(*lengths, seed=seed)

        def run(rows: list[int], model: Transformer = model, source: Tensor = source) -> list[list[Hypothesis]]:
            ids = source[rows, : max(lengths[row] for row in rows)]
            row_limits = [limits[row] for row in rows]
            if method == "beam":
                return search_with_network(model, ids, row_limits, 3)
            sampler = make_sampler([seeds[row] for row in rows], TORCH, temperature=1.3, top_p=0.9)
            selector = argmax if method == "greedy" else sampler
            return [[hypothesis] for hypothesis in decode_with_network(model, ids, row_limits, selector)]

        together = run([0, 1, 2, 3, 4])
        for row in range(5):
            tied += count_ties(together[row], run([row])[0])
            outputs += len(together[row])
            finished |= {hypothesis.finished for hypothesis in together[row]}
        for row, hypotheses in zip([3, 1, 0], run([3, 1, 0]), strict=True):
            tied += count_ties(together[row], hypotheses)
    assert finished == {True, False}
    assert tied <= 0.02 * outputs


# Sampling


def test_sampling_the_top_token_equals_greedy(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 1, "temperature": 5.0}, {"temperature": 1e-4}]
    for truncation in cases:
        with subtests.test(truncation=truncation):
            limits = [9, 5, 1, 7]
            for seed in range(5):
                table = Table.random(seed)
                sampled = decode(table, limits, select_tokens=make_sampler(range(4), table.arrays, **truncation))
                assert sampled == decode(table, limits)


def test_sampling_uses_every_seed_bit() -> None:
    """Change the high bits only: torch.Generator reads the low 32 bits, and a recipe's seed is above them."""
    table, limits = Table.random(1, vocabulary=50), [12] * 4
    samplers = [make_sampler([row + high for row in range(4)], table.arrays) for high in (0, 1 << 32, 1 << 40)]
    drawn = [decode(table, limits, select_tokens=sampler) for sampler in samplers]
    assert len({tuple(hypothesis.tokens for hypothesis in hypotheses) for hypotheses in drawn}) == 3


@pytest.mark.slow
def test_successive_draws_match_the_softmax() -> None:
    """The bound is the critical value of χ² at 0.001 with 7 degrees of freedom (Abramowitz and Stegun, table 26.8)."""
    log_probs = torch.tensor([0.3, -1.0, 0.9, 1.4, -0.2, 0.0, 0.6, -3.0]).log_softmax(0)
    sampler, topk = make_sampler([7], TORCH), BlockTopK(TORCH)
    counts = [0] * len(log_probs)
    for length in range(4000):
        counts[int(sampler(log_probs[None], [0], length, topk))] += 1
    expected = (4000 * log_probs.exp()).tolist()
    assert sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) < 24.322
