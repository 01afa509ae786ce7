"""A compiled search finds what the search in Python finds by the same steps: tokens, probabilities, scores, to the last bit."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context
from threading import Event, Lock, Thread
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.backends.select import build_inference_model
from dragoman.model.factory import build_model
from dragoman.tasks.generation import BatchSearch, GenerationJob, generate
from dragoman.tasks.inference_model import InferenceModel

pytest.importorskip("numba", reason="the extra `fast` is not installed")

from dragoman.inference.backends.compiled import jit_cache, threads
from dragoman.inference.backends.compiled.kernels.cpu_features import has_avx512_vnni
from dragoman.inference.backends.compiled.kernels.structs import MAX_BEAM_SIZE
from dragoman.inference.backends.compiled.search import CompiledSearch
from dragoman.inference.backends.compiled.threads import Canceled, StepGroup, borrow_workers, run_all
from dragoman.inference.parallel.scheduler import BatchScheduler

pytestmark = pytest.mark.skipif(not has_avx512_vnni(), reason="this processor has no AVX-512 with VNNI")

VOCABULARY = 120
SOURCES = 40
START_ID = PADDING_ID


@pytest.fixture(autouse=True, scope="module")
def without_gradients(one_core: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def speaker_that_ends(often: float) -> InferenceModel:
    """One whose outputs end sooner where the end token's vector is longer."""
    torch.manual_seed(2)
    config = ModelConfig(encoder_layers=1, decoder_layers=2, d_model=48, d_ff=64, num_heads=4, tie_embeddings="none")
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, padding_id=PADDING_ID).eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    model.output[END_ID] *= often
    return build_inference_model([model], torch.device("cpu"), "int8", None)


@pytest.fixture(scope="module")
def speakers(one_core: None) -> list[InferenceModel]:
    with torch.no_grad():
        return [speaker_that_ends(often) for often in (0.1, 1.5, 4.0)]


def sources() -> list[list[int]]:
    chance = random.Random(3)
    some = [chance.choices(range(4, VOCABULARY), k=chance.randint(1, 40)) for _ in range(SOURCES)]
    return [[*source, END_ID] for source in some]


