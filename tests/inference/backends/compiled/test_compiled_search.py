"""Tests that compiled searches equal those in Python: tokens, probabilities and scores, to the last bit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from multiprocessing import get_context
from signal import SIGINT, default_int_handler, pthread_kill, signal
from threading import Event, Lock, Thread, Timer, main_thread
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.phrase import Phrase
from dragoman.inference.backends.protocol import Precision
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.factory import build_model
from dragoman.tasks.generation import BatchSearch, GenerationJob, generate
from dragoman.tasks.inference_model import InferenceModel
from dragoman.torch_engine.inference_model import as_inference_model
from torch_models import wrap_model

pytest.importorskip("numba", reason="Numba is not installed")

from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.kernels.structs import LOGIT_BLOCK, MAX_BEAM_SIZE
from dragoman.inference.backends.compiled.search import CompiledSearch
from dragoman.inference.backends.compiled.threads import (
    POOL,
    Canceled,
    WorkerPool,
    WorkerThread,
    limit_threads,
    run_all,
)
from dragoman.inference.parallel.scheduler import BatchScheduler

pytestmark = pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")

VOCABULARY = 120
SOURCES = 40
START_ID = PADDING_ID


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def build_model_with_end_scale(
    end_scale: float, position_encoding: str = "interleaved", vocabulary: int = VOCABULARY
) -> TrainedModel:
    """Return a random model; a longer vector of the end token makes outputs end sooner."""
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 48, "d_ff": 64, "num_heads": 4}
    config = ModelConfig.model_validate(sizes | {"tie_embeddings": "none", "position_encoding": position_encoding})
    model = build_model(config, source_vocab_size=vocabulary, target_vocab_size=vocabulary, padding_id=PADDING_ID).eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    model.output[END_ID] *= end_scale
    return wrap_model(model, config)


def prepare(model: TrainedModel, precision: Precision = "int8", shortlist: Any = None) -> InferenceModel:
    return build_inference_model([model], "cpu", precision, shortlist)


@pytest.fixture(scope="module")
def inference_models(one_core: None) -> list[InferenceModel]:
    with torch.no_grad():
        models = [(0.1, "interleaved"), (1.5, "rotary"), (4.0, "interleaved")]
        return [prepare(build_model_with_end_scale(*options)) for options in models]


def make_sources() -> list[list[int]]:
    rng = random.Random(3)
    word_lists = [rng.choices(range(4, VOCABULARY), k=rng.randint(1, 40)) for _ in range(SOURCES)]
    return [[*words, END_ID] for words in word_lists]


def search(
    inference_model: InferenceModel,
    rules: DecodingConstraints,
    constraints: Sequence[SentenceConstraints] = (),
    prompt: Sequence[int] = (),
    **decoding: Any,
) -> list[list[Hypothesis]]:
    config = DecodingConfig(**({"max_extra_tokens": 12, "batch_tokens": 6000} | decoding))
    batch_search = BatchSearch(inference_model, config, start_id=START_ID, prompt=tuple(prompt), decoding_constraints=rules)
    return generate(batch_search, make_sources(), constraints=constraints)


def search_both_ways(
    inference_model: InferenceModel, *arguments: Any, **decoding: Any
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """Return the results of the compiled search and of the search in Python. Arguments are those of `search`."""
    assert isinstance(inference_model.native_search, CompiledSearch)
    in_python = replace(inference_model, native_search=None)
    return search(inference_model, *arguments, **decoding), search(in_python, *arguments, **decoding)


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "beam of one": {"method": "beam", "beam_size": 1},
    "beam": {"method": "beam", "beam_size": 4, "alpha": 0.6},
    "whole beam": {"method": "beam", "beam_size": 5, "nbest": 5, "length_penalty": "power", "alpha": 1.0},
    "until the beam is full": {"method": "beam", "beam_size": 3, "early_stopping": "beam_full", "nbest": 2},
    "until the best is finished": {
        "method": "beam",
        "beam_size": 3,
        "early_stopping": "best",
        "nbest": 2,
        "length_penalty": "none",
    },
    "with the present length": {
        "method": "beam",
        "beam_size": 5,
        "early_stopping": "heuristic",
        "nbest": 2,
        "length_penalty": "power",
        "alpha": 1.0,
    },
    "short outputs": {"method": "beam", "beam_size": 2, "nbest": 2, "max_extra_tokens": 0},
    "widest beam": {"method": "beam", "beam_size": MAX_BEAM_SIZE, "nbest": 3},
}
RULES: dict[str, DecodingConstraints] = {
    "none": NO_DECODING_CONSTRAINTS,
    "repetition window": DecodingConstraints(repetition_window=8),
    "minimum length and suppressed tokens": DecodingConstraints(
        min_length=9, suppress_tokens=(5, 6, 7, 40, 41), repetition_window=32
    ),
    "no repeated token": DecodingConstraints(no_repeat_ngram_size=1),
    "no repeated trigram": DecodingConstraints(no_repeat_ngram_size=3, suppress_tokens=(9,)),
}


# Each rule meets two searches, each search one rule or all, and the models take turns. Beams drop repetitions in each model.
TURNS = [
    (search, rule, (number // 3 + rule_number) % 3)
    for number, search in enumerate(SEARCHES)
    for rule_number, rule in enumerate(RULES)
    if search in ("greedy", "whole beam") or rule == "repetition window"
]
CASES = dict.fromkeys([*TURNS, *product(["beam", "whole beam"], ["repetition window"], range(3))])


@pytest.mark.parametrize(("search_name", "rule", "model"), CASES)
def test_compiled_search_equals_python(inference_models: list[InferenceModel], search_name: str, rule: str, model: int) -> None:
    compiled, plain = search_both_ways(inference_models[model], RULES[rule], **SEARCHES[search_name])
    assert compiled == plain


@pytest.mark.parametrize("search_name", ["greedy", "whole beam"])
@pytest.mark.parametrize("position_encoding", ["interleaved", "rotary"])
def test_search_in_float32_equals_pytorch(position_encoding: str, search_name: str) -> None:
    """Scores are equal up to the rounding of float32: some ten units in the last of 24 bits for each of up to 52 tokens."""
    model, rules = build_model_with_end_scale(1.5, position_encoding), NO_DECODING_CONSTRAINTS
    compiled = chain.from_iterable(search(prepare(model, "float32"), rules, **SEARCHES[search_name]))
    plain = chain.from_iterable(search(as_inference_model([model.get_transformer()]), rules, **SEARCHES[search_name]))
    for hypothesis, expected in zip(compiled, plain, strict=True):
        assert hypothesis.tokens == expected.tokens
        assert hypothesis.score == pytest.approx(expected.score, abs=1e-4)


def test_outputs_have_all_kinds_of_endings(inference_models: list[InferenceModel]) -> None:
    """Check that the comparisons above cover each way in which an output ends."""
    searches = [
        (inference_model, rules)
        for inference_model in inference_models
        for rules in (NO_DECODING_CONSTRAINTS, RULES["repetition window"])
    ]
    results = chain.from_iterable(search(*arguments, method="greedy") for arguments in searches)
    outputs = [hypotheses[0] for hypotheses in results]
    assert any(output.finished for output in outputs)
    assert any(output.has_repetition for output in outputs)
    assert any(not output.finished and not output.has_repetition for output in outputs)
    assert len({len(output.tokens) for output in outputs}) > 10
    assert max(len(output.tokens) for output in outputs) > 40  # beyond the first capacity


# The last prompt is longer than the first capacity of the cache of keys and values.
def test_compiled_search_reads_a_prompt(subtests: pytest.Subtests, inference_models: list[InferenceModel]) -> None:
    prompts = [(7,), (9, 50, END_ID), tuple(range(4, 94))]
    rules = RULES["repetition window"]
    for number, name in enumerate(["greedy", "beam", "with the present length", "until the beam is full"]):
        for prompt_number in (number, number + 1):
            prompt = prompts[prompt_number % 3]
            with subtests.test(prompt=prompt, name=name):
                inference_model = inference_models[(number + prompt_number) % 3]
                compiled, plain = search_both_ways(inference_model, rules, prompt=prompt, **SEARCHES[name])
                assert compiled == plain
                assert compiled != search(inference_model, rules, **SEARCHES[name])


def test_prompt_is_read_with_a_restricted_vocabulary() -> None:
    """The prompt's tokens are not among those that the shortlist selects."""
    shortlist = mock.Mock(select_tokens=lambda source_BS: np.arange(60))
    inference_model = prepare(build_model_with_end_scale(1.5, "rotary"), shortlist=shortlist)
    compiled, plain = search_both_ways(inference_model, NO_DECODING_CONSTRAINTS, prompt=(100, 70), **SEARCHES["whole beam"])
    assert compiled == plain
    assert {*range(4, 60)} > {token for hypotheses in compiled for token in hypotheses[0].tokens} - {70, 100}


