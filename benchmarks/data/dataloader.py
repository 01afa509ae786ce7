"""dragoman's data loader in a process of its own.

    first RECIPE SETTINGS STARTED          load the first batch, then batches at random positions of late epochs
    rate RECIPE SETTINGS SECONDS           measure how fast batches come in the training process
    lengths RECIPE SETTINGS EPOCHS FILE    write the lengths of every served pair, to count padding

SETTINGS is a JSON list of key=value that includes `run`. Prints one JSON object.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import Recipe, read_recipe
from dragoman.data.dataloader import BatchStream, DataPosition, TrainingBatches
from dragoman.data.tokenization.special_tokens import BEGIN_ID, PADDING_ID

SEEKS = 9
LATE_EPOCHS = range(20, 1000)
WARM_UP = 20
WINDOWS = 5


def open_batches(recipe: Recipe) -> TrainingBatches:
    return TrainingBatches(recipe, Path(recipe.run) / "data", start_id=BEGIN_ID)


def first(recipe: Recipe, started: str) -> dict[str, Any]:
    """Return the seconds from the parent's start to the first batch, and the seconds of each seek."""
    imported = time.monotonic() - float(started)
    batches = open_batches(recipe)
    BatchStream(batches, position=DataPosition()).next_batch()
    whole = time.monotonic() - float(started)
    rng = random.Random(1)
    seeks = []
    for _ in range(SEEKS):
        epoch, position = rng.choice(LATE_EPOCHS), rng.random()
        begun = time.monotonic()
        number = int(position * batches.count_batches(epoch))
        BatchStream(batches, position=DataPosition(epoch, number)).next_batch()
        seeks.append(time.monotonic() - begun)
    return {"import_seconds": imported, "first_batch_seconds": whole, "seek_seconds": seeks}


def rate(recipe: Recipe, seconds: str) -> dict[str, Any]:
    """Return target tokens per second as the metrics log counts them: the median of several windows."""
    stream = BatchStream(open_batches(recipe), position=DataPosition())
    for _ in range(WARM_UP):
        stream.next_batch()
    rates = []
    for _ in range(WINDOWS):
        begun, tokens = time.monotonic(), 0
        while (spent := time.monotonic() - begun) < float(seconds) / WINDOWS:
            tokens += sum(batch.num_target_tokens for batch in stream.next_batch())
        rates.append(tokens / spent)
    return {"target_tokens_per_second": statistics.median(rates), "windows": rates}


def lengths(recipe: Recipe, epochs: str, path: str) -> dict[str, Any]:
    """Write the source length, target length, batch and epoch of each pair, in the order of serving."""
    batches = open_batches(recipe)
    columns: list[list[np.ndarray[Any, np.dtype[np.int32]]]] = [[], [], [], []]
    number = 0
    for epoch in range(int(epochs)):
        stream = BatchStream(batches, position=DataPosition(epoch))
        while stream.position.epoch == epoch:
            for batch in stream.next_batch():
                source, target = (
                    (side != PADDING_ID).sum(dim=1).numpy().astype(np.int32) for side in (batch.source_BS, batch.targets_BT)
                )
                columns_of_batch = (np.full_like(source, value) for value in (number, epoch))
                for column, values in zip(columns, (source, target, *columns_of_batch), strict=True):
                    column.append(values)
                number += 1
    sources, targets, numbers, epochs_of = (np.concatenate(column) for column in columns)
    np.savez(path, source=sources, target=targets, batch=numbers, epoch=epochs_of)
    return {"pairs": sum(len(values) for values in columns[0])}


def main() -> None:
    command, recipe_path, changes, *arguments = sys.argv[1:]
    recipe = read_recipe(Path(recipe_path), json.loads(changes))
    commands: dict[str, Callable[..., dict[str, Any]]] = {"first": first, "rate": rate, "lengths": lengths}
    print(json.dumps(commands[command](recipe, *arguments)))


if __name__ == "__main__":
    main()
