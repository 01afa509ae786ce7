import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import dragoman.cluster.clean
from dragoman.cleaning import cleaned_corpus
from dragoman.cleaning.deduplication import digest_sources
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cluster.clean import FindRepeats, clean_on_cluster, encode_digests, read_digests
from dragoman.config import Recipe, make_recipe
from dragoman.errors import ClusterError, DataError, OutputError, WriteError
from dragoman.formats.object_store import StoreFolder, write_pieces
from serial_executor import SerialExecutor


def write_pairs(path: Path, rng: random.Random, size: int) -> None:
    """Write pairs of few words, of which many repeat a pair or a source, and some are empty or out of ratio."""
    sources = ["", "a", "b c", "a b c", "c c", "b a", *(" ".join(rng.choices("abc", k=9)) for _ in range(20))]
    path.write_text("".join(f"{rng.choice(sources)}\t{rng.choice(sources)}\n" for _ in range(size)), encoding="utf-8")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(cleaned_corpus, "CHUNK_PAIRS", 50)
    rng = random.Random(3)
    for name, size in (("a", 420), ("b", 200), ("c", 90)):
        write_pairs(tmp_path / f"{name}.tsv", rng, size)
    return make_recipe(
        {
            "task": {"source_language": "en", "target_language": "de"},
            "data": {
                "root": str(tmp_path),
                "corpora": {
                    "first": {"file": "a.tsv", "weight": 1},
                    "kept": {"file": "b.tsv", "weight": 1, "skip_filters": ["duplicate-pair", "duplicate-source"]},
                    "last": {"file": "c.tsv", "weight": 1},
                },
                "cleaning": {"max_ratio": 3.0, "duplicate_pairs": True, "duplicate_sources": True},
                "preprocessing_workers": 1,
            },
        }
    )


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("file_format", ["tsv", "jsonl"])
def test_output_is_that_of_one_machine_with_lost_workers(recipe: Recipe, tmp_path: Path, file_format: str) -> None:
    expected_stats = clean_corpora(recipe, tmp_path / "one", file_format=file_format)  # type: ignore[arg-type]
    executor = SerialExecutor({0, 4, 9, 17})
    stats = clean_on_cluster(recipe, tmp_path / "many", executor, file_format=file_format)  # type: ignore[arg-type]
    assert read_folder(tmp_path / "many") == read_folder(tmp_path / "one")
    assert stats == expected_stats
    assert stats["last"].filter_stats["duplicate-source"].num_dropped > 0  # the search goes across corpora
    assert not (tmp_path / "many.shards").exists()


def test_same_command_continues(recipe: Recipe, tmp_path: Path) -> None:
    executor = SerialExecutor(set(range(9, 99)), num_workers=1)  # after 9 shards, every worker is lost
    with pytest.raises(ClusterError, match="finished shards are kept"):
        clean_on_cluster(recipe, tmp_path / "many", executor)
    assert not (tmp_path / "many").exists()
    # The lost workers had committed their shards, which count as finished.
    executor = SerialExecutor()
    clean_on_cluster(recipe, tmp_path / "many", executor)
    clean_corpora(recipe, tmp_path / "one")
    assert read_folder(tmp_path / "many") == read_folder(tmp_path / "one")
    # 710 pairs make 9 + 4 + 2 shards, of which 9 + 4 are committed, and each of two searches has 2 partitions.
    assert executor.num_submitted == 2 + 4


def test_interrupted_upload_to_a_store_continues(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path.name}"
    for name in ("a.tsv", "b.tsv", "c.tsv"):
        write_pieces(f"{url}/raw/{name}", [(tmp_path / name).read_bytes()])
    remote = recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": f"{url}/raw"})})

    def break_off(folder: Path, url: str, *, last: str) -> None:
        write_pieces(f"{url}/first.tsv", [b"half"])
        raise WriteError(f"{url}: cannot be written: the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(dragoman.cluster.clean, "upload_folder", break_off)
        with pytest.raises(WriteError, match="the store is away"):
            clean_on_cluster(remote, f"{url}/many", SerialExecutor())
    executor = SerialExecutor()
    stats = clean_on_cluster(remote, f"{url}/many", executor)
    assert executor.num_submitted == 0  # all shards were kept
    expected_stats = clean_corpora(recipe, tmp_path / "one")
    assert {name: item.num_kept for name, item in stats.items()} == {
        name: item.num_kept for name, item in expected_stats.items()
    }
    for name in ("first.tsv", "kept.tsv", "last.tsv"):
        assert StoreFolder(f"{url}/many").read(name) == (tmp_path / "one" / name).read_bytes()
    assert StoreFolder(f"{url}/many.shards").read_if_exists("request.json") is None
    with pytest.raises(OutputError, match="exists already"):
        clean_on_cluster(remote, f"{url}/many", SerialExecutor())


def test_missing_corpus_of_a_store_is_named(recipe: Recipe, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}-empty"
    remote = recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": url})})
    with pytest.raises(DataError, match=r"a\.tsv: there is no such file"):
        clean_on_cluster(remote, f"{url}/many", SerialExecutor())


def test_standard_input_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe({"data": {"train": {"file": "-", "format": "tsv"}}})
    with pytest.raises(DataError, match="give a file with --cluster"):
        clean_on_cluster(recipe, tmp_path / "out", SerialExecutor())


def test_partitions_find_exactly_the_repeated_rows(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for rows_per_block in [1, 7, 10_000]:
        for num_partitions in [1, 3, 256]:
            with subtests.test(rows_per_block=rows_per_block, num_partitions=num_partitions):
                tmp_path = tmp_path_factory.mktemp("case")
                rng = random.Random(5)
                shards = [
                    [rng.choice("abcdefghijklmnopqrstuvwxyz") * rng.randint(1, 4) for _ in range(size)]
                    for size in (40, 0, 1, 300)
                ]
                folder = StoreFolder(str(tmp_path))
                for index, texts in enumerate(shards):
                    folder.write(f"{index}", encode_digests(digest_sources(texts)))
                find = FindRepeats(folder, ("0", "1", "2", "3"), (0, 40, 40, 41), rows_per_block)
                bounds = [partition * 256 // num_partitions for partition in range(num_partitions + 1)]
                repeated_rows: list[int] = []
                for buckets in pairwise(bounds):
                    contents, summary = find(buckets)
                    rows = np.frombuffer(contents["rows"], dtype="<u8").tolist()
                    assert rows == sorted(rows)
                    assert summary == {"num_rows": len(rows)}
                    repeated_rows += rows
                texts = [text for shard in shards for text in shard]
                expected = [row for row, text in enumerate(texts) if text in texts[:row]]
                assert sorted(repeated_rows) == expected


def test_reading_some_buckets_reads_only_their_rows(tmp_path: Path) -> None:
    folder = StoreFolder(str(tmp_path))
    digests = np.array([[255 << 56, 1], [3, 2], [7 << 56, 3], [5, 4]], dtype=np.uint64)
    folder.write("shard", encode_digests(digests))
    assert read_digests(folder, "shard", 0, 1)["row"].tolist() == [1, 3]
    assert read_digests(folder, "shard", 1, 256)["row"].tolist() == [2, 0]
    assert len(read_digests(folder, "shard", 8, 255)) == 0
