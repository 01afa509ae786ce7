"""Preparation and synthetic pairs in shards, without Ray."""

import random
from pathlib import Path
from typing import Any

import pytest

from dragoman.cleaning import cleaned_corpus
from dragoman.cli.cluster_augment import AugmentShard, augment_on_cluster
from dragoman.cli.cluster_translate import WorkerTranslator, on_one_thread
from dragoman.cluster.shards import ClusterMap
from dragoman.config import Recipe, make_recipe
from dragoman.data.prepare import prepare
from dragoman.errors import ClusterError, DataError, OutputError, WorkerLostError
from dragoman.formats.pair import Pair
from dragoman.formats.resumable import resumable_file
from dragoman.inference.load import load
from dragoman.tasks import synthetic_data
from dragoman.tasks.synthetic_data import Augmentation
from serial_executor import SerialExecutor


def double(number: int) -> int:
    if number == 99:
        raise DataError("99: cannot be used")
    return 2 * number


def test_map_keeps_the_order_and_repeats_items_of_lost_workers() -> None:
    executor = SerialExecutor({0, 3, 4, 9}, num_workers=3)
    assert list(ClusterMap(executor)(double, range(20))) == [2 * number for number in range(20)]
    assert executor.num_submitted == 24
    assert executor.max_pending <= 6  # two for each worker


def test_item_whose_workers_are_always_lost_is_one_line() -> None:
    with pytest.raises(ClusterError, match="4 times for one part; run the same command again"):
        list(ClusterMap(SerialExecutor(set(range(99)), num_workers=1))(double, range(20)))


def test_error_of_the_function_reaches_the_command() -> None:
    with pytest.raises(DataError, match="99: cannot be used"):
        list(ClusterMap(SerialExecutor())(double, [1, 99, 2]))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(cleaned_corpus, "CHUNK_PAIRS", 50)
    monkeypatch.setattr(cleaned_corpus, "PAIRS_PER_FILE", 150)
    rng = random.Random(7)
    words = [f"w{number}" for number in range(40)]
    for name, size in (("a", 420), ("b", 200), ("valid", 30)):
        lines = [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(size)]
        rows = [f"{line}\t{' '.join(reversed(line.split()))}\n" for line in lines]
        (tmp_path / f"{name}.tsv").write_text("".join([*rows, *rows[:20], "\tempty\n"]), encoding="utf-8")
    return make_recipe(
        {
            "task": {"source_language": "en", "target_language": "de"},
            "data": {
                "root": str(tmp_path),
                "corpora": {"first": {"file": "a.tsv", "weight": 1}, "second": {"file": "b.tsv", "weight": 2}},
                "valid": {"file": "valid.tsv"},
                "cleaning": {"max_ratio": 3.0, "duplicate_pairs": True},
                "max_length": 30,
                "preprocessing_workers": 1,
            },
            "tokenizer": {"vocab_size": 300},
        }
    )


def read_prepared(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_prepared_files_are_those_of_one_machine_with_lost_workers(recipe: Recipe, tmp_path: Path) -> None:
    expected = prepare(recipe, tmp_path / "one")
    executor = SerialExecutor({0, 5, 11, 20, 26})
    prepared = prepare(recipe, tmp_path / "many", map_items=ClusterMap(executor))
    assert executor.num_submitted > 30
    assert prepared.pair_counts == expected.pair_counts
    assert prepared.pair_counts["first"].dropped["duplicate-pair"] >= 20
    assert read_prepared(tmp_path / "many") == read_prepared(tmp_path / "one")
    assert len(list((tmp_path / "many").glob("train.first-*.arrow"))) == 3  # 441 pairs, 150 a file


class BreakingExecutor(SerialExecutor):
    """Executor whose cluster ends after some results."""

    results_left = 12

    def get_result(self, handle: int) -> Any:
        self.results_left -= 1
        if self.results_left < 0:
            raise WorkerLostError("a worker was lost")
        return super().get_result(handle)


def test_same_preparation_continues_after_the_last_file(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ClusterError):
        prepare(recipe, tmp_path / "many", map_items=ClusterMap(BreakingExecutor()))
    assert not (tmp_path / "many").exists()
    messages: list[str] = []
    executor = SerialExecutor()
    prepare(recipe, tmp_path / "many", messages.append, map_items=ClusterMap(executor))
    assert "resuming an interrupted preparation" in messages
    whole = SerialExecutor()
    prepare(recipe, tmp_path / "one", map_items=ClusterMap(whole))
    assert executor.num_submitted < whole.num_submitted
    assert read_prepared(tmp_path / "many") == read_prepared(tmp_path / "one")


@pytest.mark.parametrize(
    ("method", "file_format", "decoding"),
    [
        ("back-translate", "jsonl", {"method": "sample", "seed": 3}),
        ("self-train", "tsv", {}),
        ("distill", "jsonl", {"beam_size": 3, "nbest": 3}),
    ],
)
def test_synthetic_pairs_are_those_of_one_machine(
    bundle: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, file_format: Any, decoding: Any
) -> None:
    monkeypatch.setattr(synthetic_data, "WINDOW_LINES", 16)
    sources = (corpus / "train.en").read_text(encoding="utf-8").splitlines()[:60]
    targets = (corpus / "train.de").read_text(encoding="utf-8").splitlines()[:60]
    sources[7] = " "
    pairs = [
        Pair(source, target if method == "distill" else "", f"train.en:{number}")
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1)
    ]
    augmentation = Augmentation(method, tag="" if method == "distill" else "<BT>")
    translator = load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    with resumable_file(tmp_path / "one", {}) as output:
        expected_counts = synthetic_data.augment(
            pairs,
            augmentation,
            lambda lines, start_index: translator.translate(lines, start_index=start_index, **decoding),
            output,
            file_format=file_format,
        )
    model = WorkerTranslator((str(bundle),), on_one_thread({"device": "cpu", "precision": "float32"}))
    function = AugmentShard(model, augmentation, decoding, file_format)
    executor = SerialExecutor({1, 4})
    done: list[int] = []
    counts = augment_on_cluster(pairs, function, tmp_path / "many", {"text": "digest"}, executor, on_progress=done.append)
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert counts == expected_counts
    assert counts["blank"] == 1
    assert done[-1] == len(pairs)
    assert executor.num_submitted == -(-len(pairs) // 16) + 2  # windows of 16 lines, and two lost workers
    assert not (tmp_path / "many.shards").exists()
    with pytest.raises(OutputError, match="exists already"):
        augment_on_cluster(pairs, function, tmp_path / "many", {"text": "digest"}, executor)


def test_interrupted_synthesis_of_other_settings_is_refused(bundle: Path, tmp_path: Path) -> None:
    model = WorkerTranslator((str(bundle),), on_one_thread({"device": "cpu", "precision": "float32"}))
    pairs = [Pair("a", "", "x:1")]
    function = AugmentShard(model, Augmentation("self-train"), {}, "tsv")
    lost = SerialExecutor(set(range(9)))
    with pytest.raises(ClusterError, match="the same command continues"):
        augment_on_cluster(pairs, function, tmp_path / "many", {"text": "one"}, lost)
    with pytest.raises(OutputError, match="another request"):
        augment_on_cluster(pairs, function, tmp_path / "many", {"text": "two"}, SerialExecutor())
