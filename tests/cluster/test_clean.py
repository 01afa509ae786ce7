import random
from pathlib import Path

import pytest

import dragoman.cluster.clean
from dragoman.cleaning import cleaned_corpus
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cluster.clean import clean_on_cluster
from dragoman.config import CleaningConfig, Recipe, make_recipe
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
    assert not (tmp_path / "many.part").exists()


def test_same_command_continues(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="run the same command again"):
        clean_on_cluster(recipe, tmp_path / "many", SerialExecutor(set(range(9, 99)), num_workers=1))  # from the tenth chunk on
    assert not (tmp_path / "many").exists()
    changed = recipe.model_copy(update={"data": recipe.data.model_copy(update={"cleaning": CleaningConfig(max_ratio=2.0)})})
    with pytest.raises(OutputError, match="another request") as failure:
        clean_on_cluster(changed, tmp_path / "many", SerialExecutor())
    assert failure.value.code == "output-mismatch"
    executor, whole = SerialExecutor(), SerialExecutor()
    clean_on_cluster(recipe, tmp_path / "many", executor)
    clean_on_cluster(recipe, tmp_path / "whole", whole)
    clean_corpora(recipe, tmp_path / "one")
    assert read_folder(tmp_path / "many") == read_folder(tmp_path / "whole") == read_folder(tmp_path / "one")
    # 710 pairs make 9 + 4 + 2 chunks, of which the first 9 are kept, and each of two searches reads all of them.
    assert (whole.num_submitted, executor.num_submitted) == (15 + 2 * 15, 6 + 2 * 15)


def test_interrupted_upload_to_a_store_continues(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    assert executor.num_submitted == 2 * 15  # all chunks were kept, and two searches for duplicates read them
    expected_stats = clean_corpora(recipe, tmp_path / "one")
    assert {name: item.num_kept for name, item in stats.items()} == {
        name: item.num_kept for name, item in expected_stats.items()
    }
    for name in ("first.tsv", "kept.tsv", "last.tsv"):
        assert StoreFolder(f"{url}/many").read(name) == (tmp_path / "one" / name).read_bytes()
    assert not list((tmp_path / "cache" / "dragoman" / "outputs").iterdir())
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