def both(
    speaker: InferenceModel, rules: DecodingConstraints, wishes: list[SentenceConstraints] | None = None, **decoding: Any
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """What the compiled search finds, and what Python's does."""
    assert isinstance(speaker.native_search, CompiledSearch)
    config = DecodingConfig(**({"max_extra_tokens": 12, "batch_tokens": 6000} | decoding))
    ways = speaker, replace(speaker, native_search=None)
    compiled, plain = (
        generate(one, sources(), config, start_id=START_ID, decoding_constraints=rules, constraints=wishes or [])
        for one in ways
    )
    return compiled, plain


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "a beam of one": {"method": "beam", "beam_size": 1},
    "a beam": {"method": "beam", "beam_size": 4, "alpha": 0.6},
    "all of a beam": {"method": "beam", "beam_size": 5, "nbest": 5, "length_penalty": "power", "alpha": 1.0},
    "until all are finished": {"method": "beam", "beam_size": 3, "early_stopping": "beam_full", "nbest": 2},
    "until the best is": {"method": "beam", "beam_size": 3, "early_stopping": "best", "nbest": 2, "length_penalty": "none"},
    "little room": {"method": "beam", "beam_size": 2, "nbest": 2, "max_extra_tokens": 0},
    "a wide beam": {"method": "beam", "beam_size": MAX_BEAM_SIZE, "nbest": 3},
}
RULES: dict[str, DecodingConstraints] = {
    "none": NO_DECODING_CONSTRAINTS,
    "circles are stopped": DecodingConstraints(repetition_window=8),
    "long, and some not said": DecodingConstraints(min_length=9, suppress_tokens=(5, 6, 7, 40, 41), repetition_window=32),
    "nothing twice": DecodingConstraints(no_repeat_ngram_size=1),
    "no three twice": DecodingConstraints(no_repeat_ngram_size=3, suppress_tokens=(9,)),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("decoding", SEARCHES.values(), ids=SEARCHES)
def test_it_finds_what_python_finds(
    speakers: list[InferenceModel], decoding: dict[str, Any], rules: DecodingConstraints
) -> None:
    for speaker in speakers:
        compiled, plain = both(speaker, rules, **decoding)
        assert compiled == plain


def test_outputs_end_and_go_round_and_are_cut(speakers: list[InferenceModel]) -> None:
    """So that what is compared above holds all that can become of an output."""
    asked = [(speaker, rules) for speaker in speakers for rules in (NO_DECODING_CONSTRAINTS, RULES["circles are stopped"])]
    found = [one[0] for one in chain.from_iterable(both(*one, method="greedy")[0] for one in asked)]
    assert any(one.finished for one in found)
    assert any(one.has_repetition for one in found)
    assert any(not one.finished and not one.has_repetition for one in found)
    assert len({len(one.tokens) for one in found}) > 10
    assert max(len(one.tokens) for one in found) > 40  # beyond the room that is made at first


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_some_may_go_round(speakers: list[InferenceModel], method: str) -> None:
    wishes = [SentenceConstraints(allow_repetition=number % 2 == 0) for number in range(SOURCES)]
    compiled, plain = both(speakers[0], RULES["circles are stopped"], wishes, method=method)
    assert compiled == plain
    assert any(one[0].has_repetition for one in compiled[1::2])
    assert not any(one[0].has_repetition for one in compiled[::2])


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_where_nothing_is_allowed_nothing_is_said(speakers: list[InferenceModel], method: str) -> None:
    rules = DecodingConstraints(suppress_tokens=tuple(range(VOCABULARY)))
    compiled, plain = both(speakers[1], rules, method=method)
    assert compiled == plain
    assert not any(one.tokens for some in compiled for one in some)


def test_more_than_plain_requests_are_searched_by_python(speakers: list[InferenceModel]) -> None:
    compiled, plain = both(speakers[1], NO_DECODING_CONSTRAINTS, [SentenceConstraints(prefix=(7, 8))] * SOURCES, method="beam")
    assert compiled == plain
    assert all(one[0].tokens[:2] == (7, 8) for one in compiled)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_sentence_alone_is_what_it_is_in_a_batch(speakers: list[InferenceModel], method: Any) -> None:
    config = DecodingConfig(method=method, max_extra_tokens=12)
    together = generate(speakers[1], sources(), config, start_id=START_ID)
    alone = [generate(speakers[1], [source], config, start_id=START_ID)[0] for source in sources()[:12]]
    assert together[:12] == alone


def work_of(
    speaker: InferenceModel, *wishes: SentenceConstraints, constrain: Any = None, branching: bool = False, **decoding: Any
) -> GenerationJob:
    search = BatchSearch(speaker, DecodingConfig(**decoding), START_ID, NO_DECODING_CONSTRAINTS, constrain, branching)
    return GenerationJob(search, sources(), range(SOURCES), wishes)


def test_what_python_searches_is_known(speakers: list[InferenceModel]) -> None:
    greedy: dict[str, Any] = {"method": "greedy"}
    plains: list[dict[str, Any]] = [greedy, {"beam_size": MAX_BEAM_SIZE}, {"beam_size": 3, "nbest": 3}]
    others: list[dict[str, Any]] = [
        {"method": "sample"},
        {"beam_size": 4, "num_beam_groups": 2},
        {"beam_size": MAX_BEAM_SIZE + 1},
        {"branching": True},
    ]
    for plain in plains:
        assert work_of(speakers[0], **plain).is_native
    assert work_of(speakers[0], SentenceConstraints(allow_repetition=True), **greedy).is_native
    for other in others:
        assert not work_of(speakers[0], **other).is_native
    assert not work_of(speakers[0], SentenceConstraints(exclude=((7,),)), **greedy).is_native
    assert not work_of(speakers[0], constrain=lambda numbers, limits: None, **greedy).is_native
    assert not work_of(replace(speakers[0], native_search=None), **greedy).is_native


@pytest.mark.parametrize(("count", "threads"), [(None, None), (3, None), (None, 3)])
def test_threads_share_out_what_is_searched_in_one_call(
    speakers: list[InferenceModel], count: int | None, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without asking which way is the fastest, and with the same results."""
    monkeypatch.setattr(
        "dragoman.inference.parallel.scheduler.get_measurement", lambda question: pytest.fail("nothing is to be asked")
    )
    work, pieces = work_of(speakers[1], method="greedy"), [range(first, first + 10) for first in range(0, SOURCES, 10)]
    assert list(BatchScheduler(count, threads, "which").map(work, pieces)) == [work(piece) for piece in pieces]


@pytest.mark.parametrize(("count", "threads", "most"), [(2, 1, 0), (1, 3, 2), (2, 2, 1)])
def test_a_search_asks_for_as_many_helpers_as_replicas_leave_it(
    speakers: list[InferenceModel], count: int, threads: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = mock.Mock(side_effect=lambda most: borrow_workers(0))
    work, pieces = work_of(speakers[1], method="greedy"), [range(SOURCES)] * 2
    wanted = [work(piece) for piece in pieces]
    monkeypatch.setattr("dragoman.inference.backends.compiled.search.borrow_workers", asking)
    assert list(BatchScheduler(count, threads, "which").map(work, pieces)) == wanted
    assert asking.mock_calls == [mock.call(most)] * len(pieces)


@pytest.mark.parametrize(("parts", "helping"), [(SOURCES, 0), (2, 2), (1, 2)], ids=["side by side", "two teams", "one team"])
@pytest.mark.parametrize("decoding", [SEARCHES["greedy"], SEARCHES["until all are finished"]], ids=["greedy", "beam"])
def test_threads_search_together(
    speakers: list[InferenceModel], decoding: dict[str, Any], parts: int, helping: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five, in teams of three and two, in one of three, or with sentences of their own; what they find is what one finds."""
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 5)
    monkeypatch.setattr("dragoman.inference.backends.compiled.model.WIDTH_PER_THREAD", 16)  # three in a team
    rules = RULES["no three twice"]
    for speaker in speakers:
        alone, _ = both(speaker, rules, **decoding)
        monkeypatch.setattr(
            "dragoman.inference.backends.compiled.search.ROWS_PER_GROUP", SOURCES * decoding.get("beam_size", 1) // parts
        )
        hired: list[int] = []
        monkeypatch.setattr(
            "dragoman.inference.backends.compiled.model.StepGroup",
            lambda helpers, hired=hired: hired.append(len(helpers)) or StepGroup(helpers),
        )
        torch.set_num_threads(5)
        try:
            found, _ = both(speaker, rules, **decoding)
        finally:
            torch.set_num_threads(1)
        assert found == alone
        assert max(hired) == helping
        assert (1 in hired) == (parts == 2)


@pytest.mark.parametrize("who", [0, 1])
def test_whoever_fails_keeps_nobody_waiting(speakers: list[InferenceModel], who: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a team, before it has begun."""
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 2)
    monkeypatch.setattr("dragoman.inference.backends.compiled.model.WIDTH_PER_THREAD", 16)
    enter = jit_cache.greedy_search

    def fail(*given: Any) -> int:
        if given[6].group.thread_index == who:
            raise MemoryError("no more")
        return enter(*given)

    monkeypatch.setattr(jit_cache, "greedy_search", mock.Mock(side_effect=fail))
    torch.set_num_threads(2)
    try:
        with pytest.raises(MemoryError, match="no more"), torch.inference_mode():
            generate(speakers[0], sources()[:3], DecodingConfig(method="greedy"), start_id=START_ID)
    finally:
        torch.set_num_threads(1)


def test_where_some_sentences_fail_the_others_are_left(speakers: list[InferenceModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the step that each of them is at."""
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 4)
    monkeypatch.setattr("dragoman.inference.backends.compiled.search.MAX_STEPS_PER_CALL", 1)
    enter, failing, over = jit_cache.greedy_search, Lock(), Event()
    monkeypatch.setattr("dragoman.inference.backends.compiled.search.Event", lambda: over)

    def fail(*given: Any) -> int:
        if failing.acquire(blocking=False):
            raise MemoryError("no more")
        assert over.wait(30)
        return enter(*given)

    steps = mock.Mock(side_effect=fail)
    monkeypatch.setattr(jit_cache, "greedy_search", steps)
    torch.set_num_threads(4)
    try:
        with pytest.raises(MemoryError, match="no more"):
            generate(speakers[0], sources(), DecodingConfig(method="greedy"), start_id=START_ID)
    finally:
        torch.set_num_threads(1)
    assert 1 <= steps.call_count <= 4


def test_what_is_searched_by_is_there_before_helpers_are(
    speakers: list[InferenceModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is compiled would else be heard after it is compiled once more by who waits for it."""
    monkeypatch.setattr(
        "dragoman.inference.backends.compiled.search.borrow_workers", mock.Mock(side_effect=AssertionError("too soon"))
    )
    methods: list[tuple[str, Any]] = [("encode", "greedy"), ("greedy_search", "greedy"), ("beam_search", "beam")]
    for name, method in methods:
        entry = mock.Mock()
        entry.load.side_effect = KeyboardInterrupt
        with monkeypatch.context() as patch:
            patch.setattr(jit_cache, name, entry)
            with pytest.raises(KeyboardInterrupt):
                generate(speakers[0], sources(), DecodingConfig(method=method), start_id=START_ID)


def test_who_is_still_at_work_helps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, and once more while the others are waited for: nobody waits longer, and what they do is theirs to end."""
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 3)
    begun, over, stopped = Event(), Event(), mock.Mock()

    def press() -> None:
        begun.wait(30)
        raise KeyboardInterrupt

    def work() -> None:
        begun.set()
        over.wait(30)

    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.wait", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), borrow_workers(1) as one:
        run_all([press, work], one, stopped)
    assert stopped.call_count == 2
    with borrow_workers(2) as others:
        assert len(others) == 2
        assert one[0] not in others
    over.set()


class _Large:
    """What a search may hold."""


def test_who_rests_holds_nothing_of_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 2)
    with borrow_workers(1) as one:
        found = run_all([_Large, _Large], one, lambda: None)
    gone = ref(found[1])
    del found
    gc.collect()
    assert gone() is None


def test_threads_that_one_search_has_no_other_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 4)
    with borrow_workers(2) as first, borrow_workers(2) as second, borrow_workers(1) as third:
        assert [len(one) for one in (first, second, third)] == [2, 0, 0]
    with borrow_workers(9) as all_others:
        assert len(all_others) == 3
        assert set(first) < set(all_others)  # who has been idle


