"""Search against programs that need no search: exhaustive enumeration, plain lists, closed forms and the model read whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.decoding.beam_search import beam_search
from dragoman.decoding.greedy import TokenSelector, argmax, decode_tokens, make_sampler
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty, score_targets
from dragoman.decoding.interface import EnsembleState, SearchState, StepFn, ensemble_step
from dragoman.decoding.topk import TorchTopK
from dragoman.model.factory import build_model
from dragoman.model.transformer import DecoderState, Transformer

CPU = torch.device("cpu")
PAD, START, END = 0, 1, 2
pytestmark = pytest.mark.usefixtures("one_core")

PENALTIES = [("gnmt", 0.6), ("gnmt", 2.0), ("power", 0.6), ("power", 1.0), ("none", 1.0)]
STOPS = ["exhaustive", "best"]


# A step without a network: the next token's logits are a table's row, which the whole history chooses


@dataclass(frozen=True)
class TableState:
    """context_N: the row of the table that each hypothesis has come to."""

    context_N: Tensor
    sentences: int

    def reorder(self, rows_N: Tensor) -> TableState:
        return TableState(self.context_N[rows_N], self.sentences)

    def keep(self, sentences_B: Tensor) -> TableState:
        return TableState(self.context_N.view(self.sentences, -1)[sentences_B].flatten(), len(sentences_B))


@dataclass
class Table:
    logits_CV: Tensor
    steps: int = 0

    @classmethod
    def random(cls, seed: int, vocabulary: int = 6, *, spread: float = 1.5, contexts: int = 997) -> Table:
        return cls(torch.randn(contexts, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread)

    def after(self, context: Any, token: Any) -> Any:
        contexts, vocabulary = self.logits_CV.shape
        return (context * vocabulary + token + 1) % contexts

    def start(self, sentences: int, beam: int = 1) -> TableState:
        return TableState(torch.arange(sentences).repeat_interleave(beam) * 31, sentences)

    def step(self, tokens_N: Tensor, state: SearchState) -> tuple[Tensor, TableState]:
        assert isinstance(state, TableState)
        self.steps += 1
        context_N = self.after(state.context_N, tokens_N)
        return self.logits_CV[context_N], TableState(context_N, state.sentences)

    def log_probs(self, sentence: int, tokens: Sequence[int]) -> list[float]:
        """Of the next token after these, in double precision."""
        context = sentence * 31
        for token in (START, *tokens):
            context = self.after(context, token)
        row: list[float] = self.logits_CV[context].double().log_softmax(0).tolist()
        return row


def divisor(form: str, alpha: float, length: int) -> float:
    """Wu et al. 2016, equation 14, and the plain power."""
    return {"gnmt": math.pow((5 + length) / 6, alpha), "power": math.pow(length, alpha), "none": 1.0}[form]


Found = tuple[tuple[int, ...], float, bool]
"""Tokens, score, finished."""


def as_found(hypotheses: list[Hypothesis]) -> list[Found]:
    return [(hypothesis.tokens, hypothesis.score, hypothesis.finished) for hypothesis in hypotheses]


def assert_found(ours: list[Hypothesis], expected: list[Found]) -> None:
    assert [(tokens, finished) for tokens, _, finished in as_found(ours)] == [
        (tokens, finished) for tokens, _, finished in expected
    ]
    assert [score for _, score, _ in as_found(ours)] == pytest.approx([score for _, score, _ in expected], abs=1e-5)


def every_output(table: Table, sentence: int, limit: int, form: str, alpha: float) -> list[Found]:
    """All that could be said in so many tokens, best first, the unfinished after the finished."""
    others = [token for token in range(table.logits_CV.shape[1]) if token != END]
    outputs = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(others, repeat=length - 1):
            sums = [table.log_probs(sentence, tokens[:place])[token] for place, token in enumerate(tokens)]
            following = table.log_probs(sentence, tokens)
            score = (sum(sums) + following[END]) / divisor(form, alpha, length)
            outputs.append((tokens, score, True))
            if length == limit:
                for last in others:
                    cut = (sum(sums) + following[last]) / divisor(form, alpha, length)
                    outputs.append(((*tokens, last), cut, False))
    return sorted(outputs, key=lambda output: (not output[2], -output[1]))


def plain_beam(table: Table, sentence: int, limit: int, beam: int, form: str, alpha: float) -> list[Found]:
    """tensor2tensor's beam search for one sentence with lists, in double precision, without any early stopping."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Found] = []
    for length in range(1, limit + 1):
        grown = [
            (score + log_prob, (*tokens, token))
            for score, tokens in alive
            for token, log_prob in enumerate(table.log_probs(sentence, tokens))
        ]
        grown = sorted(grown, reverse=True)[: 2 * beam]
        finished += [(tokens[:-1], s / divisor(form, alpha, length), True) for s, tokens in grown if tokens[-1] == END]
        alive = [(score, tokens) for score, tokens in grown if tokens[-1] != END][:beam]
    finished.sort(key=lambda output: -output[1])
    cut = [(tokens, score / divisor(form, alpha, limit), False) for score, tokens in alive]
    return [*finished[:beam], *cut][:beam]


