"""Tests of the batch sequence: the same for any number of workers and ranks, and from any position."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch

from conftest import MakeRecipe
from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.collate import Batch, collate_with_budget, split_to_reduce_padding
from dragoman.data.dataloader import BatchStream, DataPosition, TrainingBatches
from dragoman.data.padding import split_by_tokens
from dragoman.data.prepare import prepare
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID

PartIds = list[tuple[list[list[int]], list[list[int]]]]


@pytest.fixture(scope="module")
def recipe(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return tiny(tmp_path_factory.mktemp("loader"), "training.batch_tokens=60")


@pytest.fixture(scope="module")
def batches(recipe: Recipe) -> TrainingBatches:
    prepare(recipe, Path(recipe.run) / "data")
    return TrainingBatches(recipe, Path(recipe.run) / "data", start_id=BEGIN_ID)


def list_ids(parts: list[Batch]) -> PartIds:
    return [(part.source_BS.tolist(), part.targets_BT.tolist()) for part in parts]


def serve(
    batches: TrainingBatches, count: int, position: DataPosition | None = None, num_workers: int = 0
) -> tuple[list[PartIds], DataPosition]:
    """Return the ids of `count` batches from a position on, and the position after them."""
    position = DataPosition() if position is None else position
    stream = BatchStream(batches, position=position, num_workers=num_workers)
    batch_ids = [list_ids(stream.next_batch()) for _ in range(count)]
    stream.close()
    return batch_ids, stream.position


def test_each_epoch_holds_each_pair_once(batches: TrainingBatches) -> None:
    expected = Counter(
        (tuple(batches.corpora[0].source(row).tolist()), tuple(batches.corpora[0].target(row).tolist()))
        for row in range(len(batches.corpora[0]))
    )
    position = DataPosition()
    for epoch in range(3):
        epoch_ids, position = serve(batches, batches.count_batches(epoch), position)
        assert position == DataPosition(epoch + 1, 0)
        pairs = Counter(
            (tuple(_unpadded(source)), tuple(_unpadded(target)[:-1]))
            for [(sources, targets)] in epoch_ids
            for source, target in zip(sources, targets, strict=True)
        )
        assert pairs == expected


def _unpadded(row: list[int]) -> list[int]:
    return row[: row.index(END_ID) + 1]


def test_resume_continues_the_sequence(batches: TrainingBatches) -> None:
    """Resume from every batch of two epochs, and again from the middle of the resumed batches."""
    count = batches.count_batches(0) + batches.count_batches(1) + 3
    expected, _ = serve(batches, count)
    position = DataPosition()
    for start in range(count - 2):
        resumed, middle = serve(batches, (count - start) // 2, position)
        assert resumed == expected[start : start + len(resumed)]
        resumed_again, _ = serve(batches, 2, middle)
        end = start + len(resumed)
        assert resumed_again[: count - end] == expected[end : end + 2]
        _, position = serve(batches, 1, position)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_one_sequence(batches: TrainingBatches, world_size: int) -> None:
    """The batches of all ranks in turn equal the sequence of one rank, also across epochs, and their positions agree."""
    steps = (2 * batches.count_batches(0) + 3) // world_size
    expected, _ = serve(batches, steps * world_size)
    streams = [BatchStream(batches, position=DataPosition(), rank=rank, world_size=world_size) for rank in range(world_size)]
    taken = []
    for _ in range(steps):
        taken += [list_ids(stream.next_batch()) for stream in streams]
        assert len({stream.position for stream in streams}) == 1
    assert taken == expected
    resumed = [
        BatchStream(batches, position=streams[0].position, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert [list_ids(stream.next_batch()) for stream in resumed] == [list_ids(stream.next_batch()) for stream in streams]


@pytest.mark.slow
def test_four_workers_change_nothing(batches: TrainingBatches) -> None:
    position = DataPosition(1, 2)
    count = batches.count_batches(1) + 2
    before = torch.get_rng_state()
    assert serve(batches, count, position, num_workers=4) == serve(batches, count, position)
    assert torch.equal(torch.get_rng_state(), before), "the data loader must not use the global random generator"


NOISE_SETTINGS = [
    "data.noise.upper_case=0.5",
    "data.noise.concat_next=0.5",
    "tokenizer.sampling_alpha=0.3",
    "tokenizer.byte_fallback=true",
]


@pytest.fixture(scope="module")
def noisy_batches(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """Batches with half of the pairs in upper case, half concatenated with the next, and subword sampling."""
    run = tmp_path_factory.mktemp("noisy_batches")
    recipe = tiny(run, *NOISE_SETTINGS, "training.batch_tokens=60", "tokenizer.vocab_size=320")
    prepare(recipe, run / "data")
    return TrainingBatches(recipe, run / "data", start_id=BEGIN_ID)


def test_noisy_batches_are_complete_and_within_budget(noisy_batches: TrainingBatches) -> None:
    count, texts = noisy_batches.count_batches(0), list[str]()
    for number in range(count):
        parts = noisy_batches[DataPosition(0, number)]
        rows = sum(len(part.source_BS) for part in parts)
        assert rows == len(noisy_batches.sampler.get_batch(0, number))
        for part in parts:
            longest = max(part.source_BS.shape[1], part.targets_BT.shape[1])
            assert longest * len(part.source_BS) <= 60 or len(part.source_BS) == 1
            assert part.num_target_tokens == int((part.targets_BT != 0).sum())
            assert longest <= noisy_batches.recipe.data.max_length
            texts += [_decode_row(noisy_batches, row) for row in part.source_BS.tolist()]
    assert any(text.isupper() for text in texts)
    assert any(text.islower() for text in texts)


def _decode_row(batches: TrainingBatches, row: list[int]) -> str:
    return batches.tokenizer.source.decode(_unpadded(row)[:-1])


def test_noise_depends_on_seed_epoch_and_pair(noisy_batches: TrainingBatches) -> None:
    assert list_ids(noisy_batches[DataPosition(0, 1)]) == list_ids(noisy_batches[DataPosition(0, 1)])
    sent = pickle.loads(pickle.dumps(noisy_batches))
    assert list_ids(sent[DataPosition(2, 1)]) == list_ids(noisy_batches[DataPosition(2, 1)])
    splits: dict[str, set[tuple[int, ...]]] = {}
    for epoch in range(8):
        for number in range(noisy_batches.count_batches(epoch)):
            for part in noisy_batches[DataPosition(epoch, number)]:
                for row in part.source_BS.tolist():
                    splits.setdefault(_decode_row(noisy_batches, row), set()).add(tuple(_unpadded(row)))
    assert max(map(len, splits.values())) > 3, "sampling splits the same text in more than one way"


@pytest.fixture(scope="module")
def repeating_batches(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """Batches with three pairs that occur some fifteen times per epoch, and sixty rare pairs."""
    run = tmp_path_factory.mktemp("repeating_batches")
    pairs = ["one two three four\teins zwei drei vier", "five six seven\tfünf sechs sieben", "big red nine\tgroß rot neun"]
    (run / "small.tsv").write_text("".join(f"{pair}\n" for pair in pairs), encoding="utf-8")
    settings = ["training.batch_tokens=200", "tokenizer.vocab_size=320", "tokenizer.byte_fallback=true"]
    document = tiny(run, *settings, "data.noise.upper_case=0.5", "tokenizer.sampling_alpha=0.3").model_dump()
    data = document["data"]
    data["corpora"] = {"small": {"file": str(run / "small.tsv"), "weight": 3.0}, "large": data["train"] | {"weight": 1.0}}
    data["train"] = None
    recipe = recipe_from_dict(document, where="repeating_batches")
    prepare(recipe, run / "data")
    return TrainingBatches(recipe, run / "data", start_id=BEGIN_ID)


def test_repeated_pair_gets_new_noise(repeating_batches: TrainingBatches) -> None:
    """A dozen draws, half of them in upper case and all with sampled subwords, are all alike with probability 2⁻¹¹."""
    small = repeating_batches.corpus_names.index("small")
    texts = {repeating_batches._decode_pair(small, pair)[0] for pair in range(3)}
    assert len(texts) == 3
    for epoch in range(2):
        parts = [
            part
            for number in range(repeating_batches.count_batches(epoch))
            for part in repeating_batches[DataPosition(epoch, number)]
        ]
        draws_by_text: dict[str, list[tuple[bool, tuple[int, ...]]]] = {text: [] for text in texts}
        for row in (row for part in parts for row in part.source_BS.tolist()):
            text = _decode_row(repeating_batches, row)
            if text.lower() in draws_by_text:
                draws_by_text[text.lower()].append((text.isupper(), tuple(_unpadded(row))))
        for draws in draws_by_text.values():
            assert len(draws) >= 12
            assert {upper for upper, _ in draws} == {True, False}
            assert len({ids for upper, ids in draws if not upper}) > 1


def test_pair_grown_too_long_stays_unchanged(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(
        tmp_path, "data.noise.concat_next=1", "tokenizer.byte_fallback=true", "tokenizer.vocab_size=320", "data.max_length=7"
    )
    prepare(recipe, tmp_path / "data")
    batches = TrainingBatches(recipe, tmp_path / "data", start_id=BEGIN_ID)
    parts = [part for number in range(batches.count_batches(0)) for part in batches[DataPosition(0, number)]]
    assert sum(len(part.source_BS) for part in parts) == len(batches.corpora[0])
    assert max(max(part.source_BS.shape[1], part.targets_BT.shape[1]) for part in parts) <= 7


def test_noise_leaves_the_source_prefix_alone(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ["data.noise.upper_case=1", "tokenizer.source_prefix='to German: '"]
    recipe = tiny(tmp_path, *settings, "tokenizer.byte_fallback=true", "tokenizer.vocab_size=320")
    prepare(recipe, tmp_path / "data")
    batches = TrainingBatches(recipe, tmp_path / "data", start_id=BEGIN_ID)
    parts = [part for number in range(batches.count_batches(0)) for part in batches[DataPosition(0, number)]]
    texts = [_decode_row(batches, row) for part in parts for row in part.source_BS.tolist()]
    assert all(text.startswith("to German: ") and text.removeprefix("to German: ").isupper() for text in texts)


def test_split_by_tokens_stays_within_the_budget() -> None:
    """Rows of 2, 2, 5 and 9 in a budget of 10: the two short rows share a part."""
    assert [(part.start, part.stop) for part in split_by_tokens([2, 2, 5, 9], 10)] == [(0, 2), (2, 3), (3, 4)]
    assert list(split_by_tokens([], 10)) == []
    assert [(part.start, part.stop) for part in split_by_tokens([99], 10)] == [(0, 1)]
    rows = [[4] * length for length in (9, 2, 5, 2)]
    targets = [row[:-1] for row in rows]
    parts = collate_with_budget(rows, targets, batch_tokens=10, start_id=BEGIN_ID)
    assert [tuple(part.source_BS.shape) for part in parts] == [(2, 2), (1, 5), (1, 9)]
    assert sum(part.num_target_tokens for part in parts) == 18
    assert len(collate_with_budget(rows, targets, batch_tokens=36, start_id=BEGIN_ID)) == 1


def test_split_to_reduce_padding_needs_a_saving() -> None:
    """20 rows of 10 and 2 of 30 take 660 tokens in one part and 260 in two; 9 of 10 and 1 of 11 save only 9 of 110."""

    def find_starts(lengths: list[int]) -> list[int]:
        return [part.start for part in split_to_reduce_padding(lengths, slice(0, len(lengths)))]

    assert find_starts([10] * 20 + [30] * 2) == [0, 20]
    assert find_starts([10] * 9 + [11]) == [0]
    assert find_starts([1] * 2 + [10] * 2 + [20] * 2) == [0, 2, 4]
    # Of the 13 rows behind the first part, 7 of 20 and 6 of 40 take 380 tokens; one of 9 and 12 of 40 take 489.
    assert find_starts([1] * 10 + [9] + [20] * 6 + [40] * 6) == [0, 10, 17]
    rows = [[4] * length for length in (30, *[10] * 20, 30)]
    for uneven, shapes in ((False, [(22, 30)]), (True, [(20, 10), (2, 30)])):
        parts = collate_with_budget(rows, rows, batch_tokens=1000, start_id=BEGIN_ID, reduce_padding=uneven)
        assert [tuple(part.source_BS.shape) for part in parts] == shapes
        assert sum(part.num_target_tokens for part in parts) == 282


def test_count_epochs_counts_batches(batches: TrainingBatches) -> None:
    count = batches.count_batches(0)
    stream = BatchStream(batches, position=DataPosition(0, count - 1))
    assert stream.count_epochs() == pytest.approx((count - 1) / count)
    stream.next_batch()
    assert (stream.position, stream.count_epochs()) == (DataPosition(1, 0), 1.0)