def test_where_no_thread_can_be_had_one_searches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 40)
    with borrow_workers(3) as some:
        monkeypatch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        with borrow_workers(30) as others:
            assert not set(some) & set(others)
    with borrow_workers(30) as all_there_are:
        assert set(all_there_are) == {*some, *others}


def test_what_a_caller_allows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads.get_thread_limit() == torch.get_num_threads()
    with threads.limit_threads(7):
        assert threads.get_thread_limit() == 7


def test_who_fails_is_told_and_whom_that_stopped_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inference.backends.compiled.threads.count_cores", lambda: 3)
    over = Event()

    def stopped() -> None:
        over.wait(30)
        raise Canceled

    def fail() -> None:
        raise MemoryError("no more")

    with borrow_workers(2) as two:
        for works in ([fail, stopped, stopped], [stopped, fail, stopped], [stopped, stopped, fail]):
            over.clear()
            with pytest.raises(MemoryError, match="no more"):
                run_all(works, two, over.set)


def test_a_process_that_is_forked_off_has_threads_of_its_own() -> None:
    """Those of its parent it has not."""
    for _ in range(2):  # the second time this process has threads
        child = get_context("fork").Process(target=_in_company, daemon=True)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        _in_company()


def _in_company() -> None:
    with mock.patch("dragoman.inference.backends.compiled.threads.count_cores", return_value=2), borrow_workers(1) as one:
        assert run_all([lambda: 1, lambda: 2], one, lambda: None) == [1, 2]


def test_no_sources_have_no_outputs(speakers: list[InferenceModel]) -> None:
    for method in ("greedy", "beam"):
        assert generate(speakers[0], [], DecodingConfig(method=method), start_id=START_ID) == []