def search(table: Table, limits: Sequence[int], beam: int, form: str, alpha: float, **rest: Any) -> list[list[Hypothesis]]:
    return beam_search(
        table.step,
        table.start(len(limits), beam),
        max_lengths=limits,
        beam_size=beam,
        start_id=START,
        end_id=END,
        length_penalty=LengthPenalty(form, alpha),
        device=CPU,
        **rest,
    )


def walk(table: Table, limits: Sequence[int], *, choose: TokenSelector = argmax, **rest: Any) -> list[Hypothesis]:
    return decode_tokens(
        table.step,
        table.start(len(limits)),
        max_lengths=limits,
        start_id=START,
        end_id=END,
        length_penalty=rest.pop("penalty", LengthPenalty("gnmt", 0.6)),
        select_tokens=choose,
        device=CPU,
        **rest,
    )


# A step with a network


def network(seed: int = 0, vocabulary: int = 12, **knobs: Any) -> Transformer:
    """A small model whose random weights are large enough to have opinions, in double precision lest rounding have them."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "tie_embeddings": "none"}
    config = ModelConfig.model_validate({**sizes, **knobs})
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
        return model.step(tokens_N, state)

    return step


def sentences(*lengths: int, vocabulary: int = 12, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = torch.randint(3, vocabulary, (length,), generator=generator)
    return ids_BT


def translate(model: Transformer, source: Tensor, limits: Sequence[int], beam: int, **rest: Any) -> list[list[Hypothesis]]:
    arguments: dict[str, Any] = {"early_stopping": "exhaustive", "penalty": LengthPenalty("gnmt", 0.6), **rest}
    return beam_search(
        step_of(model),
        model.start(source),
        max_lengths=limits,
        beam_size=beam,
        start_id=START,
        end_id=END,
        device=CPU,
        **arguments,
    )


def speak(model: Transformer, source: Tensor, limits: Sequence[int], choose: TokenSelector = argmax) -> list[Hypothesis]:
    return decode_tokens(
        step_of(model),
        model.start(source),
        max_lengths=limits,
        start_id=START,
        end_id=END,
        length_penalty=LengthPenalty("gnmt", 0.6),
        select_tokens=choose,
        device=CPU,
    )


KNOBS: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "pre", "attention_bias": True},
    {"attention_window": 2},
    {"position_encoding": "learned", "max_positions": 12},
    {"position_encoding": "concatenated", "d_k": 5, "d_v": 3},
]


# Length penalties


@pytest.mark.parametrize(
    ("form", "alpha", "length", "expected"),
    [
        ("gnmt", 0.6, 7, 2**0.6),
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 1.0, 13, 3.0),
        ("gnmt", 0.0, 40, 1.0),
        ("power", 1.0, 7, 7.0),
        ("power", 0.5, 16, 4.0),
        ("power", 0.6, 1, 1.0),
        ("none", 0.6, 7, 1.0),
    ],
)
def test_length_penalty_in_closed_form(form: str, alpha: float, length: int, expected: float) -> None:
    penalty = LengthPenalty(form, alpha)
    assert penalty(float(length)) == pytest.approx(expected)
    torch.testing.assert_close(penalty(torch.tensor([float(length)])), torch.tensor([expected]))


# The cache


@pytest.mark.parametrize("knobs", KNOBS)
def test_step_by_step_equals_read_at_once(knobs: dict[str, Any]) -> None:
    model = network(**knobs)
    source, inputs = sentences(6, 3, 1), sentences(10, 10, 10, seed=2)
    at_once = model(source, inputs)
    state = model.start(source)
    for place in range(10):
        logits, state = model.step(inputs[:, place], state)
        torch.testing.assert_close(logits, at_once[:, place], rtol=0, atol=1e-10)
    assert state.length == 10
    outputs, state = model.decoder(inputs[:, :4], model.start(source))
    more, state = model.decoder(inputs[:, 4:], state)
    torch.testing.assert_close(model.compute_logits(torch.cat([outputs, more], dim=1)), at_once, rtol=0, atol=1e-10)


def test_step_by_step_equals_read_at_once_in_single_precision() -> None:
    config = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=64, d_ff=128, num_heads=4)
    torch.manual_seed(0)
    model = build_model(config, source_vocab_size=12, target_vocab_size=12).eval()
    source, inputs = sentences(6, 3, 1), sentences(10, 10, 10, seed=2)
    at_once, state = model(source, inputs), model.start(source)
    for place in range(10):
        logits, state = model.step(inputs[:, place], state)
        torch.testing.assert_close(logits, at_once[:, place], rtol=0, atol=1e-5)


@pytest.mark.parametrize("knobs", KNOBS)
def test_rows_of_a_beam_can_be_reordered_and_sentences_dropped(knobs: dict[str, Any]) -> None:
    """Against each history read at once beside its own source."""
    model = network(**knobs)
    beam, source = 3, sentences(6, 3, 4, 1)
    generator = torch.Generator().manual_seed(3)
    sentence_N = torch.arange(4).repeat_interleave(beam)
    history_NT = torch.empty(4 * beam, 0, dtype=torch.long)
    state = model.start(source)
    for place in range(9):
        if place in {2, 5, 6}:
            rows_N = torch.randint(0, beam, (len(history_NT),), generator=generator)
            rows_N += torch.arange(len(history_NT)) // beam * beam
            history_NT, state = history_NT[rows_N], state.reorder(rows_N)
        if place in {3, 7}:
            kept = torch.tensor([0, 2, 3] if place == 3 else [2, 1])
            rows_N = (kept[:, None] * beam + torch.arange(beam)).flatten()
            history_NT, sentence_N, state = history_NT[rows_N], sentence_N[rows_N], state.select_sentences(kept)
        tokens_N = torch.randint(3, 12, (len(history_NT),), generator=generator)
        history_NT = torch.cat([history_NT, tokens_N[:, None]], dim=1)
        logits, state = model.step(tokens_N, state)
        torch.testing.assert_close(logits, model(source[sentence_N], history_NT)[:, -1], rtol=0, atol=1e-10)
    assert sorted(set(sentence_N.tolist())) == [2, 3]


def test_a_state_can_be_reordered_and_cut_before_the_first_step() -> None:
    model = network()
    source = sentences(5, 2, 3)
    state = model.start(source).reorder(torch.tensor([0, 1, 2])).select_sentences(torch.tensor([2, 0]))
    logits, _ = model.step(torch.tensor([START, START]), state)
    expected = model(source[[2, 0]], torch.tensor([[START], [START]]))[:, 0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


# Beam search


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("form", "alpha"), PENALTIES)
def test_beam_one_is_greedy_search(form: str, alpha: float, stop: str) -> None:
    limits = [9, 4, 1, 12, 7, 9]
    finished = 0
    for seed in range(12):
        table = Table.random(seed)
        one = search(table, limits, 1, form, alpha, stop=stop)
        greedy = walk(table, limits, penalty=LengthPenalty(form, alpha))
        for hypotheses, hypothesis in zip(one, greedy, strict=True):
            assert_found(hypotheses, as_found([hypothesis]))
            finished += hypothesis.finished
    assert 10 < finished < 62


@pytest.mark.parametrize("knobs", KNOBS)
def test_beam_one_is_greedy_search_with_a_network(knobs: dict[str, Any]) -> None:
    for seed in range(6):
        model, source = network(seed, **knobs), sentences(6, 3, 1, 5, seed=seed)
        for hypotheses, hypothesis in zip(
            translate(model, source, [12, 9, 5, 11], 1), speak(model, source, [12, 9, 5, 11]), strict=True
        ):
            assert_found(hypotheses, as_found([hypothesis]))
            assert hypotheses[0].token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-5)


@pytest.mark.parametrize(("form", "alpha"), PENALTIES)
def test_a_wide_beam_is_exhaustive_search(form: str, alpha: float) -> None:
    """Four tokens and four places: 27 prefixes live before the last, 2 · 54 = 27 · 4, so a beam of 54 drops nothing.

    Its 54 finished places never fill (there are 40 outputs that end), so "exhaustive" runs to the limit and the whole list
    is exhaustive; "best" ends once nothing can beat the best, so only the first is promised.
    """
    for seed in range(4):
        table = Table.random(seed, vocabulary=4)
        worst = search(table, [4, 3], 54, form, alpha, early_stopping="exhaustive")
        best = search(table, [4, 3], 54, form, alpha, early_stopping="best")
        for sentence, limit in enumerate([4, 3]):
            expected = every_output(table, sentence, limit, form, alpha)
            assert sum(finished for _, _, finished in expected) == {4: 40, 3: 13}[limit]
            assert_found(worst[sentence], expected[:54])
            assert_found(best[sentence][:1], expected[:1])


@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize(("form", "alpha"), PENALTIES)
def test_stopping_early_changes_nothing_that_was_promised(form: str, alpha: float, beam: int) -> None:
    """Against plain lists that never stop early: all hypotheses with "exhaustive", the best with "best"."""
    limits = [14, 6, 1, 10, 14]
    saved = {stop: 0 for stop in STOPS}
    for seed in range(8):
        table = Table.random(seed, vocabulary=5 + seed)
        table.logits_CV[:, END] += 1.0
        expected = [plain_beam(table, sentence, limit, beam, form, alpha) for sentence, limit in enumerate(limits)]
        for stop, promised in (("exhaustive", beam), ("best", 1)):
            table.steps = 0
            for found, whole in zip(search(table, limits, beam, form, alpha, stop=stop), expected, strict=True):
                assert_found(found[:promised], whole[:promised])
            saved[stop] += max(limits) - table.steps
    assert saved["best"] >= saved["exhaustive"]
    assert saved["best"] > 0


def test_stopping_early_saves_steps() -> None:
    """Where the end is near certain: after R ends the worst of them beats what is left, and after one the best does."""
    for stop, most in (("exhaustive", 4), ("best", 1)):
        table = Table(torch.zeros(1, 6))
        table.logits_CV[:, END] = 9.0
        (found,) = search(table, [40], 4, "none", 0.0, stop=stop)
        assert table.steps <= most
        assert found[0].tokens == ()


@pytest.mark.parametrize("stop", STOPS)
def test_hypotheses_are_distinct_and_in_order(stop: str) -> None:
    for seed in range(8):
        for hypotheses in search(Table.random(seed), [10, 3, 1, 7], 5, "gnmt", 0.6, stop=stop):
            assert len({(hypothesis.tokens, hypothesis.finished) for hypothesis in hypotheses}) == len(hypotheses) == 5
            finished = [hypothesis.score for hypothesis in hypotheses if hypothesis.finished]
            cut = [hypothesis.score for hypothesis in hypotheses if not hypothesis.finished]
            assert finished == sorted(finished, reverse=True)
            assert cut == sorted(cut, reverse=True)
            assert [hypothesis.finished for hypothesis in hypotheses] == [True] * len(finished) + [False] * len(cut)
            for hypothesis in hypotheses:
                assert len(hypothesis.token_log_probs) == len(hypothesis.tokens) + hypothesis.finished
                length = len(hypothesis.token_log_probs)
                assert hypothesis.score == pytest.approx(hypothesis.log_prob / divisor("gnmt", 0.6, length), abs=1e-5)


# Limits and forbidden tokens

Search = Callable[[Table, list[int], tuple[int, ...]], list[list[Hypothesis]]]


def by_beam(table: Table, limits: list[int], forbidden: tuple[int, ...]) -> list[list[Hypothesis]]:
    return search(table, limits, 3, "gnmt", 0.6, forbidden=forbidden)


def by_greedy(table: Table, limits: list[int], forbidden: tuple[int, ...]) -> list[list[Hypothesis]]:
    return [[hypothesis] for hypothesis in walk(table, limits, forbidden=forbidden)]


def by_sampling(table: Table, limits: list[int], forbidden: tuple[int, ...]) -> list[list[Hypothesis]]:
    choose = make_sampler(range(len(limits)), temperature=2.0)
    return [[hypothesis] for hypothesis in walk(table, limits, choose=choose, forbidden=forbidden)]


SEARCHES = [by_beam, by_greedy, by_sampling]


@pytest.mark.parametrize("searching", SEARCHES)
def test_a_sentence_without_an_end_is_cut_at_its_own_limit(searching: Search) -> None:
    limits = [5, 1, 9, 3, 9]
    for hypotheses, limit in zip(searching(Table.random(0), limits, (END,)), limits, strict=True):
        for hypothesis in hypotheses:
            assert not hypothesis.finished
            assert len(hypothesis.tokens) == len(hypothesis.token_log_probs) == limit
            assert END not in hypothesis.tokens


@pytest.mark.parametrize("searching", SEARCHES)
def test_the_end_token_counts_within_the_limit(searching: Search) -> None:
    limits = [2, 6, 1, 4] * 3
    seen = set()
    for seed in range(6):
        for hypotheses, limit in zip(searching(Table.random(seed), limits, ()), limits, strict=True):
            for hypothesis in hypotheses:
                assert END not in hypothesis.tokens
                length = len(hypothesis.tokens) + hypothesis.finished
                assert length == limit or (length < limit and hypothesis.finished)
                seen.add((hypothesis.finished, length == limit))
    assert seen == {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("searching", SEARCHES)
def test_forbidden_tokens_never_appear(searching: Search) -> None:
    table = Table.random(0)
    table.logits_CV[:, [PAD, START, 4]] += 8.0
    limits = [8] * 6
    said = {token for hypotheses in searching(table, limits, ()) for found in hypotheses for token in found.tokens}
    assert said & {PAD, START, 4}, "the model wants them"
    for hypotheses in searching(table, limits, (PAD, START, 4)):
        for hypothesis in hypotheses:
            assert not set(hypothesis.tokens) & {PAD, START, 4}
            assert all(math.isfinite(log_prob) for log_prob in hypothesis.token_log_probs)


def test_a_beam_gives_no_more_than_can_be_said() -> None:
    """All but the end forbidden leaves one output, however wide the beam."""
    table = Table.random(0)
    (found,) = search(table, [6], 4, "gnmt", 0.6, forbidden=(0, 1, 3, 4, 5))
    assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in found] == [((), True)]
    assert found[0].score == pytest.approx(table.log_probs(0, [])[END], abs=1e-5)
    assert table.steps == 1


# Sentences keep to themselves


def ties(ours: list[Hypothesis], theirs: list[Hypothesis]) -> int:
    """How many differ; only where their scores are nearer than float32 can tell."""
    assert len(ours) == len(theirs)
    count = 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        if (one.tokens, one.finished) != (other.tokens, other.finished):
            assert abs(one.score - other.score) < 1e-6
            count += 1
    return count


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("way", ["greedy", "beam", "sampling"])
def test_batch_mates_never_change_a_sentence(way: str, knobs: dict[str, Any]) -> None:
    lengths, limits, seeds = [7, 2, 1, 5, 3], [12, 7, 12, 4, 9], [11, 5, 8, 900, 3]
    tied = outputs = 0
    finished = set()
    for seed in range(4):
        model, source = network(seed, **knobs), sentences(*lengths, seed=seed)

        def run(rows: list[int], model: Transformer = model, source: Tensor = source) -> list[list[Hypothesis]]:
            ids = source[rows, : max(lengths[row] for row in rows)]
            some = [limits[row] for row in rows]
            if way == "beam":
                return translate(model, ids, some, 3)
            choose = argmax if way == "greedy" else make_sampler([seeds[row] for row in rows], temperature=1.3, top_p=0.9)
            return [[hypothesis] for hypothesis in speak(model, ids, some, choose)]

        together = run([0, 1, 2, 3, 4])
        for row in range(5):
            tied += ties(together[row], run([row])[0])
            outputs += len(together[row])
            finished |= {hypothesis.finished for hypothesis in together[row]}
        for row, hypotheses in zip([3, 1, 0], run([3, 1, 0]), strict=True):
            tied += ties(together[row], hypotheses)
    assert finished == {True, False}
    assert tied <= 0.02 * outputs


# Scores


def forced(model: Transformer, source: Tensor, outputs: list[tuple[int, ...]], penalty: LengthPenalty) -> list[Hypothesis]:
    inputs = torch.full((len(outputs), max(map(len, outputs)) + 1), PAD)
    for row, tokens in enumerate(outputs):
        inputs[row, : len(tokens) + 1] = torch.tensor([START, *tokens])
    return score_targets(model(source, inputs), outputs, end_id=END, length_penalty=penalty)


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize(("form", "alpha"), [("gnmt", 0.6), ("power", 1.0), ("none", 0.0)])
def test_scores_equal_forced_scoring(form: str, alpha: float, knobs: dict[str, Any]) -> None:
    penalty, beam, finished = LengthPenalty(form, alpha), 4, 0
    for seed in range(3):
        model, source = network(seed, **knobs), sentences(6, 2, 4, seed=seed)
        found = [h for hypotheses in translate(model, source, [11, 11, 5], beam, penalty=penalty) for h in hypotheses]
        scored = forced(model, source.repeat_interleave(beam, 0), [hypothesis.tokens for hypothesis in found], penalty)
        for ours, theirs in zip(found, scored, strict=True):
            assert theirs.tokens == ours.tokens
            length = len(ours.token_log_probs)
            assert ours.token_log_probs == pytest.approx(theirs.token_log_probs[:length], abs=1e-5)
            if ours.finished:
                assert ours.score == pytest.approx(theirs.score, abs=1e-5)
                finished += 1
    assert finished > 10


def test_forced_scoring_in_closed_form() -> None:
    """Logits that are the logarithms of known probabilities."""
    probs = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25] * 4], [[0.7, 0.1, 0.1, 0.1]] * 3])
    long, empty = score_targets(probs.log() + 5.0, [[3, 0], []], end_id=END, length_penalty=LengthPenalty("power", 1.0))
    assert long.tokens == (3, 0)
    assert long.token_log_probs == pytest.approx([math.log(0.4), math.log(0.4), math.log(0.25)], abs=1e-6)
    assert long.score == pytest.approx(math.log(0.4 * 0.4 * 0.25) / 3, abs=1e-6)
    assert empty.tokens == ()
    assert empty.score == pytest.approx(math.log(0.1), abs=1e-6)
    assert long.finished
    assert empty.finished


# Ensembles


def test_an_ensemble_of_one_is_the_model() -> None:
    table = Table.random(3)
    limits = [9, 4, 7]
    alone = search(table, limits, 3, "gnmt", 0.6)
    together = beam_search(
        ensemble_step([table.step]),
        EnsembleState((table.start(3, 3),)),
        max_lengths=limits,
        beam_size=3,
        start_id=START,
        end_id=END,
        length_penalty=LengthPenalty("gnmt", 0.6),
        device=CPU,
    )
    for ours, theirs in zip(together, alone, strict=True):
        assert_found(ours, as_found(theirs))


def test_an_ensemble_of_two_is_the_mean_of_their_probabilities() -> None:
    first, second = Table.random(4), Table.random(5, contexts=499)
    step = ensemble_step([first.step, second.step])
    state: SearchState = EnsembleState((first.start(2), second.start(2)))
    tokens: list[int] = []
    for token in (START, 3, 5, 4):
        logits, state = step(torch.tensor([token, token]), state)
        tokens += [token] if token != START else []
        for sentence in range(2):
            pair = zip(first.log_probs(sentence, tokens), second.log_probs(sentence, tokens), strict=True)
            expected = [(math.exp(one) + math.exp(other)) / 2 for one, other in pair]
            assert logits[sentence].exp().tolist() == pytest.approx(expected, abs=1e-6)


def test_an_ensemble_of_two_networks_scores_its_outputs_by_the_mean() -> None:
    """With reordering and leaving sentences: each output's probability from both models reading it at once."""
    models = [network(0), network(1, norm="pre")]
    source = sentences(6, 2, 4)
    found = beam_search(
        ensemble_step([step_of(model) for model in models]),
        EnsembleState(tuple(model.start(source) for model in models)),
        max_lengths=[10, 3, 7],
        beam_size=3,
        start_id=START,
        end_id=END,
        length_penalty=LengthPenalty("none", 0.0),
        device=CPU,
    )
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            inputs = torch.tensor([[START, *hypothesis.tokens]])
            probs = [model(source[row : row + 1], inputs)[0].softmax(-1) for model in models]
            mean = (probs[0] + probs[1]).log() - math.log(2)
            said = [*hypothesis.tokens, END][: len(hypothesis.token_log_probs)]
            expected = [mean[place, token].item() for place, token in enumerate(said)]
            assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-5)


