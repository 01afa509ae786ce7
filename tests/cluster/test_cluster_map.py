"""Preparation and synthetic pairs on a cluster, without Ray."""

import io
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cleaning import cleaned_corpus
from dragoman.cli.cluster_translate import WorkerTranslator, on_one_thread, translate_on_cluster
from dragoman.cli.translation_output import write_translations
from dragoman.cluster.cluster_map import ClusterMap, VersionedCall
from dragoman.cluster.interruption import remember_interrupts
from dragoman.cluster.versions import get_versions
from dragoman.config import Recipe, make_recipe
from dragoman.data import store_preparation
from dragoman.data.prepare import prepare
from dragoman.data.store_preparation import prepare_with_stores
from dragoman.errors import ClusterError, DataError, RecipeError, WorkerLostError, WriteError
from dragoman.formats import corpus_copies
from dragoman.formats.object_store import StoreFolder, fetch_file
from dragoman.formats.pair import Pair
from dragoman.formats.resumable import resumable_file
from dragoman.inference import synthetic_data
from dragoman.inference.commands.line_report import LineWarnings
from dragoman.inference.load import load
from dragoman.inference.synthetic_data import Augmentation
from dragoman.runtime.processes import map_in_processes
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


@pytest.mark.parametrize("library", ["dragoman", "torch"])
def test_worker_with_another_version_refuses_to_work(library: str) -> None:
    call = VersionedCall(double, {**get_versions(), library: "0.0.1"})
    with pytest.raises(ClusterError, match=rf"has {library} .*, but the command has 0\.0\.1; install") as failure:
        call(1)
    assert failure.value.code == "cluster-mismatch"


