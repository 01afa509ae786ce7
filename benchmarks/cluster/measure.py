"""One measurement of the benchmark, in a process of its own: `python -m cluster.measure BUNDLE TEXT MODE`. It prints JSON.

Modes: `single`, `tasks` (dragoman's shards as Ray tasks with a manifest), `data` (the same shards by Ray Data, without a
manifest) and `empty` (shards that are only copied). The model is loaded and the workers run before the time begins.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import click
from common.usage import limit_cores

from dragoman.cli.translation import cluster_translate
from dragoman.cli.translation.cluster_translate import TranslateShard, WorkerTranslator, on_one_thread, translate_on_cluster
from dragoman.cluster.ray_executor import RayExecutor, connect
from dragoman.cluster.shards import ShardRecord, read_output, run_shards, split_lines
from dragoman.formats.object_store import StoreFolder, write_pieces
from dragoman.formats.text import read_lines
from dragoman.inference.session import DeviceOptions

DEVICE: DeviceOptions = {"device": "cpu", "precision": "int8"}
DECODING = {"method": "beam", "beam_size": 4, "min_length": 30, "max_extra_tokens": 3, "repetition_window": 0}
NUM_EMPTY_SHARDS, LINES_PER_SHARD = 200, 2048


def measure_single(function: TranslateShard, lines: list[str], window: int, output: Path) -> dict[str, Any]:
    """Return the time that one process with one thread takes for the same windows."""
    shards = list(split_lines(lines, lines_per_shard=window))
    function(shards[0].payload)
    start = time.perf_counter()
    shard_seconds = []
    with output.open("wb") as stream:
        for shard in shards:
            before = time.perf_counter()
            stream.write(function(shard.payload)[0]["txt"])
            shard_seconds.append(time.perf_counter() - before)
    return {"seconds": time.perf_counter() - start, "shard_seconds": shard_seconds}


def measure_tasks(
    bundle: Path, text: Path, window: int, output: Path, executor: RayExecutor, warm_up: Callable[[], None]
) -> dict[str, Any]:
    """Return the time of the command's work on warm workers, and the time of each shard in its worker."""
    records: list[ShardRecord] = []

    def keep_records(*arguments: Any, **options: Any) -> list[ShardRecord]:
        records.extend(run_shards(*arguments, **options))
        return records

    warm_up()
    start = time.perf_counter()
    with mock.patch.object(cluster_translate, "run_shards", keep_records):
        translate_on_cluster([bundle], text, output, executor, device_options=DEVICE, decoding=DECODING, window=window)
    return {"seconds": time.perf_counter() - start, "shard_seconds": [record.seconds for record in records]}


def measure_data(function: TranslateShard, lines: list[str], window: int, output: Path, num_workers: int) -> dict[str, Any]:
    """Return the time of the same shards by Ray Data with a pool of actors that hold the model."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    shards = list(split_lines(lines, lines_per_shard=window))

    class Translate:
        def __init__(self) -> None:
            self.function = function
            self.function(shards[0].payload)
            self.ready = time.time()

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            start, lines = json.loads(row["payload"])
            before = time.perf_counter()
            content = self.function((start, lines))[0]["txt"]
            return {"name": row["name"], "content": content, "seconds": time.perf_counter() - before, "ready": self.ready}

    translate: Any = Translate
    rows = [{"name": shard.name, "payload": json.dumps(shard.payload)} for shard in shards]
    pool = ray.data.ActorPoolStrategy(size=num_workers)
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(translate, compute=pool, num_cpus=1)
    results = sorted(dataset.take_all(), key=lambda row: row["name"])
    output.write_bytes(b"".join(row["content"] for row in results))
    start = max(row["ready"] for row in results)  # the other actors may have begun earlier, which favours Ray Data
    return {"seconds": time.time() - start, "shard_seconds": [row["seconds"] for row in results]}


def copy_lines(numbered_lines: tuple[int, list[str]]) -> tuple[dict[str, bytes], Any]:
    return {"txt": "".join(line + "\n" for line in numbered_lines[1]).encode()}, {}


def measure_empty(executor: RayExecutor, lines: list[str], folder: Path) -> dict[str, Any]:
    """Return the time for shards of 2,048 lines that are only copied: what Ray, the files, the digests and the merge cost."""
    text = [lines[number % len(lines)] for number in range(NUM_EMPTY_SHARDS * LINES_PER_SHARD)]
    store = StoreFolder(str(folder / "shards"))
    run_shards(copy_lines, split_lines(text[: 8 * LINES_PER_SHARD], lines_per_shard=LINES_PER_SHARD), store, executor)
    store.delete()
    start = time.perf_counter()
    records = run_shards(copy_lines, split_lines(text, lines_per_shard=LINES_PER_SHARD), store, executor)
    write_pieces(str(folder / "output"), (read_output(store, record, "txt") for record in records))
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "seconds_per_shard": seconds / NUM_EMPTY_SHARDS}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.argument("mode", type=click.Choice(["single", "tasks", "data", "empty"]))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--window", type=int, required=True)
@click.option("--workers", "num_workers", type=int, default=1, help="Workers, and cores of the whole measurement.")
def main(bundle: Path, text: Path, mode: str, output: Path, window: int, num_workers: int) -> None:
    """Measure one mode, and print the times as JSON."""
    limit_cores(num_workers)
    function = TranslateShard(WorkerTranslator((str(bundle.absolute()),), on_one_thread(DEVICE)), DECODING, False)
    lines = list(read_lines(text))
    result: dict[str, Any]
    if mode == "single":
        result = measure_single(function, lines, window, output)
    else:
        with connect("local") as executor, tempfile.TemporaryDirectory() as name:

            def warm_up() -> None:
                shards = split_lines(lines[: 4 * num_workers * 32], lines_per_shard=32, prefix="warm")
                run_shards(function, shards, StoreFolder(str(Path(name) / "warm")), executor)

            if mode == "tasks":
                result = measure_tasks(bundle, text, window, output, executor, warm_up)
            elif mode == "data":
                result = measure_data(function, lines, window, output, num_workers)
            else:
                result = measure_empty(executor, lines, Path(name))
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
