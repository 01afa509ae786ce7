"""Tests of the batch order: complete epochs, token budgets, determinism and mixtures."""

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
from expected_errors import raises_code

LengthPairs = Sequence[tuple[int, int]]


def make_table(folder: Path, lengths: LengthPairs, name: str = "a") -> LengthTable:
    """Return the length table of a corpus with pairs of these lengths, including the end token of the target."""
    rows = [([5] * source, [6] * (target - 1), number) for number, (source, target) in enumerate(lengths, start=1)]
    sources, targets, numbers = zip(*rows, strict=True)
    schema = build_pair_schema(10)
    write_batches(folder / f"{name}-00000.arrow", [build_pair_batch(sources, targets, numbers, schema)], schema)
    corpus = Corpus([folder / f"{name}-00000.arrow"])
    write_lengths(folder / f"{name}.lengths.arrow", corpus)
    return LengthTable(folder / f"{name}.lengths.arrow")


def make_sampler(folder: Path, lengths: LengthPairs, batch_tokens: int, seed: int = 3) -> BatchSampler:
    """Return the sampler of one corpus with pairs of these lengths."""
    mixture = Mixture.from_config(DataConfig(), {"train": 1})
    return BatchSampler([make_table(folder, lengths)], mixture, batch_tokens=batch_tokens, seed=seed)


def list_epoch(sampler: BatchSampler, epoch: int) -> list[BatchIndices]:
    return [sampler.get_batch(epoch, number) for number in range(len(sampler.plan_epoch(epoch)))]


def count_draws(sampler: BatchSampler, epoch: int) -> Counter[tuple[int, int]]:
    """Return the number of draws of each (corpus, pair) in an epoch."""
    return Counter(
        corpus_and_pair
        for batch in list_epoch(sampler, epoch)
        for corpus_and_pair in zip(batch.corpus_indices.tolist(), batch.pair_indices.tolist(), strict=True)
    )


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=80)