class InterruptingReference:
    """Object whose destructor receives Ctrl-C. Python drops the exception there."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_in_a_destructor_stops_the_work() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with remember_interrupts() as check_interrupt:
            check_interrupt()
            reference = InterruptingReference()
            del reference
            with pytest.raises(KeyboardInterrupt):
                check_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


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
        os.utime(tmp_path / f"{name}.tsv", (1e9, 1e9))  # the manifest says whether a file is so new that it may change again
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

    def __init__(self, results_left: int) -> None:
        super().__init__()
        self.results_left = results_left

    def get_result(self, handle: int) -> Any:
        self.results_left -= 1
        if self.results_left < 0:
            raise WorkerLostError("a worker was lost")
        return super().get_result(handle)


@pytest.mark.parametrize(
    ("num_results", "num_kept"),
    [
        (12, 12),  # 16 chunks are filtered, of which 14 are searched for duplicates, and 16 are encoded
        pytest.param(33, 16 + 3, marks=pytest.mark.slow),  # the digests of the 14 are computed again
    ],
)
def test_same_preparation_continues_after_the_last_chunk(
    recipe: Recipe, tmp_path: Path, num_results: int, num_kept: int
) -> None:
    with pytest.raises(ClusterError):
        prepare(recipe, tmp_path / "many", map_items=ClusterMap(BreakingExecutor(num_results)))
    assert not (tmp_path / "many").exists()
    messages: list[str] = []
    executor = SerialExecutor()
    prepare(recipe, tmp_path / "many", messages.append, map_items=ClusterMap(executor))
    assert "resuming an interrupted preparation" in messages
    whole = SerialExecutor()
    prepare(recipe, tmp_path / "one", map_items=ClusterMap(whole))
    assert whole.num_submitted == 16 + 14 + 16
    assert executor.num_submitted == whole.num_submitted - num_kept
    assert read_prepared(tmp_path / "many") == read_prepared(tmp_path / "one")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Object store in memory, with the corpora of the recipe in raw/, and a cache folder of its own."""
    filesystem = pytest.importorskip("fsspec").filesystem("memory")
    for path in tmp_path.glob("*.tsv"):
        filesystem.pipe_file(f"/raw/{path.name}", path.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield filesystem
    filesystem.rm("/", recursive=True)


def set_urls(recipe: Recipe, *, root: str, run: str) -> Recipe:
    return recipe.model_copy(update={"run": run, "data": recipe.data.model_copy(update={"root": root})})


def read_encoded(folder: Path) -> dict[str, bytes]:
    """Return the prepared files but for the manifest and the page, which name the folders of the inputs."""
    return {name: content for name, content in read_prepared(folder).items() if name not in ("prepared.json", "cleaning.html")}


@pytest.mark.parametrize("is_cluster", [pytest.param(False, marks=pytest.mark.slow), True])
def test_preparation_from_and_to_a_store_is_that_of_local_files(
    recipe: Recipe, store: Any, tmp_path: Path, is_cluster: bool
) -> None:
    prepare(recipe, tmp_path / "one")
    remote = set_urls(recipe, root="memory://raw", run="memory://runs/first")
    map_items: Any = ClusterMap(SerialExecutor({0, 7})) if is_cluster else map_in_processes
    prepared = prepare_with_stores(remote, map_items=map_items)
    assert (prepared.location, prepared.is_new) == ("memory://runs/first/data", True)
    names = {name.rpartition("/")[2] for name in store.find("/runs")}
    assert names == {path.name for path in (tmp_path / "one").iterdir()}
    for name, content in read_encoded(tmp_path / "one").items():
        assert store.cat_file(f"/runs/first/data/{name}") == content
    assert not list((tmp_path / "cache" / "dragoman" / "runs").iterdir())
    again = prepare_with_stores(remote)
    assert (again.is_new, again.pair_counts) == (False, prepared.pair_counts)
    store.rm_file("/runs/first/data/source.model")
    assert prepare_with_stores(remote).is_new
    assert store.exists("/runs/first/data/source.model")


def test_upload_that_was_interrupted_is_done_again_without_stale_files(
    recipe: Recipe, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = set_urls(recipe, root="memory://raw", run="memory://runs/second")
    prepare_with_stores(remote)
    store.pipe_file("/runs/second/data/train.first-00009.arrow", b"of an earlier preparation")
    store.pipe_file("/runs/second/data/notes.txt", b"of the user")
    longer = remote.model_copy(update={"data": remote.data.model_copy(update={"max_length": 31})})

    def fail(*_: Any, **__: Any) -> None:
        raise WriteError("memory://runs: cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(store_preparation, "upload_folder", fail)
        with pytest.raises(WriteError):
            prepare_with_stores(longer)
    assert not store.exists("/runs/second/data/prepared.json")  # the files in the store do not count
    executor = SerialExecutor()
    assert prepare_with_stores(longer, map_items=ClusterMap(executor)).is_new
    assert executor.num_submitted == 0  # only the upload was left
    assert store.exists("/runs/second/data/prepared.json")
    assert not store.exists("/runs/second/data/train.first-00009.arrow")
    assert store.exists("/runs/second/data/notes.txt")


def test_local_run_keeps_copies_of_the_corpora_of_a_store(
    recipe: Recipe, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = set_urls(recipe, root="memory://raw", run=str(tmp_path / "run"))
    assert prepare_with_stores(remote).is_new
    fetched: list[str] = []

    def fetch(url: str, path: Path) -> None:
        fetched.append(url)
        fetch_file(url, path)

    monkeypatch.setattr(corpus_copies, "fetch_file", fetch)
    assert not prepare_with_stores(remote).is_new
    assert not fetched
    store.pipe_file("/raw/b.tsv", b"w1 w2\tw2 w1\nw3\tw3\n")
    prepared = prepare_with_stores(remote)
    assert fetched == ["memory://raw/b.tsv"]
    assert prepared.pair_counts["second"].read == 2


def test_copy_that_no_name_matches_any_more_is_deleted(recipe: Recipe, store: Any, tmp_path: Path) -> None:
    for name in ("part-1.tsv", "part-2.tsv", ".part-3.tsv"):
        store.pipe_file(f"/raw/{name}", b"a\tb\n")
    remote = set_urls(recipe, root="memory://raw/", run="unused")
    copied = corpus_copies.copy_corpora(remote.data, ["part-*.tsv", "a.tsv"], tmp_path / "copies")
    assert copied.root == str(tmp_path / "copies")
    assert sorted(path.name for path in (tmp_path / "copies").glob("*.tsv")) == ["a.tsv", "part-1.tsv", "part-2.tsv"]
    store.rm_file("/raw/part-1.tsv")
    corpus_copies.copy_corpora(remote.data, ["part-*.tsv", "a.tsv"], tmp_path / "copies")
    assert sorted(path.name for path in (tmp_path / "copies").glob("*.tsv")) == ["a.tsv", "part-2.tsv"]


@pytest.mark.parametrize("name", ["../secret.tsv", "/etc/passwd", "memory://other/a.tsv"])
def test_name_outside_of_the_root_is_refused(recipe: Recipe, store: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=r"is not below data\.root"):
        corpus_copies.copy_corpora(set_urls(recipe, root="memory://raw", run="x").data, [name], tmp_path / "copies")


def test_root_and_run_may_begin_with_file(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Path]] = []

    def note(recipe: Recipe, folder: Path, *_: Any, **__: Any) -> None:
        calls.append((recipe.data.root, folder))
        raise DataError("stop")

    monkeypatch.setattr(store_preparation, "prepare", note)
    with pytest.raises(DataError, match="stop"):
        prepare_with_stores(set_urls(recipe, root=f"file://{tmp_path}", run=f"file://{tmp_path / 'run'}"))
    assert calls == [(str(tmp_path), tmp_path / "run" / "data")]


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
    translate = WorkerTranslator((str(bundle),), on_one_thread({"device": "cpu", "precision": "float32"}), decoding)
    done: list[int] = []

    def write(executor: SerialExecutor) -> Any:
        with resumable_file(tmp_path / "many", {}) as output:
            return synthetic_data.augment(
                pairs,
                augmentation,
                translate,
                output,
                file_format=file_format,
                map_windows=ClusterMap(executor),
                on_progress=done.append,
            )

    with pytest.raises(ClusterError, match="run the same command again"):
        write(BreakingExecutor(2))
    assert not (tmp_path / "many").exists()
    done.clear()
    executor = SerialExecutor({1})
    assert write(executor) == expected_counts
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert expected_counts["blank"] == 1
    assert sum(done) == len(pairs)
    assert executor.num_submitted == 2 + 1  # two of four windows of 16 lines were left, and a worker was lost


@pytest.mark.parametrize("is_remote", [False, True])
def test_translation_of_a_cluster_is_that_of_one_machine_after_an_interruption(
    bundle: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [*(corpus / "train.en").read_text(encoding="utf-8").splitlines()[:50], "unknown " * 300]
    (tmp_path / "text.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    translator = load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    expected = io.StringIO()
    results = translator.translate(lines, beam_size=2)
    expected_warnings = write_translations(
        expected, None, ((line, result, None) for line, result in zip(lines, results, strict=True)), as_json=True
    )
    output = Path("memory://translations/many.jsonl") if is_remote else tmp_path / "many.jsonl"

    def translate(executor: SerialExecutor) -> LineWarnings:
        return translate_on_cluster(
            [bundle],
            tmp_path / "text.en",
            output,
            executor,
            device_options={"device": "cpu", "precision": "float32"},
            decoding={"beam_size": 2},
            as_json=True,
            window=8,
            overwrite=is_remote,
        )

    with pytest.raises(ClusterError):
        translate(BreakingExecutor(3))
    executor = SerialExecutor({0})
    assert translate(executor) == expected_warnings
    assert executor.num_submitted == 7 - 3 + 1  # three of seven windows were kept, and a worker was lost
    written = StoreFolder("memory://translations").read("many.jsonl") if is_remote else output.read_bytes()
    assert written.decode() == expected.getvalue()
    assert not list((tmp_path / "cache").glob("dragoman/outputs/*"))