def test_rules_of_early_stopping_differ(inference_models: list[InferenceModel]) -> None:
    """Check that the comparisons above tell the rules apart."""
    outputs = [
        search_both_ways(
            inference_models[2], NO_DECODING_CONSTRAINTS, **SEARCHES["with the present length"] | {"early_stopping": rule}
        )[0]
        for rule in ("exhaustive", "beam_full", "heuristic")
    ]
    assert all(first != second for first, second in combinations(outputs, 2))


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_repetition_is_allowed_by_sentence(inference_models: list[InferenceModel], method: str) -> None:
    constraints = [SentenceConstraints(allow_repetition=number % 2 == 0) for number in range(SOURCES)]
    compiled, plain = search_both_ways(inference_models[0], RULES["repetition window"], constraints, method=method)
    assert compiled == plain
    assert any(hypotheses[0].has_repetition for hypotheses in compiled[1::2])
    assert not any(hypotheses[0].has_repetition for hypotheses in compiled[::2])


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_outputs_are_empty_if_all_tokens_are_suppressed(inference_models: list[InferenceModel], method: str) -> None:
    rules = DecodingConstraints(suppress_tokens=tuple(range(VOCABULARY)))
    compiled, plain = search_both_ways(inference_models[1], rules, method=method)
    assert compiled == plain
    assert not any(hypothesis.tokens for hypotheses in compiled for hypothesis in hypotheses)


