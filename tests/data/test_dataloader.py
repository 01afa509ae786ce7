"""The endless sequence of batches: the same with any number of loaders, over any number of ranks, from any place on."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch

from conftest import MakeRecipe
from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.collate import Batch, collate_with_budget, split_by_tokens, split_to_reduce_padding
from dragoman.data.dataloader import BatchStream, DataPosition, TrainingBatches
from dragoman.data.prepare import prepare
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID

Ids = list[tuple[list[list[int]], list[list[int]]]]


@pytest.fixture(scope="module")
def recipe(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return tiny(tmp_path_factory.mktemp("loader"), "training.batch_tokens=60")


@pytest.fixture(scope="module")
def batches(recipe: Recipe) -> TrainingBatches:
    prepare(recipe, Path(recipe.run) / "data")
    return TrainingBatches(recipe, Path(recipe.run) / "data", start_id=BEGIN_ID)


def ids(parts: list[Batch]) -> Ids:
    return [(part.source_BS.tolist(), part.targets_BT.tolist()) for part in parts]


def served(
    batches: TrainingBatches, count: int, cursor: DataPosition = DataPosition(), loaders: int = 0
) -> tuple[list[Ids], DataPosition]:  # noqa: B008
    stream = BatchStream(batches, position=cursor, num_workers=loaders)
    found = [ids(stream.next_batch()) for _ in range(count)]
    stream.close()
    return found, stream.position


def test_each_epoch_serves_each_pair_once(batches: TrainingBatches) -> None:
    whole = Counter(
        (tuple(batches.corpora[0].source(row).tolist()), tuple(batches.corpora[0].target(row).tolist()))
        for row in range(len(batches.corpora[0]))
    )
    cursor = DataPosition()
    for epoch in range(3):
        found, cursor = served(batches, batches.count_batches(epoch), cursor)
        assert cursor == DataPosition(epoch + 1, 0)
        pairs = Counter(
            (tuple(_unpadded(source)), tuple(_unpadded(target)[:-1]))
            for [(sources, targets)] in found
            for source, target in zip(sources, targets, strict=True)
        )
        assert pairs == whole


def _unpadded(row: list[int]) -> list[int]:
    return row[: row.index(END_ID) + 1]


def test_resuming_anywhere_goes_on_as_if_nothing_had_been(batches: TrainingBatches) -> None:
    """From every batch of two epochs, and once more from the middle of what was resumed."""
    count = batches.count_batches(0) + batches.count_batches(1) + 3
    whole, _ = served(batches, count)
    cursor = DataPosition()
    for place in range(count - 2):
        rest, middle = served(batches, (count - place) // 2, cursor)
        assert rest == whole[place : place + len(rest)]
        again, _ = served(batches, 2, middle)
        assert again[: count - place - len(rest)] == whole[place + len(rest) : place + len(rest) + 2]
        _, cursor = served(batches, 1, cursor)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_one_sequence(batches: TrainingBatches, ranks: int) -> None:
    """Taken by turns, what the ranks get is the sequence of one, also across the end of an epoch; their cursors agree."""
    steps = (2 * batches.count_batches(0) + 3) // ranks
    whole, _ = served(batches, steps * ranks)
    streams = [BatchStream(batches, position=DataPosition(), rank=rank, world_size=ranks) for rank in range(ranks)]
    found = []
    for _ in range(steps):
        found += [ids(stream.next_batch()) for stream in streams]
        assert len({stream.position for stream in streams}) == 1
    assert found == whole
    resumed = [BatchStream(batches, position=streams[0].position, rank=rank, world_size=ranks) for rank in range(ranks)]
    assert [ids(stream.next_batch()) for stream in resumed] == [ids(stream.next_batch()) for stream in streams]


def loaders_agree(batches: TrainingBatches, loaders: int) -> None:
    cursor = DataPosition(1, 2)
    count = batches.count_batches(1) + 2
    before = torch.get_rng_state()
    assert served(batches, count, cursor, loaders) == served(batches, count, cursor)
    assert torch.equal(torch.get_rng_state(), before), "the loader must not draw from training's own random numbers"


def test_a_loader_changes_nothing(batches: TrainingBatches) -> None:
    loaders_agree(batches, 1)


@pytest.mark.slow
def test_four_loaders_change_nothing(batches: TrainingBatches) -> None:
    loaders_agree(batches, 4)


CHANGES = ["data.noise.upper_case=0.5", "data.noise.merged=0.5", "tokenizer.sampling_alpha=0.3", "tokenizer.byte_fallback=true"]


@pytest.fixture(scope="module")
def changing(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """Half the pairs in capitals, half merged with the next, and all split anew each time."""
    run = tmp_path_factory.mktemp("changing")
    recipe = tiny(run, *CHANGES, "training.batch_tokens=60", "tokenizer.vocab_size=320")
    prepare(recipe, run / "data")
    return TrainingBatches(recipe, run / "data", start_id=BEGIN_ID)


def test_changed_pairs_stay_within_the_budget_and_are_all_there(changing: TrainingBatches) -> None:
    count = changing.count_batches(0)
    for number in range(count):
        parts = changing[DataPosition(0, number)]
        rows = sum(len(part.source_BS) for part in parts)
        assert rows == len(changing.sampler.get_batch(0, number))
        for part in parts:
            longest = max(part.source_BS.shape[1], part.targets_BT.shape[1])
            assert longest * len(part.source_BS) <= 60 or len(part.source_BS) == 1
            assert part.num_target_tokens == int((part.targets_BT != 0).sum())
            assert longest <= changing.recipe.data.max_length
    texts = [
        _text(changing, row)
        for number in range(count)
        for part in changing[DataPosition(0, number)]
        for row in part.source_BS.tolist()
    ]
    assert any(text.isupper() for text in texts)
    assert any(text.islower() for text in texts)


def _text(batches: TrainingBatches, row: list[int]) -> str:
    return batches.tokenizer.source.decode(_unpadded(row)[:-1])


def test_changes_are_a_function_of_seed_epoch_and_pair(changing: TrainingBatches) -> None:
    assert ids(changing[DataPosition(0, 1)]) == ids(changing[DataPosition(0, 1)])
    sent = pickle.loads(pickle.dumps(changing))
    assert ids(sent[DataPosition(2, 1)]) == ids(changing[DataPosition(2, 1)])
    splits: dict[str, set[tuple[int, ...]]] = {}
    for epoch in range(8):
        for number in range(changing.count_batches(epoch)):
            for part in changing[DataPosition(epoch, number)]:
                for row in part.source_BS.tolist():
                    splits.setdefault(_text(changing, row), set()).add(tuple(_unpadded(row)))
    assert max(map(len, splits.values())) > 3, "sampling splits the same text in more than one way"


@pytest.fixture(scope="module")
def repeating(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """Three pairs that come some fifteen times each in one epoch, beside sixty that hardly come."""
    run = tmp_path_factory.mktemp("repeating")
    pairs = ["one two three four\teins zwei drei vier", "five six seven\tfünf sechs sieben", "big red nine\tgroß rot neun"]
    (run / "small.tsv").write_text("".join(f"{pair}\n" for pair in pairs), encoding="utf-8")
    settings = ["training.batch_tokens=200", "tokenizer.vocab_size=320", "tokenizer.byte_fallback=true"]
    document = tiny(run, *settings, "data.noise.upper_case=0.5", "tokenizer.sampling_alpha=0.3").model_dump(mode="json")
    data = document["data"]
    data["corpora"] = {"small": {"file": str(run / "small.tsv"), "weight": 3.0}, "large": data["train"] | {"weight": 1.0}}
    data["train"] = None
    recipe = recipe_from_dict(document, where="repeating")
    prepare(recipe, run / "data")
    return TrainingBatches(recipe, run / "data", start_id=BEGIN_ID)


def test_a_pair_that_comes_again_in_an_epoch_is_changed_anew(repeating: TrainingBatches) -> None:
    """Of a dozen draws, each a capital with 1/2 and split in many ways, not all are alike, or chance would be 1 in 2¹¹."""
    small = repeating.corpus_names.index("small")
    texts = {repeating._decode_pair(small, pair)[0] for pair in range(3)}
    assert len(texts) == 3
    for epoch in range(2):
        parts = [part for number in range(repeating.count_batches(epoch)) for part in repeating[DataPosition(epoch, number)]]
        drawn: dict[str, list[tuple[bool, tuple[int, ...]]]] = {text: [] for text in texts}
        for row in (row for part in parts for row in part.source_BS.tolist()):
            text = _text(repeating, row)
            if text.lower() in drawn:
                drawn[text.lower()].append((text.isupper(), tuple(_unpadded(row))))
        for draws in drawn.values():
            assert len(draws) >= 12
            assert {upper for upper, _ in draws} == {True, False}
            assert len({ids for upper, ids in draws if not upper}) > 1


def test_batches_with_pairs_that_come_again_are_a_function_of_seed_epoch_and_number(repeating: TrainingBatches) -> None:
    places = [DataPosition(epoch, number) for epoch in range(2) for number in range(repeating.count_batches(epoch))]
    found = [ids(repeating[place]) for place in places]
    again = TrainingBatches(repeating.recipe, repeating.folder, start_id=BEGIN_ID)
    assert [ids(again[place]) for place in reversed(places)] == found[::-1]
    sent = pickle.loads(pickle.dumps(again))
    assert [ids(sent[place]) for place in places[::3]] == found[::3]


def test_a_pair_that_would_grow_too_long_stays_as_it_is(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(
        tmp_path, "data.noise.merged=1", "tokenizer.byte_fallback=true", "tokenizer.vocab_size=320", "data.max_length=7"
    )
    prepare(recipe, tmp_path / "data")
    batches = TrainingBatches(recipe, tmp_path / "data", start_id=BEGIN_ID)
    parts = [part for number in range(batches.count_batches(0)) for part in batches[DataPosition(0, number)]]
    assert sum(len(part.source_BS) for part in parts) == len(batches.corpora[0])
    assert max(max(part.source_BS.shape[1], part.targets_BT.shape[1]) for part in parts) <= 7


def test_parts_of_a_batch() -> None:
    """Rows of 2, 2, 5 and 9 in a budget of 10: the two short ones together, the others alone."""
    assert [(part.start, part.stop) for part in split_by_tokens([2, 2, 5, 9], 10)] == [(0, 2), (2, 3), (3, 4)]
    assert list(split_by_tokens([], 10)) == []
    assert [(part.start, part.stop) for part in split_by_tokens([99], 10)] == [(0, 1)]
    rows = [[4] * length for length in (9, 2, 5, 2)]
    targets = [row[:-1] for row in rows]
    parts = collate_with_budget(rows, targets, batch_tokens=10, start_id=BEGIN_ID)
    assert [tuple(part.source_BS.shape) for part in parts] == [(2, 2), (1, 5), (1, 9)]
    assert sum(part.num_target_tokens for part in parts) == 18
    assert len(collate_with_budget(rows, targets, batch_tokens=36, start_id=BEGIN_ID)) == 1


def test_what_would_pad_all_others_goes_by_itself() -> None:
    """Of 20 rows of 10 and two of 30: 660 places together, 260 apart. Nine of 10 and one of 11 save 9 of 110, too few."""
    assert [(part.start, part.stop) for part in split_to_reduce_padding([10] * 20 + [30] * 2, slice(0, 22))] == [
        (0, 20),
        (20, 22),
    ]
    assert [(part.start, part.stop) for part in split_to_reduce_padding([10] * 9 + [11], slice(0, 10))] == [(0, 10)]
    assert [(part.start, part.stop) for part in split_to_reduce_padding([5] * 9 + [10] * 9 + [40], slice(0, 19))] == [
        (0, 18),
        (18, 19),
    ]
    assert [(part.start, part.stop) for part in split_to_reduce_padding([1] * 2 + [10] * 2 + [20] * 2, slice(0, 6))] == [
        (0, 2),
        (2, 4),
        (4, 6),
    ]
    rows = [[4] * length for length in (30, *[10] * 20, 30)]
    for uneven, shapes in ((False, [(22, 30)]), (True, [(20, 10), (2, 30)])):
        parts = collate_with_budget(rows, rows, batch_tokens=1000, start_id=BEGIN_ID, reduce_padding=uneven)
        assert [tuple(part.source_BS.shape) for part in parts] == shapes
        assert sum(part.num_target_tokens for part in parts) == 282


def test_epochs_are_counted_in_batches(batches: TrainingBatches) -> None:
    count = batches.count_batches(0)
    stream = BatchStream(batches, position=DataPosition(0, count - 1))
    assert stream.count_epochs() == pytest.approx((count - 1) / count)
    stream.next_batch()
    assert (stream.position, stream.count_epochs()) == (DataPosition(1, 0), 1.0)