# Sampling


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 1, "temperature": 5.0}, {"temperature": 1e-4}])
def test_sampling_from_the_likeliest_alone_is_greedy_search(cut: dict[str, Any]) -> None:
    limits = [9, 5, 1, 7]
    for seed in range(5):
        table = Table.random(seed)
        sampled = walk(table, limits, choose=make_sampler(range(4), **cut))
        assert sampled == walk(table, limits)


def test_seeds_reproduce_and_differ() -> None:
    table, limits = Table.random(1, vocabulary=50), [12] * 6
    first = walk(table, limits, choose=make_sampler(range(6)))
    assert walk(table, limits, choose=make_sampler(range(6))) == first
    others = walk(table, limits, choose=make_sampler(range(6, 12)))
    assert all(one.tokens != other.tokens for one, other in zip(first, others, strict=True))


def test_every_bit_of_a_seed_counts() -> None:
    """torch.Generator reads the low 32 bits alone, and the seed of a recipe stands above them."""
    table, limits = Table.random(1, vocabulary=50), [12] * 4
    drawn = [walk(table, limits, choose=make_sampler([place + high for place in range(4)])) for high in (0, 1 << 32, 1 << 40)]
    assert len({tuple(hypothesis.tokens for hypothesis in hypotheses) for hypotheses in drawn}) == 3


