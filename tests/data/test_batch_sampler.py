"""The order of batches: nothing lost or doubled, any place at once, mixtures as the recipe says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import DataConfig
from dragoman.data.batch_sampler import BatchIndices, BatchSampler
from dragoman.data.counter_rng import hash64, hash_to_uniform, permute_index
from dragoman.data.encoded_corpus import Corpus, LengthTable, build_pair_batch, build_pair_schema, write_batches, write_lengths
from dragoman.data.mixture import Mixture
from dragoman.errors import DataError

Sizes = Sequence[tuple[int, int]]


def table(folder: Path, lengths: Sizes, name: str = "a") -> LengthTable:
    """The length table of a corpus whose pairs have these lengths, end token of the target included."""
    rows = [([5] * source, [6] * (target - 1), number) for number, (source, target) in enumerate(lengths, start=1)]
    sources, targets, numbers = zip(*rows, strict=True)
    schema = build_pair_schema(10)
    write_batches(folder / f"{name}-00000.arrow", [build_pair_batch(sources, targets, numbers, schema)], schema)
    corpus = Corpus([folder / f"{name}-00000.arrow"])
    write_lengths(folder / f"{name}.lengths.arrow", corpus)
    return LengthTable(folder / f"{name}.lengths.arrow")


def epoch_of(order: BatchSampler, epoch: int) -> list[BatchIndices]:
    return [order.get_batch(epoch, number) for number in range(len(order.plan_epoch(epoch)))]


def drawn(order: BatchSampler, epoch: int) -> Counter[tuple[int, int]]:
    """How often each (corpus, pair) comes in an epoch."""
    return Counter(
        one
        for batch in epoch_of(order, epoch)
        for one in zip(batch.corpus_indices.tolist(), batch.pair_indices.tolist(), strict=True)
    )


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=80)


@settings(deadline=None, max_examples=150)
@given(LENGTHS, st.integers(1, 60), st.integers(0, 2**31 - 1), st.integers(0, 5))
def test_every_pair_once_in_batches_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory, lengths: Sizes, budget: int, seed: int, epoch: int
) -> None:
    lengths_table = table(tmp_path_factory.mktemp("order"), lengths)
    order = BatchSampler([lengths_table], Mixture.single_pass(), batch_tokens=budget, seed=seed)
    batches = epoch_of(order, epoch)
    assert sorted(pair for batch in batches for pair in batch.pair_indices.tolist()) == list(range(len(lengths)))
    assert sorted(slot for batch in batches for slot in batch.positions.tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = max(max(lengths[pair]) for pair in batch.pair_indices.tolist())
        assert len(batch) > 0
        assert longest * len(batch) <= budget or len(batch) == 1


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(3, 9), st.integers(1, 9)), min_size=1, max_size=80), st.integers(1, 60), st.integers(0, 40)
)
def test_batches_are_as_full_as_the_next_pair_allows(
    tmp_path_factory: pytest.TempPathFactory, lengths: Sizes, budget: int, epoch: int
) -> None:
    """Only the first batch, whose budget is drawn, has room for the pair that begins the next one."""
    order = BatchSampler([table(tmp_path_factory.mktemp("order"), lengths)], Mixture.single_pass(), batch_tokens=budget, seed=3)
    plan = order.plan_epoch(epoch)
    by_start = sorted(zip(plan.batch_starts[plan.batch_order].tolist(), range(len(plan)), strict=True))
    in_order = [order.get_batch(epoch, number) for _, number in by_start]
    longest = [max(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in in_order]
    first_of_next = [min(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in in_order[1:]]
    room = [(len(batch) + 1) * max(one, other) for batch, one, other in zip(in_order, longest, first_of_next, strict=False)]
    assert all(needed > budget for needed in room[1:])


def test_order_is_a_function_of_seed_and_epoch(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    lengths_table = table(tmp_path, [tuple(pair) for pair in chance.integers(1, 12, (400, 2)).tolist()])

    def pairs(seed: int, epoch: int) -> list[list[int]]:
        order = BatchSampler([lengths_table], Mixture.single_pass(), batch_tokens=100, seed=seed)
        return [batch.pair_indices.tolist() for batch in epoch_of(order, epoch)]

    assert pairs(1, 7) == pairs(1, 7)
    assert pairs(1, 7) != pairs(1, 8)
    assert pairs(1, 7) != pairs(2, 7)
    order = BatchSampler([lengths_table], Mixture.single_pass(), batch_tokens=100, seed=1)
    backwards = [order.get_batch(7, number).pair_indices.tolist() for number in reversed(range(len(order.plan_epoch(7))))]
    assert backwards[::-1] == pairs(1, 7)


def test_batches_meet_other_pairs_in_every_epoch(tmp_path: Path) -> None:
    """Of two pairs of one batch, at random, few are together again in the next epoch: lengths alone would allow a third."""
    chance = np.random.default_rng(1)
    lengths = [tuple(pair) for pair in chance.integers(8, 12, (2000, 2)).tolist()]
    order = BatchSampler([table(tmp_path, lengths)], Mixture.single_pass(), batch_tokens=440, seed=3)
    homes = []
    for epoch in (0, 1):
        home = np.empty(len(lengths), dtype=int)
        for number, batch in enumerate(epoch_of(order, epoch)):
            home[batch.pair_indices] = number
        homes.append(home)
    one, other = chance.integers(0, len(lengths), (2, 200_000))
    together = (homes[0][one] == homes[0][other]) & (one != other)
    again = (homes[1][one] == homes[1][other])[together].mean()
    assert together.sum() > 1000
    assert again < 0.4


def test_lengths_come_in_no_order(tmp_path: Path) -> None:
    """Rank correlation of length and place in the epoch, over many epochs, is that of a shuffled list: 1/√(n−1) wide."""
    chance = np.random.default_rng(1)
    lengths = [tuple(pair) for pair in chance.integers(1, 60, (1600, 2)).tolist()]
    order = BatchSampler([table(tmp_path, lengths)], Mixture.single_pass(), batch_tokens=400, seed=5)
    correlations, neighbours = [], []
    for epoch in range(30):
        longest = np.array(
            [max(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in epoch_of(order, epoch)]
        )
        ranks = np.argsort(np.argsort(longest))
        scale = math.sqrt(len(ranks) - 1)
        correlations.append(scale * np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])
        neighbours.append(scale * np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
    for found in (correlations, neighbours):
        assert abs(np.mean(found)) < 4 / math.sqrt(30)
        assert 0.6 < np.std(found) < 1.5


def shares(folder: Path, config: DataConfig, sizes: dict[str, int], epochs: int) -> list[dict[str, int]]:
    """How many pairs of each corpus come in each epoch."""
    chance = np.random.default_rng(2)
    tables = [
        table(folder, [tuple(pair) for pair in chance.integers(1, 9, (size, 2)).tolist()], name) for name, size in sizes.items()
    ]
    order = BatchSampler(tables, Mixture.from_config(config, sizes), batch_tokens=200, seed=1)
    found = []
    for epoch in range(epochs):
        counts = Counter(corpus for corpus, _ in drawn(order, epoch).elements())
        found.append({name: counts[number] for number, name in enumerate(sizes)})
    return found


def corpora(**weights: float | None) -> dict[str, object]:
    return {name: {"file": f"{name}.tsv", "weight": weight} for name, weight in weights.items()}


SIZES = {"clean": 300, "web": 1500}


def test_without_weights_each_pair_comes_once(tmp_path: Path) -> None:
    config = DataConfig.model_validate({"corpora": corpora(clean=None, web=None)})
    assert shares(tmp_path, config, SIZES, 2) == [SIZES, SIZES]
    warm = DataConfig.model_validate({"corpora": corpora(clean=None, web=None), "temperature": 1.0})
    assert shares(tmp_path, warm, SIZES, 1) == [SIZES]


def test_weights_are_shares_of_the_epoch(tmp_path: Path) -> None:
    """Three to one: 1,350 and 450 of 1,800, each run of equal lengths rounded up or down."""
    config = DataConfig.model_validate({"corpora": corpora(clean=3.0, web=1.0)})
    for found in shares(tmp_path, config, SIZES, 3):
        assert found["clean"] == pytest.approx(1350, abs=40)
        assert found["web"] == pytest.approx(450, abs=40)


def test_temperature_flattens_the_sizes(tmp_path: Path) -> None:
    """Sizes 300 and 1,500 to the power of 1/2: shares 0.309 and 0.691 of 1,800."""
    config = DataConfig.model_validate({"corpora": corpora(clean=None, web=None), "temperature": 2.0})
    share = math.sqrt(300) / (math.sqrt(300) + math.sqrt(1500))
    found = shares(tmp_path, config, SIZES, 1)[0]
    assert found["clean"] == pytest.approx(1800 * share, abs=40)
    assert found["web"] == pytest.approx(1800 * (1 - share), abs=40)


def test_stages_change_with_the_epochs(tmp_path: Path) -> None:
    stages = [{"end_epoch": 2, "weights": {"clean": 1.0}}, {"end_epoch": 3, "weights": {"clean": 1.0, "web": 1.0}}, {}]
    config = DataConfig.model_validate({"corpora": corpora(clean=None, web=None), "curriculum": stages})
    found = shares(tmp_path, config, SIZES, 4)
    assert found[:2] == [{"clean": 300, "web": 0}] * 2
    assert found[2]["clean"] == pytest.approx(900, abs=1)
    assert found[2]["web"] == pytest.approx(900, abs=40)
    assert found[3]["clean"] == 300
    assert found[3]["web"] == pytest.approx(1500, abs=40)


@settings(deadline=None, max_examples=40)
@given(LENGTHS, LENGTHS, st.floats(0.05, 20.0), st.integers(1, 12))
def test_a_corpus_is_gone_round_before_any_pair_comes_again(
    tmp_path_factory: pytest.TempPathFactory, one: Sizes, other: Sizes, weight: float, epochs: int
) -> None:
    """Over any number of epochs, the pairs of one corpus and one length differ by one appearance at most."""
    folder = tmp_path_factory.mktemp("rounds")
    config = DataConfig.model_validate({"corpora": corpora(a=weight, b=1.0)})
    mixture = Mixture.from_config(config, {"a": len(one), "b": len(other)})
    order = BatchSampler([table(folder, one, "a"), table(folder, other, "b")], mixture, batch_tokens=50, seed=1)
    total: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        total += drawn(order, epoch)
        for corpus, lengths in enumerate((one, other)):
            for kind in set(lengths):
                times = [total[corpus, pair] for pair, lengths_of in enumerate(lengths) if lengths_of == kind]
                assert max(times) - min(times) <= 1


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**63))
def test_a_permutation_loses_nothing(size: int, key: int) -> None:
    places = np.arange(size)
    keys = np.broadcast_to(hash64(key), places.shape)
    found = permute_index(places, np.full(size, size), keys)
    assert sorted(found.tolist()) == places.tolist()
    alone = [int(permute_index(places[i : i + 1], np.array([size]), keys[i : i + 1])[0]) for i in range(0, size, 17)]
    assert alone == found[::17].tolist()


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_permutations_favour_no_place(size: int) -> None:
    """Over 30,000 keys every element comes to every place as often as to any other: a tenth more or less at most."""
    keys = hash64(11, np.arange(30_000))
    for place in range(size):
        found = permute_index(np.full(30_000, place), np.full(30_000, size), keys)
        assert np.bincount(found, minlength=size) * size / 30_000 == pytest.approx(np.ones(size), abs=0.1)


def test_mixing_follows_splitmix64() -> None:
    """One number from zero is the generator's first output for that seed: 0xE220A8397B1DCDAF for 0, as its authors publish."""
    assert int(hash64(0)) == 0xE220A8397B1DCDAF
    assert hash64(1, np.arange(3)).shape == (3,)
    assert len({int(word) for word in hash64(1, 2, np.arange(1000))}) == 1000
    assert int(hash64(1, 2)) != int(hash64(2, 1))
    found = hash_to_uniform(hash64(3, np.arange(100_000)))
    assert 0 <= found.min() < found.max() < 1
    assert found.mean() == pytest.approx(0.5, abs=0.005)
    assert np.histogram(found, 10, (0, 1))[0] == pytest.approx(np.full(10, 10_000), abs=400)


def test_lengths_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.lengths.arrow"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"a\.lengths\.arrow: not the lengths of a prepared corpus"):
        LengthTable(path)
    schema = build_pair_schema(10)
    write_batches(path, [build_pair_batch([[4]], [[5]], [1], schema)], schema)
    with pytest.raises(DataError, match="not the lengths"):
        LengthTable(path)
