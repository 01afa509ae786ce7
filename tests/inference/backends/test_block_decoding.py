"""Choice of the block size by measurement, with searches whose time is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends import block_decoding
from dragoman.inference.backends.block_decoding import PROBE_LENGTH, BlockDecoding

ACCEPTANCE = {2: 1.6, 3: 2.0, 4: 2.1}
ENCODER_SECONDS = 40.0


class Clock:
    """Clock that only the searches of a test advance."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BlockDecoding]:
    """Return a function of the seconds of a step by block size, which makes searches that take this time."""
    clock, num_searches = Clock(), [0]
    monkeypatch.setattr(block_decoding, "time", clock)
    monkeypatch.setattr(block_decoding, "choose_cached", lambda key, choices, measure: measure())

    def make(step_seconds: Mapping[int, float], acceptance: Mapping[int, float] = ACCEPTANCE) -> BlockDecoding:
        def search(source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
            num_searches[0] += 1
            num_steps = request.max_lengths[0]
            clock.seconds += ENCODER_SECONDS + step_seconds[block_size] * num_steps
            return [Hypothesis((5,), (0.0,), 0.0, True, step_lengths=(1,) * num_steps)] * len(source_BS)

        def search_plainly(source_BS: Tensor, request: SearchRequest) -> list[Hypothesis]:
            return search(source_BS, request, block_size=1)

        return BlockDecoding(search, search_plainly, acceptance, "test", 50)

    return make


@pytest.mark.parametrize(
    ("step_seconds", "may_be_one", "block_size"),
    [
        ({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3}, True, 3),  # 1.1 / 1.6, 1.2 / 2.0 and 1.3 / 2.1 seconds a token
        ({1: 1.0, 2: 1.1, 3: 1.5, 4: 1.9}, True, 2),
        ({1: 1.0, 2: 1.55, 3: 2.2, 4: 2.9}, True, 1),  # 3 % faster is no reason
        ({1: 1.0, 2: 1.9, 3: 2.2, 4: 2.9}, False, 3),
        ({1: 1.0, 2: 2.5}, True, 1),  # two tokens in the time of 2.5, so larger blocks are not measured
    ],
)
def test_fastest_block_size_is_chosen(
    build: Callable[..., BlockDecoding], step_seconds: dict[int, float], may_be_one: bool, block_size: int
) -> None:
    assert build(step_seconds).choose_block_size(1, may_be_one=may_be_one) == block_size


def test_each_batch_takes_the_nearest_measurement(build: Callable[..., BlockDecoding], monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = build({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    measured: list[int] = []

    def measure(batch_size: int, _block_sizes: list[int]) -> int:
        measured.append(batch_size)
        return 2

    monkeypatch.setattr(decoding, "_measure", measure)
    for num_sentences in (1, 2, 3, 7, 9, 30, 33, 500):
        assert decoding.choose_block_size(num_sentences, may_be_one=True) == 2
    assert measured == [1, 4, 16, 64]


def test_heads_of_unknown_acceptance_are_not_used(build: Callable[..., BlockDecoding]) -> None:
    assert build({1: 1.0}, {}).choose_block_size(1, may_be_one=False) == 1


def test_measurement_uses_the_search_itself() -> None:
    torch.manual_seed(0)
    lengths: list[list[int]] = []

    def search_plainly(source_BS: Tensor, request: SearchRequest) -> list[Hypothesis]:
        lengths.append(list(request.max_lengths))
        assert int(source_BS.max()) < 50
        assert request.min_length in (0, PROBE_LENGTH)
        return []

    def search(source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
        search_plainly(source_BS, request)
        return [Hypothesis((5,), (0.0,), 0.0, True, step_lengths=(1,))]

    decoding = BlockDecoding(search, search_plainly, {2: 1.5}, "test", 50)
    assert decoding._measure(4, [1, 2]) in (1, 2)
    assert [PROBE_LENGTH] * 4 in lengths