def test_suppressed_tokens_of_each_logit_block_do_not_occur() -> None:
    inference_model = prepare(build_model_with_end_scale(1.5, vocabulary=2 * LOGIT_BLOCK))
    outputs = search(inference_model, NO_DECODING_CONSTRAINTS, method="beam")
    used = {token for hypotheses in outputs for token in hypotheses[0].tokens}
    assert {token // LOGIT_BLOCK for token in used} == {0, 1}
    rules = DecodingConstraints(suppress_tokens=tuple(sorted(used, reverse=True)))
    compiled, plain = search_both_ways(inference_model, rules, method="beam")
    assert compiled == plain
    assert used.isdisjoint(token for hypotheses in compiled for token in hypotheses[0].tokens)


def make_job(
    inference_model: InferenceModel,
    *constraints: SentenceConstraints,
    constraint_factory: Any = None,
    return_alternatives: bool = False,
    prompt: tuple[int, ...] = (),
    **decoding: Any,
) -> GenerationJob:
    search = BatchSearch(
        inference_model,
        DecodingConfig(**decoding),
        START_ID,
        NO_DECODING_CONSTRAINTS,
        constraint_factory,
        return_alternatives,
        prompt,
    )
    return GenerationJob(search, make_sources(), range(SOURCES), constraints)


def test_native_requests_are_recognized(inference_models: list[InferenceModel]) -> None:
    greedy: dict[str, Any] = {"method": "greedy"}
    native: list[dict[str, Any]] = [
        greedy,
        {"beam_size": MAX_BEAM_SIZE},
        {"beam_size": 3, "nbest": 3},
        {"early_stopping": "heuristic"},
        {"prompt": (7, 8)},
    ]
    not_native: list[dict[str, Any]] = [
        {"method": "sample"},
        {"beam_size": 4, "num_beam_groups": 2},
        {"beam_size": MAX_BEAM_SIZE + 1},
        {"return_alternatives": True},
        {"repetition_penalty": 1.2},
    ]
    for decoding in native:
        assert make_job(inference_models[0], **decoding).is_native
    assert make_job(inference_models[0], SentenceConstraints(allow_repetition=True), **greedy).is_native
    for decoding in not_native:
        assert not make_job(inference_models[0], **decoding).is_native
    assert not make_job(inference_models[0], SentenceConstraints(exclude=(Phrase(b"a", (7,), {7: b"a"}),)), **greedy).is_native
    assert not make_job(inference_models[0], constraint_factory=lambda indices, limits: None, **greedy).is_native
    assert not make_job(replace(inference_models[0], native_search=None), **greedy).is_native


@pytest.mark.parametrize(("count", "threads"), [(None, None), (3, None), (None, 3)])
def test_layout_does_not_change_results(inference_models: list[InferenceModel], count: int | None, threads: int | None) -> None:
    job, batches = make_job(inference_models[1], method="greedy"), [range(first, first + 10) for first in range(0, SOURCES, 10)]
    assert list(BatchScheduler(count, threads).map(job, batches)) == [job(batch) for batch in batches]


def with_search(inference_model: InferenceModel, **fields: Any) -> InferenceModel:
    """Return the model with other fields of its native search."""
    search: Any = inference_model.native_search
    return replace(inference_model, native_search=replace(search, **fields))


class ThreeThreadModel:
    """Compiled model that three threads may compute, and that notes with how many workers a search starts."""

    max_threads = 3

    def __init__(self, model: Any) -> None:
        self.model = model
        self.num_workers: list[int] = []

    def start(self, source_BS: Any, workers: Sequence[WorkerThread] = ()) -> Any:
        self.num_workers.append(len(workers))
        return self.model.start(source_BS, workers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@pytest.mark.parametrize(
    ("name", "num_groups", "max_workers"),
    [("until the beam is full", SOURCES, 0), ("until the beam is full", 2, 2), ("greedy", 1, 2)],
)
def test_thread_groups_equal_one_thread(
    inference_models: list[InferenceModel], name: str, num_groups: int, max_workers: int
) -> None:
    """Five threads search in groups of three and two, in one group of three, or alone."""
    rules, decoding = RULES["no repeated trigram"], SEARCHES[name]
    inference_model = inference_models[1]
    alone = search(inference_model, rules, **decoding)
    native_search: Any = inference_model.native_search
    model = ThreeThreadModel(native_search.model)
    rows_per_group = SOURCES * decoding.get("beam_size", 1) // num_groups
    grouped_model = with_search(inference_model, model=model, pool=WorkerPool(5), rows_per_group=rows_per_group)
    with limit_threads(5):
        grouped = search(grouped_model, rules, **decoding)
    assert grouped == alone
    assert max(model.num_workers) == max_workers
    assert (1 in model.num_workers) == (num_groups == 2)


@pytest.mark.parametrize("failing_index", [0, 1])
def test_failing_thread_ends_the_wait(
    inference_models: list[InferenceModel], failing_index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of a group fails before its first step."""
    native_search: Any = inference_models[0].native_search
    model = with_search(inference_models[0], model=ThreeThreadModel(native_search.model), pool=WorkerPool(2))
    run_kernel = entry_points.greedy_search

    def fail(*arguments: Any) -> int:
        if arguments[6].group.thread_index == failing_index:
            raise MemoryError("no more")
        return run_kernel(*arguments)

    monkeypatch.setattr(entry_points, "greedy_search", mock.Mock(side_effect=fail))
    with limit_threads(2), pytest.raises(MemoryError, match="no more"):
        generate(BatchSearch(model, DecodingConfig(method="greedy"), start_id=START_ID), make_sources()[:3])


def test_failing_group_cancels_the_others(inference_models: list[InferenceModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other group ends after the steps that it has begun."""
    model = with_search(inference_models[0], pool=WorkerPool(4), steps_per_call=1)
    run_kernel, first_call, has_failed = entry_points.greedy_search, Lock(), Event()

    def fail(*arguments: Any) -> int:
        if first_call.acquire(blocking=False):
            has_failed.set()
            raise MemoryError("no more")
        assert has_failed.wait(60)
        time.sleep(1.0)  # the failing thread cancels the others in the meantime
        return run_kernel(*arguments)

    kernel = mock.Mock(side_effect=fail)
    monkeypatch.setattr(entry_points, "greedy_search", kernel)
    with limit_threads(4), pytest.raises(MemoryError, match="no more"):
        generate(BatchSearch(model, DecodingConfig(method="greedy"), start_id=START_ID), make_sources())
    assert 1 <= kernel.call_count <= 12  # a search has 12 steps and more


def test_busy_workers_are_not_lent_again() -> None:
    """A second Ctrl-C ends the wait for the workers, which finish their tasks alone."""
    pool = WorkerPool(3)
    started, may_end, cancel = Event(), Event(), mock.Mock()

    def interrupt() -> None:
        started.wait(60)
        Timer(0.2, pthread_kill, [main_thread().ident, SIGINT]).start()
        raise KeyboardInterrupt

    def work() -> None:
        started.set()
        may_end.wait(300)

    previous_handler = signal(SIGINT, default_int_handler)  # a background process ignores the signal
    try:
        with pytest.raises(KeyboardInterrupt), pool.borrow(1) as busy_workers:
            run_all([interrupt, work], busy_workers, cancel)
    finally:
        signal(SIGINT, previous_handler)
    assert cancel.call_count == 2
    with pool.borrow(2) as workers:
        assert len(workers) == 2
        assert busy_workers[0] not in workers
    may_end.set()


def test_borrowed_workers_are_not_lent_again() -> None:
    pool = WorkerPool(4)
    with pool.borrow(2) as first, pool.borrow(2) as second, pool.borrow(1) as third:
        assert [len(workers) for workers in (first, second, third)] == [2, 0, 0]
    with pool.borrow(9) as all_workers:
        assert len(all_workers) == 3
        assert set(first) < set(all_workers)  # idle workers are reused


def test_search_runs_without_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(40)
    with pool.borrow(5):
        pass
    with pool.borrow(3) as first:
        monkeypatch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        with pool.borrow(30) as second:
            assert len(second) == 2
            assert not set(first) & set(second)
    with pool.borrow(30) as all_workers:
        assert set(all_workers) == {*first, *second}


def test_first_error_is_raised() -> None:
    canceled = Event()

    def wait_and_end() -> None:
        canceled.wait(60)
        raise Canceled

    def fail() -> None:
        raise MemoryError("no more")

    with WorkerPool(3).borrow(2) as workers:
        for tasks in (
            [fail, wait_and_end, wait_and_end],
            [wait_and_end, fail, wait_and_end],
            [wait_and_end, wait_and_end, fail],
        ):
            canceled.clear()
            with pytest.raises(MemoryError, match="no more"):
                run_all(tasks, workers, canceled.set)


def test_forked_process_starts_its_own_threads() -> None:
    """The parent's threads do not exist in it."""
    for _ in range(2):  # this process has idle threads the second time
        child = get_context("fork").Process(target=_run_two_tasks, daemon=True)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        _run_two_tasks()


def _run_two_tasks() -> None:
    with mock.patch.object(POOL, "num_cores", 2), POOL.borrow(1) as workers:
        assert run_all([lambda: 1, lambda: 2], workers, lambda: None) == [1, 2]


def test_empty_batch_has_no_outputs(inference_models: list[InferenceModel]) -> None:
    for method in ("greedy", "beam"):
        assert generate(BatchSearch(inference_models[0], DecodingConfig(method=method), start_id=START_ID), []) == []