@pytest.mark.slow
@given(LENGTHS, st.integers(1, 60), st.integers(0, 2**31 - 1), st.integers(0, 5))
def test_epoch_is_complete_and_within_budget(
    tmp_path_factory: pytest.TempPathFactory, lengths: LengthPairs, budget: int, seed: int, epoch: int
) -> None:
    sampler = make_sampler(tmp_path_factory.mktemp("order"), lengths, budget, seed)
    batches = list_epoch(sampler, epoch)
    assert sorted(pair for batch in batches for pair in batch.pair_indices.tolist()) == list(range(len(lengths)))
    assert sorted(position for batch in batches for position in batch.positions.tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = max(max(lengths[pair]) for pair in batch.pair_indices.tolist())
        assert len(batch) > 0
        assert longest * len(batch) <= budget or len(batch) == 1


@given(
    st.lists(st.tuples(st.integers(3, 9), st.integers(1, 9)), min_size=1, max_size=80), st.integers(1, 60), st.integers(0, 40)
)
def test_batches_are_full(tmp_path_factory: pytest.TempPathFactory, lengths: LengthPairs, budget: int, epoch: int) -> None:
    """The first batch has a random budget; only it could also hold the first pair of the next batch."""
    sampler = make_sampler(tmp_path_factory.mktemp("order"), lengths, budget)
    plan = sampler.plan_epoch(epoch)
    by_start = sorted(zip(plan.batch_starts[plan.batch_order].tolist(), range(len(plan)), strict=True))
    in_order = [sampler.get_batch(epoch, number) for _, number in by_start]
    longest = [max(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in in_order]
    first_of_next = [min(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in in_order[1:]]
    extended_sizes = [
        (len(batch) + 1) * max(length, next_length)
        for batch, length, next_length in zip(in_order, longest, first_of_next, strict=False)
    ]
    assert all(size > budget for size in extended_sizes[1:])


def test_order_depends_on_seed_and_epoch(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = [tuple(pair) for pair in rng.integers(1, 12, (400, 2)).tolist()]

    def pairs(seed: int, epoch: int) -> list[list[int]]:
        return [batch.pair_indices.tolist() for batch in list_epoch(make_sampler(tmp_path, lengths, 100, seed), epoch)]

    assert pairs(1, 7) == pairs(1, 7)
    assert pairs(1, 7) != pairs(1, 8)
    assert pairs(1, 7) != pairs(2, 7)
    sampler = make_sampler(tmp_path, lengths, 100, seed=1)
    backwards = [sampler.get_batch(7, number).pair_indices.tolist() for number in reversed(range(len(sampler.plan_epoch(7))))]
    assert backwards[::-1] == pairs(1, 7)


def test_batches_differ_between_epochs(tmp_path: Path) -> None:
    """Few random pairs of a batch share a batch in the next epoch; by their lengths, a third could."""
    rng = np.random.default_rng(1)
    lengths = [tuple(pair) for pair in rng.integers(8, 12, (2000, 2)).tolist()]
    sampler = make_sampler(tmp_path, lengths, 440)
    batch_numbers = []
    for epoch in (0, 1):
        numbers = np.empty(len(lengths), dtype=int)
        for number, batch in enumerate(list_epoch(sampler, epoch)):
            numbers[batch.pair_indices] = number
        batch_numbers.append(numbers)
    first, second = rng.integers(0, len(lengths), (2, 200_000))
    share_batch = (batch_numbers[0][first] == batch_numbers[0][second]) & (first != second)
    repeated_fraction = (batch_numbers[1][first] == batch_numbers[1][second])[share_batch].mean()
    assert share_batch.sum() > 1000
    assert repeated_fraction < 0.4


@pytest.mark.slow
def test_batch_lengths_are_shuffled(tmp_path: Path) -> None:
    """The rank correlation of length and position over many epochs is that of a shuffled list, with deviation 1/√(n−1)."""
    rng = np.random.default_rng(1)
    lengths = [tuple(pair) for pair in rng.integers(1, 60, (1600, 2)).tolist()]
    sampler = make_sampler(tmp_path, lengths, 400, seed=5)
    correlations, neighbor_correlations = [], []
    for epoch in range(30):
        longest = np.array(
            [max(max(lengths[pair]) for pair in batch.pair_indices.tolist()) for batch in list_epoch(sampler, epoch)]
        )
        ranks = np.argsort(np.argsort(longest))
        scale = math.sqrt(len(ranks) - 1)
        correlations.append(scale * np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])
        neighbor_correlations.append(scale * np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
    for values in (correlations, neighbor_correlations):
        assert abs(np.mean(values)) < 4 / math.sqrt(30)
        assert 0.6 < np.std(values) < 1.5


def count_pairs_by_corpus(folder: Path, config: DataConfig, sizes: dict[str, int], epochs: int) -> list[dict[str, int]]:
    """Return the number of pairs of each corpus in each epoch."""
    rng = np.random.default_rng(2)
    tables = [
        make_table(folder, [tuple(pair) for pair in rng.integers(1, 9, (size, 2)).tolist()], name)
        for name, size in sizes.items()
    ]
    sampler = BatchSampler(tables, Mixture.from_config(config, sizes), batch_tokens=200, seed=1)
    pairs_by_epoch = []
    for epoch in range(epochs):
        counts = Counter(corpus for corpus, _ in count_draws(sampler, epoch).elements())
        pairs_by_epoch.append({name: counts[number] for number, name in enumerate(sizes)})
    return pairs_by_epoch


def make_corpora(**weights: float | None) -> dict[str, object]:
    return {name: {"file": f"{name}.tsv", "weight": weight} for name, weight in weights.items()}


SIZES = {"clean": 300, "web": 1500}


def test_without_weights_each_pair_occurs_once(tmp_path: Path) -> None:
    config = DataConfig.model_validate({"corpora": make_corpora(clean=None, web=None)})
    assert count_pairs_by_corpus(tmp_path, config, SIZES, 2) == [SIZES, SIZES]
    warm = DataConfig.model_validate({"corpora": make_corpora(clean=None, web=None), "temperature": 1.0})
    assert count_pairs_by_corpus(tmp_path, warm, SIZES, 1) == [SIZES]


def test_weights_set_shares_of_the_epoch(tmp_path: Path) -> None:
    """A ratio of three to one gives 1,350 and 450 of 1,800 pairs, with each run rounded up or down."""
    config = DataConfig.model_validate({"corpora": make_corpora(clean=3.0, web=1.0)})
    for num_pairs in count_pairs_by_corpus(tmp_path, config, SIZES, 3):
        assert num_pairs["clean"] == pytest.approx(1350, abs=40)
        assert num_pairs["web"] == pytest.approx(450, abs=40)


def test_temperature_flattens_corpus_sizes(tmp_path: Path) -> None:
    """Sizes 300 and 1,500 to the power of 1/2 give shares of 0.309 and 0.691 of 1,800 pairs."""
    config = DataConfig.model_validate({"corpora": make_corpora(clean=None, web=None), "temperature": 2.0})
    share = math.sqrt(300) / (math.sqrt(300) + math.sqrt(1500))
    num_pairs = count_pairs_by_corpus(tmp_path, config, SIZES, 1)[0]
    assert num_pairs["clean"] == pytest.approx(1800 * share, abs=40)
    assert num_pairs["web"] == pytest.approx(1800 * (1 - share), abs=40)


def test_curriculum_changes_with_epochs(tmp_path: Path) -> None:
    stages = [{"end_epoch": 2, "weights": {"clean": 1.0}}, {"end_epoch": 3, "weights": {"clean": 1.0, "web": 1.0}}, {}]
    config = DataConfig.model_validate({"corpora": make_corpora(clean=None, web=None), "curriculum": stages})
    pairs_by_epoch = count_pairs_by_corpus(tmp_path, config, SIZES, 4)
    assert pairs_by_epoch[:2] == [{"clean": 300, "web": 0}] * 2
    assert pairs_by_epoch[2]["clean"] == pytest.approx(900, abs=1)
    assert pairs_by_epoch[2]["web"] == pytest.approx(900, abs=40)
    assert pairs_by_epoch[3]["clean"] == 300
    assert pairs_by_epoch[3]["web"] == pytest.approx(1500, abs=40)


@given(LENGTHS, LENGTHS, st.floats(0.05, 20.0), st.integers(1, 12))
def test_corpus_is_exhausted_before_pairs_repeat(
    tmp_path_factory: pytest.TempPathFactory, lengths_a: LengthPairs, lengths_b: LengthPairs, weight: float, epochs: int
) -> None:
    """The draws of pairs of one corpus and one length differ by at most one over any number of epochs."""
    folder = tmp_path_factory.mktemp("rounds")
    config = DataConfig.model_validate({"corpora": make_corpora(a=weight, b=1.0)})
    mixture = Mixture.from_config(config, {"a": len(lengths_a), "b": len(lengths_b)})
    sampler = BatchSampler(
        [make_table(folder, lengths_a, "a"), make_table(folder, lengths_b, "b")], mixture, batch_tokens=50, seed=1
    )
    total: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        total += count_draws(sampler, epoch)
        for corpus, lengths in enumerate((lengths_a, lengths_b)):
            for length_pair in set(lengths):
                draws = [total[corpus, pair] for pair, pair_lengths in enumerate(lengths) if pair_lengths == length_pair]
                assert max(draws) - min(draws) <= 1


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**63))
def test_permutation_is_a_bijection(size: int, key: int) -> None:
    indices = np.arange(size)
    keys = np.broadcast_to(hash64(key), indices.shape)
    permuted = permute_index(indices, np.full(size, size), keys)
    assert sorted(permuted.tolist()) == indices.tolist()
    single = [int(permute_index(indices[i : i + 1], np.array([size]), keys[i : i + 1])[0]) for i in range(0, size, 17)]
    assert single == permuted[::17].tolist()


def test_hash_follows_splitmix64() -> None:
    """The hash of one number is the first output of splitmix64 for that seed; its authors publish 0xE220A8397B1DCDAF for 0."""
    assert int(hash64(0)) == 0xE220A8397B1DCDAF
    assert hash64(1, np.arange(3)).shape == (3,)
    assert len({int(word) for word in hash64(1, 2, np.arange(1000))}) == 1000
    assert int(hash64(1, 2)) != int(hash64(2, 1))
    values = hash_to_uniform(hash64(3, np.arange(100_000)))
    assert 0 <= values.min() < values.max() < 1
    assert values.mean() == pytest.approx(0.5, abs=0.005)
    assert np.histogram(values, 10, (0, 1))[0] == pytest.approx(np.full(10, 10_000), abs=400)


def test_other_files_are_no_length_table(tmp_path: Path) -> None:
    path = tmp_path / "a.lengths.arrow"
    path.write_bytes(b"nonsense")
    with raises_code("prepared-data-damaged", "a.lengths.arrow"):
        LengthTable(path)
    schema = build_pair_schema(10)
    write_batches(path, [build_pair_batch([[4]], [[5]], [1], schema)], schema)
    with raises_code("prepared-data-damaged", "a.lengths.arrow"):
        LengthTable(path)