CHI_SQUARE_999 = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 5: 20.515, 6: 22.458, 7: 24.322}
"""By degrees of freedom, the value that chance exceeds once in a thousand (Abramowitz and Stegun, table 26.8)."""


def softmax(logits: Sequence[float]) -> list[float]:
    whole = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / whole for logit in logits]


LOGITS = [0.3, -1.0, 0.9, 1.4, -0.2, 0.0, 0.6, -3.0]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, softmax(LOGITS)),
        ({"temperature": 0.5}, softmax([2 * logit for logit in LOGITS])),
        ({"temperature": 3.0}, softmax([logit / 3 for logit in LOGITS])),
        ({"top_k": 3}, softmax([logit if logit >= 0.6 else -math.inf for logit in LOGITS])),
        # 0.34, 0.21, 0.15 and 0.11 of the mass: two reach 0.5, three are needed for 0.6
        ({"top_p": 0.5}, softmax([logit if logit >= 0.9 else -math.inf for logit in LOGITS])),
        ({"top_p": 0.6}, softmax([logit if logit >= 0.6 else -math.inf for logit in LOGITS])),
    ],
)
def test_frequencies_are_the_softmax(cut: dict[str, Any], expected: list[float]) -> None:
    draws = 4000
    table = Table(torch.tensor([LOGITS]))
    sampled = walk(table, [1] * draws, choose=make_sampler(range(draws), **cut))
    counts = [0] * len(LOGITS)
    for hypothesis in sampled:
        (token,) = hypothesis.tokens or (END,)
        counts[token] += 1
    possible = [token for token, probability in enumerate(expected) if probability > 0]
    assert sum(counts[token] for token in possible) == draws
    distance = sum((counts[token] - draws * expected[token]) ** 2 / (draws * expected[token]) for token in possible)
    assert distance < CHI_SQUARE_999[len(possible) - 1]


def test_one_stream_draws_by_the_softmax_too() -> None:
    """The same bound for one sentence's successive draws as for the first draws of many."""
    logits = torch.tensor(LOGITS).log_softmax(0)
    choose = make_sampler([7])
    counts = [0] * len(LOGITS)
    for length in range(4000):
        counts[int(choose(logits[None], [0], length, TorchTopK()))] += 1
    expected = [4000 * probability for probability in softmax(LOGITS)]
    assert sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) < CHI_SQUARE_999[7]


def test_a_sample_is_scored_by_the_model_and_not_by_what_it_was_drawn_from() -> None:
    table = Table.random(2)
    for row, hypothesis in enumerate(walk(table, [8] * 5, choose=make_sampler(range(5), temperature=0.3, top_k=2))):
        said = [*hypothesis.tokens, END][: len(hypothesis.token_log_probs)]
        expected = [table.log_probs(row, said[:place])[token] for place, token in enumerate(said)]
        assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-5)
        assert hypothesis.score == pytest.approx(sum(expected) / divisor("gnmt", 0.6, len(said)), abs=1e-5)
